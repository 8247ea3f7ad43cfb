//! Transformer configuration: which fields each built-in transformer touches, and how lists of them merge.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use super::file::FieldSpec;
use super::tables;

/// A field spec with its path taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub group: Box<str>,
    pub version: Box<str>,
    pub kind: Box<str>,
    pub path: Box<str>,
    pub create: bool,
    pub steps: Box<[Step]>,
}

/// One element of a field path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Field name.
    pub name: Arc<str>,
    /// Written with `[]`: the field is a list, never created.
    pub list: bool,
}

/// Fields that hold the name of a referenced type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameReference {
    pub group: Box<str>,
    pub version: Box<str>,
    pub kind: Box<str>,
    pub referrers: Vec<Spec>,
}

/// Two specs for the same field that disagree about `create`.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("conflicting field specs for path {0:?}: one says create, the other does not")]
pub struct SpecConflict(pub String);

/// The lists of field specs of one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TransformerConfig {
    pub name_prefix: Vec<Spec>,
    pub name_suffix: Vec<Spec>,
    pub namespace: Vec<Spec>,
    pub common_labels: Vec<Spec>,
    pub labels: Vec<Spec>,
    pub template_labels: Vec<Spec>,
    pub common_annotations: Vec<Spec>,
    pub name_reference: Vec<NameReference>,
    pub var_reference: Vec<Spec>,
    pub images: Vec<Spec>,
    pub replicas: Vec<Spec>,
}

impl Spec {
    pub fn new(group: &str, version: &str, kind: &str, path: &str, create: bool) -> Self {
        let steps = split_path(path)
            .into_iter()
            .map(|name| match name.strip_suffix("[]") {
                Some(short) => Step {
                    name: Arc::from(short),
                    list: true,
                },
                None => Step {
                    name: Arc::from(name.as_str()),
                    list: false,
                },
            })
            .collect();
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            path: path.into(),
            create,
            steps,
        }
    }

    fn covers(&self, incoming: &Self) -> bool {
        let within = |theirs: &str, ours: &str| theirs.is_empty() || theirs == ours;
        self.path == incoming.path
            && within(&incoming.group, &self.group)
            && within(&incoming.version, &self.version)
            && within(&incoming.kind, &self.kind)
    }
}

impl From<&FieldSpec> for Spec {
    fn from(spec: &FieldSpec) -> Self {
        Self::new(&spec.group, &spec.version, &spec.kind, &spec.path, spec.create)
    }
}

/// Splits at `/`; `\/` is a literal slash, one leading slash does not count.
pub(crate) fn split_path(path: &str) -> Vec<String> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut parts = vec![String::new()];
    for piece in path.split('/') {
        let last = parts.len() - 1;
        parts[last].push_str(piece);
        if parts[last].ends_with('\\') {
            parts[last].pop();
            parts[last].push('/');
        } else {
            parts.push(String::new());
        }
    }
    parts.pop();
    parts
}

/// Adds what is not covered yet.
pub(crate) fn merge_specs(specs: &mut Vec<Spec>, incoming: &[Spec]) -> Result<(), SpecConflict> {
    for spec in incoming {
        match specs.iter().find(|known| known.covers(spec)) {
            Some(known) if known.create != spec.create => {
                return Err(SpecConflict(spec.path.to_string()));
            }
            Some(_) => {}
            None => specs.push(spec.clone()),
        }
    }
    Ok(())
}

impl TransformerConfig {
    /// The built-in configuration, shared by all builds.
    pub fn builtin() -> Arc<Self> {
        static BUILTIN: OnceLock<Arc<TransformerConfig>> = OnceLock::new();
        Arc::clone(BUILTIN.get_or_init(|| {
            let mut config = tables::builtin();
            config.sort();
            config.share_names();
            Arc::new(config)
        }))
    }

    /// This configuration with another merged in.
    pub fn merged(self: &Arc<Self>, other: &Arc<Self>) -> Result<Arc<Self>, SpecConflict> {
        if Arc::ptr_eq(self, other) || **other == Self::default() {
            return Ok(Arc::clone(self));
        }
        // Merging into nothing is not the identity: a general spec goes when a special one stands before it.
        if **self == Self::default() && Arc::ptr_eq(other, &Self::builtin()) {
            return Ok(Arc::clone(other));
        }
        let mut merged = (**self).clone();
        merged.merge(other)?;
        Ok(Arc::new(merged))
    }

    fn merge(&mut self, other: &Self) -> Result<(), SpecConflict> {
        merge_specs(&mut self.name_prefix, &other.name_prefix)?;
        merge_specs(&mut self.name_suffix, &other.name_suffix)?;
        merge_specs(&mut self.namespace, &other.namespace)?;
        merge_specs(&mut self.common_labels, &other.common_labels)?;
        merge_specs(&mut self.labels, &other.labels)?;
        merge_specs(&mut self.template_labels, &other.template_labels)?;
        merge_specs(&mut self.common_annotations, &other.common_annotations)?;
        merge_specs(&mut self.var_reference, &other.var_reference)?;
        merge_specs(&mut self.images, &other.images)?;
        merge_specs(&mut self.replicas, &other.replicas)?;
        for reference in &other.name_reference {
            self.add_name_reference(reference)?;
        }
        self.sort();
        Ok(())
    }

    /// Adds a row, or fields to the row of the same type.
    pub fn add_name_reference(&mut self, reference: &NameReference) -> Result<(), SpecConflict> {
        let same = |known: &&mut NameReference| {
            known.group == reference.group && known.version == reference.version && known.kind == reference.kind
        };
        match self.name_reference.iter_mut().find(same) {
            Some(known) => merge_specs(&mut known.referrers, &reference.referrers),
            None => {
                self.name_reference.push(reference.clone());
                Ok(())
            }
        }
    }

    /// Lets equal path elements share their text: a few dozen names make up all built-in paths.
    fn share_names(&mut self) {
        let mut names: HashSet<Arc<str>> = HashSet::new();
        let lists = [
            &mut self.name_prefix,
            &mut self.name_suffix,
            &mut self.namespace,
            &mut self.common_labels,
            &mut self.template_labels,
            &mut self.common_annotations,
            &mut self.var_reference,
            &mut self.images,
            &mut self.replicas,
        ];
        let references = self.name_reference.iter_mut().map(|row| &mut row.referrers);
        for step in lists
            .into_iter()
            .chain(references)
            .flatten()
            .flat_map(|spec| &mut spec.steps)
        {
            match names.get(&step.name) {
                Some(name) => step.name = Arc::clone(name),
                None => {
                    names.insert(Arc::clone(&step.name));
                }
            }
        }
    }

    fn sort(&mut self) {
        for specs in [
            &mut self.name_prefix,
            &mut self.name_suffix,
            &mut self.namespace,
            &mut self.common_labels,
            &mut self.labels,
            &mut self.template_labels,
            &mut self.common_annotations,
            &mut self.var_reference,
            &mut self.images,
            &mut self.replicas,
        ] {
            specs.sort_by_cached_key(|s| super::order::kind_key(&s.group, &s.version, &s.kind));
        }
        self.name_reference
            .sort_by_cached_key(|r| super::order::kind_key(&r.group, &r.version, &r.kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_unescaped_slashes() {
        assert_eq!(
            split_path("/metadata/annotations/a.b\\/c"),
            ["metadata", "annotations", "a.b/c"]
        );
        assert_eq!(split_path("spec"), ["spec"]);
        assert_eq!(split_path("a\\/b\\/c/d"), ["a/b/c", "d"]);
    }

    #[test]
    fn merging_drops_what_is_covered_and_refuses_disagreement() {
        let mut specs = vec![Spec::new("", "", "Deployment", "spec/x", true)];
        merge_specs(&mut specs, &[Spec::new("", "", "Deployment", "spec/x", true)]).unwrap();
        assert_eq!(specs.len(), 1);
        merge_specs(&mut specs, &[Spec::new("", "", "Job", "spec/x", false)]).unwrap();
        assert_eq!(specs.len(), 2);
        assert!(merge_specs(&mut specs, &[Spec::new("", "", "", "spec/x", false)]).is_err());
    }

    #[test]
    fn merging_the_builtin_configuration_with_itself_changes_nothing() {
        let builtin = TransformerConfig::builtin();
        let mut copy = (*builtin).clone();
        copy.merge(&builtin).unwrap();
        assert_eq!(copy, *builtin);
        let mut merged = TransformerConfig::default();
        merged.merge(&builtin).unwrap();
        assert_eq!(merged, *builtin);
    }
}
