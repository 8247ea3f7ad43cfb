use super::*;

fn hook(hook: &str, action: &str) -> String {
    stage(&format!("actions: {{{hook}: [{{{action}}}]}}"))
}

fn on_rollback(action: &str) -> String {
    format!("onRollback: [{{{action}}}]")
}

fn pre(action: &str) -> String {
    hook("pre", &format!("name: a, {action}"))
}

const PRE: &str = "spec.stages[0].actions.pre[0]";
const WAIT: &str = "wait: {duration: 1s}";

/// Rules: run 6 actions
#[test]
fn an_action_has_one_verb() {
    let verbs = ["patch, http, wait, job, delete, apply", "found 0", "action \"a\""];
    for name in ["pre", "post", "onFailure"] {
        let path = format!("spec.stages[0].actions.{name}[0]");
        refused(
            "A3",
            &hook(name, "name: a"),
            &path,
            &[&["stage \"web\"", name][..], &verbs].concat(),
        );
    }
    refused(
        "A3",
        &pre("wait: {duration: 1s}, http: {url: 'http://a'}"),
        PRE,
        &["found 2"],
    );
    refused(
        "R1",
        &on_rollback("name: a"),
        "spec.onRollback[0]",
        &[&["onRollback"][..], &verbs].concat(),
    );
}

#[test]
fn names_of_actions() {
    refused(
        "A4",
        &hook("pre", "name: '', wait: {duration: 1s}"),
        &format!("{PRE}.name"),
        &["stage \"web\", pre", "non-empty name"],
    );
    refused(
        "A5",
        &stage("actions: {pre: [{name: a, wait: {duration: 1s}}], onFailure: [{name: a, wait: {duration: 1s}}]}"),
        "spec.stages[0].actions.onFailure[0].name",
        &["\"a\"", "stage \"web\", onFailure", "stage \"web\", pre"],
    );
    accepted(
        "stages: [{name: x, sourceRef: {name: x}, actions: {pre: [{name: a, wait: {duration: 1s}}]}}, {name: y, sourceRef: {name: x}, actions: {pre: [{name: a, wait: {duration: 1s}}]}}]",
    );
    refused(
        "R2",
        &on_rollback("name: '', wait: {duration: 1s}"),
        "spec.onRollback[0].name",
        &["onRollback"],
    );
    refused(
        "R3",
        "onRollback: [{name: a, wait: {duration: 1s}}, {name: a, wait: {duration: 1s}}]",
        "spec.onRollback[1].name",
        &["\"a\""],
    );
    accepted(&format!("{}\nonRollback: [{{name: a, {WAIT}}}]", pre(WAIT)));
    for bad in ["down/x", "a@b"] {
        let spec = hook("post", &format!("name: {bad}, {WAIT}"));
        refused("15.17", &spec, "spec.stages[0].actions.post[0].name", &["@ or /"]);
    }
}

#[test]
fn scopes() {
    let scope = format!("{PRE}.scope");
    refused(
        "A6",
        &pre(&format!("scope: Sometimes, {WAIT}")),
        &scope,
        &["action \"a\"", "\"Sometimes\"", "Revision, Version, Lifetime"],
    );
    for value in ["Revision", "Version", "Lifetime"] {
        let action = format!("name: a, scope: {value}, {WAIT}");
        refused(
            "A7",
            &hook("onFailure", &action),
            "spec.stages[0].actions.onFailure[0].scope",
            &[value, "pre and post"],
        );
        refused(
            "R4",
            &on_rollback(&action),
            "spec.onRollback[0].scope",
            &["action \"a\"", value],
        );
    }
    refused(
        "A8",
        &pre(&format!("scope: Version, {WAIT}")),
        &scope,
        &["stage \"web\"", "action \"a\"", "spec.version"],
    );
    accepted(&format!(
        "version: {{value: 1.0.0}}\n{}",
        pre(&format!("scope: Version, {WAIT}"))
    ));
    accepted(&pre(&format!("scope: Lifetime, {WAIT}")));
}

#[test]
fn completion_anchors() {
    let anchor = "completionAnchor: {apiVersion: v1, kind: Secret, name: s}";
    let path = format!("{PRE}.completionAnchor");
    refused(
        "A9",
        &pre(&format!("{anchor}, {WAIT}")),
        &path,
        &["action \"a\"", "Lifetime"],
    );
    refused(
        "A9",
        &pre(&format!("scope: Revision, {anchor}, {WAIT}")),
        &path,
        &["Lifetime"],
    );
    accepted(&pre(&format!("scope: Lifetime, {anchor}, {WAIT}")));
    for fields in [
        "apiVersion: '', kind: A, name: a",
        "apiVersion: v1, kind: '', name: a",
        "apiVersion: v1, kind: A, name: ''",
    ] {
        let spec = pre(&format!("scope: Lifetime, completionAnchor: {{{fields}}}, {WAIT}"));
        refused("A10", &spec, &path, &["apiVersion, kind and name"]);
    }
    refused(
        "A9",
        &hook("onFailure", &format!("name: a, {anchor}, {WAIT}")),
        "spec.stages[0].actions.onFailure[0].completionAnchor",
        &["Lifetime"],
    );
    refused(
        "R5",
        &on_rollback(&format!("name: a, {anchor}, {WAIT}")),
        "spec.onRollback[0].completionAnchor",
        &["completionAnchor"],
    );
}

#[test]
fn retries_and_timeouts() {
    refused(
        "retries",
        &pre(&format!("retries: 101, {WAIT}")),
        &format!("{PRE}.retries"),
        &["101", "0 to 100"],
    );
    refused(
        "retries",
        &pre(&format!("retries: -1, {WAIT}")),
        &format!("{PRE}.retries"),
        &["-1"],
    );
    refused(
        "timeout",
        &pre(&format!("timeout: long, {WAIT}")),
        &format!("{PRE}.timeout"),
        &["\"long\""],
    );
}

#[test]
fn patch() {
    let patch = |target: &str, rest: &str| pre(&format!("patch: {{target: {{{target}}}, {rest}}}"));
    let path = format!("{PRE}.patch");
    let target = format!("{path}.target");
    let merge = "patch: '{}'";
    refused(
        "15.10",
        &patch("kind: A", merge),
        &target,
        &["action \"a\"", "set name"],
    );
    refused(
        "15.10",
        &patch("kind: A, name: a, selector: {matchLabels: {a: b}}", merge),
        &target,
        &["exclude each other"],
    );
    refused(
        "15.10",
        &patch("kind: A, selector: {}", merge),
        &format!("{target}.selector"),
        &["empty selector"],
    );
    refused(
        "15.10",
        &patch("kind: '', name: a", merge),
        &format!("{target}.kind"),
        &["non-empty kind"],
    );
    refused(
        "15.10",
        &patch("kind: A, name: a/b", merge),
        &format!("{target}.name"),
        &["\"a/b\""],
    );
    refused(
        "enum",
        &patch("kind: A, name: a", "patch: '{}', type: jsonnet"),
        &format!("{path}.type"),
        &["merge, json6902"],
    );
    refused(
        "15.10",
        &patch("kind: A, name: a", "patch: 'a: b'"),
        &format!("{path}.patch"),
        &["no JSON", "line 1"],
    );
    refused(
        "15.10",
        &patch("kind: A, name: a", "patch: '[]'"),
        &format!("{path}.patch"),
        &["json6902"],
    );
    accepted(&patch(
        "apiVersion: apps/v1, kind: A, selector: {matchLabels: {a: b}}",
        merge,
    ));
}

#[test]
fn json_patches() {
    let path = format!("{PRE}.patch.patch");
    let operations = |text: &str| {
        pre(&format!(
            "patch: {{target: {{kind: A, name: a}}, type: json6902, patch: '{text}'}}"
        ))
    };
    refused("15.10", &operations("{}"), &path, &["list of operations"]);
    let good = r#"{"op":"add","path":"/a","value":1}"#;
    for bad in [
        r#"{"op":"put","path":"/a"}"#,
        r#"{"op":"add","path":"a","value":1}"#,
        r#"{"op":"add","path":"/a"}"#,
        r#"{"op":"move","path":"/a"}"#,
        "1",
    ] {
        refused(
            "15.10",
            &operations(&format!("[{good},{bad}]")),
            &path,
            &["operation 1"],
        );
    }
    accepted(&operations(&format!(
        r#"[{good},{{"op":"remove","path":"/b"}},{{"op":"copy","from":"/a","path":"/c"}}]"#
    )));
}

#[test]
fn http() {
    let http = |fields: &str| pre(&format!("http: {{{fields}}}"));
    let path = format!("{PRE}.http");
    refused(
        "15.10",
        &http("url: ''"),
        &format!("{path}.url"),
        &["action \"a\"", "non-empty url"],
    );
    refused(
        "15.10",
        &http("url: example.com/x"),
        &format!("{path}.url"),
        &["example.com/x", "no URL"],
    );
    refused(
        "15.10",
        &http("url: 'ftp://example.com'"),
        &format!("{path}.url"),
        &["\"ftp\"", "http or https"],
    );
    refused("15.10", &http("url: 'http://'"), &format!("{path}.url"), &["no URL"]);
    refused(
        "enum",
        &http("url: 'http://a', method: TRACE"),
        &format!("{path}.method"),
        &["GET, POST"],
    );
    refused(
        "15.10",
        &http("url: 'http://a', bodyFrom: {name: s}"),
        &format!("{path}.bodyFrom.key"),
        &["Secret \"s\""],
    );
    refused(
        "15.10",
        &http("url: 'http://a', headersFrom: [{name: s, key: A}, {name: s}]"),
        &format!("{path}.headersFrom[1].key"),
        &["no default"],
    );
    refused(
        "name",
        &http("url: 'http://a', bodyFrom: {name: '', key: k}"),
        &format!("{path}.bodyFrom.name"),
        &["non-empty name"],
    );
    refused(
        "status",
        &http("url: 'http://a', expectedStatus: [200, 99]"),
        &format!("{path}.expectedStatus[1]"),
        &["99", "100 to 599"],
    );
    accepted(&http(
        "url: 'https://example.com:8443/x?y=z', headersFrom: [{name: s, key: Authorization}]",
    ));
}

#[test]
fn a_password_in_an_address_is_not_repeated() {
    let violations = validate(&set(&pre("http: {url: 'http://user:hunter2@:x'}")));
    assert_eq!(violations.len(), 1);
    assert!(!violations[0].message.contains("hunter2"), "{}", violations[0].message);
}

#[test]
fn wait() {
    let wait = |fields: &str| pre(&format!("wait: {{{fields}}}"));
    let path = format!("{PRE}.wait");
    refused("15.10", &wait(""), &path, &["action \"a\"", "duration", "expr"]);
    refused(
        "15.10",
        &wait("duration: 1s, expr: 'true', target: {kind: A, name: a}"),
        &path,
        &["exclude each other"],
    );
    refused("15.10", &wait("expr: 'true'"), &path, &["needs target"]);
    refused(
        "15.10",
        &wait("expr: 'true', target: {kind: '', name: a}"),
        &format!("{path}.target.kind"),
        &["non-empty kind"],
    );
    refused(
        "duration",
        &wait("duration: 1x"),
        &format!("{path}.duration"),
        &["\"1x\""],
    );
    refused(
        "duration",
        &wait("duration: 1s, timeout: 1x"),
        &format!("{path}.timeout"),
        &["\"1x\""],
    );
    accepted(&wait("expr: 'true', target: {kind: A, name: a}, timeout: 1m"));
    refused(
        "15.10",
        &wait("expr: 'status.phase + 1', target: {kind: A, name: a}, timeout: 1m"),
        &format!("{path}.expr"),
        &["action \"a\"", "status.phase + 1", "has the type int"],
    );
}

#[test]
fn job_apply_and_delete() {
    for verb in ["job", "apply"] {
        let spec = pre(&format!("{verb}: {{sourceRef: {{kind: JsonnetSnippet, name: x}}}}"));
        refused(
            "15.11",
            &spec,
            &format!("{PRE}.{verb}.sourceRef.apiVersion"),
            &["action \"a\"", "JsonnetSnippet", "apiVersion"],
        );
    }
    let delete = |fields: &str| pre(&format!("delete: {{{fields}}}"));
    refused(
        "enum",
        &delete("target: {kind: A, name: a}, cascade: Maybe"),
        &format!("{PRE}.delete.cascade"),
        &["Background, Foreground, Orphan"],
    );
    refused(
        "name",
        &delete("target: {kind: A, name: ''}"),
        &format!("{PRE}.delete.target.name"),
        &["non-empty name"],
    );
    accepted(&delete(
        "target: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: 'system:a'}",
    ));
}
