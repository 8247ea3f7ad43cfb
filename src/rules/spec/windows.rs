//! Update windows: rules W1 to W8.

use crate::api::common::non_empty;
use crate::api::{StageSetSpec, Timestamp, UpdateWindow};
use crate::rules::{duration, window};

use super::report::Report;

const RECURRING: &str = "schedule and duration (a recurring window)";
const ONCE: &str = "from and to (a window that happens once)";

pub(super) fn check(report: &mut Report, spec: &StageSetSpec) {
    report.known("spec.windowScope", spec.window_scope.as_ref());
    let count = spec.update_windows.len();
    if count > window::MOST {
        report.invalid(
            "spec.updateWindows",
            format!(
                "has {count} windows, at most {} are allowed; join some of them",
                window::MOST
            ),
        );
        return;
    }
    for (index, window) in spec.update_windows.iter().enumerate() {
        one(report, &format!("spec.updateWindows[{index}]"), window);
    }
}

fn one(report: &mut Report, path: &str, window: &UpdateWindow) {
    report.known(&format!("{path}.type"), Some(&window.window_type));
    let recurring = non_empty(&window.schedule).is_some() || window.duration.is_some();
    let once = window.from.is_some() || window.to.is_some();
    match (recurring, once) {
        (true, true) => report.invalid(
            path,
            format!("has fields of both forms; set either {RECURRING} or {ONCE}"),
        ),
        (false, false) => report.invalid(path, format!("has neither form; set {RECURRING} or {ONCE}")),
        (true, false) => recurring_window(report, path, window),
        (false, true) => window_once(report, path, window.from.as_ref(), window.to.as_ref()),
    }
}

fn recurring_window(report: &mut Report, path: &str, window: &UpdateWindow) {
    let zone = non_empty(&window.time_zone);
    let zone_holds = match zone.map(window::check_zone) {
        Some(Err(cause)) => {
            report.invalid(format!("{path}.timeZone"), cause);
            false
        }
        _ => true,
    };
    match (non_empty(&window.schedule), &window.duration) {
        (Some(_), None) => report.invalid(path, "has schedule but no duration; a recurring window needs both"),
        (None, Some(_)) => report.invalid(path, "has duration but no schedule; a recurring window needs both"),
        _ => {}
    }
    if let Some(schedule) = non_empty(&window.schedule)
        && let Err(cause) = window::check_schedule(schedule, zone.filter(|_| zone_holds))
    {
        report.invalid(
            format!("{path}.schedule"),
            format!("\"{schedule}\" is no schedule: {cause}"),
        );
    }
    if let Some(length) = &window.duration {
        let path = format!("{path}.duration");
        match duration::positive(length.as_str()) {
            Ok(Some(long)) if long > window::LONGEST.unsigned_abs() => report.invalid(
                path,
                format!(
                    "\"{length}\" is longer than {}h (366 days); for a window that long, set from and to",
                    window::LONGEST.as_hours()
                ),
            ),
            Ok(Some(_)) => {}
            Ok(None) => report.invalid(
                path,
                format!("\"{length}\" is not positive; write how long the window lasts, for example 2h"),
            ),
            Err(error) => report.invalid(path, error.to_string()),
        }
    }
}

fn window_once(report: &mut Report, path: &str, from: Option<&Timestamp>, to: Option<&Timestamp>) {
    let mut instant = |field: &str, time: Option<&Timestamp>| match time.map(Timestamp::parse) {
        None => {
            report.invalid(
                path,
                format!("has no {field}; a window that happens once needs from and to"),
            );
            None
        }
        Some(Ok(instant)) => Some(instant),
        Some(Err(_)) => {
            let value = time.map(|time| time.0.as_str()).unwrap_or_default();
            report.invalid(
                format!("{path}.{field}"),
                format!("\"{value}\" is no instant; write RFC 3339, for example 2026-12-24T00:00:00Z"),
            );
            None
        }
    };
    let (begins, ends) = (instant("from", from), instant("to", to));
    if let (Some(begins), Some(ends)) = (begins, ends)
        && ends <= begins
    {
        report.invalid(
            format!("{path}.to"),
            format!("to ({ends}) must be after from ({begins})"),
        );
    }
}
