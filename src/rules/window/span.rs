//! Spans of a recurring window: starts of a schedule, each with a length of elapsed time.

use jiff::{SignedDuration, Timestamp};

use super::Budget;
use super::schedule::Schedule;

/// Starts that are joined before an end counts as out of sight.
const MAX_JOINED_STARTS: usize = 10_000;
/// How far spans are joined before an end counts as out of sight: a year and a month, so that the one gap that a
/// change of clocks leaves between day-long spans is found.
const MAX_JOINED_TIME: SignedDuration = SignedDuration::from_hours(24 * 400);

/// True while `at` is in `[start, start + length)` of some start.
pub(super) fn is_active(schedule: &Schedule, length: SignedDuration, at: Timestamp, budget: &mut Budget) -> bool {
    latest_start(schedule, length, at, budget).is_some()
}

/// The latest start in `(at - length, at]`.
fn latest_start(schedule: &Schedule, length: SignedDuration, at: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
    let after = at.checked_sub(length).unwrap_or(Timestamp::MIN);
    schedule.latest_start(after, at, budget)
}

/// The end of the activity at `at`, spans that touch or overlap joined; none where it is out of sight.
pub(super) fn active_until(
    schedule: &Schedule,
    length: SignedDuration,
    at: Timestamp,
    budget: &mut Budget,
) -> Option<Timestamp> {
    let horizon = at.checked_add(MAX_JOINED_TIME).unwrap_or(Timestamp::MAX);
    let mut end = at;
    for _ in 0..MAX_JOINED_STARTS {
        let Some(start) = latest_start(schedule, length, end, budget) else {
            // Where the budget has ended, a later start may have been missed.
            return (!budget.is_spent()).then_some(end);
        };
        end = start.checked_add(length).ok()?;
        if end > horizon {
            return None;
        }
    }
    None
}
