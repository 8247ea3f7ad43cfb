//! Syntax of kubectl's JSONPath templates, as far as it can be told without evaluating one.

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum JsonPathError {
    #[error("it has no braces, so it is literal text; write for example {{.data.version}}")]
    NoExpression,
    #[error("a brace is not closed")]
    UnclosedBrace,
    #[error("a bracket is not closed")]
    UnclosedBracket,
    #[error("a bracket is closed that was not opened")]
    StrayBracket,
    #[error("a quote is not closed")]
    UnclosedQuote,
    #[error("the braces are empty")]
    EmptyExpression,
    #[error("\"{0}\" is no path; begin with a dot or a bracket, for example {{.data.version}}")]
    NoPath(String),
}

/// Checks the shape of a template: braces, brackets and quotes balance, and every expression begins
/// like one.
pub(super) fn check(template: &str) -> Result<(), JsonPathError> {
    let mut rest = template;
    let mut expressions = 0;
    while let Some(open) = rest.find('{') {
        let inside = &rest[open + 1..];
        let length = expression_length(inside)?;
        expression(inside[..length].trim())?;
        expressions += 1;
        rest = &inside[length + 1..];
    }
    if expressions == 0 {
        Err(JsonPathError::NoExpression)
    } else {
        Ok(())
    }
}

/// Bytes until the brace that closes the expression.
fn expression_length(text: &str) -> Result<usize, JsonPathError> {
    let mut brackets = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '(') => brackets += 1,
            (None, ']' | ')') => brackets = brackets.checked_sub(1).ok_or(JsonPathError::StrayBracket)?,
            (None, '}') if brackets == 0 => return Ok(index),
            (None, '}') => return Err(JsonPathError::UnclosedBracket),
            (None, _) => {}
        }
    }
    Err(if quote.is_some() {
        JsonPathError::UnclosedQuote
    } else {
        JsonPathError::UnclosedBrace
    })
}

fn expression(text: &str) -> Result<(), JsonPathError> {
    let path = text.strip_prefix("range ").unwrap_or(text).trim();
    match path.chars().next() {
        None => Err(JsonPathError::EmptyExpression),
        Some('.' | '[' | '$' | '@' | '"' | '\'') => Ok(()),
        Some(_) if path == "end" => Ok(()),
        Some(_) => Err(JsonPathError::NoPath(path.to_owned())),
    }
}
