//! Kinds by name, and the small objects tests roll out.

use std::fmt;

use serde_json::{Value, json};

/// A kind of object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub api_version: String,
    pub kind: String,
}

impl Kind {
    pub fn new(api_version: &str, kind: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }
    }

    /// The kind an object says it is.
    pub fn of(object: &Value) -> Self {
        let text = |key: &str| {
            object[key]
                .as_str()
                .unwrap_or_else(|| panic!("no {key} in {object}"))
                .to_owned()
        };
        Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
        }
    }

    /// Empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub fn version(&self) -> &str {
        self.api_version
            .rsplit_once('/')
            .map_or(&self.api_version, |(_, version)| version)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

macro_rules! kinds {
    ($($function:ident = $api_version:literal $kind:literal;)*) => {
        $(pub fn $function() -> Kind { Kind::new($api_version, $kind) })*
    };
}

kinds! {
    configmaps = "v1" "ConfigMap";
    secrets = "v1" "Secret";
    services = "v1" "Service";
    namespaces = "v1" "Namespace";
    pods = "v1" "Pod";
    claims = "v1" "PersistentVolumeClaim";
    service_accounts = "v1" "ServiceAccount";
    deployments = "apps/v1" "Deployment";
    replica_sets = "apps/v1" "ReplicaSet";
    stateful_sets = "apps/v1" "StatefulSet";
    daemon_sets = "apps/v1" "DaemonSet";
    autoscalers = "autoscaling/v2" "HorizontalPodAutoscaler";
    budgets = "policy/v1" "PodDisruptionBudget";
    jobs = "batch/v1" "Job";
    events = "events.k8s.io/v1" "Event";
    leases = "coordination.k8s.io/v1" "Lease";
    crds = "apiextensions.k8s.io/v1" "CustomResourceDefinition";
    roles = "rbac.authorization.k8s.io/v1" "Role";
    stagesets = "stages.metio.wtf/v1" "StageSet";
    inventories = "stages.metio.wtf/v1" "StageInventory";
    ledgers = "stages.metio.wtf/v1" "StageLedger";
    external_artifacts = "source.toolkit.fluxcd.io/v1" "ExternalArtifact";
    git_repositories = "source.toolkit.fluxcd.io/v1" "GitRepository";
    oci_repositories = "source.toolkit.fluxcd.io/v1" "OCIRepository";
    buckets = "source.toolkit.fluxcd.io/v1" "Bucket";
    widgets = "fixture.stageset.test/v1" "Widget";
    snippets = "fixture.stageset.test/v1" "Snippet";
}

/// Documents of a YAML text as JSON; empty ones are left out.
pub fn documents(text: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap_or_else(|e| panic!("not YAML: {e}\n{text}")))
        .filter(|value| !value.is_null())
        .collect()
}

/// YAML of a ConfigMap with one key, `value`.
pub fn configmap(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  value: {value:?}\n")
}

/// YAML of a custom resource whose readiness the test decides.
pub fn widget(name: &str, size: u32) -> String {
    format!("apiVersion: fixture.stageset.test/v1\nkind: Widget\nmetadata:\n  name: {name}\nspec:\n  size: {size}\n")
}

/// YAML of a claim that no storage class will ever bind: in progress for ever, at no cost.
pub fn unbound_claim(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\nspec:\n  storageClassName: none-such\n  \
         accessModes: [ReadWriteOnce]\n  resources:\n    requests:\n      storage: 1Mi\n"
    )
}

/// YAML of a Deployment; simulated nodes make it available at once.
pub fn deployment(name: &str, image: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  replicas: {replicas}\n  selector:\n    \
         matchLabels:\n      app: {name}\n  template:\n    metadata:\n      labels:\n        app: {name}\n    spec:\n      \
         containers:\n        - name: main\n          image: {image}\n"
    )
}

/// YAML of a Service.
pub fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector:\n    app: {name}\n  ports:\n    \
         - port: {port}\n"
    )
}

/// Several documents in one file.
pub fn multi(documents: &[String]) -> String {
    documents.join("---\n")
}

/// Status of a Widget: ready, not ready yet, or failed for good.
pub fn widget_status(generation: i64, ready: bool, stalled: bool) -> Value {
    let condition = |kind: &str, status: bool| {
        json!({ "type": kind, "status": if status { "True" } else { "False" }, "reason": "Test", "message": "set by the test",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    json!({ "observedGeneration": generation, "conditions": [condition("Ready", ready), condition("Stalled", stalled)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_manifests_are_what_they_say() {
        let text = multi(&[
            configmap("a", "1"),
            widget("b", 2),
            unbound_claim("c"),
            deployment("d", "img", 3),
            service("e", 80),
        ]);
        let kinds: Vec<String> = documents(&text).iter().map(|o| Kind::of(o).kind).collect();
        assert_eq!(
            kinds,
            ["ConfigMap", "Widget", "PersistentVolumeClaim", "Deployment", "Service"]
        );
    }

    #[test]
    fn a_kind_is_taken_apart() {
        let kind = Kind::new("apps/v1", "Deployment");
        assert_eq!((kind.group(), kind.version()), ("apps", "v1"));
        assert_eq!((configmaps().group(), configmaps().version()), ("", "v1"));
    }
}
