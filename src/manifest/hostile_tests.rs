//! Trees made to hang, to crash or to eat memory end soon, with an error.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::*;

/// The promise is one second for an optimised build; unoptimised test builds get ten times that.
const PATIENCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });

fn refused(what: &str, files: Vec<(String, Vec<u8>)>, path: &str) -> String {
    refused_within(PATIENCE, what, files, path)
}

fn refused_within(patience: Duration, what: &str, files: Vec<(String, Vec<u8>)>, path: &str) -> String {
    let tree = FileTree::from_files(files).unwrap();
    let begin = Instant::now();
    let result = build(&tree, path, &BuildOptions::default());
    let taken = begin.elapsed();
    println!("{what}: {taken:?}");
    assert!(taken < patience, "{what} took {taken:?}");
    result.expect_err(what).to_string()
}

fn file(path: &str, content: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (path.to_owned(), content.into())
}

const OBJECT: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

#[test]
fn alias_bombs() {
    let mut bomb = format!("{OBJECT}data:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..20 {
        writeln!(bomb, "  a{i}: &a{i} [{}]", vec![format!("*a{}", i - 1); 10].join(", ")).unwrap();
    }
    let message = refused("an alias bomb", vec![file("a.yaml", bomb)], "");
    assert!(message.contains("a.yaml") && message.contains("aliases"), "{message}");
    let text = format!(
        "{OBJECT}data:\n  a: &a {}\n  b: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 1024].join(", ")
    );
    let message = refused("aliases that expand to a gigabyte", vec![file("a.yaml", text)], "");
    assert!(message.contains("bytes"), "{message}");
}

#[test]
fn deep_nesting() {
    for text in [
        "[".repeat(10_000),
        "a: {".repeat(10_000),
        (0..10_000).map(|i| format!("{}a:\n", " ".repeat(i % 900))).collect(),
    ] {
        refused("deep nesting", vec![file("a.yaml", text.clone())], "");
        refused(
            "deep nesting in the kustomization",
            vec![file("kustomization.yaml", text)],
            "",
        );
    }
}

#[test]
fn cycles_and_exploding_layers() {
    let cyclic = vec![
        file("a/kustomization.yaml", "resources: [../b]"),
        file("b/kustomization.yaml", "resources: [../a]"),
    ];
    assert!(refused("a cycle", cyclic, "a").contains("cycle"));
    // Every layer takes the one below twice, under different names.
    let mut files = vec![
        file("0/kustomization.yaml", "resources: [a.yaml]"),
        file("0/a.yaml", OBJECT),
    ];
    for i in 1..40 {
        for side in ["l", "r"] {
            let text = format!("namePrefix: {side}-\nresources: [../{}]", i - 1);
            files.push(file(&format!("{i}{side}/kustomization.yaml"), text));
        }
        files.push(file(
            &format!("{i}/kustomization.yaml"),
            format!("resources: [../{i}l, ../{i}r]"),
        ));
    }
    assert!(refused("layers that double", files, "39").contains("layers"));
    let deep = (0..500)
        .map(|i| file(&format!("{i}/kustomization.yaml"), format!("resources: [../{}]", i + 1)))
        .chain([file("500/kustomization.yaml", "namespace: x")])
        .collect();
    assert!(refused("a long chain", deep, "0").contains("inside one another"));
}

#[test]
fn large_patches_and_lists() {
    let patch = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{a: {}}}\n",
        "x".repeat(64 << 20)
    );
    let files = vec![
        file(
            "kustomization.yaml",
            "resources: [a.yaml]\npatches: [{path: patch.yaml}]",
        ),
        file("a.yaml", OBJECT),
        file("patch.yaml", patch),
    ];
    assert!(refused("a patch of 64 MiB", files, "").contains("bytes"));
    let mut pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n".to_owned();
    (0..100_000).for_each(|i| writeln!(pod, "  - name: c{i}").unwrap());
    let patch = "patches: [{patch: '{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {a: b}}}'}]";
    let files = vec![
        file("kustomization.yaml", format!("resources: [a.yaml]\n{patch}")),
        file("a.yaml", pod),
    ];
    assert!(refused("a list too long to merge", files, "").contains("spec.containers"));
}

/// Every place that takes an expression.
const EXPRESSIONS: [&str; 5] = [
    "patches: [{patch: '- {op: remove, path: /data}', target: {name: 'EXPRESSION'}}]",
    "patches: [{patch: '- {op: remove, path: /data}', target: {namespace: 'EXPRESSION', kind: 'EXPRESSION'}}]",
    "images: [{name: 'EXPRESSION', newTag: x}]",
    "replacements: [{source: {kind: ConfigMap}, targets: [{select: {name: 'EXPRESSION'}, fieldPaths: [data.x], options: {create: true}}]}]",
    "replacements: [{source: {kind: ConfigMap}, targets: [{select: {kind: ConfigMap}, fieldPaths: ['list.[name=EXPRESSION].v']}]}]",
];

#[test]
fn expressions() {
    let long = "a".repeat(50_000);
    let object = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {long}}}\nlist: [{{name: {long}, v: x}}]\nspec: {{containers: [{{image: {long}}}]}}\n"
    );
    for expression in [
        "(a*)*b",
        "(a|aa)+$",
        "(a{1000}){1000}",
        "((((((((((x{50}){50}){50}){50}){50})))))",
        "(?i)(\\p{L}{500}){500}",
        "\\1",
    ] {
        for place in EXPRESSIONS {
            let kustomization = format!("resources: [a.yaml]\n{}", place.replace("EXPRESSION", expression));
            let files = [("kustomization.yaml", kustomization), ("a.yaml", object.clone())];
            let tree = FileTree::from_files(files).unwrap();
            let begin = Instant::now();
            let _ = build(&tree, "", &BuildOptions::default());
            let taken = begin.elapsed();
            println!("{expression} in {place}: {taken:?}");
            assert!(taken < PATIENCE, "{expression} in {place} took {taken:?}");
        }
    }
}

#[test]
fn json_patches_that_double() {
    let copies: String = (0..60)
        .map(|i| format!("- {{op: copy, from: /data, path: /data/a{i}}}\\n"))
        .collect();
    let kustomization = format!("resources: [a.yaml]\npatches: [{{patch: \"{copies}\", target: {{kind: ConfigMap}}}}]");
    let files = vec![
        file("kustomization.yaml", kustomization),
        file("a.yaml", format!("{OBJECT}data: {{x: {{}}}}\n")),
    ];
    assert!(refused("a patch that doubles", files, "").contains("copies"));
}

/// What is small in an artifact and large in memory: each of these stands for hundreds of millions of values, or for
/// gigabytes of text.
///
/// Rules: decisions 7 memory
#[test]
fn little_that_stands_for_much() {
    let many = |count: usize, lines: &str| -> String {
        let map = |at| {
            format!(
                "{}{lines}---\n",
                OBJECT.replace("{name: a}", &format!("{{name: a{at}}}"))
            )
        };
        (0..count).map(map).collect()
    };
    let list = vec!["a"; 100_000].join(",");
    let text = "x".repeat(1 << 20);
    let with = |kustomization: String, objects: String| {
        vec![file("kustomization.yaml", kustomization), file("a.yaml", objects)]
    };
    let patch = |content: String| {
        format!("resources: [a.yaml]\npatches: [{{target: {{kind: ConfigMap}}, patch: \"{content}\"}}]\n")
    };
    let merge = patch(format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: x}}, list: [{list}]}}"
    ));
    let add = patch(format!("- {{op: add, path: /list, value: [{list}]}}"));
    let long = patch(format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: x}}, text: {text}}}"
    ));
    let labels: String = (0..2000).map(|at| format!("l{at}: x, ")).collect();
    let labels = format!("resources: [a.yaml]\ncommonAnnotations: {{{labels}}}\n");
    let fields: Vec<String> = (0..1000).map(|at| format!("data.x{at}")).collect();
    let copied = format!(
        "resources: [a.yaml]\nreplacements: [{{source: {{kind: ConfigMap, name: a0, fieldPath: data}}, targets: [{{select: {{kind: \
         ConfigMap}}, fieldPaths: [{}], options: {{create: true}}}}]}}]\n",
        fields.join(", ")
    );
    let vars = "resources: [a.yaml]\nvars: [{name: A, objref: {apiVersion: v1, kind: ConfigMap, name: a0}, fieldref: {fieldpath: \
                data.a}}]\nconfigurations: [b.yaml]\n";
    let mut referring = with(
        vars.to_owned(),
        many(
            1,
            &format!("data: {{a: {text}}}\nlist: [\"{}\"]\n", "$(A)".repeat(1000)),
        ),
    );
    referring.push(file("b.yaml", "varReference: [{path: list, kind: ConfigMap}]"));
    for (what, files) in [
        ("a merged patch for many", with(merge, many(1000, ""))),
        ("a JSON patch for many", with(add, many(1000, ""))),
        ("a long text for many", with(long, many(3000, ""))),
        ("annotations for many", with(labels, many(3000, ""))),
        (
            "copies for many",
            with(copied, many(1000, "data: {a: 1, b: 2, c: 3}\n")),
        ),
        ("a var in many places", referring),
    ] {
        // As much as is allowed is made first.
        let message = refused_within(PATIENCE * 6, what, files, "");
        let said: String = message
            .chars()
            .rev()
            .take(200)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        assert!(message.contains("4000000 values"), "{what}: {said}");
    }
}

#[test]
fn replacements_that_never_match_what_they_create() {
    let kustomization = "resources: [a.yaml]\nreplacements:\n- source: {kind: ConfigMap}\n  targets:\n  - select: {kind: ConfigMap}\n    \
                         fieldPaths: ['list.[name=^x$].v']\n    options: {create: true}\n";
    let files = vec![
        file("kustomization.yaml", kustomization),
        file("a.yaml", format!("{OBJECT}list: []\n")),
    ];
    let tree = FileTree::from_files(files).unwrap();
    let error = build(&tree, "", &BuildOptions::default()).unwrap_err().to_string();
    assert!(error.contains("does not match"), "{error}");
}
