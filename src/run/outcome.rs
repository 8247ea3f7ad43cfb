//! How a step ends, and when the next one is due.

use std::time::Duration;

use crate::api::Reason;
use crate::cluster::{self, Target};
use crate::rules::condition::Situation;
use crate::rules::condition::{MAX_MESSAGE, cut};
use crate::rules::inventory::DuplicateClaim;
use crate::rules::redact;

/// When to look again if nothing wakes the StageSet before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Only when something changes.
    OnChange,
    /// After this time.
    In(Duration),
}

/// A decided end of a step.
#[derive(Debug)]
pub struct End {
    pub situation: Situation,
    pub wake: Wake,
}

/// Why a step ended without deciding anything.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Somebody else wrote the object meanwhile: look again at once.
    #[error("the StageSet changed meanwhile")]
    Changed,
    /// The StageSet is gone.
    #[error("the StageSet is gone")]
    Gone,
    /// A request failed in a way that trying again may mend.
    #[error(transparent)]
    Undecided(#[from] cluster::Error),
    /// The same in the middle of a stage; the step resumes where it was.
    #[error("{0}")]
    Stumbled(String),
}

/// What can be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The API server stumbled: try again at once, and say so only when it goes on.
    Stumble,
    /// Try again soon: something on the network is away.
    Soon,
    /// Try again at the retry interval.
    Retry,
    /// A right is missing; it may be granted any moment, which no event would tell.
    Right,
    /// Only a change of the spec or the source helps.
    Change,
}

/// A failure of one stage.
#[derive(Debug, Clone)]
pub struct Failure {
    pub reason: Reason,
    /// The operation that failed, as the contract names it; empty where only the source is to be spoken of.
    pub operation: &'static str,
    pub message: String,
    pub remedy: Remedy,
    /// What is missing where the remedy is a right: it is asked for until it is there.
    pub missing: Option<Box<Missing>>,
}

/// Something that may appear any moment without an event that would tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The tenant may not do this.
    Access { verb: &'static str, target: Target },
    /// The cluster does not serve this kind.
    Kind { api_version: String, kind: String },
}

impl Failure {
    /// A failed request.
    pub fn of_request(operation: &'static str, error: &cluster::Error) -> Self {
        let remedy = match error {
            e if e.is_transient() => Remedy::Stumble,
            e if e.is_forbidden() => Remedy::Right,
            cluster::Error::UnknownKind { .. } => Remedy::Right,
            _ => Remedy::Retry,
        };
        let missing = match error {
            cluster::Error::UnknownKind { api_version, kind } => Some(Box::new(Missing::Kind {
                api_version: api_version.clone(),
                kind: kind.clone(),
            })),
            _ => None,
        };
        Self {
            reason: Reason::StageFailed,
            operation,
            message: error.to_string(),
            remedy,
            missing,
        }
    }

    /// The same for a request whose verb and object are known, so that a missing right can be asked for.
    pub fn of_access(operation: &'static str, error: &cluster::Error, verb: &'static str, target: &Target) -> Self {
        let mut failure = Self::of_request(operation, error);
        if error.is_forbidden() {
            failure.missing = Some(Box::new(Missing::Access {
                verb,
                target: target.clone(),
            }));
        }
        failure
    }

    /// An object that two stages render.
    pub fn of_claim(claim: &DuplicateClaim) -> Self {
        Self {
            reason: Reason::InvalidSpec,
            operation: "build",
            message: claim.to_string(),
            remedy: Remedy::Change,
            missing: None,
        }
    }

    /// A failure to resolve, fetch or find something in an artifact.
    pub fn of_source(error: &crate::source::Error) -> Self {
        let outcome = error.outcome();
        let remedy = match outcome.class {
            crate::source::Class::Terminal => Remedy::Change,
            crate::source::Class::Transient if outcome.operation == Some("fetch artifact") => Remedy::Soon,
            crate::source::Class::Transient => Remedy::Retry,
        };
        Self {
            reason: Reason::from_word(outcome.reason).unwrap_or(Reason::StageFailed),
            operation: outcome.operation.unwrap_or_default(),
            message: outcome.message,
            remedy,
            missing: None,
        }
    }

    /// The same without what `object` holds, where that is a Secret: servers quote what they refuse.
    pub fn about(mut self, object: &serde_json::Value) -> Self {
        self.message = redact::mask(&self.message, redact::values_of(object));
        self
    }

    /// Operation and message, for people; as long as a condition at most.
    pub fn told(&self) -> String {
        let told = if self.operation.is_empty() {
            self.message.clone()
        } else {
            format!("{}: {}", self.operation, self.message)
        };
        cut(told, MAX_MESSAGE)
    }

    /// A failure that only the retry interval can help.
    pub fn retried(operation: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason: Reason::StageFailed,
            operation,
            message: message.into(),
            remedy: Remedy::Retry,
            missing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::inventory::ObjectId;

    #[test]
    fn an_object_of_two_stages_is_told_with_both_and_with_what_to_do() {
        let failure = Failure::of_claim(&DuplicateClaim {
            id: ObjectId::new("ns", "a", "", "ConfigMap"),
            first: "one".into(),
            second: "two".into(),
        });
        let told = failure.told();
        for part in ["ConfigMap/ns/a", "one", "two", "remove it from one of them"] {
            assert!(told.contains(part), "{told} does not say {part}");
        }
        assert_eq!(failure.reason, Reason::InvalidSpec);
    }
}
