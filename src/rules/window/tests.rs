use std::time::Instant;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn recurring(effect: Effect, schedule: &str, minutes: i64, zone: &str) -> Window {
    Window::parse(&WindowFields {
        effect,
        schedule: Some(schedule),
        duration: Some(SignedDuration::from_mins(minutes)),
        time_zone: Some(zone),
        from: None,
        to: None,
    })
    .unwrap()
}

fn absolute(effect: Effect, from: &str, to: &str) -> Window {
    Window::parse(&WindowFields {
        effect,
        schedule: None,
        duration: None,
        time_zone: None,
        from: Some(at(from)),
        to: Some(at(to)),
    })
    .unwrap()
}

fn check(windows: &[Window], now: &str, allowed: bool, next_change: Option<&str>) {
    let expected = Decision {
        allowed,
        next_change: next_change.map(at),
    };
    assert_eq!(decide(windows, at(now)), expected, "at {now}");
}

/// Rules: run 10.3
#[test]
fn without_windows_everything_is_allowed() {
    check(&[], "2026-06-15T00:00:00Z", true, None);
}

/// Rules: run 10.2, gates 2.3.1
#[test]
fn an_absolute_window_includes_its_start_and_not_its_end() {
    let allow = [absolute(Effect::Allow, "2026-06-15T10:00:00Z", "2026-06-15T12:00:00Z")];
    check(&allow, "2026-06-15T09:59:59.9Z", false, Some("2026-06-15T10:00:00Z"));
    check(&allow, "2026-06-15T10:00:00Z", true, Some("2026-06-15T12:00:00Z"));
    check(&allow, "2026-06-15T11:59:59.9Z", true, Some("2026-06-15T12:00:00Z"));
    check(&allow, "2026-06-15T12:00:00Z", false, None);
}

/// Rules: run 10.2, gates 2.3.1
#[test]
fn a_recurring_window_is_active_from_its_start_for_its_length() {
    let allow = [recurring(Effect::Allow, "0 22 * * *", 240, "Europe/Berlin")];
    check(&allow, "2026-06-15T19:59:59Z", false, Some("2026-06-15T20:00:00Z"));
    check(&allow, "2026-06-15T20:00:00Z", true, Some("2026-06-16T00:00:00Z"));
    check(&allow, "2026-06-15T23:59:59.999Z", true, Some("2026-06-16T00:00:00Z"));
    check(&allow, "2026-06-16T00:00:00Z", false, Some("2026-06-16T20:00:00Z"));
}

/// Rules: run 10.2 dst
#[test]
fn the_length_is_elapsed_time_across_a_change_of_clocks() {
    let allow = [recurring(Effect::Allow, "0 22 * * *", 480, "Europe/Berlin")];
    // 22:00 to 07:00 on the wall in spring, to 05:00 in autumn.
    check(&allow, "2026-03-28T22:00:00Z", true, Some("2026-03-29T05:00:00Z"));
    check(&allow, "2026-10-24T21:00:00Z", true, Some("2026-10-25T04:00:00Z"));
}

#[test]
fn a_window_in_the_skipped_hour_does_not_vanish() {
    for effect in [Effect::Allow, Effect::Deny] {
        let windows = [recurring(effect, "30 2 * * *", 30, "Europe/Berlin")];
        let inside = effect == Effect::Allow;
        check(&windows, "2026-03-29T00:59:00Z", !inside, Some("2026-03-29T01:00:00Z"));
        check(&windows, "2026-03-29T01:00:00Z", inside, Some("2026-03-29T01:30:00Z"));
    }
}

#[test]
fn a_window_in_the_repeated_hour_comes_twice() {
    let deny = [recurring(Effect::Deny, "30 2 * * *", 30, "Europe/Berlin")];
    check(&deny, "2026-10-25T00:30:00Z", false, Some("2026-10-25T01:00:00Z"));
    check(&deny, "2026-10-25T01:00:00Z", true, Some("2026-10-25T01:30:00Z"));
    check(&deny, "2026-10-25T01:30:00Z", false, Some("2026-10-25T02:00:00Z"));
}

/// Rules: run 10.3, gates 2.3.2
#[test]
fn denial_wins() {
    let windows = [
        recurring(Effect::Allow, "0 9 * * 1-5", 480, "UTC"),
        absolute(Effect::Deny, "2026-06-15T12:00:00Z", "2026-06-15T13:00:00Z"),
    ];
    check(&windows, "2026-06-15T11:00:00Z", true, Some("2026-06-15T12:00:00Z"));
    check(&windows, "2026-06-15T12:30:00Z", false, Some("2026-06-15T13:00:00Z"));
    check(&windows, "2026-06-15T13:00:00Z", true, Some("2026-06-15T17:00:00Z"));
}

/// Rules: run 10.3, gates 2.3.3
#[test]
fn the_next_change_is_that_of_the_sum() {
    // The denial ends outside the allowance, so nothing opens before the next morning.
    let windows = [
        recurring(Effect::Allow, "0 9 * * *", 60, "UTC"),
        absolute(Effect::Deny, "2026-06-15T08:00:00Z", "2026-06-15T20:00:00Z"),
    ];
    check(&windows, "2026-06-15T08:30:00Z", false, Some("2026-06-16T09:00:00Z"));
    // A denial between two touching allowances is not a change to open.
    let touching = [
        absolute(Effect::Allow, "2026-06-15T08:00:00Z", "2026-06-15T10:00:00Z"),
        absolute(Effect::Allow, "2026-06-15T10:00:00Z", "2026-06-15T12:00:00Z"),
    ];
    check(&touching, "2026-06-15T09:00:00Z", true, Some("2026-06-15T12:00:00Z"));
    // Two denials, one after the other.
    let frozen = [
        absolute(Effect::Deny, "2026-06-15T08:00:00Z", "2026-06-15T10:00:00Z"),
        absolute(Effect::Deny, "2026-06-15T09:00:00Z", "2026-06-15T12:00:00Z"),
    ];
    check(&frozen, "2026-06-15T08:30:00Z", false, Some("2026-06-15T12:00:00Z"));
}

#[test]
fn a_denial_alone_leaves_the_rest_open() {
    let deny = [absolute(Effect::Deny, "2026-12-20T00:00:00Z", "2027-01-05T00:00:00Z")];
    check(&deny, "2026-06-15T00:00:00Z", true, Some("2026-12-20T00:00:00Z"));
    check(&deny, "2027-02-01T00:00:00Z", true, None);
}

#[test]
fn a_schedule_that_never_comes_never_opens() {
    let allow = [recurring(Effect::Allow, "0 0 30 2 *", 60, "UTC")];
    check(&allow, "2026-06-15T00:00:00Z", false, None);
    let deny = [recurring(Effect::Deny, "0 0 30 2 *", 60, "UTC")];
    check(&deny, "2026-06-15T00:00:00Z", true, None);
}

#[test]
fn overlapping_starts_join() {
    let allow = [recurring(Effect::Allow, "*/30 9-16 * * *", 90, "UTC")];
    check(&allow, "2026-06-15T09:10:00Z", true, Some("2026-06-15T18:00:00Z"));
    let whole_days = [recurring(Effect::Allow, "@daily", 24 * 60, "Europe/Berlin")];
    // The day of 25 hours leaves an hour uncovered.
    check(&whole_days, "2026-06-15T00:00:00Z", true, Some("2026-10-25T22:00:00Z"));
}

#[test]
fn windows_without_an_end_have_no_next_change_and_cost_little() {
    let began = Instant::now();
    check(
        &[recurring(Effect::Allow, "@daily", 24 * 60, "UTC")],
        "2026-06-15T00:00:00Z",
        true,
        None,
    );
    check(
        &[recurring(Effect::Deny, "* * * * *", 1, "UTC")],
        "2026-06-15T00:00:00Z",
        false,
        None,
    );
    let shut = [
        recurring(Effect::Deny, "* * * * *", 2, "Europe/Berlin"),
        recurring(Effect::Allow, "0 * * * *", 1, "UTC"),
    ];
    check(&shut, "2026-06-15T00:00:00Z", false, None);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[rstest]
#[case(Some("@daily"), Some(1), Some("2026-01-01T00:00:00Z"), None, WindowError::BothForms)]
#[case(None, Some(1), None, Some("2026-01-01T00:00:00Z"), WindowError::BothForms)]
#[case(None, None, None, None, WindowError::NeitherForm)]
#[case(Some(""), None, None, None, WindowError::NeitherForm)]
#[case(Some("@daily"), None, None, None, WindowError::HalfRecurring)]
#[case(None, Some(1), None, None, WindowError::HalfRecurring)]
#[case(None, None, Some("2026-01-01T00:00:00Z"), None, WindowError::HalfAbsolute)]
#[case(None, None, None, Some("2026-01-01T00:00:00Z"), WindowError::HalfAbsolute)]
#[case(Some("@daily"), Some(0), None, None, WindowError::NotPositive(SignedDuration::ZERO))]
#[case(Some("@daily"), Some(-1), None, None, WindowError::NotPositive(SignedDuration::from_mins(-1)))]
#[case(Some("@daily"), Some(366 * 24 * 60 + 1), None, None, WindowError::TooLong(SignedDuration::from_mins(366 * 24 * 60 + 1)))]
#[case(Some("@every 1h"), Some(0), None, None, WindowError::Schedule(ScheduleError::Every("@every 1h".into())))]
fn malformed_windows_are_refused(
    #[case] schedule: Option<&str>,
    #[case] minutes: Option<i64>,
    #[case] from: Option<&str>,
    #[case] to: Option<&str>,
    #[case] expected: WindowError,
) {
    let result = Window::parse(&WindowFields {
        effect: Effect::Allow,
        schedule,
        duration: minutes.map(SignedDuration::from_mins),
        time_zone: None,
        from: from.map(at),
        to: to.map(at),
    });
    assert_eq!(result.unwrap_err(), expected);
}

#[test]
fn an_end_before_the_start_names_both() {
    for to in ["2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z"] {
        let fields = WindowFields {
            effect: Effect::Deny,
            schedule: None,
            duration: None,
            time_zone: None,
            from: Some(at("2026-01-01T00:00:00Z")),
            to: Some(at(to)),
        };
        let text = Window::parse(&fields).unwrap_err().to_string();
        assert!(text.contains(to) && text.contains("2026-01-01T00:00:00Z"), "{text}");
    }
}

/// Rules: run 10.4, run 10.5.4, run 10.5 scope, gates 2.4.5
#[rstest]
#[case(Scope::Updates, true, false, true)]
#[case(Scope::Updates, false, false, false)]
#[case(Scope::All, true, false, true)]
#[case(Scope::All, false, false, true)]
#[case(Scope::Updates, true, true, false)]
#[case(Scope::All, false, true, false)]
fn the_gate_holds_what_the_scope_covers(
    #[case] scope: Scope,
    #[case] new_revision: bool,
    #[case] overridden: bool,
    #[case] held: bool,
) {
    let closed = [absolute(Effect::Allow, "2026-06-16T00:00:00Z", "2026-06-17T00:00:00Z")];
    let now = at("2026-06-15T00:00:00Z");
    let expected = if held {
        Gate::Held {
            next_opening: Some(at("2026-06-16T00:00:00Z")),
        }
    } else {
        Gate::Open
    };
    assert_eq!(gate(&closed, scope, new_revision, overridden, now), expected);
    assert_eq!(gate(&[], scope, new_revision, overridden, now), Gate::Open);
    let open = at("2026-06-16T12:00:00Z");
    assert_eq!(gate(&closed, scope, new_revision, overridden, open), Gate::Open);
}

fn some_window() -> impl Strategy<Value = Window> {
    let effect = prop_oneof![Just(Effect::Allow), Just(Effect::Deny)];
    let schedule = prop::sample::select(vec![
        "0 2 * * *",
        "*/20 9-17 * * 1-5",
        "@hourly",
        "0 0 1 * *",
        "30 2 * 3,10 0",
    ]);
    let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe"]);
    let minutes = prop::sample::select(vec![1_i64, 15, 20, 60, 90, 1440, 3000]);
    let span = (0_i64..400, 1_i64..60);
    (effect, schedule, zone, minutes, prop::option::of(span)).prop_map(|(effect, schedule, zone, minutes, span)| {
        match span {
            None => recurring(effect, schedule, minutes, zone),
            Some((day, days)) => {
                let from = 1_767_225_600 + day * 86_400;
                let shape = Shape::Absolute {
                    from: Timestamp::from_second(from).unwrap(),
                    to: Timestamp::from_second(from + days * 86_400).unwrap(),
                };
                Window { effect, shape }
            }
        }
    })
}

proptest! {
    /// The answer flips at the next change and nowhere before it.
    #[test]
    fn the_next_change_is_the_first(windows in prop::collection::vec(some_window(), 0..4), second in 1_767_225_600_i64..1_800_000_000) {
        let now = Timestamp::from_second(second).unwrap();
        let decision = decide(&windows, now);
        prop_assert_eq!(decision.allowed, is_allowed(&windows, now, &mut Budget::ample()));
        let horizon = now.checked_add(SignedDuration::from_hours(24 * 40)).unwrap();
        let end = decision.next_change.unwrap_or(horizon);
        let length = end.duration_since(now);
        for part in 0..200_i32 {
            let probe = now.checked_add(length * part / 200).unwrap();
            if probe < end {
                prop_assert_eq!(is_allowed(&windows, probe, &mut Budget::ample()), decision.allowed, "at {}", probe);
            }
        }
        if let Some(change) = decision.next_change {
            prop_assert!(change > now);
            prop_assert_eq!(is_allowed(&windows, change, &mut Budget::ample()), !decision.allowed);
            let before = change.checked_sub(SignedDuration::from_nanos(1)).unwrap();
            prop_assert_eq!(is_allowed(&windows, before.max(now), &mut Budget::ample()), decision.allowed);
        }
    }
}

/// Many windows that mesh so that the answer never flips cost no more than a few.
///
/// Rules: gates 2.3.2
#[test]
fn windows_without_an_end_in_sight_are_given_up_soon() {
    let mut windows = vec![recurring(Effect::Allow, "0 0 * * *", 1, "")];
    windows.extend((0..100).map(|_| recurring(Effect::Deny, "* 0-22 * * *", 1, "")));
    let began = Instant::now();
    check(&windows, "2026-06-15T10:00:00Z", false, None);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

/// Whether a window is active is found by going back as long as it lasts: that counts too.
///
/// Rules: gates 2.3.2
#[test]
fn windows_that_last_long_and_never_come_are_given_up_soon() {
    let year = LONGEST.as_mins();
    // What never comes, although months match: their days are gone through one by one.
    let never = "0 0 31 2,4,6,9,11 *";
    let mut windows: Vec<Window> = (0..MOST - 2)
        .map(|_| recurring(Effect::Deny, never, year, ""))
        .collect();
    // Each allowance is denied, and over before the denial is.
    windows.push(recurring(Effect::Allow, "0 * * * *", 1, "Europe/Berlin"));
    windows.push(recurring(Effect::Deny, "59 * * * *", 2, "Europe/Berlin"));
    let mut budget = Budget(MAX_DAYS);
    assert!(!windows[0].is_active(at("2026-06-15T10:00:00Z"), &mut budget));
    assert!(MAX_DAYS - budget.0 >= 150, "every day of the months that match counts");
    let began = Instant::now();
    check(&windows, "2026-06-15T10:00:00Z", false, None);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

/// What is found with long windows is right all the same.
#[test]
fn a_window_of_a_year_is_active_to_its_last_moment() {
    let allow = [recurring(Effect::Allow, "0 0 29 2 *", LONGEST.as_mins(), "")];
    check(&allow, "2028-02-28T23:59:59Z", false, Some("2028-02-29T00:00:00Z"));
    check(&allow, "2029-02-28T23:59:59Z", true, Some("2029-03-01T00:00:00Z"));
    check(&allow, "2029-03-01T00:00:00Z", false, Some("2032-02-29T00:00:00Z"));
}
