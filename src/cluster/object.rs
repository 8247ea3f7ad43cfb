//! Addressing of raw objects. Objects travel as `serde_json::Value` because a typed detour loses
//! fields this program does not know.

use serde_json::Value;

use super::Error;

/// Which object: group and version, kind, namespace (none for cluster-scoped), name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl Target {
    /// The address an object states about itself.
    ///
    /// # Errors
    /// [`Error::Incomplete`] when apiVersion, kind or metadata.name is missing.
    pub fn of(object: &Value) -> Result<Self, Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = text("/metadata/name").unwrap_or_default();
        let require = |value: Option<&str>, field: &'static str| {
            value
                .filter(|v| !v.is_empty())
                .map(str::to_owned)
                .ok_or_else(|| Error::Incomplete {
                    object: format!("{}/{name}", text("/kind").unwrap_or("?")),
                    field,
                })
        };
        Ok(Self {
            api_version: require(text("/apiVersion"), "apiVersion")?,
            kind: require(text("/kind"), "kind")?,
            namespace: text("/metadata/namespace").filter(|n| !n.is_empty()).map(str::to_owned),
            name: require(text("/metadata/name"), "metadata.name")?,
        })
    }

    /// The same for an object the server is to name: the prefix stands for the name.
    ///
    /// # Errors
    /// [`Error::Incomplete`] when apiVersion, kind and both kinds of name are missing.
    pub fn of_new(object: &Value) -> Result<Self, Error> {
        let prefix = object.pointer("/metadata/generateName").and_then(Value::as_str);
        match (object.pointer("/metadata/name"), prefix) {
            (None, Some(prefix)) => Self::of(&serde_json::json!({
                "apiVersion": object.get("apiVersion"),
                "kind": object.get("kind"),
                "metadata": {"name": prefix, "namespace": object.pointer("/metadata/namespace")},
            })),
            _ => Self::of(object),
        }
    }

    /// Refuses names that no object can have, because they would be another path.
    ///
    /// # Errors
    /// [`Error::NoName`].
    pub fn check_names(&self) -> Result<(), Error> {
        let leads_away = |part: &str| matches!(part, "." | "..") || part.contains(['/', '%']);
        if leads_away(&self.name) || self.namespace.as_deref().is_some_and(leads_away) {
            return Err(Error::NoName {
                object: self.to_string(),
            });
        }
        Ok(())
    }

    /// API group, empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(g, _)| g)
    }

    /// API version without the group.
    pub fn version(&self) -> &str {
        self.api_version.split_once('/').map_or(&self.api_version, |(_, v)| v)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(ns) => write!(f, "{}/{ns}/{}", self.kind, self.name),
            None => write!(f, "{}/{}", self.kind, self.name),
        }
    }
}

/// `metadata.uid`, empty when absent.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// `metadata.resourceVersion`, empty when absent.
pub fn resource_version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

/// Whether deletion of the object has begun.
pub fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// A label's value.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("web", Some("shop"), true)]
    #[case("system:controller", None, true)]
    #[case("under_score.and-dots...", None, true)]
    #[case("x?dryRun=All", None, true)]
    #[case("..", None, false)]
    #[case(".", None, false)]
    #[case("a/b", None, false)]
    #[case("a%2Fb", None, false)]
    #[case("web", Some(".."), false)]
    #[case("web", Some("shop/configmaps/x"), false)]
    fn names_that_are_paths_are_refused(#[case] name: &str, #[case] namespace: Option<&str>, #[case] good: bool) {
        let target = Target {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: namespace.map(str::to_owned),
            name: name.into(),
        };
        let checked = target.check_names();
        assert_eq!(checked.is_ok(), good, "{checked:?}");
    }
}
