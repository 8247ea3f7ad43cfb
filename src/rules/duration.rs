//! Durations in Go syntax: the one place that reads and prints them (api 3.1).
//!
//! The unit is the nanosecond in an `i64`, as in Go: about 292 years either way.

use std::time::Duration as StdDuration;

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Digits of a fraction that can matter: an hour has fewer than 10^13 nanoseconds.
const FRACTION_DIGITS: usize = 18;

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("an empty text is no duration; write for example 5m or 1h30m")]
    Empty,
    #[error("\"{text}\" is no duration: a number is missing before \"{rest}\"; write for example 5m or 1h30m")]
    MissingNumber { text: String, rest: String },
    #[error("\"{text}\" is no duration: the number {number} has no unit; use ns, us, ms, s, m or h")]
    MissingUnit { text: String, number: String },
    #[error("\"{text}\" is no duration: unknown unit \"{unit}\"; use ns, us, ms, s, m or h")]
    UnknownUnit { text: String, unit: String },
    #[error("\"{text}\" is longer than a duration can be, about 292 years")]
    OutOfRange { text: String },
}

/// Reads a duration as nanoseconds. Zero and negative durations are legal syntax.
///
/// # Errors
/// The text breaks the syntax, or its sum does not fit.
pub fn parse(text: &str) -> Result<i64, DurationError> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    if unsigned == "0" {
        return Ok(0);
    }
    let out_of_range = || DurationError::OutOfRange { text: text.to_owned() };
    let limit = i64::MAX as u128 + u128::from(negative);
    let mut total: u128 = 0;
    let mut rest = unsigned;
    loop {
        let (group, after) = read_group(text, rest)?;
        total = group
            .and_then(|group| total.checked_add(group))
            .filter(|sum| *sum <= limit)
            .ok_or_else(out_of_range)?;
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    let total = i128::try_from(total).map_err(|_| out_of_range())?;
    i64::try_from(if negative { -total } else { total }).map_err(|_| out_of_range())
}

/// A duration for waiting: `None` where it is absent, malformed or not positive, which all mean unset (api 3.1).
pub fn set(text: Option<&str>) -> Option<StdDuration> {
    positive(text?).ok().flatten()
}

/// Reads one number with its unit: its nanoseconds (`None` past any range) and what follows.
fn read_group<'a>(text: &str, rest: &'a str) -> Result<(Option<u128>, &'a str), DurationError> {
    let digits = |s: &'a str| s.split_at(s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len()));
    let (whole, after) = digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::MissingNumber {
            text: text.to_owned(),
            rest: rest.to_owned(),
        });
    }
    let (unit, after) = after.split_at(
        after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len()),
    );
    let Some(nanos) = unit_nanos(unit) else {
        return Err(match unit {
            "" => DurationError::MissingUnit {
                text: text.to_owned(),
                number: rest[..rest.len() - after.len()].to_owned(),
            },
            _ => DurationError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            },
        });
    };
    Ok((group_nanos(whole, fraction, nanos), after))
}

fn group_nanos(whole: &str, fraction: &str, unit: u128) -> Option<u128> {
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part: u128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    whole
        .checked_mul(unit)?
        .checked_add(part * unit / 10_u128.pow(kept.len() as u32))
}

fn unit_nanos(unit: &str) -> Option<u128> {
    let nanos = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    };
    Some(nanos.unsigned_abs().into())
}

/// Reads a duration for a field where a value that is not positive means the same as none.
///
/// # Errors
/// As [`parse`].
pub fn positive(text: &str) -> Result<Option<StdDuration>, DurationError> {
    let nanos = parse(text)?;
    Ok(u64::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos > 0)
        .map(StdDuration::from_nanos))
}

/// Prints nanoseconds the way Go does: `1h0m0s`, `1.5s`, `500µs`, `0s`.
pub fn print(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let total = nanos.unsigned_abs();
    let [microsecond, millisecond, second, minute, hour] =
        [MICROSECOND, MILLISECOND, SECOND, MINUTE, HOUR].map(i64::unsigned_abs);
    let body = if total == 0 {
        "0s".to_owned()
    } else if total < microsecond {
        format!("{total}ns")
    } else if total < millisecond {
        format!("{}\u{b5}s", decimal(total, microsecond))
    } else if total < second {
        format!("{}ms", decimal(total, millisecond))
    } else {
        let (hours, minutes) = (total / hour, total / minute % 60);
        let seconds = decimal(total % minute, second);
        match (hours, minutes) {
            (0, 0) => format!("{seconds}s"),
            (0, _) => format!("{minutes}m{seconds}s"),
            _ => format!("{hours}h{minutes}m{seconds}s"),
        }
    };
    format!("{sign}{body}")
}

/// `value / unit` with its exact fraction, trailing zeros trimmed. `unit` is a power of ten.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

/// Prints a span of time the way Go does, cut to whole nanoseconds and to the range of an `i64`.
pub fn print_std(span: StdDuration) -> String {
    print(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_and_prints_the_published_examples() {
        for (text, canonical) in [
            ("5m", "5m0s"),
            ("1h", "1h0m0s"),
            ("90s", "1m30s"),
            ("1500ms", "1.5s"),
            ("0.5ms", "500\u{b5}s"),
            ("24h", "24h0m0s"),
            ("0", "0s"),
            ("-0", "0s"),
            ("+5s", "5s"),
            ("-30s", "-30s"),
            (".5s", "500ms"),
            ("5.s", "5s"),
            ("1m1h1m", "1h2m0s"),
            ("1us", "1\u{b5}s"),
            ("1\u{b5}s", "1\u{b5}s"),
            ("1\u{3bc}s", "1\u{b5}s"),
            ("1.0000000009s", "1s"),
            ("0.3333333333333333333h", "19m59.999999999s"),
            ("9223372036854775807ns", "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
        ] {
            let nanos = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(print(nanos), canonical, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        let kind = |text: &str| parse(text).expect_err(text);
        assert_eq!(kind(""), DurationError::Empty);
        for text in ["-", "+", ".s", "m", " 5m", "--5m", "1h-5m", "1h+5m"] {
            let error = kind(text);
            let matches = matches!(
                error,
                DurationError::MissingNumber { .. } | DurationError::UnknownUnit { .. }
            );
            assert!(matches, "{text}: {error:?}");
        }
        for text in ["5", "1h5", "00", "5.", "-3"] {
            assert!(
                matches!(kind(text), DurationError::MissingUnit { .. }),
                "{text}: {:?}",
                kind(text)
            );
        }
        for text in ["1d", "5 m", "5m ", "1H", "1w", "5\u{b5}"] {
            assert!(matches!(kind(text), DurationError::UnknownUnit { .. }), "{text}");
        }
        for text in [
            "9223372036854775808ns",
            "-9223372036854775809ns",
            "3000000h",
            "99999999999999999999999999999999999999999h",
        ] {
            assert_eq!(kind(text), DurationError::OutOfRange { text: text.into() });
        }
    }

    #[test]
    fn errors_name_the_value_and_what_to_write() {
        let message = parse("1d").unwrap_err().to_string();
        assert!(
            message.contains("\"1d\"") && message.contains("\"d\"") && message.contains("ms, s, m or h"),
            "{message}"
        );
        let message = parse("90").unwrap_err().to_string();
        assert!(message.contains("the number 90 has no unit"), "{message}");
    }

    #[test]
    fn what_is_not_positive_is_unset() {
        assert_eq!(positive("0s"), Ok(None));
        assert_eq!(positive("-5m"), Ok(None));
        assert_eq!(positive("1m30s"), Ok(Some(StdDuration::from_secs(90))));
        assert!(positive("soon").is_err());
        assert_eq!(print_std(StdDuration::from_millis(1500)), "1.5s");
        assert_eq!(print_std(StdDuration::MAX), print(i64::MAX));
    }

    proptest! {
        #[test]
        fn printing_and_reading_is_the_identity(nanos in any::<i64>()) {
            prop_assert_eq!(parse(&print(nanos)), Ok(nanos));
        }

        #[test]
        fn small_spans_too(nanos in -2_000_000_000_i64..2_000_000_000) {
            prop_assert_eq!(parse(&print(nanos)), Ok(nanos));
        }

        #[test]
        fn groups_add_up_in_any_order(hours in 0_i64..1000, minutes in 0_i64..1000, millis in 0_i64..100_000) {
            let expected = hours * HOUR + minutes * MINUTE + millis * MILLISECOND;
            prop_assert_eq!(parse(&format!("{hours}h{minutes}m{millis}ms")), Ok(expected));
            prop_assert_eq!(parse(&format!("{millis}ms{hours}h{minutes}m")), Ok(expected));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "[-+.0-9nuµmsh ]{0,12}|\\PC{0,12}") {
            if let Ok(nanos) = parse(&text) {
                prop_assert_eq!(parse(&print(nanos)), Ok(nanos));
            }
        }
    }
}
