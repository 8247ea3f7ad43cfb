//! Strategic merge as kustomize performs it, quirks included.
//!
//! The rules follow the observable behaviour of kyaml's merge: a patch is walked together with its target, and
//! where the target lacks a mapping or keyed list, the patch's own node stands on both sides of the walk.

use super::keyed;
use super::schema::{NodeId, Schema};
use crate::manifest::node::{Key, Map, Node, Style, Tag};

/// Why a patch does not fit its target.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum MergeError {
    /// Two kinds of node at the same place.
    #[error("at {path:?} the patch has {patch}, the resource {target}")]
    Kinds {
        /// Dotted path.
        path: String,
        /// What the patch has.
        patch: &'static str,
        /// What the resource has.
        target: &'static str,
    },
    /// A directive that does not exist.
    #[error("at {path:?}: unknown $patch directive {directive:?}; use merge, replace or delete")]
    Directive {
        /// Dotted path.
        path: String,
        /// As written.
        directive: String,
    },
    /// A list too long to be merged by keys.
    #[error("at {path:?}: the list has more than {limit} elements")]
    TooLong {
        /// Dotted path.
        path: String,
        /// The bound.
        limit: usize,
    },
    /// A list element that is no mapping.
    #[error("at {path:?}: elements of this list must be mappings")]
    Element {
        /// Dotted path.
        path: String,
    },
}

/// The patch's side of the walk.
pub(crate) enum Patch {
    /// The patch says nothing here.
    Absent,
    /// The patch's node.
    Node(Node),
    /// The node on the target's side is the patch's own.
    Same,
}

/// What a `$patch` key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Directive {
    Merge,
    Replace,
    Delete,
}

/// Data the reference loses without a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Elements of a list of the resource.
    Elements { path: String },
    /// What the patch says about one element of a list.
    Entry { path: String, keys: String },
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Elements { path } => {
                write!(
                    f,
                    "merging the list {path} drops elements (the same key twice, or none at all)"
                )
            }
            Self::Entry { path, keys } => write!(
                f,
                "an entry of the patch for the list {path} has no effect: it must give {keys} just as the resource does, and \
                 each only once"
            ),
        }
    }
}

/// One merge.
pub(crate) struct Merge<'s> {
    schema: &'s Schema,
    path: Vec<Key>,
    /// Places at which the reference loses data, for warnings.
    pub lost: Vec<Loss>,
}

impl<'s> Merge<'s> {
    pub fn new(schema: &'s Schema) -> Self {
        Self {
            schema,
            path: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Merges `patch` into `target`; `None` when the patch deletes the object.
    pub fn object(&mut self, target: Map, patch: Map) -> Result<Option<Map>, MergeError> {
        let original = matches!(directive_of(&patch), Some("replace")).then(|| target.clone());
        let merged = self.walk(Some(Node::Map(target)), Patch::Node(Node::Map(patch)), None)?;
        // The reference hands back the unchanged object when the root of a patch says replace.
        match (merged, original) {
            (None, _) => Ok(None),
            (Some(_), Some(original)) => Ok(Some(original)),
            (Some(Node::Map(map)), None) => Ok(Some(map)),
            (Some(_), None) => Ok(None),
        }
    }

    pub(crate) fn here(&self) -> String {
        self.path.join(".")
    }

    /// Walks one place; `None` when nothing is left of it.
    pub(crate) fn walk(
        &mut self,
        target: Option<Node>,
        patch: Patch,
        schema: Option<NodeId>,
    ) -> Result<Option<Node>, MergeError> {
        let schema = schema.or_else(|| self.embedded(target.as_ref(), &patch));
        let kind = match (&target, &patch) {
            (Some(t), _) if !t.is_null() => Some(t),
            (_, Patch::Node(p)) if !p.is_null() => Some(p),
            _ => None,
        };
        match kind {
            None => Ok(self.nothing(target, &patch)),
            Some(Node::Map(_)) => {
                self.same_kind(&target, &patch, |n| matches!(n, Node::Map(_)))?;
                self.mapping(target, patch, schema)
            }
            Some(Node::Seq(_)) => {
                self.same_kind(&target, &patch, |n| matches!(n, Node::Seq(_)))?;
                match schema.and_then(|s| self.schema.merge_keys(s)) {
                    Some(keys) => self.merged_list(target, patch, schema, &keys),
                    None => Ok(replaced(target, patch)),
                }
            }
            Some(Node::Scalar(_)) => {
                self.same_kind(&target, &patch, |n| matches!(n, Node::Scalar(_)))?;
                Ok(replaced(target, patch))
            }
        }
    }

    /// The type of a mapping that names itself, where the schema says nothing.
    fn embedded(&self, target: Option<&Node>, patch: &Patch) -> Option<NodeId> {
        let own = |node: &Node| {
            let map = node.as_map()?;
            let api_version = map.text("apiVersion")?;
            self.schema.kind(api_version, map.text("kind")?)
        };
        let patch = match patch {
            Patch::Node(node) => Some(node),
            _ => None,
        };
        target.and_then(own).or_else(|| patch.and_then(own))
    }

    fn same_kind(&self, target: &Option<Node>, patch: &Patch, fits: impl Fn(&Node) -> bool) -> Result<(), MergeError> {
        let fine = |node: &Node| node.is_null() || fits(node);
        if let (Some(target), Patch::Node(patch)) = (target, patch)
            && !(fine(target) && fine(patch))
        {
            return Err(MergeError::Kinds {
                path: self.here(),
                patch: patch.kind_name(),
                target: target.kind_name(),
            });
        }
        Ok(())
    }

    /// Both sides are null or absent: only a null that was written out in the target survives.
    fn nothing(&self, target: Option<Node>, patch: &Patch) -> Option<Node> {
        match (target, patch) {
            (Some(Node::Scalar(scalar)), Patch::Absent) if !scalar.text.is_empty() => Some(Node::Scalar(scalar)),
            _ => None,
        }
    }

    fn mapping(
        &mut self,
        target: Option<Node>,
        patch: Patch,
        schema: Option<NodeId>,
    ) -> Result<Option<Node>, MergeError> {
        match (target, patch) {
            (Some(Node::Map(target)), Patch::Absent) => self.fields(target, None, false, schema).map(Some),
            (Some(Node::Map(mut map)), Patch::Same) => match self.take_directive(&mut map)? {
                Directive::Delete => Ok(None),
                Directive::Merge | Directive::Replace => self.fields(map, None, true, schema).map(Some),
            },
            (Some(Node::Map(target)), Patch::Node(Node::Map(mut patch))) => match self.take_directive(&mut patch)? {
                Directive::Delete => Ok(None),
                Directive::Replace => self.fields(patch, None, true, schema).map(Some),
                Directive::Merge => self.fields(target, Some(patch), false, schema).map(Some),
            },
            (Some(Node::Map(_)), Patch::Node(_)) => Ok(None),
            (_, Patch::Node(Node::Map(mut map))) => {
                // Nothing to merge into: an unknown directive is left as it is here.
                match self.take_directive(&mut map) {
                    Ok(Directive::Delete) => Ok(None),
                    _ => self.fields(map, None, true, schema).map(Some),
                }
            }
            _ => Ok(None),
        }
    }

    /// Walks the keys of both sides into the target.
    fn fields(
        &mut self,
        mut target: Map,
        patch: Option<Map>,
        same: bool,
        schema: Option<NodeId>,
    ) -> Result<Node, MergeError> {
        let patch = patch.map(Map::into_entries).unwrap_or_default();
        let mut patch: Vec<(Key, Option<Node>)> = patch.into_iter().map(|(k, v)| (k, Some(v))).collect();
        patch.sort_by(|a, b| a.0.cmp(&b.0));
        let mut emptied = false;
        for index in 0..target.len() {
            let (key, slot) = target.entry_at_mut(index);
            let key = key.clone();
            let side = if same {
                Patch::Same
            } else {
                let found = patch.binary_search_by(|(k, _)| k.cmp(&key)).ok();
                found
                    .and_then(|at| patch[at].1.take())
                    .map_or(Patch::Absent, Patch::Node)
            };
            let unchanged = !matches!(side, Patch::Node(_));
            if unchanged
                && let Node::Scalar(scalar) = slot
                && scalar.tag == Tag::Str
            {
                scalar.quote_ambiguous();
                continue;
            }
            let field = schema.and_then(|s| self.schema.field(s, &key));
            let old = std::mem::replace(slot, Node::null());
            self.path.push(key);
            let merged = self.walk(Some(old), side, field)?;
            self.path.pop();
            match merged {
                Some(node) => *target.at_mut(index) = node,
                None => {
                    *target.at_mut(index) = Node::removed();
                    emptied = true;
                }
            }
        }
        if emptied {
            target.retain(|_, node| !node.is_removed());
        }
        self.new_fields(&mut target, patch, schema)?;
        Ok(Node::Map(target))
    }

    /// Adds the keys only the patch has.
    fn new_fields(
        &mut self,
        target: &mut Map,
        patch: Vec<(Key, Option<Node>)>,
        schema: Option<NodeId>,
    ) -> Result<(), MergeError> {
        for (key, node) in patch {
            let Some(node) = node else { continue };
            let field = schema.and_then(|s| self.schema.field(s, &key));
            self.path.push(key.clone());
            let added = self.walk(None, Patch::Node(node), field)?;
            self.path.pop();
            if let Some(mut node) = added {
                if let Node::Scalar(scalar) = &mut node {
                    scalar.quote_ambiguous();
                }
                target.push(key, node);
            }
        }
        Ok(())
    }

    fn merged_list(
        &mut self,
        target: Option<Node>,
        patch: Patch,
        schema: Option<NodeId>,
        keys: &[Box<str>],
    ) -> Result<Option<Node>, MergeError> {
        let (target, patch) = match (target, patch) {
            (Some(Node::Seq(target)), Patch::Absent) => (target, keyed::Side::Absent),
            (Some(Node::Seq(mut list)), Patch::Same) => match self.list_directive(&mut list)? {
                Directive::Delete => return Ok(None),
                _ => (list, keyed::Side::Same),
            },
            (Some(Node::Seq(target)), Patch::Node(Node::Seq(mut patch))) => match self.list_directive(&mut patch)? {
                Directive::Delete => return Ok(None),
                Directive::Replace => (patch, keyed::Side::Same),
                Directive::Merge => (target, keyed::Side::List(patch)),
            },
            (Some(Node::Seq(_)), Patch::Node(_)) => return Ok(None),
            (_, Patch::Node(Node::Seq(patch))) => (patch, keyed::Side::Same),
            _ => return Ok(None),
        };
        let element = schema.and_then(|s| self.schema.element(s));
        keyed::merge(self, target, patch, element, keys).map(|list| Some(Node::Seq(list)))
    }

    /// Takes the directive out of a mapping.
    fn take_directive(&self, map: &mut Map) -> Result<Directive, MergeError> {
        let Some(text) = directive_of(map) else {
            return Ok(Directive::Merge);
        };
        let directive = self.directive(text)?;
        map.remove("$patch");
        Ok(directive)
    }

    fn directive(&self, text: &str) -> Result<Directive, MergeError> {
        match text {
            "merge" => Ok(Directive::Merge),
            "replace" => Ok(Directive::Replace),
            "delete" => Ok(Directive::Delete),
            other => Err(MergeError::Directive {
                path: self.here(),
                directive: other.to_owned(),
            }),
        }
    }

    /// Takes the directive of a list, an element that has nothing but `$patch`.
    fn list_directive(&self, list: &mut Vec<Node>) -> Result<Directive, MergeError> {
        let first = list.iter().find_map(|n| n.as_map().filter(|m| m.contains("$patch")));
        let Some(text) = first.filter(|m| m.len() == 1).and_then(directive_of) else {
            return Ok(Directive::Merge);
        };
        let text = text.to_owned();
        let directive = self.directive(&text)?;
        keyed::remove(list, "$patch", &text);
        Ok(directive)
    }
}

fn directive_of(map: &Map) -> Option<&str> {
    match map.get("$patch")? {
        Node::Scalar(scalar) => Some(&scalar.text),
        _ => Some(""),
    }
}

/// The patch's node wins; a scalar keeps the notation of the one it replaces.
fn replaced(target: Option<Node>, patch: Patch) -> Option<Node> {
    match (target, patch) {
        (_, Patch::Node(node)) if node.is_null() => None,
        (Some(Node::Scalar(old)), Patch::Node(Node::Scalar(mut new))) => {
            new.style = if old.is_null() { Style::Plain } else { old.style };
            Some(Node::Scalar(new))
        }
        (_, Patch::Node(node)) => Some(node),
        (target, _) => target,
    }
}
