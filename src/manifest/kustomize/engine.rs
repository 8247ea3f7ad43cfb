//! One build: layers accumulated depth first, each with its transformers, then the steps only the root takes.

use std::collections::HashSet;
use std::sync::Arc;

use super::config::TransformerConfig;
use super::error::{Error, Problem};
use super::file::{FILE_NAMES, Kustomization, telling_fields};
use super::read;
use super::resource::Resource;
use super::shape::{KUSTOMIZATION, Strictness, fit};
use super::transform::{self, Affix};
use crate::manifest::tree::{self, FileTree};
use crate::manifest::yaml::{self, Duplicates, Limits, Loader, Mode};

/// Layers one inside the other.
const MAX_DEPTH: usize = 100;
/// Directories visited in one build, repeated visits counted.
const MAX_LAYERS: usize = 10_000;

/// What a layer has gathered.
#[derive(Default)]
pub(crate) struct Accumulator {
    pub resources: Vec<Resource>,
    /// Hashes of the current ids; absent after something may have changed them.
    ids: Option<HashSet<u64>>,
    pub config: Arc<TransformerConfig>,
}

impl Accumulator {
    /// Appends resources whose ids must be new.
    pub fn append(&mut self, incoming: Vec<Resource>) -> Result<(), Problem> {
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
        self.resources.extend(incoming);
        Ok(())
    }

    /// The resources, to change them.
    pub fn change(&mut self) -> &mut Vec<Resource> {
        self.ids = None;
        &mut self.resources
    }

    fn absorb(&mut self, other: Self) -> Result<(), Problem> {
        self.append(other.resources)?;
        self.config = self.config.merged(&other.config)?;
        Ok(())
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
}

/// One build.
pub(crate) struct Engine<'t> {
    pub tree: &'t FileTree,
    pub loader: Loader,
    /// Directories being built, outermost first.
    chain: Vec<String>,
    layers: usize,
}

impl<'t> Engine<'t> {
    pub fn new(tree: &'t FileTree) -> Self {
        Self {
            tree,
            loader: Loader::new(Mode::Kustomize),
            chain: Vec::new(),
            layers: 0,
        }
    }

    /// Builds a root that is loaded already.
    pub fn build(mut self, root: &Layer) -> Result<Vec<Resource>, Error> {
        self.chain.push(root.directory.clone());
        let accumulated = self.accumulate(root, Accumulator::default())?;
        let mut resources = accumulated.resources;
        for resource in &mut resources {
            resource.coerce_annotations(super::keep_annotation);
        }
        Ok(resources)
    }

    /// Loads the kustomization of a directory strictly.
    pub fn load(&mut self, directory: &str) -> Result<Layer, Error> {
        let (file, text) = find_file(self.tree, directory).map_err(|p| p.within(directory))?;
        let content = decode(text, &file, Strictness::Strict, &mut Vec::new()).map_err(|p| p.within(&file))?;
        Ok(Layer {
            directory: directory.to_owned(),
            file,
            content,
        })
    }

    fn accumulate(&mut self, layer: &Layer, mut acc: Accumulator) -> Result<Accumulator, Error> {
        for entry in &layer.content.resources {
            self.resource_entry(layer, entry, &mut acc)?;
        }
        let within = |problem: Problem| problem.within(&layer.file);
        acc.config = acc
            .config
            .merged(&TransformerConfig::builtin())
            .map_err(|e| within(e.into()))?;
        self.transform(&layer.content, &mut acc).map_err(within)?;
        Ok(acc)
    }

    fn transform(&mut self, content: &Kustomization, acc: &mut Accumulator) -> Result<(), Problem> {
        let unsupported = [
            ("components", content.components.is_empty()),
            ("patches", content.patches.is_empty()),
            ("patchesStrategicMerge", content.patches_strategic_merge.is_empty()),
            ("patchesJson6902", content.patches_json6902.is_empty()),
            ("images", content.images.is_empty()),
            ("replacements", content.replacements.is_empty()),
            ("vars", content.vars.is_empty()),
            ("configMapGenerator", content.config_map_generator.is_empty()),
            ("secretGenerator", content.secret_generator.is_empty()),
            ("configurations", content.configurations.is_empty()),
            ("crds", content.crds.is_empty()),
            ("generators", content.generators.is_empty()),
            ("transformers", content.transformers.is_empty()),
            ("validators", content.validators.is_empty()),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, empty)| !empty) {
            return Err(Problem::Unsupported(field));
        }
        let config = Arc::clone(&acc.config);
        let resources = acc.change();
        transform::Namespace {
            namespace: content.namespace.clone(),
            specs: config.namespace.clone(),
            unset_only: false,
            subjects: transform::Subjects::default(),
        }
        .apply(resources)?;
        if !content.name_prefix.is_empty() {
            transform::affix(resources, Affix::Prefix, &content.name_prefix, &config.name_prefix)?;
        }
        if !content.name_suffix.is_empty() {
            transform::affix(resources, Affix::Suffix, &content.name_suffix, &config.name_suffix)?;
        }
        for label in &content.labels {
            let specs = super::label_specs(label, &config)?;
            transform::set_entries(resources, &label.pairs, &specs)?;
        }
        transform::set_entries(resources, &content.common_labels, &config.common_labels)?;
        transform::set_entries(resources, &content.common_annotations, &config.common_annotations)?;
        for replica in &content.replicas {
            transform::replicas(resources, replica, &config.replicas)?;
        }
        Ok(())
    }

    fn resource_entry(&mut self, layer: &Layer, entry: &str, acc: &mut Accumulator) -> Result<(), Error> {
        const FIELD: &str = "resources";
        let within = |problem: Problem| problem.within(&layer.file);
        let path = tree::resolve(&layer.directory, entry);
        if let Ok(path) = &path
            && let Some(bytes) = self.tree.file(path)
        {
            let text = yaml::text(bytes, path).map_err(|e| within(e.into()))?;
            let resources = read::resources(&mut self.loader, text, path).map_err(within)?;
            return acc.append(resources).map_err(within);
        }
        let directory = self.base(layer, FIELD, entry).map_err(within)?;
        let base = self.load(&directory)?;
        if base.content.is_component() {
            let problem = Problem::WrongKind {
                field: FIELD,
                path: entry.to_owned(),
                kind: "Component",
                other: "components",
            };
            return Err(within(problem));
        }
        self.enter(directory).map_err(within)?;
        let built = self.accumulate(&base, Accumulator::default())?;
        self.chain.pop();
        acc.absorb(built).map_err(within)
    }

    /// The directory an entry leads to.
    fn base(&self, layer: &Layer, field: &'static str, entry: &str) -> Result<String, Problem> {
        if super::remote::is_remote(entry) {
            return Err(Problem::Remote {
                field,
                entry: entry.to_owned(),
            });
        }
        let directory = tree::resolve(&layer.directory, entry)?;
        if entry.is_empty() || !self.tree.is_dir(&directory) {
            return Err(match self.tree.file(&directory) {
                Some(_) => Problem::NotADirectory {
                    field,
                    path: entry.to_owned(),
                },
                None => Problem::Missing {
                    field,
                    path: entry.to_owned(),
                },
            });
        }
        let prefix = format!("{directory}/");
        let contains = |visited: &String| directory.is_empty() || *visited == directory || visited.starts_with(&prefix);
        if self.chain.iter().any(contains) {
            return Err(Problem::Cycle {
                field,
                path: entry.to_owned(),
                directory,
            });
        }
        Ok(directory)
    }

    fn enter(&mut self, directory: String) -> Result<(), Problem> {
        self.layers += 1;
        if self.layers > MAX_LAYERS {
            return Err(Problem::TooMuch {
                what: "kustomization layers",
                limit: MAX_LAYERS,
            });
        }
        if self.chain.len() >= MAX_DEPTH {
            return Err(Problem::TooMuch {
                what: "kustomizations inside one another",
                limit: MAX_DEPTH,
            });
        }
        self.chain.push(directory);
        Ok(())
    }
}

/// Path and text of the one kustomization file of a directory.
pub(crate) fn find_file<'t>(tree: &'t FileTree, directory: &str) -> Result<(String, &'t [u8]), Problem> {
    let path = |name: &str| {
        if directory.is_empty() {
            name.to_owned()
        } else {
            format!("{directory}/{name}")
        }
    };
    let mut found: Vec<(&str, &[u8])> = FILE_NAMES
        .iter()
        .filter_map(|name| Some((*name, &**tree.file(&path(name))?)))
        .collect();
    match found.len() {
        0 => Err(Problem::NoKustomization {
            directory: directory.to_owned(),
        }),
        1 => {
            let (name, text) = found.remove(0);
            Ok((path(name), text))
        }
        _ => Err(Problem::SeveralKustomizations {
            directory: directory.to_owned(),
            names: found.iter().map(|(name, _)| (*name).to_owned()).collect(),
        }),
    }
}

/// Decodes a kustomization file: the first document, by YAML 1.1 rules, repeated keys allowed.
pub(crate) fn decode(
    bytes: &[u8],
    file: &str,
    strictness: Strictness,
    dropped: &mut Vec<String>,
) -> Result<Kustomization, Problem> {
    let text = yaml::text(bytes, file)?;
    let mut loader = Loader::with(Mode::Kubectl, Duplicates::LastWins, Limits::default());
    let value = match loader.first(text, file, 1)? {
        Some(node) => yaml::to_value(node, file)?,
        None => serde_json::Value::Null,
    };
    if value.is_null() {
        return Ok(Kustomization::default().settle(&[])?);
    }
    let value = fit(value, &KUSTOMIZATION, strictness, dropped)?;
    let fields = telling_fields(&value);
    let content: Kustomization = serde_json::from_value(value).map_err(|e| Problem::Decode(e.to_string()))?;
    Ok(content.settle(&fields)?)
}
