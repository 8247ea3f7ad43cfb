//! A resource on its way through the layers, with what the reference keeps in internal annotations.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::id::{Gvk, Id};
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};

/// What a generated resource does to an existing one of the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Behavior {
    /// Must be new.
    #[default]
    Create,
    /// Takes its place.
    Replace,
    /// Adds to it.
    Merge,
}

/// An id a resource had before a layer changed it. The group and version are always the current ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Effective namespace.
    pub namespace: Arc<str>,
}

/// One object and its history.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The object.
    pub root: Map,
    /// Earlier ids, oldest first.
    pub previous: Vec<Previous>,
    /// Prefixes put on the name, in order.
    pub prefixes: Vec<Arc<str>>,
    /// Suffixes put on the name, in order.
    pub suffixes: Vec<Arc<str>>,
    /// The name gets a hash of the content at the end.
    pub needs_hash: bool,
    /// Made by a generator.
    pub generated: bool,
    /// For generated resources.
    pub behavior: Behavior,
    /// Names of the vars that take their value from it.
    pub vars: Vec<Box<str>>,
    /// Where it came from, when origin annotations are asked for.
    pub origin: Option<Box<super::origin::Provenance>>,
}

impl Resource {
    /// A resource read from a file.
    pub fn new(root: Map) -> Self {
        Self {
            root,
            previous: Vec::new(),
            prefixes: Vec::new(),
            suffixes: Vec::new(),
            needs_hash: false,
            generated: false,
            behavior: Behavior::Create,
            vars: Vec::new(),
            origin: None,
        }
    }

    fn raw(&self, key: &str) -> &str {
        match self.root.get(key) {
            Some(Node::Scalar(s)) => &s.text,
            _ => "",
        }
    }

    /// `apiVersion`, empty when absent.
    pub fn api_version(&self) -> &str {
        self.raw("apiVersion")
    }

    /// `kind`.
    pub fn kind(&self) -> &str {
        self.raw("kind")
    }

    /// Type.
    pub fn gvk(&self) -> Gvk<'_> {
        Gvk::new(self.api_version(), self.kind())
    }

    /// The `metadata` mapping.
    pub fn metadata(&self) -> Option<&Map> {
        self.root.get("metadata").and_then(Node::as_map)
    }

    /// The `metadata` mapping, created when absent.
    pub fn metadata_mut(&mut self) -> &mut Map {
        let node = self.root.entry_or_insert("metadata", Node::map);
        if !matches!(node, Node::Map(_)) {
            *node = Node::map();
        }
        match node {
            Node::Map(map) => map,
            _ => unreachable!("made a mapping above"),
        }
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.metadata().and_then(|m| m.text("name")).unwrap_or("")
    }

    /// `metadata.namespace`, empty when absent.
    pub fn namespace(&self) -> &str {
        self.metadata().and_then(|m| m.text("namespace")).unwrap_or("")
    }

    /// Sets `metadata.name`.
    pub fn set_name(&mut self, name: &str) {
        self.metadata_mut()
            .entry_or_insert("name", Node::null)
            .set_untyped(name);
    }

    /// Sets `metadata.namespace`, or removes it when empty.
    pub fn set_namespace(&mut self, namespace: &str) {
        let metadata = self.metadata_mut();
        if namespace.is_empty() {
            metadata.remove("namespace");
        } else {
            metadata.entry_or_insert("namespace", Node::null).set_untyped(namespace);
        }
    }

    /// The current id.
    pub fn id(&self) -> Id<'_> {
        Id {
            gvk: self.gvk(),
            name: self.name(),
            namespace: self.namespace(),
        }
    }

    /// The earlier ids, oldest first.
    pub fn previous_ids(&self) -> impl Iterator<Item = Id<'_>> {
        let gvk = self.gvk();
        self.previous.iter().map(move |p| Id {
            gvk: Gvk { kind: &p.kind, ..gvk },
            name: &p.name,
            namespace: &p.namespace,
        })
    }

    /// The first id it had.
    pub fn original_id(&self) -> Id<'_> {
        self.previous_ids().next().unwrap_or_else(|| self.id())
    }

    /// The current id and all earlier ones.
    pub fn any_id(&self) -> impl Iterator<Item = Id<'_>> {
        self.previous_ids().chain(std::iter::once(self.id()))
    }

    /// Remembers the current id.
    pub fn record_id(&mut self) {
        let id = self.id();
        let last = self.previous.last();
        let share = |text: &str, old: Option<&Arc<str>>| match old {
            Some(old) if **old == *text => Arc::clone(old),
            _ => Arc::from(text),
        };
        let record = Previous {
            kind: share(id.gvk.kind, last.map(|p| &p.kind)),
            name: share(id.name, last.map(|p| &p.name)),
            namespace: share(id.effective_namespace(), last.map(|p| &p.namespace)),
        };
        self.previous.reserve_exact(1);
        self.previous.push(record);
    }

    /// Loses the history, as when a patch clears the annotations in which the reference keeps it.
    pub fn forget(&mut self) {
        self.previous.clear();
        self.prefixes.clear();
        self.suffixes.clear();
        self.needs_hash = false;
        self.generated = false;
        self.origin = None;
    }

    /// True when the reference would keep internal annotations on this resource.
    pub fn has_bookkeeping(&self) -> bool {
        self.generated || self.origin.is_some() || !self.previous.is_empty()
    }

    /// Hash of the current id, for finding duplicates.
    pub fn id_hash(&self) -> u64 {
        hash_id(&self.id())
    }

    /// The raw text of an annotation or label.
    pub fn meta_text(&self, field: &str, key: &str) -> Option<&str> {
        match self.metadata()?.get(field)?.as_map()?.get(key)? {
            Node::Scalar(s) => Some(&s.text),
            _ => Some(""),
        }
    }

    /// Labels or annotations as text.
    pub fn meta_map(&self, field: &str) -> Vec<(&str, &str)> {
        let Some(Node::Map(map)) = self.metadata().and_then(|m| m.get(field)) else {
            return Vec::new();
        };
        map.iter().map(|(k, v)| (&**k, scalar_text(v))).collect()
    }

    /// The finished object.
    ///
    /// # Errors
    /// A value that does not fit its type.
    pub fn into_value(self) -> Result<serde_json::Value, super::Problem> {
        value(self.root)
    }

    /// Rewrites annotations as the reference does whenever it sets one: every value becomes text, an empty
    /// mapping goes away.
    pub fn coerce_annotations(&mut self, keep: impl Fn(&str) -> bool) {
        let Some(Node::Map(metadata)) = self.root.get_mut("metadata") else {
            return;
        };
        let Some(at) = metadata.position("annotations") else {
            return;
        };
        let Node::Map(annotations) = metadata.at_mut(at) else {
            metadata.remove("annotations");
            return;
        };
        annotations.retain(|key, value| {
            match value {
                Node::Scalar(s) => {
                    s.tag = Tag::Str;
                    s.style = Style::Plain;
                    s.quote_ambiguous();
                }
                other => *other = Node::Scalar(Scalar::string("")),
            }
            keep(key)
        });
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

/// The value of an object.
///
/// # Errors
/// A scalar that does not fit its type.
pub fn value(root: Map) -> Result<serde_json::Value, super::Problem> {
    let resource = Resource::new(root);
    let id = resource.id().to_string();
    Node::Map(resource.root)
        .into_value()
        .map_err(|source| super::Problem::Value { id, source })
}

/// Hash of an id by what makes ids equal.
pub fn hash_id(id: &Id<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.gvk.hash(&mut hasher);
    id.name.hash(&mut hasher);
    id.effective_namespace().hash(&mut hasher);
    hasher.finish()
}

fn scalar_text(node: &Node) -> &str {
    match node {
        Node::Scalar(s) => &s.text,
        _ => "",
    }
}
