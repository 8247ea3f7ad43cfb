//! A kustomize engine: equal objects to kustomize 5.8.1 for equal files, in memory, without global state.

mod budget;
mod config;
mod config_file;
mod engine;
pub mod error;
mod fieldpath;
mod fieldspec;
mod file;
mod finish;
mod generate;
mod gojson;
mod id;
mod image;
mod jsonpatch;
mod keyed;
mod label_selector;
mod layer;
mod merge;
mod nameref;
mod order;
mod origin;
mod patch;
mod plugin;
mod prepare;
mod read;
mod remote;
mod replace;
mod resource;
pub mod schema;
mod selector;
mod shape;
mod step;
mod tables;
mod transform;
mod value_add;
mod vars;

use config::{Spec, SpecConflict, TransformerConfig, merge_specs};
pub(crate) use engine::{Engine, decode, find_file};
pub use error::{Error, Problem};
pub use file::{FILE_NAMES, FileError};
pub(crate) use file::{Kustomization, Label};
pub(crate) use layer::{Layer, Outcome};
pub use order::legacy_key;
pub(crate) use resource::value;
pub(crate) use shape::Strictness;

/// The field specs one entry of `labels` writes.
fn label_specs(label: &Label, config: &TransformerConfig) -> Result<Vec<Spec>, SpecConflict> {
    let own: Vec<Spec> = label.fields.iter().map(Spec::from).collect();
    let mut specs = own;
    merge_specs(&mut specs, &config.labels)?;
    if label.include_selectors {
        merge_specs(&mut specs, &config.common_labels)?;
        return Ok(specs);
    }
    if label.include_templates {
        merge_specs(&mut specs, &config.template_labels)?;
    }
    merge_specs(&mut specs, &[Spec::new("", "", "", "metadata/labels", true)])?;
    Ok(specs)
}

/// False for annotations the reference uses for its own bookkeeping and removes at the end.
fn keep_annotation(key: &str) -> bool {
    const INTERNAL: [&str; 16] = [
        "previousKinds",
        "previousNames",
        "previousNamespaces",
        "prefixes",
        "suffixes",
        "refBy",
        "generatorBehavior",
        "needsHashSuffix",
        "allowNameChange",
        "allowKindChange",
        "path",
        "index",
        "seqindent",
        "id",
        "annotations-migration-resource-id",
        "helm-generated",
    ];
    if let Some(name) = key.strip_prefix("internal.config.kubernetes.io/") {
        return !INTERNAL.contains(&name);
    }
    !matches!(
        key,
        "config.kubernetes.io/path"
            | "config.kubernetes.io/index"
            | "config.k8s.io/id"
            | "config.kubernetes.io/origin"
            | "alpha.config.kubernetes.io/transformations"
    )
}
