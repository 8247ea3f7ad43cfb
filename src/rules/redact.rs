//! Takes what Secrets hold out of texts for people: servers quote what they refuse (run 16.8).

use std::cmp::Reverse;

use serde_json::Value;

/// A PIN has four digits. What is shorter is hardly secret, and is part of too many words and numbers.
const SHORTEST: usize = 4;
/// What is shorter is masked as a word of its own alone: `true` or `http` within others tells nothing.
const DISTINCT: usize = 6;
/// What stands in place of a value.
const MASK: &str = "***";

/// `text` without any of these values, in the forms in which a text may hold them: as they are, on one line, quoted.
pub fn mask<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let mut forms: Vec<String> = Vec::new();
    for secret in secrets {
        let line: String = secret.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
        let quoted = Value::String(secret.to_owned()).to_string();
        let quoted = &quoted[1..quoted.len() - 1];
        forms.extend([quoted.to_owned(), as_go_writes(quoted)]);
        forms.extend([secret.to_owned(), line, secret.trim().to_owned()]);
    }
    forms.retain(|form| form.len() >= SHORTEST);
    forms.sort_unstable_by_key(|form| Reverse(form.len()));
    forms.dedup();
    forms.iter().fold(text.to_owned(), |text, form| {
        if form.len() < DISTINCT {
            mask_word(&text, form)
        } else {
            text.replace(form.as_str(), MASK)
        }
    })
}

/// JSON text as Go writes it, which the API server does: safe within HTML and JavaScript.
fn as_go_writes(quoted: &str) -> String {
    let mut text = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => text.push(c),
        }
    }
    text
}

/// Masks a value where no letter or digit adjoins it.
fn mask_word(text: &str, word: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.match_indices(word) {
        let end = at + word.len();
        let adjoined = text[..at].ends_with(char::is_alphanumeric) || text[end..].starts_with(char::is_alphanumeric);
        if !adjoined {
            masked.push_str(&text[done..at]);
            masked.push_str(MASK);
            done = end;
        }
    }
    masked.push_str(&text[done..]);
    masked
}

/// The values a core Secret holds; none of any other object.
pub fn values_of(object: &Value) -> Vec<&str> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let mut values = Vec::new();
    if text("/kind") == Some("Secret") && text("/apiVersion") == Some("v1") {
        for field in ["data", "stringData"] {
            if let Some(value) = object.get(field) {
                leaves(value, &mut values);
            }
        }
    }
    values
}

fn leaves<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| leaves(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| leaves(field, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_masked_in_every_form() {
        let secret = "pass\"word\nof two lines\n";
        for text in [
            "got &{pass\"word\nof two lines\n}",
            "got \"pass\\\"word\\nof two lines\\n\"",
            "got pass\"wordof two lines",
            "got pass\"word\nof two lines, trimmed",
        ] {
            let masked = mask(text, [secret]);
            assert!(masked.contains(MASK) && !masked.contains("two lines"), "{masked}");
        }
        // The way the API server writes JSON.
        let masked = mask(
            r#"got "p\u0026ss \u003cof\u003e two\u2028lines\n""#,
            ["p&ss <of> two\u{2028}lines\n"],
        );
        assert_eq!(masked, r#"got "***""#);
    }

    #[test]
    fn a_value_within_another_does_not_shorten_it() {
        assert_eq!(mask("secret-and-more", ["secret", "secret-and-more"]), MASK);
        assert_eq!(mask("a short one", ["a", "", "one"]), "a short one");
    }

    #[test]
    fn a_short_value_is_masked_as_a_word_of_its_own() {
        assert_eq!(
            mask("pin 0815: \"0815\" is not 108150", ["0815"]),
            "pin ***: \"***\" is not 108150"
        );
        assert_eq!(mask("https or http://a", ["http"]), "https or ***://a");
        assert_eq!(mask("abc, 443", ["abc", "443"]), "abc, 443");
    }

    #[test]
    fn only_secrets_have_values() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "b", "c": ["d"]}, "stringData": "e", "type": "f"});
        assert_eq!(values_of(&secret), ["b", "d", "e"]);
        assert!(values_of(&json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}})).is_empty());
    }

    proptest! {
        #[test]
        fn no_value_is_left(secret in ".{6,20}", before in ".{0,9}", after in ".{0,9}") {
            prop_assume!(!MASK.contains(&secret) && secret.len() >= SHORTEST);
            let masked = mask(&format!("{before}{secret}{after}"), [secret.as_str()]);
            prop_assert!(!masked.contains(&secret) || secret.contains(MASK));
        }
    }
}
