//! The value-add transformer, which exists only as a plugin.

use super::budget::{self, Allowance};
use super::config::split_path;
use super::error::Problem;
use super::fieldspec::FieldError;
use super::resource::Resource;
use super::selector::Matcher;
use super::transform::Namespace;
use crate::manifest::node::{Map, Node};

/// One place to add the value to.
pub(crate) struct Target {
    pub selector: Option<Matcher>,
    pub field_path: String,
    /// Position in a file path, from 1; 0 replaces the value.
    pub position: usize,
}

/// Adds a value to fields, or to file paths inside fields.
pub(crate) struct ValueAdd {
    pub value: String,
    pub targets: Vec<Target>,
}

impl ValueAdd {
    pub fn apply(&self, resources: &mut [Resource], allowance: &Allowance) -> Result<(), Problem> {
        for target in &self.targets {
            for resource in resources.iter_mut() {
                if !target.selector.as_ref().is_none_or(|s| s.matches(resource)) {
                    continue;
                }
                allowance.take(budget::of_text(&self.value))?;
                if target.field_path == "metadata/namespace" {
                    if !resource.gvk().is_cluster_scoped() {
                        resource.set_namespace(&self.value);
                    }
                    Namespace::subjects_only(&self.value, resource, allowance)
                        .map_err(|e| Problem::field(resource, e))?;
                    continue;
                }
                let fields = split_path(&target.field_path);
                self.set(&mut resource.root, &fields, target)
                    .map_err(|e| Problem::field(resource, e))?;
            }
        }
        Ok(())
    }

    fn set(&self, map: &mut Map, fields: &[String], target: &Target) -> Result<(), FieldError> {
        let Some((first, rest)) = fields.split_first() else {
            return Ok(());
        };
        let wrong = |expected, found| FieldError::WrongLeaf {
            path: target.field_path.clone(),
            expected,
            found,
        };
        let node = map.entry_or_insert(first, || if rest.is_empty() { Node::string("") } else { Node::map() });
        let found = node.kind_name();
        match node {
            Node::Map(map) if !rest.is_empty() => self.set(map, rest, target),
            Node::Scalar(scalar) if rest.is_empty() => {
                let text = match target.position {
                    0 => self.value.clone(),
                    position => inserted(&scalar.text, position - 1, &self.value),
                };
                scalar.set_untyped(text);
                Ok(())
            }
            _ if rest.is_empty() => Err(wrong("a scalar", found)),
            _ => Err(wrong("a mapping", found)),
        }
    }
}

/// Inserts a part into a file path; a leading slash stays in front.
fn inserted(path: &str, at: usize, part: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    parts.insert(at.min(parts.len()), part);
    format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_into_file_paths() {
        for (path, at, expected) in [
            ("", 0, "PEACH"),
            ("/", 0, "/PEACH"),
            ("pie", 0, "PEACH/pie"),
            ("/raw", 1, "/raw/PEACH"),
            ("/a/nice/warm/pie", 3, "/a/nice/warm/PEACH/pie"),
        ] {
            assert_eq!(inserted(path, at, "PEACH"), expected);
        }
    }
}
