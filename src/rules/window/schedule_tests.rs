use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn starts(schedule: &Schedule, after: &str, count: usize) -> Vec<String> {
    let mut cursor = at(after);
    let mut found = Vec::new();
    while let Some(start) = schedule
        .next_start(cursor, &mut Budget::ample())
        .filter(|_| found.len() < count)
    {
        found.push(start.to_string());
        cursor = start;
    }
    found
}

// The expected starts come from robfig/cron v3.0.1 itself, away from the gaps of spring.
/// Rules: run 10.1 cron
#[rstest]
#[case("0 2 * * *", "UTC", "2026-06-15T02:00:00Z", &["2026-06-16T02:00:00Z", "2026-06-17T02:00:00Z"])]
#[case("0 2 * * *", "", "2026-06-15T01:59:59Z", &["2026-06-15T02:00:00Z"])]
#[case("0 2 * * *", "", "2026-06-15T01:59:59.999999999Z", &["2026-06-15T02:00:00Z"])]
#[case("*/15 9-10 * * mon-FRI", "Europe/Berlin", "2026-06-12T08:30:00Z", &["2026-06-12T08:45:00Z", "2026-06-15T07:00:00Z"])]
#[case("5/20 * * * *", "", "2026-06-15T10:06:00Z", &["2026-06-15T10:25:00Z", "2026-06-15T10:45:00Z", "2026-06-15T11:05:00Z"])]
#[case("10-20/3 4 ? * ?", "", "2026-06-15T04:10:00Z", &["2026-06-15T04:13:00Z", "2026-06-15T04:16:00Z", "2026-06-15T04:19:00Z", "2026-06-16T04:10:00Z"])]
#[case("0 0 13 * 5", "", "2026-02-01T00:00:00Z", &["2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"])]
#[case("0 0 13 * *", "", "2026-02-01T00:00:00Z", &["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z"])]
#[case("0 0 */2 * 1", "", "2026-06-01T00:00:00Z", &["2026-06-03T00:00:00Z", "2026-06-05T00:00:00Z", "2026-06-07T00:00:00Z", "2026-06-08T00:00:00Z"])]
#[case("0 0 */1 * 1", "", "2026-06-02T00:00:00Z", &["2026-06-08T00:00:00Z", "2026-06-15T00:00:00Z"])]
#[case("0 0 29 feb *", "", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"])]
#[case("0 0 1 Jan,JUL sun", "", "2026-06-28T00:00:00Z", &["2026-07-01T00:00:00Z", "2026-07-05T00:00:00Z"])]
#[case("30 5 * * *", "Asia/Kolkata", "2026-06-15T00:00:00Z", &["2026-06-16T00:00:00Z"])]
#[case("@yearly", "", "2026-06-15T00:00:00Z", &["2027-01-01T00:00:00Z"])]
#[case("@annually", "", "2026-06-15T00:00:00Z", &["2027-01-01T00:00:00Z"])]
#[case("@monthly", "", "2026-06-15T00:00:00Z", &["2026-07-01T00:00:00Z"])]
#[case("@weekly", "", "2026-06-15T00:00:00Z", &["2026-06-21T00:00:00Z"])]
#[case("@daily", "", "2026-06-15T00:00:00Z", &["2026-06-16T00:00:00Z"])]
#[case("@midnight", "America/New_York", "2026-06-15T05:00:00Z", &["2026-06-16T04:00:00Z"])]
#[case("@hourly", "", "2026-06-15T00:00:00Z", &["2026-06-15T01:00:00Z"])]
#[case("CRON_TZ=Europe/Berlin 0 2 * * *", "", "2026-06-15T01:00:00Z", &["2026-06-16T00:00:00Z"])]
#[case("TZ=Europe/Berlin  @daily", "Europe/Berlin", "2026-06-15T01:00:00Z", &["2026-06-15T22:00:00Z"])]
fn schedules(#[case] text: &str, #[case] zone: &str, #[case] after: &str, #[case] expected: &[&str]) {
    let schedule = Schedule::parse(text, Some(zone)).unwrap();
    assert_eq!(starts(&schedule, after, expected.len()), expected);
}

// In autumn 02:30 happens twice in Berlin (UTC+2, then UTC+1).
/// Rules: run 10.2 dst
#[rstest]
#[case("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"])]
#[case("30 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", &["2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"])]
#[case("0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", &["2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"])]
// Half an hour is repeated on Lord Howe.
#[case("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00Z", &["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-05T15:15:00Z"])]
// Midnight itself is repeated in Beirut.
#[case("30 23 * * *", "Asia/Beirut", "2026-10-24T12:00:00Z", &["2026-10-24T20:30:00Z", "2026-10-24T21:30:00Z", "2026-10-25T21:30:00Z"])]
fn starts_in_the_repeated_hour_happen_twice(
    #[case] text: &str,
    #[case] zone: &str,
    #[case] after: &str,
    #[case] expected: &[&str],
) {
    schedules(text, zone, after, expected);
}

// In spring 02:30 does not exist in Berlin: 01:59:59 (UTC+1) is followed by 03:00 (UTC+2).
/// Rules: run 10.2 dst, run B34
#[rstest]
#[case("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"])]
#[case("*/10 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"])]
#[case("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"])]
#[case("30 1,2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"])]
// Every hour is an interval of real time: nothing is made up for the hour that is not there.
#[case("30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", &["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"])]
#[case("30 0-23 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", &["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"])]
#[case("0 */2 * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", &["2026-03-29T02:00:00Z"])]
// Midnight does not exist.
#[case("@daily", "Africa/Cairo", "2026-04-23T12:00:00Z", &["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"])]
// The day itself does not match, so neither does its gap.
#[case("30 2 * * 1", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-30T00:30:00Z"])]
fn a_start_in_the_skipped_hour_happens_at_its_end(
    #[case] text: &str,
    #[case] zone: &str,
    #[case] after: &str,
    #[case] expected: &[&str],
) {
    schedules(text, zone, after, expected);
}

#[rstest]
#[case("0 0 31 4 *")]
#[case("0 0 30 2 ?")]
#[case("0 0 31 feb,apr,jun,sep,nov *")]
fn a_schedule_that_never_comes_is_well_formed(#[case] text: &str) {
    for zone in ["UTC", "Europe/Berlin", "Pacific/Apia"] {
        let schedule = Schedule::parse(text, Some(zone)).unwrap();
        assert_eq!(
            schedule.next_start(at("2026-01-01T00:00:00Z"), &mut Budget::ample()),
            None
        );
        let from = at("2016-01-01T00:00:00Z");
        assert_eq!(
            schedule.latest_start(from, at("2026-01-01T00:00:00Z"), &mut Budget::ample()),
            None
        );
    }
}

/// Rules: run 10.1 cron, run B34
#[rstest]
#[case("", "0 fields")]
#[case("* * * *", "4 fields")]
#[case("0 * * * * *", "6 fields")]
#[case("TZ=Europe/Berlin", "0 fields")]
#[case("60 * * * *", "\"60\" in the minute field is wrong: 60 is not in 0..59")]
#[case("* 24 * * *", "24 is not in 0..23")]
#[case("* * 0 * *", "0 is not in 1..31")]
#[case("* * 32 * *", "32 is not in 1..31")]
#[case("* * * 13 *", "13 is not in 1..12")]
#[case("* * * * 7", "7 is not in 0..6 (0 is Sunday)")]
#[case("* * * * 0-7", "7 is not in 0..6")]
#[case("* * * foo *", "\"foo\" is not a number")]
#[case("* * L * *", "\"L\" is not a number")]
#[case("* * 15W * *", "\"15W\" is not a number")]
#[case("* * * * 5#2", "\"5#2\" is not a number")]
#[case("* * * * 5L", "\"5L\" is not a number")]
#[case("mon * * * *", "\"mon\" is not a number")]
#[case("5-1 * * * *", "5 is after 1")]
#[case("* * * * sat-sun", "6 is after 0")]
#[case("*/0 * * * *", "the step must be at least 1")]
#[case("1/2/3 * * * *", "\"2/3\" is not a number")]
#[case("1-2-3 * * * *", "\"2-3\" is not a number")]
#[case("-1 * * * *", "\"\" is not a number")]
#[case("+1 * * * *", "\"+1\" is not a number")]
#[case("1, * * * *", "\"\" is not a number")]
#[case("1.5 * * * *", "\"1.5\" is not a number")]
#[case("99999999999999999999999 * * * *", "is not a number")]
#[case("@every 1h", "no fixed start")]
#[case("@every", "no fixed start")]
#[case("@reboot", "@reboot")]
#[case("@Daily", "@Daily")]
#[case("TZ=Nowhere/Land * * * * *", "\"Nowhere/Land\" is not a known IANA time zone")]
#[case("TZ=Local @daily", "\"Local\" is not a known")]
fn malformed_schedules_are_refused_with_their_cause(#[case] text: &str, #[case] cause: &str) {
    let error = check_schedule(text, None).unwrap_err();
    assert!(error.contains(cause), "{error}");
}

/// Rules: run B34
#[test]
fn a_prefix_may_not_contradict_the_zone() {
    let error = check_schedule("CRON_TZ=Asia/Tokyo @daily", Some("Europe/Berlin")).unwrap_err();
    for part in ["Asia/Tokyo", "Europe/Berlin", "timeZone"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(check_schedule("CRON_TZ=Asia/Tokyo @daily", Some("Asia/Tokyo")), Ok(()));
    assert_eq!(check_schedule("CRON_TZ=Asia/Tokyo @daily", Some("")), Ok(()));
}

/// Rules: gates 2.1
#[test]
fn zones_are_known_without_a_system_database() {
    for zone in ["", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"] {
        assert_eq!(check_zone(zone), Ok(()));
    }
    for zone in ["Local", "local", "Mars/Olympus", "../etc/passwd", "UTC+2"] {
        assert!(check_zone(zone).unwrap_err().contains(zone));
    }
}

fn some_schedule() -> impl Strategy<Value = Schedule> {
    let minutes = prop::sample::select(vec!["0", "*/7", "30", "*", "5-40/9"]);
    let hours = prop::sample::select(vec!["0", "2", "*", "*/3", "1-3", "23"]);
    let days = prop::sample::select(vec!["*", "1", "13,29", "*/2", "31"]);
    let months = prop::sample::select(vec!["*", "3,10", "2", "4-11"]);
    let weekdays = prop::sample::select(vec!["*", "sun", "1-5", "6"]);
    let zones = prop::sample::select(vec![
        "UTC",
        "Europe/Berlin",
        "America/Havana",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Cairo",
    ]);
    (minutes, hours, days, months, weekdays, zones).prop_map(|(minute, hour, day, month, weekday, zone)| {
        Schedule::parse(&format!("{minute} {hour} {day} {month} {weekday}"), Some(zone)).unwrap()
    })
}

fn some_instant() -> impl Strategy<Value = Timestamp> {
    // From 2010 on, so that days that do not exist in Apia are met.
    (1_262_304_000_i64..1_900_000_000).prop_map(|second| Timestamp::from_second(second).unwrap())
}

proptest! {
    /// Looking back from a start finds the starts that looking forward found, in reverse.
    #[test]
    fn back_and_forth_agree(schedule in some_schedule(), from in some_instant()) {
        let mut forward = Vec::new();
        let mut cursor = from;
        while let Some(start) = schedule.next_start(cursor, &mut Budget::ample()).filter(|_| forward.len() < 20) {
            prop_assert!(start > cursor);
            forward.push(start);
            cursor = start;
        }
        let mut backward = Vec::new();
        let mut until = cursor;
        while let Some(start) = schedule.latest_start(from, until, &mut Budget::ample()) {
            prop_assert!(from < start && start <= until);
            backward.push(start);
            until = start.checked_sub(SignedDuration::from_nanos(1)).unwrap();
        }
        backward.reverse();
        prop_assert_eq!(forward, backward);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,40}", zone in prop::option::of("[A-Za-z/]{0,10}")) {
        let _ = check_schedule(&text, zone.as_deref());
    }

    #[test]
    fn any_fields_are_read_or_refused(text in "[0-9*?/,-]{1,6}( [0-9*?/,a-f-]{1,6}){4}") {
        if let Ok(schedule) = Schedule::parse(&text, None) {
            let _ = schedule.next_start(at("2026-01-01T00:00:00Z"), &mut Budget::ample());
        }
    }
}
