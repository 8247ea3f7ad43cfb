//! The real `kustomize`, and comparing what it makes with what we make.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::oracle;
use serde_json::Value;
use stageset::manifest::yaml::{self, Mode};
use stageset::manifest::{FileTree, Order, build_kustomization};

/// Files of a case: path and content.
pub type Files = Vec<(String, Vec<u8>)>;

/// The real program: `STAGESET_KUSTOMIZE`, or `kustomize` on the path.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("STAGESET_KUSTOMIZE") {
        return PathBuf::from(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join("kustomize"))
        .find(|file| file.is_file())
        .unwrap_or_else(|| {
            panic!(
                "there is no kustomize to compare with: run ./hack/test, or set STAGESET_KUSTOMIZE to kustomize 5.8.1"
            )
        })
}

/// Writes the files of a case into a folder.
pub fn write(files: &Files, folder: &Path) {
    for (path, content) in files {
        let target = folder.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, content).unwrap();
    }
}

/// What the real program makes of a folder.
pub fn reference(folder: &Path, reorder: &str) -> Result<Vec<Value>, String> {
    let output = Command::new(binary())
        .args([
            "build",
            "--load-restrictor",
            "LoadRestrictionsNone",
            "--reorder",
            reorder,
        ])
        .arg(folder)
        .output()
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(yaml::load(&output.stdout, "kustomize", Mode::Kubectl).unwrap())
}

/// What the engine makes of the same files.
pub fn ours(files: &Files, path: &str, order: Order) -> Result<Vec<Value>, String> {
    let tree = FileTree::from_files(files.iter().map(|(p, c)| (p, c.clone()))).unwrap();
    build_kustomization(&tree, path, order)
        .map(|built| built.objects)
        .map_err(|e| e.to_string())
}

/// What the library the real program is made of makes of a folder.
pub fn library(folder: &Path, reorder: &str) -> Result<Vec<Value>, String> {
    let text = oracle::build(folder, reorder)?;
    Ok(yaml::load(text.as_bytes(), "kustomize", Mode::Kubectl).unwrap())
}

/// Compares with the real program on one case: true when both build it, false when both refuse it; the message says
/// where they differ.
pub fn compare(files: &Files, path: &str) -> Result<bool, String> {
    compare_with(reference, files, path)
}

/// The same with a chosen way to ask kustomize.
pub fn compare_with(
    kustomize: fn(&Path, &str) -> Result<Vec<Value>, String>,
    files: &Files,
    path: &str,
) -> Result<bool, String> {
    let folder = tempfile::tempdir().unwrap();
    write(files, folder.path());
    for (reorder, order) in [("none", Order::Accumulation), ("legacy", Order::Legacy)] {
        let theirs = kustomize(&folder.path().join(path), reorder);
        let ours = ours(files, path, order);
        match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => {
                if let Some(difference) = difference(&theirs, &ours) {
                    return Err(format!("--reorder {reorder}: {difference}"));
                }
            }
            (Err(_), Err(_)) => return Ok(false),
            (Err(error), Ok(_)) if crashed(&error) => return Ok(false),
            (Err(error), Ok(_)) => return Err(format!("only the reference fails: {error}")),
            (Ok(_), Err(error)) => return Err(format!("only ours fails: {error}")),
        }
    }
    Ok(true)
}

/// A crash of the reference is one of the deliberate differences.
fn crashed(error: &str) -> bool {
    error.contains("goroutine ") || error.contains("panic:")
}

fn difference(theirs: &[Value], ours: &[Value]) -> Option<String> {
    if theirs.len() != ours.len() {
        return Some(format!("{} objects instead of {}", ours.len(), theirs.len()));
    }
    theirs
        .iter()
        .zip(ours)
        .enumerate()
        .find_map(|(index, (theirs, ours))| differ(theirs, ours, &format!("object {index}")))
}

fn differ(theirs: &Value, ours: &Value, path: &str) -> Option<String> {
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
            keys.map(|key| (key, a.get(key), b.get(key)))
                .find_map(|(key, x, y)| match (x, y) {
                    (Some(x), Some(y)) => differ(x, y, &format!("{path}.{key}")),
                    (x, y) => Some(format!("{path}.{key}: reference {x:?}, ours {y:?}")),
                })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (x, y))| differ(x, y, &format!("{path}[{i}]"))),
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: reference {a}, ours {b}")),
    }
}
