//! Readiness: is a live object where its author wants it to be?
//!
//! [`judge`] follows kstatus (the rules Flux and `kubectl`-side tools share), with the Job rule of Flux's
//! kustomize-controller: a Job is done when it completed, not when it began to run. Around it stand the
//! rules a wait needs: an object that is gone, a custom resource nobody has looked at yet, the pods behind
//! a workload, and the sum over many objects.

mod kinds;
mod pods;

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::inventory::ObjectId;

pub use pods::{ErrorWait, error_wait, explain, look_through, pod_selector};

/// How long a custom resource with a status subresource may stay without any status before it counts as
/// settled (decisions 5).
pub const SETTLE_TIME: SignedDuration = SignedDuration::from_secs(10);

/// What an object's own state says about it. Only `Current` is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The object is where its spec wants it to be.
    Current,
    /// On the way; the message says what is missing.
    InProgress { message: String },
    /// Will not get there as it is. `recoverable` is true where the cluster may still heal it without a change
    /// of the spec (an expired progress deadline, a crash loop, an unschedulable pod), so that a wait with a
    /// longer bound need not give up.
    Failed { message: String, recoverable: bool },
    /// Being deleted.
    Terminating,
    /// Not there.
    NotFound,
    /// Could not be judged: unreadable, or in a state no rule knows.
    Unknown { message: String },
}

impl Readiness {
    /// True for `Current` alone.
    pub fn is_ready(&self) -> bool {
        matches!(self, Readiness::Current)
    }

    /// True for `Failed` alone; every other state keeps a wait going.
    pub fn is_failed(&self) -> bool {
        matches!(self, Readiness::Failed { .. })
    }

    /// The kstatus name: `Current`, `InProgress`, `Failed`, `Terminating`, `NotFound` or `Unknown`.
    pub fn name(&self) -> &'static str {
        match self {
            Readiness::Current => "Current",
            Readiness::InProgress { .. } => "InProgress",
            Readiness::Failed { .. } => "Failed",
            Readiness::Terminating => "Terminating",
            Readiness::NotFound => "NotFound",
            Readiness::Unknown { .. } => "Unknown",
        }
    }

    fn waiting(message: impl Into<String>) -> Self {
        Readiness::InProgress {
            message: message.into(),
        }
    }

    fn failed(message: impl Into<String>) -> Self {
        Readiness::Failed {
            message: message.into(),
            recoverable: false,
        }
    }

    fn failed_for_now(message: impl Into<String>) -> Self {
        Readiness::Failed {
            message: message.into(),
            recoverable: true,
        }
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Readiness::Current => f.write_str("ready"),
            Readiness::InProgress { message } => write!(f, "in progress: {message}"),
            Readiness::Failed { message, .. } => write!(f, "failed: {message}"),
            Readiness::Terminating => f.write_str("is being deleted"),
            Readiness::NotFound => f.write_str("not found"),
            Readiness::Unknown { message } => write!(f, "cannot be judged: {message}"),
        }
    }
}

/// Judges a live object by the kstatus rules, in their order: deletion, observed generation, the `Reconciling`
/// and `Stalled` conditions, the rule of the kind, the `Ready` condition, else current (run 27.1).
///
/// `now` only matters to the 15 seconds a pod is given to be scheduled.
pub fn judge(object: &Value, now: Timestamp) -> Readiness {
    let deleting = text(object, "/metadata/deletionTimestamp");
    if deleting.is_some_and(|at| !at.is_empty()) {
        return Readiness::Terminating;
    }
    if let Some(lag) = generation_lag(object) {
        return lag;
    }
    standard_conditions(object)
        .or_else(|| kinds::judge(object, now))
        .or_else(|| ready_condition(object))
        .unwrap_or(Readiness::Current)
}

/// Judges an object that should exist by what was read of it. A Job that deletes itself when it is done
/// (`ttlSecondsAfterFinished`) and is gone counts as done (run 27.4).
pub fn judge_observed(desired: &Value, live: Option<&Value>, now: Timestamp) -> Readiness {
    match live {
        Some(object) => judge(object, now),
        None if deletes_itself(desired) => Readiness::Current,
        None => Readiness::NotFound,
    }
}

/// True for a Job that the cluster deletes on its own after it finished.
pub fn deletes_itself(object: &Value) -> bool {
    kinds::deletes_itself(object)
}

/// What the settle rule needs to know beside the object.
#[derive(Debug, Clone, Copy)]
pub struct Settle {
    /// The kind is a custom resource whose served version has the status subresource.
    pub has_status_subresource: bool,
    /// A listed check or an expression covers the object, so its readiness was asked for explicitly.
    pub covered: bool,
    /// Time since our last change to the object.
    pub since_change: SignedDuration,
}

/// Holds back a `Current` verdict on a custom resource that its controller has not looked at yet: with the
/// status subresource, an empty status and no check of its own it is in progress until a status appears or
/// [`SETTLE_TIME`] has passed since our last change (decisions 5).
pub fn settle(object: &Value, own: Readiness, facts: Settle) -> Readiness {
    let unseen = own.is_ready()
        && facts.has_status_subresource
        && !facts.covered
        && !has_status(object)
        && facts.since_change < SETTLE_TIME;
    if unseen {
        Readiness::waiting("its controller has not written a status yet")
    } else {
        own
    }
}

/// One awaited object with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    pub id: ObjectId,
    pub readiness: Readiness,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.readiness)
    }
}

/// The sum over a set of awaited objects (run 27.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overall {
    /// Every object is current, or there was none.
    Ready,
    /// At least one object failed; these are the failed ones.
    Failed(Vec<Awaited>),
    /// None failed; these are not ready yet.
    Waiting(Vec<Awaited>),
}

impl Overall {
    /// What keeps the set from being ready.
    pub fn blocking(self) -> Vec<Awaited> {
        match self {
            Overall::Ready => Vec::new(),
            Overall::Failed(some) | Overall::Waiting(some) => some,
        }
    }
}

/// Sums up verdicts: one failure fails the set, else anything not current keeps it waiting.
pub fn overall(awaited: impl IntoIterator<Item = Awaited>) -> Overall {
    let (failed, rest): (Vec<_>, Vec<_>) = awaited.into_iter().partition(|one| one.readiness.is_failed());
    if !failed.is_empty() {
        return Overall::Failed(failed);
    }
    let waiting: Vec<_> = rest.into_iter().filter(|one| !one.readiness.is_ready()).collect();
    if waiting.is_empty() {
        Overall::Ready
    } else {
        Overall::Waiting(waiting)
    }
}

/// Says what blocks, at most `limit` objects by name and the rest as a number.
pub fn name_blockers(blocking: &[Awaited], limit: usize) -> String {
    let shown = limit.max(1).min(blocking.len());
    let mut parts: Vec<String> = blocking[..shown].iter().map(Awaited::to_string).collect();
    if blocking.len() > shown {
        parts.push(format!("and {} more", blocking.len() - shown));
    }
    parts.join("; ")
}

/// A condition of `status.conditions`; entries of another shape are passed over.
struct Condition<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

impl Condition<'_> {
    fn is_true(&self) -> bool {
        self.status == "True"
    }

    fn is_false(&self) -> bool {
        self.status == "False"
    }

    /// Reason and message as one text, whichever of the two there is.
    fn why(&self) -> String {
        match (self.reason, self.message) {
            ("", "") => format!("condition {} is {}", self.kind, self.status),
            (reason, "") => reason.to_owned(),
            ("", message) => message.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        }
    }
}

fn conditions(object: &Value) -> impl Iterator<Item = Condition<'_>> {
    let list = object.pointer("/status/conditions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|entry| {
        Some(Condition {
            kind: entry.get("type")?.as_str()?,
            status: entry.get("status")?.as_str()?,
            reason: text(entry, "/reason").unwrap_or_default(),
            message: text(entry, "/message").unwrap_or_default(),
        })
    })
}

fn generation_lag(object: &Value) -> Option<Readiness> {
    let generation = number(object, "/metadata/generation")?;
    let observed = number(object, "/status/observedGeneration")?;
    (generation != observed).then(|| {
        Readiness::waiting(format!(
            "generation {generation} is not observed yet, its controller is at {observed}"
        ))
    })
}

fn standard_conditions(object: &Value) -> Option<Readiness> {
    conditions(object)
        .filter(Condition::is_true)
        .find_map(|condition| match condition.kind {
            "Reconciling" => Some(Readiness::waiting(condition.why())),
            "Stalled" => Some(Readiness::failed(condition.why())),
            _ => None,
        })
}

fn ready_condition(object: &Value) -> Option<Readiness> {
    conditions(object)
        .filter(|condition| condition.kind == "Ready")
        .find_map(|condition| match condition.status {
            "True" => Some(Readiness::Current),
            "False" | "Unknown" => Some(Readiness::waiting(condition.why())),
            _ => None,
        })
}

fn has_status(object: &Value) -> bool {
    match object.get("status") {
        None | Some(Value::Null) => false,
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer)?.as_i64()
}

#[cfg(test)]
mod kinds_tests;
#[cfg(test)]
mod tests;
