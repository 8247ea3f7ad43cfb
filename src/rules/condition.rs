//! Which conditions a situation gives (decisions 2), and which event a change of them deserves.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::Reason;
use crate::api::reason::EventType;

/// Type of the summary condition that Flux tooling keys on.
pub const READY: &str = "Ready";
/// True while the controller works on the object, or will try again.
pub const RECONCILING: &str = "Reconciling";
/// True when only a change by somebody else can help.
pub const STALLED: &str = "Stalled";

/// Longest message a condition may carry, in bytes (API conventions).
pub const MAX_MESSAGE: usize = 32_768;

/// How things stand at the end of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Situation {
    /// A run is under way; the message names the step and what it waits for.
    Unfinished { message: String },
    /// Everything the spec asks for is in place.
    Succeeded { message: String },
    /// Held or waiting by rule. `retrying`: a timer tries again. `deployed`: a release is in place
    /// and only the next one is held, so Ready stays True.
    Held {
        reason: Reason,
        message: String,
        retrying: bool,
        deployed: bool,
    },
    /// Failed, and will be tried again.
    Failed { reason: Reason, message: String },
    /// No retry can help.
    Terminal { reason: Reason, message: String },
    /// `spec.suspend`.
    Suspended { message: String },
}

impl Situation {
    /// The reason the Ready condition carries.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unfinished { .. } => Reason::Progressing,
            Self::Succeeded { .. } => Reason::Succeeded,
            Self::Held { deployed: true, .. } => Reason::Succeeded,
            Self::Held { reason, .. } | Self::Failed { reason, .. } | Self::Terminal { reason, .. } => *reason,
            Self::Suspended { .. } => Reason::Suspended,
        }
    }

    /// The message without the runbook link.
    pub fn message(&self) -> &str {
        match self {
            Self::Unfinished { message }
            | Self::Succeeded { message }
            | Self::Held { message, .. }
            | Self::Failed { message, .. }
            | Self::Terminal { message, .. }
            | Self::Suspended { message } => message,
        }
    }

    /// The same with another message.
    #[must_use]
    pub fn saying(mut self, text: String) -> Self {
        match &mut self {
            Self::Unfinished { message }
            | Self::Succeeded { message }
            | Self::Held { message, .. }
            | Self::Failed { message, .. }
            | Self::Terminal { message, .. }
            | Self::Suspended { message } => *message = text,
        }
        self
    }

    fn ready(&self) -> &'static str {
        match self {
            Self::Unfinished { .. } => "Unknown",
            Self::Succeeded { .. } | Self::Held { deployed: true, .. } => "True",
            _ => "False",
        }
    }

    fn reconciling(&self) -> Option<Reason> {
        match self {
            Self::Unfinished { .. } => Some(Reason::Progressing),
            Self::Held {
                retrying: true,
                deployed: false,
                ..
            }
            | Self::Failed { .. } => Some(Reason::ProgressingWithRetry),
            _ => None,
        }
    }

    /// Whether `status.observedGeneration` advances to the generation acted upon.
    pub fn observes_generation(&self) -> bool {
        !matches!(self, Self::Unfinished { .. } | Self::Suspended { .. })
    }
}

/// The conditions that express `situation`. Conditions of types not ours are kept, and a condition
/// whose status does not change keeps its transition time. `runbooks` is the base address of the
/// runbook links; empty leaves them out.
pub fn conditions(
    before: &[Condition],
    situation: &Situation,
    generation: i64,
    now: Timestamp,
    runbooks: &str,
) -> Vec<Condition> {
    let mut out: Vec<Condition> = before
        .iter()
        .filter(|c| !matches!(c.type_.as_str(), READY | RECONCILING | STALLED))
        .cloned()
        .collect();
    let mut put = |type_: &str, status: &str, reason: &str, message: String| {
        let old = before.iter().find(|c| c.type_ == type_);
        out.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: cut(message, MAX_MESSAGE),
            observed_generation: Some(generation),
            last_transition_time: old
                .filter(|c| c.status == status)
                .map_or_else(|| seconds(now), |c| c.last_transition_time.clone()),
        });
    };
    let reason = situation.reason();
    let message = with_runbook(situation.message(), reason, runbooks);
    put(READY, situation.ready(), reason.as_str(), message);
    if let Some(reconciling) = situation.reconciling() {
        put(
            RECONCILING,
            "True",
            reconciling.as_str(),
            situation.message().to_owned(),
        );
    }
    if let Situation::Terminal { reason, message } = situation {
        put(STALLED, "True", reason.as_str(), message.clone());
    }
    out
}

/// An event that a change of the Ready condition deserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    pub reason: Reason,
    /// Whether people should be told that something is wrong.
    pub warning: bool,
}

/// The event for going from `before` to `situation`: when Ready's status or reason changed, except
/// into a run under way.
pub fn transition(before: &[Condition], situation: &Situation) -> Option<Transition> {
    let reason = situation.reason();
    let old = before.iter().find(|c| c.type_ == READY);
    let same = old.is_some_and(|c| c.reason == reason.as_str() && c.status == situation.ready());
    (!same && !matches!(situation, Situation::Unfinished { .. })).then(|| Transition {
        reason,
        warning: reason.event() == Some(EventType::Warning),
    })
}

/// What comes before the address in a runbook link.
const RUNBOOK: &str = " (runbook: ";

/// The message with its runbook link (contract 7.6), which a long message does not push out.
fn with_runbook(message: &str, reason: Reason, base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.is_empty() || !reason.has_runbook_suffix() {
        return message.to_owned();
    }
    let link = format!("{RUNBOOK}{base}/{}/)", reason.as_str().to_ascii_lowercase());
    cut(message.to_owned(), MAX_MESSAGE.saturating_sub(link.len())) + &link
}

/// A stored message as it was before its runbook link was added.
pub fn without_runbook(message: &str) -> &str {
    let mut text = message;
    while text.ends_with(')')
        && let Some((before, link)) = text.rsplit_once(RUNBOOK)
        && !link.contains(' ')
    {
        text = before;
    }
    text
}

/// Cuts a text to at most `max` bytes on a character boundary, marking the cut.
pub fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let mut end = max.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://runbooks.example/";

    /// Rules: contract 7.6
    #[test]
    fn a_runbook_link_comes_off_as_it_was_added_however_often() {
        let once = with_runbook("job (1) failed", Reason::StageFailed, BASE);
        assert_eq!(once, "job (1) failed (runbook: https://runbooks.example/stagefailed/)");
        let twice = with_runbook(&once, Reason::StageFailed, BASE);
        for text in [once.as_str(), &twice, "job (1) failed"] {
            assert_eq!(without_runbook(text), "job (1) failed");
        }
        for text in ["failed (runbook: see the wiki)", "x (runbook: y"] {
            assert_eq!(without_runbook(text), text);
        }
    }

    /// Rules: contract 7.6
    #[test]
    fn a_long_message_keeps_its_runbook_link() {
        let long = with_runbook(&"x".repeat(MAX_MESSAGE), Reason::StageFailed, BASE);
        assert!(long.len() <= MAX_MESSAGE && long.ends_with("/stagefailed/)"));
    }
}
