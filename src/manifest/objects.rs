//! Values to Kubernetes objects: lists expanded, identity checked.

use std::collections::HashSet;

use serde_json::Value;

use super::yaml::{self, Mode};

/// A document that is no complete object.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{file}, document {document}: {problem}")]
pub struct ObjectError {
    /// The file, or the object's place in the build.
    pub file: String,
    /// Index in that file, from 1.
    pub document: usize,
    /// What is wrong.
    pub problem: ObjectProblem,
}

/// What can be wrong with an object.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ObjectProblem {
    /// A list or scalar.
    #[error("not a Kubernetes object; apiVersion, kind and metadata are needed")]
    NotAnObject,
    /// A field every object needs.
    #[error("{object}: {field} is missing; every object needs one")]
    Missing {
        /// What is known of the object.
        object: String,
        /// The field.
        field: &'static str,
    },
    /// A name the server would choose.
    #[error("{object}: metadata.generateName cannot be used, set metadata.name")]
    GenerateName {
        /// What is known of the object.
        object: String,
    },
    /// Items that are no list.
    #[error("{object}: items must be a list")]
    Items {
        /// What is known of the object.
        object: String,
    },
    /// Two objects of one id.
    #[error("{object} appears twice; remove one")]
    Duplicate {
        /// The object.
        object: String,
    },
}

/// The objects of one file: YAML or JSON, several documents, kinds ending in `List` expanded. Duplicates are not
/// looked for; see [`check_unique`].
///
/// # Errors
/// Malformed text, or a document that is no object with apiVersion, kind and metadata.name.
pub fn from_file(bytes: &[u8], file: &str, mode: Mode) -> Result<Vec<Value>, super::Error> {
    let mut objects = Vec::new();
    for (index, value) in yaml::load(bytes, file, mode)?.into_iter().enumerate() {
        flatten(value, &mut objects).map_err(|problem| at(file, index, problem))?;
    }
    for (index, object) in objects.iter().enumerate() {
        check(object).map_err(|problem| at(file, index, problem))?;
    }
    Ok(objects)
}

fn at(file: &str, index: usize, problem: ObjectProblem) -> ObjectError {
    ObjectError {
        file: file.to_owned(),
        document: index + 1,
        problem,
    }
}

/// Replaces an object whose kind ends in `List` and that has `items` by these, at any depth.
///
/// # Errors
/// `items` that is neither a list nor null.
pub fn flatten(value: Value, into: &mut Vec<Value>) -> Result<(), ObjectProblem> {
    let is_list = text(&value, "/kind").is_some_and(|kind| kind.ends_with("List")) && value.get("items").is_some();
    if !is_list {
        into.push(value);
        return Ok(());
    }
    let object = describe(&value);
    let Value::Object(mut map) = value else {
        return Ok(());
    };
    match map.shift_remove("items") {
        Some(Value::Array(items)) => items.into_iter().try_for_each(|item| flatten(item, into)),
        Some(Value::Null) | None => Ok(()),
        Some(_) => Err(ObjectProblem::Items { object }),
    }
}

/// Checks that a value has apiVersion, kind and metadata.name.
///
/// # Errors
/// The first one missing.
pub fn check(value: &Value) -> Result<(), ObjectProblem> {
    if !value.is_object() {
        return Err(ObjectProblem::NotAnObject);
    }
    for (field, pointer) in [("apiVersion", "/apiVersion"), ("kind", "/kind")] {
        if text(value, pointer).is_none_or(str::is_empty) {
            return Err(ObjectProblem::Missing {
                object: describe(value),
                field,
            });
        }
    }
    if text(value, "/metadata/name").is_none_or(str::is_empty) {
        let object = describe(value);
        return Err(match value.pointer("/metadata/generateName") {
            Some(_) => ObjectProblem::GenerateName { object },
            None => ObjectProblem::Missing {
                object,
                field: "metadata.name",
            },
        });
    }
    Ok(())
}

/// Checks every object, and that no two have the same apiVersion group, kind, namespace and name.
///
/// # Errors
/// The first object that fails.
pub fn check_unique(objects: &[Value]) -> Result<(), ObjectError> {
    const PLACE: &str = "the build result";
    let mut seen = HashSet::with_capacity(objects.len());
    for (index, object) in objects.iter().enumerate() {
        check(object).map_err(|problem| at(PLACE, index, problem))?;
        let api_version = text(object, "/apiVersion").unwrap_or_default();
        let id = (
            api_version,
            text(object, "/kind"),
            text(object, "/metadata/namespace")
                .filter(|n| !n.is_empty())
                .unwrap_or("default"),
            text(object, "/metadata/name"),
        );
        if !seen.insert(id) {
            return Err(at(
                PLACE,
                index,
                ObjectProblem::Duplicate {
                    object: describe(object),
                },
            ));
        }
    }
    Ok(())
}

/// Short name of an object for messages: `apps/v1 Deployment prod/web`.
pub fn describe(value: &Value) -> String {
    let part = |pointer| text(value, pointer).filter(|t| !t.is_empty());
    let mut name = String::new();
    for pointer in ["/apiVersion", "/kind"] {
        name.push_str(part(pointer).unwrap_or("?"));
        name.push(' ');
    }
    if let Some(namespace) = part("/metadata/namespace") {
        name.push_str(namespace);
        name.push('/');
    }
    name.push_str(part("/metadata/name").unwrap_or("?"));
    name
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Vec<String>, super::super::Error> {
        Ok(from_file(text.as_bytes(), "f.yaml", Mode::Kustomize)?
            .iter()
            .map(describe)
            .collect())
    }

    #[test]
    fn expands_nested_lists() {
        let inner = r#"{"apiVersion":"v1","kind":"ConfigMapList","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}]}"#;
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[{inner},{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"s"}}}}]}}"#
        );
        assert_eq!(load(&text).unwrap(), ["v1 ConfigMap n/a", "v1 Secret s"]);
        assert_eq!(load("kind: List\nitems: null\n").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn names_what_is_missing() {
        let message = load("apiVersion: v1\nkind: Job\nmetadata: {generateName: x-}\n")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("f.yaml") && message.contains("generateName") && message.contains("Job"),
            "{message}"
        );
        let message = load("kind: Job\nmetadata: {name: x}\n").unwrap_err().to_string();
        assert!(message.contains("apiVersion is missing"), "{message}");
    }

    #[test]
    fn finds_duplicates_across_the_default_namespace() {
        let one = serde_json::json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}});
        let two =
            serde_json::json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}});
        assert!(check_unique(std::slice::from_ref(&one)).is_ok());
        let error = check_unique(&[one, two]).unwrap_err();
        assert!(matches!(error.problem, ObjectProblem::Duplicate { .. }));
    }
}
