//! Actions: the six verbs and what is common to them (api 4.2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Duration, LabelSelector, ObjectRef, SecretKeyRef, SourceReference, saturating_i32};

/// One step that runs around a stage, a migration or a rollback. Exactly one of patch, http, wait,
/// job, delete and apply says what it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    /// Applies manifests from an artifact, outside of any inventory: they are never pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<ApplyAction>,
    /// Object in the namespace of the StageSet that stands for the effect of a Lifetime action:
    /// when it is gone or was re-created, the action runs again. Only with scope Lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_anchor: Option<CompletionAnchor>,
    /// Deletes one object. An object that does not exist counts as deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<DeleteAction>,
    /// Sends an HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpAction>,
    /// Runs the Jobs of an artifact to completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobAction>,
    /// Name of the action, unique in its list. Ledgers record it; events and messages show it.
    pub name: String,
    /// Patches objects that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<PatchAction>,
    /// Further attempts after the first failure, 0 to 100. Defaults to 0.
    #[serde(
        default,
        deserialize_with = "saturating_i32",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<i32>,
    /// How often the action runs: once per artifact Revision (the default), once per resolved
    /// Version, or once in the Lifetime of the StageSet, re-creation included. Only for pre and post
    /// actions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ActionScope>,
    /// Bound of the whole action, retries and the pauses between them included, for example 5m.
    /// Defaults to 10m for a job and 5m for an apply that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Waits for a time or for a condition on an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitAction>,
}

/// The one thing an action does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verb<'a> {
    Patch(&'a PatchAction),
    Http(&'a HttpAction),
    Wait(&'a WaitAction),
    Job(&'a JobAction),
    Delete(&'a DeleteAction),
    Apply(&'a ApplyAction),
}

impl Verb<'_> {
    /// The verbs' field names, in the order messages list them.
    pub const NAMES: [&'static str; 6] = ["patch", "http", "wait", "job", "delete", "apply"];

    /// Field name of the verb.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Patch(_) => "patch",
            Self::Http(_) => "http",
            Self::Wait(_) => "wait",
            Self::Job(_) => "job",
            Self::Delete(_) => "delete",
            Self::Apply(_) => "apply",
        }
    }
}

/// An action that does not have exactly one verb: how many it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exactly one of patch, http, wait, job, delete, apply must be set, found {0}")]
pub struct VerbCount(pub usize);

impl Action {
    /// What the action does.
    ///
    /// # Errors
    /// None or several of the six verbs are set.
    pub fn verb(&self) -> Result<Verb<'_>, VerbCount> {
        let mut verbs = self.verbs();
        match (verbs.pop(), verbs.len()) {
            (Some(verb), 0) => Ok(verb),
            (last, others) => Err(VerbCount(others + usize::from(last.is_some()))),
        }
    }

    /// Every verb that is set.
    pub fn verbs(&self) -> Vec<Verb<'_>> {
        [
            self.patch.as_ref().map(Verb::Patch),
            self.http.as_ref().map(Verb::Http),
            self.wait.as_ref().map(Verb::Wait),
            self.job.as_ref().map(Verb::Job),
            self.delete.as_ref().map(Verb::Delete),
            self.apply.as_ref().map(Verb::Apply),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

wire_enum! {
    /// How often an action runs.
    ActionScope {
        /// Once per pinned revision of the stage.
        Revision = "Revision",
        /// Once per resolved version.
        Version = "Version",
        /// Once, across deletion and re-creation of the StageSet.
        Lifetime = "Lifetime",
    }
}

/// Witness object of a Lifetime action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletionAnchor {
    /// API version of the witness, for example v1.
    pub api_version: String,
    /// Kind of the witness.
    pub kind: String,
    /// Name of the witness in the namespace of the StageSet.
    pub name: String,
}

/// Patches objects that exist; none is ever created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchAction {
    /// Text of the patch.
    pub patch: String,
    /// Objects to patch.
    pub target: PatchTarget,
    /// Form of the patch: merge (a strategic merge patch, the default) or json6902 (a JSON Patch).
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<PatchType>,
}

wire_enum! {
    /// Form of a patch.
    PatchType {
        /// Strategic merge patch.
        Merge = "merge",
        /// JSON Patch, RFC 6902.
        Json6902 = "json6902",
    }
}

/// What a patch applies to: one object by name, or all that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchTarget {
    /// API version of the objects. Left out, only kinds of the core group are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind of the objects.
    pub kind: String,
    /// Name of the one object to patch. Excludes selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace of the objects. Defaults to the namespace of the StageSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Patches every object of the kind with these labels, one after another; no match is success.
    /// Excludes name and must not be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Sends an HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpAction {
    /// Body of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Secret key that holds the body; wins over body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_from: Option<SecretKeyRef>,
    /// Status codes that count as success. Defaults to any 2xx.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 100, max = 599)))]
    pub expected_status: Vec<i32>,
    /// Secret keys that become headers: the key names the header, its value is the header's value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers_from: Vec<SecretKeyRef>,
    /// Method of the request. Defaults to POST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<HttpMethod>,
    /// Address, http or https. Its host must be allowed by the controller; loopback and link-local
    /// addresses never are.
    pub url: String,
}

wire_enum! {
    /// Method of an HTTP action.
    HttpMethod {
        Get = "GET",
        Post = "POST",
        Put = "PUT",
        Patch = "PATCH",
        Delete = "DELETE",
        Head = "HEAD",
    }
}

/// Waits for a fixed time, or until an expression on an object holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitAction {
    /// Fixed pause, for example 30s. Excludes expr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
    /// CEL expression over the target that must become true, for example
    /// status.phase == 'Complete'. It sees apiVersion, kind, metadata, spec and status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expr: Option<String>,
    /// Object the expression looks at; needed with expr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ObjectRef>,
    /// Bound of the wait for an expression. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

/// Runs the Jobs of an artifact to completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobAction {
    /// Directory inside the artifact. Defaults to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Artifact that holds the Jobs.
    pub source_ref: SourceReference,
}

/// Deletes one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeleteAction {
    /// What happens to dependents: Background (the default), Foreground, or Orphan to leave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cascade: Option<Cascade>,
    /// Object to delete.
    pub target: ObjectRef,
}

wire_enum! {
    /// Deletion propagation.
    Cascade {
        Background = "Background",
        Foreground = "Foreground",
        Orphan = "Orphan",
    }
}

/// Applies manifests from an artifact, outside of any inventory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyAction {
    /// Directory inside the artifact. Defaults to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Artifact that holds the manifests.
    pub source_ref: SourceReference,
    /// Waits until the applied objects are ready, bounded by the timeout of the action. Defaults to
    /// false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub wait: bool,
}
