//! Patches: strategic merge and JSON 6902, with and without target.

use super::budget::{self, Allowance};
use super::error::Problem;
use super::file::PatchOptions;
use super::jsonpatch::JsonPatch;
use super::merge::Merge;
use super::read;
use super::resource::Resource;
use super::schema::Schema;
use super::selector::Matcher;
use super::transform::ensure_unique;
use crate::manifest::node::{Map, Node, Scalar};
use crate::manifest::yaml::{self, Duplicates, Limits, Loader, Mode};

/// The content of a patch.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Strategic merge patches; none is no patch at all.
    Strategic(Vec<Map>),
    /// JSON patch operations.
    Json(JsonPatch),
}

/// One entry of `patches`, read and checked.
#[derive(Debug, Clone)]
pub(crate) struct PreparedPatch {
    /// Where it comes from, for messages.
    pub source: String,
    pub content: Content,
    pub target: Option<Matcher>,
    pub options: PatchOptions,
    /// JSON patches of `patches` record the id they change, those of `patchesJson6902` do not.
    pub records: bool,
}

/// Reads the operations of a JSON patch: JSON where the text begins with `[`, else YAML, of which the first document
/// counts. `None` when it is something else.
pub(crate) fn read_json(text: &str, file: &str) -> Result<Option<JsonPatch>, yaml::Error> {
    if text.starts_with('[') {
        return Ok(serde_json::from_str(text).ok().and_then(JsonPatch::from_value));
    }
    let mut loader = Loader::with(Mode::Kubectl, Duplicates::LastWins, Limits::default());
    match loader.first(text, file, 1)? {
        Some(node) => Ok(JsonPatch::from_value(yaml::to_value(node, file)?)),
        None => Ok(JsonPatch::from_value(serde_json::Value::Array(Vec::new()))),
    }
}

/// Reads a patch as whichever of the two it is.
pub(crate) fn read(loader: &mut Loader, text: &str, source: &str) -> Result<Content, Problem> {
    let strategic = read::objects(loader, text, source);
    if loader.is_exhausted() {
        return strategic.map(Content::Strategic);
    }
    let json = read_json(text, source);
    match (strategic, json) {
        (Ok(objects), Ok(Some(operations))) if !objects.is_empty() && !operations.is_empty() => {
            Err(Problem::AmbiguousPatch(source.to_owned()))
        }
        (Ok(objects), _) => Ok(Content::Strategic(objects)),
        (Err(_), Ok(Some(operations))) => Ok(Content::Json(operations)),
        (Err(problem), _) => Err(problem),
    }
}

/// Applies prepared patches.
pub(crate) struct Patcher<'s> {
    pub schema: &'s Schema,
    pub warnings: &'s mut Vec<String>,
    pub allowance: &'s Allowance,
}

impl Patcher<'_> {
    /// Applies one entry of `patches` or `patchesJson6902`.
    pub fn apply(&mut self, resources: &mut Vec<Resource>, patch: &PreparedPatch) -> Result<(), Problem> {
        match (&patch.content, &patch.target) {
            (Content::Strategic(objects), _) if objects.is_empty() => Ok(()),
            (Content::Strategic(objects), None) => objects
                .iter()
                .try_for_each(|object| self.by_id(resources, object, patch.options, false)),
            (Content::Strategic(objects), Some(target)) => {
                let [object] = objects.as_slice() else {
                    return Err(Problem::SeveralPatches(patch.source.clone()));
                };
                let selected: Vec<usize> = (0..resources.len())
                    .filter(|&i| target.matches(&resources[i]))
                    .collect();
                for at in selected {
                    self.targeted(&mut resources[at], object, patch.options)?;
                }
                resources.retain(|r| !r.root.is_empty());
                ensure_unique(resources, "a patch")
            }
            (Content::Json(_), None) => Err(Problem::JsonWithoutTarget(patch.source.clone())),
            (Content::Json(operations), Some(target)) => {
                for resource in resources.iter_mut().filter(|r| target.matches(r)) {
                    json(resource, operations, patch.records, self.allowance)?;
                }
                Ok(())
            }
        }
    }

    /// Applies one strategic merge patch to the one resource it names.
    pub fn by_id(
        &mut self,
        resources: &mut Vec<Resource>,
        patch: &Map,
        options: PatchOptions,
        coerced: bool,
    ) -> Result<(), Problem> {
        self.allowance.take(budget::of_map(patch))?;
        let named = Resource::new(patch.clone());
        let id = named.id();
        let mut found = (0..resources.len()).filter(|&i| resources[i].any_id().any(|other| other == id));
        let (first, second) = (found.next(), found.next());
        match (first, second) {
            (None, _) => Err(Problem::PatchUnmatched { id: id.to_string() }),
            (Some(_), Some(_)) => Err(Problem::PatchAmbiguous { id: id.to_string() }),
            (Some(at), None) if coerced => {
                self.targeted(&mut resources[at], patch, options)?;
                resources.retain(|r| !r.root.is_empty());
                ensure_unique(resources, "a patch")
            }
            (Some(at), None) => {
                let mut patch = named.root;
                // The reference notes options among the patch's annotations, which turns them into text.
                if (options.allow_name_change || options.allow_kind_change)
                    && let Some(Node::Map(metadata)) = patch.get_mut("metadata")
                {
                    metadata_text(metadata, "annotations");
                }
                self.merge(&mut resources[at], patch, options)
            }
        }
    }

    /// Merges a patch chosen by a selector: its type follows the resource, its labels and annotations are text.
    fn targeted(&mut self, resource: &mut Resource, patch: &Map, options: PatchOptions) -> Result<(), Problem> {
        self.allowance.take(budget::of_map(patch))?;
        let mut patch = patch.clone();
        let kind = patch.get("kind").cloned();
        patch.set("apiVersion", Node::string(resource.api_version()));
        if let Some(Node::Scalar(kind)) = kind {
            patch.set("kind", Node::string(kind.text));
        }
        if let Some(Node::Map(metadata)) = patch.get_mut("metadata") {
            for field in ["labels", "annotations"] {
                metadata_text(metadata, field);
            }
        }
        self.merge(resource, patch, options)
    }

    fn merge(&mut self, resource: &mut Resource, patch: Map, options: PatchOptions) -> Result<(), Problem> {
        let id = resource.id().to_string();
        let (name, namespace, kind) = (
            resource.name().to_owned(),
            resource.namespace().to_owned(),
            resource.kind().to_owned(),
        );
        if options.allow_name_change || options.allow_kind_change {
            resource.record_id();
        }
        if wipes_annotations(&patch) {
            resource.forget();
        }
        let mut merge = Merge::new(self.schema);
        let target = std::mem::take(&mut resource.root);
        let merged = merge
            .object(target, patch)
            .map_err(|source| Problem::Merge { id: id.clone(), source })?;
        for loss in merge.lost {
            self.warnings.push(format!("{id}: {loss}, as in kustomize"));
        }
        let Some(map) = merged.filter(|map| !map.is_empty()) else {
            return Ok(());
        };
        resource.root = map;
        if !options.allow_kind_change {
            resource.root.entry_or_insert("kind", Node::null).set_untyped(&kind);
        }
        if !options.allow_name_change {
            resource.set_name(&name);
        }
        resource.set_namespace(&namespace);
        Ok(())
    }
}

/// Turns every value into its text and drops an empty mapping.
fn metadata_text(metadata: &mut Map, field: &str) {
    match metadata.get_mut(field) {
        Some(Node::Map(map)) if !map.is_empty() => {
            for (_, value) in map.iter_mut() {
                let text = match &*value {
                    Node::Scalar(scalar) => scalar.text.clone(),
                    _ => "".into(),
                };
                *value = Node::Scalar(Scalar::string(text));
            }
        }
        Some(_) => {
            metadata.remove(field);
        }
        None => {}
    }
}

/// True when the patch clears the annotations, in which the reference keeps its own bookkeeping.
fn wipes_annotations(patch: &Map) -> bool {
    let wiping = |map: &Map| matches!(map.text("$patch"), Some("replace" | "delete"));
    let Some(Node::Map(metadata)) = patch.get("metadata") else {
        return false;
    };
    wiping(metadata)
        || match metadata.get("annotations") {
            Some(Node::Map(map)) => wiping(map),
            Some(node) => node.is_null(),
            None => false,
        }
}

fn json(resource: &mut Resource, operations: &JsonPatch, records: bool, allowance: &Allowance) -> Result<(), Problem> {
    let id = resource.id().to_string();
    if records {
        resource.record_id();
    }
    if resource.has_bookkeeping() {
        let annotations = resource.metadata_mut().entry_or_insert("annotations", Node::map);
        if annotations.is_null() {
            *annotations = Node::map();
        }
    }
    let before = budget::of_map(&resource.root);
    let object = Node::Map(std::mem::take(&mut resource.root));
    let value = object
        .into_value()
        .map_err(|source| Problem::Value { id: id.clone(), source })?;
    let patched = operations
        .apply(value)
        .map_err(|source| Problem::JsonPatch { id: id.clone(), source })?;
    let Node::Map(map) = Node::from_value(&patched) else {
        return Err(Problem::NoMapping { id });
    };
    allowance.take(budget::of_map(&map).saturating_sub(before))?;
    resource.root = map;
    resource.coerce_annotations(|_| true);
    Ok(())
}
