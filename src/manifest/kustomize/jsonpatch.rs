//! JSON patches (RFC 6902) as the library behind kustomize applies them: a missing key equals null in `test`,
//! `replace` adds, negative indices count from the end.

use serde_json::{Map, Value};

/// Why a JSON patch cannot be applied.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("JSON patch operation {index} ({op} {path:?}): {problem}")]
pub struct JsonPatchError {
    /// Index of the operation, from 1.
    pub index: usize,
    /// Its `op`.
    pub op: String,
    /// Its `path`.
    pub path: String,
    /// What is wrong.
    pub problem: String,
}

/// Operations of one patch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPatch {
    operations: Vec<Map<String, Value>>,
}

impl JsonPatch {
    /// A list of operations; `None` when the value is anything else.
    pub fn from_value(value: Value) -> Option<Self> {
        let Value::Array(items) = value else { return None };
        let operations = items
            .into_iter()
            .map(|item| match item {
                Value::Object(map) => Some(map),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self { operations })
    }

    /// True without operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Applies all operations in order.
    pub fn apply(&self, mut document: Value) -> Result<Value, JsonPatchError> {
        let mut copied = 0;
        for (index, operation) in self.operations.iter().enumerate() {
            let text = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or_default();
            one(&mut document, operation, &mut copied).map_err(|problem| JsonPatchError {
                index: index + 1,
                op: text("op").to_owned(),
                path: text("path").to_owned(),
                problem,
            })?;
        }
        Ok(document)
    }
}

/// Nodes the copy operations of one patch may make.
const MOST_COPIED: usize = 1_000_000;

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(map) => map.values().map(nodes).sum(),
        _ => 0,
    }
}

fn depth(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn one(document: &mut Value, operation: &Map<String, Value>, copied_nodes: &mut usize) -> Result<(), String> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let path = || text("path").ok_or_else(|| "path is missing".to_owned());
    let from = || text("from").ok_or_else(|| "from is missing".to_owned());
    let value = operation.get("value").cloned().unwrap_or(Value::Null);
    match text("op").unwrap_or_default() {
        "add" => add(document, path()?, value),
        "remove" => remove(document, path()?).map(drop),
        "replace" => replace(document, path()?, value),
        "move" => {
            let moved = remove(document, from()?)?;
            add(document, path()?, moved)
        }
        "copy" => {
            let copied = get(document, from()?)?.cloned().unwrap_or(Value::Null);
            *copied_nodes += nodes(&copied);
            if *copied_nodes > MOST_COPIED || depth(&copied) > 200 {
                return Err("the copies of this patch grow without bound".to_owned());
            }
            add(document, path()?, copied)
        }
        "test" => test(document, path()?, &value),
        other => Err(format!(
            "unknown op {other:?}; use add, remove, replace, move, copy or test"
        )),
    }
}

/// The keys of a path. What stands before the first slash does not count.
fn split(path: &str) -> Vec<String> {
    path.split('/')
        .skip(1)
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
        .collect()
}

/// The container of the last key, and that key.
fn parent<'v>(document: &'v mut Value, path: &str) -> Result<(&'v mut Value, String), String> {
    let mut keys = split(path);
    let Some(last) = keys.pop() else {
        return Err("the path must begin with a slash".to_owned());
    };
    let mut at = document;
    for key in keys {
        at = child(at, &key).ok_or_else(|| format!("{key:?} does not exist"))?;
    }
    if at.is_object() || at.is_array() {
        Ok((at, last))
    } else {
        Err("the parent is neither a mapping nor a list".to_owned())
    }
}

fn child<'v>(at: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    match at {
        Value::Object(map) => map.get_mut(key).filter(|v| !v.is_null()),
        Value::Array(items) => {
            let index = existing(items.len(), key).ok()?;
            items.get_mut(index).filter(|v| !v.is_null())
        }
        _ => None,
    }
}

/// An index of an existing element; negative ones count from the end.
fn existing(len: usize, key: &str) -> Result<usize, String> {
    let index: i64 = key.parse().map_err(|_| format!("{key:?} is not a list index"))?;
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let index = if index < 0 { index + len } else { index };
    if (0..len).contains(&index) {
        usize::try_from(index).map_err(|e| e.to_string())
    } else {
        Err(format!("index {key} is out of range, the list has {len} elements"))
    }
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // One longer than the list: the new element may stand at its end.
            let index = existing(items.len() + 1, &key)?;
            items.insert(index, value);
        }
        _ => {}
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(map) => map.shift_remove(&key).ok_or_else(|| format!("{key:?} does not exist")),
        Value::Array(items) => {
            let index = existing(items.len(), &key)?;
            Ok(items.remove(index))
        }
        _ => Err("nothing to remove from".to_owned()),
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        if !(value.is_object() || value.is_array()) {
            return Err("the whole object can only be replaced by a mapping or list".to_owned());
        }
        *document = value;
        return Ok(());
    }
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(items) => {
            let index = existing(items.len(), &key)?;
            items[index] = value;
        }
        _ => {}
    }
    Ok(())
}

/// The value at a path, `None` for a missing key of an existing mapping.
fn get<'v>(document: &'v mut Value, path: &str) -> Result<Option<&'v Value>, String> {
    let (parent, key) = parent(document, path)?;
    match &*parent {
        Value::Object(map) => Ok(map.get(&key)),
        Value::Array(items) => Ok(items.get(existing(items.len(), &key)?)),
        _ => Ok(None),
    }
}

fn test(document: &mut Value, path: &str, expected: &Value) -> Result<(), String> {
    let found = if path.is_empty() {
        Some(&*document)
    } else {
        get(document, path)?
    };
    if found.unwrap_or(&Value::Null) == expected {
        Ok(())
    } else {
        Err("the value is another one".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(document: Value, patch: Value) -> Result<Value, String> {
        JsonPatch::from_value(patch)
            .unwrap()
            .apply(document)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn applies_operations_as_the_reference_does() {
        let document = json!({"a": {"b": [1, 2, 3]}, "n": null});
        for (patch, expected) in [
            (
                json!([{"op": "add", "path": "/a/c", "value": 1}]),
                json!({"a": {"b": [1, 2, 3], "c": 1}, "n": null}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/-", "value": 4}]),
                json!({"a": {"b": [1, 2, 3, 4]}, "n": null}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/-1", "value": 4}]),
                json!({"a": {"b": [1, 2, 3, 4]}, "n": null}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/0", "value": 0}]),
                json!({"a": {"b": [0, 1, 2, 3]}, "n": null}),
            ),
            (
                json!([{"op": "replace", "path": "/a/b/-1", "value": 9}]),
                json!({"a": {"b": [1, 2, 9]}, "n": null}),
            ),
            (
                json!([{"op": "replace", "path": "/x", "value": 9}]),
                json!({"a": {"b": [1, 2, 3]}, "n": null, "x": 9}),
            ),
            (
                json!([{"op": "remove", "path": "/a/b/1"}]),
                json!({"a": {"b": [1, 3]}, "n": null}),
            ),
            (
                json!([{"op": "move", "from": "/a/b", "path": "/b"}]),
                json!({"a": {}, "n": null, "b": [1, 2, 3]}),
            ),
            (
                json!([{"op": "copy", "from": "/a/b/0", "path": "/c"}]),
                json!({"a": {"b": [1, 2, 3]}, "n": null, "c": 1}),
            ),
            (
                json!([{"op": "test", "path": "/missing", "value": null}]),
                document.clone(),
            ),
            (
                json!([{"op": "add", "path": "x/c~1d~0", "value": 1}]),
                json!({"a": {"b": [1, 2, 3]}, "n": null, "c/d~": 1}),
            ),
            (json!([{"op": "replace", "path": "", "value": {}}]), json!({})),
        ] {
            assert_eq!(apply(document.clone(), patch.clone()).unwrap(), expected, "{patch}");
        }
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/a/b/4", "value": 1}]),
            json!([{"op": "replace", "path": "/a/b/3", "value": 1}]),
            json!([{"op": "test", "path": "/a/b/0", "value": 2}]),
            json!([{"op": "nope", "path": "/a"}]),
            json!([{"op": "replace", "path": "", "value": 1}]),
        ] {
            assert!(apply(document.clone(), patch.clone()).is_err(), "{patch}");
        }
    }
}
