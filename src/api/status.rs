//! Status of a StageSet (api 6, decisions 3). Written by the controller only.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::conditions_schema;

/// What the controller has observed and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageSetStatus {
    /// Failures in a row of a stage whose Lifetime action is incomplete; at the limit the run halts
    /// as ActionDirty until it is requested anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_failure_count: Option<i32>,
    /// Present while the error budget of the StageSet is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_freeze: Option<BudgetFreeze>,
    /// Ready, and while they hold, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// Migration actions done in the version change under way, as migration@digest/action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executed_migration_actions: Vec<String>,
    /// Migrations done in the version change under way, as migration@digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executed_migrations: Vec<String>,
    /// Revision per artifact (namespace/name) of the last run that succeeded in full.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub last_applied_revisions: BTreeMap<String, String>,
    /// What a rollback restores: one entry per stage. Only with spec.rollbackOnFailure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_applied_snapshot: Vec<SnapshotEntry>,
    /// Revision per artifact (namespace/name) of the current or last run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub last_attempted_revisions: BTreeMap<String, String>,
    /// Last value of the annotation stages.metio.wtf/budget-override that was honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_budget_override: Option<String>,
    /// Last value of the annotation reconcile.fluxcd.io/requestedAt that was handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
    /// Last value of the annotation stages.metio.wtf/reset-scope that was honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reset_scope: Option<String>,
    /// Last value of the annotation stages.metio.wtf/update-now that was honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_update_override: Option<String>,
    /// Failures of a migration in a row; at the limit the run halts as MigrationDirty until it is
    /// requested anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_failure_count: Option<i32>,
    /// Last generation of the spec that was acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Migrations the next run will execute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_migrations: Vec<PendingMigration>,
    /// Present while new revisions are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_update: Option<PendingUpdate>,
    /// Version that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_version: Option<String>,
    /// The run under way. Absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunStatus>,
    /// One entry per stage, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<StageStatus>,
    /// Version in place. Advanced at the end of a run in which everything succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl StageSetStatus {
    /// Entry of the named stage.
    pub fn stage(&self, name: &str) -> Option<&StageStatus> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

/// A run under way: what it was started for and what it has pinned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Artifacts pinned for this run, one per stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["stage"]))]
    pub artifacts: Vec<PinnedArtifact>,
    /// How often the run has been tried, counted from 1.
    pub attempt: i32,
    /// Generation of the spec the run was started for.
    pub generation: i64,
    /// When the run began.
    pub started_at: MicroTime,
    /// Token of the update-now that the run began with: it passes update windows until it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_override: Option<String>,
}

/// An artifact as it was when the run pinned it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedArtifact {
    /// Digest of the archive, as algorithm:hex.
    pub digest: String,
    /// Kind of the source object that published the artifact.
    pub kind: String,
    /// Name of that object.
    pub name: String,
    /// Namespace of that object.
    pub namespace: String,
    /// Revision of the artifact.
    pub revision: String,
    /// Stage that deploys the artifact.
    pub stage: String,
    /// Address of the archive.
    pub url: String,
}

/// State of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Digest of the artifact that was applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_digest: Option<String>,
    /// Revision that was really applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_revision: Option<String>,
    /// Address of the artifact that was applied last.
    #[serde(rename = "appliedURL", default, skip_serializing_if = "Option::is_none")]
    pub applied_url: Option<String>,
    /// Digest of the artifact the stage is working on, or worked on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted_digest: Option<String>,
    /// Revision the stage is working on, or worked on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted_revision: Option<String>,
    /// Present while the error budget of the stage is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_freeze: Option<BudgetFreeze>,
    /// Number of objects in the inventory of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries_count: Option<i64>,
    /// Actions of scope Revision that are done at ledgerRevision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executed_actions: Vec<String>,
    /// Actions of scope Version that are done at ledgerVersion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executed_version_actions: Vec<String>,
    /// Digest over everything that decides what the stage applies: artifact, variables, patches and
    /// the stage's own spec. A change of it starts the stage again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_digest: Option<String>,
    /// Last value of the annotation stages.metio.wtf/promote that was honoured for this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_promotion: Option<String>,
    /// Last value of the annotation stages.metio.wtf/reconcile-stage that was honoured for this stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
    /// Revision that executedActions belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_revision: Option<String>,
    /// Version that executedVersionActions belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_version: Option<String>,
    /// Detail of a failure or a hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Name of the stage.
    pub name: String,
    /// What the stage is doing: Pending, Applying, Pruning, Verifying, Ready or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<StagePhase>,
    /// State of the promotion gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion_state: Option<PromotionState>,
    /// Number of StageInventory objects of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<i32>,
    /// The finer part of the phase: the step of the run the stage is at, for example PreActions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub step: Option<Step>,
    /// When the stage came to that step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_started_at: Option<MicroTime>,
    /// What the stage waits for, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

impl StageStatus {
    /// An entry for a stage nothing is known about yet.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

wire_enum! {
    /// What a stage is doing. Only `Ready` opens its gate.
    StagePhase {
        Pending = "Pending",
        Applying = "Applying",
        Pruning = "Pruning",
        Verifying = "Verifying",
        Ready = "Ready",
        Failed = "Failed",
    }
}

wire_enum! {
    /// Step of a run a stage is at: the points at which a run may wait, or be resumed after a
    /// restart (run 3.1). The schema leaves it open, so that a later release may add steps.
    Step {
        /// Migrations anchored to the stage run.
        Migrate = "Migrate",
        /// The `pre` actions run.
        PreActions = "PreActions",
        /// Fetch, decrypt, substitute and build.
        Build = "Build",
        /// Inventory is recorded and objects are applied.
        Apply = "Apply",
        /// Objects are awaited.
        Verify = "Verify",
        /// The `post` actions run.
        PostActions = "PostActions",
        /// The promotion gate is awaited.
        Promote = "Promote",
        /// The `onFailure` actions run.
        OnFailure = "OnFailure",
        /// The last good revision is restored.
        Rollback = "Rollback",
        /// The stage is through.
        Done = "Done",
    }
}

/// What a rollback restores for one stage. Pointers only, never content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotEntry {
    /// Digest of the archive.
    pub digest: String,
    /// Revision of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Name of the stage.
    pub stage: String,
    /// SHA-256 over the sorted variables that were substituted; empty when there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substitution_digest: Option<String>,
    /// Address of the archive.
    pub url: String,
}

/// A migration the next run will execute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingMigration {
    /// Verbs of its actions, in order; those of down when the version goes down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    /// Digest of its content, which keys the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Constraint on the deployed version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Name of the migration.
    pub name: String,
    /// Stage before which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Version boundary.
    pub to: String,
}

/// New revisions that are held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingUpdate {
    /// When the next update window opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_window_opens: Option<Time>,
    /// Revision per artifact (namespace/name) that waits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revisions: BTreeMap<String, String>,
}

/// A spent error budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetFreeze {
    /// The freeze is only recorded; nothing is held.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub dry_run: bool,
    /// Threshold below which it froze.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_threshold: Option<String>,
    /// Budget that remains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    /// Threshold at which it resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_threshold: Option<String>,
    /// When it froze.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// State of a promotion gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionState {
    /// Revision that the gate reverted; it is not tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted_revision: Option<String>,
    /// Failed rounds of the analysis in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis_failures: Option<i32>,
    /// Event check that is breached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_check: Option<String>,
    /// Last round of the analysis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_analysis: Option<AnalysisResult>,
    /// Events the breached check counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_events: Option<i32>,
    /// Restarts the breached check counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_restarts: Option<i32>,
    /// Soaking, Analyzing, Blocked, AwaitingManual or Promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Restarts that were there at the last promotion, per check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart_baseline: Vec<RestartBaseline>,
    /// Restart check that is breached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_check: Option<String>,
    /// When the gate came to its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When the soak ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_until: Option<Time>,
}

/// Restarts a check starts counting from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartBaseline {
    /// Name of the check.
    pub name: String,
    /// Restarts at the last promotion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i32>,
}

/// One round of an analysis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisResult {
    /// Result per check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<AnalysisCheckResult>,
    /// Whether all checks held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    /// When the round took place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Result of one check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisCheckResult {
    /// Why the source could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Name of the check.
    pub name: String,
    /// Whether the value was within bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}
