//! Rules of readiness on the shapes that real controllers write.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn rule(api_version: &str, kind: &str, failed: &str, in_progress: &str, current: &str) -> ReadyExpr {
    let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
    ReadyExpr {
        api_version: api_version.into(),
        kind: kind.into(),
        failed: some(failed),
        in_progress: some(in_progress),
        current: some(current),
    }
}

fn rules(rules: &[ReadyExpr]) -> ReadyExprs {
    ReadyExprs::compile(rules).unwrap_or_else(|e| panic!("{e:?}"))
}

/// An Argo Rollout, as the documentation has it.
fn rollout() -> ReadyExprs {
    rules(&[rule(
        "argoproj.io/v1alpha1",
        "Rollout",
        "status.phase == 'Degraded'",
        "status.phase in ['Progressing', 'Paused']",
        "status.phase == 'Healthy'",
    )])
}

/// The rules Flux's documentation gives for cert-manager and for Flux's own kinds.
fn conditions(api_version: &str, kind: &str) -> ReadyExprs {
    rules(&[rule(
        api_version,
        kind,
        "status.conditions.filter(e, e.type == 'Ready').all(e, e.observedGeneration == metadata.generation && e.status == 'False')",
        "",
        "status.conditions.filter(e, e.type == 'Ready').all(e, e.observedGeneration == metadata.generation && e.status == 'True')",
    )])
}

fn object(api_version: &str, kind: &str, generation: i64, status: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "generation": generation}, "spec": {}, "status": status})
}

#[track_caller]
fn message(readiness: Option<Readiness>) -> (&'static str, String) {
    match readiness {
        Some(r @ (Readiness::InProgress { .. } | Readiness::Failed { .. } | Readiness::Unknown { .. })) => {
            let name = r.name();
            match r {
                Readiness::InProgress { message }
                | Readiness::Failed { message, .. }
                | Readiness::Unknown { message } => (name, message),
                _ => (name, String::new()),
            }
        }
        Some(other) => (other.name(), String::new()),
        None => ("none", String::new()),
    }
}

#[rstest]
#[case(json!({"phase": "Healthy", "observedGeneration": "2"}), "Current", "")]
#[case(json!({"phase": "Healthy"}), "Current", "")]
#[case(json!({"phase": "Progressing", "observedGeneration": "2"}), "InProgress", "inProgress \"status.phase in ['Progressing', 'Paused']\" is true")]
#[case(json!({"phase": "Paused"}), "InProgress", "inProgress \"status.phase in")]
#[case(json!({"phase": "Degraded", "observedGeneration": "2"}), "Failed", "failed \"status.phase == 'Degraded'\" is true")]
#[case(json!({"phase": "Unheard"}), "InProgress", "current \"status.phase == 'Healthy'\" is not true yet")]
#[case(json!({}), "InProgress", "current \"status.phase == 'Healthy'\" has no answer yet: there is no field \"phase\"")]
// The status of the generation before says nothing, whatever it says.
#[case(json!({"phase": "Healthy", "observedGeneration": "1"}), "InProgress", "generation 2 is not observed yet, its controller is at 1")]
#[case(json!({"phase": "Degraded", "observedGeneration": "1"}), "InProgress", "generation 2 is not observed yet")]
// Older releases wrote a hash there.
#[case(json!({"phase": "Healthy", "observedGeneration": "6c5f8d9b7"}), "Current", "")]
fn an_argo_rollout(#[case] status: Value, #[case] verdict: &str, #[case] text: &str) {
    let (name, said) = message(rollout().judge(&object("argoproj.io/v1alpha1", "Rollout", 2, status.clone())));
    assert_eq!(name, verdict, "{status}: {said}");
    assert!(said.starts_with(text), "{status}: {said}");
}

#[rstest]
#[case("True", 4, "Current")]
#[case("False", 4, "Failed")]
#[case("Unknown", 4, "InProgress")]
#[case("True", 3, "InProgress")]
#[case("False", 3, "InProgress")]
fn a_cert_manager_certificate(#[case] ready: &str, #[case] observed: i64, #[case] verdict: &str) {
    let status = json!({
        "conditions": [
            {"type": "Issuing", "status": "False", "observedGeneration": 2, "reason": "Issued", "message": "m"},
            {"type": "Ready", "status": ready, "observedGeneration": observed, "reason": "r", "message": "m"},
        ],
        "notAfter": "2026-06-15T09:21:04Z", "revision": 1,
    });
    let rules = conditions("cert-manager.io/v1", "Certificate");
    let found = rules.judge(&object("cert-manager.io/v1", "Certificate", 4, status));
    assert_eq!(found.map(|r| r.name()), Some(verdict));
}

#[rstest]
#[case("True", 7, "Current")]
#[case("False", 7, "Failed")]
#[case("Unknown", 7, "InProgress")]
#[case("True", 6, "InProgress")]
fn a_flux_helm_release(#[case] ready: &str, #[case] observed: i64, #[case] verdict: &str) {
    let status = json!({
        "observedGeneration": observed, "lastAttemptedGeneration": 7, "helmChart": "apps/apps-web",
        "conditions": [
            {"type": "Ready", "status": ready, "observedGeneration": observed, "reason": "UpgradeSucceeded", "message": "m", "lastTransitionTime": "2026-06-15T09:21:04Z"},
            {"type": "Released", "status": "True", "observedGeneration": 7, "reason": "UpgradeSucceeded", "message": "m"},
        ],
        "history": [{"chartVersion": "1.0.0", "version": 3, "status": "deployed"}],
    });
    let rules = conditions("helm.toolkit.fluxcd.io/v2", "HelmRelease");
    // The version of the rule does not matter, the group does.
    assert_eq!(
        rules
            .judge(&object(
                "helm.toolkit.fluxcd.io/v2beta2",
                "HelmRelease",
                7,
                status.clone()
            ))
            .map(|r| r.name()),
        Some(verdict)
    );
    assert_eq!(rules.judge(&object("helm.example/v2", "HelmRelease", 7, status)), None);
}

#[test]
fn only_the_kinds_with_rules_are_judged() {
    let rules = rollout();
    for (group, kind, covered) in [
        ("argoproj.io", "Rollout", true),
        ("argoproj.io", "Application", false),
        ("apps", "Rollout", false),
        ("", "Rollout", false),
    ] {
        assert_eq!(rules.covers(group, kind), covered, "{group}/{kind}");
        assert_eq!(rules.fingerprint(group, kind) != 0, covered);
    }
    assert_eq!(rules.judge(&object("apps/v1", "Deployment", 1, json!({}))), None);
    assert!(ReadyExprs::default().is_empty() && !rules.is_empty());
    let core = ReadyExprs::compile(&[rule("v1", "ConfigMap", "", "", "true")]).unwrap();
    assert_eq!(
        core.judge(&object("v1", "ConfigMap", 1, json!({}))),
        Some(Readiness::Current)
    );
}

/// Rules: run 18.3 current, run 18.3 failed, run 18.3 error
#[rstest]
// `failed` is terminal, and looked at first.
#[case(("true", "true", "true"), "Failed")]
#[case(("false", "true", "true"), "InProgress")]
#[case(("false", "false", "true"), "Current")]
#[case(("false", "false", "false"), "InProgress")]
// No result: false for `failed` and `inProgress`, not ready for `current`.
#[case(("spec.no", "spec.no", "true"), "Current")]
#[case(("spec.no", "false", "spec.no"), "InProgress")]
#[case(("false", "false", "spec.replicas / 0 == 1"), "Unknown")]
#[case(("false", "false", "spec.text"), "Unknown")]
// Without `current` it is ready unless one of the others says otherwise.
#[case(("false", "", ""), "Current")]
#[case(("spec.no", "", ""), "Current")]
#[case(("true", "", ""), "Failed")]
#[case(("", "true", ""), "InProgress")]
#[case(("", "false", ""), "Current")]
#[case(("", "", "true"), "Current")]
#[case(("", "", "false"), "InProgress")]
fn order_and_errors(#[case] expressions: (&str, &str, &str), #[case] verdict: &str) {
    let (failed, in_progress, current) = expressions;
    let rules = rules(&[rule("v1", "A", failed, in_progress, current)]);
    let object = json!({"apiVersion": "v1", "kind": "A", "spec": {"replicas": 1, "text": "x"}});
    let found = rules.judge(&object);
    assert_eq!(
        found.as_ref().map(Readiness::name),
        Some(verdict),
        "{expressions:?}: {found:?}"
    );
    if let Some(Readiness::Failed { recoverable, .. }) = found {
        assert!(!recoverable);
    }
}

#[test]
fn an_object_that_is_being_deleted_is_not_judged_by_its_status() {
    let mut live = object("argoproj.io/v1alpha1", "Rollout", 1, json!({"phase": "Healthy"}));
    live["metadata"]["deletionTimestamp"] = json!("2026-06-15T09:21:04Z");
    assert_eq!(rollout().judge(&live), Some(Readiness::Terminating));
}

#[test]
fn several_rules_for_one_kind_all_have_to_hold() {
    let two = rules(&[
        rule("a/v1", "A", "status.a == 2", "", "status.a == 1"),
        rule("a/v2", "A", "status.b == 2", "", "status.b == 1"),
    ]);
    for (a, b, verdict) in [
        (1, 1, "Current"),
        (1, 0, "InProgress"),
        (0, 1, "InProgress"),
        (0, 2, "Failed"),
        (2, 1, "Failed"),
    ] {
        let found = two.judge(&object("a/v1", "A", 1, json!({"a": a, "b": b})));
        assert_eq!(found.map(|r| r.name()), Some(verdict), "{a} {b}");
    }
}

/// Rules: run 18.3 invalid
#[test]
fn every_expression_that_does_not_compile_is_named() {
    let errors = ReadyExprs::compile(&[
        rule("a/v1", "A", "status.", "", "status.ready"),
        rule("a/v1", "B", "true", "ready", "1"),
    ])
    .unwrap_err();
    let found: Vec<(String, String)> = errors.iter().map(|e| (e.path(), e.to_string())).collect();
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["[0].failed", "[1].current", "[1].inProgress"]);
    assert!(
        found[0]
            .1
            .starts_with("expression 0, failed \"status.\" does not compile: at line 1, column "),
        "{}",
        found[0].1
    );
    assert_eq!(
        found[1].1,
        "expression 1, current \"1\" does not compile: its result has the type int; it has to be true or false"
    );
    let long = ReadyExprs::compile(&[rule("a/v1", "A", "", "", &"x\n".repeat(3000))]).unwrap_err();
    assert!(long[0].to_string().len() < 300, "{}", long[0]);
}

#[test]
fn a_changed_rule_is_another_rule() {
    let print = |failed: &str, current: &str| rules(&[rule("a/v1", "A", failed, "", current)]).fingerprint("a", "A");
    assert_eq!(print("", "true"), print("", "true"));
    let prints = [
        print("", "true"),
        print("", "false"),
        print("true", ""),
        print("true", "true"),
    ];
    for (at, one) in prints.iter().enumerate() {
        assert!(prints[..at].iter().all(|other| other != one) && *one != 0);
    }
}

#[test]
fn loops_make_a_kind_slow() {
    let both = rules(&[
        rule("a/v1", "A", "", "", "status.ready"),
        rule("a/v1", "B", "", "status.l.all(x, x)", "true"),
    ]);
    assert!(!both.may_be_slow("a", "A") && both.may_be_slow("a", "B") && !both.may_be_slow("a", "C"));
}
