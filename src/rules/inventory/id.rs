//! Identity of an object and its written form in an inventory entry (api 7.2).

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

/// Identity of an object: group, kind, namespace, name. The version is no part of it. Ordered bytewise by its
/// written form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    pub name: String,
    /// Empty for the core group.
    pub group: String,
    pub kind: String,
}

impl ObjectId {
    /// Identity from its parts; `namespace` is empty for a cluster-scoped object, `group` for the core group.
    pub fn new(namespace: &str, name: &str, group: &str, kind: &str) -> Self {
        ObjectId {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
        }
    }

    /// Identity of an object, none where it lacks a kind or a name.
    pub fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = text("/metadata/name").filter(|name| !name.is_empty())?;
        let kind = text("/kind").filter(|kind| !kind.is_empty())?;
        let api_version = text("/apiVersion").unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let namespace = text("/metadata/namespace").unwrap_or_default();
        Some(ObjectId::new(namespace, name, group, kind))
    }

    /// Reads `<namespace>_<name>_<group>_<kind>`. Only the name may hold an underscore itself (RBAC names may):
    /// the namespace ends at the first one, group and kind are the last two parts.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('_')?;
        let (rest, kind) = rest.rsplit_once('_')?;
        let (name, group) = rest.rsplit_once('_')?;
        let complete = !name.is_empty() && !kind.is_empty();
        complete.then(|| ObjectId::new(namespace, name, group, kind))
    }

    /// `<namespace>_<name>_<group>_<kind>`, parts verbatim.
    pub fn written(&self) -> String {
        format!("{}_{}_{}_{}", self.namespace, self.name, self.group, self.kind)
    }

    /// `Kind.group`, or `Kind` in the core group.
    pub fn group_kind(&self) -> String {
        if self.group.is_empty() {
            self.kind.clone()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        let parts = [&self.namespace, "_", &self.name, "_", &self.group, "_", &self.kind];
        parts.into_iter().flat_map(str::bytes)
    }
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        // Two identities may share a written form only if one of them holds an underscore outside its name;
        // the parts break the tie so that order and equality agree.
        self.bytes().cmp(other.bytes()).then_with(|| {
            let parts = |id: &Self| (id.namespace.len(), id.name.len(), id.group.len());
            parts(self).cmp(&parts(other))
        })
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `Kind/namespace/name`, or `Kind/name` for a cluster-scoped object.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An inventory entry: identity and the API version of the most recent apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: ObjectId,
    /// Bare version, `v1` for `apps/v1`.
    pub version: String,
}

/// A recorded entry that cannot be read. The object escapes pruning, so this must not be silent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("inventory entry {id:?} is not <namespace>_<name>_<group>_<kind>")]
pub struct MalformedEntry {
    pub id: String,
}

impl Entry {
    /// Reads an entry. `v` may be a full API version (`apps/v1`) or, as the Go implementation wrote it, the bare
    /// version; then a `__` in the name of an RBAC object stands for `:`.
    pub fn parse(id: &str, v: &str) -> Result<Self, MalformedEntry> {
        let mut parsed = ObjectId::parse(id).ok_or_else(|| MalformedEntry { id: id.to_owned() })?;
        let version = match v.rsplit_once('/') {
            Some((_, version)) => version,
            None => {
                if parsed.group == "rbac.authorization.k8s.io" {
                    parsed.name = parsed.name.replace("__", ":");
                }
                v
            }
        };
        Ok(Entry {
            id: parsed,
            version: version.to_owned(),
        })
    }

    /// Identity and version of an object, none where it lacks a kind or a name.
    pub fn of(object: &Value) -> Option<Self> {
        let id = ObjectId::of(object)?;
        let api_version = object.get("apiVersion").and_then(Value::as_str)?;
        let version = api_version.rsplit('/').next().unwrap_or(api_version);
        Some(Entry {
            id,
            version: version.to_owned(),
        })
    }

    /// The full API version, `apps/v1` or `v1`, as written to an entry's `v`.
    pub fn api_version(&self) -> String {
        if self.id.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.id.group, self.version)
        }
    }
}
