//! Random kustomizations from a stream of bytes. A stream that ends gives zeros, and zero is the plainest choice
//! everywhere, so that shrinking the stream shrinks the case.

use std::fmt::Write as _;

use super::reference::Files;

/// Choices drawn from bytes.
pub struct Choices<'b> {
    bytes: std::slice::Iter<'b, u8>,
}

impl<'b> Choices<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    /// True in `share` of 8 cases.
    pub fn chance(&mut self, share: u8) -> bool {
        self.byte() % 8 >= 8 - share
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

const NAMES: [&str; 4] = ["web", "db", "cfg", "api"];
const NAMESPACES: [&str; 4] = ["", "default", "prod", "test"];
const SCALARS: [&str; 24] = [
    "x",
    "\"5\"",
    "5",
    "true",
    "\"true\"",
    "yes",
    "0644",
    "1.10",
    "1e3",
    "null",
    "",
    "'a: b'",
    "0x1F",
    "~",
    "\"\"",
    "on",
    "12:30:45",
    "'it''s'",
    "1_000",
    "-1",
    ".5",
    "08",
    "${VAR}",
    "\"multi\\nline\"",
];
const KINDS: [(&str, &str); 14] = [
    ("v1", "ConfigMap"),
    ("apps/v1", "Deployment"),
    ("v1", "Service"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("batch/v1", "CronJob"),
    ("apps/v1", "StatefulSet"),
    ("networking.k8s.io/v1", "Ingress"),
    ("v1", "Namespace"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("example.com/v1", "Widget"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("batch/v1", "Job"),
];

/// The files of one case; the overlay to build is in `overlay`.
pub fn case(bytes: &[u8]) -> Files {
    let mut c = Choices::new(bytes);
    let mut files = Files::new();
    let resources = base(&mut c, "base", &mut files);
    let middle = c.chance(2);
    if middle {
        overlay(&mut c, "middle", "../base", &resources, &mut files);
    }
    let below = if middle { "../middle" } else { "../base" };
    overlay(&mut c, "overlay", below, &resources, &mut files);
    files
}

/// What a patch may aim at.
pub struct Known {
    api_version: &'static str,
    kind: &'static str,
    name: &'static str,
    namespace: &'static str,
}

fn base(c: &mut Choices<'_>, folder: &str, files: &mut Files) -> Vec<Known> {
    let mut known = Vec::new();
    let mut text = String::new();
    for index in 0..=c.below(5) {
        let (api_version, kind) = *c.pick(&KINDS);
        let resource = Known {
            api_version,
            kind,
            name: *c.pick(&NAMES),
            namespace: *c.pick(&NAMESPACES),
        };
        if index > 0 {
            text.push_str("---\n");
        }
        object(c, &resource, &mut text);
        known.push(resource);
    }
    files.push((format!("{folder}/all.yaml"), text.into_bytes()));
    let mut kustomization = "resources:\n- all.yaml\n".to_owned();
    if c.chance(2) {
        generators(c, &mut kustomization, false);
    }
    if c.chance(1) {
        writeln!(kustomization, "namePrefix: b-").unwrap();
    }
    files.push((format!("{folder}/kustomization.yaml"), kustomization.into_bytes()));
    known
}

fn header(resource: &Known, text: &mut String) {
    writeln!(
        text,
        "apiVersion: {}\nkind: {}\nmetadata:\n  name: {}",
        resource.api_version, resource.kind, resource.name
    )
    .unwrap();
    if !resource.namespace.is_empty() {
        writeln!(text, "  namespace: {}", resource.namespace).unwrap();
    }
}

fn entries(c: &mut Choices<'_>, indent: &str, field: &str, text: &mut String) {
    if !c.chance(3) {
        return;
    }
    writeln!(text, "{indent}{field}:").unwrap();
    for key in ["app", "tier", "example.com/a"].iter().take(1 + c.below(3)) {
        writeln!(text, "{indent}  {key}: {}", c.pick(&SCALARS)).unwrap();
    }
}

fn object(c: &mut Choices<'_>, resource: &Known, text: &mut String) {
    header(resource, text);
    entries(c, "  ", "labels", text);
    entries(c, "  ", "annotations", text);
    if c.chance(1) {
        text.push_str("  finalizers:\n  - a\n  - b\n");
    }
    body(c, resource.kind, text);
}

fn body(c: &mut Choices<'_>, kind: &str, text: &mut String) {
    match kind {
        "ConfigMap" | "Secret" => {
            let field = if c.chance(1) { "stringData" } else { "data" };
            entries(c, "", field, text);
        }
        "Deployment" | "StatefulSet" | "Job" => {
            text.push_str("spec:\n");
            if kind != "Job" && c.chance(4) {
                writeln!(text, "  replicas: {}", c.below(4)).unwrap();
            }
            if c.chance(3) {
                text.push_str("  selector:\n    matchLabels:\n      app: x\n");
            }
            text.push_str("  template:\n");
            pod(c, "    ", text);
        }
        "CronJob" => {
            text.push_str("spec:\n  jobTemplate:\n    spec:\n      template:\n");
            pod(c, "        ", text);
        }
        "Service" => service(c, text),
        "RoleBinding" => role_binding(c, text),
        "ClusterRole" => {
            writeln!(
                text,
                "rules:\n- resources: [secrets]\n  resourceNames: [{}, {}]",
                c.pick(&NAMES),
                c.pick(&NAMES)
            )
            .unwrap();
        }
        "Ingress" => {
            writeln!(
                text,
                "spec:\n  tls:\n  - secretName: {}\n  rules:\n  - http:\n      paths:\n      - backend:\n          service:\n            name: {}",
                c.pick(&NAMES),
                c.pick(&NAMES)
            )
            .unwrap();
        }
        "HorizontalPodAutoscaler" => {
            writeln!(
                text,
                "spec:\n  scaleTargetRef:\n    kind: Deployment\n    name: {}",
                c.pick(&NAMES)
            )
            .unwrap();
        }
        "Widget" => {
            writeln!(
                text,
                "spec:\n  size: {}\n  list:\n  - name: a\n    v: {}\n  - name: b",
                c.pick(&SCALARS),
                c.pick(&SCALARS)
            )
            .unwrap();
        }
        _ => {}
    }
}

fn service(c: &mut Choices<'_>, text: &mut String) {
    text.push_str("spec:\n  ports:\n");
    for _ in 0..=c.below(3) {
        writeln!(text, "  - port: {}", 80 + c.below(3)).unwrap();
        if c.chance(4) {
            writeln!(text, "    protocol: {}", c.pick(&["TCP", "UDP"])).unwrap();
        }
        if c.chance(2) {
            text.push_str("    name: n\n");
        }
    }
    if c.chance(2) {
        text.push_str("  selector:\n    app: x\n");
    }
}

fn role_binding(c: &mut Choices<'_>, text: &mut String) {
    writeln!(
        text,
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {}\n  name: {}\nsubjects:",
        c.pick(&["ClusterRole", "Role"]),
        c.pick(&NAMES)
    )
    .unwrap();
    for _ in 0..=c.below(2) {
        let name = if c.chance(2) { "default" } else { *c.pick(&NAMES) };
        writeln!(text, "- kind: {}\n  name: {name}", c.pick(&["ServiceAccount", "User"])).unwrap();
        let namespace = c.pick(&NAMESPACES);
        if !namespace.is_empty() {
            writeln!(text, "  namespace: {namespace}").unwrap();
        }
    }
}

/// `metadata` and `spec` of a pod template.
fn pod(c: &mut Choices<'_>, indent: &str, text: &mut String) {
    if c.chance(3) {
        writeln!(text, "{indent}metadata:").unwrap();
        writeln!(text, "{indent}  labels:\n{indent}    app: x").unwrap();
    }
    writeln!(text, "{indent}spec:").unwrap();
    let inner = format!("{indent}  ");
    if c.chance(2) {
        writeln!(text, "{inner}serviceAccountName: {}", c.pick(&NAMES)).unwrap();
    }
    containers(c, &inner, text, false);
    if c.chance(3) {
        writeln!(text, "{inner}volumes:").unwrap();
        for name in ["v1", "v2"].iter().take(1 + c.below(2)) {
            match c.below(3) {
                0 => writeln!(
                    text,
                    "{inner}- name: {name}\n{inner}  configMap:\n{inner}    name: {}",
                    c.pick(&NAMES)
                ),
                1 => writeln!(
                    text,
                    "{inner}- name: {name}\n{inner}  secret:\n{inner}    secretName: {}",
                    c.pick(&NAMES)
                ),
                _ => writeln!(text, "{inner}- name: {name}\n{inner}  emptyDir: {{}}"),
            }
            .unwrap();
        }
    }
}

const IMAGES: [&str; 6] = [
    "nginx",
    "nginx:1",
    "docker.io/nginx:1",
    "host:5000/a/b:2@sha256:ab",
    "busybox",
    "nginx@sha256:cd",
];

fn containers(c: &mut Choices<'_>, indent: &str, text: &mut String, patch: bool) {
    let field = if c.chance(1) { "initContainers" } else { "containers" };
    writeln!(text, "{indent}{field}:").unwrap();
    if patch && c.chance(1) {
        writeln!(text, "{indent}- $patch: {}", c.pick(&["replace", "delete", "merge"])).unwrap();
    }
    for _ in 0..=c.below(3) {
        if patch && c.chance(1) {
            writeln!(
                text,
                "{indent}- $patch: {}\n{indent}  name: {}",
                c.pick(&["delete", "replace"]),
                c.pick(&["a", "b", "c"])
            )
            .unwrap();
            continue;
        }
        writeln!(text, "{indent}- name: {}", c.pick(&["a", "b", "c"])).unwrap();
        if c.chance(5) {
            writeln!(text, "{indent}  image: {}", c.pick(&IMAGES)).unwrap();
        }
        let inner = format!("{indent}  ");
        container_lists(c, &inner, text, patch);
    }
}

fn container_lists(c: &mut Choices<'_>, indent: &str, text: &mut String, patch: bool) {
    if c.chance(3) {
        writeln!(text, "{indent}env:").unwrap();
        if patch && c.chance(1) {
            writeln!(text, "{indent}- $patch: replace").unwrap();
        }
        for _ in 0..=c.below(3) {
            let name = c.pick(&["A", "B", "C"]);
            match c.below(5) {
                0 => writeln!(text, "{indent}- name: {name}\n{indent}  value: {}", c.pick(&SCALARS)),
                1 => writeln!(
                    text,
                    "{indent}- name: {name}\n{indent}  valueFrom:\n{indent}    configMapKeyRef:\n{indent}      name: {}\n{indent}      key: k",
                    c.pick(&NAMES)
                ),
                2 if patch => writeln!(text, "{indent}- name: {name}\n{indent}  $patch: delete"),
                3 => writeln!(text, "{indent}- value: nameless"),
                _ => writeln!(text, "{indent}- name: {name}"),
            }
            .unwrap();
        }
    }
    if c.chance(3) {
        writeln!(text, "{indent}ports:").unwrap();
        for _ in 0..=c.below(3) {
            writeln!(text, "{indent}- containerPort: {}", 80 + c.below(3)).unwrap();
            if c.chance(4) {
                writeln!(text, "{indent}  protocol: {}", c.pick(&["TCP", "UDP"])).unwrap();
            }
            if patch && c.chance(1) {
                writeln!(text, "{indent}  $patch: delete").unwrap();
            }
        }
    }
    if c.chance(2) {
        writeln!(
            text,
            "{indent}args: [{}, {}]",
            c.pick(&["a", "b", "\"1\""]),
            c.pick(&["a", "b"])
        )
        .unwrap();
    }
    if c.chance(1) {
        writeln!(
            text,
            "{indent}envFrom:\n{indent}- configMapRef:\n{indent}    name: {}",
            c.pick(&NAMES)
        )
        .unwrap();
    }
}

fn overlay(c: &mut Choices<'_>, folder: &str, below: &str, known: &[Known], files: &mut Files) {
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
    if c.chance(1) {
        writeln!(k, "replicas:\n- name: {}\n  count: {}", c.pick(&NAMES), c.below(9)).unwrap();
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

fn generators(c: &mut Choices<'_>, k: &mut String, overlay: bool) {
    let kind = c.pick(&["configMapGenerator", "secretGenerator"]);
    writeln!(
        k,
        "{kind}:\n- name: {}\n  literals: [k={}, l=2]",
        c.pick(&["gen", "cfg", "web"]),
        c.pick(&["v", "'q'", "<&>"])
    )
    .unwrap();
    if overlay {
        writeln!(k, "  behavior: {}", c.pick(&["create", "merge", "replace"])).unwrap();
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
            writeln!(k, "  options:\n    allowNameChange: true").unwrap();
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
        1 => text.push_str("  labels:\n    app: null\n    new: x\n"),
        2 => text.push_str("  annotations:\n    example.com/a: ~\n    added: 5\n"),
        3 => text.push_str("$patch: delete\n"),
        4 => text.push_str("  labels:\n    $patch: replace\n    only: y\n"),
        5 => text.push_str("  finalizers:\n  - c\n  - a\n"),
        _ => entries(c, "  ", "annotations", text),
    }
    match target.kind {
        "ConfigMap" | "Secret" => text.push_str("data:\n  app: null\n  z: new\n"),
        "Deployment" | "StatefulSet" | "Job" => {
            text.push_str("spec:\n  template:\n    spec:\n");
            containers(c, "      ", text, true);
        }
        "CronJob" => {
            text.push_str("spec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n");
            containers(c, "          ", text, true);
        }
        "Service" => service(c, text),
        "Widget" => text.push_str("spec:\n  list:\n  - name: b\n    v: 9\n  more: {a: null, b: {c: null}}\n"),
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
    if c.chance(3) {
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
    if c.chance(4) {
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
