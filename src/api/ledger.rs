//! The StageLedger: Lifetime actions that are done (api 8).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::conditions_schema;

/// Actions to be treated as done.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "stages.metio.wtf",
    version = "v1",
    kind = "StageLedger",
    plural = "stageledgers",
    singular = "stageledger",
    shortname = "sledger",
    namespaced,
    status = "StageLedgerStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A StageLedger records the actions of scope Lifetime that are done for the StageSet of the same name. It outlives that StageSet.",
    printcolumn = r#"{"name":"Completed","type":"string","priority":1,"jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StageLedgerSpec {
    /// Actions to be treated as done without running them. Removing an entry revokes nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baseline: Vec<BaselineEntry>,
}

/// One action asserted to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BaselineEntry {
    /// Name of the action.
    pub action: String,
    /// Name of its stage.
    pub stage: String,
}

/// What is recorded as done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageLedgerStatus {
    /// Actions that are done, one entry per stage and action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["stage", "action"]))]
    pub completed_actions: Vec<CompletedAction>,
    /// BaselineValid: whether every entry of the baseline names a Lifetime action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// The completed actions in one line, as stage/action, for kubectl get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

impl StageLedgerStatus {
    /// Whether the action of the stage is recorded as done, however it came about.
    pub fn is_completed(&self, stage: &str, action: &str) -> bool {
        self.completed_actions
            .iter()
            .any(|done| done.stage == stage && done.action == action)
    }

    /// Records a completion; one that is there already stays as it is. Whether anything changed.
    pub fn record(&mut self, completion: CompletedAction) -> bool {
        let is_new = !self.is_completed(&completion.stage, &completion.action);
        if is_new {
            self.completed_actions.push(completion);
            self.summarise();
        }
        is_new
    }

    /// Drops the completions for which `holds` is false.
    pub fn retain(&mut self, holds: impl FnMut(&CompletedAction) -> bool) {
        self.completed_actions.retain(holds);
        self.summarise();
    }

    /// A printer column shows one value only, so the list is kept as one text as well.
    fn summarise(&mut self) {
        let names = self
            .completed_actions
            .iter()
            .map(|done| format!("{}/{}", done.stage, done.action));
        self.summary = Some(names.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty());
    }
}

/// One action that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletedAction {
    /// Name of the action.
    pub action: String,
    /// Witness of an anchored completion: while it exists unchanged, the completion holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<RecordedAnchor>,
    /// When it was done, or asserted to be.
    pub completed_at: Time,
    /// Digest of the action's content, for audits only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Executed when the controller ran it, Baselined when it was asserted.
    pub origin: CompletionOrigin,
    /// Name of its stage.
    pub stage: String,
}

wire_enum! {
    /// How a completion came about.
    CompletionOrigin {
        Executed = "Executed",
        Baselined = "Baselined",
    }
}

/// A witness object as it was when the action completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedAnchor {
    /// API version of the witness.
    pub api_version: String,
    /// Kind of the witness.
    pub kind: String,
    /// Name of the witness.
    pub name: String,
    /// UID of the witness; another one means that it was re-created.
    pub uid: String,
}
