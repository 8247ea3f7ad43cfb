//! Every reason a condition or an event of ours can carry, as data (contract 7.5, 8.2, decisions 2, 6).
//!
//! A reason is part of the contract: alerts, runbooks and scripts key on it. Runbook pages, docs
//! tables and events are tested against this one list.

use std::fmt;

/// What a reason says about what comes next (contract 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Steady state.
    Healthy,
    /// Something upstream is not there yet.
    Transient,
    /// An operation failed and is tried again.
    Retrying,
    /// No retry can help; something must change first.
    Terminal,
    /// A deliberate wait, not an error.
    Hold,
}

/// Type of a Kubernetes Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    /// The type as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Where a reason appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Reason of the condition Ready of a StageSet; a transition to it may also be an event.
    Ready(Class),
    /// Reason of another condition only.
    Condition,
    /// Reason of an event only.
    Event,
}

macro_rules! reasons {
    ($( $(#[$meta:meta])* $variant:ident: $place:expr, $event:expr; )+) => {
        /// Reason of a condition or an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $( $(#[$meta])* $variant, )+
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Reason] = &[$(Self::$variant),+];

            /// The reason as it is written on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => stringify!($variant), )+
                }
            }

            /// Where the reason appears.
            pub fn place(self) -> Place {
                match self {
                    $( Self::$variant => $place, )+
                }
            }

            /// Type of the event with this reason; `None` where there is none.
            pub fn event(self) -> Option<EventType> {
                match self {
                    $( Self::$variant => $event, )+
                }
            }
        }
    };
}

const NORMAL: Option<EventType> = Some(EventType::Normal);
const WARNING: Option<EventType> = Some(EventType::Warning);
const NO_EVENT: Option<EventType> = None;

const HEALTHY: Place = Place::Ready(Class::Healthy);
const TRANSIENT: Place = Place::Ready(Class::Transient);
const RETRYING: Place = Place::Ready(Class::Retrying);
const TERMINAL: Place = Place::Ready(Class::Terminal);
const HOLD: Place = Place::Ready(Class::Hold);

reasons! {
    /// All stages are applied, verified and their actions done.
    Succeeded: HEALTHY, NORMAL;
    /// `spec.suspend` is set.
    Suspended: HOLD, NORMAL;
    /// An unfinished run is under way.
    Progressing: HOLD, NO_EVENT;
    /// The spec breaks a rule.
    InvalidSpec: TERMINAL, WARNING;
    /// The source exists but is not ready.
    SourceNotReady: TRANSIENT, NORMAL;
    /// The source, or the artifact of a producer, does not exist.
    ArtifactNotFound: TRANSIENT, NORMAL;
    /// The source cannot be resolved. Terminal where only a change of the spec or the sources helps.
    ResolveFailed: RETRYING, WARNING;
    /// A StageSet in `dependsOn` is not ready.
    DependencyNotReady: TRANSIENT, NORMAL;
    /// `dependsOn` forms a cycle.
    Stalled: TERMINAL, WARNING;
    /// A version is missing or is none.
    InvalidVersion: TERMINAL, WARNING;
    /// The desired version is below the deployed one and downgrades are off.
    DowngradeNotAllowed: TERMINAL, WARNING;
    /// A boundary that would be crossed downward has no way down.
    DowngradeRequiresMigration: TERMINAL, WARNING;
    /// A version change waits for approval.
    AwaitingApproval: HOLD, NORMAL;
    /// The anchor of a migration matches no stage.
    MigrationStageNotFound: TERMINAL, WARNING;
    /// A ladder from an artifact is unusable.
    MigrationArtifactInvalid: TERMINAL, WARNING;
    /// The source of a ladder is not verified.
    MigrationSourceNotVerified: TERMINAL, WARNING;
    /// The source of a ladder is not pinned.
    MigrationSourceNotPinned: TERMINAL, WARNING;
    /// A major version would be crossed without a migration.
    MigrationCoverageMissing: TERMINAL, WARNING;
    /// A migration action failed.
    MigrationFailed: RETRYING, WARNING;
    /// A migration failed repeatedly; halted until requested anew.
    MigrationDirty: TERMINAL, WARNING;
    /// A stage with an unfinished Lifetime action failed repeatedly; halted until requested anew.
    ActionDirty: TERMINAL, WARNING;
    /// A stage failed. Terminal for refused addresses, digests and sizes.
    StageFailed: RETRYING, WARNING;
    /// A rollback was wanted but the last good revision cannot be restored.
    PreviousRevisionUnavailable: TERMINAL, WARNING;
    /// An update window holds a new revision.
    UpdateDeferred: HOLD, NORMAL;
    /// Objects were not ready in time but are still progressing, under `onTimeout: Hold`.
    StageProgressing: HOLD, WARNING;
    /// A prune would delete more than the guard allows.
    PruneHeld: HOLD, WARNING;
    /// Deletion was requested while deletion protection is on.
    DeletionProtected: HOLD, WARNING;
    /// The target cluster denied a request, or does not know a kind.
    RBACDenied: TERMINAL, WARNING;
    /// An image fails a verification policy.
    ImageUnverified: TERMINAL, WARNING;
    /// A soak or an analysis is running.
    Soaking: HOLD, NORMAL;
    /// A promotion waits for a person.
    AwaitingPromotion: HOLD, NORMAL;
    /// A promotion gate is breached.
    PromotionBlocked: HOLD, WARNING;
    /// An error budget is spent.
    BudgetExhausted: HOLD, WARNING;
    /// The source of an error budget cannot be read.
    BudgetSourceUnavailable: HOLD, WARNING;

    /// Reconciling: a failed or waiting run is tried again.
    ProgressingWithRetry: Place::Condition, NO_EVENT;
    /// BaselineValid: every baseline entry names a Lifetime action.
    AllResolved: Place::Condition, NO_EVENT;
    /// BaselineValid: some baseline entries name none.
    Unresolved: Place::Condition, NO_EVENT;

    /// A migration begins an attempt.
    MigrationStarted: Place::Event, NORMAL;
    /// All actions of a migration are done.
    MigrationCompleted: Place::Event, NORMAL;
    /// The first adoption of a version recorded it and ran nothing.
    MigrationsBaselined: Place::Event, NORMAL;
    /// A ladder comes from a source that can be overwritten.
    MigrationSourceMutable: Place::Event, WARNING;
    /// Objects were changed back to what the deployed revision says.
    DriftCorrected: Place::Event, WARNING;
    /// The same field is corrected against the same manager again and again.
    DriftLoop: Place::Event, WARNING;
    /// Drift cannot be corrected for now: the deployed artifact is nowhere to be had.
    DriftDeferred: Place::Event, WARNING;
    /// The last good revisions were restored.
    RolledBack: Place::Event, WARNING;
    /// An `onFailure` action failed.
    OnFailureAction: Place::Event, WARNING;
    /// An `onRollback` action failed.
    OnRollbackAction: Place::Event, WARNING;
    /// The rollback store could not be written or read.
    RollbackStoreFailed: Place::Event, WARNING;
    /// A new StageSet found a ledger with completions.
    LedgerAdopted: Place::Event, NORMAL;
    /// The witness of a completion cannot be read.
    LedgerAnchorUnreadable: Place::Event, WARNING;
    /// The witness of a completion is gone; the completion was dropped.
    LedgerInvalidated: Place::Event, NORMAL;
    /// An action of scope Version was not run again at a new revision.
    ActionSkipped: Place::Event, NORMAL;
    /// A baseline entry names no Lifetime action. On the StageLedger.
    BaselineInvalid: Place::Event, WARNING;
    /// A lost inventory was rebuilt from labels.
    InventoryReconstructed: Place::Event, WARNING;
    /// A namespace that was to be deleted stays, for it holds something that is to stay.
    NamespaceKept: Place::Event, WARNING;
    /// The finalizer was dropped although the teardown failed.
    TeardownForced: Place::Event, WARNING;
    /// Image verification was bypassed by annotation.
    ImageVerificationSkipped: Place::Event, WARNING;
    /// An object with a Helm hook annotation was applied like any other.
    HelmHookApplied: Place::Event, WARNING;
    /// The tenant may not watch a kind it deploys; it is polled.
    WatchForbidden: Place::Event, WARNING;
    /// This replica became the leader. On the Lease.
    LeaderElection: Place::Event, NORMAL;
}

impl Reason {
    /// The reason with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
    }

    /// What the reason says about what comes next, for a reason of the condition Ready. A single
    /// outcome may be sharper: `StageFailed` for a refused address is terminal.
    pub fn class(self) -> Option<Class> {
        match self.place() {
            Place::Ready(class) => Some(class),
            Place::Condition | Place::Event => None,
        }
    }

    /// Whether no retry can help by the nature of the reason.
    pub fn is_terminal(self) -> bool {
        self.class() == Some(Class::Terminal)
    }

    /// Slug of the runbook page; `None` where there is none. Every reason of Ready has one (contract 15).
    pub fn runbook(self) -> Option<String> {
        match (self, self.place()) {
            (_, Place::Ready(_)) => Some(self.as_str().to_ascii_lowercase()),
            (Self::TeardownForced, _) => Some("teardown-forced".to_owned()),
            _ => None,
        }
    }

    /// Whether a Ready message with this reason ends in a link to its runbook page (contract 7.6).
    pub fn has_runbook_suffix(self) -> bool {
        self.class().is_some() && !matches!(self, Self::Succeeded | Self::Suspended | Self::Progressing)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Condition types of our kinds.
pub mod condition_type {
    /// Summary of a StageSet.
    pub const READY: &str = "Ready";
    /// Work is going on or will be tried again. Present only while true.
    pub const RECONCILING: &str = "Reconciling";
    /// Nothing will change without help. Present only while true.
    pub const STALLED: &str = "Stalled";
    /// Whether the baseline of a StageLedger resolves.
    pub const BASELINE_VALID: &str = "BaselineValid";
}

/// Runbook pages that belong to alerts, not to reasons (contract 15.3).
pub const OPERATIONAL_RUNBOOKS: [&str; 6] = [
    "controller-pod-down",
    "reconcile-latency",
    "workqueue-saturation",
    "webhook-cert-renewal",
    "watch-engagement",
    "teardown-forced",
];
