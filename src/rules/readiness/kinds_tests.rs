use rstest::rstest;
use serde_json::{Value, json};

use super::tests::{check, condition, now, object};
use super::*;

/// Rules: run 27.2 simple
#[rstest]
#[case("v1", "ConfigMap")]
#[case("v1", "Secret")]
#[case("batch/v1", "CronJob")]
#[case("policy/v1", "PodDisruptionBudget")]
fn some_kinds_are_always_current(#[case] api_version: &str, #[case] kind: &str) {
    let not_ready = json!({"status": {"conditions": [condition("Ready", "False", "No")]}});
    check(&object(api_version, kind, not_ready), "Current", "");
}

/// Rules: run 27.2 rest
#[rstest]
#[case("v1", "Namespace")]
#[case("apiregistration.k8s.io/v1", "APIService")]
#[case("autoscaling/v2", "HorizontalPodAutoscaler")]
#[case("networking.k8s.io/v1", "Ingress")]
#[case("v1", "PersistentVolume")]
fn kinds_without_a_rule_are_current_at_once(#[case] api_version: &str, #[case] kind: &str) {
    let unavailable = json!({"status": {"conditions": [condition("Available", "False", "No")]}});
    check(&object(api_version, kind, unavailable), "Current", "");
}

#[test]
fn a_kind_of_the_same_name_in_another_group_has_no_rule() {
    let knative =
        json!({"spec": {"type": "LoadBalancer"}, "status": {"conditions": [condition("Ready", "False", "No")]}});
    check(
        &object("serving.knative.dev/v1", "Service", knative),
        "InProgress",
        "No: because",
    );
    check(&object("batch.volcano.sh/v1alpha1", "Job", json!({})), "Current", "");
    check(&object("example.com/v1", "Deployment", json!({})), "Current", "");
}

/// Rules: run 27.2 service
#[test]
fn services() {
    let service = |spec| object("v1", "Service", json!({"spec": spec}));
    check(&service(json!({})), "Current", "");
    check(&service(json!({"type": "ClusterIP"})), "Current", "");
    check(&service(json!({"type": "ExternalName"})), "Current", "");
    check(
        &service(json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1"})),
        "Current",
        "",
    );
    let waiting = "the LoadBalancer Service has no cluster IP yet";
    check(&service(json!({"type": "LoadBalancer"})), "InProgress", waiting);
    check(
        &service(json!({"type": "LoadBalancer", "clusterIP": ""})),
        "InProgress",
        waiting,
    );
}

/// Rules: run 27.2 claim
#[test]
fn claims() {
    let claim = |status| object("v1", "PersistentVolumeClaim", json!({"status": status}));
    check(&claim(json!({"phase": "Bound"})), "Current", "");
    check(
        &claim(json!({"phase": "Pending"})),
        "InProgress",
        "not bound, phase Pending",
    );
    check(&claim(json!({"phase": "Lost"})), "InProgress", "not bound, phase Lost");
    check(&claim(json!({})), "InProgress", "not bound, phase not reported yet");
}

/// Rules: run 27.2 crd
#[rstest]
#[case(&[("NamesAccepted", "False", "Clash")], "Failed", "Clash: because")]
#[case(&[("Established", "False", "Installing")], "InProgress", "not established yet")]
#[case(&[("Established", "False", "NotAccepted")], "Failed", "NotAccepted: because")]
#[case(&[("NamesAccepted", "True", "Ok"), ("Established", "True", "Ok")], "Current", "")]
#[case(&[("Established", "True", "Ok"), ("NamesAccepted", "False", "Clash")], "Current", "")]
#[case(&[("Established", "Unknown", "Ok")], "InProgress", "not established yet")]
#[case(&[], "InProgress", "not established yet")]
fn definitions(#[case] list: &[(&str, &str, &str)], #[case] name: &str, #[case] message: &str) {
    let list: Vec<Value> = list.iter().map(|(k, s, r)| condition(k, s, r)).collect();
    let definition = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        json!({"status": {"conditions": list}}),
    );
    check(&definition, name, message);
}

/// Rules: run 27.2 job, run 27.4, run B12 jobs, decisions 11 job
#[test]
fn jobs() {
    let job = |spec, status| object("batch/v1", "Job", json!({"spec": spec, "status": status}));
    let ended = |kind| json!({"conditions": [condition(kind, "True", "Ended")]});
    check(&job(json!({}), ended("Complete")), "Current", "");
    check(&job(json!({}), ended("Failed")), "Failed", "Ended: because");
    check(&job(json!({"suspend": true}), json!({})), "Current", "");
    check(&job(json!({"suspend": false}), json!({})), "InProgress", "not started");
    let running = json!({"startTime": "2026-06-15T09:00:00Z", "active": 1, "failed": 2,
        "conditions": [condition("Failed", "False", "No"), condition("SuccessCriteriaMet", "True", "Ok")]});
    check(
        &job(json!({"completions": 3}), running.clone()),
        "InProgress",
        "succeeded: 0/3, active: 1, failed: 2",
    );
    check(
        &job(json!({"parallelism": 4}), running),
        "InProgress",
        "succeeded: 0/4, active: 1, failed: 2",
    );
    let failed = judge(&job(json!({}), ended("Failed")), now());
    assert!(matches!(failed, Readiness::Failed { recoverable: false, .. }));
}

/// Rules: run 27.4
#[test]
fn a_job_that_deleted_itself_is_done() {
    let with_ttl = object("batch/v1", "Job", json!({"spec": {"ttlSecondsAfterFinished": 60}}));
    let without = object("batch/v1", "Job", json!({"spec": {}}));
    assert_eq!(judge_observed(&with_ttl, None, now()), Readiness::Current);
    assert_eq!(judge_observed(&without, None, now()), Readiness::NotFound);
    let live = judge_observed(&with_ttl, Some(&without), now());
    assert_eq!(live.name(), "InProgress");
    let claim = object("v1", "Secret", json!({"spec": {"ttlSecondsAfterFinished": 60}}));
    assert_eq!(judge_observed(&claim, None, now()), Readiness::NotFound);
}

pub(super) fn pod(phase: &str, rest: Value) -> Value {
    let mut status = rest;
    if !phase.is_empty() {
        status["phase"] = phase.into();
    }
    object(
        "v1",
        "Pod",
        json!({"metadata": {"creationTimestamp": "2026-06-15T09:21:00Z"}, "status": status}),
    )
}

pub(super) fn waiting(container: &str, reason: &str) -> Value {
    json!({"name": container, "state": {"waiting": {"reason": reason, "message": "details"}}})
}

/// Rules: run 27.2 pod
#[test]
fn pods() {
    let ready = json!({"conditions": [condition("Ready", "True", "Ok")]});
    check(&pod("Succeeded", json!({})), "Current", "");
    check(&pod("Failed", json!({})), "Current", "");
    check(&pod("Running", ready), "Current", "");
    check(&pod("Running", json!({})), "InProgress", "running but not ready");
    let looping = json!({"containerStatuses": [waiting("a", "ContainerCreating"), waiting("b", "CrashLoopBackOff"), waiting("c", "CrashLoopBackOff")]});
    check(&pod("Running", looping), "Failed", "CrashLoopBackOff in b, c");
    let init = json!({"initContainerStatuses": [waiting("b", "CrashLoopBackOff")]});
    check(&pod("Running", init), "InProgress", "running but not ready");
    check(&pod("Pending", json!({})), "InProgress", "pending");
    check(&pod("", json!({})), "InProgress", "no phase yet");
    check(&pod("Unknown", json!({})), "Unknown", "unknown pod phase \"Unknown\"");
}

/// Rules: run 27.2 pod
#[rstest]
#[case("2026-06-15T09:20:50Z", "InProgress", "not scheduled yet")]
#[case("2026-06-15T09:20:49Z", "Failed", "Unschedulable: because")]
#[case("2026-06-14T00:00:00Z", "Failed", "Unschedulable: because")]
fn a_pod_has_fifteen_seconds_to_find_a_node(#[case] created: &str, #[case] name: &str, #[case] message: &str) {
    let mut unschedulable = pod(
        "Pending",
        json!({"conditions": [condition("PodScheduled", "False", "Unschedulable")]}),
    );
    unschedulable["metadata"]["creationTimestamp"] = created.into();
    check(&unschedulable, name, message);
    unschedulable["status"]["conditions"] = json!([condition("PodScheduled", "False", "Other")]);
    check(&unschedulable, "InProgress", "pending");
}

fn deployment_status(overrides: Value) -> Value {
    let mut status = json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3,
        "readyReplicas": 3, "availableReplicas": 3,
        "conditions": [condition("Progressing", "True", "NewReplicaSetAvailable"), condition("Available", "True", "Ok")]});
    for (key, value) in overrides.as_object().unwrap() {
        status[key] = value.clone();
    }
    status
}

/// Rules: run 27.2 deployment
#[rstest]
#[case(json!({}), "Current", "")]
#[case(json!({"replicas": 2}), "InProgress", "replicas: 2/3")]
#[case(json!({"updatedReplicas": 1}), "InProgress", "updated: 1/3")]
#[case(json!({"replicas": 4}), "InProgress", "pending termination: 1")]
#[case(json!({"availableReplicas": 1}), "InProgress", "available: 1/3")]
#[case(json!({"updatedReplicas": 4}), "InProgress", "available: 3/4")]
#[case(json!({"readyReplicas": 2}), "InProgress", "ready: 2/3")]
#[case(json!({"conditions": [condition("Progressing", "False", "ProgressDeadlineExceeded")]}), "Failed", "ProgressDeadlineExceeded: because")]
#[case(json!({"conditions": [condition("Progressing", "True", "ReplicaSetUpdated"), condition("Available", "True", "")]}), "InProgress", "its new ReplicaSet is not available")]
#[case(json!({"conditions": [condition("Progressing", "False", "NewReplicaSetAvailable"), condition("Available", "True", "")]}), "InProgress", "its new ReplicaSet is not available")]
#[case(json!({"conditions": [condition("Progressing", "True", "NewReplicaSetAvailable")]}), "InProgress", "the Available condition is not True")]
#[case(json!({"conditions": [condition("Progressing", "True", "NewReplicaSetAvailable"), condition("Available", "False", "")]}), "InProgress", "the Available condition is not True")]
fn deployments(#[case] status: Value, #[case] name: &str, #[case] message: &str) {
    for api_version in ["apps/v1", "extensions/v1beta1"] {
        let spec = json!({"replicas": 3, "progressDeadlineSeconds": 600});
        let deployment = object(
            api_version,
            "Deployment",
            json!({"spec": spec, "status": deployment_status(status.clone())}),
        );
        check(&deployment, name, message);
    }
}

#[test]
fn a_deployment_without_a_deadline_never_reports_progress() {
    for spec in [
        json!({"replicas": 3}),
        json!({"replicas": 3, "progressDeadlineSeconds": 2_147_483_647_i64}),
    ] {
        let status = deployment_status(json!({"conditions": [condition("Available", "True", "")]}));
        let deployment = object("apps/v1", "Deployment", json!({"spec": spec, "status": status}));
        check(&deployment, "Current", "");
    }
}

#[test]
fn replicas_default_to_one_and_may_be_zero() {
    let fresh = object("apps/v1", "Deployment", json!({"spec": {}}));
    check(&fresh, "InProgress", "replicas: 0/1");
    let scaled_down = object(
        "apps/v1",
        "Deployment",
        json!({"spec": {"replicas": 0}, "status": {"conditions": [condition("Available", "True", "")]}}),
    );
    check(&scaled_down, "Current", "");
    check(
        &object("apps/v1", "StatefulSet", json!({})),
        "InProgress",
        "replicas: 0/1",
    );
    check(
        &object("apps/v1", "ReplicaSet", json!({})),
        "InProgress",
        "labelled: 0/1",
    );
}

/// Rules: run 27.2 replicaset
#[rstest]
#[case(json!({}), "Current", "")]
#[case(json!({"conditions": [condition("ReplicaFailure", "True", "FailedCreate")]}), "InProgress", "FailedCreate: because")]
#[case(json!({"conditions": [condition("ReplicaFailure", "False", "FailedCreate")]}), "Current", "")]
#[case(json!({"fullyLabeledReplicas": 1}), "InProgress", "labelled: 1/2")]
#[case(json!({"availableReplicas": 1}), "InProgress", "available: 1/2")]
#[case(json!({"readyReplicas": 1}), "InProgress", "ready: 1/2")]
#[case(json!({"replicas": 4}), "InProgress", "pending termination: 2")]
fn replica_sets(#[case] overrides: Value, #[case] name: &str, #[case] message: &str) {
    let mut status = json!({"replicas": 2, "fullyLabeledReplicas": 2, "availableReplicas": 2, "readyReplicas": 2});
    for (key, value) in overrides.as_object().unwrap() {
        status[key] = value.clone();
    }
    let set = object(
        "apps/v1",
        "ReplicaSet",
        json!({"spec": {"replicas": 2}, "status": status}),
    );
    check(&set, name, message);
}

pub(super) fn stateful_set(strategy: Value, overrides: Value) -> Value {
    let mut status = json!({"replicas": 3, "readyReplicas": 3, "currentReplicas": 3, "updatedReplicas": 3,
        "currentRevision": "a", "updateRevision": "a"});
    for (key, value) in overrides.as_object().unwrap() {
        status[key] = value.clone();
    }
    object(
        "apps/v1",
        "StatefulSet",
        json!({"spec": {"replicas": 3, "updateStrategy": strategy}, "status": status}),
    )
}

/// Rules: run 27.2 statefulset
#[rstest]
#[case(json!({}), json!({}), "Current", "")]
#[case(json!({}), json!({"replicas": 2}), "InProgress", "replicas: 2/3")]
#[case(json!({}), json!({"readyReplicas": 2}), "InProgress", "ready: 2/3")]
#[case(json!({}), json!({"replicas": 5}), "InProgress", "pending termination: 2")]
#[case(json!({}), json!({"currentReplicas": 1}), "InProgress", "current: 1/3")]
#[case(json!({}), json!({"updateRevision": "b"}), "InProgress", "revision \"a\" is being replaced by \"b\"")]
#[case(json!({"type": "OnDelete"}), json!({"replicas": 0}), "Current", "")]
#[case(json!({"rollingUpdate": {"partition": 0}}), json!({"updatedReplicas": 2}), "InProgress", "updated: 2/3")]
#[case(json!({"rollingUpdate": {"partition": 1}}), json!({"updatedReplicas": 2}), "Current", "")]
#[case(json!({"rollingUpdate": {"partition": 0}}), json!({"currentReplicas": 0, "updateRevision": "b"}), "Current", "")]
#[case(json!({"rollingUpdate": {"partition": 9}}), json!({"updatedReplicas": 0}), "Current", "")]
#[case(json!({"rollingUpdate": {"partition": 0}}), json!({"readyReplicas": 2}), "InProgress", "ready: 2/3")]
fn stateful_sets(#[case] strategy: Value, #[case] status: Value, #[case] name: &str, #[case] message: &str) {
    check(&stateful_set(strategy, status), name, message);
}

/// Rules: run 27.2 daemonset
#[rstest]
#[case(json!({}), "Current", "")]
#[case(json!({"observedGeneration": null}), "InProgress", "its generation is not observed yet")]
#[case(json!({"desiredNumberScheduled": null}), "InProgress", "the number of nodes to run on is not known yet")]
#[case(json!({"currentNumberScheduled": 1}), "InProgress", "scheduled: 1/2")]
#[case(json!({"updatedNumberScheduled": 1}), "InProgress", "updated: 1/2")]
#[case(json!({"numberAvailable": 1}), "InProgress", "available: 1/2")]
#[case(json!({"numberReady": 1}), "InProgress", "ready: 1/2")]
#[case(json!({"desiredNumberScheduled": 0, "numberReady": 0}), "Current", "")]
fn daemon_sets(#[case] overrides: Value, #[case] name: &str, #[case] message: &str) {
    let mut status = json!({"observedGeneration": 2, "desiredNumberScheduled": 2, "currentNumberScheduled": 2,
        "updatedNumberScheduled": 2, "numberAvailable": 2, "numberReady": 2});
    for (key, value) in overrides.as_object().unwrap() {
        status[key] = value.clone();
    }
    check(
        &object("apps/v1", "DaemonSet", json!({"status": status})),
        name,
        message,
    );
}

#[test]
fn a_daemon_set_without_a_generation_was_not_observed() {
    let mut set = object(
        "apps/v1",
        "DaemonSet",
        json!({"status": {"observedGeneration": 1, "desiredNumberScheduled": 0}}),
    );
    set["metadata"].as_object_mut().unwrap().remove("generation");
    check(&set, "InProgress", "its generation is not observed yet");
}
