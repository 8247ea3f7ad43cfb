//! How a step ends, and when the next one is due.

use std::time::Duration;

use crate::api::Reason;
use crate::cluster;
use crate::rules::condition::Situation;

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
}

/// What can be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Try again soon: the API server or the network stumbled.
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
    /// The operation that failed, as the contract names it.
    pub operation: &'static str,
    pub message: String,
    pub remedy: Remedy,
}

impl Failure {
    /// A failed request.
    pub fn of_request(operation: &'static str, error: &cluster::Error) -> Self {
        let remedy = match error {
            e if e.is_transient() => Remedy::Soon,
            e if e.is_forbidden() => Remedy::Right,
            cluster::Error::UnknownKind { .. } => Remedy::Right,
            _ => Remedy::Retry,
        };
        Self {
            reason: Reason::StageFailed,
            operation,
            message: error.to_string(),
            remedy,
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
            operation: outcome.operation.unwrap_or("resolve source"),
            message: outcome.message,
            remedy,
        }
    }

    /// A failure that only the retry interval can help.
    pub fn retried(operation: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason: Reason::StageFailed,
            operation,
            message: message.into(),
            remedy: Remedy::Retry,
        }
    }
}
