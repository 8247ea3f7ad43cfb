//! Wire types of the `stages.metio.wtf` group and of the Flux sources we read. Imports nothing of ours.
//!
//! Decoding is lenient wherever a person authors the value: a malformed duration, an unknown enum
//! value or an odd time decodes into a value that `rules::spec` then refuses by name. One bad object
//! must never break the list or the watch of all the others.

#[macro_use]
mod wire_enum;

pub mod action;
pub mod common;
pub mod crd;
pub mod inventory;
pub mod ledger;
pub mod metric;
pub mod names;
pub mod promotion;
pub mod reason;
pub mod stage;
pub mod stageset;
pub mod status;
pub mod version;

pub use action::{
    Action, ActionScope, ApplyAction, Cascade, CompletionAnchor, DeleteAction, HttpAction, HttpMethod, JobAction,
    PatchAction, PatchTarget, PatchType, Verb, VerbCount, WaitAction,
};
pub use common::{
    Duration, LabelSelector, LabelSelectorRequirement, LocalRef, ObjectRef, SecretKeyRef, SourceReference, Timestamp,
};
pub use crd::crds;
pub use inventory::{InventoryEntry, InventoryTarget, StageInventory, StageInventorySpec};
pub use ledger::{
    BaselineEntry, CompletedAction, CompletionOrigin, RecordedAnchor, StageLedger, StageLedgerSpec, StageLedgerStatus,
};
pub use metric::{ErrorBudget, MetricSource, PrometheusSource, SourceErrorPolicy, Threshold, WebhookSource};
pub use promotion::{
    Analysis, AnalysisCheck, AnalysisSourceErrorPolicy, EventCheck, EventGate, FastTrack, GateFailurePolicy, Promotion,
    RestartCheck, RestartGate,
};
pub use reason::Reason;
pub use stage::{
    ConflictAction, ConflictPolicy, ConflictRule, ConflictTarget, IgnoreRule, Patch, PostBuild, ReadyChecks, ReadyExpr,
    Selector, Stage, StageActions, SubstituteKind, SubstituteReference,
};
pub use stageset::{
    Decryption, DecryptionProvider, Dependency, KubeConfig, StageSet, StageSetSpec, TimeoutPolicy, UpdateWindow,
    WindowScope, WindowType,
};
pub use status::{
    AnalysisCheckResult, AnalysisResult, BudgetFreeze, PendingMigration, PendingUpdate, PinnedArtifact, PromotionState,
    RestartBaseline, RunStatus, SnapshotEntry, StagePhase, StageSetStatus, StageStatus, Step,
};
pub use version::{ApprovalMode, Migration, MigrationsSource, VersionFromArtifact, VersionFromObject, VersionSpec};

pub use wire_enum::WireEnum;

#[cfg(test)]
mod tests;
