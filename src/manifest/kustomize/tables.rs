//! The built-in field specs of kustomize 5.8.1.

use super::config::{NameReference, Spec, TransformerConfig};

/// Kinds whose pods are described below the given path, in the order the reference lists them.
const PODS: [(&str, &str); 8] = [
    ("Pod", "spec"),
    ("PodTemplate", "template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicaSet", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
];
/// Kinds whose service account, claims and priority class are followed.
const WORKLOADS: [(&str, &str); 7] = [
    ("Pod", "spec"),
    ("StatefulSet", "spec/template/spec"),
    ("Deployment", "spec/template/spec"),
    ("ReplicationController", "spec/template/spec"),
    ("CronJob", "spec/jobTemplate/spec/template/spec"),
    ("Job", "spec/template/spec"),
    ("DaemonSet", "spec/template/spec"),
];
const CONFIG_MAP_FIELDS: [&str; 6] = [
    "volumes/configMap/name",
    "containers/env/valueFrom/configMapKeyRef/name",
    "initContainers/env/valueFrom/configMapKeyRef/name",
    "containers/envFrom/configMapRef/name",
    "initContainers/envFrom/configMapRef/name",
    "volumes/projected/sources/configMap/name",
];
const SECRET_FIELDS: [&str; 7] = [
    "volumes/secret/secretName",
    "containers/env/valueFrom/secretKeyRef/name",
    "initContainers/env/valueFrom/secretKeyRef/name",
    "containers/envFrom/secretRef/name",
    "initContainers/envFrom/secretRef/name",
    "imagePullSecrets/name",
    "volumes/projected/sources/secret/name",
];
const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
/// Path, group, version, kind.
type Row = (&'static str, &'static str, &'static str, &'static str);

const METADATA_LABELS: [Row; 10] = [
    ("metadata/labels", "", "", ""),
    ("spec/template/metadata/labels", "", "v1", "ReplicationController"),
    ("spec/template/metadata/labels", "", "", "Deployment"),
    ("spec/template/metadata/labels", "", "", "ReplicaSet"),
    ("spec/template/metadata/labels", "", "", "DaemonSet"),
    ("spec/template/metadata/labels", "apps", "", "StatefulSet"),
    ("spec/volumeClaimTemplates[]/metadata/labels", "apps", "", "StatefulSet"),
    ("spec/template/metadata/labels", "batch", "", "Job"),
    ("spec/jobTemplate/metadata/labels", "batch", "", "CronJob"),
    ("spec/jobTemplate/spec/template/metadata/labels", "batch", "", "CronJob"),
];
const SELECTORS_CREATED: [Row; 6] = [
    ("spec/selector", "", "v1", "Service"),
    ("spec/selector", "", "v1", "ReplicationController"),
    ("spec/selector/matchLabels", "", "", "Deployment"),
    ("spec/selector/matchLabels", "", "", "ReplicaSet"),
    ("spec/selector/matchLabels", "", "", "DaemonSet"),
    ("spec/selector/matchLabels", "apps", "", "StatefulSet"),
];
const SELECTORS: [Row; 6] = [
    ("spec/selector/matchLabels", "batch", "", "Job"),
    ("spec/jobTemplate/spec/selector/matchLabels", "batch", "", "CronJob"),
    ("spec/selector/matchLabels", "policy", "", "PodDisruptionBudget"),
    ("spec/podSelector/matchLabels", "networking.k8s.io", "", "NetworkPolicy"),
    (
        "spec/ingress/from/podSelector/matchLabels",
        "networking.k8s.io",
        "",
        "NetworkPolicy",
    ),
    (
        "spec/egress/to/podSelector/matchLabels",
        "networking.k8s.io",
        "",
        "NetworkPolicy",
    ),
];
const AFFINITY: [&str; 5] = [
    "affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/podAffinityTerm/labelSelector/matchLabels",
    "affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/labelSelector/matchLabels",
    "topologySpreadConstraints/labelSelector/matchLabels",
];
const ANNOTATIONS: [Row; 9] = [
    ("metadata/annotations", "", "", ""),
    ("spec/template/metadata/annotations", "", "v1", "ReplicationController"),
    ("spec/template/metadata/annotations", "", "", "Deployment"),
    ("spec/template/metadata/annotations", "", "", "ReplicaSet"),
    ("spec/template/metadata/annotations", "", "", "DaemonSet"),
    ("spec/template/metadata/annotations", "", "", "StatefulSet"),
    ("spec/template/metadata/annotations", "batch", "", "Job"),
    ("spec/jobTemplate/metadata/annotations", "batch", "", "CronJob"),
    (
        "spec/jobTemplate/spec/template/metadata/annotations",
        "batch",
        "",
        "CronJob",
    ),
];
const IMAGES: [Row; 6] = [
    ("spec/containers[]/image", "", "", ""),
    ("spec/initContainers[]/image", "", "", ""),
    ("spec/volumes[]/image/reference", "", "", ""),
    ("spec/template/spec/containers[]/image", "", "", ""),
    ("spec/template/spec/initContainers[]/image", "", "", ""),
    ("spec/template/spec/volumes[]/image/reference", "", "", ""),
];
const SECRET_OTHERS: [Row; 13] = [
    ("spec/tls/secretName", "", "", "Ingress"),
    (
        "metadata/annotations/ingress.kubernetes.io\\/auth-secret",
        "",
        "",
        "Ingress",
    ),
    (
        "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-secret",
        "",
        "",
        "Ingress",
    ),
    (
        "metadata/annotations/nginx.ingress.kubernetes.io\\/auth-tls-secret",
        "",
        "",
        "Ingress",
    ),
    ("imagePullSecrets/name", "", "", "ServiceAccount"),
    ("parameters/secretName", "", "", "StorageClass"),
    ("parameters/adminSecretName", "", "", "StorageClass"),
    ("parameters/userSecretName", "", "", "StorageClass"),
    ("parameters/secretRef", "", "", "StorageClass"),
    ("rules/resourceNames", "", "", "Role"),
    ("rules/resourceNames", "", "", "ClusterRole"),
    (
        "spec/template/spec/containers/env/valueFrom/secretKeyRef/name",
        "serving.knative.dev",
        "v1",
        "Service",
    ),
    ("spec/azureFile/secretName", "", "", "PersistentVolume"),
];
const CONFIG_MAP_OTHERS: [Row; 4] = [
    ("spec/configSource/configMap", "", "", "Node"),
    ("rules/resourceNames", "", "", "Role"),
    ("rules/resourceNames", "", "", "ClusterRole"),
    (
        "metadata/annotations/nginx.ingress.kubernetes.io\\/fastcgi-params-configmap",
        "",
        "",
        "Ingress",
    ),
];
const SERVICE_REFERRERS: [Row; 8] = [
    ("spec/serviceName", "apps", "", "StatefulSet"),
    ("spec/rules/http/paths/backend/serviceName", "", "", "Ingress"),
    ("spec/backend/serviceName", "", "", "Ingress"),
    ("spec/rules/http/paths/backend/service/name", "", "", "Ingress"),
    ("spec/defaultBackend/service/name", "", "", "Ingress"),
    ("spec/service/name", "apiregistration.k8s.io", "", "APIService"),
    (
        "webhooks/clientConfig/service",
        ADMISSION,
        "",
        "ValidatingWebhookConfiguration",
    ),
    (
        "webhooks/clientConfig/service",
        ADMISSION,
        "",
        "MutatingWebhookConfiguration",
    ),
];

/// The whole built-in configuration, unsorted.
pub(crate) fn builtin() -> TransformerConfig {
    let name = vec![Spec::new("", "", "", "metadata/name", false)];
    TransformerConfig {
        name_prefix: name.clone(),
        name_suffix: name,
        namespace: vec![
            Spec::new("", "", "Namespace", "metadata/name", true),
            Spec::new(
                "apiregistration.k8s.io",
                "",
                "APIService",
                "spec/service/namespace",
                true,
            ),
            Spec::new(
                "apiextensions.k8s.io",
                "",
                "CustomResourceDefinition",
                "spec/conversion/webhook/clientConfig/service/namespace",
                false,
            ),
        ],
        common_labels: common_labels(),
        labels: Vec::new(),
        template_labels: rows(&METADATA_LABELS, true),
        common_annotations: rows(&ANNOTATIONS, true),
        name_reference: name_references(),
        var_reference: var_references(),
        images: rows(&IMAGES, true),
        replicas: ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"]
            .iter()
            .map(|kind| Spec::new("", "", kind, "spec/replicas", true))
            .collect(),
    }
}

fn rows(rows: &[Row], create: bool) -> Vec<Spec> {
    rows.iter()
        .map(|(path, group, version, kind)| Spec::new(group, version, kind, path, create))
        .collect()
}

fn common_labels() -> Vec<Spec> {
    let mut specs = rows(&SELECTORS_CREATED, true);
    for kind in ["Deployment", "StatefulSet"] {
        for path in AFFINITY {
            specs.push(Spec::new(
                "apps",
                "",
                kind,
                &format!("spec/template/spec/{path}"),
                false,
            ));
        }
    }
    specs.extend(rows(&SELECTORS, false));
    specs.extend(rows(&METADATA_LABELS, true));
    specs
}

fn reference(group: &str, version: &str, kind: &str, referrers: Vec<Spec>) -> NameReference {
    NameReference {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        referrers,
    }
}

fn pod_fields(fields: &[&str]) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (kind, pod) in PODS {
        let version = if kind == "Pod" { "v1" } else { "" };
        for field in fields {
            specs.push(Spec::new("", version, kind, &format!("{pod}/{field}"), false));
        }
    }
    specs
}

fn workload_field(field: &str) -> Vec<Spec> {
    WORKLOADS
        .iter()
        .map(|(kind, pod)| Spec::new("", "", kind, &format!("{pod}/{field}"), false))
        .collect()
}

fn name_references() -> Vec<NameReference> {
    let mut references: Vec<NameReference> = ["Deployment", "ReplicationController", "ReplicaSet", "StatefulSet"]
        .iter()
        .map(|kind| {
            let scaled = Spec::new("", "", "HorizontalPodAutoscaler", "spec/scaleTargetRef/name", false);
            reference("", "", kind, vec![scaled])
        })
        .collect();
    let mut config_map = pod_fields(&CONFIG_MAP_FIELDS);
    config_map.extend(rows(&CONFIG_MAP_OTHERS, false));
    references.push(reference("", "v1", "ConfigMap", config_map));
    let mut secret = pod_fields(&SECRET_FIELDS);
    secret.extend(rows(&SECRET_OTHERS, false));
    references.push(reference("", "v1", "Secret", secret));
    references.push(reference("", "v1", "Service", rows(&SERVICE_REFERRERS, false)));
    references.extend(rbac_references());
    references.push(reference(
        "",
        "v1",
        "PersistentVolumeClaim",
        workload_field("volumes/persistentVolumeClaim/claimName"),
    ));
    let volume: [Row; 2] = [
        ("spec/volumeName", "", "", "PersistentVolumeClaim"),
        ("rules/resourceNames", "", "", "ClusterRole"),
    ];
    references.push(reference("", "v1", "PersistentVolume", rows(&volume, false)));
    let storage: [Row; 3] = [
        ("spec/storageClassName", "", "", "PersistentVolume"),
        ("spec/storageClassName", "", "", "PersistentVolumeClaim"),
        ("spec/volumeClaimTemplates/spec/storageClassName", "", "", "StatefulSet"),
    ];
    references.push(reference("storage.k8s.io", "v1", "StorageClass", rows(&storage, false)));
    references.push(reference(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        workload_field("priorityClassName"),
    ));
    // The reference writes a group no object has, so this row never fires; kept for configurations that merge into it.
    let class: [Row; 1] = [("spec/ingressClassName", "", "", "Ingress")];
    references.push(reference(
        "networking.k8s.io/v1",
        "v1",
        "IngressClass",
        rows(&class, false),
    ));
    let policy: [Row; 1] = [("spec/policyName", ADMISSION, "", "ValidatingAdmissionPolicyBinding")];
    references.push(reference(
        ADMISSION,
        "",
        "ValidatingAdmissionPolicy",
        rows(&policy, false),
    ));
    references
}

fn rbac_references() -> Vec<NameReference> {
    let role: [Row; 1] = [("roleRef/name", RBAC, "", "RoleBinding")];
    let cluster_role: [Row; 2] = [
        ("roleRef/name", RBAC, "", "RoleBinding"),
        ("roleRef/name", RBAC, "", "ClusterRoleBinding"),
    ];
    let subjects: [Row; 2] = [
        ("subjects", RBAC, "", "RoleBinding"),
        ("subjects", RBAC, "", "ClusterRoleBinding"),
    ];
    let mut account = rows(&subjects, false);
    account.extend(workload_field("serviceAccountName"));
    vec![
        reference(RBAC, "", "Role", rows(&role, false)),
        reference(RBAC, "", "ClusterRole", rows(&cluster_role, false)),
        reference("", "v1", "ServiceAccount", account),
    ]
}

fn var_references() -> Vec<Spec> {
    let mut specs = Vec::new();
    for (kind, pod) in PODS {
        if kind == "PodTemplate" {
            continue;
        }
        for list in ["containers", "initContainers"] {
            for field in ["args", "command", "env/value", "volumeMounts/mountPath"] {
                specs.push(Spec::new("", "", kind, &format!("{pod}/{list}/{field}"), false));
            }
        }
        let server = match kind {
            "CronJob" => "spec/jobTemplate/spec/template/volumes/nfs/server".to_owned(),
            "StatefulSet" => "spec/volumeClaimTemplates/spec/nfs/server".to_owned(),
            _ => format!("{pod}/volumes/nfs/server"),
        };
        specs.push(Spec::new("", "", kind, &server, false));
    }
    let others: [Row; 9] = [
        ("spec/template/metadata/annotations", "", "", "Deployment"),
        ("spec/rules/host", "", "", "Ingress"),
        ("spec/tls/hosts", "", "", "Ingress"),
        ("spec/tls/secretName", "", "", "Ingress"),
        ("spec/ports/port", "", "", "Service"),
        ("spec/ports/targetPort", "", "", "Service"),
        ("spec/nfs/server", "", "", "PersistentVolume"),
        ("metadata/labels", "", "", ""),
        ("metadata/annotations", "", "", ""),
    ];
    specs.extend(rows(&others, false));
    specs
}
