//! `stagesetctl kustomize` as a user meets it.

use std::path::Path;
use std::process::{Command, Output};

use super::reference::{Files, reference, write};
use stageset::manifest::yaml::{self, Mode};

fn files(entries: &[(&str, &str)]) -> Files {
    entries
        .iter()
        .map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec()))
        .collect()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stagesetctl"))
        .arg("kustomize")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: \"${KEY}\"}\n";
const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n";

#[test]
fn prints_what_the_real_command_prints() {
    let folder = tempfile::tempdir().unwrap();
    let tree = files(&[
        ("app/kustomization.yaml", "resources: [c.yaml, n.yaml]"),
        ("app/c.yaml", CONFIG),
        ("app/n.yaml", NAMESPACE),
    ]);
    write(&tree, folder.path());
    for reorder in ["none", "legacy"] {
        let output = run(folder.path(), &["app", "--reorder", reorder]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let ours = yaml::load(&output.stdout, "ours", Mode::Kubectl).unwrap();
        assert_eq!(ours, reference(&folder.path().join("app"), reorder).unwrap());
    }
    let substituted = run(folder.path(), &["app", "--substitute", "KEY=5"]);
    assert_eq!(
        yaml::load(&substituted.stdout, "ours", Mode::Kubectl).unwrap()[0]["data"]["k"],
        5
    );
    let strict = run(
        folder.path(),
        &["app", "--substitute", "OTHER=5", "--strict-substitute"],
    );
    assert_eq!(strict.status.code(), Some(1));
    assert!(text(&strict.stderr).contains("KEY"), "{}", text(&strict.stderr));
}

#[test]
fn files_stay_inside_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let tree = files(&[
        ("app/kustomization.yaml", "resources: [../base]"),
        ("base/kustomization.yaml", "resources: [c.yaml]"),
        ("base/c.yaml", CONFIG),
    ]);
    write(&tree, folder.path());
    let alone = run(folder.path(), &["app"]);
    assert_eq!(alone.status.code(), Some(1));
    assert!(alone.stdout.is_empty());
    assert!(
        text(&alone.stderr).contains("kustomization.yaml") && text(&alone.stderr).contains("../base"),
        "{}",
        text(&alone.stderr)
    );
    assert!(run(folder.path(), &["app", "--root", "."]).status.success());
    assert_eq!(run(folder.path(), &["app", "--root", "base"]).status.code(), Some(1));
    std::fs::create_dir(folder.path().join(".git")).unwrap();
    assert!(
        run(folder.path(), &["app"]).status.success(),
        "the work tree is the default root"
    );
}

#[test]
fn flux_mode_generates_a_kustomization() {
    let folder = tempfile::tempdir().unwrap();
    write(
        &files(&[("app/c.yaml", CONFIG), ("app/sub/n.yaml", NAMESPACE)]),
        folder.path(),
    );
    assert_eq!(run(folder.path(), &["app"]).status.code(), Some(1));
    let output = run(folder.path(), &["app", "--flux"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(yaml::load(&output.stdout, "ours", Mode::Kubectl).unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn links_are_followed_inside_and_loops_end() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let tree = files(&[
        ("root/app/kustomization.yaml", "resources: [linked/c.yaml]"),
        ("root/real/c.yaml", CONFIG),
        ("outside/c.yaml", CONFIG),
    ]);
    write(&tree, folder.path());
    let root = folder.path().join("root");
    symlink(root.join("real"), root.join("app/linked")).unwrap();
    symlink(&root, root.join("app/loop")).unwrap();
    symlink("self", root.join("self")).unwrap();
    let output = run(&root, &["app", "--root", "."]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::remove_file(root.join("app/linked")).unwrap();
    symlink(folder.path().join("outside"), root.join("app/linked")).unwrap();
    assert_eq!(
        run(&root, &["app", "--root", "."]).status.code(),
        Some(1),
        "a link must not lead out"
    );
}
