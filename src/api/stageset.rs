//! The StageSet and its spec (api 5).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::Action;
use super::common::{Duration, LocalRef, SecretKeyRef, Timestamp};
use super::metric::ErrorBudget;
use super::stage::{IgnoreRule, Stage};
use super::status::StageSetStatus;
use super::version::{Migration, MigrationsSource, VersionSpec};

/// What to deploy, in which stages, and under which rules.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stages.metio.wtf",
    version = "v1",
    kind = "StageSet",
    plural = "stagesets",
    singular = "stageset",
    namespaced,
    status = "StageSetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A StageSet deploys artifacts in stages: one after another, each verified before the next begins.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StageSetSpec {
    /// Decrypts SOPS-encrypted files of all stages, in memory, before they are built. Not supported by
    /// this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decryption: Option<Decryption>,
    /// StageSets that must be ready before this one does anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// How often the deployed state is checked for drift and corrected, where that is more often
    /// than interval; at least 1s. Defaults to interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_detection_interval: Option<Duration>,
    /// Holds new revisions while an error budget is spent. Not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_budget: Option<ErrorBudget>,
    /// Fields of live objects that are left to others, in all stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<IgnoreRule>,
    /// How often the StageSet is reconciled when nothing else wakes it, for example 10m; what is shorter
    /// than 1s counts as 1s. Defaults to the controller's default interval; 0s means the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// Deploys to another cluster. Inventories, ledgers and status stay on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "has(self.configMapRef) || has(self.secretRef)",
            "message": "spec.kubeConfig needs one of spec.kubeConfig.secretRef and spec.kubeConfig.configMapRef",
        },
        {
            "rule": "!(has(self.configMapRef) && has(self.secretRef))",
            "message": "spec.kubeConfig.secretRef and spec.kubeConfig.configMapRef exclude each other",
        },
    ]))]
    pub kube_config: Option<KubeConfig>,
    /// Actions that run when the deployed version crosses a boundary. Needs version. Not supported by
    /// this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<Migration>,
    /// Takes the migrations from an artifact. Needs version; excludes migrations. Not supported by this
    /// version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations_source_ref: Option<MigrationsSource>,
    /// Actions that run, best effort, after a rollback. Not supported by this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_rollback: Vec<Action>,
    /// What happens when objects are not ready in time though none has failed: Hold goes on waiting,
    /// Rollback treats it as a failure. Unset, it is a failure. Rollback is not supported by this
    /// version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<TimeoutPolicy>,
    /// How soon a failed run, or one that waits for something, is tried again; at least 1s. Defaults to
    /// interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_interval: Option<Duration>,
    /// Restores the last good revisions after a failed run. Defaults to false. Not supported by this
    /// version.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub rollback_on_failure: bool,
    /// ServiceAccount in the namespace of the StageSet that every operation on the target cluster is
    /// done as. Unset, the controller acts as itself, or as the user of the kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// The stages, in the order of the rollout.
    #[schemars(length(min = 1))]
    pub stages: Vec<Stage>,
    /// Pauses the StageSet; what is deployed stays as it is. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub suspend: bool,
    /// How long the objects of a stage may take to become ready. Defaults to 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// When new revisions may be deployed; 100 windows at most. Defaults to always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_windows: Vec<UpdateWindow>,
    /// Where the version being deployed is declared. Without it there are no migrations and no
    /// actions of scope Version. Not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionSpec>,
    /// What a closed window holds: Updates (the default), or All, which pauses the correction of
    /// drift as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_scope: Option<WindowScope>,
}

/// Decryption of SOPS files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decryption {
    /// How files are encrypted: sops.
    pub provider: DecryptionProvider,
    /// Secret with the keys: age keys in entries ending in .agekey, armored PGP keys in entries
    /// ending in .asc. Left out, a cloud key service is used with the controller's own credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
}

wire_enum! {
    /// How files are encrypted.
    DecryptionProvider {
        Sops = "sops",
    }
}

/// A StageSet that must be ready first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Lowest version the other StageSet must have deployed, for example 1.4.0. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<String>,
    /// Name of the other StageSet.
    pub name: String,
    /// Namespace of the other StageSet. Defaults to the own one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Access to another cluster. Exactly one of secretRef and configMapRef.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfig {
    /// ConfigMap that describes a cloud cluster reached with workload identity. Not supported by this
    /// version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<LocalRef>,
    /// Secret with a self-contained kubeconfig, under the key value unless key says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
}

wire_enum! {
    /// What happens when objects are not ready in time though none has failed.
    TimeoutPolicy {
        Hold = "Hold",
        Rollback = "Rollback",
    }
}

/// A span of time in which new revisions may, or may not, be deployed. It recurs with schedule and
/// duration, or happens once with from and to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateWindow {
    /// Length of a recurring window, for example 2h; at most 8784h (366 days).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
    /// Start of a window that happens once, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Start of a recurring window as a cron expression of five fields, for example 0 22 * * 1-5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// IANA name of the time zone of the schedule, for example Europe/Berlin. Defaults to UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// End of a window that happens once, exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// Whether the window allows or denies: Deny wins; with at least one Allow window, one of them
    /// must be open.
    #[serde(rename = "type")]
    pub window_type: WindowType,
}

wire_enum! {
    /// Whether a window allows or denies.
    WindowType {
        Allow = "Allow",
        Deny = "Deny",
    }
}

wire_enum! {
    /// What a closed window holds.
    WindowScope {
        Updates = "Updates",
        All = "All",
    }
}
