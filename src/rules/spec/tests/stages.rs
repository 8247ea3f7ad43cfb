use super::*;
use crate::rules::spec::{Supported, check};

/// Rules: run 6 stages
#[test]
fn stages_and_their_names() {
    refused("no stage", "stages: []", "spec.stages", &["at least one stage"]);
    refused(
        "A1",
        "stages: [{name: web, sourceRef: {name: a}}, {name: db, sourceRef: {name: a}}, {name: web, sourceRef: {name: b}}]",
        "spec.stages[2].name",
        &["\"web\"", "spec.stages[0]", "unique"],
    );
    for bad in ["Web", "-web", "web-", "we_b", "web.x", "''"] {
        let spec = format!("stages: [{{name: {bad}, sourceRef: {{name: a}}}}]");
        refused("stage name", &spec, "spec.stages[0].name", &["63 lower-case letters"]);
    }
    let long = "a".repeat(64);
    refused(
        "stage name",
        &format!("stages: [{{name: {long}, sourceRef: {{name: a}}}}]"),
        "spec.stages[0].name",
        &["63"],
    );
}

/// Rules: run 6 producer
#[test]
fn source_references() {
    let source = |fields: &str| format!("stages: [{{name: web, sourceRef: {{{fields}}}}}]");
    let path = |field: &str| format!("spec.stages[0].sourceRef.{field}");
    refused(
        "A2",
        &source("kind: JsonnetSnippet, name: x"),
        &path("apiVersion"),
        &["stage \"web\"", "JsonnetSnippet", "apiVersion"],
    );
    accepted(&source("kind: JsonnetSnippet, name: x, apiVersion: jaas.metio.wtf/v1"));
    for version in ["v1", "apps/v1", "batch/v1"] {
        refused(
            "a kind of Kubernetes",
            &source(&format!("kind: Secret, name: x, apiVersion: {version}")),
            &path("apiVersion"),
            &["stage \"web\"", version, "produces no artifacts"],
        );
    }
    accepted(&source("kind: GitRepository, name: x"));
    accepted(&source("name: x, kind: '', apiVersion: '', namespace: ''"));
    refused(
        "source name",
        &source("name: ''"),
        &path("name"),
        &["stage \"web\"", "non-empty name"],
    );
    refused(
        "source name",
        &source("name: ../../secrets/x"),
        &path("name"),
        &["\"../../secrets/x\""],
    );
    refused(
        "source namespace",
        &source("name: x, namespace: a/b"),
        &path("namespace"),
        &["\"a/b\""],
    );
    refused(
        "source kind",
        &source("name: x, kind: 'a b', apiVersion: a.b/v1"),
        &path("kind"),
        &["\"a b\""],
    );
    refused(
        "source version",
        &source("name: x, kind: A, apiVersion: a/b/c"),
        &path("apiVersion"),
        &["\"a/b/c\""],
    );
}

/// Rules: run 6 onTimeout
#[test]
fn timeouts() {
    refused(
        "T1",
        "onTimeout: Wait",
        "spec.onTimeout",
        &["\"Wait\"", "Hold, Rollback"],
    );
    refused(
        "T1",
        &stage("onTimeout: Wait"),
        "spec.stages[0].onTimeout",
        &["\"Wait\"", "Hold, Rollback"],
    );
}

/// Rules: run 16.6 data
#[test]
fn conflict_rules_that_would_lose_data() {
    let rule = |fields: &str| stage(&format!("conflictPolicy: {{rules: [{{{fields}}}]}}"));
    let path = "spec.stages[0].conflictPolicy.rules[0]";
    for target in [
        "{kind: PersistentVolumeClaim}",
        "{kind: PersistentVolume, apiVersion: v1}",
    ] {
        refused(
            "15.14",
            &rule(&format!("target: {target}, action: Recreate")),
            path,
            &["stage \"web\"", "PersistentVolume", "allowDataLoss"],
        );
        accepted(&rule(&format!(
            "target: {target}, action: Recreate, allowDataLoss: true"
        )));
        accepted(&rule(&format!("target: {target}, action: KeepExisting")));
    }
    accepted(&rule("target: {}, action: Recreate"));
    accepted(&rule(
        "target: {kind: PersistentVolumeClaim, apiVersion: example.com/v1}, action: Recreate",
    ));
    refused(
        "enum",
        &rule("target: {}, action: Merge"),
        &format!("{path}.action"),
        &["\"Merge\"", "Fail, Recreate, KeepExisting"],
    );
    refused(
        "enum",
        &stage("conflictPolicy: {default: Merge}"),
        "spec.stages[0].conflictPolicy.default",
        &["\"Merge\""],
    );
}

#[test]
fn force_is_not_disarmed_by_rules() {
    use crate::api::ConflictAction;
    let default = |fields: &str| set(&stage(fields)).spec.stages[0].conflict_default();
    assert_eq!(default("prune: true"), ConflictAction::Fail);
    assert_eq!(default("force: true"), ConflictAction::Recreate);
    assert_eq!(
        default("force: true, conflictPolicy: {rules: []}"),
        ConflictAction::Recreate
    );
    assert_eq!(
        default("force: true, conflictPolicy: {default: Fail}"),
        ConflictAction::Fail
    );
}

#[test]
fn patches() {
    let patch = |fields: &str| stage(&format!("patches: [{{{fields}}}]"));
    let path = "spec.stages[0].patches[0]";
    refused(
        "empty patch",
        &patch("patch: ' '"),
        &format!("{path}.patch"),
        &["stage \"web\"", "empty"],
    );
    refused(
        "selector",
        &patch("patch: x, target: {labelSelector: 'a=b=c'}"),
        &format!("{path}.target.labelSelector"),
        &["\"b=c\""],
    );
    refused(
        "selector",
        &patch("patch: x, target: {annotationSelector: 'a like b'}"),
        &format!("{path}.target.annotationSelector"),
        &["a like b"],
    );
    refused(
        "name",
        &patch("patch: x, target: {name: 'a('}"),
        &format!("{path}.target.name"),
        &["\"a(\""],
    );
    accepted(&patch(
        "patch: x, target: {labelSelector: 'app in (a, b),!tier', annotationSelector: 'a.b/c=x y', name: 'web-.*'}",
    ));
}

#[test]
fn variables() {
    for bad in ["1a", "a-b", "''", "a.b"] {
        let spec = stage(&format!("postBuild: {{substitute: {{{bad}: x}}}}"));
        refused(
            "variable",
            &spec,
            "spec.stages[0].postBuild.substitute",
            &["is no name of a variable"],
        );
    }
    accepted(&stage("postBuild: {substitute: {_a1: x, B: y}}"));
    let from = |fields: &str| stage(&format!("postBuild: {{substituteFrom: [{{{fields}}}]}}"));
    let path = "spec.stages[0].postBuild.substituteFrom[0]";
    refused(
        "enum",
        &from("kind: Vault, name: a"),
        &format!("{path}.kind"),
        &["\"Vault\"", "ConfigMap, Secret"],
    );
    refused(
        "name",
        &from("kind: Secret, name: ''"),
        &format!("{path}.name"),
        &["non-empty name"],
    );
}

#[test]
fn ignored_fields() {
    for at in ["spec", "spec.stages[0]"] {
        let rule = |fields: &str| match at {
            "spec" => format!("ignore: [{{{fields}}}]"),
            _ => stage(&format!("ignore: [{{{fields}}}]")),
        };
        refused(
            "ignore",
            &rule("paths: []"),
            &format!("{at}.ignore[0].paths"),
            &["at least one field"],
        );
        for bad in ["spec/replicas", "''", "/", "/a~2b", "/a~"] {
            refused(
                "ignore",
                &rule(&format!("paths: [{bad}]")),
                &format!("{at}.ignore[0].paths[0]"),
                &["JSON pointer"],
            );
        }
        for bad in ["/kind", "/metadata/name"] {
            refused(
                "ignore",
                &rule(&format!("paths: [/spec, {bad}]")),
                &format!("{at}.ignore[0].paths[1]"),
                &["known by"],
            );
        }
        refused(
            "ignore",
            &rule("paths: [/a], target: {labelSelector: '='}"),
            &format!("{at}.ignore[0].target.labelSelector"),
            &[],
        );
        accepted(&rule("paths: [/spec/replicas, /metadata/annotations/a~1b]"));
    }
}

/// Rules: run 6 checks
#[test]
fn ready_checks() {
    let checks = |fields: &str| {
        stage(&format!(
            "readyChecks: {{checks: [{{kind: A, name: a}}, {{{fields}}}]}}"
        ))
    };
    refused(
        "C1",
        &checks("kind: '', name: a"),
        "spec.stages[0].readyChecks.checks[1]",
        &["stage \"web\"", "check 1", "kind and name"],
    );
    refused(
        "C1",
        &checks("kind: A, name: ''"),
        "spec.stages[0].readyChecks.checks[1]",
        &["kind and name"],
    );
    let exprs = |fields: &str| stage(&format!("readyChecks: {{exprs: [{{{fields}}}]}}"));
    for bad in ["a/b/c", "''", "Apps/v1", "/v1"] {
        let spec = exprs(&format!("apiVersion: {bad}, kind: A, current: 'true'"));
        refused(
            "C2",
            &spec,
            "spec.stages[0].readyChecks.exprs[0].apiVersion",
            &["group/version"],
        );
    }
    refused(
        "expr",
        &exprs("apiVersion: v1, kind: A"),
        "spec.stages[0].readyChecks.exprs[0]",
        &["current, inProgress and failed"],
    );
    accepted(&exprs("apiVersion: apps/v1, kind: A, failed: 'true'"));
    for (field, bad, fragment) in [
        ("current", "status.phase ==", "at line 1, column"),
        ("inProgress", "phase == 'x'", "there is no variable \"phase\""),
        ("failed", "size(status.list)", "has the type int"),
    ] {
        let fields = format!("apiVersion: v1, kind: A, {field}: \"{bad}\"");
        refused(
            "C3",
            &exprs(&fields),
            &format!("spec.stages[0].readyChecks.exprs[0].{field}"),
            &["stage \"web\"", "expression 0", field, bad, fragment],
        );
    }
    let two = "apiVersion: v1, kind: A, current: '1', failed: '2'}, {apiVersion: v1, kind: B, current: '3'";
    let violations = validate(&set(&exprs(two)));
    let list = "spec.stages[0].readyChecks.exprs";
    let mut found = paths(&violations);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            format!("{list}[0].current"),
            format!("{list}[0].failed"),
            format!("{list}[1].current")
        ]
    );
}

#[test]
fn expressions_are_part_of_this_release() {
    let spec = stage("readyChecks: {exprs: [{apiVersion: a/v1, kind: A, current: status.ready}]}");
    assert!(check(&set(&spec), &Supported::this_release()).is_empty());
}
