//! Takes what Secrets hold out of texts for people: servers quote what they refuse (run 16.8).

use std::cmp::Reverse;

use serde_json::Value;

/// Shorter values are hardly secret, and replacing them would garble the text.
const SHORTEST: usize = 6;
/// What stands in place of a value.
const MASK: &str = "***";

/// `text` without any of these values, in the forms in which a text may hold them: as they are, on one line, quoted.
pub fn mask<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let mut forms: Vec<String> = Vec::new();
    for secret in secrets {
        let line: String = secret.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
        let quoted = Value::String(secret.to_owned()).to_string();
        forms.push(quoted.trim_matches('"').to_owned());
        forms.extend([secret.to_owned(), line, secret.trim().to_owned()]);
    }
    forms.retain(|form| form.len() >= SHORTEST);
    forms.sort_unstable_by_key(|form| Reverse(form.len()));
    forms.dedup();
    forms
        .iter()
        .fold(text.to_owned(), |text, form| text.replace(form.as_str(), MASK))
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
    }

    #[test]
    fn a_value_within_another_does_not_shorten_it() {
        assert_eq!(mask("secret-and-more", ["secret", "secret-and-more"]), MASK);
        assert_eq!(mask("a short one", ["a", "", "one"]), "a short one");
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
