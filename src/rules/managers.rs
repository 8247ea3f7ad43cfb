//! Field managers: what earlier tools left behind is taken over, or fields they once set stay for ever (run 16.4,
//! run 28 B23).

use serde_json::{Map, Value, json};

/// Prefix of kubectl's managers: `kubectl`, `kubectl-client-side-apply`, `kubectl-edit`, ...
const KUBECTL: &str = "kubectl";
/// Manager of fields set before the object had managed fields.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Annotation of client-side apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The JSON patch (RFC 6902) that moves what kubectl and our own former updates own into the apply of `manager`;
/// `None` where there is nothing to move. It only holds for the object's current version; at another the server answers
/// with a conflict.
pub fn takeover(live: &Value, manager: &str) -> Option<Value> {
    let entries = live.pointer("/metadata/managedFields")?.as_array()?;
    let (theirs, mut kept): (Vec<Value>, Vec<Value>) = entries.iter().cloned().partition(|e| is_takeable(e, manager));
    if theirs.is_empty() {
        return None;
    }
    let at = kept
        .iter()
        .position(|e| text(e, "manager") == manager && text(e, "operation") == "Apply" && subresource(e).is_empty());
    let mut ours = match at {
        Some(at) => kept.remove(at),
        None => {
            let mut first = theirs[0].clone();
            first["manager"] = json!(manager);
            first["operation"] = json!("Apply");
            first["fieldsV1"] = json!({});
            first
        }
    };
    for entry in &theirs {
        if let (Some(Value::Object(into)), Some(Value::Object(from))) =
            (ours.get_mut("fieldsV1"), entry.get("fieldsV1"))
        {
            unite(into, from);
        }
    }
    kept.push(ours);
    let version = live.pointer("/metadata/resourceVersion")?;
    // Operations that fit whatever was written meanwhile: the version then makes it a conflict, where one that does not
    // fit would make the patch invalid.
    let mut patch = vec![
        json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version}),
        json!({"op": "add", "path": "/metadata/managedFields", "value": kept}),
    ];
    let mut annotations = live
        .pointer("/metadata/annotations")
        .and_then(Value::as_object)
        .cloned();
    if let Some(annotations) = annotations.as_mut().filter(|a| a.contains_key(LAST_APPLIED)) {
        annotations.shift_remove(LAST_APPLIED);
        patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    }
    Some(Value::Array(patch))
}

fn is_takeable(entry: &Value, manager: &str) -> bool {
    let (name, operation) = (text(entry, "manager"), text(entry, "operation"));
    subresource(entry).is_empty()
        && (name.starts_with(KUBECTL)
            || (name == BEFORE_FIRST_APPLY && operation == "Update")
            || (name == manager && operation == "Update"))
}

fn subresource(entry: &Value) -> &str {
    text(entry, "subresource")
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The union of two field sets.
fn unite(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => unite(into, from),
            (Some(_), _) => {}
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn object(entries: Vec<Value>) -> Value {
        json!({"metadata": {"resourceVersion": "7", "managedFields": entries,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "too"}}})
    }

    /// Rules: run 16.4 kubectl, run B23
    #[test]
    fn what_kubectl_owns_becomes_ours() {
        let live = object(vec![
            entry("kubectl-client-side-apply", "Update", json!({"f:data": {"f:a": {}}})),
            entry("kubectl-edit", "Update", json!({"f:data": {"f:b": {}}})),
            entry("hpa", "Update", json!({"f:spec": {}})),
        ]);
        let patch = takeover(&live, "us").unwrap();
        let entries = patch[1]["value"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["manager"], "hpa");
        assert_eq!(
            (&entries[1]["manager"], &entries[1]["operation"]),
            (&json!("us"), &json!("Apply"))
        );
        assert_eq!(entries[1]["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
        assert_eq!(
            patch[0],
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"})
        );
        assert_eq!(
            patch[2],
            json!({"op": "add", "path": "/metadata/annotations", "value": {"kept": "too"}})
        );
    }

    #[test]
    fn our_apply_grows_and_a_status_writer_stays() {
        let mut status = entry("kubectl", "Update", json!({"f:status": {}}));
        status["subresource"] = json!("status");
        let live = object(vec![
            entry("us", "Apply", json!({"f:data": {"f:a": {}}})),
            entry("kubectl", "Apply", json!({"f:data": {"f:c": {}}})),
            status,
        ]);
        let entries = takeover(&live, "us").unwrap()[1]["value"].clone();
        assert_eq!(entries[0]["subresource"], "status");
        assert_eq!(entries[1]["fieldsV1"], json!({"f:data": {"f:a": {}, "f:c": {}}}));
    }

    #[test]
    fn nothing_to_take_is_no_patch() {
        assert_eq!(
            takeover(
                &object(vec![entry("us", "Apply", json!({})), entry("hpa", "Update", json!({}))]),
                "us"
            ),
            None
        );
    }
}
