use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::kinds_tests::{pod, stateful_set, waiting};
use super::*;

pub(super) fn now() -> Timestamp {
    "2026-06-15T09:21:04Z".parse().unwrap()
}

fn verdict(object: &Value) -> (&'static str, String) {
    let readiness = judge(object, now());
    let message = match &readiness {
        Readiness::InProgress { message } | Readiness::Failed { message, .. } | Readiness::Unknown { message } => {
            message.clone()
        }
        _ => String::new(),
    };
    (readiness.name(), message)
}

pub(super) fn object(api_version: &str, kind: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": "x", "namespace": "app", "generation": 2}});
    for (key, value) in rest.as_object().unwrap() {
        if key == "metadata" {
            for (field, value) in value.as_object().unwrap() {
                object["metadata"][field] = value.clone();
            }
        } else {
            object[key] = value.clone();
        }
    }
    object
}

pub(super) fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "because"})
}

pub(super) fn check(object: &Value, name: &str, message: &str) {
    assert_eq!(verdict(object), (name, message.to_owned()), "{object:#}");
}

/// Rules: run 27.1
#[test]
fn deletion_beats_everything() {
    let leaving = object(
        "v1",
        "ConfigMap",
        json!({"metadata": {"deletionTimestamp": "2026-06-15T09:00:00Z"},
            "status": {"conditions": [condition("Stalled", "True", "Broken")]}}),
    );
    check(&leaving, "Terminating", "");
    let empty = object("v1", "ConfigMap", json!({"metadata": {"deletionTimestamp": ""}}));
    check(&empty, "Current", "");
}

/// Rules: run 27.1
#[test]
fn a_generation_that_was_not_observed_is_in_progress() {
    let lagging = object(
        "apps/v1",
        "Deployment",
        json!({"status": {"observedGeneration": 1, "conditions": [condition("Stalled", "True", "Broken")]}}),
    );
    check(
        &lagging,
        "InProgress",
        "generation 2 is not observed yet, its controller is at 1",
    );
    let ahead = object("example.com/v1", "Widget", json!({"status": {"observedGeneration": 3}}));
    assert_eq!(verdict(&ahead).0, "InProgress");
    let text = object(
        "example.com/v1",
        "Widget",
        json!({"status": {"observedGeneration": "1"}}),
    );
    check(&text, "Current", "");
}

/// Rules: run 27.1
#[rstest]
#[case(&[("Reconciling", "True")], "InProgress")]
#[case(&[("Stalled", "True")], "Failed")]
#[case(&[("Reconciling", "True"), ("Stalled", "True")], "InProgress")]
#[case(&[("Stalled", "True"), ("Reconciling", "True")], "Failed")]
#[case(&[("Reconciling", "False"), ("Stalled", "False")], "Current")]
#[case(&[("Ready", "True")], "Current")]
#[case(&[("Ready", "False")], "InProgress")]
#[case(&[("Ready", "Unknown")], "InProgress")]
#[case(&[("Ready", "maybe")], "Current")]
#[case(&[("Ready", "False"), ("Ready", "True")], "InProgress")]
#[case(&[("Ready", "True"), ("Reconciling", "True")], "InProgress")]
#[case(&[("Available", "False")], "Current")]
#[case(&[], "Current")]
fn standard_conditions_in_list_order(#[case] list: &[(&str, &str)], #[case] expected: &str) {
    let list: Vec<Value> = list.iter().map(|(k, s)| condition(k, s, "Why")).collect();
    let custom = object("example.com/v1", "Widget", json!({"status": {"conditions": list}}));
    let message = if expected == "Current" { "" } else { "Why: because" };
    check(&custom, expected, message);
}

#[test]
fn a_stalled_condition_is_final() {
    let stalled = object(
        "example.com/v1",
        "Widget",
        json!({"status": {"conditions": [condition("Stalled", "True", "Broken")]}}),
    );
    let expected = Readiness::Failed {
        message: "Broken: because".into(),
        recoverable: false,
    };
    assert_eq!(judge(&stalled, now()), expected);
}

#[test]
fn malformed_conditions_are_passed_over() {
    for conditions in [
        json!("none"),
        json!({"a": 1}),
        json!([1, {"type": 3}, {"status": "True"}]),
    ] {
        let odd = object(
            "example.com/v1",
            "Widget",
            json!({"status": {"conditions": conditions}}),
        );
        check(&odd, "Current", "");
    }
}

fn settled(object: &Value, has_status_subresource: bool, covered: bool, seconds: i64) -> &'static str {
    let facts = Settle {
        has_status_subresource,
        covered,
        since_change: SignedDuration::from_secs(seconds),
    };
    settle(object, judge(object, now()), facts).name()
}

/// Rules: decisions 5 settle
#[test]
fn a_custom_resource_waits_for_its_first_status() {
    let bare = object("example.com/v1", "Widget", json!({"status": {}}));
    assert_eq!(settled(&bare, true, false, 0), "InProgress");
    assert_eq!(settled(&bare, true, false, 9), "InProgress");
    assert_eq!(settled(&bare, true, false, 10), "Current");
    assert_eq!(settled(&bare, true, true, 0), "Current");
    assert_eq!(settled(&bare, false, false, 0), "Current");
    let seen = object("example.com/v1", "Widget", json!({"status": {"phase": "Ok"}}));
    assert_eq!(settled(&seen, true, false, 0), "Current");
    let stalled = object(
        "example.com/v1",
        "Widget",
        json!({"status": {"conditions": [condition("Stalled", "True", "No")]}}),
    );
    assert_eq!(settled(&stalled, true, false, 0), "Failed");
}

#[test]
fn an_error_wait_names_pod_container_and_reason() {
    let stuck = pod(
        "Pending",
        json!({"initContainerStatuses": [waiting("init", "PodInitializing")],
        "containerStatuses": [waiting("app", "ImagePullBackOff")]}),
    );
    let wait = error_wait(&stuck).unwrap();
    assert_eq!(wait.to_string(), "pod x container app: ImagePullBackOff: details");
    for reason in ["ContainerCreating", "PodInitializing", "Completed"] {
        assert_eq!(
            error_wait(&pod("Pending", json!({"containerStatuses": [waiting("app", reason)]}))),
            None
        );
    }
    for reason in [
        "CrashLoopBackOff",
        "ErrImagePull",
        "CreateContainerConfigError",
        "InvalidImageName",
    ] {
        let found = error_wait(&pod(
            "Pending",
            json!({"initContainerStatuses": [waiting("i", reason)]}),
        ));
        assert_eq!(found.map(|one| one.reason).as_deref(), Some(reason));
    }
    let mut leaving = stuck;
    leaving["metadata"]["deletionTimestamp"] = "2026-06-15T09:00:00Z".into();
    assert_eq!(error_wait(&leaving), None);
}

/// Rules: run 27.3, run B39
#[test]
fn looks_through_to_failed_pods() {
    let crashing = pod(
        "Running",
        json!({"containerStatuses": [waiting("app", "CrashLoopBackOff")]}),
    );
    let set = stateful_set(json!({}), json!({"readyReplicas": 2}));
    let own = judge(&set, now());
    let seen = look_through(&set, own.clone(), std::slice::from_ref(&crashing), now());
    assert_eq!(
        seen,
        Readiness::Failed {
            message: "pod x: CrashLoopBackOff in app".into(),
            recoverable: true
        }
    );
    let mut leaving = crashing.clone();
    leaving["metadata"]["deletionTimestamp"] = "2026-06-15T09:00:00Z".into();
    assert_eq!(look_through(&set, own.clone(), &[leaving], now()), own);
    let mut no_node = pod(
        "Pending",
        json!({"conditions": [condition("PodScheduled", "False", "Unschedulable")]}),
    );
    no_node["metadata"]["creationTimestamp"] = "2026-06-01T00:00:00Z".into();
    assert_eq!(judge(&no_node, now()).name(), "Failed");
    assert_eq!(look_through(&set, own.clone(), &[no_node], now()), own);
    let deployment = object("apps/v1", "Deployment", json!({}));
    let own = judge(&deployment, now());
    assert_eq!(
        look_through(&deployment, own.clone(), std::slice::from_ref(&crashing), now()),
        own
    );
    assert_eq!(
        look_through(&set, Readiness::Current, &[crashing], now()),
        Readiness::Current
    );
}

#[test]
fn explains_what_the_pods_wait_for() {
    let stuck = pod(
        "Pending",
        json!({"containerStatuses": [waiting("app", "ErrImagePull")]}),
    );
    let own = judge(&object("apps/v1", "Deployment", json!({})), now());
    let explained = explain(own, &[pod("Running", json!({})), stuck]);
    assert_eq!(
        explained,
        Readiness::InProgress {
            message: "replicas: 0/1 (pod x container app: ErrImagePull: details)".into()
        }
    );
}

#[test]
fn selectors_as_query_text() {
    let workload = |selector| object("apps/v1", "Deployment", json!({"spec": {"selector": selector}}));
    let full = workload(json!({"matchLabels": {"app": "web"}, "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "env", "operator": "NotIn", "values": ["dev"]},
        {"key": "x", "operator": "Exists"}, {"key": "y", "operator": "DoesNotExist"}]}));
    assert_eq!(
        pod_selector(&full).as_deref(),
        Some("app=web,tier in (a,b),env notin (dev),x,!y")
    );
    assert_eq!(pod_selector(&workload(json!({}))), None);
    assert_eq!(
        pod_selector(&workload(json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]}))),
        None
    );
    assert_eq!(pod_selector(&object("v1", "Secret", json!({}))), None);
}

fn awaited(name: &str, readiness: Readiness) -> Awaited {
    Awaited {
        id: ObjectId::new("app", name, "apps", "Deployment"),
        readiness,
    }
}

/// Rules: run 27.5, run 18.2 message
#[test]
fn one_failure_fails_all_and_the_message_names_it() {
    let list = vec![
        awaited("a", Readiness::Current),
        awaited("b", Readiness::waiting("ready: 1/3")),
        awaited("c", Readiness::failed("ProgressDeadlineExceeded")),
        awaited("d", Readiness::NotFound),
    ];
    let Overall::Failed(failed) = overall(list.clone()) else {
        panic!("a failed object must fail the set");
    };
    assert_eq!(
        name_blockers(&failed, 3),
        "Deployment/app/c: failed: ProgressDeadlineExceeded"
    );
    let Overall::Waiting(waiting) = overall(list.into_iter().filter(|one| !one.readiness.is_failed())) else {
        panic!("an unready object must keep the set waiting");
    };
    assert_eq!(
        name_blockers(&waiting, 5),
        "Deployment/app/b: in progress: ready: 1/3; Deployment/app/d: not found"
    );
    assert_eq!(
        name_blockers(&waiting, 1),
        "Deployment/app/b: in progress: ready: 1/3; and 1 more"
    );
    assert_eq!(overall([]), Overall::Ready);
    assert_eq!(overall([awaited("a", Readiness::Current)]), Overall::Ready);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z]{0,6}".prop_map(Value::from),
        Just(json!("True")),
        Just(json!("Ready")),
    ];
    let key = prop::sample::select(vec![
        "type",
        "status",
        "conditions",
        "phase",
        "replicas",
        "spec",
        "state",
        "waiting",
        "reason",
        "readyReplicas",
        "containerStatuses",
        "observedGeneration",
        "updateStrategy",
        "rollingUpdate",
        "partition",
        "name",
    ]);
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(key.clone(), inner, 0..4)
                .prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Value>()),
        ]
    })
}

proptest! {
    /// No input, however odd, makes a rule panic, and deletion always wins.
    #[test]
    fn judges_anything(
        spec in any_json(), status in any_json(), deleting in any::<bool>(),
        kind in prop::sample::select(vec![("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"),
            ("apps/v1", "ReplicaSet"), ("v1", "Pod"), ("batch/v1", "Job"), ("v1", "Service"), ("example.com/v1", "Widget"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("v1", "PersistentVolumeClaim")]),
    ) {
        let mut any = object(kind.0, kind.1, json!({}));
        any["spec"] = spec;
        any["status"] = status;
        if deleting {
            any["metadata"]["deletionTimestamp"] = "2026-06-15T09:00:00Z".into();
        }
        let readiness = judge(&any, now());
        prop_assert_eq!(readiness == Readiness::Terminating, deleting);
        let _ = (error_wait(&any), pod_selector(&any), explain(readiness, &[any.clone()]));
    }
}
