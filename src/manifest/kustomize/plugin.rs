//! Built-in plugins configured by objects: `generators`, `transformers`, `validators`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::config::{Spec, TransformerConfig};
use super::config_file;
use super::engine::Engine;
use super::error::Problem;
use super::file::{FieldSpec, Generator, Image, Patch, Replacement, Replica, Selector};
use super::generate::{self, Kind};
use super::layer::Layer;
use super::prepare::{Preparation, plugin_step};
use super::resource::Resource;
use super::selector::Matcher;
use super::shape::{self, Strictness, fit};
use super::step::{Action, Step};
use super::transform::{Affix, Namespace, Subjects};
use super::value_add::{Target, ValueAdd};
use crate::manifest::node::{Map, Node};
use crate::manifest::yaml::Duplicates;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ValueTarget {
    selector: Option<Selector>,
    field_path: String,
    file_path_position: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    metadata: Metadata,
    field_specs: Option<Vec<FieldSpec>>,
    unset_only: bool,
    set_role_binding_subjects: String,
    prefix: String,
    suffix: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    image_tag: Image,
    replica: Replica,
    path: String,
    target: Option<Selector>,
    json_op: String,
    paths: Vec<String>,
    patches: String,
    replacements: Vec<Replacement>,
    value: String,
    targets: Vec<ValueTarget>,
    target_file_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceAccount {
    name: String,
    project_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct IamConfig {
    cloud: String,
    kubernetes_service: Metadata,
    service_account: ServiceAccount,
}

/// Reads plugin configurations of one layer.
pub(crate) struct Plugins<'e, 't, 'l> {
    pub engine: &'e mut Engine<'t>,
    pub layer: &'l Layer,
    pub field: &'static str,
}

impl<'t, 'l> Plugins<'_, 't, 'l> {
    fn bad(&self, resource: &Resource, problem: &str) -> Problem {
        Problem::Plugin {
            field: self.field,
            kind: resource.kind().to_owned(),
            name: resource.name().to_owned(),
            problem: problem.to_owned(),
        }
    }

    /// The configuration as a value in its shape.
    fn config(&self, resource: &Resource) -> Result<Value, Problem> {
        if resource.api_version() != "builtin" {
            return Err(self.bad(
                resource,
                "only built-in plugins (apiVersion: builtin) can run in a stage; exec, Go and container plugins are refused",
            ));
        }
        if resource.kind() == "HelmChartInflationGenerator" {
            return Err(self.bad(
                resource,
                "helm inflation is not supported in a stage; render the chart first",
            ));
        }
        let Some(shape) = shape::plugin(resource.kind()) else {
            return Err(self.bad(resource, "there is no such built-in plugin"));
        };
        let value = resource.clone().into_value()?;
        Ok(fit(value, shape, Strictness::IgnoreUnknown, &mut Vec::new())?)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, value: Value) -> Result<T, Problem> {
        serde_json::from_value(value).map_err(|e| Problem::Decode(e.to_string()))
    }

    /// What a generator makes.
    pub fn generate(&mut self, resource: &Resource) -> Result<Resource, Problem> {
        let value = self.config(resource)?;
        let kind = match resource.kind() {
            "ConfigMapGenerator" => Kind::ConfigMap,
            "SecretGenerator" => Kind::Secret,
            "IAMPolicyGenerator" => return self.service_account(resource, value),
            _ => return Err(self.bad(resource, "is not a generator")),
        };
        let mut args: Generator = self.read(value)?;
        if args.name.is_empty() {
            resource.name().clone_into(&mut args.name);
        }
        if args.namespace.is_empty() {
            resource.namespace().clone_into(&mut args.namespace);
        }
        if !args.env.is_empty() {
            args.envs.push(std::mem::take(&mut args.env));
        }
        let engine = &*self.engine;
        let layer = self.layer;
        generate::generate(kind, &args, &|field, path| Ok(engine.read(layer, field, path)?.0))
    }

    fn service_account(&self, resource: &Resource, value: Value) -> Result<Resource, Problem> {
        let config: IamConfig = self.read(value)?;
        if config.cloud != "gke" {
            return Err(self.bad(resource, "cloud must be gke"));
        }
        let account = &config.service_account;
        let mut annotations = Map::new();
        annotations.set(
            "iam.gke.io/gcp-service-account",
            Node::string(format!(
                "{}@{}.iam.gserviceaccount.com",
                account.name, account.project_id
            )),
        );
        let mut metadata = Map::new();
        metadata.set("annotations", Node::Map(annotations));
        metadata.set("name", Node::string(config.kubernetes_service.name));
        if !config.kubernetes_service.namespace.is_empty() {
            metadata.set("namespace", Node::string(config.kubernetes_service.namespace));
        }
        let mut root = Map::new();
        root.set("apiVersion", Node::string("v1"));
        root.set("kind", Node::string("ServiceAccount"));
        root.set("metadata", Node::Map(metadata));
        Ok(Resource::new(root))
    }

    /// The steps a transformer configuration stands for.
    pub fn transformer(&mut self, resource: &Resource) -> Result<Vec<Step>, Problem> {
        let origin = self.engine.plugin_origin(resource);
        let actions = self.actions(resource)?;
        Ok(actions
            .into_iter()
            .map(|action| plugin_step(action, origin.clone()))
            .collect())
    }

    fn actions(&mut self, resource: &Resource) -> Result<Vec<Action>, Problem> {
        let value = self.config(resource)?;
        if resource.kind() == "PatchTransformer" {
            let entry: Patch = self.read(value)?;
            let patch = self.preparation().patch(&entry)?;
            return Ok(vec![Action::Patch(Box::new(patch))]);
        }
        if resource.kind().ends_with("Generator") {
            return Err(self.bad(resource, "is a generator, not a transformer"));
        }
        let config: Config = self.read(value)?;
        let given = config.field_specs.is_some();
        let specs: Vec<Spec> = config.field_specs.iter().flatten().map(Spec::from).collect();
        Ok(match resource.kind() {
            "NamespaceTransformer" => vec![self.namespace(resource, config, specs)?],
            "LabelTransformer" => vec![Action::Entries {
                entries: config.labels,
                specs,
            }],
            "AnnotationsTransformer" => vec![Action::Entries {
                entries: config.annotations,
                specs,
            }],
            "ImageTagTransformer" => vec![Action::Image {
                image: config.image_tag,
                specs,
            }],
            "ReplicaCountTransformer" => vec![Action::Replicas {
                replica: config.replica,
                specs,
            }],
            "PatchStrategicMergeTransformer" => vec![self.strategic(&config)?],
            "PatchJson6902Transformer" => {
                let patch = self
                    .preparation()
                    .json6902(config.target.as_ref(), &config.path, &config.json_op)?;
                vec![Action::Patch(Box::new(patch))]
            }
            "ReplacementTransformer" => {
                vec![Action::Replacements(
                    self.preparation().replacements(&config.replacements)?,
                )]
            }
            "ValueAddTransformer" => vec![self.value_add(resource, config)?],
            "HashTransformer" => vec![Action::Hash],
            _ if !given => return Err(self.bad(resource, "fieldSpecs are missing")),
            _ => [(Affix::Prefix, config.prefix), (Affix::Suffix, config.suffix)]
                .into_iter()
                .filter(|(_, text)| !text.is_empty())
                .map(|(kind, text)| Action::Affix {
                    kind,
                    text,
                    specs: specs.clone(),
                })
                .collect(),
        })
    }

    fn preparation<'s>(&'s mut self) -> Preparation<'s, 't, 'l> {
        Preparation::new(self.engine, self.layer, Arc::new(TransformerConfig::default()))
    }

    fn namespace(&self, resource: &Resource, config: Config, specs: Vec<Spec>) -> Result<Action, Problem> {
        let subjects = match config.set_role_binding_subjects.as_str() {
            "" | "defaultOnly" => Subjects::DefaultOnly,
            "allServiceAccounts" => Subjects::AllServiceAccounts,
            "none" => Subjects::None,
            _ => {
                let problem = "setRoleBindingSubjects must be defaultOnly, allServiceAccounts or none";
                return Err(self.bad(resource, problem));
            }
        };
        let namespace = config.metadata.namespace;
        Ok(Action::Namespace(Namespace {
            namespace,
            specs,
            unset_only: config.unset_only,
            subjects,
        }))
    }

    fn strategic(&mut self, config: &Config) -> Result<Action, Problem> {
        let mut entries = config.paths.clone();
        if !config.patches.is_empty() {
            entries.push(config.patches.clone());
        }
        let patches = self.preparation().strategic(&entries)?;
        if patches.is_empty() {
            return Err(Problem::Content {
                file: self.layer.file.clone(),
                problem: "the patch is empty".to_owned(),
            });
        }
        Ok(Action::StrategicPatches(patches))
    }

    fn value_add(&mut self, resource: &Resource, config: Config) -> Result<Action, Problem> {
        let mut targets = config.targets;
        if !config.target_file_path.is_empty() {
            let (bytes, path) = self
                .engine
                .read(self.layer, "targetFilePath", &config.target_file_path)?;
            let value = config_file::value(&bytes, &path, Duplicates::LastWins)?;
            let value = fit(
                value,
                &shape::VALUE_TARGET_FILE,
                Strictness::IgnoreUnknown,
                &mut Vec::new(),
            )?;
            let file: Config = self.read(value)?;
            targets.extend(file.targets);
        }
        if targets.is_empty() {
            return Err(self.bad(resource, "targets are missing"));
        }
        let mut prepared = Vec::with_capacity(targets.len());
        for target in targets {
            if target.field_path.is_empty() {
                return Err(self.bad(resource, "a target without fieldPath"));
            }
            let Ok(position) = usize::try_from(target.file_path_position) else {
                return Err(self.bad(resource, "filePathPosition must not be negative"));
            };
            let selector = target.selector.as_ref().map(Matcher::new).transpose()?;
            prepared.push(Target {
                selector,
                field_path: target.field_path,
                position,
            });
        }
        let value = match config.value.trim() {
            "" => self.layer.directory.rsplit('/').next().unwrap_or_default().to_owned(),
            value => value.to_owned(),
        };
        Ok(Action::ValueAdd(ValueAdd {
            value,
            targets: prepared,
        }))
    }
}
