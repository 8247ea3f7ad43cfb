//! The image transformer: a walk over every container list, then the field specs.

use regex::Regex;

use super::budget::{self, Allowance};
use super::config::Spec;
use super::error::Problem;
use super::fieldspec::{self, FieldError, Leaf, scalar_leaf};
use super::file::Image;
use super::resource::Resource;
use super::selector::regex;
use crate::manifest::node::{Map, Node};

/// Rewrites the images an entry names, twice as the reference does: `tagSuffix` shows it.
pub(crate) fn images(
    resources: &mut [Resource],
    image: &Image,
    specs: &[Spec],
    allowance: &Allowance,
) -> Result<(), Problem> {
    let pattern = regex(&format!(
        "^{}(:[a-zA-Z0-9_.{{}}-]*)?(@sha256:[a-zA-Z0-9_.{{}}-]*)?$",
        image.name
    ))?;
    let rewrite = Rewrite {
        pattern,
        image,
        allowance,
    };
    for resource in resources {
        if resource.kind() == "CustomResourceDefinition" {
            continue;
        }
        let mut result = rewrite.walk(&mut resource.root);
        for spec in specs {
            if result.is_ok() && fieldspec::applies(spec, &resource.gvk()) {
                result = fieldspec::visit(&mut resource.root, spec, Leaf::Never, &mut |node| {
                    rewrite.set(node, &spec.path)
                });
            }
        }
        result.map_err(|e| Problem::field(resource, e))?;
    }
    Ok(())
}

struct Rewrite<'a> {
    pattern: Regex,
    image: &'a Image,
    allowance: &'a Allowance,
}

impl Rewrite<'_> {
    fn walk(&self, map: &mut Map) -> Result<(), FieldError> {
        for (key, node) in map.iter_mut() {
            self.node(node)?;
            if matches!(&**key, "containers" | "initContainers")
                && let Node::Seq(items) = node
            {
                for item in items {
                    self.container(key, item)?;
                }
            }
        }
        Ok(())
    }

    fn node(&self, node: &mut Node) -> Result<(), FieldError> {
        match node {
            Node::Map(map) => self.walk(map),
            Node::Seq(items) => items.iter_mut().try_for_each(|item| self.node(item)),
            Node::Scalar(_) => Ok(()),
        }
    }

    fn container(&self, list: &str, item: &mut Node) -> Result<(), FieldError> {
        let found = item.kind_name();
        match item {
            Node::Map(map) => match map.get_mut("image") {
                Some(image) if !image.is_null() => self.set(image, "image"),
                _ => Ok(()),
            },
            Node::Scalar(scalar) if scalar.is_null() => Ok(()),
            _ => Err(FieldError::WrongLeaf {
                path: list.to_owned(),
                expected: "a list of mappings",
                found,
            }),
        }
    }

    fn set(&self, node: &mut Node, path: &str) -> Result<(), FieldError> {
        let scalar = scalar_leaf(node, path)?;
        if !self.pattern.is_match(&scalar.text) {
            return Ok(());
        }
        let changed = self.rewritten(&scalar.text);
        self.allowance.take(budget::of_text(&changed))?;
        scalar.set_untyped(changed);
        Ok(())
    }

    fn rewritten(&self, old: &str) -> String {
        let (name, mut tag, mut digest) = split(old);
        let new = self.image;
        let name = if new.new_name.is_empty() { name } else { &new.new_name };
        let suffixed;
        match (new.new_tag.is_empty(), new.digest.is_empty()) {
            (false, _) => {
                tag = &new.new_tag;
                digest = &new.digest;
            }
            (true, false) => {
                tag = "";
                digest = &new.digest;
            }
            (true, true) if !new.tag_suffix.is_empty() => {
                suffixed = format!("{tag}{}", new.tag_suffix);
                tag = &suffixed;
                digest = "";
            }
            (true, true) => {}
        }
        let mut text = name.to_owned();
        for (separator, part) in [(':', tag), ('@', digest)] {
            if !part.is_empty() {
                text.push(separator);
                text.push_str(part);
            }
        }
        text
    }
}

/// Name, tag and digest. The separators are looked for behind the first slash.
fn split(image: &str) -> (&str, &str, &str) {
    let start = match image.find('/') {
        Some(at) if at > 0 => at,
        _ => 0,
    };
    let find = |separator: char| image[start..].find(separator).map(|at| at + start);
    match (find(':'), find('@')) {
        (None, None) => (image, "", ""),
        (None, Some(at)) => (&image[..at], "", &image[at + 1..]),
        (Some(colon), Some(at)) if at < colon => (&image[..at], "", &image[at + 1..]),
        (Some(colon), Some(at)) => (&image[..colon], &image[colon + 1..at], &image[at + 1..]),
        (Some(colon), None) => (&image[..colon], &image[colon + 1..], ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_images() {
        assert_eq!(split("nginx"), ("nginx", "", ""));
        assert_eq!(split("host:5000/a/b:1"), ("host:5000/a/b", "1", ""));
        assert_eq!(split("a/b@sha256:1"), ("a/b", "", "sha256:1"));
        assert_eq!(split("a:1@sha256:2"), ("a", "1", "sha256:2"));
    }

    #[test]
    fn rewrites_tag_and_digest() {
        let rewritten = |image: Image, old: &str| {
            let pattern = regex("x").unwrap();
            let rewrite = Rewrite {
                pattern,
                image: &image,
                allowance: &Allowance::of(0),
            };
            rewrite.rewritten(old)
        };
        let base = Image::default();
        assert_eq!(
            rewritten(
                Image {
                    new_tag: "2".into(),
                    ..base.clone()
                },
                "a:1@sha256:x"
            ),
            "a:2"
        );
        assert_eq!(
            rewritten(
                Image {
                    digest: "sha256:y".into(),
                    ..base.clone()
                },
                "a:1"
            ),
            "a@sha256:y"
        );
        assert_eq!(
            rewritten(
                Image {
                    tag_suffix: "-x".into(),
                    ..base.clone()
                },
                "a:1@sha256:y"
            ),
            "a:1-x"
        );
        assert_eq!(
            rewritten(
                Image {
                    new_name: "b".into(),
                    ..base
                },
                "a:1@sha256:y"
            ),
            "b:1@sha256:y"
        );
    }
}
