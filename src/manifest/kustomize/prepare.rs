//! From the fields of a kustomization to transformers, in the order the reference runs them. Every file is read
//! before the first transformer runs.

use std::sync::Arc;

use serde_json::Value;

use super::config::TransformerConfig;
use super::config_file;
use super::engine::Engine;
use super::error::Problem;
use super::file::{Patch, PatchOptions, Replacement};
use super::layer::Layer;
use super::origin::Origin;
use super::patch::{self, Content, PreparedPatch};
use super::read;
use super::selector::Matcher;
use super::shape::{REPLACEMENT, Strictness, fit};
use super::step::{Action, Step};
use super::transform::{Affix, Namespace, Subjects};
use crate::manifest::node::Map;
use crate::manifest::yaml::{self, Duplicates};

/// The steps of one layer.
pub(crate) struct Preparation<'e, 't, 'l> {
    pub engine: &'e mut Engine<'t>,
    pub layer: &'l Layer,
    pub config: Arc<TransformerConfig>,
    steps: Vec<Step>,
}

impl<'e, 't, 'l> Preparation<'e, 't, 'l> {
    pub fn new(engine: &'e mut Engine<'t>, layer: &'l Layer, config: Arc<TransformerConfig>) -> Self {
        Self {
            engine,
            layer,
            config,
            steps: Vec::new(),
        }
    }

    /// All built-in transformers of the kustomization.
    pub fn steps(mut self) -> Result<Vec<Step>, Problem> {
        let content = &self.layer.content;
        self.strategic_files()?;
        for entry in &content.patches {
            let patch = self.patch(entry)?;
            self.push("PatchTransformer", Action::Patch(Box::new(patch)));
        }
        self.names();
        self.labels()?;
        for entry in &content.patches_json6902 {
            let target = entry.target.clone();
            let patch = self.json6902(target.as_ref(), &entry.path, &entry.patch)?;
            self.push("PatchJson6902Transformer", Action::Patch(Box::new(patch)));
        }
        for replica in &content.replicas {
            let specs = self.config.replicas.clone();
            self.push(
                "ReplicaCountTransformer",
                Action::Replicas {
                    replica: replica.clone(),
                    specs,
                },
            );
        }
        for image in &content.images {
            let specs = self.config.images.clone();
            self.push(
                "ImageTagTransformer",
                Action::Image {
                    image: image.clone(),
                    specs,
                },
            );
        }
        if !content.replacements.is_empty() {
            let replacements = self.replacements(&content.replacements)?;
            self.push("ReplacementTransformer", Action::Replacements(replacements));
        }
        Ok(self.steps)
    }

    fn push(&mut self, plugin: &str, action: Action) {
        let origin = self.engine.builtin_origin(self.layer, plugin);
        self.steps.push(Step { action, origin });
    }

    fn names(&mut self) {
        let content = &self.layer.content;
        if !content.namespace.is_empty() {
            let action = Action::Namespace(Namespace {
                namespace: content.namespace.clone(),
                specs: self.config.namespace.clone(),
                unset_only: false,
                subjects: Subjects::default(),
            });
            self.push("NamespaceTransformer", action);
        }
        let prefix = (
            Affix::Prefix,
            &content.name_prefix,
            self.config.name_prefix.clone(),
            "PrefixTransformer",
        );
        let suffix = (
            Affix::Suffix,
            &content.name_suffix,
            self.config.name_suffix.clone(),
            "SuffixTransformer",
        );
        for (kind, text, specs, plugin) in [prefix, suffix] {
            if !text.is_empty() {
                self.push(
                    plugin,
                    Action::Affix {
                        kind,
                        text: text.clone(),
                        specs,
                    },
                );
            }
        }
    }

    fn labels(&mut self) -> Result<(), Problem> {
        let content = &self.layer.content;
        for label in &content.labels {
            let specs = super::label_specs(label, &self.config)?;
            self.push(
                "LabelTransformer",
                Action::Entries {
                    entries: label.pairs.clone(),
                    specs,
                },
            );
        }
        if !content.labels.is_empty() || !content.common_labels.is_empty() {
            let specs = self.config.common_labels.clone();
            self.push(
                "LabelTransformer",
                Action::Entries {
                    entries: content.common_labels.clone(),
                    specs,
                },
            );
        }
        if !content.common_annotations.is_empty() {
            let specs = self.config.common_annotations.clone();
            self.push(
                "AnnotationsTransformer",
                Action::Entries {
                    entries: content.common_annotations.clone(),
                    specs,
                },
            );
        }
        Ok(())
    }

    fn strategic_files(&mut self) -> Result<(), Problem> {
        let entries = &self.layer.content.patches_strategic_merge;
        if entries.is_empty() {
            return Ok(());
        }
        let patches = self.strategic(entries)?;
        if patches.is_empty() {
            return Err(Problem::Content {
                file: self.layer.file.clone(),
                problem: "patchesStrategicMerge: the patches are empty".to_owned(),
            });
        }
        self.push("PatchStrategicMergeTransformer", Action::StrategicPatches(patches));
        Ok(())
    }

    /// Patches of `patchesStrategicMerge`: each entry is inline YAML, or else a file.
    pub fn strategic(&mut self, entries: &[String]) -> Result<Vec<Map>, Problem> {
        const FIELD: &str = "patchesStrategicMerge";
        let mut patches = Vec::new();
        for entry in entries {
            let inline = read::objects(&mut self.engine.loader, entry, FIELD);
            match inline {
                Ok(objects) => patches.extend(objects),
                Err(_) => {
                    let (bytes, path) = self.engine.read(self.layer, FIELD, entry)?;
                    let text = yaml::text(&bytes, &path)?;
                    patches.extend(read::objects(&mut self.engine.loader, text, &path)?);
                }
            }
        }
        Ok(patches)
    }

    /// One entry of `patches`.
    pub fn patch(&mut self, entry: &Patch) -> Result<PreparedPatch, Problem> {
        let inline = entry.patch.trim();
        let (content, source) = match (inline.is_empty(), entry.path.is_empty()) {
            (true, true) => return Err(Problem::PatchSource(None)),
            (false, false) => return Err(Problem::PatchSource(Some(entry.path.clone()))),
            (false, true) => {
                let source = self.inline_source(inline);
                (patch::read(&mut self.engine.loader, inline, &source), source)
            }
            (true, false) => {
                let (bytes, path) = self.engine.read(self.layer, "patches", &entry.path)?;
                let text = yaml::text(&bytes, &path)?;
                (patch::read(&mut self.engine.loader, text, &path), path)
            }
        };
        let content = content.map_err(|problem| match problem {
            ambiguous @ Problem::AmbiguousPatch(_) => ambiguous,
            other => Problem::NotAPatch {
                patch: source.clone(),
                strategic: Box::new(other),
            },
        })?;
        let target = entry.target.as_ref().map(Matcher::new).transpose()?;
        Ok(PreparedPatch {
            source,
            content,
            target,
            options: entry.options,
            records: true,
        })
    }

    fn inline_source(&self, text: &str) -> String {
        let first = text.lines().next().unwrap_or_default();
        format!("{} (inline patch {first:?})", self.layer.file)
    }

    /// One entry of `patchesJson6902`.
    pub fn json6902(
        &mut self,
        target: Option<&super::file::Selector>,
        path: &str,
        inline: &str,
    ) -> Result<PreparedPatch, Problem> {
        const FIELD: &str = "patchesJson6902";
        let Some(target) = target.filter(|t| !t.name.is_empty()) else {
            return Err(Problem::Json6902("target.name is missing"));
        };
        let (bytes, source) = match (path.is_empty(), inline.is_empty()) {
            (true, true) => return Err(Problem::Json6902("path or patch is missing")),
            (false, false) => return Err(Problem::Json6902("give path or patch, not both")),
            (false, true) => self.engine.read(self.layer, FIELD, path)?,
            (true, false) => (inline.to_owned().into(), self.inline_source(inline)),
        };
        let text = yaml::text(&bytes, &source)?;
        let operations = patch::read_json(text, &source)?.filter(|o| !o.is_empty());
        let Some(operations) = operations else {
            return Err(Problem::Json6902(
                "the patch is not a list of operations, or an empty one",
            ));
        };
        let target = Some(Matcher::new(target)?);
        let options = PatchOptions::default();
        Ok(PreparedPatch {
            source,
            content: Content::Json(operations),
            target,
            options,
            records: false,
        })
    }

    /// Replacements with those of files put in their place.
    pub fn replacements(&mut self, entries: &[Replacement]) -> Result<Vec<Replacement>, Problem> {
        let mut replacements = Vec::new();
        for entry in entries {
            if entry.path.is_empty() {
                replacements.push(entry.clone());
                continue;
            }
            if entry.source.is_some() || entry.targets.as_ref().is_some_and(|t| !t.is_empty()) {
                return Err(Problem::Content {
                    file: self.layer.file.clone(),
                    problem: format!("replacements: path {:?} excludes source and targets", entry.path),
                });
            }
            let (bytes, path) = self.engine.read(self.layer, "replacements", &entry.path)?;
            let items = match config_file::value(&bytes, &path, Duplicates::LastWins)? {
                Value::Array(items) => items,
                item @ Value::Object(_) => vec![item],
                _ => {
                    let problem = "a replacement, or a list of them, is needed".to_owned();
                    return Err(Problem::Content { file: path, problem });
                }
            };
            for item in items {
                let item = fit(item, &REPLACEMENT, Strictness::IgnoreUnknown, &mut Vec::new())?;
                replacements.push(serde_json::from_value(item).map_err(|e| Problem::Decode(e.to_string()))?);
            }
        }
        Ok(replacements)
    }
}

/// A step configured by a plugin.
pub(crate) fn plugin_step(action: Action, origin: Option<Origin>) -> Step {
    Step { action, origin }
}
