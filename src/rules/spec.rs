//! What a StageSet must look like (api 12.3 and 15).
//!
//! The same functions serve the admission webhook, the controller and the command line tool. They
//! look at the object alone, never at a cluster, and report every violation at once, each with the
//! path of its field.

mod access;
mod actions;
mod change;
mod jsonpath;
mod metrics;
mod migrations;
mod names;
mod promotion;
mod report;
mod selectors;
mod stages;
mod supported;
mod verbs;
mod windows;

#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::Value;

use crate::api::names::MAX_NAME_LENGTH;
use crate::api::{Reason, StageSet};

pub use change::needs_check;
pub use metrics::{Decimal, decimal};
pub use supported::{Feature, Supported, unsupported};

use report::Report;

/// Violations shown in one message; the others are counted.
const SHOWN: usize = 10;

/// One field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, for example `spec.stages[1].actions.pre[0].http.url`.
    pub path: String,
    /// `InvalidSpec`, or `InvalidVersion` for a version that is none.
    pub reason: Reason,
    /// What is wrong, with the value, and what would be right.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Reads an object, so that what does not even have the shape of a StageSet is a violation of that
/// object alone.
///
/// # Errors
/// The first field that is missing or has the wrong type.
pub fn read(object: Value) -> Result<StageSet, Violation> {
    serde_path_to_error::deserialize(object).map_err(|error| Violation {
        path: Some(error.path().to_string())
            .filter(|path| path != ".")
            .unwrap_or_else(|| "StageSet".to_owned()),
        reason: Reason::InvalidSpec,
        message: error.inner().to_string(),
    })
}

/// Every violation of the rules, in the order of the fields.
pub fn validate(set: &StageSet) -> Vec<Violation> {
    let mut report = Report::default();
    identity(&mut report, set);
    report.duration("spec.interval", set.spec.interval.as_ref());
    report.duration("spec.retryInterval", set.spec.retry_interval.as_ref());
    report.duration(
        "spec.driftDetectionInterval",
        set.spec.drift_detection_interval.as_ref(),
    );
    report.duration("spec.timeout", set.spec.timeout.as_ref());
    report.known("spec.onTimeout", set.spec.on_timeout.as_ref());
    access::check(&mut report, set);
    windows::check(&mut report, &set.spec);
    if let Some(budget) = &set.spec.error_budget {
        metrics::error_budget(&mut report, "spec.errorBudget", budget);
    }
    stages::ignore_rules(&mut report, "spec.ignore", &set.spec.ignore);
    migrations::check(&mut report, set);
    stages::check(&mut report, &set.spec);
    actions::on_rollback(&mut report, &set.spec);
    report.into_violations()
}

/// Every violation of the rules, and every use of a feature this release does not have.
pub fn check(set: &StageSet, supported: &Supported) -> Vec<Violation> {
    let mut violations = unsupported(set, supported);
    violations.extend(validate(set));
    violations
}

/// Reason and message for a condition or a denial; `None` where nothing is wrong. A spec that breaks
/// other rules too is `InvalidSpec`, since those come first.
pub fn outcome(violations: &[Violation]) -> Option<(Reason, String)> {
    let first = violations.first()?;
    let reason = violations
        .iter()
        .find(|v| v.reason == Reason::InvalidSpec)
        .map_or(first.reason, |v| v.reason);
    let mut message = violations
        .iter()
        .take(SHOWN)
        .map(Violation::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    if let Some(more) = violations.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        message.push_str(&format!("; and {more} more"));
    }
    Some((reason, message))
}

/// The name becomes a label value on everything that is applied.
fn identity(report: &mut Report, set: &StageSet) {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_NAME_LENGTH {
        report.invalid(
            "metadata.name",
            format!(
                "\"{name}\" has {} characters; a StageSet name has at most {MAX_NAME_LENGTH}",
                name.len()
            ),
        );
    }
}
