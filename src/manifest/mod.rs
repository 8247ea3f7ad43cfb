//! Bytes of an artifact to Kubernetes objects. No I/O, no async, no cluster.
//!
//! [`build`] is what a stage does with its artifact: find the kustomization or generate one as Flux does, run
//! the kustomize engine inside the root of the [`FileTree`], and hand on plain JSON objects.

mod flux;
pub mod kustomize;
pub mod node;
pub mod objects;
pub mod substitute;
pub mod tree;
pub mod yaml;

use serde_json::Value;

pub use tree::{FileTree, PathError};

/// A patch of a stage: inline text, strategic merge or JSON 6902, chosen by content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StagePatch {
    /// The patch itself.
    pub patch: String,
    /// Which objects it is for; absent only for strategic merge patches, which name their object.
    pub target: Option<PatchTarget>,
}

/// Selects objects; empty parts match everything. Group, version, kind, name and namespace are anchored regular
/// expressions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PatchTarget {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// `metadata.name`, original or current.
    pub name: String,
    /// Effective namespace, original or current.
    pub namespace: String,
    /// Kubernetes label selector.
    pub label_selector: String,
    /// The same grammar, for annotations.
    pub annotation_selector: String,
}

/// What a stage adds to its artifact's own kustomization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Appended to the root's own `patches`, in order.
    pub patches: Vec<StagePatch>,
}

/// Order of the objects where the root does not set `sortOptions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As accumulated, depth first; what Flux uses.
    #[default]
    Accumulation,
    /// By kind, the default of the kustomize command.
    Legacy,
}

/// Why an artifact does not become objects.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The build path is no directory of the artifact.
    #[error("path {path:?} is not a directory of the artifact; check spec.stages[].path against the source's content")]
    PathNotFound {
        /// The path, cleaned.
        path: String,
    },
    /// The build path leads out of the artifact.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No manifest file at or below the build path. Never read as "prune everything".
    #[error(
        "no .yaml, .yml, .json or Kustomization file at or below {path:?} in the artifact; an empty stage is refused, since it would delete everything the stage owns"
    )]
    Empty {
        /// The path, cleaned.
        path: String,
    },
    /// A document cannot be read.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
    /// The kustomize build failed.
    #[error(transparent)]
    Kustomize(#[from] kustomize::Error),
    /// A result is no complete object.
    #[error(transparent)]
    Object(#[from] objects::ObjectError),
}

/// Objects and what is worth telling about how they came to be.
#[derive(Debug, Clone, Default)]
pub struct Built {
    /// The objects in build order.
    pub objects: Vec<Value>,
    /// Each one sentence, naming the file or object.
    pub warnings: Vec<String>,
}

/// The objects of the directory `path` of an artifact, in build order.
///
/// With a kustomization file there, that is built (read leniently, the stage's patches appended); without one,
/// all manifests below it are taken, as Flux's kustomize-controller does.
///
/// # Errors
/// [`Error`]; nothing is returned unless everything could be built. [`Error::PathNotFound`] and [`Error::Empty`]
/// are variants of their own so that callers can give them reasons of their own.
pub fn build(tree: &FileTree, path: &str, options: &BuildOptions) -> Result<Vec<Value>, Error> {
    Ok(build_with_warnings(tree, path, options)?.objects)
}

/// Like [`build`], with the warnings the build gave.
///
/// # Errors
/// As [`build`].
pub fn build_with_warnings(tree: &FileTree, path: &str, options: &BuildOptions) -> Result<Built, Error> {
    let directory = tree::clean_build_path(path)?;
    if !tree.is_dir(&directory) {
        return Err(Error::PathNotFound { path: directory });
    }
    if !tree.below(&directory).any(is_manifest_name) {
        return Err(Error::Empty { path: directory });
    }
    let mut warnings = Vec::new();
    let root = flux::root(tree, &directory, options, &mut warnings)?;
    let outcome = kustomize::Engine::new(tree, true).build(&root, false)?;
    let mut pending = Pending::new(outcome, &root);
    warnings.append(&mut pending.warnings);
    let objects = pending.all()?;
    objects::check_unique(&objects)?;
    Ok(Built { objects, warnings })
}

/// The objects plain `kustomize build` makes of a directory: no generated kustomization, no leniency.
///
/// # Errors
/// [`Error`].
pub fn build_kustomization(tree: &FileTree, path: &str, order: Order) -> Result<Built, Error> {
    let mut pending = build_one_by_one(tree, path, order)?;
    let warnings = std::mem::take(&mut pending.warnings);
    let objects = pending.all()?;
    Ok(Built { objects, warnings })
}

/// Like [`build_kustomization`], but the objects are made one at a time: what the engine works on takes about half the
/// memory of the values.
///
/// # Errors
/// As [`build_kustomization`].
pub fn build_one_by_one(tree: &FileTree, path: &str, order: Order) -> Result<Pending, Error> {
    let directory = tree::clean_build_path(path)?;
    if !tree.is_dir(&directory) {
        return Err(Error::PathNotFound { path: directory });
    }
    let mut engine = kustomize::Engine::new(tree, false);
    let root = engine.load(&directory)?;
    let outcome = engine.build(&root, order == Order::Legacy)?;
    Ok(Pending::new(outcome, &root))
}

/// Sorts objects by kind, as the kustomize command does by default.
pub fn sort_legacy(objects: &mut [Value]) {
    objects.sort_by_cached_key(|object| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        kustomize::legacy_key(
            text("/apiVersion"),
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name"),
        )
    });
}

/// The objects of a build, in build order, each made when it is asked for.
pub struct Pending {
    roots: std::vec::IntoIter<node::Map>,
    file: String,
    /// As in [`Built`].
    pub warnings: Vec<String>,
}

impl Pending {
    fn new(outcome: kustomize::Outcome, root: &kustomize::Layer) -> Self {
        // Only the objects are needed from here on: their history is given back before the values are made.
        let mut roots = Vec::with_capacity(outcome.resources.len());
        roots.extend(outcome.resources.into_iter().map(|resource| resource.root));
        Self {
            roots: roots.into_iter(),
            file: root.file.clone(),
            warnings: outcome.warnings,
        }
    }

    fn all(self) -> Result<Vec<Value>, Error> {
        // Collecting results would not know how many there are, and leave up to half of the memory unused.
        let mut objects = Vec::with_capacity(self.roots.len());
        for object in self {
            objects.push(object?);
        }
        Ok(objects)
    }
}

impl Iterator for Pending {
    type Item = Result<Value, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let value = kustomize::value(self.roots.next()?);
        Some(value.map_err(|problem| {
            let problem = Box::new(problem);
            kustomize::Error {
                file: self.file.clone(),
                problem,
            }
            .into()
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.roots.size_hint()
    }
}

fn is_manifest_name(path: &str) -> bool {
    // The one spelling of a kustomization file that has no extension.
    let alone = path.rsplit('/').next() == Some("Kustomization");
    alone
        || path.rsplit_once('.').is_some_and(|(_, extension)| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension.eq_ignore_ascii_case(known))
        })
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
