//! Writing values as YAML that YAML 1.1 and 1.2 readers agree on.

use serde_json::Value;

/// A value that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write YAML: {0}")]
pub struct EmitError(#[from] serde_saphyr::ser::Error);

/// Block-style YAML text of a value: strings that any reader would take for something else are quoted, lines
/// are never folded, the last line ends in a newline.
///
/// # Errors
/// [`EmitError`] when the serializer refuses the value.
pub fn to_string(value: &Value) -> Result<String, EmitError> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let mut text = serde_saphyr::to_string_with_options(value, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
