//! Walking a field spec through a resource.

use super::budget::Heavy;
use super::config::{Spec, Step};
use super::id::Gvk;
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};

/// Why a field cannot be changed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum FieldError {
    /// A scalar in the middle of the path.
    #[error("field {path:?}: expected a list or mapping at {at:?}, found {found}")]
    NotACollection {
        /// The whole path.
        path: String,
        /// The element at which the walk stopped.
        at: String,
        /// What is there.
        found: &'static str,
    },
    /// The end of the path is of another kind than the transformer writes.
    #[error("field {path:?} must be {expected}, found {found}")]
    WrongLeaf {
        /// The whole path.
        path: String,
        /// What the transformer writes into.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// More than a build may hold.
    #[error(transparent)]
    Heavy(#[from] Heavy),
    /// An empty element in the path.
    #[error("field path {0:?} has an empty element")]
    EmptyElement(String),
    /// A value other than a name where a reference is expected.
    #[error("field {path:?}: {problem}")]
    Reference {
        /// The whole path.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

/// What a missing leaf is created as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// Nothing is created, whatever the spec says.
    Never,
    /// A mapping.
    Map,
    /// A scalar.
    Scalar,
}

/// True when the spec is for resources of this type.
pub(crate) fn applies(spec: &Spec, gvk: &Gvk<'_>) -> bool {
    gvk.is_selected_by(&spec.group, &spec.version, &spec.kind)
}

/// Calls `set` on every node the spec leads to.
pub(crate) fn visit(
    root: &mut Map,
    spec: &Spec,
    leaf: Leaf,
    set: &mut dyn FnMut(&mut Node) -> Result<(), FieldError>,
) -> Result<(), FieldError> {
    let mut walk = Walk { spec, leaf, set };
    walk.map(root, &spec.steps)
}

struct Walk<'a> {
    spec: &'a Spec,
    leaf: Leaf,
    set: &'a mut dyn FnMut(&mut Node) -> Result<(), FieldError>,
}

impl Walk<'_> {
    fn node(&mut self, node: &mut Node, steps: &[Step]) -> Result<(), FieldError> {
        if steps.is_empty() {
            return (self.set)(node);
        }
        match node {
            node if node.is_null() => Ok(()),
            Node::Map(map) => self.map(map, steps),
            Node::Seq(items) => {
                for item in items {
                    self.node(item, steps)?;
                }
                Ok(())
            }
            Node::Scalar(_) => Err(FieldError::NotACollection {
                path: self.spec.path.to_string(),
                at: steps[0].name.to_string(),
                found: node.kind_name(),
            }),
        }
    }

    fn map(&mut self, map: &mut Map, steps: &[Step]) -> Result<(), FieldError> {
        let Some((step, rest)) = steps.split_first() else {
            return Ok(());
        };
        if step.name.is_empty() {
            return Err(FieldError::EmptyElement(self.spec.path.to_string()));
        }
        let created = (self.spec.create && self.leaf != Leaf::Never && !step.list).then(|| {
            if rest.is_empty() && self.leaf == Leaf::Scalar {
                empty_scalar()
            } else {
                Node::map()
            }
        });
        let at = match (map.position(&step.name), &created) {
            (Some(at), _) => at,
            (None, Some(created)) => {
                map.push(step.name.clone(), created.clone());
                map.len() - 1
            }
            (None, None) => return Ok(()),
        };
        let field = map.at_mut(at);
        if field.is_null() {
            if step.list {
                *field = Node::Seq(Vec::new());
            } else if let Some(created) = created {
                *field = created;
            }
        }
        self.node(field, rest)
    }
}

fn empty_scalar() -> Node {
    Node::Scalar(Scalar {
        text: "".into(),
        tag: Tag::Str,
        style: Style::Plain,
    })
}

/// The scalar at the end of a path, to change it.
pub(crate) fn scalar_leaf<'a>(node: &'a mut Node, path: &str) -> Result<&'a mut Scalar, FieldError> {
    match node {
        Node::Scalar(scalar) => Ok(scalar),
        other => Err(FieldError::WrongLeaf {
            path: path.to_owned(),
            expected: "a scalar",
            found: other.kind_name(),
        }),
    }
}

/// The mapping at the end of a path, to change it.
pub(crate) fn map_leaf<'a>(node: &'a mut Node, path: &str) -> Result<&'a mut Map, FieldError> {
    let found = node.kind_name();
    match node {
        Node::Map(map) => Ok(map),
        _ => Err(FieldError::WrongLeaf {
            path: path.to_owned(),
            expected: "a mapping",
            found,
        }),
    }
}
