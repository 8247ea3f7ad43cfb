//! The built-in transformers that write fixed fields: namespace, prefix, suffix, labels, annotations,
//! replicas.

use std::collections::{BTreeMap, HashSet};

use super::budget::{self, Allowance};
use super::config::Spec;
use super::error::Problem;
use super::fieldspec::{self, FieldError, Leaf, map_leaf, scalar_leaf};
use super::file::Replica;
use super::id::Gvk;
use super::resource::Resource;
use crate::manifest::node::{Node, Scalar, Style, Tag};

/// Which subjects of role bindings get the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Subjects {
    /// Those named `default`.
    #[default]
    DefaultOnly,
    /// Every ServiceAccount.
    AllServiceAccounts,
    /// None.
    None,
}

/// The namespace transformer.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    pub namespace: String,
    pub specs: Vec<Spec>,
    pub unset_only: bool,
    pub subjects: Subjects,
}

impl Namespace {
    pub fn apply(&self, resources: &mut [Resource], allowance: &Allowance) -> Result<(), Problem> {
        if self.namespace.is_empty() {
            return Ok(());
        }
        for resource in resources.iter_mut() {
            resource.record_id();
            self.one(resource, allowance).map_err(|e| Problem::field(resource, e))?;
        }
        ensure_unique(resources, "the namespace transformation")
    }

    fn one(&self, resource: &mut Resource, allowance: &Allowance) -> Result<(), FieldError> {
        let core = resource.api_version() == "v1";
        let binding = matches!(resource.kind(), "RoleBinding" | "ClusterRoleBinding");
        if !resource.gvk().is_cluster_scoped() {
            let spec = Spec::new("", "", "", "metadata/namespace", true);
            fieldspec::visit(&mut resource.root, &spec, Leaf::Scalar, &mut |node| {
                self.set(node, &spec.path, allowance)
            })?;
        }
        if binding {
            self.subjects(resource, allowance)?;
        }
        for spec in &self.specs {
            let skipped = &*spec.path == "metadata/namespace"
                || (!core && &*spec.path == "metadata/name")
                || (binding
                    && matches!(&*spec.kind, "RoleBinding" | "ClusterRoleBinding")
                    && &*spec.path == "subjects/namespace");
            if !skipped && fieldspec::applies(spec, &resource.gvk()) {
                fieldspec::visit(&mut resource.root, spec, Leaf::Scalar, &mut |node| {
                    self.set(node, &spec.path, allowance)
                })?;
            }
        }
        Ok(())
    }

    /// Sets the namespace of the subjects a role binding has by default.
    pub fn subjects_only(namespace: &str, resource: &mut Resource, allowance: &Allowance) -> Result<(), FieldError> {
        if !matches!(resource.kind(), "RoleBinding" | "ClusterRoleBinding") {
            return Ok(());
        }
        let transformer = Self {
            namespace: namespace.to_owned(),
            specs: Vec::new(),
            unset_only: false,
            subjects: Subjects::DefaultOnly,
        };
        transformer.subjects(resource, allowance)
    }

    fn set(&self, node: &mut Node, path: &str, allowance: &Allowance) -> Result<(), FieldError> {
        let scalar = scalar_leaf(node, path)?;
        if self.unset_only && !scalar.is_null() && !scalar.text.is_empty() {
            return Ok(());
        }
        allowance.take(budget::of_text(&self.namespace))?;
        scalar.text = self.namespace.as_str().into();
        scalar.tag = Tag::Str;
        Ok(())
    }

    fn subjects(&self, resource: &mut Resource, allowance: &Allowance) -> Result<(), FieldError> {
        let wanted: (&str, &str) = match self.subjects {
            Subjects::None => return Ok(()),
            Subjects::DefaultOnly => ("name", "default"),
            Subjects::AllServiceAccounts => ("kind", "ServiceAccount"),
        };
        let Some(node) = resource.root.get_mut("subjects").filter(|n| !n.is_null()) else {
            return Ok(());
        };
        let found = node.kind_name();
        let Node::Seq(subjects) = node else {
            return Err(FieldError::WrongLeaf {
                path: "subjects".to_owned(),
                expected: "a list",
                found,
            });
        };
        for subject in subjects {
            let subject = map_leaf(subject, "subjects")?;
            if subject.text(wanted.0) == Some(wanted.1) {
                let field = subject.entry_or_insert("namespace", || Node::string(""));
                self.set(field, "subjects/namespace", allowance)?;
            }
        }
        Ok(())
    }
}

/// Fails when two resources have the same id.
pub(crate) fn ensure_unique(resources: &[Resource], after: &'static str) -> Result<(), Problem> {
    let mut seen = HashSet::with_capacity(resources.len());
    for resource in resources {
        if !seen.insert(resource.id_hash()) {
            return Err(Problem::Conflict {
                after,
                id: resource.id().to_string(),
            });
        }
    }
    Ok(())
}

/// Where a name gets its addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affix {
    Prefix,
    Suffix,
}

/// Puts a prefix or suffix on names, except on kinds whose name is fixed.
pub(crate) fn affix(
    resources: &mut [Resource],
    kind: Affix,
    text: &str,
    specs: &[Spec],
    allowance: &Allowance,
) -> Result<(), Problem> {
    for resource in resources {
        let original = resource.original_id().gvk;
        let fixed = matches!(original.kind, "CustomResourceDefinition" | "Namespace")
            || (original.kind == "APIService" && original.group == "apiregistration.k8s.io");
        if fixed {
            continue;
        }
        for spec in specs {
            if !fieldspec::applies(spec, &resource.original_id().gvk) {
                continue;
            }
            if &*spec.path == "metadata/name" && !text.is_empty() {
                match kind {
                    Affix::Prefix => resource.prefixes.push(text.into()),
                    Affix::Suffix => resource.suffixes.push(text.into()),
                }
                resource.record_id();
            }
            if !fieldspec::applies(spec, &resource.gvk()) {
                continue;
            }
            let result = fieldspec::visit(&mut resource.root, spec, Leaf::Scalar, &mut |node| {
                let scalar = scalar_leaf(node, &spec.path)?;
                allowance.take(budget::of_text(text))?;
                let changed = match kind {
                    Affix::Prefix => format!("{text}{}", scalar.text),
                    Affix::Suffix => format!("{}{text}", scalar.text),
                };
                scalar.set_untyped(changed);
                Ok(())
            });
            result.map_err(|e| Problem::field(resource, e))?;
        }
    }
    Ok(())
}

/// Sets entries of the mappings the specs lead to: labels and annotations.
pub(crate) fn set_entries(
    resources: &mut [Resource],
    entries: &BTreeMap<String, String>,
    specs: &[Spec],
    allowance: &Allowance,
) -> Result<(), Problem> {
    if entries.is_empty() {
        return Ok(());
    }
    let texts = entries.iter().map(|(k, v)| budget::of_text(k) + budget::of_text(v));
    let weight = texts.sum();
    for resource in resources {
        let gvk = resource.gvk();
        let fitting: Vec<&Spec> = specs.iter().filter(|spec| fieldspec::applies(spec, &gvk)).collect();
        for spec in fitting {
            let result = fieldspec::visit(&mut resource.root, spec, Leaf::Map, &mut |node| {
                let map = map_leaf(node, &spec.path)?;
                allowance.take(weight)?;
                for (key, value) in entries {
                    map.set(key.as_str(), Node::string(value.as_str()));
                }
                Ok(())
            });
            result.map_err(|e| Problem::field(resource, e))?;
        }
    }
    Ok(())
}

/// Sets the replica count of every resource of that name and a fitting kind.
pub(crate) fn replicas(resources: &mut [Resource], replica: &Replica, specs: &[Spec]) -> Result<(), Problem> {
    let mut found = false;
    for spec in specs {
        for resource in resources.iter_mut() {
            let wanted = |gvk: &Gvk<'_>, name: &str| name == replica.name && fieldspec::applies(spec, gvk);
            if !resource.any_id().any(|id| wanted(&id.gvk, id.name)) {
                continue;
            }
            found = true;
            if !fieldspec::applies(spec, &resource.gvk()) {
                continue;
            }
            let result = fieldspec::visit(&mut resource.root, spec, Leaf::Scalar, &mut |node| {
                let style = match scalar_leaf(node, &spec.path) {
                    Ok(old) => old.style,
                    Err(e) => return Err(e),
                };
                *node = Node::Scalar(Scalar {
                    text: replica.count.to_string().into(),
                    tag: Tag::Int,
                    style,
                });
                Ok(())
            });
            result.map_err(|e| Problem::field(resource, e))?;
        }
    }
    if found {
        Ok(())
    } else {
        Err(Problem::ReplicasUnmatched(replica.name.clone()))
    }
}

/// Sets one label or annotation.
pub(crate) fn set_metadata(resource: &mut Resource, field: &str, key: &str, value: &str) {
    let map = resource.metadata_mut().entry_or_insert(field, Node::map);
    if !matches!(map, Node::Map(_)) {
        *map = Node::map();
    }
    if let Node::Map(map) = map {
        map.set(
            key,
            Node::Scalar(Scalar {
                text: value.into(),
                tag: Tag::Str,
                style: Style::Plain,
            }),
        );
    }
}
