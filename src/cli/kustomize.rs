//! `stagesetctl kustomize DIR`: what the engine of the controller makes of a folder.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use serde_json::Value;

use crate::manifest::{self, BuildOptions, Built, FileTree, Order};

/// Files looked at below one root.
const MAX_FILES: usize = 1_000_000;
/// Folders one inside the other, links counted.
const MAX_DEPTH: usize = 64;

/// Arguments of the command.
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Folder with the kustomization.
    dir: PathBuf,
    /// Folder that no file may be outside of. Default: the enclosing git work tree, else DIR.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Order of the output: as accumulated (what Flux uses), or by kind (what `kustomize build` prints).
    #[arg(long, value_enum, default_value_t = Reorder::None)]
    reorder: Reorder,
    /// Build as the controller does: generate a missing kustomization, read the root leniently.
    #[arg(long)]
    flux: bool,
    /// Substitute ${KEY} by VALUE in the output; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    substitute: Vec<(String, String)>,
    /// Fail on variables that are not defined.
    #[arg(long)]
    strict_substitute: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reorder {
    /// As accumulated.
    None,
    /// By kind.
    Legacy,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Builds and prints.
pub(super) fn run(args: &Args) -> Result<(), String> {
    let dir = canonical(&args.dir)?;
    let root = match &args.root {
        Some(root) => canonical(root)?,
        None => work_tree(&dir).unwrap_or_else(|| dir.clone()),
    };
    let path = relative(&root, &dir).ok_or_else(|| {
        format!(
            "{} is not inside the root {}; choose another --root",
            dir.display(),
            root.display()
        )
    })?;
    let tree = read_tree(&root)?;
    let (text, warnings) = if args.flux || !args.substitute.is_empty() || args.strict_substitute {
        all_at_once(args, &tree, &path)?
    } else {
        let mut pending = manifest::build_one_by_one(&tree, &path, order(args)).map_err(|e| e.to_string())?;
        (written(pending.by_ref())?, pending.warnings)
    };
    for warning in warnings {
        eprintln!("Warning: {warning}");
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("cannot write the output: {e}"))
}

fn order(args: &Args) -> Order {
    match args.reorder {
        Reorder::Legacy => Order::Legacy,
        Reorder::None => Order::Accumulation,
    }
}

/// The text of a build that needs all its objects together, and its warnings.
fn all_at_once(args: &Args, tree: &FileTree, path: &str) -> Result<(String, Vec<String>), String> {
    let built = if args.flux {
        manifest::build_with_warnings(tree, path, &BuildOptions::default())
    } else {
        manifest::build_kustomization(tree, path, order(args))
    };
    let Built { mut objects, warnings } = built.map_err(|e| e.to_string())?;
    if args.flux && args.reorder == Reorder::Legacy {
        manifest::sort_legacy(&mut objects);
    }
    if !args.substitute.is_empty() || args.strict_substitute {
        let variables: BTreeMap<String, String> = args.substitute.iter().cloned().collect();
        objects = manifest::substitute::substitute_objects(objects, &variables, args.strict_substitute)
            .map_err(|e| e.to_string())?;
    }
    Ok((written(objects.into_iter().map(Ok))?, warnings))
}

fn written(objects: impl Iterator<Item = Result<Value, manifest::Error>>) -> Result<String, String> {
    let mut text = String::new();
    for object in objects {
        let object = object.map_err(|e| e.to_string())?;
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&manifest::yaml::to_string(&object).map_err(|e| e.to_string())?);
    }
    Ok(text)
}

fn canonical(path: &Path) -> Result<PathBuf, String> {
    let found = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    if found.is_dir() {
        Ok(found)
    } else {
        Err(format!("{} is not a directory", path.display()))
    }
}

/// The nearest folder above that holds `.git`.
fn work_tree(dir: &Path) -> Option<PathBuf> {
    dir.ancestors()
        .find(|folder| folder.join(".git").exists())
        .map(Path::to_owned)
}

fn relative(root: &Path, path: &Path) -> Option<String> {
    let rest = path.strip_prefix(root).ok()?;
    let parts: Option<Vec<&str>> = rest
        .components()
        .map(|component| match component {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    parts.map(|parts| parts.join("/"))
}

/// Every file below the root, read when it is needed. Links are followed as long as they stay inside.
fn read_tree(root: &Path) -> Result<FileTree, String> {
    let mut paths = Vec::new();
    let mut pending = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            let kind = if kind.is_symlink() {
                followed(root, &path)
            } else {
                Some(kind)
            };
            match kind {
                Some(kind) if kind.is_file() => paths.extend(relative(root, &path)),
                Some(kind) if kind.is_dir() && entry.file_name() != ".git" && depth < MAX_DEPTH => {
                    pending.push((path, depth + 1));
                }
                _ => {}
            }
            if paths.len() > MAX_FILES {
                return Err(format!(
                    "more than {MAX_FILES} files below {}; choose a closer --root",
                    root.display()
                ));
            }
        }
    }
    let base = root.to_owned();
    let source = move |path: &str| std::fs::read(base.join(path)).ok().map(Bytes::from);
    FileTree::deferred(paths, Arc::new(source)).map_err(|e| e.to_string())
}

/// What a link leads to; nothing when that is outside of the root, or a folder that contains the link.
fn followed(root: &Path, link: &Path) -> Option<std::fs::FileType> {
    let target = link.canonicalize().ok()?;
    let kind = target.metadata().ok()?.file_type();
    let parent = link.parent()?.canonicalize().ok()?;
    (target.starts_with(root) && !(kind.is_dir() && parent.starts_with(&target))).then_some(kind)
}
