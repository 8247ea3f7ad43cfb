//! Version: pure decisions.

/// Whether the text is a version, or why not.
///
/// # Errors
/// The text is no version.
pub fn check_version(text: &str) -> Result<(), String> {
    let text = text.trim();
    let numbers = text.strip_prefix('v').unwrap_or(text);
    semver::Version::parse(numbers)
        .or_else(|error| match numbers.split('.').count() {
            1 => semver::Version::parse(&format!("{numbers}.0.0")),
            2 => semver::Version::parse(&format!("{numbers}.0")),
            _ => Err(error),
        })
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Whether the text is a version constraint, or why not.
///
/// # Errors
/// The text is no constraint.
pub fn check_constraint(text: &str) -> Result<(), String> {
    semver::VersionReq::parse(text)
        .map(|_| ())
        .map_err(|error| error.to_string())
}
