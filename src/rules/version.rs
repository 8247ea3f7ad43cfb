//! Version: lenient semantic versions and the range constraints of Helm and Flux.
//!
//! Both follow Masterminds/semver 3.5, the library the Go ecosystem uses (crates 5.3); Cargo's own requirement
//! syntax means something else for the same texts.

mod constraint;

use std::cmp::Ordering;

pub use constraint::{Constraint, ConstraintError};
pub use semver::Version;

/// Longest version text that is read.
const MAX_LENGTH: usize = 256;

/// A text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a semantic version such as 1.2.3: {cause}")]
pub struct VersionError {
    pub text: String,
    pub cause: String,
}

/// Reads a version leniently: surrounding blanks, a leading lower-case `v`, a missing minor and patch number, and
/// leading zeros in the three numbers are accepted (actions 5.2).
///
/// # Errors
/// The text and what is wrong with it.
pub fn parse_version(text: &str) -> Result<Version, VersionError> {
    let error = |cause: &str| VersionError {
        text: text.chars().take(MAX_LENGTH).collect(),
        cause: cause.to_owned(),
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(error("it is empty"));
    }
    if trimmed.len() > MAX_LENGTH {
        return Err(error("it is too long"));
    }
    let bare = trimmed.strip_prefix('v').unwrap_or(trimmed);
    let numbers_end = bare.find(['-', '+']).unwrap_or(bare.len());
    let (numbers, rest) = bare.split_at(numbers_end);
    let parts: Vec<&str> = numbers.split('.').collect();
    if parts.len() > 3 {
        return Err(error("it has more than three numbers"));
    }
    let mut core = [0_u64; 3];
    for (slot, part) in core.iter_mut().zip(&parts) {
        *slot = parse_number(part).ok_or_else(|| error(&format!("{part:?} is not a number")))?;
    }
    let [major, minor, patch] = core;
    Version::parse(&format!("{major}.{minor}.{patch}{rest}")).map_err(|cause| error(&cause.to_string()))
}

fn parse_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Checks that a text is a version.
///
/// # Errors
/// What is wrong with it, for a person to read.
pub fn check_version(text: &str) -> Result<(), String> {
    parse_version(text).map(drop).map_err(|error| error.to_string())
}

/// Checks that a text is a constraint.
///
/// # Errors
/// What is wrong with it, for a person to read.
pub fn check_constraint(text: &str) -> Result<(), String> {
    Constraint::parse(text).map(drop).map_err(|error| error.to_string())
}

/// True for a constraint that is a plain three-part version, with or without `v`: it matches that version alone,
/// which is rarely what its author means (rule M7).
pub fn is_plain_version(constraint: &str) -> bool {
    let trimmed = constraint.trim();
    let bare = trimmed.strip_prefix('v').unwrap_or(trimmed);
    let numbers = bare.split(['-', '+']).next().unwrap_or_default();
    numbers.split('.').count() == 3 && parse_version(trimmed).is_ok()
}

/// Compares by semantic-version precedence; build metadata does not count.
pub fn compare(left: &Version, right: &Version) -> Ordering {
    left.cmp_precedence(right)
}

/// The form to compare texts in: no leading `v`, three numbers, pre-release and build kept.
///
/// # Errors
/// As [`parse_version`].
pub fn canonical(text: &str) -> Result<String, VersionError> {
    parse_version(text).map(|version| version.to_string())
}

/// True where a deployed version is at or above `minimum` (`dependsOn[].minVersion`); one that is absent or no version
/// counts as below.
pub fn is_at_least(deployed: Option<&str>, minimum: &Version) -> bool {
    deployed
        .and_then(|text| parse_version(text).ok())
        .is_some_and(|version| compare(&version, minimum) != Ordering::Less)
}

#[cfg(test)]
mod tests;
