//! Types of plain scalars, as go-yaml v3 (core) and go-yaml v2 (YAML 1.1) decide them.

/// Which rules apply to plain scalars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// go-yaml v3: `yes` and `on` are text, an unquoted date is a timestamp.
    Core,
    /// go-yaml v2: `yes` and `on` are booleans, dates are text.
    Yaml11,
}

/// What plain text stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Resolved {
    /// `null`, `~` or nothing.
    Null,
    /// A boolean word.
    Bool(bool),
    /// An integer that fits `i64`.
    Int(i64),
    /// An integer above that.
    UInt(u64),
    /// A number.
    Float(f64),
    /// An unquoted date.
    Timestamp,
    /// Anything else.
    Str,
}

/// Resolves plain text.
pub fn resolve(text: &str, dialect: Dialect) -> Resolved {
    let Some(first) = text.bytes().next() else {
        return Resolved::Null;
    };
    match first {
        b'0'..=b'9' | b'+' | b'-' => resolve_number(text, dialect),
        b'.' => resolve_dot(text),
        b'~' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'y' | b'Y' | b'o' | b'O' => resolve_word(text, dialect),
        _ => Resolved::Str,
    }
}

fn resolve_word(text: &str, dialect: Dialect) -> Resolved {
    match text {
        "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "true" | "True" | "TRUE" => return Resolved::Bool(true),
        "false" | "False" | "FALSE" => return Resolved::Bool(false),
        _ => {}
    }
    if dialect == Dialect::Yaml11 {
        match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Resolved::Bool(true),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Resolved::Bool(false),
            _ => {}
        }
    }
    Resolved::Str
}

fn resolve_dot(text: &str) -> Resolved {
    match text {
        ".nan" | ".NaN" | ".NAN" => return Resolved::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" => return Resolved::Float(f64::INFINITY),
        _ => {}
    }
    let plain = if text.contains('_') {
        let bytes = text.as_bytes();
        let between_digits =
            |i: usize| bytes[i - 1].is_ascii_digit() && bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
        if !(1..bytes.len()).filter(|&i| bytes[i] == b'_').all(between_digits) {
            return Resolved::Str;
        }
        text.replace('_', "")
    } else {
        text.to_owned()
    };
    parse_float(&plain).map_or(Resolved::Str, Resolved::Float)
}

fn resolve_number(text: &str, dialect: Dialect) -> Resolved {
    match text {
        "+.inf" | "+.Inf" | "+.INF" => return Resolved::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Resolved::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if dialect == Dialect::Core && rfc3339(text).is_some() {
        return Resolved::Timestamp;
    }
    // Every number is made of these; most text that starts with a digit stops here.
    if !text
        .bytes()
        .all(|b| b.is_ascii_hexdigit() || matches!(b, b'+' | b'-' | b'.' | b'_' | b'x' | b'X' | b'o' | b'O'))
    {
        return Resolved::Str;
    }
    let stripped;
    let plain = if text.contains('_') {
        stripped = text.replace('_', "");
        stripped.as_str()
    } else {
        text
    };
    if let Some(integer) = parse_integer(plain) {
        return integer;
    }
    parse_float(plain).map_or(Resolved::Str, Resolved::Float)
}

/// Go's `ParseInt` and then `ParseUint` with base 0.
fn parse_integer(text: &str) -> Option<Resolved> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (Some(true), &text[1..]),
        b'+' => (Some(false), &text[1..]),
        _ => (None, text),
    };
    let lower = digits.as_bytes().get(1).map(u8::to_ascii_lowercase);
    let (radix, digits) = match (digits.as_bytes().first()?, lower) {
        (b'0', Some(b'x')) => (16, &digits[2..]),
        (b'0', Some(b'b')) => (2, &digits[2..]),
        (b'0', Some(b'o')) => (8, &digits[2..]),
        (b'0', Some(_)) => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    match sign {
        Some(true) => 0i64.checked_sub_unsigned(magnitude).map(Resolved::Int),
        Some(false) => i64::try_from(magnitude).ok().map(Resolved::Int),
        None => Some(i64::try_from(magnitude).map_or(Resolved::UInt(magnitude), Resolved::Int)),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, finite.
fn parse_float(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let mut at = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(at);
    at += whole;
    let mut fraction = 0;
    if bytes.get(at) == Some(&b'.') {
        fraction = digits(at + 1);
        at += 1 + fraction;
    }
    if whole == 0 && fraction == 0 {
        return None;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let exponent = if at <= bytes.len() { digits(at) } else { 0 };
        if exponent == 0 {
            return None;
        }
        at += exponent;
    }
    if at != bytes.len() {
        return None;
    }
    text.parse::<f64>().ok().filter(|f| f.is_finite())
}

/// The RFC 3339 form the reference gives an unquoted date or date and time, `None` when the text is neither.
pub fn rfc3339(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || bytes[4] != b'-' || !bytes[..4].iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut cursor = Cursor { rest: &text[5..] };
    let year: u32 = text[..4].parse().ok()?;
    let month = cursor.number(2)?;
    cursor.eat("-")?;
    let day = cursor.number(2)?;
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    let date = format!("{year:04}-{month:02}-{day:02}");
    if cursor.rest.is_empty() {
        return Some(format!("{date}T00:00:00Z"));
    }
    let zoned = match cursor.rest.as_bytes()[0] {
        b'T' | b't' => true,
        b' ' => false,
        _ => return None,
    };
    cursor.rest = &cursor.rest[1..];
    if !zoned {
        cursor.rest = cursor.rest.trim_start_matches(' ');
    }
    let time = cursor.clock()?;
    let zone = if zoned { cursor.zone()? } else { "Z".to_owned() };
    cursor.rest.is_empty().then(|| format!("{date}T{time}{zone}"))
}

struct Cursor<'a> {
    rest: &'a str,
}

impl Cursor<'_> {
    fn number(&mut self, most: usize) -> Option<u32> {
        let len = self.rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
        let value = self.rest[..len].parse().ok()?;
        self.rest = &self.rest[len..];
        Some(value)
    }

    fn eat(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    fn clock(&mut self) -> Option<String> {
        let hour = self.number(2)?;
        self.eat(":")?;
        let minute = self.number(2)?;
        self.eat(":")?;
        let second = self.number(2)?;
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let mut time = format!("{hour:02}:{minute:02}:{second:02}");
        if let Some(after) = self.rest.strip_prefix(['.', ',']) {
            let len = after.bytes().take_while(u8::is_ascii_digit).count();
            if len > 0 {
                let nanos = after[..len.min(9)].trim_end_matches('0');
                if !nanos.is_empty() {
                    time.push('.');
                    time.push_str(nanos);
                }
                self.rest = &after[len..];
            }
        }
        Some(time)
    }

    fn zone(&mut self) -> Option<String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Some("Z".to_owned());
        }
        let bytes = self.rest.as_bytes();
        let shaped = bytes.len() == 6
            && matches!(bytes[0], b'+' | b'-')
            && bytes[3] == b':'
            && [1, 2, 4, 5].iter().all(|&i| bytes[i].is_ascii_digit());
        if !shaped {
            return None;
        }
        let zone = if &self.rest[1..] == "00:00" {
            "Z".to_owned()
        } else {
            self.rest.to_owned()
        };
        self.rest = "";
        Some(zone)
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 31,
    }
}
