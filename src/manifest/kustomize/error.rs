//! What can go wrong in a build, with the file and object concerned.

use super::config::SpecConflict;
use super::fieldspec::FieldError;
use super::file::FileError;
use super::jsonpatch::JsonPatchError;
use super::label_selector::SelectorError;
use super::merge::MergeError;
use super::resource::Resource;
use super::shape::ShapeError;
use crate::manifest::node::TypeMismatch;
use crate::manifest::tree::PathError;
use crate::manifest::yaml;

/// A build that failed: the kustomization it failed in, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct Error {
    /// The kustomization file, or the directory that should hold one.
    pub file: String,
    /// The cause.
    pub problem: Box<Problem>,
}

/// Causes of failed builds.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A document cannot be read.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
    /// A field of the kustomization has the wrong shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The kustomization as a whole is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A path leads nowhere it may.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No kustomization file in a directory that is used as a base.
    #[error("{directory:?} has no kustomization file (kustomization.yaml, kustomization.yml or Kustomization)")]
    NoKustomization {
        /// The directory.
        directory: String,
    },
    /// More than one kustomization file in a directory.
    #[error("{directory:?} has several kustomization files ({}); keep one", .names.join(", "))]
    SeveralKustomizations {
        /// The directory.
        directory: String,
        /// Their names.
        names: Vec<String>,
    },
    /// A file or directory that is not there.
    #[error("{field}: {path:?} is neither a file nor a directory")]
    Missing {
        /// The field that names it.
        field: &'static str,
        /// As written.
        path: String,
    },
    /// A file where a directory is needed.
    #[error("{field}: {path:?} must be a directory with a kustomization file")]
    NotADirectory {
        /// The field that names it.
        field: &'static str,
        /// As written.
        path: String,
    },
    /// A file that is not there.
    #[error("{field}: file {path:?} does not exist")]
    MissingFile {
        /// The field that names it.
        field: &'static str,
        /// As written.
        path: String,
    },
    /// A directory that is being built already.
    #[error("{field}: {path:?} leads to {directory:?}, which is or contains a directory that is being built (cycle)")]
    Cycle {
        /// The field that names it.
        field: &'static str,
        /// As written.
        path: String,
        /// Where it leads.
        directory: String,
    },
    /// Something that would have to be fetched.
    #[error(
        "{field}: {entry:?} is remote; remote bases and files are not supported in a stage, put a copy into the artifact"
    )]
    Remote {
        /// The field that names it.
        field: &'static str,
        /// As written.
        entry: String,
    },
    /// A Component among the resources or a Kustomization among the components.
    #[error("{field}: {path:?} is a {kind}; list it under {other:?}")]
    WrongKind {
        /// The field that names it.
        field: &'static str,
        /// As written.
        path: String,
        /// What it is.
        kind: &'static str,
        /// Where it belongs.
        other: &'static str,
    },
    /// A document that is no Kubernetes object.
    #[error("{file}, document {document}: {problem}")]
    NotAnObject {
        /// The file.
        file: String,
        /// Document index, from 1.
        document: usize,
        /// What is missing.
        problem: ObjectProblem,
    },
    /// A resource the transformers have taken its kind or name from.
    #[error("after all transformers, {id}: {problem}; a patch must have removed it")]
    Incomplete {
        /// What is left of the id.
        id: String,
        /// What is missing.
        problem: ObjectProblem,
    },
    /// Two resources of one id.
    #[error("{id} is there already; remove one, or rename it in a layer in between")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// A transformation that makes ids equal.
    #[error("{after} gives two resources the id {id}")]
    Conflict {
        /// What did it.
        after: &'static str,
        /// The id.
        id: String,
    },
    /// A field of a resource that cannot be changed.
    #[error("{id}: {source}")]
    Field {
        /// The resource.
        id: String,
        /// The cause.
        source: FieldError,
    },
    /// A value that does not fit its type any more.
    #[error("{id}: {source}")]
    Value {
        /// The resource.
        id: String,
        /// The cause.
        source: TypeMismatch,
    },
    /// Field specs that contradict each other.
    #[error(transparent)]
    Specs(#[from] SpecConflict),
    /// A `replicas` entry without a resource.
    #[error(
        "replicas: no workload is named {0:?}; check the name, or add a field spec for its kind under configurations"
    )]
    ReplicasUnmatched(String),
    /// A regular expression that cannot be compiled.
    #[error("expression {expression:?}: {problem}")]
    Expression {
        /// As written.
        expression: String,
        /// What is wrong.
        problem: String,
    },
    /// A label or annotation selector that cannot be read.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A patch that can be read both ways.
    #[error("{0}: the patch is both a strategic merge patch and a JSON patch")]
    AmbiguousPatch(String),
    /// An entry of `patches` with neither or both of path and patch.
    #[error("patches: give exactly one of path and patch{}", .0.as_deref().map(|p| format!(" (path {p:?})")).unwrap_or_default())]
    PatchSource(Option<String>),
    /// A patch that is neither a strategic merge patch nor a JSON patch.
    #[error("patches: {patch} is neither a strategic merge patch ({strategic}) nor a list of JSON patch operations")]
    NotAPatch {
        /// Which patch.
        patch: String,
        /// Why it is no strategic merge patch.
        strategic: Box<Problem>,
    },
    /// Several documents in a patch with a target.
    #[error("{0}: a patch with a target must be a single document; split it into several entries")]
    SeveralPatches(String),
    /// A JSON patch that does not say what it is for.
    #[error("{0}: a JSON patch needs a target")]
    JsonWithoutTarget(String),
    /// An entry of `patchesJson6902` that is incomplete.
    #[error("patchesJson6902: {0}")]
    Json6902(&'static str),
    /// A patch for a resource that is not there.
    #[error("no resource matches the patch for {id}; check apiVersion, kind, name and namespace, or use a target")]
    PatchUnmatched {
        /// The id in the patch.
        id: String,
    },
    /// Several resources for one patch or merge.
    #[error("several resources match {id}; use a target, or give them different names")]
    PatchAmbiguous {
        /// The id looked for.
        id: String,
    },
    /// A patch whose shape does not fit.
    #[error("{id}: {source}")]
    Merge {
        /// The resource.
        id: String,
        /// The cause.
        source: MergeError,
    },
    /// A JSON patch that cannot be applied.
    #[error("{id}: {source}")]
    JsonPatch {
        /// The resource.
        id: String,
        /// The cause.
        source: JsonPatchError,
    },
    /// A patch that leaves no mapping.
    #[error("{id}: the patch leaves something that is no object")]
    NoMapping {
        /// The resource.
        id: String,
    },
    /// A generator entry that cannot be carried out.
    #[error("{field} {name:?}: {problem}")]
    Generator {
        /// Which list.
        field: &'static str,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Behavior merge or replace without an object.
    #[error("{id} does not exist, so nothing can be merged into or replaced; use behavior: create")]
    NothingToMerge {
        /// The id.
        id: String,
    },
    /// Behavior create on an existing object.
    #[error("{id} exists already; use behavior: merge or replace")]
    GeneratedTwice {
        /// The id.
        id: String,
    },
    /// A replacement that cannot be carried out.
    #[error("replacement {index}: {problem}")]
    Replacement {
        /// Index, from 1.
        index: usize,
        /// What is wrong.
        problem: String,
    },
    /// A file of replacements, configurations or the like that cannot be read.
    #[error("{file}: {problem}")]
    Content {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A var that cannot be resolved.
    #[error("var {name:?}: {problem}")]
    Var {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A plugin that cannot be run.
    #[error("{field}: {kind} {name:?}: {problem}")]
    Plugin {
        /// The field that lists it.
        field: &'static str,
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Sort options that contradict each other.
    #[error("sortOptions: {0}")]
    Sort(&'static str),
    /// An OpenAPI field that cannot be used.
    #[error("openapi: {0}")]
    OpenApi(String),
    /// A bound that a build may not pass.
    #[error("the build needs more than {limit} {what}")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A field whose value cannot be read.
    #[error("cannot read the kustomization: {0}")]
    Decode(String),
    /// A field this version cannot process.
    #[error("field {0:?} is not supported by this version")]
    Unsupported(&'static str),
}

/// What keeps a document from being an object.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ObjectProblem {
    /// A list or scalar.
    #[error("not a Kubernetes object but {0}")]
    NotAMapping(&'static str),
    /// None of apiVersion, kind and metadata.
    #[error("not a Kubernetes object: apiVersion, kind and metadata are missing")]
    NoMetadata,
    /// No kind.
    #[error("kind is missing")]
    NoKind,
    /// No name.
    #[error("{kind}: metadata.name is missing (generateName cannot be used)")]
    NoName {
        /// Its kind.
        kind: String,
    },
    /// Items that are no list.
    #[error("{kind}: items must be a list")]
    Items {
        /// Its kind.
        kind: String,
    },
}

impl Problem {
    /// A field problem of a resource.
    pub(crate) fn field(resource: &Resource, source: FieldError) -> Self {
        Self::Field {
            id: resource.id().to_string(),
            source,
        }
    }

    /// This problem in a kustomization file.
    pub(crate) fn within(self, file: &str) -> Error {
        Error {
            file: file.to_owned(),
            problem: Box::new(self),
        }
    }
}
