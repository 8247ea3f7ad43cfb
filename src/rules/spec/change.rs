//! Which updates are checked at all (api 12.2).

use serde_json::Value;

use crate::api::{StageSet, StageSetSpec};
use crate::rules::duration;

/// Every duration of a spec. `[]` stands for every item of a list.
const DURATIONS: &[&str] = &[
    "interval",
    "retryInterval",
    "driftDetectionInterval",
    "timeout",
    "updateWindows[].duration",
    "errorBudget.interval",
    "onRollback[].timeout",
    "onRollback[].wait.duration",
    "onRollback[].wait.timeout",
    "migrations[].actions[].timeout",
    "migrations[].actions[].wait.duration",
    "migrations[].actions[].wait.timeout",
    "migrations[].down[].timeout",
    "migrations[].down[].wait.duration",
    "migrations[].down[].wait.timeout",
    "stages[].timeout",
    "stages[].readyChecks.timeout",
    "stages[].errorBudget.interval",
    "stages[].promotion.soak",
    "stages[].promotion.analysis.interval",
    "stages[].promotion.fastTrack.after",
    "stages[].actions.pre[].timeout",
    "stages[].actions.pre[].wait.duration",
    "stages[].actions.pre[].wait.timeout",
    "stages[].actions.post[].timeout",
    "stages[].actions.post[].wait.duration",
    "stages[].actions.post[].wait.timeout",
    "stages[].actions.onFailure[].timeout",
    "stages[].actions.onFailure[].wait.duration",
    "stages[].actions.onFailure[].wait.timeout",
];

/// Whether an update is to be checked. Not when the object is being deleted, or its finalizer could
/// never be removed; and not when nothing but `suspend` changed, or an object that a stricter release
/// refuses could not be suspended, annotated or asked to reconcile. `5m` and `5m0s` are the same.
pub fn needs_check(old: &StageSet, new: &StageSet) -> bool {
    new.metadata.deletion_timestamp.is_none() && comparable(&old.spec) != comparable(&new.spec)
}

fn comparable(spec: &StageSetSpec) -> Value {
    let mut value = serde_json::json!(StageSetSpec {
        suspend: false,
        ..spec.clone()
    });
    for path in DURATIONS {
        at(&mut value, path, &mut |field| {
            if let Some(Ok(nanos)) = field.as_str().map(duration::parse) {
                *field = Value::from(duration::print(nanos));
            }
        });
    }
    value
}

/// Calls `change` with every field the pattern stands for.
fn at(value: &mut Value, pattern: &str, change: &mut impl FnMut(&mut Value)) {
    if pattern.is_empty() {
        return change(value);
    }
    if let Some(rest) = pattern.strip_prefix("[]") {
        return value
            .as_array_mut()
            .into_iter()
            .flatten()
            .for_each(|item| at(item, rest, change));
    }
    let pattern = pattern.strip_prefix('.').unwrap_or(pattern);
    let (name, rest) = pattern.split_at(pattern.find(['.', '[']).unwrap_or(pattern.len()));
    if let Some(property) = value.get_mut(name) {
        at(property, rest, change);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::crd::crds;
    use crate::rules::spec::validate;

    fn set(spec: &str) -> StageSet {
        let spec: Value = serde_yaml::from_str(spec).unwrap();
        serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn changed(old: &str, new: &str) -> bool {
        needs_check(&set(old), &set(new))
    }

    /// Rules: run 6 unchanged
    #[test]
    fn suspend_and_the_spelling_of_durations_do_not_count() {
        assert!(!changed(
            "{stages: [], interval: 5m}",
            "{stages: [], interval: 5m0s, suspend: true}"
        ));
        assert!(
            !changed("{stages: [], force: x}", "{stages: []}"),
            "unknown fields are not stored"
        );
        assert!(changed("{stages: [], interval: 5m}", "{stages: [], interval: 5m1s}"));
        assert!(!changed(
            "{stages: [], interval: soon}",
            "{stages: [], interval: soon, suspend: true}"
        ));
        assert!(changed(
            "{stages: [], serviceAccountName: 5m}",
            "{stages: [], serviceAccountName: 5m0s}"
        ));
    }

    /// Rules: run 6 unchanged
    #[test]
    fn an_object_being_deleted_is_not_checked() {
        let old = set("{stages: [], interval: 5m}");
        let mut new = set("{stages: [], interval: 6m}");
        assert!(needs_check(&old, &new));
        new.metadata.deletion_timestamp = Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
        assert!(!needs_check(&old, &new));
    }

    /// Paths of the text fields whose name is one that durations have.
    fn candidates(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        const NAMES: [&str; 8] = [
            "interval",
            "retryInterval",
            "driftDetectionInterval",
            "timeout",
            "duration",
            "soak",
            "after",
            "maxAge",
        ];
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            if property["type"] == "string" && NAMES.contains(&name.as_str()) {
                found.insert(path.clone());
            }
            candidates(property, &path, found);
        }
        if let Some(items) = schema.get("items") {
            candidates(items, &format!("{path}[]"), found);
        }
    }

    #[test]
    fn the_list_of_durations_is_complete() {
        let crd = serde_json::to_value(&crds()[0]).unwrap();
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = BTreeSet::new();
        candidates(&root["properties"]["spec"], "", &mut found);
        assert_eq!(found, DURATIONS.iter().map(|path| (*path).to_owned()).collect());
    }

    #[test]
    fn every_duration_is_checked() {
        let spec: Value = serde_yaml::from_str(include_str!("testdata/everything.yaml")).unwrap();
        for path in DURATIONS {
            let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
            let mut broken = spec.clone();
            let mut hits = 0;
            at(&mut broken, parent, &mut |object| {
                let is_window_once = object.get("from").is_some() && object.get("type").is_some();
                if !is_window_once {
                    object[field] = Value::from("soon");
                    hits += 1;
                }
            });
            // A list of actions has only the verbs its example uses.
            if hits == 0 {
                assert!(path.contains(".wait."), "{path} is not in the example");
                continue;
            }
            let object = serde_json::json!({"metadata": {"name": "a", "namespace": "b"}, "spec": broken});
            let violations = validate(&serde_json::from_value(object).unwrap());
            let broken: Vec<_> = violations
                .iter()
                .filter(|v| v.path.ends_with(field) && v.message.contains("\"soon\""))
                .collect();
            assert_eq!(broken.len(), hits, "{path}: {violations:#?}");
        }
    }
}
