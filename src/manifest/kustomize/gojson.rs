//! JSON as Go's encoder writes it: keys sorted, HTML characters escaped. Hashes and texts depend on it.

use std::fmt::Write as _;

use serde_json::Value;

/// Compact JSON text.
pub(crate) fn compact(value: &Value) -> String {
    let mut out = String::new();
    write(value, None, 0, &mut out);
    out
}

/// JSON text indented by two spaces.
pub(crate) fn pretty(value: &Value) -> String {
    let mut out = String::new();
    write(value, Some("  "), 0, &mut out);
    out
}

fn write(value: &Value, indent: Option<&str>, depth: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => number(n, out),
        Value::String(text) => string(text, out),
        Value::Array(items) => {
            list('[', ']', items.len(), indent, depth, out, |i, out| {
                write(&items[i], indent, depth + 1, out)
            });
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            list('{', '}', entries.len(), indent, depth, out, |i, out| {
                string(entries[i].0, out);
                out.push(':');
                if indent.is_some() {
                    out.push(' ');
                }
                write(entries[i].1, indent, depth + 1, out);
            });
        }
    }
}

fn list(
    open: char,
    close: char,
    len: usize,
    indent: Option<&str>,
    depth: usize,
    out: &mut String,
    mut item: impl FnMut(usize, &mut String),
) {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for i in 0..len {
        if i > 0 {
            out.push(',');
        }
        line(depth + 1, out);
        item(i, out);
    }
    if len > 0 {
        line(depth, out);
    }
    out.push(close);
}

fn number(number: &serde_json::Number, out: &mut String) {
    let Some(f) = number.as_f64().filter(|_| number.is_f64()) else {
        let _ = write!(out, "{number}");
        return;
    };
    if f != 0.0 && (f.abs() < 1e-6 || f.abs() >= 1e21) {
        let text = format!("{f:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                let _ = write!(out, "{digits}e+{exponent:0>2}");
            }
            _ => out.push_str(&text),
        }
    } else {
        let _ = write!(out, "{f}");
    }
}

fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_as_go_does() {
        let value = json!({"b": "<&>\u{2028}\u{1}é\n", "a": [1, 1.5, 1e21, 1e-7, true, null, {}, []]});
        assert_eq!(
            compact(&value),
            "{\"a\":[1,1.5,1e+21,1e-7,true,null,{},[]],\"b\":\"\\u003c\\u0026\\u003e\\u2028\\u0001é\\n\"}"
        );
        assert_eq!(
            pretty(&json!({"a": [1], "b": {}})),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}"
        );
    }
}
