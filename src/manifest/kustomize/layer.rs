//! A kustomization, and what its build gathers.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget;
use super::config::TransformerConfig;
use super::error::Problem;
use super::file::Kustomization;
use super::resource::Resource;
use super::vars::Vars;

/// Resources of one build.
const MAX_RESOURCES: usize = 200_000;

/// What a layer has gathered.
#[derive(Default)]
pub(crate) struct Accumulator {
    pub resources: Vec<Resource>,
    /// Hashes of the current ids; absent after something may have changed them.
    ids: Option<HashSet<u64>>,
    pub config: Arc<TransformerConfig>,
    pub vars: Vars,
    /// Of the resources.
    pub weight: usize,
}

impl Accumulator {
    /// Appends resources whose ids must be new.
    pub fn append(&mut self, incoming: Vec<Resource>) -> Result<(), Problem> {
        let weight = budget::of_all(&incoming);
        self.append_weighed(incoming, weight)
    }

    fn append_weighed(&mut self, incoming: Vec<Resource>, weight: usize) -> Result<(), Problem> {
        self.weight += weight;
        if self.resources.len() + incoming.len() > MAX_RESOURCES {
            return Err(Problem::TooMuch {
                what: "resources",
                limit: MAX_RESOURCES,
            });
        }
        let ids = self
            .ids
            .get_or_insert_with(|| self.resources.iter().map(Resource::id_hash).collect());
        for resource in &incoming {
            if !ids.insert(resource.id_hash()) {
                return Err(Problem::Duplicate {
                    id: resource.id().to_string(),
                });
            }
        }
        if self.resources.is_empty() {
            self.resources = incoming;
        } else {
            // Doubling would leave much unused.
            let room = self.resources.capacity() - self.resources.len();
            if room < incoming.len() {
                self.resources.reserve_exact(incoming.len() + self.resources.len() / 4);
            }
            self.resources.extend(incoming);
        }
        Ok(())
    }

    /// The resources, to change them.
    pub fn change(&mut self) -> &mut Vec<Resource> {
        self.ids = None;
        &mut self.resources
    }

    pub fn absorb(&mut self, other: Self) -> Result<(), Problem> {
        self.append_weighed(other.resources, other.weight)?;
        self.config = self.config.merged(&other.config)?;
        self.vars.merge(other.vars)
    }
}

/// A loaded kustomization.
pub(crate) struct Layer {
    /// Directory of the file.
    pub directory: String,
    /// Path of the file.
    pub file: String,
    /// Its content.
    pub content: Kustomization,
    /// Path from the root of the build, for origins.
    pub origin: String,
    /// Of the content, roughly.
    pub weight: usize,
}

impl Layer {
    pub fn new(directory: &str, file: String, content: Kustomization) -> Self {
        Self {
            directory: directory.to_owned(),
            file,
            content,
            origin: String::new(),
            weight: 0,
        }
    }
}

/// What a build gives.
#[derive(Default)]
pub(crate) struct Outcome {
    pub resources: Vec<Resource>,
    pub warnings: Vec<String>,
}
