//! Drift: does a live object still say what was sent?

use serde_json::Value;

/// Whether `live` lacks or contradicts something that `sent` states. Fields only the live object has are not
/// drift: others own them.
pub fn differs(sent: &Value, live: &Value) -> bool {
    match (sent, live) {
        (Value::Object(sent), Value::Object(live)) => {
            sent.iter().any(|(key, value)| !value.is_null() && live.get(key).is_none_or(|l| differs(value, l)))
        }
        (Value::Array(sent), Value::Array(live)) => {
            sent.len() > live.len() || sent.iter().zip(live).any(|(s, l)| differs(s, l))
        }
        _ => sent != live,
    }
}
