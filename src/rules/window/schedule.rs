//! Cron schedules with the meaning robfig/cron v3 gives them (the parser of the Go ecosystem), read strictly.
//!
//! Where clocks change, this deviates in one point: a start at a fixed hour that falls into the hour that spring
//! skips happens at the end of the gap instead of not at all, so that no maintenance window vanishes. In autumn a
//! start inside the repeated hour happens twice.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan};

use super::Budget;

/// How far ahead a start is looked for. Longer than the eight years between two leap days around 2100.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * 366 * 9);

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A schedule that cannot be read. Each message names the text and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("time zone {0:?} is not a known IANA time zone such as Europe/Berlin or UTC")]
    UnknownZone(String),
    #[error("schedule {schedule:?} names the time zone {prefix:?} while timeZone is {zone:?}: keep timeZone only")]
    TwoZones {
        schedule: String,
        prefix: String,
        zone: String,
    },
    #[error(
        "schedule {0:?} has no fixed start, so it cannot open a window: \
         write the five fields minute, hour, day of month, month, day of week"
    )]
    Every(String),
    #[error(
        "schedule {0:?} is not known; there are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly"
    )]
    UnknownDescriptor(String),
    #[error("schedule {schedule:?} has {found} fields; it needs five: minute, hour, day of month, month, day of week")]
    FieldCount { schedule: String, found: usize },
    #[error("schedule {schedule:?}: {item:?} in the {field} field is wrong: {cause}")]
    Field {
        schedule: String,
        field: &'static str,
        item: String,
        cause: String,
    },
}

/// A parsed schedule in its time zone.
#[derive(Debug, Clone)]
pub struct Schedule {
    minutes: Mask,
    hours: Mask,
    days: Mask,
    months: Mask,
    weekdays: Mask,
    zone: TimeZone,
}

/// The values a field admits, as bits, and whether it was left open with `*` or `?`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mask {
    bits: u64,
    open: bool,
    /// Written as `*`, `?` or in steps of them: an interval of real time rather than a fixed place on the clock.
    interval: bool,
}

impl Mask {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits & (1 << value) != 0)
    }

    fn next_from(self, value: i8) -> Option<i8> {
        (value..64).find(|&value| self.has(value))
    }

    fn last_until(self, value: i8) -> Option<i8> {
        (0..=value).rev().find(|&value| self.has(value))
    }
}

/// Bounds and names of a field.
struct Field {
    name: &'static str,
    min: i8,
    max: i8,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        min: 0,
        max: 59,
        names: &[],
    },
    Field {
        name: "hour",
        min: 0,
        max: 23,
        names: &[],
    },
    Field {
        name: "day of month",
        min: 1,
        max: 31,
        names: &[],
    },
    Field {
        name: "month",
        min: 1,
        max: 12,
        names: &MONTHS,
    },
    Field {
        name: "day of week",
        min: 0,
        max: 6,
        names: &WEEKDAYS,
    },
];

/// Looks a zone up; empty is UTC. `Local` is refused: it would depend on the machine.
pub(super) fn find_zone(name: &str) -> Result<TimeZone, ScheduleError> {
    let unknown = || ScheduleError::UnknownZone(name.to_owned());
    match name {
        "" | "UTC" => Ok(TimeZone::UTC),
        _ if name.eq_ignore_ascii_case("local") => Err(unknown()),
        _ => TimeZone::get(name).map_err(|_| unknown()),
    }
}

impl Schedule {
    /// Reads a schedule: five fields or a descriptor, optionally after `TZ=<zone>` or `CRON_TZ=<zone>`. `zone` is the
    /// window's own zone; none or empty is UTC. A prefix may repeat it but not contradict it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, ScheduleError> {
        let zone = zone.unwrap_or_default();
        let (prefix, pattern) = split_prefix(text);
        let zone = match prefix {
            Some(prefix) if !zone.is_empty() && prefix != zone => {
                return Err(ScheduleError::TwoZones {
                    schedule: text.to_owned(),
                    prefix: prefix.to_owned(),
                    zone: zone.to_owned(),
                });
            }
            Some(prefix) => find_zone(prefix)?,
            None => find_zone(zone)?,
        };
        let fields: Vec<&str> = expand(pattern)?.split_whitespace().collect();
        if fields.len() != FIELDS.len() {
            return Err(ScheduleError::FieldCount {
                schedule: text.to_owned(),
                found: fields.len(),
            });
        }
        let mask = |index: usize| parse_field(text, fields[index], &FIELDS[index]);
        Ok(Schedule {
            minutes: mask(0)?,
            hours: mask(1)?,
            days: mask(2)?,
            months: mask(3)?,
            weekdays: mask(4)?,
            zone,
        })
    }

    /// The first start after `after`; none within nine years, or where the budget ends before one is found.
    pub(super) fn next_start(&self, after: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
        let horizon = after.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
        // Starts lie on whole seconds, so the search can begin at the next one.
        let mut from = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
        while from <= horizon && budget.spend(1) {
            let offset = self.zone.to_offset(from);
            let change = self.zone.following(from).next();
            let end = change.as_ref().map_or(horizon, |change| change.timestamp());
            let local_end = offset.to_datetime(end.min(horizon));
            if let Some(start) = self.next_match(offset.to_datetime(from), local_end, budget) {
                return offset.to_timestamp(start).ok();
            }
            let change = change?;
            if self.starts_at_gap(offset, change.offset(), change.timestamp(), budget) {
                return Some(change.timestamp());
            }
            from = change.timestamp();
        }
        None
    }

    /// The latest start in `(after, until]`; none where the budget ends before one is found.
    pub(super) fn latest_start(&self, after: Timestamp, until: Timestamp, budget: &mut Budget) -> Option<Timestamp> {
        let mut until = until;
        while until > after && budget.spend(1) {
            let offset = self.zone.to_offset(until);
            // Transitions strictly before the next nanosecond: the one that began this offset.
            let just_after = until.checked_add(SignedDuration::from_nanos(1)).ok()?;
            let change = self.zone.preceding(just_after).next();
            let begin = change.as_ref().map_or(Timestamp::MIN, |change| change.timestamp());
            let first = offset.to_datetime(begin.max(after));
            if let Some(start) = self.last_match(first, offset.to_datetime(until), budget) {
                let start = offset.to_timestamp(start).ok()?;
                return (start > after).then_some(start);
            }
            let before = begin.checked_sub(SignedDuration::from_nanos(1)).ok()?;
            let earlier = self.zone.to_offset(before);
            if begin > after && self.starts_at_gap(earlier, offset, begin, budget) {
                return Some(begin);
            }
            until = before;
        }
        None
    }

    /// True where the clocks go forward at `change` and a fixed start lies in the skipped time.
    fn starts_at_gap(&self, before: Offset, after: Offset, change: Timestamp, budget: &mut Budget) -> bool {
        let skipped = (before.to_datetime(change), after.to_datetime(change));
        !self.hours.interval && self.next_match(skipped.0, skipped.1, budget).is_some()
    }

    /// The first matching civil minute in `[from, end)`.
    fn next_match(&self, from: DateTime, end: DateTime, budget: &mut Budget) -> Option<DateTime> {
        let mut date = from.date();
        let mut earliest = round_up(from.time());
        while date <= end.date() && budget.spend(1) {
            if self.matches_day(date)
                && let Some(time) = earliest.and_then(|earliest| self.next_time(earliest))
            {
                let found = date.to_datetime(time);
                return (found < end).then_some(found);
            }
            date = self.next_date(date)?;
            earliest = Some(Time::midnight());
        }
        None
    }

    /// The last matching civil minute in `[first, until]`.
    fn last_match(&self, first: DateTime, until: DateTime, budget: &mut Budget) -> Option<DateTime> {
        let mut date = until.date();
        let mut latest = until.time();
        while date >= first.date() && budget.spend(1) {
            if self.matches_day(date)
                && let Some(time) = self.last_time(latest)
            {
                let found = date.to_datetime(time);
                return (found >= first).then_some(found);
            }
            date = self.previous_date(date)?;
            latest = Time::constant(23, 59, 59, 0);
        }
        None
    }

    /// The day after, or the first of the next month where this month does not match.
    fn next_date(&self, date: Date) -> Option<Date> {
        if self.months.has(date.month()) {
            date.tomorrow().ok()
        } else {
            date.first_of_month().checked_add(1.month()).ok()
        }
    }

    /// The day before, or the last of the previous month where this month does not match.
    fn previous_date(&self, date: Date) -> Option<Date> {
        if self.months.has(date.month()) {
            date.yesterday().ok()
        } else {
            date.first_of_month().yesterday().ok()
        }
    }

    /// Day of month and day of week: both must match where one of them is open, otherwise either will do.
    fn matches_day(&self, date: Date) -> bool {
        let by_month = self.days.has(date.day());
        let by_week = self.weekdays.has(date.weekday().to_sunday_zero_offset());
        let matches = if self.days.open || self.weekdays.open {
            by_month && by_week
        } else {
            by_month || by_week
        };
        matches && self.months.has(date.month())
    }

    /// The first matching time of day at or after `earliest` (a whole minute).
    fn next_time(&self, earliest: Time) -> Option<Time> {
        let hour = self.hours.next_from(earliest.hour())?;
        if hour == earliest.hour()
            && let Some(minute) = self.minutes.next_from(earliest.minute())
        {
            return Time::new(hour, minute, 0, 0).ok();
        }
        let hour = if hour == earliest.hour() {
            self.hours.next_from(hour + 1)?
        } else {
            hour
        };
        Time::new(hour, self.minutes.next_from(0)?, 0, 0).ok()
    }

    /// The last matching time of day at or before `latest`.
    fn last_time(&self, latest: Time) -> Option<Time> {
        let hour = self.hours.last_until(latest.hour())?;
        if hour == latest.hour()
            && let Some(minute) = self.minutes.last_until(latest.minute())
        {
            return Time::new(hour, minute, 0, 0).ok();
        }
        let hour = if hour == latest.hour() {
            self.hours.last_until(hour - 1)?
        } else {
            hour
        };
        Time::new(hour, self.minutes.last_until(59)?, 0, 0).ok()
    }
}

/// The next whole minute at or after a time; none where that is the next day.
fn round_up(time: Time) -> Option<Time> {
    let whole = Time::constant(0, 0, 0, 0)
        .with()
        .hour(time.hour())
        .minute(time.minute());
    let whole = whole.build().ok()?;
    if whole == time {
        return Some(whole);
    }
    whole.checked_add(1.minute()).ok()
}

/// Splits a `TZ=` or `CRON_TZ=` prefix off.
fn split_prefix(text: &str) -> (Option<&str>, &str) {
    let rest = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    match rest {
        Some(rest) => {
            let (zone, pattern) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            (Some(zone), pattern.trim())
        }
        None => (None, text),
    }
}

/// Replaces a descriptor by its five fields.
fn expand(pattern: &str) -> Result<&str, ScheduleError> {
    match pattern {
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@monthly" => Ok("0 0 1 * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@hourly" => Ok("0 * * * *"),
        _ if pattern.starts_with("@every") => Err(ScheduleError::Every(pattern.to_owned())),
        _ if pattern.starts_with('@') => Err(ScheduleError::UnknownDescriptor(pattern.to_owned())),
        _ => Ok(pattern),
    }
}

fn parse_field(schedule: &str, text: &str, field: &Field) -> Result<Mask, ScheduleError> {
    let mut mask = Mask {
        bits: 0,
        open: false,
        interval: false,
    };
    for item in text.split(',') {
        let parsed = parse_item(item, field).map_err(|cause| ScheduleError::Field {
            schedule: schedule.to_owned(),
            field: field.name,
            item: item.to_owned(),
            cause,
        })?;
        mask.bits |= parsed.bits;
        mask.open |= parsed.open;
        mask.interval |= parsed.interval;
    }
    let all = (field.min..=field.max).all(|value| mask.has(value));
    mask.interval |= all;
    Ok(mask)
}

/// One item of a list: `*`, `?`, a value or a range, each with an optional step. A single value with a step runs to
/// the end of the field.
fn parse_item(item: &str, field: &Field) -> Result<Mask, String> {
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, Some(parse_number(step)?)),
        None => (item, None),
    };
    let star = matches!(range, "*" | "?");
    let (first, last) = if star {
        (field.min, field.max)
    } else {
        match range.split_once('-') {
            Some((first, last)) => (parse_value(first, field)?, parse_value(last, field)?),
            None => {
                let value = parse_value(range, field)?;
                (value, if step.is_some() { field.max } else { value })
            }
        }
    };
    if first > last {
        return Err(format!("{first} is after {last}"));
    }
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err("the step must be at least 1".to_owned());
    }
    let values = (first..=last).step_by(step);
    Ok(Mask {
        bits: values.fold(0, |bits, value| bits | 1_u64 << value),
        open: star && step == 1,
        interval: star,
    })
}

fn parse_value(text: &str, field: &Field) -> Result<i8, String> {
    let named = field.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    if let Some(index) = named {
        // Names count from the lowest value of their field.
        return Ok(field.min + i8::try_from(index).unwrap_or(i8::MAX));
    }
    let number = parse_number(text)?;
    let value = i8::try_from(number)
        .ok()
        .filter(|value| (field.min..=field.max).contains(value));
    value.ok_or_else(|| {
        let hint = if field.name == "day of week" {
            " (0 is Sunday)"
        } else {
            ""
        };
        format!("{number} is not in {}..{}{hint}", field.min, field.max)
    })
}

fn parse_number(text: &str) -> Result<usize, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| format!("{text:?} is not a number"))
}
