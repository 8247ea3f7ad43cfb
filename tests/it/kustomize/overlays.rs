//! Random overlays: everything that is listed in a kustomization.

use std::fmt::Write as _;

use super::generator::{Choices, Known, SCALARS, containers, entries, header, service};
use super::reference::Files;

pub fn overlay(c: &mut Choices<'_>, folder: &str, below: &str, known: &[Known], files: &mut Files) {
    let mut k = format!("resources:\n- {below}\n");
    names(c, &mut k);
    if c.chance(2) {
        generators(c, &mut k, true);
    }
    if c.chance(2) {
        labels(c, &mut k);
    }
    if c.chance(1) {
        writeln!(
            k,
            "images:\n- name: {}\n  {}",
            c.pick(&["nginx", "host:5000/a/b", "n.*"]),
            c.pick(&["newTag: \"9\"", "newName: other", "digest: sha256:99", "tagSuffix: -x"])
        )
        .unwrap();
    }
    if c.chance(2) {
        let scaled = known.iter().find(|r| matches!(r.kind, "Deployment" | "StatefulSet"));
        let name = scaled.map_or("web", |resource| resource.name);
        writeln!(k, "replicas:\n- name: {name}\n  count: {}", c.below(9)).unwrap();
    }
    if c.chance(5) {
        patches(c, folder, known, &mut k, files);
    }
    if c.chance(2) {
        replacement(c, known, &mut k);
    }
    if c.chance(1) {
        component(c, folder, known, &mut k, files);
    }
    if c.chance(1) {
        vars(c, known, &mut k);
    }
    files.push((format!("{folder}/kustomization.yaml"), k.into_bytes()));
}

fn names(c: &mut Choices<'_>, k: &mut String) {
    if c.chance(3) {
        writeln!(k, "namespace: {}", c.pick(&["prod", "other", "default"])).unwrap();
    }
    if c.chance(3) {
        writeln!(k, "namePrefix: {}", c.pick(&["p-", "q-"])).unwrap();
    }
    if c.chance(1) {
        writeln!(k, "nameSuffix: -s").unwrap();
    }
    if c.chance(1) {
        writeln!(k, "commonAnnotations:\n  note: \"{}\"", c.below(3)).unwrap();
    }
    if c.chance(1) {
        writeln!(k, "sortOptions:\n  order: {}", c.pick(&["fifo", "legacy"])).unwrap();
    }
    if c.chance(1) {
        writeln!(
            k,
            "buildMetadata: [{}]",
            c.pick(&["originAnnotations", "transformerAnnotations", "managedByLabel"])
        )
        .unwrap();
    }
}

fn labels(c: &mut Choices<'_>, k: &mut String) {
    if c.chance(2) {
        writeln!(k, "commonLabels:\n  common: \"yes\"").unwrap();
    }
    writeln!(k, "labels:\n- pairs:\n    team: \"a\"").unwrap();
    if c.chance(3) {
        writeln!(k, "  includeSelectors: true").unwrap();
    }
    if c.chance(3) {
        writeln!(k, "  includeTemplates: true").unwrap();
    }
}

pub fn generators(c: &mut Choices<'_>, k: &mut String, overlay: bool) {
    let kind = c.pick(&["configMapGenerator", "secretGenerator"]);
    writeln!(
        k,
        "{kind}:\n- name: {}\n  literals: [k={}, l=2]",
        if overlay && c.chance(6) {
            "other"
        } else {
            c.pick(&["gen", "cfg"])
        },
        c.pick(&["v", "'q'", "<&>"])
    )
    .unwrap();
    if overlay && k.contains("name: gen") {
        writeln!(k, "  behavior: {}", c.pick(&["merge", "replace"])).unwrap();
    }
    if c.chance(1) {
        writeln!(k, "  namespace: {}", c.pick(&["prod", "default"])).unwrap();
    }
    if c.chance(2) {
        writeln!(
            k,
            "  options:\n    disableNameSuffixHash: true\n    labels: {{from: gen}}"
        )
        .unwrap();
    }
    if c.chance(1) {
        writeln!(
            k,
            "generatorOptions:\n  immutable: true\n  annotations: {{from: options}}"
        )
        .unwrap();
    }
}

fn patches(c: &mut Choices<'_>, folder: &str, known: &[Known], k: &mut String, files: &mut Files) {
    let legacy = c.chance(1);
    k.push_str(if legacy {
        "patchesStrategicMerge:\n"
    } else {
        "patches:\n"
    });
    for index in 0..=c.below(3) {
        let target = c.pick(known);
        if !legacy && c.chance(3) {
            json_patch(c, target, k);
            continue;
        }
        let mut text = String::new();
        strategic(c, target, &mut text);
        let name = format!("patch-{index}.yaml");
        files.push((format!("{folder}/{name}"), text.into_bytes()));
        if legacy {
            writeln!(k, "- {name}").unwrap();
            continue;
        }
        writeln!(k, "- path: {name}").unwrap();
        if c.chance(3) {
            selector(c, target, k);
        }
        if c.chance(1) {
            // The hash of a generated object whose kind has become another one covers the lines of its file.
            let hashed = matches!(target.kind, "ConfigMap" | "Secret");
            let option = if hashed && c.chance(4) {
                "allowKindChange"
            } else {
                "allowNameChange"
            };
            writeln!(k, "  options:\n    {option}: true").unwrap();
        }
    }
}

fn selector(c: &mut Choices<'_>, target: &Known, k: &mut String) {
    writeln!(k, "  target:").unwrap();
    match c.below(5) {
        0 => writeln!(k, "    kind: {}", target.kind),
        1 => writeln!(k, "    name: {}", target.name),
        2 => writeln!(k, "    kind: {}\n    name: .*", target.kind),
        3 => writeln!(k, "    labelSelector: app"),
        _ => writeln!(k, "    namespace: {}", c.pick(&["default", "prod", "_non.*"])),
    }
    .unwrap();
}

fn strategic(c: &mut Choices<'_>, target: &Known, text: &mut String) {
    header(target, text);
    match c.below(7) {
        0 => {}
        1 => writeln!(text, "  labels:\n    app: {}\n    new: x", c.pick(&SCALARS)).unwrap(),
        2 => text.push_str("  annotations:\n    example.com/a: ~\n    added: 5\n"),
        3 => text.push_str("$patch: delete\n"),
        4 => text.push_str("  labels:\n    $patch: replace\n    only: y\n"),
        5 => text.push_str("  finalizers:\n  - c\n  - a\n"),
        _ => entries(c, "  ", "annotations", text),
    }
    match target.kind {
        "ConfigMap" | "Secret" => {
            let (app, tier) = (c.pick(&SCALARS), c.pick(&SCALARS));
            writeln!(text, "data:\n  app: {app}\n  tier: {tier}\n  z: new").unwrap();
        }
        "Pod" => {
            text.push_str("spec:\n");
            containers(c, "  ", text, true);
        }
        "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => {
            text.push_str("spec:\n  template:\n    spec:\n");
            containers(c, "      ", text, true);
        }
        "CronJob" => {
            text.push_str("spec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n");
            containers(c, "          ", text, true);
        }
        "Service" => service(c, text),
        "Widget" => {
            let size = c.pick(&SCALARS);
            writeln!(
                text,
                "spec:\n  note: {}\n  flow: {{quoted: {}, none: {}}}\n  size: {size}\n  list:\n  - name: b\n    v: 9\n  more: {{a: null, b: {{c: null}}}}",
                c.pick(&SCALARS),
                c.pick(&SCALARS),
                c.pick(&SCALARS),
            )
            .unwrap();
        }
        _ => {}
    }
}

const JSON_PATHS: [&str; 10] = [
    "/metadata/labels/app",
    "/metadata/annotations/added",
    "/metadata/name",
    "/spec/replicas",
    "/spec/template/spec/containers/0/image",
    "/spec/template/spec/containers/-",
    "/spec/ports/0",
    "/data/app",
    "/metadata/labels",
    "/spec/list/-1",
];

fn json_patch(c: &mut Choices<'_>, target: &Known, k: &mut String) {
    writeln!(k, "- patch: |-").unwrap();
    if c.chance(5) {
        writeln!(
            k,
            "    - op: add\n      path: /metadata/annotations/added\n      value: {}",
            c.pick(&["x", "yes", "\"5\""])
        )
        .unwrap();
        selector(c, target, k);
        return;
    }
    for _ in 0..=c.below(2) {
        let path = c.pick(&JSON_PATHS);
        match c.below(5) {
            0 => writeln!(
                k,
                "    - op: add\n      path: {path}\n      value: {}",
                c.pick(&["x", "5", "{name: j}", "yes"])
            ),
            1 => writeln!(k, "    - op: replace\n      path: {path}\n      value: y"),
            2 => writeln!(k, "    - op: remove\n      path: {path}"),
            3 => writeln!(k, "    - op: test\n      path: {path}\n      value: x"),
            _ => writeln!(k, "    - op: copy\n      from: /metadata/name\n      path: {path}"),
        }
        .unwrap();
    }
    selector(c, target, k);
}

fn replacement(c: &mut Choices<'_>, known: &[Known], k: &mut String) {
    let source = c.pick(known);
    let target = c.pick(known);
    writeln!(
        k,
        "replacements:\n- source:\n    kind: {}\n    name: {}",
        source.kind, source.name
    )
    .unwrap();
    if c.chance(1) {
        writeln!(
            k,
            "    fieldPath: {}",
            c.pick(&[
                "metadata.namespace",
                "metadata.labels.app",
                "spec.template.metadata",
                "data.app"
            ])
        )
        .unwrap();
    }
    if c.chance(1) {
        writeln!(k, "    options:\n      delimiter: e\n      index: {}", c.below(3)).unwrap();
    }
    writeln!(k, "  targets:\n  - select:\n      kind: {}", target.kind).unwrap();
    let paths = [
        "metadata.annotations.copied",
        "metadata.labels.app",
        "spec.template.spec.containers.*.image",
        "spec.template.spec.containers.[name=a].env.[name=A].value",
        "spec.replicas",
        "data.[app]",
        "metadata.annotations.[example.com/a]",
        "spec.list.0.v",
    ];
    writeln!(k, "    fieldPaths:\n    - {}", c.pick(&paths)).unwrap();
    if c.chance(7) {
        writeln!(k, "    options:\n      create: true").unwrap();
        if c.chance(2) {
            writeln!(
                k,
                "      delimiter: \".\"\n      index: {}",
                c.pick(&["0", "1", "-1", "9"])
            )
            .unwrap();
        }
    }
}

fn component(c: &mut Choices<'_>, folder: &str, known: &[Known], k: &mut String, files: &mut Files) {
    let name = format!("component-{folder}");
    writeln!(k, "components:\n- ../{name}").unwrap();
    let mut text = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n".to_owned();
    names(c, &mut text);
    if c.chance(4) {
        patches(c, &name, known, &mut text, files);
    }
    if c.chance(2) {
        generators(c, &mut text, true);
    }
    files.push((format!("{name}/kustomization.yaml"), text.into_bytes()));
}

fn vars(c: &mut Choices<'_>, known: &[Known], k: &mut String) {
    let target = c.pick(known);
    writeln!(
        k,
        "vars:\n- name: VAR\n  objref:\n    apiVersion: {}\n    kind: {}\n    name: {}",
        target.api_version, target.kind, target.name
    )
    .unwrap();
    if c.chance(2) {
        writeln!(
            k,
            "  fieldref:\n    fieldpath: {}",
            c.pick(&["metadata.namespace", "spec.replicas", "metadata.labels.app"])
        )
        .unwrap();
    }
}
