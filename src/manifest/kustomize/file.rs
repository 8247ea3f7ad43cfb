//! The kustomization file: fields, defaults, conversions of deprecated fields.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::manifest::{PatchTarget, StagePatch};

/// Version of the kind `Kustomization`.
pub(crate) const KUSTOMIZATION_VERSION: &str = "kustomize.config.k8s.io/v1beta1";
/// Version of the kind `Component`.
pub(crate) const COMPONENT_VERSION: &str = "kustomize.config.k8s.io/v1alpha1";
/// The names a kustomization file may have.
pub const FILE_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Where a built-in transformer writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct FieldSpec {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub path: String,
    pub create: bool,
}

impl From<&PatchTarget> for Selector {
    fn from(target: &PatchTarget) -> Self {
        Self {
            group: target.group.clone(),
            version: target.version.clone(),
            kind: target.kind.clone(),
            name: target.name.clone(),
            namespace: target.namespace.clone(),
            label_selector: target.label_selector.clone(),
            annotation_selector: target.annotation_selector.clone(),
        }
    }
}

/// Which resources a patch or replacement is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Selector {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub label_selector: String,
    pub annotation_selector: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PatchOptions {
    pub allow_name_change: bool,
    pub allow_kind_change: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Patch {
    pub path: String,
    pub patch: String,
    pub target: Option<Selector>,
    pub options: PatchOptions,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Image {
    pub name: String,
    pub new_name: String,
    pub tag_suffix: String,
    pub new_tag: String,
    pub digest: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Replica {
    pub name: String,
    pub count: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct FieldOptions {
    pub delimiter: String,
    pub index: i64,
    pub create: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReplacementSource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub field_path: String,
    pub options: Option<FieldOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReplacementTarget {
    pub select: Option<Selector>,
    pub reject: Vec<Selector>,
    pub field_paths: Vec<String>,
    pub options: Option<FieldOptions>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Replacement {
    pub path: String,
    pub source: Option<ReplacementSource>,
    pub source_value: Option<String>,
    pub targets: Option<Vec<ReplacementTarget>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GeneratorOptions {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub disable_name_suffix_hash: bool,
    pub immutable: bool,
}

/// Entry of `configMapGenerator` and `secretGenerator`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Generator {
    pub name: String,
    pub namespace: String,
    pub behavior: String,
    pub literals: Vec<String>,
    pub files: Vec<String>,
    pub envs: Vec<String>,
    pub env: String,
    pub options: GeneratorOptions,
    pub r#type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Label {
    pub pairs: BTreeMap<String, String>,
    pub include_selectors: bool,
    pub include_templates: bool,
    pub fields: Vec<FieldSpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjRef {
    pub api_version: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct FieldRef {
    pub field_path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Var {
    pub name: String,
    pub objref: ObjRef,
    pub fieldref: FieldRef,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LegacySortOptions {
    pub order_first: Vec<String>,
    pub order_last: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SortOptions {
    pub order: String,
    pub legacy_sort_options: Option<LegacySortOptions>,
}

/// A kustomization file after decoding and conversion.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Kustomization {
    pub api_version: String,
    pub kind: String,
    pub openapi: BTreeMap<String, String>,
    pub name_prefix: String,
    pub name_suffix: String,
    pub namespace: String,
    pub common_labels: BTreeMap<String, String>,
    pub labels: Vec<Label>,
    pub common_annotations: BTreeMap<String, String>,
    pub patches_strategic_merge: Vec<String>,
    #[serde(rename = "patchesJson6902")]
    pub patches_json6902: Vec<Patch>,
    pub patches: Vec<Patch>,
    pub images: Vec<Image>,
    pub image_tags: Vec<Image>,
    pub replacements: Vec<Replacement>,
    pub replicas: Vec<Replica>,
    pub vars: Vec<Var>,
    pub sort_options: Option<SortOptions>,
    pub resources: Vec<String>,
    pub components: Vec<String>,
    pub crds: Vec<String>,
    pub bases: Vec<String>,
    pub config_map_generator: Vec<Generator>,
    pub secret_generator: Vec<Generator>,
    pub helm_charts: Vec<Value>,
    pub helm_chart_inflation_generator: Vec<Value>,
    pub generator_options: GeneratorOptions,
    pub configurations: Vec<String>,
    pub generators: Vec<String>,
    pub transformers: Vec<String>,
    pub validators: Vec<String>,
    pub build_metadata: Vec<String>,
}

/// A kustomization file that says nothing useful.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    /// Only apiVersion and kind, or nothing at all.
    #[error("the kustomization is empty; list resources, or remove the file")]
    Empty,
    /// Another kind.
    #[error("kind {0:?} must be Kustomization or Component")]
    Kind(String),
    /// Another version.
    #[error("apiVersion {found:?} of a {kind} must be {expected:?}")]
    ApiVersion {
        /// As written.
        found: String,
        /// The kind it goes with.
        kind: String,
        /// The only one allowed.
        expected: &'static str,
    },
    /// Helm inflation.
    #[error("field {0:?}: helm inflation is not supported in a stage; render the chart before publishing it")]
    Helm(&'static str),
}

impl Kustomization {
    /// Appends the patches of a stage.
    pub fn append_patches(&mut self, patches: &[StagePatch]) {
        self.patches.extend(patches.iter().map(|patch| Patch {
            path: String::new(),
            patch: patch.patch.clone(),
            target: patch.target.as_ref().map(Selector::from),
            options: PatchOptions::default(),
        }));
    }

    /// True for the kind `Component`.
    pub fn is_component(&self) -> bool {
        self.kind == "Component"
    }

    /// Defaults and conversions of deprecated fields, then the checks of kind and version.
    pub fn settle(mut self, fields: &[String]) -> Result<Self, FileError> {
        if self.kind.is_empty() {
            "Kustomization".clone_into(&mut self.kind);
        }
        if !self.is_component() && self.kind != "Kustomization" {
            return Err(FileError::Kind(self.kind));
        }
        let expected = if self.is_component() {
            COMPONENT_VERSION
        } else {
            KUSTOMIZATION_VERSION
        };
        if !self.api_version.is_empty() && self.api_version != expected {
            return Err(FileError::ApiVersion {
                found: self.api_version,
                kind: self.kind,
                expected,
            });
        }
        if fields.is_empty() {
            return Err(FileError::Empty);
        }
        let bases = std::mem::take(&mut self.bases);
        self.resources.extend(bases);
        let image_tags = std::mem::take(&mut self.image_tags);
        self.images.extend(image_tags);
        for generator in self.config_map_generator.iter_mut().chain(&mut self.secret_generator) {
            if !generator.env.is_empty() {
                generator.envs.push(std::mem::take(&mut generator.env));
            }
        }
        if !self.helm_chart_inflation_generator.is_empty() {
            return Err(FileError::Helm("helmChartInflationGenerator"));
        }
        if !self.helm_charts.is_empty() {
            return Err(FileError::Helm("helmCharts"));
        }
        Ok(self)
    }
}

/// The fields that make a kustomization count as not empty.
pub(crate) fn telling_fields(value: &Value) -> Vec<String> {
    let Value::Object(map) = value else {
        return Vec::new();
    };
    map.iter()
        .filter(|(name, value)| match (name.as_str(), value) {
            ("apiVersion" | "kind", _) => false,
            (_, Value::String(text)) => !text.is_empty(),
            ("bases" | "imageTags" | "helmChartInflationGenerator", Value::Array(items)) => !items.is_empty(),
            _ => true,
        })
        .map(|(name, _)| name.clone())
        .collect()
}
