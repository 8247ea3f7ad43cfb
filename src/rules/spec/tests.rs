//! Every rule by an example that breaks it and nothing else.

mod access_and_windows;
mod actions;
mod gates;
mod migrations;
mod stages;
mod supported;
mod syntax;

use serde_json::{Value, json};

use crate::api::{Reason, StageSet};

use super::{Violation, outcome, validate};

/// A StageSet `apps/shop` with this spec, in YAML; one plain stage is added where it has none.
fn set(spec: &str) -> StageSet {
    let mut spec: Value = serde_yaml::from_str(spec).unwrap_or_else(|e| panic!("{e}: {spec}"));
    if spec.is_null() {
        spec = json!({});
    }
    if spec.get("stages").is_none() {
        spec["stages"] = json!([{"name": "web", "sourceRef": {"name": "web"}}]);
    }
    let object = json!({"metadata": {"name": "shop", "namespace": "apps"}, "spec": spec});
    serde_json::from_value(object).unwrap_or_else(|e| panic!("{e}"))
}

/// A stage `web` with these further fields, in YAML flow style.
fn stage(fields: &str) -> String {
    format!("stages: [{{name: web, sourceRef: {{name: web}}, {fields}}}]")
}

fn paths(violations: &[Violation]) -> Vec<&str> {
    violations.iter().map(|violation| violation.path.as_str()).collect()
}

/// The spec breaks exactly one rule: at that path, with a message that holds all the fragments.
#[track_caller]
fn refused(rule: &str, spec: &str, path: &str, fragments: &[&str]) {
    refused_as(Reason::InvalidSpec, rule, spec, path, fragments);
}

#[track_caller]
fn refused_as(reason: Reason, rule: &str, spec: &str, path: &str, fragments: &[&str]) {
    let violations = validate(&set(spec));
    assert_eq!(paths(&violations), [path], "{rule}: {violations:#?}");
    let violation = &violations[0];
    assert_eq!(violation.reason, reason, "{rule}");
    for fragment in fragments {
        let message = &violation.message;
        assert!(
            message.contains(fragment),
            "{rule}: {message:?} does not say {fragment:?}"
        );
    }
}

#[track_caller]
fn accepted(spec: &str) {
    let violations = validate(&set(spec));
    assert!(violations.is_empty(), "{spec}\n{violations:#?}");
}

#[test]
fn a_spec_that_uses_everything_is_accepted() {
    accepted(include_str!("testdata/everything.yaml"));
    accepted("");
}

#[test]
fn all_violations_are_reported_at_once() {
    let broken = set(
        "{interval: soon, timeout: 1d, updateWindows: [{type: Never}], stages: [{name: A, sourceRef: {name: ''}}]}",
    );
    assert_eq!(
        paths(&validate(&broken)),
        [
            "spec.interval",
            "spec.timeout",
            "spec.updateWindows[0].type",
            "spec.updateWindows[0]",
            "spec.stages[0].name",
            "spec.stages[0].sourceRef.name",
        ]
    );
}

#[test]
fn the_outcome_names_every_field_and_the_weightier_reason() {
    assert_eq!(outcome(&[]), None);
    let only_version = validate(&set("version: {value: latest}"));
    let (reason, message) = outcome(&only_version).unwrap();
    assert_eq!(reason, Reason::InvalidVersion);
    assert!(
        message.starts_with("spec.version.value: \"latest\" is no version"),
        "{message}"
    );

    let both = validate(&set("{version: {value: latest}, windowScope: Most}"));
    let (reason, message) = outcome(&both).unwrap();
    assert_eq!(reason, Reason::InvalidSpec);
    assert!(message.contains("; ") && message.contains("spec.windowScope") && message.contains("spec.version.value"));

    let many: Vec<Violation> = std::iter::repeat_n(both[0].clone(), 13).collect();
    let (_, message) = outcome(&many).unwrap();
    assert!(message.ends_with("; and 3 more"), "{message}");
}

/// Rules: decisions 11 malformed
#[test]
fn what_is_no_stage_set_is_a_violation_of_that_object() {
    let refused = |object: Value| super::read(object).unwrap_err();
    let violation = refused(json!({"metadata": {"name": "a"}, "spec": {"stages": [{"sourceRef": {"name": "x"}}]}}));
    assert_eq!(
        (violation.path.as_str(), violation.reason),
        ("spec.stages[0]", Reason::InvalidSpec)
    );
    assert!(violation.message.contains("missing field `name`"), "{violation}");
    let violation = refused(json!({"metadata": {"name": "a"}, "spec": {"stages": [], "suspend": "yes"}}));
    assert_eq!(violation.path, "spec.suspend");
    assert!(
        refused(json!({"metadata": {"name": "a"}}))
            .message
            .contains("missing field `spec`")
    );
    assert_eq!(refused(json!([])).reason, Reason::InvalidSpec);
    assert_eq!(
        super::read(json!({"metadata": {"name": "a"}, "spec": {"stages": []}}))
            .unwrap()
            .metadata
            .name
            .unwrap(),
        "a"
    );
}

#[test]
fn names_that_cannot_be_label_values_are_refused() {
    let mut long = set("");
    long.metadata.name = Some("a".repeat(64));
    let violations = validate(&long);
    assert_eq!(paths(&violations), ["metadata.name"]);
    assert!(violations[0].message.contains("64 characters") && violations[0].message.contains("at most 63"));
    long.metadata.name = Some("a".repeat(63));
    assert!(validate(&long).is_empty());
}

#[test]
fn every_malformed_duration_is_found() {
    for field in ["interval", "retryInterval", "driftDetectionInterval", "timeout"] {
        refused(
            "duration",
            &format!("{field}: 5 minutes"),
            &format!("spec.{field}"),
            &["\"5 minutes\""],
        );
        accepted(&format!("{field}: 0s"));
        accepted(&format!("{field}: -5m"));
    }
    refused(
        "duration",
        &stage("timeout: '5'"),
        "spec.stages[0].timeout",
        &["\"5\"", "has no unit"],
    );
    refused(
        "duration",
        &stage("readyChecks: {timeout: 1w}"),
        "spec.stages[0].readyChecks.timeout",
        &["\"w\""],
    );
}
