//! Collects violations, with the checks that many fields share.

use crate::api::{Duration, Reason, WireEnum};
use crate::rules::duration;

use super::{Violation, names};

#[derive(Default)]
pub(super) struct Report {
    violations: Vec<Violation>,
}

impl Report {
    pub(super) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    pub(super) fn invalid(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.add(path.into(), Reason::InvalidSpec, message.into());
    }

    pub(super) fn invalid_version(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.add(path.into(), Reason::InvalidVersion, message.into());
    }

    fn add(&mut self, path: String, reason: Reason, message: String) {
        self.violations.push(Violation { path, reason, message });
    }

    /// A duration must follow the syntax. Zero and negative ones do: most fields take them as unset.
    pub(super) fn duration(&mut self, path: &str, value: Option<&Duration>) {
        if let Some(Err(error)) = value.map(|value| duration::parse(value.as_str())) {
            self.invalid(path, error.to_string());
        }
    }

    /// An enum must hold one of its values; a schema check may have been bypassed.
    pub(super) fn known<E: WireEnum>(&mut self, path: &str, value: Option<&E>) {
        if let Some(value) = value.filter(|value| !value.is_known()) {
            let allowed = E::ALLOWED.join(", ");
            self.invalid(path, format!("unknown value \"{}\"; allowed: {allowed}", value.text()));
        }
    }

    /// A required text must not be empty. `field` says whose it is.
    pub(super) fn non_empty(&mut self, path: &str, value: &str, owner: &str) -> bool {
        if value.is_empty() {
            let field = path.rsplit('.').next().unwrap_or(path);
            self.invalid(path, format!("{owner} needs a non-empty {field}"));
        }
        !value.is_empty()
    }

    /// A text must pass a syntax check of [`names`].
    pub(super) fn syntax(&mut self, path: &str, value: &str, check: fn(&str) -> Result<(), names::NameError>) {
        if let Err(error) = check(value) {
            self.invalid(path, format!("\"{value}\" {error}"));
        }
    }

    /// As [`Report::syntax`], for a field where empty means unset.
    pub(super) fn optional_syntax(
        &mut self,
        path: &str,
        value: Option<&String>,
        check: fn(&str) -> Result<(), names::NameError>,
    ) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.syntax(path, value, check);
        }
    }
}
