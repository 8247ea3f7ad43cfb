//! Decoding and encoding of the wire types.

use serde_json::{Value, json};

use crate::api::common::SourceReference;
use crate::api::names::annotation;
use crate::api::*;

fn stage_set(spec: Value) -> StageSet {
    serde_json::from_value(json!({
        "apiVersion": "stages.metio.wtf/v1", "kind": "StageSet",
        "metadata": {"name": "web", "namespace": "apps"},
        "spec": spec,
    }))
    .unwrap()
}

#[test]
fn what_a_person_gets_wrong_still_decodes() {
    let set = stage_set(json!({
        "interval": "ten minutes",
        "onTimeout": "Explode",
        "windowScope": "None",
        "updateWindows": [{"type": "Maybe", "from": "tomorrow", "to": ""}],
        "stages": [{
            "name": "a", "sourceRef": {"name": "x"}, "timeout": "5",
            "conflictPolicy": {"default": "Shrug", "rules": [{"target": {}, "action": "?"}]},
            "postBuild": {"substituteFrom": [{"kind": "Vault", "name": "v"}]},
            "actions": {"pre": [{"name": "p", "scope": "Sometimes", "timeout": "x", "retries": 9_000_000_000_i64}]},
            "promotion": {"analysis": {"checks": [], "failureLimit": 1e30, "onFailure": "?", "onSourceError": "?"}},
        }],
    }));
    assert_eq!(set.spec.interval, Some(Duration("ten minutes".into())));
    assert_eq!(set.spec.on_timeout, Some(TimeoutPolicy::Unknown("Explode".into())));
    assert_eq!(
        set.spec.update_windows[0].window_type,
        WindowType::Unknown("Maybe".into())
    );
    assert!(set.spec.update_windows[0].from.as_ref().unwrap().parse().is_err());
    let stage = &set.spec.stages[0];
    let action = &stage.actions.as_ref().unwrap().pre[0];
    assert_eq!(action.scope, Some(ActionScope::Unknown("Sometimes".into())));
    assert_eq!(action.retries, Some(i32::MAX));
    assert_eq!(
        stage
            .promotion
            .as_ref()
            .unwrap()
            .analysis
            .as_ref()
            .unwrap()
            .failure_limit,
        Some(i32::MAX)
    );
}

#[test]
fn unknown_values_are_written_back_verbatim() {
    let spec = json!({"onTimeout": "Explode", "interval": "ten", "stages": []});
    let encoded = serde_json::to_value(&stage_set(spec.clone()).spec).unwrap();
    assert_eq!(encoded, spec);
}

#[test]
fn nothing_that_is_unset_is_written() {
    let spec = stage_set(json!({"stages": [{"name": "a", "sourceRef": {"name": "x"}}]})).spec;
    assert_eq!(
        serde_json::to_value(&spec).unwrap(),
        json!({"stages": [{"name": "a", "sourceRef": {"name": "x"}}]})
    );
    assert_eq!(serde_json::to_value(StageSetStatus::default()).unwrap(), json!({}));
    assert_eq!(
        serde_json::to_value(StageStatus::named("a")).unwrap(),
        json!({"name": "a"})
    );
    assert_eq!(serde_json::to_value(StageInventorySpec::default()).unwrap(), json!({}));
    assert_eq!(serde_json::to_value(StageLedgerSpec::default()).unwrap(), json!({}));
}

#[test]
fn status_fields_keep_their_names() {
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "m",
                        "lastTransitionTime": "2026-06-15T09:21:04Z", "observedGeneration": 3}],
        "lastHandledReconcileAt": "t",
        "run": {"attempt": 1, "generation": 3, "startedAt": "2026-06-15T09:21:04.123456Z", "artifacts": [
            {"stage": "a", "kind": "Bucket", "namespace": "apps", "name": "x", "revision": "r", "digest": "d", "url": "u"},
        ]},
        "stages": [{"name": "a", "phase": "Verifying", "step": "SomethingNewer", "appliedURL": "u", "shards": 1,
                    "stepStartedAt": "2026-06-15T09:21:04.123456Z"}],
    });
    let decoded: StageSetStatus = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(decoded.stage("a").unwrap().phase, Some(StagePhase::Verifying));
    assert_eq!(
        decoded.stage("a").unwrap().step,
        Some(Step::Unknown("SomethingNewer".into()))
    );
    assert!(decoded.stage("b").is_none());
    assert_eq!(serde_json::to_value(decoded).unwrap(), status);
}

#[test]
fn an_action_has_exactly_one_verb() {
    let action = |value: Value| serde_json::from_value::<Action>(value).unwrap();
    let wait = action(json!({"name": "w", "wait": {"duration": "1s"}}));
    assert_eq!(wait.verb().unwrap().name(), "wait");
    assert_eq!(action(json!({"name": "none"})).verb(), Err(VerbCount(0)));
    let two = action(json!({"name": "two", "wait": {}, "http": {"url": "http://a"}}));
    assert_eq!(two.verb(), Err(VerbCount(2)));
    for verb in Verb::NAMES {
        let body = match verb {
            "patch" => json!({"target": {"kind": "A"}, "patch": "{}"}),
            "http" => json!({"url": "http://a"}),
            "wait" => json!({}),
            "delete" => json!({"target": {"kind": "A", "name": "a"}}),
            _ => json!({"sourceRef": {"name": "a"}}),
        };
        assert_eq!(action(json!({"name": "n", verb: body})).verb().unwrap().name(), verb);
    }
}

#[test]
fn producers_are_told_from_direct_sources() {
    let producer = |kind: Option<&str>, api_version: Option<&str>| {
        SourceReference {
            kind: kind.map(Into::into),
            api_version: api_version.map(Into::into),
            name: "x".into(),
            namespace: None,
        }
        .is_producer()
    };
    assert!(!producer(None, None));
    assert!(!producer(Some(""), Some("")));
    assert!(!producer(Some("ExternalArtifact"), Some("anything/v1")));
    assert!(!producer(Some("GitRepository"), None));
    assert!(!producer(Some("Bucket"), Some("source.toolkit.fluxcd.io/v1beta2")));
    assert!(producer(Some("GitRepository"), Some("example.com/v1")));
    assert!(producer(Some("OCIRepository"), Some("v1")));
    assert!(producer(Some("JsonnetSnippet"), Some("jaas.metio.wtf/v1")));
    assert!(producer(Some("JsonnetSnippet"), None));
}

/// Rules: run 2.5 reconcile-stage
#[test]
fn stage_tokens_split_at_the_first_at_sign() {
    assert_eq!(annotation::stage_token("web@a@b"), Some(("web", "a@b")));
    for bad in ["web", "@t", "web@", ""] {
        assert_eq!(annotation::stage_token(bad), None, "{bad:?}");
    }
}

#[test]
fn a_ledger_keeps_its_summary_and_one_completion_per_action() {
    let done = |stage: &str, action: &str, origin: &str| -> CompletedAction {
        serde_json::from_value(json!({
            "stage": stage, "action": action, "origin": origin, "completedAt": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    };
    let mut status = StageLedgerStatus::default();
    assert!(status.record(done("data", "seed", "Executed")));
    assert!(status.record(done("web", "seed", "Baselined")));
    assert!(!status.record(done("data", "seed", "Baselined")));
    assert_eq!(status.completed_actions[0].origin, CompletionOrigin::Executed);
    assert_eq!(status.summary.as_deref(), Some("data/seed, web/seed"));
    assert!(status.is_completed("web", "seed") && !status.is_completed("web", "init"));
    status.retain(|done| done.stage != "data");
    assert_eq!(status.summary.as_deref(), Some("web/seed"));
    status.retain(|_| false);
    assert_eq!(serde_json::to_value(&status).unwrap(), json!({}));
}
