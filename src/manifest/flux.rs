//! The root kustomization as Flux's kustomize-controller prepares it: generated where there is none, read
//! leniently and rewritten where there is one, the stage's patches appended.

use super::kustomize::{self, FILE_NAMES, Kustomization, Layer, Problem, Strictness};
use super::tree::{EntryKind, FileTree};
use super::yaml::{self, Loader, Mode};
use super::{BuildOptions, Error};

/// The root layer of a stage's build.
pub(super) fn root(
    tree: &FileTree,
    directory: &str,
    options: &BuildOptions,
    warnings: &mut Vec<String>,
) -> Result<Layer, Error> {
    let mut layer = match kustomize::find_file(tree, directory) {
        Ok((file, text)) => existing(directory, file, text, warnings)?,
        Err(Problem::NoKustomization { .. }) => generated(tree, directory),
        Err(problem) => {
            return Err(kustomize::Error {
                file: directory.to_owned(),
                problem: Box::new(problem),
            }
            .into());
        }
    };
    layer.content.append_patches(&options.patches);
    Ok(layer)
}

/// Decodes the root file leniently. A root without resources, even an empty one, is accepted.
fn existing(directory: &str, file: String, text: &[u8], warnings: &mut Vec<String>) -> Result<Layer, Error> {
    let mut dropped = Vec::new();
    let content = match kustomize::decode(text, &file, Strictness::Lenient, &mut dropped) {
        Ok(content) => content,
        Err(Problem::File(kustomize::FileError::Empty)) => Kustomization::default(),
        Err(problem) => {
            return Err(kustomize::Error {
                file,
                problem: Box::new(problem),
            }
            .into());
        }
    };
    warnings.extend(
        dropped
            .iter()
            .map(|field| format!("{file}: unknown field {field:?} is ignored")),
    );
    Ok(Layer::new(directory, file, content))
}

/// Lists every manifest below the directory; a sub-directory with a kustomization of its own is one entry.
fn generated(tree: &FileTree, directory: &str) -> Layer {
    let mut resources = Vec::new();
    scan(tree, directory, "", &mut resources);
    let content = Kustomization {
        resources,
        ..Kustomization::default()
    };
    let file = if directory.is_empty() {
        FILE_NAMES[0].to_owned()
    } else {
        format!("{directory}/{}", FILE_NAMES[0])
    };
    Layer::new(directory, format!("{file} (generated)"), content)
}

fn scan(tree: &FileTree, root: &str, below: &str, resources: &mut Vec<String>) {
    let join = |a: &str, b: &str| {
        if a.is_empty() { b.to_owned() } else { format!("{a}/{b}") }
    };
    let directory = if below.is_empty() {
        root.to_owned()
    } else {
        join(root, below)
    };
    let names = tree.list(&directory);
    // A JSON file takes its place as if it were named .yaml, unless that file exists.
    let mut entries: Vec<(String, &str, EntryKind)> = names
        .iter()
        .filter_map(|(name, kind)| match (kind, name.strip_suffix(".json")) {
            (EntryKind::File, Some(stem)) => {
                let renamed = format!("{stem}.yaml");
                let taken = names.iter().any(|(other, _)| *other == renamed);
                let wanted = !taken && (below.is_empty() || is_object(tree, &join(&directory, name)));
                wanted.then_some((renamed, name.as_str(), *kind))
            }
            _ => Some((name.clone(), name.as_str(), *kind)),
        })
        .collect();
    entries.sort();
    for (sorted, name, kind) in entries {
        let path = join(below, name);
        match kind {
            EntryKind::File if sorted.ends_with(".yaml") || sorted.ends_with(".yml") => resources.push(path),
            EntryKind::File => {}
            EntryKind::Directory => {
                let full = join(root, &path);
                if FILE_NAMES.iter().any(|file| tree.file(&join(&full, file)).is_some()) {
                    resources.push(path);
                } else {
                    scan(tree, root, &path, resources);
                }
            }
        }
    }
}

/// True for JSON files in sub-directories that are manifests; dashboards and the like are left alone.
fn is_object(tree: &FileTree, path: &str) -> bool {
    let Some(bytes) = tree.file(path) else {
        return false;
    };
    let Ok(text) = yaml::text(bytes, path) else {
        return false;
    };
    let Ok(Some(node)) = Loader::new(Mode::Kustomize).first(text, path, 1) else {
        return false;
    };
    node.as_map()
        .is_some_and(|map| map.contains("apiVersion") && map.contains("kind"))
}
