//! Written cases for the shapes real repositories have. Each is a text of `=== path` headers and contents; what is
//! built is the first folder named.

use super::reference::{Files, binary, compare, ours, reference, write};
use stageset::manifest::Order;

const WORKLOAD: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      serviceAccountName: web
      containers:
      - name: main
        image: registry.example.com/web:1
        args: [--port, \"8080\"]
        ports:
        - containerPort: 8080
          protocol: TCP
        env:
        - name: MODE
          value: plain
        envFrom:
        - configMapRef: {name: settings}
        volumeMounts:
        - {name: data, mountPath: /data}
      volumes:
      - name: data
        secret: {secretName: keys}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, protocol: TCP}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
";

fn files(text: &str) -> (String, Files) {
    let mut files = Files::new();
    for part in text.split("=== ").skip(1) {
        let (path, content) = part.split_once('\n').unwrap();
        files.push((path.to_owned(), content.replace("WORKLOAD\n", WORKLOAD).into_bytes()));
    }
    let root = files[0]
        .0
        .rsplit_once('/')
        .map_or(String::new(), |(folder, _)| folder.to_owned());
    (root, files)
}

fn agree(text: &str) {
    let (root, files) = files(text);
    match compare(&files, &root) {
        Ok(built) => assert!(built, "a fixture must build"),
        Err(difference) => panic!("{difference}"),
    }
    let built = ours(&files, &root, Order::Accumulation);
    assert!(
        built.as_ref().is_ok_and(|objects| !objects.is_empty()),
        "a fixture must build: {built:?}"
    );
}

fn both_fail(text: &str) {
    let (root, files) = files(text);
    let folder = tempfile::tempdir().unwrap();
    write(&files, folder.path());
    let theirs = reference(&folder.path().join(&root), "none");
    let ours = ours(&files, &root, Order::Accumulation);
    assert!(theirs.is_err() && ours.is_err(), "reference {theirs:?}, ours {ours:?}");
}

#[test]
fn the_reference_is_the_pinned_version() {
    let output = std::process::Command::new(binary()).arg("version").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        version.contains("v5.8.1") || version.contains("(devel)"),
        "kustomize {version} instead of v5.8.1"
    );
}

/// Rules: decisions 9
#[test]
fn flux_layout_with_overlays_and_custom_resources() {
    agree(
        "=== apps/production/kustomization.yaml
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: podinfo
resources: [../base/podinfo]
patches:
- path: values.yaml
  target: {kind: HelmRelease}
=== apps/production/values.yaml
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: podinfo, namespace: podinfo}
spec:
  chart: {spec: {version: \">=1.0.0\"}}
  values: {ingress: {hosts: [{host: podinfo.production}]}}
=== apps/base/podinfo/kustomization.yaml
resources: [namespace.yaml, release.yaml]
=== apps/base/podinfo/namespace.yaml
apiVersion: v1
kind: Namespace
metadata: {name: podinfo}
=== apps/base/podinfo/release.yaml
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: podinfo, namespace: podinfo}
spec:
  interval: 50m
  chart: {spec: {chart: podinfo, version: 1.x}}
  values: {ingress: {enabled: true, hosts: [{host: a}, {host: b}]}}
",
    );
}

/// Rules: decisions 9
#[test]
fn components_add_resources_patches_and_generated_files() {
    agree(
        "=== app/kustomization.yaml
namespace: media
components: [../components/volsync, ../components/labels]
resources: [all.yaml]
configMapGenerator:
- name: settings
  files: [config.yaml, renamed=script.sh]
  options: {disableNameSuffixHash: true}
=== app/all.yaml
WORKLOAD
=== app/config.yaml
key: ${VALUE}
=== app/script.sh
#!/bin/sh
echo $HOME
=== components/volsync/kustomization.yaml
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources: [claim.yaml]
patches:
- target: {kind: Deployment}
  patch: |
    - op: add
      path: /spec/template/spec/volumes/-
      value: {name: backup, persistentVolumeClaim: {claimName: backup}}
=== components/volsync/claim.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: backup}
spec: {accessModes: [ReadWriteOnce]}
=== components/labels/kustomization.yaml
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
namePrefix: c-
labels: [{pairs: {from: component}, includeTemplates: true}]
",
    );
}

#[test]
fn kubebuilder_layout_with_replacements() {
    agree(
        "=== config/default/kustomization.yaml
namespace: system
namePrefix: op-
resources: [../crd, ../manager]
patches:
- path: patch.yaml
  target: {kind: Deployment}
replacements:
- source: {kind: Service, version: v1, name: web, fieldPath: .metadata.name}
  targets:
  - select: {kind: Certificate, group: cert-manager.io, version: v1, name: serving}
    fieldPaths: [.spec.dnsNames.0, .spec.dnsNames.1]
    options: {delimiter: '.', index: 0, create: true}
- source: {kind: Certificate, name: serving, fieldPath: .metadata.namespace}
  targets:
  - select: {kind: CustomResourceDefinition}
    fieldPaths: [\".metadata.annotations.[cert-manager.io/inject-ca-from]\"]
    options: {delimiter: /, index: 0, create: true}
=== config/default/patch.yaml
- op: add
  path: /spec/template/spec/containers/0/args/0
  value: --leader-elect
=== config/crd/kustomization.yaml
resources: [crd.yaml]
configurations: [config.yaml]
=== config/crd/config.yaml
nameReference:
- kind: Service
  version: v1
  fieldSpecs:
  - {kind: CustomResourceDefinition, version: v1, group: apiextensions.k8s.io, path: spec/conversion/webhook/clientConfig/service/name}
namespace:
- {kind: CustomResourceDefinition, version: v1, group: apiextensions.k8s.io, path: spec/conversion/webhook/clientConfig/service/namespace, create: false}
=== config/crd/crd.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
  annotations: {cert-manager.io/inject-ca-from: NAMESPACE/NAME}
spec:
  group: example.com
  conversion: {strategy: Webhook, webhook: {clientConfig: {service: {name: web, namespace: old}}}}
=== config/manager/kustomization.yaml
resources: [all.yaml, cert.yaml]
images: [{name: registry.example.com/web, newTag: v2}]
=== config/manager/all.yaml
WORKLOAD
=== config/manager/cert.yaml
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: serving, namespace: system}
spec: {dnsNames: [SERVICE.NAMESPACE.svc, SERVICE.NAMESPACE.svc.cluster.local]}
",
    );
}

#[test]
fn vars_with_their_own_configuration() {
    agree(
        "=== overlay/kustomization.yaml
namePrefix: x-
resources: [../base]
vars:
- name: SERVICE
  objref: {kind: Service, version: v1, name: web}
- name: PORT
  objref: {kind: Service, version: v1, name: web}
  fieldref: {fieldpath: \"spec.ports[0].port\"}
patchesStrategicMerge:
- |-
  apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web}
  spec: {template: {spec: {containers: [{name: main, args: [\"http://$(SERVICE):$(PORT)\", $(PORT), $$(PORT)]}]}}}
=== base/kustomization.yaml
resources: [all.yaml]
=== base/all.yaml
WORKLOAD
",
    );
}

/// Rules: decisions 9
#[test]
fn generators_merge_and_names_follow_their_hash() {
    agree(
        "=== overlay/kustomization.yaml
resources: [../base]
namespace: prod
configMapGenerator:
- {name: settings, behavior: merge, literals: [B=\"2\", C=3], envs: [more.env]}
secretGenerator:
- {name: keys, behavior: replace, type: example.com/keys, literals: [token=abc], files: [blob.bin]}
generatorOptions: {labels: {generated: \"true\"}}
=== overlay/more.env
# comment
D=4
E
=== overlay/blob.bin
some long content so that the text encoded as base64 takes more than one line of seventy characters
=== base/kustomization.yaml
resources: [all.yaml]
configMapGenerator: [{name: settings, literals: [A=1, B=1]}]
secretGenerator: [{name: keys, literals: [token=x]}]
=== base/all.yaml
WORKLOAD
",
    );
}

#[test]
fn plugins_by_configuration() {
    agree(
        "=== app/kustomization.yaml
resources: [all.yaml]
transformers:
- |-
  apiVersion: builtin
  kind: PrefixSuffixTransformer
  metadata: {name: p}
  prefix: a-
  fieldSpecs: [{path: metadata/name, kind: Deployment}]
- labels.yaml
- |-
  apiVersion: builtin
  kind: NamespaceTransformer
  metadata: {name: n, namespace: here}
  unsetOnly: true
generators:
- |-
  apiVersion: builtin
  kind: ConfigMapGenerator
  metadata: {name: made}
  literals: [a=b]
=== app/labels.yaml
apiVersion: builtin
kind: LabelTransformer
metadata: {name: l}
labels: {team: a}
fieldSpecs: [{path: metadata/labels, create: true}]
=== app/all.yaml
WORKLOAD
",
    );
}

#[test]
fn lists_json_and_odd_scalars() {
    agree(
        "=== app/kustomization.yaml
resources: [list.json, odd.yaml]
commonAnnotations: {a: b}
=== app/list.json
{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\"}}]}
=== app/odd.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: b
  annotations: {n: 0x10, f: 1.10, t: true, e: , d: 2001-01-01}
data: {a: yes, b: 0644, c: 1e3, d: .5, e: 2001-01-01, f: 12:30:45, g: 123e4567, h: !!str 5, i: \"a\\tb\", j: 08, k: 1_000}
---
apiVersion: v1
kind: ConfigMap
metadata: &meta {name: c}
data: &data {x: \"1\"}
binaryData: {<<: *data, y: eA==}
",
    );
}

/// Rules: decisions 9
#[test]
fn quotes_stay_when_a_patch_replaces_what_is_between_them() {
    agree(
        "=== app/kustomization.yaml
resources: [all.yaml]
patches:
- path: first.yaml
- path: second.yaml
- target: {kind: Widget}
  patch: '[{\"op\": \"add\", \"path\": \"/metadata/labels\", \"value\": {\"app\": \"5\", \"tier\": \"[a]\"}}]'
- path: third.yaml
=== app/all.yaml
apiVersion: example.com/v1
kind: Widget
metadata:
  name: web
  annotations: {app: \"a\"}
spec:
  double: \"5\"
  single: 'x'
  block: |
    x
  plain: x
  date: \"x\"
  tagged: !!int \"5\"
  none: ~
  word: yes
=== app/first.yaml
apiVersion: example.com/v1
kind: Widget
metadata:
  name: web
  annotations: {app: 08}
spec: {double: 9, single: true, block: 1.5, plain: 0644, date: 2001-01-01, tagged: 7, none: 'a', new: on, listed: '[a]'}
=== app/second.yaml
apiVersion: example.com/v1
kind: Widget
metadata: {name: web}
spec: {single: x, none: 0x1F, new: 1_000, word: 5, listed: 1e3}
=== app/third.yaml
apiVersion: example.com/v1
kind: Widget
metadata: {name: web, labels: {app: 6, tier: 7}}
spec: {single: 2}
",
    );
}

#[test]
fn the_notation_of_a_text_shows_in_what_is_built() {
    agree(
        "=== app/kustomization.yaml
resources: [all.yaml]
commonAnnotations: {a: b}
patches:
- target: {name: patched}
  patch: '[{\"op\": \"add\", \"path\": \"/data/new\", \"value\": 1}]'
- path: patch.yaml
=== app/all.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: plain, labels: {none: , some: x}}
data: &data
  folded: >
    one
    two

    three
      deeper
    back
  kept: >+
    one

  blank: >2
     one
    two

    three
  flow: {none: , list: [a, {b: }], c}
  list: [~, x]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: patched, annotations: {none: }}
data:
  folded: >
    one
      deeper

    two
  flow: {none: }
---
apiVersion: v1
kind: ConfigMap
metadata: {name: merged}
data:
  folded: >
    one
      deeper
  flow: {none: , some: , x: y}
---
apiVersion: v1
kind: ConfigMapList
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: item}
  data: {none: , x: y}
  other:
    folded: >
      one
        deeper
=== app/patch.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: merged}
data:
  flow: {some: 5, more: }
  folded: \"two\\n  deeper\"
",
    );
}

#[test]
fn elements_without_keys_do_not_lose_what_was_merged_before() {
    agree(
        "=== app/kustomization.yaml
resources: [all.yaml]
patches:
- path: patch.yaml
=== app/all.yaml
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: b
    env: [{name: A}, {name: C, value: c}]
    ports: [{containerPort: 80, protocol: UDP}, {containerPort: 80}]
=== app/patch.yaml
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: b
    env: [{name: A, value: a}, {name: A, $patch: delete}, {value: nameless}]
    ports: [{containerPort: 80, protocol: UDP, $patch: delete}, {containerPort: 81}]
",
    );
}

#[test]
fn what_the_reference_refuses_is_refused() {
    for content in [
        "resources: [missing.yaml]",
        "resources: [all.yaml, all.yaml]",
        "resource: [all.yaml]",
        "resources: [all.yaml]\nnamePrefix: 5",
        "resources: [all.yaml]\npatches: [{path: all.yaml, patch: x}]",
        "resources: [all.yaml]\npatches: [{patch: '{kind: Job, metadata: {name: none}}'}]",
        "resources: [all.yaml]\npatches: [{patch: '[{op: remove, path: /spec}]', target: {kind: Service}}]",
        "resources: [all.yaml]\npatches: [{patch: '[{\"op\": \"remove\", \"path\": \"/nope\"}]', target: {kind: Service}}]",
        "resources: [all.yaml]\npatches: [{patch: '[{\"op\": \"remove\", \"path\": \"/spec\"}]'}]",
        "resources: [all.yaml]\npatches: [{patch: '[{\"op\": \"remove\", \"path\": \"/metadata/name\"}]', target: {kind: Service}}]",
        "resources: [all.yaml]\npatches: [{patch: '[{\"op\": \"remove\", \"path\": \"/kind\"}]', target: {kind: Service}}]",
        "resources: [all.yaml]\nreplicas: [{name: none, count: 1}]",
        "resources: [all.yaml]\nreplacements: [{source: {kind: Service}, targets: [{select: {kind: Service}, fieldPaths: [spec.nope]}]}]",
        "resources: [all.yaml]\nconfigMapGenerator: [{name: x, behavior: merge}]",
        "resources: [all.yaml]\nconfigMapGenerator: [{name: x, literals: [a=1, a=2]}]",
        "resources: [all.yaml]\nsortOptions: {order: other}",
        "kind: Kustomization",
        "kind: Other\nresources: [all.yaml]",
        "apiVersion: v1\nresources: [all.yaml]",
        "resources: [.]",
        "components: [../base]",
        "resources: [all.yaml]\npatches: [{path: all.yaml, target: {kind: '('}}]",
        "resources: [all.yaml]\npatches: [{path: all.yaml, target: {labelSelector: 'a b'}}]",
    ] {
        both_fail(&format!(
            "=== app/kustomization.yaml\n{content}\n=== app/all.yaml\nWORKLOAD\n=== base/kustomization.yaml\nnamespace: x\n"
        ));
    }
}
