//! Which resources a patch is for.

use regex::Regex;

use super::error::Problem;
use super::file::Selector;
use super::label_selector::LabelSelector;
use super::resource::Resource;

/// A compiled selector.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    group: Option<Regex>,
    version: Option<Regex>,
    kind: Option<Regex>,
    name: Option<Regex>,
    namespace: Option<Regex>,
    labels: LabelSelector,
    annotations: LabelSelector,
}

/// An anchored expression; empty text matches everything.
pub(crate) fn anchored(expression: &str) -> Result<Option<Regex>, Problem> {
    if expression.is_empty() {
        return Ok(None);
    }
    regex(&format!("^(?:{expression})$")).map(Some)
}

/// An expression of bounded size.
pub(crate) fn regex(expression: &str) -> Result<Regex, Problem> {
    regex::RegexBuilder::new(expression)
        .size_limit(1 << 20)
        .nest_limit(100)
        .build()
        .map_err(|e| Problem::Expression {
            expression: expression.to_owned(),
            problem: e.to_string(),
        })
}

pub(crate) fn fits(expression: &Option<Regex>, text: &str) -> bool {
    expression.as_ref().is_none_or(|e| e.is_match(text))
}

impl Matcher {
    pub fn new(selector: &Selector) -> Result<Self, Problem> {
        Ok(Self {
            group: anchored(&selector.group)?,
            version: anchored(&selector.version)?,
            kind: anchored(&selector.kind)?,
            name: anchored(&selector.name)?,
            namespace: anchored(&selector.namespace)?,
            labels: LabelSelector::parse(&selector.label_selector)?,
            annotations: LabelSelector::parse(&selector.annotation_selector)?,
        })
    }

    /// True when the labels and annotations match.
    pub fn matches_metadata(&self, resource: &Resource) -> bool {
        self.labels.matches(&resource.meta_map("labels")) && self.annotations.matches(&resource.meta_map("annotations"))
    }

    /// True for resources a patch with this target applies to: name and namespace by the original or current id,
    /// the rest by what the resource is now.
    pub fn matches(&self, resource: &Resource) -> bool {
        let current = resource.id();
        let original = resource.original_id();
        (fits(&self.namespace, original.effective_namespace()) || fits(&self.namespace, current.effective_namespace()))
            && (fits(&self.name, original.name) || fits(&self.name, current.name))
            && fits(&self.group, current.gvk.group)
            && fits(&self.version, current.gvk.version)
            && fits(&self.kind, current.gvk.kind)
            && self.matches_metadata(resource)
    }

    /// True when any id, current or earlier, matches; namespaces as stored.
    pub fn matches_any_id(&self, resource: &Resource) -> bool {
        resource.any_id().any(|id| {
            fits(&self.group, id.gvk.group)
                && fits(&self.version, id.gvk.version)
                && fits(&self.kind, id.gvk.kind)
                && fits(&self.name, id.name)
                && fits(&self.namespace, id.namespace)
        })
    }
}
