//! One stage of a StageSet (api 5.6).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::Action;
use super::common::{Duration, ObjectRef, SourceReference, non_empty};
use super::metric::ErrorBudget;
use super::promotion::Promotion;
use super::stageset::TimeoutPolicy;

/// One stage: what to deploy, how, and what must hold before the next stage begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Actions around the stage. Not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<StageActions>,
    /// Applies objects with helm.sh/hook annotations like any other, with a warning event. False
    /// leaves them out. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply_helm_hook_resources: Option<bool>,
    /// What to do when an object cannot be updated in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_policy: Option<ConflictPolicy>,
    /// Holds a new revision from entering this stage while an error budget is spent. Not supported by
    /// this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_budget: Option<ErrorBudget>,
    /// Re-creates objects that cannot be updated in place; the same as conflictPolicy.default
    /// Recreate. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub force: bool,
    /// Fields of live objects that are left to others, in addition to spec.ignore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<IgnoreRule>,
    /// Role of the stage that migrations may anchor to, so that one ladder fits StageSets with
    /// different stage names. Not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_anchor: Option<String>,
    /// Name of the stage, unique in the StageSet; at most 63 lower-case letters, digits and hyphens.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// What happens when the objects are not ready in time. Defaults to spec.onTimeout. Rollback is
    /// not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<TimeoutPolicy>,
    /// Kustomize patches on the built objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<Patch>,
    /// Directory of the artifact to build. Defaults to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Variables to substitute in the built manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_build: Option<PostBuild>,
    /// What must hold once the stage is ready before the next one begins. Defaults to nothing. Not
    /// supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,
    /// Deletes objects that left the stage, and all of them with the StageSet. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// What counts as ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_checks: Option<ReadyChecks>,
    /// ServiceAccount in the namespace of the StageSet that this stage acts as. Defaults to
    /// spec.serviceAccountName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Artifact to deploy.
    pub source_ref: SourceReference,
    /// How long the objects of the stage may take to become ready. Defaults to spec.timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

impl Stage {
    /// Whether objects that left the stage are deleted.
    pub fn prunes(&self) -> bool {
        self.prune.unwrap_or(true)
    }

    /// Directory of the artifact to build, `./` when unset.
    pub fn path(&self) -> &str {
        non_empty(&self.path).unwrap_or("./")
    }

    /// What to do with an object no conflict rule matches (run 16.6).
    pub fn conflict_default(&self) -> ConflictAction {
        let authored = self.conflict_policy.as_ref().and_then(|policy| policy.default.clone());
        authored.unwrap_or(if self.force {
            ConflictAction::Recreate
        } else {
            ConflictAction::Fail
        })
    }

    /// Whether objects carrying Helm hook annotations are applied.
    pub fn applies_helm_hooks(&self) -> bool {
        self.apply_helm_hook_resources.unwrap_or(true)
    }
}

/// Actions around a stage, each list in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageActions {
    /// Run, best effort, when the stage fails from the apply onward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_failure: Vec<Action>,
    /// Run once the objects are ready; a failure keeps the stage from being ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post: Vec<Action>,
    /// Run before the stage is built; a failure leaves the stage untouched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre: Vec<Action>,
}

/// What to do when an object cannot be updated in place because a changed field is immutable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictPolicy {
    /// What to do when no rule matches: Fail (the default), Recreate, or KeepExisting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<ConflictAction>,
    /// Rules for some objects; the first that matches wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ConflictRule>,
}

/// What to do with the objects a target matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictRule {
    /// What to do: Fail, Recreate (delete and create again), or KeepExisting (leave it as it is).
    pub action: ConflictAction,
    /// Accepts that Recreate of a PersistentVolumeClaim or PersistentVolume loses data. Defaults to
    /// false, which refuses it.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub allow_data_loss: bool,
    /// Objects the rule is for; an empty target matches all.
    pub target: ConflictTarget,
}

wire_enum! {
    /// What to do with an object that cannot be updated in place.
    ConflictAction {
        Fail = "Fail",
        Recreate = "Recreate",
        KeepExisting = "KeepExisting",
    }
}

/// Objects by equality of the given parts; a part left out matches all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictTarget {
    /// API version, for example batch/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Fields of live objects that are left to others: sent when the object is created, never
/// corrected afterwards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IgnoreRule {
    /// JSON pointers (RFC 6901) to the fields, for example /spec/replicas.
    pub paths: Vec<String>,
    /// Objects the rule is for. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Selector>,
}

/// A kustomize patch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Patch {
    /// A strategic merge patch or a JSON Patch, as YAML or JSON text.
    pub patch: String,
    /// Objects to patch. Left out, a strategic merge patch names its own object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Selector>,
}

/// Selects built objects; all given parts must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Annotation selector, in the form of a label selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation_selector: Option<String>,
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Label selector, for example app=web,tier!=cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// Name, as an anchored regular expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace, as an anchored regular expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// API version without the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Variables to substitute in the built manifests, written there as ${name}.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostBuild {
    /// Variables and their values; they win over substituteFrom.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub substitute: BTreeMap<String, String>,
    /// ConfigMaps and Secrets whose keys are variables; later ones win over earlier ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub substitute_from: Vec<SubstituteReference>,
}

/// A ConfigMap or Secret in the namespace of the StageSet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubstituteReference {
    /// ConfigMap or Secret.
    pub kind: SubstituteKind,
    /// Name of the object.
    pub name: String,
    /// Goes on when the object does not exist. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub optional: bool,
}

wire_enum! {
    /// Kind of a variable source.
    SubstituteKind {
        ConfigMap = "ConfigMap",
        Secret = "Secret",
    }
}

/// What counts as ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadyChecks {
    /// Waits for these objects, and for applied ones of kinds that exprs judge, in place of all applied
    /// ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ObjectRef>,
    /// Does not wait for anything: the stage counts as ready once it is applied. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub disable_wait: bool,
    /// Own rules of readiness for some kinds, in CEL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exprs: Vec<ReadyExpr>,
    /// How long the objects may take to become ready. Defaults to the timeout of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

/// Readiness of one kind, as CEL expressions over apiVersion, kind, metadata, spec and status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadyExpr {
    /// API version of the kind; only the group is compared.
    pub api_version: String,
    /// True when an object is ready, for example status.phase == 'Running'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// True when an object has failed for good. Looked at before current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// True while an object is still converging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<String>,
    /// Kind the rules are for.
    pub kind: String,
}
