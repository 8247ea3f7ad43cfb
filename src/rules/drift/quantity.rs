//! Quantities of the Kubernetes API: `1`, `500m`, `1.5Gi`, `1e3`.

use serde_json::Value;

/// Binary and decimal suffixes; the power is of 1024 or of 10.
const BINARY: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];
const DECIMAL: [(&str, i32); 9] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// True where two texts are quantities of the same value, `1000m` and `1`.
pub fn same_quantity(left: &str, right: &str) -> bool {
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}

/// As [`same_quantity`], where either side may be a plain number.
pub(super) fn same_value(left: &Value, right: &Value) -> bool {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match (text(left), text(right)) {
        (Some(left), Some(right)) => same_quantity(&left, &right),
        _ => false,
    }
}

/// The value in thousand-millionths (the finest the API keeps), rounded away from zero as the API does. None where the
/// text is no quantity or does not fit.
fn parse(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let (scaled, power) = scale(suffix, digits)?;
    let value = shift(scaled, power - places + 9)?;
    Some(if negative { -value } else { value })
}

/// Applies a suffix: the digits to go on with and the power of ten that remains.
fn scale(suffix: &str, digits: i128) -> Option<(i128, i32)> {
    if suffix.is_empty() {
        return Some((digits, 0));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((digits.checked_mul(1024_i128.pow(*power))?, 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((digits, *power));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = exponent.parse().ok()?;
    (-64..=64).contains(&power).then_some((digits, power))
}

/// Multiplies by a power of ten, rounding up what gets lost.
fn shift(value: i128, power: i32) -> Option<i128> {
    let factor = 10_i128.checked_pow(power.unsigned_abs());
    if power >= 0 {
        return value.checked_mul(factor?);
    }
    match factor {
        Some(factor) => Some(value / factor + i128::from(value % factor != 0)),
        None => Some(i128::from(value != 0)),
    }
}
