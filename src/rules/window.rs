//! Window: when a new revision may roll out (gates 2, run 10).
//!
//! A window is active in one span of time or after every start of a schedule. Something is allowed while no `Deny`
//! window is active and, where there is any `Allow` window, one of them is.

mod schedule;
mod span;

use jiff::{SignedDuration, Timestamp};

pub use schedule::{Schedule, ScheduleError};

/// Checks a schedule as validation needs it: `text` is what a window declares, `zone` its time zone.
///
/// # Errors
/// What is wrong with the schedule or the zone, for a person to read.
pub fn check_schedule(text: &str, zone: Option<&str>) -> Result<(), String> {
    Schedule::parse(text, zone).map(drop).map_err(|error| error.to_string())
}

/// Checks a time zone by itself; empty is UTC.
///
/// # Errors
/// That the zone is not known, for a person to read.
pub fn check_zone(zone: &str) -> Result<(), String> {
    schedule::find_zone(zone).map(drop).map_err(|error| error.to_string())
}

/// How long a recurring window lasts at most. Whether one is active is found by going back so far, day by day.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(24 * 366);
/// How many windows a StageSet has at most.
pub const MOST: usize = 100;

/// What an active window does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Allow,
    Deny,
}

/// When a window is active.
#[derive(Debug, Clone)]
enum Shape {
    /// From every start of the schedule on, for `length` of elapsed time.
    Recurring { schedule: Schedule, length: SignedDuration },
    /// In `from <= t < to`.
    Absolute { from: Timestamp, to: Timestamp },
}

/// An update window.
#[derive(Debug, Clone)]
pub struct Window {
    effect: Effect,
    shape: Shape,
}

/// The fields of a window as its author wrote them.
#[derive(Debug, Clone, Copy)]
pub struct WindowFields<'a> {
    pub effect: Effect,
    pub schedule: Option<&'a str>,
    pub duration: Option<SignedDuration>,
    pub time_zone: Option<&'a str>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
}

/// A window that makes no sense (rules W1 to W8).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("schedule and duration cannot be combined with from and to: keep one of the two forms")]
    BothForms,
    #[error("either schedule and duration, or from and to, are needed")]
    NeitherForm,
    #[error("schedule and duration are both needed")]
    HalfRecurring,
    #[error("from and to are both needed")]
    HalfAbsolute,
    #[error("to ({to}) must be after from ({from})")]
    Backwards { from: Timestamp, to: Timestamp },
    #[error("duration must be positive, not {0:#}")]
    NotPositive(SignedDuration),
    #[error("duration must be at most 8784h (366 days), not {0:#}: for longer, use from and to")]
    TooLong(SignedDuration),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl Window {
    /// Reads a window, with the rules in the order of api 12.3.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(fields: &WindowFields<'_>) -> Result<Self, WindowError> {
        let schedule = fields.schedule.filter(|text| !text.is_empty());
        let recurring = schedule.is_some() || fields.duration.is_some();
        let absolute = fields.from.is_some() || fields.to.is_some();
        let shape = match (recurring, absolute) {
            (true, true) => return Err(WindowError::BothForms),
            (false, false) => return Err(WindowError::NeitherForm),
            (true, false) => recurring_shape(schedule, fields.duration, fields.time_zone)?,
            (false, true) => absolute_shape(fields.from, fields.to)?,
        };
        Ok(Window {
            effect: fields.effect,
            shape,
        })
    }

    /// True while the window is active; only to be relied upon while the budget lasts.
    fn is_active(&self, at: Timestamp, budget: &mut Budget) -> bool {
        match &self.shape {
            Shape::Absolute { from, to } => *from <= at && at < *to,
            Shape::Recurring { schedule, length } => span::is_active(schedule, *length, at, budget),
        }
    }

    /// The end of the activity that goes on at `at`, windows that touch or overlap taken together. None where no end
    /// is in sight (a year or 10,000 starts). Only meaningful while active.
    fn active_until(&self, at: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
        match &self.shape {
            Shape::Absolute { to, .. } => Some(*to),
            Shape::Recurring { schedule, length } => span::active_until(schedule, *length, at, budget),
        }
    }

    /// The next start after `at`. Only meaningful while not active.
    fn next_start(&self, at: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
        match &self.shape {
            Shape::Absolute { from, .. } => (*from > at).then_some(*from),
            Shape::Recurring { schedule, .. } => schedule.next_start(at, budget),
        }
    }
}

fn recurring_shape(
    schedule: Option<&str>,
    duration: Option<SignedDuration>,
    zone: Option<&str>,
) -> Result<Shape, WindowError> {
    let (Some(text), Some(length)) = (schedule, duration) else {
        return Err(WindowError::HalfRecurring);
    };
    let schedule = Schedule::parse(text, zone)?;
    if length <= SignedDuration::ZERO {
        return Err(WindowError::NotPositive(length));
    }
    if length > LONGEST {
        return Err(WindowError::TooLong(length));
    }
    Ok(Shape::Recurring { schedule, length })
}

fn absolute_shape(from: Option<Timestamp>, to: Option<Timestamp>) -> Result<Shape, WindowError> {
    let (Some(from), Some(to)) = (from, to) else {
        return Err(WindowError::HalfAbsolute);
    };
    if to <= from {
        return Err(WindowError::Backwards { from, to });
    }
    Ok(Shape::Absolute { from, to })
}

/// The sum of all windows at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The first instant after `at` at which `allowed` flips; none where that is not in sight.
    pub next_change: Option<Timestamp>,
}

/// Days that are gone through for the next flip before it counts as out of sight: however many windows there are, however
/// long they last and however they mesh, an answer is a matter of milliseconds.
const MAX_DAYS: usize = 200_000;

/// What is left to go through, in days of a calendar.
struct Budget(usize);

impl Budget {
    /// For a question that is answered whatever it takes: as many windows as there may be, as long as they may be.
    fn ample() -> Self {
        Budget(usize::MAX)
    }

    /// Takes `cost`; false where that is not left.
    fn spend(&mut self, cost: usize) -> bool {
        let enough = self.0 >= cost;
        self.0 = self.0.saturating_sub(cost);
        enough
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Decides whether a new revision may roll out at `at`. Without windows it always may.
pub fn decide(windows: &[Window], at: Timestamp) -> Decision {
    let allowed = is_allowed(windows, at, &mut Budget::ample());
    Decision {
        allowed,
        next_change: next_change(windows, at, allowed),
    }
}

/// The first instant after `at` at which `allowed` is not true any more; none where that is not in sight.
fn next_change(windows: &[Window], at: Timestamp, allowed: bool) -> Option<Timestamp> {
    let mut budget = Budget(MAX_DAYS);
    let mut cursor = at;
    loop {
        let boundary = next_boundary(windows, cursor, &mut budget)?;
        let flips = is_allowed(windows, boundary, &mut budget) != allowed;
        // Where not everything was looked at, an earlier boundary may have been missed.
        if budget.is_spent() {
            return None;
        }
        if flips {
            return Some(boundary);
        }
        cursor = boundary;
    }
}

fn of(windows: &[Window], effect: Effect) -> impl Iterator<Item = &Window> {
    windows.iter().filter(move |window| window.effect == effect)
}

fn is_allowed(windows: &[Window], at: Timestamp, budget: &mut Budget) -> bool {
    let denied = of(windows, Effect::Deny).any(|window| window.is_active(at, budget));
    let mut allows = of(windows, Effect::Allow).peekable();
    !denied && (allows.peek().is_none() || allows.any(|window| window.is_active(at, budget)))
}

/// The next instant that can change the decision: while denied the end of a denial, while open the end of an
/// allowance or the start of a denial, otherwise the start of an allowance.
fn next_boundary(windows: &[Window], at: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
    // However cheap they are to look at, there is an end to them.
    if !budget.spend(windows.len()) {
        return None;
    }
    let mut active = |effect| -> Vec<&Window> {
        of(windows, effect)
            .filter(|window| window.is_active(at, budget))
            .collect()
    };
    let denials = active(Effect::Deny);
    let allowances = if denials.is_empty() {
        active(Effect::Allow)
    } else {
        Vec::new()
    };
    if !denials.is_empty() {
        // A denial without an end keeps the answer, whatever the others do.
        let ends: Option<Vec<Timestamp>> = denials.iter().map(|deny| deny.active_until(at, budget)).collect();
        return ends?.into_iter().max();
    }
    if allowances.is_empty() && of(windows, Effect::Allow).next().is_some() {
        let starts = of(windows, Effect::Allow).filter_map(|allow| allow.next_start(at, budget));
        return starts.min();
    }
    let ends: Vec<Timestamp> = allowances
        .iter()
        .filter_map(|allow| allow.active_until(at, budget))
        .collect();
    let starts = of(windows, Effect::Deny).filter_map(|deny| deny.next_start(at, budget));
    ends.into_iter().chain(starts).min()
}

/// What a closed window holds back (`spec.windowScope`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// New revisions; drift is still corrected.
    #[default]
    Updates,
    /// Everything.
    All,
}

/// What the windows say about a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// Held until `next_opening`, where that is in sight.
    Held {
        next_opening: Option<Timestamp>,
    },
}

/// The update-window gate (gates 2.4): a fresh `update-now` (`overridden`) passes, so does a pass without a new
/// revision unless the scope is `All`.
pub fn gate(windows: &[Window], scope: Scope, new_revision: bool, overridden: bool, at: Timestamp) -> Gate {
    let concerned = new_revision || scope == Scope::All;
    if overridden || windows.is_empty() || !concerned {
        return Gate::Open;
    }
    if is_allowed(windows, at, &mut Budget::ample()) {
        // Until when is nobody's question.
        return Gate::Open;
    }
    Gate::Held {
        next_opening: next_change(windows, at, false),
    }
}

#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tests;
