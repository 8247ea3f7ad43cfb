use serde_json::json;

use super::*;

fn tree(files: &[(&str, &str)]) -> FileTree {
    FileTree::from_files(files.iter().map(|(p, c)| (*p, (*c).to_owned()))).unwrap()
}

fn names(files: &[(&str, &str)], path: &str) -> Result<Vec<String>, Error> {
    Ok(build(&tree(files), path, &BuildOptions::default())?
        .iter()
        .map(objects::describe)
        .collect())
}

const A: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n";
const B: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n";
const C_JSON: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}"#;

/// Rules: run 14.2.2
#[test]
fn without_kustomization_every_manifest_is_taken() {
    let files = [
        ("app/b.yaml", B),
        ("app/a/x.yml", A),
        ("app/c.json", C_JSON),
        ("app/a/dashboard.json", r#"{"panels": []}"#),
        ("app/readme.md", "# no"),
        ("other/d.yaml", "not: an object"),
    ];
    assert_eq!(
        names(&files, "./app/").unwrap(),
        ["v1 ConfigMap a", "v1 ConfigMap b", "v1 ConfigMap c"]
    );
}

/// Rules: run 14.2.1
#[test]
fn a_directory_with_a_kustomization_is_one_entry() {
    let files = [
        ("a.yaml", A),
        ("sub/kustomization.yaml", "namePrefix: x-\nresources: [b.yaml]\n"),
        ("sub/b.yaml", B),
        ("sub/values.yaml", "not: an object"),
    ];
    assert_eq!(names(&files, "").unwrap(), ["v1 ConfigMap a", "v1 ConfigMap x-b"]);
}

#[test]
fn missing_and_empty_paths_are_told_apart() {
    let files = [("a/readme.md", "x"), ("b/x.YAML", "")];
    assert!(matches!(names(&files, "c"), Err(Error::PathNotFound { path }) if path == "c"));
    assert!(matches!(names(&files, "a/readme.md"), Err(Error::PathNotFound { .. })));
    assert!(matches!(names(&files, "a"), Err(Error::Empty { path }) if path == "a"));
    assert!(matches!(names(&files, "../a"), Err(Error::Path(_))));
    assert_eq!(names(&files, "b").unwrap(), Vec::<String>::new());
}

/// Rules: run 14.2.2
#[test]
fn a_file_that_is_no_manifest_fails_the_build_by_name() {
    let message = names(&[("app/values.yaml", "replicas: 2\n"), ("app/a.yaml", A)], "app")
        .unwrap_err()
        .to_string();
    assert!(message.contains("app/values.yaml"), "{message}");
}

#[test]
fn the_root_is_read_leniently_with_a_warning() {
    let files = [
        (
            "kustomization.yaml",
            "nmespace: x\nnamePrefix: 5\nresources: [a.yaml]\n",
        ),
        ("a.yaml", A),
    ];
    let built = build_with_warnings(&tree(&files), "", &BuildOptions::default()).unwrap();
    assert_eq!(built.objects[0]["metadata"]["name"], json!("5a"));
    assert_eq!(built.warnings.len(), 1);
    assert!(built.warnings[0].contains("nmespace"));
    assert!(build_kustomization(&tree(&files), "", Order::Accumulation).is_err());
    assert_eq!(names(&[("kustomization.yaml", "")], "").unwrap(), Vec::<String>::new());
}

#[test]
fn layers_apply_namespace_labels_and_prefixes() {
    let files = [
        (
            "base/kustomization.yaml",
            "resources: [a.yaml, svc.yaml]\nlabels:\n- pairs: {app: x}\n  includeSelectors: true\n",
        ),
        ("base/a.yaml", A),
        ("base/svc.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"),
        (
            "prod/kustomization.yaml",
            "resources: [../base]\nnamespace: prod\nnamePrefix: p-\n",
        ),
    ];
    let built = build(&tree(&files), "prod", &BuildOptions::default()).unwrap();
    assert_eq!(
        built,
        [
            json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"p-a","namespace":"prod","labels":{"app":"x"}}}),
            json!({"apiVersion":"v1","kind":"Service","metadata":{"name":"p-s","namespace":"prod","labels":{"app":"x"}},"spec":{"selector":{"app":"x"}}}),
        ]
    );
}

/// Rules: run 14.4
#[test]
fn cycles_escapes_and_remote_bases_are_refused() {
    for resources in [
        ".",
        "..",
        "../..",
        "/etc/passwd",
        "https://example.com/x.yaml",
        "github.com/a/b",
        "missing.yaml",
    ] {
        let text = format!("resources: [\"{resources}\"]\n");
        let error = names(&[("x/y/kustomization.yaml", &text), ("x/y/a.yaml", A)], "x/y")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("x/y/kustomization.yaml") && error.contains(resources),
            "{error}"
        );
    }
}

fn message(kustomization: &str, resource: &str) -> String {
    match build(
        &tree(&[("kustomization.yaml", kustomization), ("a.yaml", resource)]),
        "",
        &BuildOptions::default(),
    ) {
        Ok(objects) => panic!("built {objects:?}"),
        Err(error) => error.to_string(),
    }
}

/// Rules: run 14.4
#[test]
fn what_crashes_or_runs_programs_elsewhere_is_an_error_that_names_it() {
    for (kustomization, named) in [
        ("resources: [a.yaml]\nimages: [{name: '(', newTag: x}]", "("),
        ("resources: [a.yaml]\nhelmCharts: [{name: x}]", "helmCharts"),
        (
            "resources: [a.yaml]\ntransformers: ['{apiVersion: example.com/v1, kind: Exec, metadata: {name: e}}']",
            "Exec",
        ),
        (
            "resources: [a.yaml, 'git::https://example.com/x']",
            "git::https://example.com/x",
        ),
        (
            "resources: [a.yaml]\npatches: [{path: 'https://example.com/p.yaml'}]",
            "https://example.com/p.yaml",
        ),
    ] {
        let message = message(kustomization, A);
        assert!(
            message.contains(named) && message.contains("kustomization.yaml"),
            "{message}"
        );
    }
}

#[test]
fn encrypted_types_do_not_crash_the_build() {
    let encrypted = "apiVersion: ENC[AES256_GCM,data:a]\nkind: ENC[AES256_GCM,data:b]\nmetadata: {name: x}\n";
    let kustomization = "namespace: n\nnamePrefix: p-\nresources: [a.yaml]";
    assert_eq!(
        names(&[("kustomization.yaml", kustomization), ("a.yaml", encrypted)], "")
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn lost_list_elements_are_warned_about() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, env: [{name: A, value: x}, {name: A, value: y}]}]}\n";
    let kustomization =
        "resources: [a.yaml]\npatches: [{patch: '{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {l: m}}}'}]";
    let files = tree(&[("kustomization.yaml", kustomization), ("a.yaml", pod)]);
    let built = build_with_warnings(&files, "", &BuildOptions::default()).unwrap();
    assert_eq!(
        built.objects[0]["spec"]["containers"][0]["env"],
        json!([{"name": "A", "value": "y"}])
    );
    assert!(
        built.warnings.iter().any(|w| w.contains("env") && w.contains("Pod")),
        "{:?}",
        built.warnings
    );
}

/// The warnings of patching a service with these ports.
fn port_warnings(ports: &str, patch: &str) -> Vec<String> {
    let service = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{ports: [{ports}]}}\n");
    let kustomization = format!(
        "resources: [a.yaml]\npatches: [{{patch: '{{apiVersion: v1, kind: Service, metadata: {{name: a}}, spec: {{ports: [{patch}]}}}}'}}]"
    );
    let files = tree(&[("kustomization.yaml", &kustomization), ("a.yaml", &service)]);
    build_with_warnings(&files, "", &BuildOptions::default())
        .unwrap()
        .warnings
}

#[test]
fn patches_that_miss_their_list_element_are_warned_about() {
    for (ports, patch) in [
        ("{port: 80, protocol: TCP}", "{port: 80, name: x}"),
        ("{port: 80}", "{port: 80, protocol: TCP, name: x}"),
        ("{port: 80, protocol: TCP}, {port: 81}", "{port: 80, $patch: delete}"),
        ("{port: 80}", "{port: 81, name: x}, {port: 81, name: y}"),
    ] {
        let warnings = port_warnings(ports, patch);
        assert!(
            warnings
                .iter()
                .any(|w| w.contains("spec.ports") && w.contains("no effect")),
            "{ports} patched with {patch}: {warnings:?}"
        );
    }
    for (ports, patch) in [
        ("{port: 80, protocol: TCP}", "{port: 80, protocol: TCP, name: x}"),
        ("{port: 80}", "{port: 80, name: x}, {port: 81, name: y}"),
        ("{port: 80, protocol: TCP}", "{port: 80, protocol: TCP, $patch: delete}"),
        ("{port: 80, protocol: TCP}", "{port: 82, protocol: TCP, $patch: delete}"),
        ("{port: 80}", "{$patch: replace}, {port: 81}"),
    ] {
        let warnings = port_warnings(ports, patch);
        assert!(warnings.is_empty(), "{ports} patched with {patch}: {warnings:?}");
    }
}

/// Rules: run 14.3
#[test]
fn stage_patches_run_after_the_roots_own() {
    let files = tree(&[
        (
            "kustomization.yaml",
            "resources: [a.yaml]\nnamePrefix: p-\npatches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: own}}'}]",
        ),
        ("a.yaml", A),
    ]);
    let target = Some(PatchTarget {
        kind: "Config.*".to_owned(),
        ..PatchTarget::default()
    });
    let patch = "- op: replace\n  path: /data/k\n  value: stage\n".to_owned();
    let options = BuildOptions {
        patches: vec![StagePatch { patch, target }],
    };
    let built = build(&files, "", &options).unwrap();
    assert_eq!(
        (&built[0]["data"]["k"], &built[0]["metadata"]["name"]),
        (&json!("stage"), &json!("p-a"))
    );
}
