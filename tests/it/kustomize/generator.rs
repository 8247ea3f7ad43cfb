//! Random bases from a stream of bytes. A stream that ends gives zeros, and zero is the plainest choice
//! everywhere, so that shrinking the stream shrinks the case.

use std::fmt::Write as _;

use super::overlays::{generators, overlay};
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

pub const NAMES: [&str; 4] = ["web", "db", "cfg", "api"];
const NAMESPACES: [&str; 4] = ["", "default", "prod", "test"];
pub const SCALARS: [&str; 24] = [
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
const KINDS: [(&str, &str); 18] = [
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
    ("v1", "Pod"),
    ("apps/v1", "DaemonSet"),
    ("v1", "PersistentVolumeClaim"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
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
    pub api_version: &'static str,
    pub kind: &'static str,
    pub name: &'static str,
    pub namespace: &'static str,
}

fn base(c: &mut Choices<'_>, folder: &str, files: &mut Files) -> Vec<Known> {
    let mut known = Vec::new();
    let mut text = String::new();
    for index in 0..=c.below(5) {
        let (api_version, kind) = *c.pick(&KINDS);
        let resource = Known {
            api_version,
            kind,
            name: c.pick::<&str>(&NAMES),
            namespace: c.pick::<&str>(&NAMESPACES),
        };
        if known
            .iter()
            .any(|k: &Known| k.kind == resource.kind && k.name == resource.name)
        {
            continue;
        }
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

pub fn header(resource: &Known, text: &mut String) {
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

pub fn entries(c: &mut Choices<'_>, indent: &str, field: &str, text: &mut String) {
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
        "Pod" => {
            text.push_str("spec:\n");
            pod_spec(c, "  ", text);
        }
        "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => {
            text.push_str("spec:\n");
            if !matches!(kind, "Job" | "DaemonSet") && c.chance(4) {
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
        other => small(c, other, text),
    }
}

/// What is left of a kind that takes a few lines.
fn small(c: &mut Choices<'_>, kind: &str, text: &mut String) {
    match kind {
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
            if c.chance(3) {
                let value = c.pick(&SCALARS);
                writeln!(text, "  flow: {{none: , quoted: \"a\", v: [{value}]}}").unwrap();
            }
            if c.chance(2) {
                text.push_str("  note: >\n    one\n      deeper\n    two\n\n    three\n");
            }
        }
        "PersistentVolumeClaim" => {
            writeln!(
                text,
                "spec:\n  storageClassName: {}\n  volumeName: {}",
                c.pick(&NAMES),
                c.pick(&NAMES)
            )
            .unwrap();
        }
        "NetworkPolicy" => {
            text.push_str("spec:\n  podSelector:\n    matchLabels: {app: x}\n  ingress:\n  - from:\n    - podSelector: {matchLabels: {}}\n");
        }
        _ => {}
    }
}

pub fn service(c: &mut Choices<'_>, text: &mut String) {
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
    pod_spec(c, &format!("{indent}  "), text);
}

fn pod_spec(c: &mut Choices<'_>, inner: &str, text: &mut String) {
    if c.chance(2) {
        writeln!(text, "{inner}serviceAccountName: {}", c.pick(&NAMES)).unwrap();
    }
    containers(c, inner, text, false);
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

pub fn containers(c: &mut Choices<'_>, indent: &str, text: &mut String, patch: bool) {
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
    volume_mounts(c, indent, text);
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

fn volume_mounts(c: &mut Choices<'_>, indent: &str, text: &mut String) {
    if c.chance(1) {
        writeln!(text, "{indent}volumeMounts:").unwrap();
        for _ in 0..=c.below(2) {
            let path = c.pick(&["/a", "/b", "\"/a\""]);
            writeln!(
                text,
                "{indent}- mountPath: {path}\n{indent}  name: {}",
                c.pick(&["v1", "v2"])
            )
            .unwrap();
        }
    }
}
