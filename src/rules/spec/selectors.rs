//! Label selectors, in the two forms they come in (rules P8, P9).

use crate::api::LabelSelector;

use super::names::{self, NameError};
use super::report::Report;

/// Why a selector is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SelectorError {
    #[error("\"{0}\" {1}")]
    Name(String, NameError),
    #[error("unknown operator \"{0}\"; use In, NotIn, Exists or DoesNotExist")]
    Operator(String),
    #[error("operator {operator} on \"{key}\" needs values")]
    MissingValues { operator: String, key: String },
    #[error("operator {operator} on \"{key}\" takes no values")]
    ExcessValues { operator: String, key: String },
    #[error("\"{0}\" is no requirement; write key, !key, key=value, key!=value, or key in (a,b)")]
    Requirement(String),
}

fn key(text: &str) -> Result<(), SelectorError> {
    names::label_key(text).map_err(|error| SelectorError::Name(text.to_owned(), error))
}

fn value(text: &str) -> Result<(), SelectorError> {
    names::label_value(text).map_err(|error| SelectorError::Name(text.to_owned(), error))
}

/// A structured selector that must select by something: an empty one would select everything.
pub(super) fn structured(report: &mut Report, path: &str, owner: &str, selector: &LabelSelector) {
    if selector.is_empty() {
        report.invalid(
            path,
            format!("{owner}: an empty selector would select everything; set matchLabels or matchExpressions"),
        );
    }
    for (name, content) in &selector.match_labels {
        if let Err(cause) = key(name).and_then(|()| value(content)) {
            report.invalid(format!("{path}.matchLabels"), format!("{owner}: {cause}"));
        }
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let (name, operator) = (requirement.key.clone(), requirement.operator.clone());
        let shape = match (operator.as_str(), requirement.values.is_empty()) {
            ("In" | "NotIn", false) => requirement.values.iter().try_for_each(|text| value(text)),
            ("In" | "NotIn", true) => Err(SelectorError::MissingValues { operator, key: name }),
            ("Exists" | "DoesNotExist", true) => Ok(()),
            ("Exists" | "DoesNotExist", false) => Err(SelectorError::ExcessValues { operator, key: name }),
            _ => Err(SelectorError::Operator(operator)),
        };
        if let Err(cause) = key(&requirement.key).and(shape) {
            report.invalid(format!("{path}.matchExpressions[{index}]"), format!("{owner}: {cause}"));
        }
    }
}

/// A selector written as text, in the grammar of `kubectl -l`. Annotation values are freer than
/// label values, so only keys are checked where `values` is false.
pub(super) fn textual(text: &str, values: bool) -> Result<(), SelectorError> {
    if text.trim().is_empty() {
        return Ok(());
    }
    requirements(text)
        .into_iter()
        .try_for_each(|requirement| one(requirement.trim(), values))
}

/// Splits at the commas that are not inside parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn one(text: &str, values: bool) -> Result<(), SelectorError> {
    let refused = || SelectorError::Requirement(text.to_owned());
    let checked = |content: &str| {
        if values { value(content.trim()) } else { Ok(()) }
    };
    if let Some(name) = text.strip_prefix('!') {
        return key(name.trim());
    }
    for operator in ["!=", "==", "="] {
        if let Some((name, content)) = text.split_once(operator) {
            return key(name.trim()).and_then(|()| checked(content));
        }
    }
    let Some((name, rest)) = text.split_once(char::is_whitespace) else {
        return key(text);
    };
    let rest = rest.trim();
    let list = rest
        .strip_prefix("notin")
        .or_else(|| rest.strip_prefix("in"))
        .ok_or_else(refused)?
        .trim();
    let items = list
        .strip_prefix('(')
        .and_then(|list| list.strip_suffix(')'))
        .ok_or_else(refused)?;
    key(name)?;
    items.split(',').try_for_each(checked)
}
