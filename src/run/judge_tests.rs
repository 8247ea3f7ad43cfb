use serde_json::json;

use super::*;

fn stage(ready: Value) -> Stage {
    serde_json::from_value(json!({"name": "web", "sourceRef": {"name": "web"}, "readyChecks": ready})).unwrap()
}

fn judge(ready: Value) -> Judge {
    Judge::of(&stage(ready), "apps").unwrap_or_else(|e| panic!("{}", e.message))
}

fn id(group: &str, kind: &str, namespace: &str) -> ObjectId {
    ObjectId::new(namespace, "a", group, kind)
}

fn served(has_status: bool, custom: bool) -> Served {
    Served {
        version: "v1".into(),
        plural: "as".into(),
        namespaced: true,
        has_status,
        custom,
        listable: true,
    }
}

fn database(status: Value) -> Value {
    json!({"apiVersion": "db.example/v1", "kind": "Database", "metadata": {"name": "a"}, "status": status})
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

const EXPRS: &str = r#"{"apiVersion": "db.example/v1", "kind": "Database", "current": "status.phase == 'Running'"}"#;

fn exprs() -> Value {
    json!({"exprs": [serde_json::from_str::<Value>(EXPRS).unwrap()]})
}

/// Rules: run B12 exprs
#[tokio::test]
async fn expressions_stand_in_place_of_the_kinds_own_rules() {
    let live = database(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}));
    let id = id("db.example", "Database", "apps");
    let with = judge(exprs()).judge(&id, &live, None, ago(0)).await;
    assert_eq!(with.readiness, Readiness::Current);
    let without = judge(json!({})).judge(&id, &live, None, ago(0)).await;
    assert_eq!(without.readiness.name(), "InProgress");
    assert!(with.rules != 0 && without.rules == 0);
    assert_eq!(with.rules, judge(exprs()).rules(&id));
}

#[tokio::test]
async fn a_slow_expression_gives_the_same_verdict() {
    let slow =
        json!({"exprs": [{"apiVersion": "db.example/v1", "kind": "Database", "current": "status.l.all(x, x > 0)"}]});
    let id = id("db.example", "Database", "apps");
    for (list, verdict) in [(json!([1, 2]), "Current"), (json!([1, 0]), "InProgress")] {
        let found = judge(slow.clone())
            .judge(&id, &database(json!({"l": list})), None, ago(0))
            .await;
        assert_eq!(found.readiness.name(), verdict);
    }
}

/// Rules: decisions 5 settle
#[tokio::test]
async fn a_custom_resource_nobody_has_looked_at_is_not_ready_at_once() {
    let id = id("db.example", "Database", "apps");
    let plain = judge(json!({}));
    let fresh = plain
        .judge(&id, &database(json!({})), Some(&served(true, true)), ago(1))
        .await;
    assert_eq!(fresh.readiness.name(), "InProgress");
    let left = fresh.settles_at.unwrap().duration_since(Timestamp::now());
    assert!(
        left > SignedDuration::from_secs(8) && left <= SignedDuration::from_secs(9),
        "{left}"
    );

    let ready = |verdict: Verdict| verdict.readiness.is_ready() && verdict.settles_at.is_none();
    // Time passed, a status, no status to be had, or not a custom resource.
    assert!(ready(
        plain
            .judge(&id, &database(json!({})), Some(&served(true, true)), ago(11))
            .await
    ));
    assert!(ready(
        plain
            .judge(&id, &database(json!({"seen": true})), Some(&served(true, true)), ago(1))
            .await
    ));
    for other in [Some(served(false, true)), Some(served(true, false)), None] {
        assert!(ready(
            plain.judge(&id, &database(json!({})), other.as_ref(), ago(1)).await
        ));
    }
    // Asked for explicitly: by a check on the kind, or by an expression.
    let checked = judge(json!({"checks": [{"apiVersion": "db.example/v2", "kind": "Database", "name": "other"}]}));
    assert!(ready(
        checked
            .judge(&id, &database(json!({})), Some(&served(true, true)), ago(1))
            .await
    ));
    let covered = judge(exprs())
        .judge(&id, &database(json!({})), Some(&served(true, true)), ago(1))
        .await;
    assert_eq!((covered.readiness.name(), covered.settles_at), ("InProgress", None));
}

/// Rules: run 18.1, run 18.1 scope, run D1, run D2
#[test]
fn what_a_stage_waits_for() {
    let everything = judge(json!({}));
    let nothing = judge(json!({"disableWait": true, "exprs": exprs()["exprs"]}));
    let listed = judge(json!({
        "checks": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"},
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "namespace": "other"},
            {"kind": "Namespace", "name": "a"},
        ],
        "exprs": exprs()["exprs"],
    }));
    for (id, by_list) in [
        (id("apps", "Deployment", "apps"), true),
        (id("apps", "Deployment", "other"), true),
        (id("apps", "Deployment", "third"), false),
        (id("", "Namespace", ""), true),
        (id("", "Service", "apps"), false),
        (id("db.example", "Database", "third"), true),
        (ObjectId::new("apps", "b", "apps", "Deployment"), false),
    ] {
        assert!(everything.awaits(&id) && !nothing.awaits(&id), "{id}");
        assert_eq!(listed.awaits(&id), by_list, "{id}");
    }
}

/// Rules: run 18.3 invalid
#[test]
fn an_expression_that_does_not_compile_fails_the_stage() {
    let broken = stage(json!({"exprs": [{"apiVersion": "a/v1", "kind": "A", "current": "status."}]}));
    let failure = Judge::of(&broken, "apps").err().unwrap();
    assert_eq!((failure.reason, failure.remedy), (Reason::InvalidSpec, Remedy::Change));
    assert!(
        failure
            .message
            .starts_with("readyChecks.exprs: expression 0, current \"status.\" does not compile: at line 1")
    );
}
