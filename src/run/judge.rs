//! How the objects of a stage are judged: what is awaited, and by which rules (run 18).

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::outcome::{Failure, Remedy};
use crate::api::common::non_empty;
use crate::api::{ObjectRef, Reason, Stage};
use crate::cluster::Served;
use crate::rules::expr::ReadyExprs;
use crate::rules::inventory::ObjectId;
use crate::rules::readiness::{self, Readiness, SETTLE_TIME, Settle};

/// The rules of one stage.
pub struct Judge {
    exprs: Arc<ReadyExprs>,
    waits: bool,
    checks: Vec<ObjectRef>,
    namespace: String,
}

/// A verdict.
pub struct Verdict {
    pub readiness: Readiness,
    /// The rules it was found by, see [`Judge::rules`].
    pub rules: u64,
    /// When time alone changes it.
    pub settles_at: Option<Timestamp>,
}

impl Judge {
    /// The rules of a stage of a StageSet in `namespace`.
    ///
    /// # Errors
    /// An expression that does not compile; the checks of the spec refuse it before.
    pub fn of(stage: &Stage, namespace: &str) -> Result<Self, Failure> {
        let ready = stage.ready_checks.clone().unwrap_or_default();
        let exprs = ReadyExprs::compile(&ready.exprs).map_err(|errors| Failure {
            reason: Reason::InvalidSpec,
            operation: super::verify::OPERATION,
            message: errors
                .iter()
                .map(|e| format!("readyChecks.exprs: {e}"))
                .collect::<Vec<_>>()
                .join("; "),
            remedy: Remedy::Change,
            missing: None,
        })?;
        Ok(Self {
            exprs: Arc::new(exprs),
            waits: !ready.disable_wait,
            checks: ready.checks,
            namespace: namespace.to_owned(),
        })
    }

    /// Whether expressions judge objects like this one.
    pub fn covers(&self, id: &ObjectId) -> bool {
        self.exprs.covers(&id.group, &id.kind)
    }

    /// Whether the stage waits for this object of its own: for all, or for those that `checks` lists and those that
    /// expressions judge; for none where waiting is off.
    pub fn awaits(&self, id: &ObjectId) -> bool {
        self.waits
            && (self.checks.is_empty() || self.covers(id) || self.checks.iter().any(|check| self.names(check, id)))
    }

    fn names(&self, check: &ObjectRef, id: &ObjectId) -> bool {
        let namespace = non_empty(&check.namespace).unwrap_or(&self.namespace);
        is_of(check, id) && check.name == id.name && (id.namespace.is_empty() || id.namespace == namespace)
    }

    /// A number for the rules that judge objects like this one; a verdict by other rules is none.
    pub fn rules(&self, id: &ObjectId) -> u64 {
        self.exprs.fingerprint(&id.group, &id.kind)
    }

    /// Judges a live object that we last changed at `changed_at`.
    pub async fn judge(&self, id: &ObjectId, live: &Value, served: Option<&Served>, changed_at: Timestamp) -> Verdict {
        let now = Timestamp::now();
        let by_expression = if self.exprs.may_be_slow(&id.group, &id.kind) {
            let (exprs, live) = (self.exprs.clone(), live.clone());
            let judged = tokio::task::spawn_blocking(move || exprs.judge(&live)).await;
            judged.unwrap_or_else(|_| {
                Some(Readiness::Unknown {
                    message: "its expressions could not be evaluated".into(),
                })
            })
        } else {
            self.exprs.judge(live)
        };
        let own = by_expression.unwrap_or_else(|| readiness::judge(live, now));
        let settled = readiness::settle(
            live,
            own.clone(),
            Settle {
                has_status_subresource: served.is_some_and(|s| s.custom && s.has_status),
                covered: self.covers(id) || self.checks.iter().any(|check| is_of(check, id)),
                since_change: now.duration_since(changed_at).max(SignedDuration::ZERO),
            },
        );
        Verdict {
            rules: self.rules(id),
            settles_at: (settled != own).then(|| changed_at.saturating_add(SETTLE_TIME).unwrap_or(now)),
            readiness: settled,
        }
    }
}

/// Whether a reference is to this group and kind.
fn is_of(check: &ObjectRef, id: &ObjectId) -> bool {
    let api_version = non_empty(&check.api_version).unwrap_or_default();
    check.kind == id.kind && api_version.split_once('/').map_or("", |(group, _)| group) == id.group
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
