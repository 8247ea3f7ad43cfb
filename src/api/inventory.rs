//! The StageInventory: what a stage has applied (api 7, decisions 6).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{SecretKeyRef, saturating_i32};
use super::stageset::KubeConfig;

/// Objects one shard accounts for. Kept in spec, so that backups that restore only spec keep it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stages.metio.wtf",
    version = "v1",
    kind = "StageInventory",
    plural = "stageinventories",
    singular = "stageinventory",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "A StageInventory lists objects that a stage has applied, so that those that leave it can be pruned. Written by the controller only.",
    printcolumn = r#"{"name":"Stage","type":"string","jsonPath":".metadata.labels.stages\\.metio\\.wtf/stage"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StageInventorySpec {
    /// Objects of this shard, sorted by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<InventoryEntry>,
    /// ServiceAccount the objects were applied as. Pruning uses the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Index of the stage in spec.stages, from 0. Orders the teardown.
    #[serde(
        default,
        deserialize_with = "saturating_i32",
        skip_serializing_if = "Option::is_none"
    )]
    pub stage_position: Option<i32>,
    /// Cluster the objects were applied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<InventoryTarget>,
}

/// One object: its identity, never its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryEntry {
    /// Identity of the object, as namespace_name_group_kind.
    pub id: String,
    /// API version it was applied at last, for example apps/v1.
    pub v: String,
}

/// A cluster, by the reference that led to it and by its own identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryTarget {
    /// Identity of the cluster: the UID of its kube-system namespace, or a hash of its address and
    /// certificate authority.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The kubeconfig reference of the StageSet at the time. Absent for the local cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_config: Option<KubeConfig>,
}

impl InventoryTarget {
    /// The kubeconfig Secret, where the cluster is reached through one.
    pub fn secret_ref(&self) -> Option<&SecretKeyRef> {
        self.kube_config.as_ref()?.secret_ref.as_ref()
    }
}
