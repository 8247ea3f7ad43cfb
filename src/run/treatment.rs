//! How the objects of a stage are to be treated: conflict policy and data guard, from the stage's spec.

use jiff::Timestamp;
use serde_json::Value;

use super::outcome::{Failure, Remedy};
use crate::api::{ConflictAction, Reason, Stage, StageSetSpec};
use crate::cluster;
use crate::rules::conflict::{Action, ApiRefusal, BeforeApply, Cause, Policy, Rule, Target, before_apply};
use crate::rules::drift::{IgnoreRule, IgnoreTarget};
use crate::rules::inventory::{OwnerRef, owner_of};
use crate::rules::optout::{self, Mode};

/// The operation that the contract names for refusals by policy.
pub const OPERATION: &str = "conflict policy";

/// The conflict policy of a stage.
pub fn policy(stage: &Stage) -> Policy {
    let policy = stage.conflict_policy.as_ref();
    Policy {
        default: policy.and_then(|p| p.default.as_ref()).map(action),
        force: stage.force,
        rules: policy
            .iter()
            .flat_map(|p| &p.rules)
            .map(|rule| Rule {
                target: Target {
                    api_version: rule.target.api_version.clone(),
                    kind: rule.target.kind.clone(),
                    name: rule.target.name.clone(),
                    namespace: rule.target.namespace.clone(),
                },
                action: action(&rule.action),
                allow_data_loss: rule.allow_data_loss,
            })
            .collect(),
    }
}

fn action(wire: &ConflictAction) -> Action {
    match wire {
        ConflictAction::Recreate => Action::Recreate,
        ConflictAction::KeepExisting => Action::KeepExisting,
        ConflictAction::Fail | ConflictAction::Unknown(_) => Action::Fail,
    }
}

/// Refuses, before anything of the stage is applied, a rule that would destroy data.
///
/// # Errors
/// The first such object.
pub fn guard(policy: &Policy, objects: &[Value]) -> Result<(), Failure> {
    for object in objects {
        if let BeforeApply::RefuseDataLoss(loss) = before_apply(policy, object, false) {
            return Err(refused(loss.to_string()));
        }
    }
    Ok(())
}

/// Whether an object is left as it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Never,
    /// Where there is one; else it is created.
    IfFound,
    Always,
}

/// What policy and the object's own wish say about that.
pub fn left(policy: &Policy, object: &Value) -> Left {
    match optout::mode(object, None) {
        Mode::Ignore => Left::Always,
        Mode::IfNotPresent => Left::IfFound,
        _ if before_apply(policy, object, true) == BeforeApply::KeepExisting => Left::IfFound,
        _ => Left::Never,
    }
}

/// Whether an object carries our labels and was made when a run had begun; times of objects are whole seconds.
pub fn is_made_since(live: &Value, me: &OwnerRef, began: Option<Timestamp>) -> bool {
    let created = live.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let created = created.and_then(|t| t.parse::<Timestamp>().ok());
    let since = created.zip(began).is_some_and(|(c, b)| c.as_second() >= b.as_second());
    since && owner_of(live).is_some_and(|owner| owner == *me)
}

/// A refusal that only a change of the spec or the source lifts.
pub fn refused(message: String) -> Failure {
    Failure {
        reason: Reason::StageFailed,
        operation: OPERATION,
        message,
        remedy: Remedy::Retry,
        missing: None,
    }
}

/// The server's refusal as the rules read it.
pub fn refusal(error: &cluster::Error) -> Option<ApiRefusal> {
    let status = error.status()?;
    Some(ApiRefusal {
        code: status.code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        causes: status
            .details
            .iter()
            .flat_map(|d| &d.causes)
            .map(|c| Cause {
                reason: c.reason.clone(),
                message: c.message.clone(),
                field: c.field.clone(),
            })
            .collect(),
    })
}

/// The fields that are left to others: of the StageSet, then of the stage.
///
/// # Errors
/// A rule that cannot be read; admission refuses it earlier.
pub fn ignore(spec: &StageSetSpec, stage: &Stage) -> Result<Vec<IgnoreRule>, Failure> {
    spec.ignore
        .iter()
        .chain(&stage.ignore)
        .map(|rule| {
            let target = rule.target.as_ref().map(|t| IgnoreTarget {
                group: t.group.clone(),
                version: t.version.clone(),
                kind: t.kind.clone(),
                name: t.name.clone(),
                namespace: t.namespace.clone(),
                label_selector: t.label_selector.clone(),
                annotation_selector: t.annotation_selector.clone(),
            });
            IgnoreRule::parse(&rule.paths, target.as_ref())
                .map_err(|e| Failure::retried("apply", format!("ignore: {e}")))
        })
        .collect()
}
