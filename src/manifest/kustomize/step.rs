//! Transformers ready to run.

use std::collections::BTreeMap;

use super::budget::Allowance;
use super::config::Spec;
use super::error::Problem;
use super::file::{Image, PatchOptions, Replacement, Replica};
use super::generate;
use super::image;
use super::origin::Origin;
use super::patch::{Patcher, PreparedPatch};
use super::replace;
use super::resource::Resource;
use super::schema::Schema;
use super::transform::{self, Affix, Namespace};
use crate::manifest::node::Map;

/// What a transformer does.
pub(crate) enum Action {
    StrategicPatches(Vec<Map>),
    Patch(Box<PreparedPatch>),
    Namespace(Namespace),
    Affix {
        kind: Affix,
        text: String,
        specs: Vec<Spec>,
    },
    Entries {
        entries: BTreeMap<String, String>,
        specs: Vec<Spec>,
    },
    Replicas {
        replica: Replica,
        specs: Vec<Spec>,
    },
    Image {
        image: Image,
        specs: Vec<Spec>,
    },
    Replacements(Vec<Replacement>),
    ValueAdd(super::value_add::ValueAdd),
    Hash,
}

/// A transformer and where it was configured.
pub(crate) struct Step {
    pub action: Action,
    pub origin: Option<Origin>,
}

impl Action {
    /// Runs the transformer.
    pub fn apply(
        &self,
        resources: &mut Vec<Resource>,
        schema: &Schema,
        warnings: &mut Vec<String>,
        allowance: &Allowance,
    ) -> Result<(), Problem> {
        match self {
            Self::StrategicPatches(patches) => {
                let mut patcher = Patcher {
                    schema,
                    warnings,
                    allowance,
                };
                patches
                    .iter()
                    .try_for_each(|p| patcher.by_id(resources, p, PatchOptions::default(), true))
            }
            Self::Patch(patch) => {
                let mut patcher = Patcher {
                    schema,
                    warnings,
                    allowance,
                };
                patcher.apply(resources, patch)
            }
            Self::Namespace(namespace) => namespace.apply(resources, allowance),
            Self::Affix { kind, text, specs } => transform::affix(resources, *kind, text, specs, allowance),
            Self::Entries { entries, specs } => transform::set_entries(resources, entries, specs, allowance),
            Self::Replicas { replica, specs } => transform::replicas(resources, replica, specs),
            Self::Image { image, specs } => image::images(resources, image, specs, allowance),
            Self::Replacements(replacements) => replace::run(resources, replacements, warnings, allowance),
            Self::ValueAdd(add) => add.apply(resources, allowance),
            Self::Hash => generate::add_hashes(resources),
        }
    }
}
