//! One build: layers accumulated depth first, each with its transformers, then the steps only the root takes.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::budget::{self, Scale};
use super::config::TransformerConfig;
use super::config_file;
use super::error::{Error, Problem};
use super::file::{FILE_NAMES, Kustomization, telling_fields};
use super::finish;
use super::generate::{self, Kind};
use super::layer::{Accumulator, Layer, Outcome};
use super::nameref;
use super::origin::{Origin, Provenance, join};
use super::plugin::Plugins;
use super::prepare::Preparation;
use super::read;
use super::remote;
use super::resource::Resource;
use super::schema::Schema;
use super::shape::{KUSTOMIZATION, Strictness, fit};
use super::step::Step;
use crate::manifest::tree::{self, FileTree};
use crate::manifest::yaml::{self, Duplicates, Limits, Loader, Mode};

/// Layers one inside the other.
const MAX_DEPTH: usize = 100;
/// Directories visited in one build, repeated visits counted.
const MAX_LAYERS: usize = 10_000;
/// Bytes of one file that is read as YAML.
const MAX_FILE: usize = 32 << 20;
/// Bytes of a kustomization that take as much as a value, once it is read.
const LAYER_TEXT: usize = 16;

/// One build.
pub(crate) struct Engine<'t> {
    pub tree: &'t FileTree,
    pub loader: Loader,
    pub schema: Arc<Schema>,
    /// Something set the schema already.
    schema_set: bool,
    /// Custom schemas add to the built-in one instead of taking its place.
    extends_schema: bool,
    /// Origins are recorded.
    tracks: bool,
    pub warnings: Vec<String>,
    /// Directories being built, outermost first.
    chain: Vec<String>,
    layers: usize,
    /// Weight of the layers that are being built, without the innermost one.
    held: usize,
}

impl<'t> Engine<'t> {
    /// A build of files of this tree. Flux adds the schema of `openapi.path` to the built-in one, the plain
    /// program uses it instead.
    pub fn new(tree: &'t FileTree, extends_schema: bool) -> Self {
        Self {
            tree,
            loader: Loader::new(Mode::Kustomize),
            schema: Schema::builtin(),
            schema_set: false,
            extends_schema,
            tracks: false,
            warnings: Vec::new(),
            chain: Vec::new(),
            layers: 0,
            held: 0,
        }
    }

    /// Builds a root that is loaded already.
    pub fn build(mut self, root: &Layer, legacy_order: bool) -> Result<Outcome, Error> {
        let within = |problem: Problem| problem.within(&root.file);
        self.chain.push(root.directory.clone());
        self.tracks = !root.content.build_metadata.is_empty();
        self.set_schema(root, self.extends_schema).map_err(within)?;
        let accumulated = self.accumulate(root, Accumulator::default())?;
        let Accumulator {
            mut resources,
            config,
            vars,
            weight,
            ..
        } = accumulated;
        generate::add_hashes(&mut resources).map_err(within)?;
        nameref::repair(&mut resources, &config).map_err(within)?;
        let allowance = Scale::new(0, weight).allowance(&resources);
        let allowance = allowance.map_err(|e| within(e.into()))?;
        vars.resolve(&mut resources, &config.var_reference, &allowance)
            .map_err(within)?;
        finish::finish(&mut resources, &root.content, legacy_order).map_err(within)?;
        Ok(Outcome {
            resources,
            warnings: self.warnings,
        })
    }

    /// Loads the kustomization of a directory strictly.
    pub fn load(&mut self, directory: &str) -> Result<Layer, Error> {
        let (file, text) = find_file(self.tree, directory).map_err(|p| p.within(directory))?;
        let content = decode(text, &file, Strictness::Strict, &mut Vec::new()).map_err(|p| p.within(&file))?;
        Ok(Layer {
            weight: text.len() / LAYER_TEXT,
            ..Layer::new(directory, file, content)
        })
    }

    /// Builds what is inside of a layer, which is kept meanwhile.
    fn within<T>(&mut self, weight: usize, build: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.held += weight;
        let built = build(self);
        self.held -= weight;
        built
    }

    /// Refuses what is too much with all that is kept.
    fn bear(&self, weight: usize) -> Result<(), Problem> {
        if self.held + weight > budget::MOST {
            return Err(budget::Heavy.into());
        }
        Ok(())
    }

    /// Content and path of a file a field of a layer names.
    pub fn read(&self, layer: &Layer, field: &'static str, path: &str) -> Result<(Bytes, String), Problem> {
        if remote::is_url(path) {
            return Err(Problem::Remote {
                field,
                entry: path.to_owned(),
            });
        }
        let clean = tree::resolve(&layer.directory, path)?;
        match self.tree.file(&clean) {
            Some(bytes) if bytes.len() > MAX_FILE => Err(Problem::TooMuch {
                what: "bytes in one file",
                limit: MAX_FILE,
            }),
            Some(bytes) => Ok((bytes.clone(), clean)),
            None => Err(Problem::MissingFile {
                field,
                path: path.to_owned(),
            }),
        }
    }

    fn accumulate(&mut self, layer: &Layer, mut acc: Accumulator) -> Result<Accumulator, Error> {
        for entry in &layer.content.resources {
            self.resource_entry(layer, "resources", entry, &mut acc)?;
        }
        let within = |problem: Problem| problem.within(&layer.file);
        acc.config = self.configured(layer, &acc.config).map_err(within)?;
        self.generators(layer, &mut acc)?;
        for entry in &layer.content.components {
            acc = self.component_entry(layer, entry, acc)?;
        }
        let mut steps = Preparation::new(self, layer, Arc::clone(&acc.config))
            .steps()
            .map_err(within)?;
        let fields = &layer.content.transformers;
        let configs = self.within(acc.weight, |engine| {
            engine.plugin_configs(layer, "transformers", fields)
        })?;
        for config in configs {
            let mut plugins = Plugins {
                engine: self,
                layer,
                field: "transformers",
            };
            steps.extend(plugins.transformer(&config).map_err(within)?);
        }
        self.run(&steps, &mut acc).map_err(within)?;
        self.validate(layer, &mut acc)?;
        acc.vars
            .record(&layer.content.vars, &mut acc.resources)
            .map_err(within)?;
        Ok(acc)
    }

    fn run(&mut self, steps: &[Step], acc: &mut Accumulator) -> Result<(), Problem> {
        let mut scale = Scale::new(self.held, acc.weight);
        let resources = acc.change();
        for step in steps {
            let allowance = scale.allowance(resources)?;
            let before = allowance.left();
            step.action
                .apply(resources, &self.schema, &mut self.warnings, &allowance)?;
            scale.spent(before, &allowance);
            if let Some(origin) = &step.origin {
                resources.iter_mut().for_each(|resource| record(resource, origin));
            }
            resources.retain(|resource| !resource.root.is_empty());
        }
        if !steps.is_empty() {
            acc.weight = budget::of_all(&acc.resources);
        }
        self.bear(acc.weight)
    }

    /// The configuration gathered so far with the built-in one, `configurations` and `crds`.
    fn configured(&self, layer: &Layer, gathered: &Arc<TransformerConfig>) -> Result<Arc<TransformerConfig>, Problem> {
        let mut own = TransformerConfig::builtin();
        for path in &layer.content.configurations {
            let (bytes, path) = self.read(layer, "configurations", path)?;
            own = own.merged(&Arc::new(config_file::configuration(&bytes, &path)?))?;
        }
        let mut config = gathered.merged(&own)?;
        for path in &layer.content.crds {
            let (bytes, path) = self.read(layer, "crds", path)?;
            config = config.merged(&Arc::new(config_file::definitions(&bytes, &path)?))?;
        }
        Ok(config)
    }

    fn generators(&mut self, layer: &Layer, acc: &mut Accumulator) -> Result<(), Error> {
        let within = |problem: Problem| problem.within(&layer.file);
        let content = &layer.content;
        let (mut made, mut weight) = (Vec::new(), 0);
        for (kind, name, entries) in [
            (Kind::ConfigMap, "ConfigMapGenerator", &content.config_map_generator),
            (Kind::Secret, "SecretGenerator", &content.secret_generator),
        ] {
            for entry in entries {
                let mut entry = entry.clone();
                entry.options = generate::merged_options(&entry.options, &content.generator_options);
                let read = |field: &'static str, path: &str| Ok(self.read(layer, field, path)?.0);
                let resource = generate::generate(kind, &entry, &read).map_err(within)?;
                weight += budget::of_map(&resource.root);
                self.bear(acc.weight + weight).map_err(within)?;
                made.push((resource, self.builtin_origin(layer, name)));
            }
        }
        let configs = self.within(acc.weight + weight, |engine| {
            engine.plugin_configs(layer, "generators", &content.generators)
        })?;
        for config in configs {
            let mut plugins = Plugins {
                engine: self,
                layer,
                field: "generators",
            };
            let resource = plugins.generate(&config).map_err(within)?;
            weight += budget::of_map(&resource.root);
            self.bear(acc.weight + weight).map_err(within)?;
            made.push((resource, self.plugin_origin(&config)));
        }
        for (mut resource, origin) in made {
            if let Some(origin) = origin {
                record(&mut resource, &origin);
            }
            generate::absorb(acc.change(), resource).map_err(within)?;
        }
        acc.weight += weight;
        Ok(())
    }

    /// Plugin configurations: inline, a file, or what a directory builds to.
    fn plugin_configs(
        &mut self,
        layer: &Layer,
        field: &'static str,
        entries: &[String],
    ) -> Result<Vec<Resource>, Error> {
        let mut acc = Accumulator::default();
        let mut paths = Vec::new();
        for entry in entries {
            match read::resources(&mut self.loader, entry, field) {
                Ok(mut resources) => {
                    let origin = join(&layer.origin, file_name(&layer.file));
                    resources.iter_mut().for_each(|r| self.read_from(r, &origin));
                    acc.append(resources).map_err(|p| p.within(&layer.file))?;
                }
                Err(_) => paths.push(entry),
            }
        }
        for path in paths {
            self.resource_entry(layer, field, path, &mut acc)?;
        }
        Ok(acc.resources)
    }

    fn validate(&mut self, layer: &Layer, acc: &mut Accumulator) -> Result<(), Error> {
        const FIELD: &str = "validators";
        if layer.content.validators.is_empty() {
            return Ok(());
        }
        let within = |problem: Problem| problem.within(&layer.file);
        let fields = &layer.content.validators;
        let configs = self.within(acc.weight, |engine| engine.plugin_configs(layer, FIELD, fields))?;
        for config in configs {
            let steps = Plugins {
                engine: self,
                layer,
                field: FIELD,
            }
            .transformer(&config)
            .map_err(within)?;
            let before = finish::without_validation(&acc.resources).map_err(within)?;
            self.run(&steps, acc).map_err(within)?;
            if finish::without_validation(&acc.resources).map_err(within)? != before {
                return Err(within(Problem::Plugin {
                    field: FIELD,
                    kind: config.kind().to_owned(),
                    name: config.name().to_owned(),
                    problem: "a validator must not change resources".to_owned(),
                }));
            }
        }
        Ok(())
    }

    fn resource_entry(
        &mut self,
        layer: &Layer,
        field: &'static str,
        entry: &str,
        acc: &mut Accumulator,
    ) -> Result<(), Error> {
        let within = |problem: Problem| problem.within(&layer.file);
        let path = tree::resolve(&layer.directory, entry);
        if let Ok(path) = &path
            && !remote::is_url(entry)
            && self.tree.file(path).is_some()
        {
            let (bytes, path) = self.read(layer, field, entry).map_err(within)?;
            let text = yaml::text(&bytes, &path).map_err(|e| within(e.into()))?;
            let mut resources = read::resources(&mut self.loader, text, &path).map_err(within)?;
            let origin = join(&layer.origin, entry);
            resources
                .iter_mut()
                .for_each(|resource| self.read_from(resource, &origin));
            acc.append(resources).map_err(within)?;
            return self.bear(acc.weight).map_err(within);
        }
        let base = self.base(layer, field, entry)?;
        if base.content.is_component() {
            let problem = Problem::WrongKind {
                field,
                path: entry.to_owned(),
                kind: "Component",
                other: "components",
            };
            return Err(within(problem));
        }
        self.set_schema(&base, true).map_err(|p| p.within(&base.file))?;
        let built = self.within(layer.weight + acc.weight, |engine| {
            engine.accumulate(&base, Accumulator::default())
        })?;
        self.chain.pop();
        acc.absorb(built).map_err(within)
    }

    fn component_entry(&mut self, layer: &Layer, entry: &str, acc: Accumulator) -> Result<Accumulator, Error> {
        const FIELD: &str = "components";
        let base = self.base(layer, FIELD, entry)?;
        if !base.content.is_component() {
            let problem = Problem::WrongKind {
                field: FIELD,
                path: entry.to_owned(),
                kind: "Kustomization",
                other: "resources",
            };
            return Err(problem.within(&layer.file));
        }
        self.set_schema(&base, true).map_err(|p| p.within(&base.file))?;
        let built = self.within(layer.weight, |engine| engine.accumulate(&base, acc))?;
        self.chain.pop();
        let mut merged = Accumulator::default();
        merged.absorb(built).map_err(|p| p.within(&layer.file))?;
        Ok(merged)
    }

    /// Loads and enters the directory an entry leads to.
    fn base(&mut self, layer: &Layer, field: &'static str, entry: &str) -> Result<Layer, Error> {
        let directory = self
            .base_directory(layer, field, entry)
            .map_err(|p| p.within(&layer.file))?;
        let mut base = self.load(&directory)?;
        base.origin = join(&layer.origin, entry);
        self.enter(directory).map_err(|p| p.within(&layer.file))?;
        Ok(base)
    }

    fn base_directory(&self, layer: &Layer, field: &'static str, entry: &str) -> Result<String, Problem> {
        if remote::is_remote(entry) {
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

    /// Takes the schema of `openapi`; the first one of a build counts. That of a base or component, and all under
    /// Flux, add to the built-in one.
    fn set_schema(&mut self, layer: &Layer, extends: bool) -> Result<(), Problem> {
        let openapi = &layer.content.openapi;
        let (path, version) = (openapi.get("path"), openapi.get("version"));
        if path.is_some() && version.is_some() {
            return Err(Problem::OpenApi("path and version exclude each other".to_owned()));
        }
        if let Some(version) = version.filter(|v| *v != "v1.21.2") {
            return Err(Problem::OpenApi(format!(
                "version {version:?} is not built in; use v1.21.2, or a path"
            )));
        }
        let Some(path) = path else {
            self.schema_set |= version.is_some();
            return Ok(());
        };
        let (bytes, path) = self.read(layer, "openapi", path)?;
        if self.schema_set {
            return Ok(());
        }
        let document = config_file::value(&bytes, &path, Duplicates::LastWins)?;
        if !matches!(document, Value::Object(_)) {
            return Err(Problem::OpenApi(format!("{path:?} is not an OpenAPI document")));
        }
        let base = if extends { Schema::builtin() } else { Arc::default() };
        self.schema = Arc::new(base.extended(&document));
        self.schema_set = true;
        Ok(())
    }

    /// The origin of what a field of a kustomization makes or changes.
    pub fn builtin_origin(&self, layer: &Layer, plugin: &str) -> Option<Origin> {
        self.tracks.then(|| Origin {
            path: String::new(),
            configured_in: join(&layer.origin, file_name(&layer.file)),
            configured_by: Some(["builtin".to_owned(), plugin.to_owned(), String::new(), String::new()]),
        })
    }

    /// The origin of what a plugin configuration makes or changes.
    pub fn plugin_origin(&self, config: &Resource) -> Option<Origin> {
        let origin = config.origin.as_ref()?.origin.as_ref()?;
        let by = [config.api_version(), config.kind(), config.name(), config.namespace()].map(str::to_owned);
        Some(Origin {
            path: String::new(),
            configured_in: origin.path.clone(),
            configured_by: Some(by),
        })
    }

    fn read_from(&self, resource: &mut Resource, path: &str) {
        if self.tracks {
            let origin = Origin {
                path: path.to_owned(),
                ..Origin::default()
            };
            resource.origin = Some(Box::new(Provenance {
                origin: Some(origin),
                transformations: Vec::new(),
            }));
        }
    }
}

/// The first origin is where a resource comes from, later ones are transformations.
fn record(resource: &mut Resource, origin: &Origin) {
    // The reference writes this into the annotations, which turns all of them into text.
    resource.coerce_annotations(|_| true);
    let provenance = resource.origin.get_or_insert_default();
    if provenance.origin.is_none() {
        provenance.origin = Some(origin.clone());
    } else {
        provenance.transformations.push(origin.clone());
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
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
        None => Value::Null,
    };
    if value.is_null() {
        return Ok(Kustomization::default().settle(&[])?);
    }
    let value = fit(value, &KUSTOMIZATION, strictness, dropped)?;
    let fields = telling_fields(&value);
    let content: Kustomization = serde_json::from_value(value).map_err(|e| Problem::Decode(e.to_string()))?;
    Ok(content.settle(&fields)?)
}
