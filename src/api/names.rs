//! Names that are part of the contract: group, finalizer, labels, annotations, field managers
//! (api 11, contract 10, decisions 6). Everything else takes them from here.

/// API group of our kinds.
pub const GROUP: &str = "stages.metio.wtf";
/// The one version of our kinds.
pub const VERSION: &str = "v1";
/// `apiVersion` of our kinds.
pub const API_VERSION: &str = "stages.metio.wtf/v1";

/// Finalizer on every StageSet.
pub const FINALIZER: &str = "stages.metio.wtf/finalizer";

/// Field manager, event reporter and user agent of the controller.
pub const FIELD_MANAGER: &str = "stageset-controller";
/// Field manager of the command line tool.
pub const CLI_FIELD_MANAGER: &str = "stagesetctl";

/// Longest name of a StageSet and of a stage: both become label values.
pub const MAX_NAME_LENGTH: usize = 63;

/// Labels that are written.
pub mod label {
    /// On a StageInventory: name of the StageSet.
    pub const STAGE_SET: &str = "stages.metio.wtf/stage-set";
    /// On a StageInventory and on every object a stage applies: name of the stage.
    pub const STAGE: &str = "stages.metio.wtf/stage";
    /// On a StageInventory: number of the shard, plain decimal from 0.
    pub const SHARD: &str = "stages.metio.wtf/shard";
    /// On every applied object: name of the StageSet.
    pub const NAME: &str = "stages.metio.wtf/name";
    /// On every applied object: namespace of the StageSet.
    pub const NAMESPACE: &str = "stages.metio.wtf/namespace";
    /// Read, never written: where `version.fromObject` looks by default.
    pub const APP_VERSION: &str = "app.kubernetes.io/version";
}

/// Annotations on a StageSet. A change of any of them wakes the controller.
pub mod annotation {
    /// Token: reconcile now. Lifts dirty halts.
    pub const REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";
    /// Version: approves the transition to exactly that version.
    pub const APPROVED_VERSION: &str = "stages.metio.wtf/approved-version";
    /// Token: clears the version ledger of every stage once.
    pub const RESET_SCOPE: &str = "stages.metio.wtf/reset-scope";
    /// `<stage>@<token>`: clears the revision ledger of that stage once.
    pub const RECONCILE_STAGE: &str = "stages.metio.wtf/reconcile-stage";
    /// Token: passes closed update windows once.
    pub const UPDATE_NOW: &str = "stages.metio.wtf/update-now";
    /// Token: passes all error-budget freezes once.
    pub const BUDGET_OVERRIDE: &str = "stages.metio.wtf/budget-override";
    /// `<stage>@<token>`: promotes that stage once.
    pub const PROMOTE: &str = "stages.metio.wtf/promote";
    /// Version: overrides the desired version while it is below the deployed one.
    pub const ROLLBACK_TO: &str = "stages.metio.wtf/rollback-to";
    /// Free text: bypasses image verification while present.
    pub const SKIP_IMAGE_VERIFICATION: &str = "stages.metio.wtf/skip-image-verification";
    /// Pinned revision: lets a prune that was held go on.
    pub const CONFIRM_PRUNE: &str = "stages.metio.wtf/confirm-prune";
    /// `enabled`: the StageSet cannot be deleted and its objects are not torn down.
    pub const DELETION_PROTECTION: &str = "stages.metio.wtf/deletion-protection";

    /// Every annotation on a StageSet that the controller acts upon.
    pub const ALL: [&str; 11] = [
        REQUESTED_AT,
        APPROVED_VERSION,
        RESET_SCOPE,
        RECONCILE_STAGE,
        UPDATE_NOW,
        BUDGET_OVERRIDE,
        PROMOTE,
        ROLLBACK_TO,
        SKIP_IMAGE_VERIFICATION,
        CONFIRM_PRUNE,
        DELETION_PROTECTION,
    ];

    /// Value that turns a switch such as [`DELETION_PROTECTION`] on.
    pub const ENABLED: &str = "enabled";
    /// Value that turns a behaviour such as [`super::object_annotation::PRUNE`] off.
    pub const DISABLED: &str = "disabled";

    /// Splits the value of an annotation that is for one stage, `<stage>@<token>`, at the first `@`.
    /// `None` where either half is missing: such a value is ignored.
    pub fn stage_token(value: &str) -> Option<(&str, &str)> {
        value
            .split_once('@')
            .filter(|(stage, token)| !stage.is_empty() && !token.is_empty())
    }
}

/// Annotations on applied objects.
pub mod object_annotation {
    /// `disabled` (any case) on a live object: never prune it, never tear it down.
    pub const PRUNE: &str = "stages.metio.wtf/prune";
    /// Any non-empty value on a rendered object: re-create it on an immutable-field conflict.
    pub const FORCE: &str = "stages.metio.wtf/force";
    /// Marker on objects that are kept as they are under the conflict action `KeepExisting`.
    pub const KEEP_EXISTING: &str = "stages.metio.wtf/keep-existing";
    /// Helm's mark of a hook.
    pub const HELM_HOOK: &str = "helm.sh/hook";
}

/// Annotations on Kubernetes Events, the Flux convention.
pub mod event_annotation {
    /// Revision that was applied or attempted.
    pub const REVISION: &str = "stages.metio.wtf/revision";
    /// Reconcile request the event answers.
    pub const TOKEN: &str = "stages.metio.wtf/token";
}

/// Labels and annotations of the ApplySet convention (KEP-3659).
pub mod applyset {
    /// Label of a CRD whose objects may be parents.
    pub const IS_PARENT_TYPE_LABEL: &str = "applyset.kubernetes.io/is-parent-type";
    /// Label of a parent: its id.
    pub const ID_LABEL: &str = "applyset.kubernetes.io/id";
    /// Label of a member: the id of its parent.
    pub const PART_OF_LABEL: &str = "applyset.kubernetes.io/part-of";
    /// Annotation of a parent: `<tool>/<version>`.
    pub const TOOLING_ANNOTATION: &str = "applyset.kubernetes.io/tooling";
    /// Annotation of a parent: sorted `<Kind>.<group>` of its members.
    pub const CONTAINS_GROUP_KINDS_ANNOTATION: &str = "applyset.kubernetes.io/contains-group-kinds";
    /// Annotation of a parent: sorted namespaces of its members other than its own.
    pub const ADDITIONAL_NAMESPACES_ANNOTATION: &str = "applyset.kubernetes.io/additional-namespaces";
}
