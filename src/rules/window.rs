//! Window: pure decisions.

/// Whether the text is a schedule, or why not.
///
/// # Errors
/// The text is no schedule.
pub fn check_schedule(text: &str, _zone: Option<&str>) -> Result<(), String> {
    text.parse::<croner::Cron>()
        .map(|_| ())
        .map_err(|error| error.to_string())
}
