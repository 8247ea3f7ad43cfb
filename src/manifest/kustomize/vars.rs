//! Vars: `$(NAME)` in chosen fields, the predecessor of replacements.

use std::collections::BTreeMap;

use super::budget::{self, Allowance, Heavy};
use super::config::Spec;
use super::error::Problem;
use super::fieldpath::{lookup, split};
use super::fieldspec::{self, FieldError, Leaf};
use super::file::Var;
use super::id::{DEFAULT_NAMESPACE, Gvk};
use super::resource::Resource;
use crate::manifest::node::{Node, Scalar, Style, Tag};

/// The vars of a build so far, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vars {
    by_name: BTreeMap<String, Var>,
}

impl Vars {
    /// Adds the vars of one file, each tied to the resource it names.
    pub fn record(&mut self, vars: &[Var], resources: &mut [Resource]) -> Result<(), Problem> {
        for var in vars {
            let matching: Vec<usize> = (0..resources.len()).filter(|&i| names(var, &resources[i])).collect();
            match matching.as_slice() {
                [] => {}
                [at] => resources[*at].vars.push(var.name.as_str().into()),
                _ => return Err(bad(var, "several resources match objref; add a namespace".to_owned())),
            }
        }
        vars.iter().try_for_each(|var| self.add(var.clone()))
    }

    fn add(&mut self, var: Var) -> Result<(), Problem> {
        match self.by_name.get(&var.name) {
            Some(_) => Err(bad(&var, "is defined twice".to_owned())),
            None => {
                self.by_name.insert(var.name.clone(), var);
                Ok(())
            }
        }
    }

    /// Adds the vars of another layer.
    pub fn merge(&mut self, other: Self) -> Result<(), Problem> {
        other.by_name.into_values().try_for_each(|var| self.add(var))
    }

    /// Replaces all references.
    pub fn resolve(&self, resources: &mut [Resource], specs: &[Spec], allowance: &Allowance) -> Result<(), Problem> {
        if self.by_name.is_empty() {
            return Ok(());
        }
        let mut values = BTreeMap::new();
        for var in self.by_name.values() {
            values.insert(var.name.as_str(), value(var, resources)?);
        }
        for resource in resources {
            for spec in specs {
                if !fieldspec::applies(spec, &resource.gvk()) {
                    continue;
                }
                let result = fieldspec::visit(&mut resource.root, spec, Leaf::Never, &mut |node| {
                    expand(node, &values, &spec.path, allowance)
                });
                result.map_err(|e| Problem::field(resource, e))?;
            }
        }
        Ok(())
    }
}

fn bad(var: &Var, problem: String) -> Problem {
    Problem::Var {
        name: var.name.clone(),
        problem,
    }
}

/// True when any id of the resource is what the var refers to.
fn names(var: &Var, resource: &Resource) -> bool {
    let objref = &var.objref;
    let wanted = if objref.api_version.is_empty() {
        Gvk {
            group: &objref.group,
            version: &objref.version,
            kind: &objref.kind,
        }
    } else {
        Gvk::new(&objref.api_version, &objref.kind)
    };
    resource.any_id().any(|id| {
        let namespace = match objref.namespace.as_str() {
            "" => true,
            DEFAULT_NAMESPACE => id.effective_namespace() == DEFAULT_NAMESPACE,
            namespace => id.effective_namespace() == namespace,
        };
        namespace && id.name == objref.name && id.gvk == wanted
    })
}

/// The value of a var; nothing that cannot be put into text.
fn value(var: &Var, resources: &[Resource]) -> Result<Option<Scalar>, Problem> {
    let Some(resource) = resources.iter().find(|r| r.vars.iter().any(|name| **name == *var.name)) else {
        return Err(bad(var, "objref names no resource of the build".to_owned()));
    };
    let path = if var.fieldref.field_path.is_empty() {
        "metadata.name"
    } else {
        &var.fieldref.field_path
    };
    let parts = indices(split(path));
    match lookup(&resource.root, &parts) {
        Err(problem) => Err(bad(var, format!("field {path:?}: {problem}"))),
        Ok(None) => Err(bad(var, format!("{} has no field {path:?}", resource.id()))),
        Ok(Some(Node::Scalar(scalar))) => match plain(scalar) {
            Some(text) => Ok(Some(Scalar {
                text: text.into(),
                ..scalar.clone()
            })),
            None => Err(bad(
                var,
                format!("{path:?} of {}: {:?} is not a plain number", resource.id(), scalar.text),
            )),
        },
        Ok(Some(_)) => Ok(None),
    }
}

/// The text a value is inserted as. The reference reads integers as decimal digits, whatever YAML makes of them
/// (`0644` is 644), and fails on other notations.
fn plain(scalar: &Scalar) -> Option<String> {
    match scalar.tag {
        Tag::Int => scalar.text.parse::<i64>().ok().map(|n| n.to_string()),
        Tag::Float => scalar.text.replace('_', "").parse::<f64>().ok().map(|n| n.to_string()),
        Tag::Bool => Some(scalar.text.to_lowercase()),
        _ => Some(scalar.text.to_string()),
    }
}

/// `ports[0]` is `ports`, `0`.
fn indices(parts: Vec<String>) -> Vec<String> {
    let mut result = Vec::with_capacity(parts.len());
    for part in parts {
        match part.strip_suffix(']').and_then(|p| p.rsplit_once('[')) {
            Some((name, index)) if !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) => {
                if !name.is_empty() {
                    result.push(name.to_owned());
                }
                result.push(index.to_owned());
            }
            _ => result.push(part),
        }
    }
    result
}

type Values<'v> = BTreeMap<&'v str, Option<Scalar>>;

fn expand(node: &mut Node, values: &Values<'_>, path: &str, allowance: &Allowance) -> Result<(), FieldError> {
    match node {
        Node::Scalar(scalar) => scalar_value(scalar, values, allowance)?,
        Node::Map(map) => {
            for (_, value) in map.iter_mut() {
                if let Node::Scalar(scalar) = value {
                    scalar_value(scalar, values, allowance)?;
                }
            }
        }
        Node::Seq(items) => {
            for item in items {
                match item {
                    Node::Scalar(scalar) if is_text(scalar) => scalar_value(scalar, values, allowance)?,
                    other => {
                        let found = other.kind_name();
                        let path = path.to_owned();
                        return Err(FieldError::WrongLeaf {
                            path,
                            expected: "a list of strings",
                            found,
                        });
                    }
                }
            }
        }
    }
    Ok(())
}

fn is_text(scalar: &Scalar) -> bool {
    matches!(scalar.tag, Tag::Str | Tag::Untyped)
}

fn scalar_value(scalar: &mut Scalar, values: &Values<'_>, allowance: &Allowance) -> Result<(), Heavy> {
    if !is_text(scalar) || !scalar.text.contains('$') {
        return Ok(());
    }
    let whole = scalar
        .text
        .strip_prefix("$(")
        .and_then(|t| t.split_once(')'))
        .filter(|(_, rest)| rest.is_empty());
    if let Some(Some(value)) = whole.and_then(|(name, _)| values.get(name)) {
        let tag = if matches!(value.tag, Tag::Int | Tag::Float | Tag::Bool) {
            value.tag
        } else {
            Tag::Str
        };
        allowance.take(budget::of_text(&value.text))?;
        *scalar = Scalar {
            text: value.text.clone(),
            tag,
            style: Style::Plain,
        };
        return Ok(());
    }
    *scalar = Scalar {
        text: expanded(&scalar.text, values, allowance)?.into(),
        tag: Tag::Str,
        style: Style::Plain,
    };
    Ok(())
}

/// Replaces `$(NAME)`; `$$` is a dollar sign, unknown names and anything else stay.
fn expanded(text: &str, values: &Values<'_>, allowance: &Allowance) -> Result<String, Heavy> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match values.get(name) {
                Some(Some(value)) => {
                    allowance.take(budget::of_text(&value.text))?;
                    out.push_str(&value.text);
                }
                _ => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_like_shell_arguments() {
        let mut values: Values<'_> = BTreeMap::new();
        values.insert("A", Some(Scalar::string("x")));
        values.insert("M", None);
        for (text, expected) in [
            ("$(A)-$(A)", "x-x"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$(M)", "$(M)"),
            ("$(A", "$(A"),
            ("a$b$", "a$b$"),
            ("$A $(A)", "$A x"),
        ] {
            assert_eq!(
                expanded(text, &values, &Allowance::of(100)).unwrap(),
                expected,
                "{text}"
            );
        }
        assert_eq!(indices(split("spec.ports[0].port")), ["spec", "ports", "0", "port"]);
    }
}
