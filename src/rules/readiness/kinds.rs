//! The kstatus rules of the kinds that have one of their own (run 27.2); the first rule that holds decides.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Readiness, conditions, number, text};

/// How long a pod may be unschedulable before it counts as failed.
const SCHEDULE_WINDOW: SignedDuration = SignedDuration::from_secs(15);

/// The value of `progressDeadlineSeconds` that switches the deadline off.
const NO_PROGRESS_DEADLINE: i64 = i32::MAX as i64;

/// The verdict of the kind's own rule, or none where the kind has no rule.
pub(super) fn judge(object: &Value, now: Timestamp) -> Option<Readiness> {
    let (group, kind) = group_kind(object);
    let verdict = match (group, kind) {
        ("", "ConfigMap" | "Secret") | ("batch", "CronJob") | ("policy", "PodDisruptionBudget") => Readiness::Current,
        ("", "Service") => service(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("", "Pod") => pod(object, now),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object),
        ("batch", "Job") => job(object),
        ("apps" | "extensions", "Deployment") => deployment(object),
        ("apps" | "extensions", "ReplicaSet") => replica_set(object),
        ("apps" | "extensions", "DaemonSet") => daemon_set(object),
        ("apps", "StatefulSet") => stateful_set(object),
        _ => return None,
    };
    Some(verdict)
}

/// True for a Job that the cluster deletes on its own after it finished.
pub(super) fn deletes_itself(object: &Value) -> bool {
    group_kind(object) == ("batch", "Job") && number(object, "/spec/ttlSecondsAfterFinished").is_some()
}

pub(super) fn group_kind(object: &Value) -> (&str, &str) {
    let api_version = text(object, "/apiVersion").unwrap_or_default();
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    (group, text(object, "/kind").unwrap_or_default())
}

fn count(object: &Value, pointer: &str) -> i64 {
    number(object, pointer).unwrap_or(0)
}

/// `spec.replicas`; the controllers take 1 where it is absent.
fn wanted_replicas(object: &Value) -> i64 {
    number(object, "/spec/replicas").unwrap_or(1)
}

/// In progress with "`what`: have/want" where fewer than wanted are there.
fn short_of(what: &str, have: i64, want: i64) -> Option<Readiness> {
    (want > have).then(|| Readiness::waiting(format!("{what}: {have}/{want}")))
}

fn surplus(have: i64, want: i64) -> Option<Readiness> {
    (have > want).then(|| Readiness::waiting(format!("pending termination: {}", have.saturating_sub(want))))
}

fn service(object: &Value) -> Readiness {
    let balanced = text(object, "/spec/type") == Some("LoadBalancer");
    let address = text(object, "/spec/clusterIP").unwrap_or_default();
    if balanced && address.is_empty() {
        Readiness::waiting("the LoadBalancer Service has no cluster IP yet")
    } else {
        Readiness::Current
    }
}

fn claim(object: &Value) -> Readiness {
    match text(object, "/status/phase") {
        Some("Bound") => Readiness::Current,
        phase => Readiness::waiting(format!("not bound, phase {}", phase.unwrap_or("not reported yet"))),
    }
}

fn definition(object: &Value) -> Readiness {
    for condition in conditions(object) {
        match condition.kind {
            "NamesAccepted" if condition.is_false() => return Readiness::failed(condition.why()),
            "Established" if condition.is_true() => return Readiness::Current,
            "Established" if condition.is_false() && condition.reason != "Installing" => {
                return Readiness::failed(condition.why());
            }
            _ => {}
        }
    }
    Readiness::waiting("not established yet")
}

fn job(object: &Value) -> Readiness {
    if object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true) {
        return Readiness::Current;
    }
    for condition in conditions(object).filter(|one| one.is_true()) {
        match condition.kind {
            "Complete" => return Readiness::Current,
            "Failed" => return Readiness::failed(condition.why()),
            _ => {}
        }
    }
    let parallelism = number(object, "/spec/parallelism").unwrap_or(1);
    let completions = number(object, "/spec/completions").unwrap_or(parallelism);
    let started = text(object, "/status/startTime").is_some_and(|at| !at.is_empty());
    if !started {
        return Readiness::waiting("not started");
    }
    Readiness::waiting(format!(
        "succeeded: {}/{completions}, active: {}, failed: {}",
        count(object, "/status/succeeded"),
        count(object, "/status/active"),
        count(object, "/status/failed"),
    ))
}

fn pod(object: &Value, now: Timestamp) -> Readiness {
    match text(object, "/status/phase").unwrap_or_default() {
        // An unsuccessful end is an end too: an evicted pod must not fail the workload that replaced it.
        "Succeeded" | "Failed" => Readiness::Current,
        "Running" => running_pod(object),
        "Pending" => pending_pod(object, now),
        "" => Readiness::waiting("no phase yet"),
        other => Readiness::Unknown {
            message: format!("unknown pod phase {other:?}"),
        },
    }
}

fn running_pod(object: &Value) -> Readiness {
    if conditions(object).any(|one| one.kind == "Ready" && one.is_true()) {
        return Readiness::Current;
    }
    let looping = crash_looping_containers(object);
    if looping.is_empty() {
        Readiness::waiting("running but not ready")
    } else {
        Readiness::failed_for_now(format!("CrashLoopBackOff in {}", looping.join(", ")))
    }
}

/// Names of the (regular) containers that wait in a crash loop.
fn crash_looping_containers(object: &Value) -> Vec<&str> {
    let statuses = object.pointer("/status/containerStatuses").and_then(Value::as_array);
    statuses
        .into_iter()
        .flatten()
        .filter(|one| text(one, "/state/waiting/reason") == Some("CrashLoopBackOff"))
        .filter_map(|one| text(one, "/name"))
        .collect()
}

fn pending_pod(object: &Value, now: Timestamp) -> Readiness {
    if !is_unschedulable(object) {
        return Readiness::waiting("pending");
    }
    let created = text(object, "/metadata/creationTimestamp")
        .and_then(|at| at.parse::<Timestamp>().ok())
        .unwrap_or(Timestamp::UNIX_EPOCH);
    if now.duration_since(created) < SCHEDULE_WINDOW {
        Readiness::waiting("not scheduled yet")
    } else {
        let why = conditions(object)
            .find(|one| one.kind == "PodScheduled")
            .map(|one| one.why());
        Readiness::failed_for_now(why.unwrap_or_default())
    }
}

/// True for a pending pod the scheduler found no node for.
pub(super) fn is_unschedulable(pod: &Value) -> bool {
    text(pod, "/status/phase") == Some("Pending")
        && conditions(pod).any(|one| one.kind == "PodScheduled" && one.is_false() && one.reason == "Unschedulable")
}

fn deployment(object: &Value) -> Readiness {
    let deadline = number(object, "/spec/progressDeadlineSeconds").unwrap_or(NO_PROGRESS_DEADLINE);
    let mut progressing = deadline == NO_PROGRESS_DEADLINE;
    let mut available = false;
    for condition in conditions(object) {
        match condition.kind {
            "Progressing" if condition.reason == "ProgressDeadlineExceeded" => {
                return Readiness::failed_for_now(condition.why());
            }
            "Progressing" if condition.reason == "NewReplicaSetAvailable" => {
                progressing |= condition.is_true();
            }
            "Available" => available |= condition.is_true(),
            _ => {}
        }
    }
    let want = wanted_replicas(object);
    let have = count(object, "/status/replicas");
    let updated = count(object, "/status/updatedReplicas");
    short_of("replicas", have, want)
        .or_else(|| short_of("updated", updated, want))
        .or_else(|| surplus(have, want))
        .or_else(|| short_of("available", count(object, "/status/availableReplicas"), updated))
        .or_else(|| short_of("ready", count(object, "/status/readyReplicas"), want))
        .or_else(|| (!progressing).then(|| Readiness::waiting("its new ReplicaSet is not available")))
        .or_else(|| (!available).then(|| Readiness::waiting("the Available condition is not True")))
        .unwrap_or(Readiness::Current)
}

fn replica_set(object: &Value) -> Readiness {
    let failure = conditions(object).find(|one| one.kind == "ReplicaFailure" && one.is_true());
    let want = wanted_replicas(object);
    failure
        .map(|one| Readiness::waiting(one.why()))
        .or_else(|| short_of("labelled", count(object, "/status/fullyLabeledReplicas"), want))
        .or_else(|| short_of("available", count(object, "/status/availableReplicas"), want))
        .or_else(|| short_of("ready", count(object, "/status/readyReplicas"), want))
        .or_else(|| surplus(count(object, "/status/replicas"), want))
        .unwrap_or(Readiness::Current)
}

fn stateful_set(object: &Value) -> Readiness {
    if text(object, "/spec/updateStrategy/type") == Some("OnDelete") {
        return Readiness::Current;
    }
    let want = wanted_replicas(object);
    let have = count(object, "/status/replicas");
    short_of("replicas", have, want)
        .or_else(|| short_of("ready", count(object, "/status/readyReplicas"), want))
        .or_else(|| surplus(have, want))
        .or_else(|| stateful_set_update(object, want))
        .unwrap_or(Readiness::Current)
}

fn stateful_set_update(object: &Value, want: i64) -> Option<Readiness> {
    if let Some(partition) = number(object, "/spec/updateStrategy/rollingUpdate/partition") {
        let updated = count(object, "/status/updatedReplicas");
        return short_of("updated", updated, want.saturating_sub(partition));
    }
    let current = text(object, "/status/currentRevision").unwrap_or_default();
    let update = text(object, "/status/updateRevision").unwrap_or_default();
    short_of("current", count(object, "/status/currentReplicas"), want).or_else(|| {
        (current != update).then(|| Readiness::waiting(format!("revision {current:?} is being replaced by {update:?}")))
    })
}

fn daemon_set(object: &Value) -> Readiness {
    let observed =
        number(object, "/metadata/generation").is_some() && number(object, "/status/observedGeneration").is_some();
    if !observed {
        return Readiness::waiting("its generation is not observed yet");
    }
    let Some(want) = number(object, "/status/desiredNumberScheduled") else {
        return Readiness::waiting("the number of nodes to run on is not known yet");
    };
    short_of("scheduled", count(object, "/status/currentNumberScheduled"), want)
        .or_else(|| short_of("updated", count(object, "/status/updatedNumberScheduled"), want))
        .or_else(|| short_of("available", count(object, "/status/numberAvailable"), want))
        .or_else(|| short_of("ready", count(object, "/status/numberReady"), want))
        .unwrap_or(Readiness::Current)
}
