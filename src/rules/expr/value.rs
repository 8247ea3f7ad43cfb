//! JSON as CEL values, without copying its texts.

use std::collections::HashMap;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::Val;
use serde_json::Value;

/// A variable of an expression over `object`. What is absent is empty.
pub(super) fn variable<'v>(object: &'v Value, name: &str) -> Box<dyn Val + 'v> {
    match (object.get(name), name) {
        (Some(Value::String(text)), _) => Box::new(CelString::from(text.as_str())),
        (_, "apiVersion" | "kind") => Box::new(CelString::from("")),
        (None | Some(Value::Null), _) => Box::new(CelMap::default()),
        (Some(value), _) => of(value),
    }
}

/// Integers become `int` wherever they fit, as in the reference: `uint` and `int` cannot be added.
fn of<'v>(value: &'v Value) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(truth) => Box::new(CelBool::from(*truth)),
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Number(number) => {
            if let Some(integer) = number.as_i64() {
                Box::new(CelInt::from(integer))
            } else if let Some(integer) = number.as_u64() {
                Box::new(CelUInt::from(integer))
            } else {
                Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN)))
            }
        }
        Value::Array(items) => Box::new(CelList::from(items.iter().map(of).collect::<Vec<_>>())),
        Value::Object(fields) => {
            let entries: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = fields
                .iter()
                .map(|(key, item)| (CelMapKey::from(key.as_str()), of(item)))
                .collect();
            Box::new(CelMap::from(entries))
        }
    }
}
