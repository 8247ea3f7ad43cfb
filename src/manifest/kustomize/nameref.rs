//! Repairing references after names changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::config::{NameReference, Spec, TransformerConfig};
use super::error::Problem;
use super::fieldspec::{self, FieldError, Leaf};
use super::id::{CLUSTER_SCOPE, Gvk};
use super::resource::Resource;
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};

/// Repairs all references of all resources.
pub(crate) fn repair(resources: &mut [Resource], config: &TransformerConfig) -> Result<(), Problem> {
    let index = Index::new(resources);
    let mut rows = Rows {
        config,
        by_kind: HashMap::new(),
    };
    for resource in resources {
        // Without any renamed resource only the namespaces of role bindings are left to be looked at.
        if index.names.is_empty() && resource.kind() != "RoleBinding" {
            continue;
        }
        let referrer = Referrer::new(resource)?;
        for (row, spec) in rows.of(resource.original_id().gvk.kind) {
            let original = resource.original_id().gvk;
            if !original.is_selected_by(&spec.group, &spec.version, "") {
                continue;
            }
            let repair = Repair {
                index: &index,
                referrer: &referrer,
                row,
                spec,
            };
            let role = if spec.path.ends_with("roleRef/name") {
                role(&resource.root)
            } else {
                None
            };
            let result = fieldspec::visit(&mut resource.root, spec, Leaf::Never, &mut |node| {
                repair.node(node, role.as_ref(), true)
            });
            result.map_err(|e| Problem::field(resource, e))?;
        }
    }
    Ok(())
}

/// The rows of the configuration, by the kind of the referrer.
struct Rows<'c> {
    config: &'c TransformerConfig,
    by_kind: HashMap<String, Vec<(&'c NameReference, &'c Spec)>>,
}

impl<'c> Rows<'c> {
    fn of(&mut self, kind: &str) -> Vec<(&'c NameReference, &'c Spec)> {
        if let Some(rows) = self.by_kind.get(kind) {
            return rows.clone();
        }
        let mut rows = Vec::new();
        for row in &self.config.name_reference {
            rows.extend(
                row.referrers
                    .iter()
                    .filter(|s| s.kind.is_empty() || *s.kind == *kind)
                    .map(|s| (row, s)),
            );
        }
        self.by_kind.insert(kind.to_owned(), rows.clone());
        rows
    }
}

/// A resource that had another id once, so that others may refer to it by that.
struct Candidate {
    name: Box<str>,
    namespace: Arc<str>,
    effective: Arc<str>,
    original: Arc<str>,
    kind: Arc<str>,
    group: Arc<str>,
    version: Arc<str>,
    /// Its earlier kinds, each once.
    kinds: Box<[Arc<str>]>,
    prefixes: Affixes,
    suffixes: Affixes,
}

type Affixes = Arc<[Arc<str>]>;

/// An effective namespace and the stored one.
type Namespaces = (Arc<str>, Arc<str>);

struct Index {
    candidates: Vec<Candidate>,
    /// Earlier names and whose they were, sorted. There may be as many as resources, so this is kept compact.
    names: Vec<(Arc<str>, usize)>,
    /// Original namespaces, with the current (effective, stored) ones of the resources that had them.
    originals: HashMap<Arc<str>, HashSet<Namespaces>>,
}

impl Index {
    fn new(resources: &[Resource]) -> Self {
        let mut index = Self {
            candidates: Vec::with_capacity(resources.iter().filter(|r| !r.previous.is_empty()).count()),
            names: Vec::with_capacity(resources.iter().map(|r| r.previous.len()).sum()),
            originals: HashMap::new(),
        };
        let mut texts = Texts::default();
        for resource in resources {
            let id = resource.id();
            let original = texts.shared(resource.original_id().effective_namespace());
            let (effective, namespace) = (texts.shared(id.effective_namespace()), texts.shared(id.namespace));
            let current = (Arc::clone(&effective), Arc::clone(&namespace));
            index
                .originals
                .entry(Arc::clone(&original))
                .or_default()
                .insert(current);
            if resource.previous.is_empty() {
                continue;
            }
            let at = index.candidates.len();
            let names = resource
                .previous
                .iter()
                .map(|previous| (Arc::clone(&previous.name), at));
            index.names.extend(names);
            index.candidates.push(Candidate {
                name: id.name.into(),
                namespace,
                effective,
                original,
                kind: texts.shared(id.gvk.kind),
                group: texts.shared(id.gvk.group),
                version: texts.shared(id.gvk.version),
                kinds: texts.kinds(resource),
                prefixes: texts.affixes(&resource.prefixes),
                suffixes: texts.affixes(&resource.suffixes),
            });
        }
        index.names.sort_unstable();
        index.names.dedup();
        index
    }

    /// Those that once had a name, in order.
    fn named(&self, name: &str) -> impl Iterator<Item = &Candidate> {
        let first = self.names.partition_point(|(known, _)| **known < *name);
        let same = self.names[first..]
            .iter()
            .take_while(move |(known, _)| **known == *name);
        same.map(|(_, at)| &self.candidates[*at])
    }
}

/// Texts that many resources have in common.
#[derive(Default)]
struct Texts {
    known: HashSet<Arc<str>>,
    affixes: HashSet<Affixes>,
}

impl Texts {
    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        text
    }

    fn affixes(&mut self, affixes: &[Arc<str>]) -> Affixes {
        if let Some(known) = self.affixes.get(affixes) {
            return Arc::clone(known);
        }
        let affixes: Affixes = affixes.into();
        self.affixes.insert(Arc::clone(&affixes));
        affixes
    }

    fn kinds(&mut self, resource: &Resource) -> Box<[Arc<str>]> {
        let mut kinds: Vec<Arc<str>> = Vec::with_capacity(1);
        for previous in &resource.previous {
            if !kinds.contains(&previous.kind) {
                kinds.push(self.shared(&previous.kind));
            }
        }
        kinds.into_boxed_slice()
    }
}

impl Candidate {
    fn was(&self, group: &str, version: &str, kind: &str) -> bool {
        self.kinds.iter().any(|previous| {
            Gvk {
                group: &self.group,
                version: &self.version,
                kind: previous,
            }
            .is_selected_by(group, version, kind)
        })
    }
}

/// The resource whose fields are repaired.
struct Referrer {
    cluster: bool,
    effective: String,
    /// Namespaces of ServiceAccount subjects of a RoleBinding.
    subjects: Vec<String>,
    prefixes: Vec<Arc<str>>,
    suffixes: Vec<Arc<str>>,
}

impl Referrer {
    fn new(resource: &Resource) -> Result<Self, Problem> {
        let effective = resource.id().effective_namespace().to_owned();
        Ok(Self {
            cluster: effective == CLUSTER_SCOPE,
            effective,
            subjects: if resource.kind() == "RoleBinding" {
                account_namespaces(&resource.root).map_err(|e| Problem::field(resource, e))?
            } else {
                Vec::new()
            },
            prefixes: resource.prefixes.clone(),
            suffixes: resource.suffixes.clone(),
        })
    }

    /// True when the referrer could refer to something in these namespaces at all.
    fn reaches(&self, effective: &str, stored: &str) -> bool {
        self.cluster
            || effective == CLUSTER_SCOPE
            || effective == self.effective
            || self.subjects.iter().any(|namespace| namespace == stored)
    }
}

fn account_namespaces(root: &Map) -> Result<Vec<String>, FieldError> {
    let Some(Node::Seq(subjects)) = root.get("subjects") else {
        return Ok(Vec::new());
    };
    let mut namespaces = Vec::new();
    for subject in subjects.iter().filter_map(Node::as_map) {
        if subject.text("kind") != Some("ServiceAccount") || !subject.contains("namespace") {
            continue;
        }
        let Some(namespace) = subject.text("namespace") else {
            let problem = "the namespace of a ServiceAccount is empty; remove the field, or fill it in".to_owned();
            return Err(FieldError::Reference {
                path: "subjects/namespace".to_owned(),
                problem,
            });
        };
        namespaces.push(namespace.to_owned());
    }
    Ok(namespaces)
}

/// apiGroup and kind of a roleRef.
fn role(root: &Map) -> Option<(String, String)> {
    let role = root.get("roleRef")?.as_map()?;
    let part = |key| match role.get(key) {
        Some(Node::Scalar(scalar)) => Some(scalar.text.to_string()),
        _ => None,
    };
    Some((part("apiGroup")?, part("kind")?))
}

struct Repair<'a> {
    index: &'a Index,
    referrer: &'a Referrer,
    row: &'a NameReference,
    spec: &'a Spec,
}

type Role<'a> = Option<&'a (String, String)>;

impl Repair<'_> {
    fn node(&self, node: &mut Node, role: Role<'_>, lists: bool) -> Result<(), FieldError> {
        match node {
            Node::Scalar(scalar) if scalar.is_null() => Ok(()),
            Node::Scalar(scalar) => self.scalar(scalar, role),
            Node::Map(map) => self.mapping(map, role),
            Node::Seq(items) if lists => items.iter_mut().try_for_each(|item| self.node(item, role, false)),
            Node::Seq(_) => Err(self.error("a reference must be text or a mapping, not a list".to_owned())),
        }
    }

    fn error(&self, problem: String) -> FieldError {
        FieldError::Reference {
            path: self.spec.path.to_string(),
            problem,
        }
    }

    fn scalar(&self, scalar: &mut Scalar, role: Role<'_>) -> Result<(), FieldError> {
        let same = |a: &Candidate, b: &Candidate| a.name == b.name;
        if let Some(found) = self.select(&scalar.text, role, None, same)?
            && found.name != scalar.text
        {
            scalar.set_untyped(found.name.clone());
        }
        Ok(())
    }

    fn mapping(&self, map: &mut Map, role: Role<'_>) -> Result<(), FieldError> {
        let text = |key| match map.get(key) {
            Some(Node::Scalar(scalar)) => Some(scalar.text.to_string()),
            Some(_) => Some(String::new()),
            None => None,
        };
        let Some(old) = text("name") else {
            return Err(self.error("the referring mapping has no name".to_owned()));
        };
        let namespace = text("namespace");
        let same = |a: &Candidate, b: &Candidate| a.name == b.name && a.namespace == b.namespace;
        let Some(found) = self.select(&old, role, namespace.as_deref(), same)? else {
            return Ok(());
        };
        if *found.name == *old && found.namespace.is_empty() {
            return Ok(());
        }
        set(map, "name", &found.name);
        if !found.namespace.is_empty() {
            set(map, "namespace", &found.namespace);
        }
        Ok(())
    }

    /// The one resource a name refers to.
    fn select(
        &self,
        name: &str,
        role: Role<'_>,
        namespace: Option<&str>,
        same: impl Fn(&Candidate, &Candidate) -> bool,
    ) -> Result<Option<&Candidate>, FieldError> {
        let by_original = namespace.map(|namespace| {
            let current = self.index.originals.get(namespace);
            current.is_some_and(|all| all.iter().any(|(e, s)| self.referrer.reaches(e, s)))
        });
        let within = |candidate: &Candidate| match (namespace, by_original) {
            (Some(CLUSTER_SCOPE), _) => false,
            (Some(namespace), Some(true)) => *candidate.original == *namespace,
            (Some(namespace), _) => *candidate.effective == *namespace,
            (None, _) => true,
        };
        let mut found: Vec<&Candidate> = self
            .index
            .named(name)
            .filter(|c| self.referrer.reaches(&c.effective, &c.namespace))
            .filter(|c| within(c))
            .filter(|c| c.was(&self.row.group, &self.row.version, &self.row.kind))
            .filter(|c| role.is_none_or(|(group, kind)| c.was(group, "", kind)))
            .filter(|c| {
                self.referrer.cluster
                    || *c.effective == *CLUSTER_SCOPE
                    || &*c.kind == "ServiceAccount"
                    || *c.effective == *self.referrer.effective
            })
            .collect();
        if found.len() == 1 {
            return Ok(found.pop());
        }
        found.retain(|c| self.affixes_agree(c, true));
        if found.len() > 1 {
            found.retain(|c| self.affixes_agree(c, false));
        }
        match found.as_slice() {
            [] => Ok(None),
            [first, rest @ ..] if rest.iter().all(|c| same(first, c)) => Ok(Some(first)),
            _ => {
                let names: Vec<String> = found
                    .iter()
                    .map(|c| format!("{} {}/{}", c.kind, c.namespace, c.name))
                    .collect();
                Err(self.error(format!(
                    "{name:?} could refer to any of {}; give them different names",
                    names.join(", ")
                )))
            }
        }
    }

    fn affixes_agree(&self, candidate: &Candidate, allow_empty: bool) -> bool {
        let agree = |a: &[Arc<str>], b: &[Arc<str>]| {
            if a.is_empty() || b.is_empty() {
                return allow_empty || (a.is_empty() && b.is_empty());
            }
            a.iter().rev().zip(b.iter().rev()).all(|(x, y)| x == y)
        };
        agree(&candidate.prefixes, &self.referrer.prefixes) && agree(&candidate.suffixes, &self.referrer.suffixes)
    }
}

fn set(map: &mut Map, key: &str, text: &str) {
    let style = match map.get(key) {
        Some(Node::Scalar(old)) => old.style,
        _ => Style::Plain,
    };
    map.set(
        key,
        Node::Scalar(Scalar {
            text: text.into(),
            tag: Tag::Untyped,
            style,
        }),
    );
}
