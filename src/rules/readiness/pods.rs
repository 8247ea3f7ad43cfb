//! The pods behind a workload: which of them are stuck, and what that says about the workload (run 27.3).

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Readiness, judge, kinds, text};

/// Reasons of a waiting container that only a change of something can end.
const ERROR_WAITS: [&str; 14] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "ImageInspectError",
    "InvalidImageName",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
];

/// A container that waits for an error to go away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorWait {
    pub pod: String,
    pub container: String,
    /// For example `ImagePullBackOff`.
    pub reason: String,
    /// The kubelet's words; may be empty.
    pub message: String,
}

impl fmt::Display for ErrorWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} container {}: {}", self.pod, self.container, self.reason)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// The first container of a pod (init containers first) that is in an error wait. A pod that is being
/// deleted has none. An object with such a pod counts as stuck (decisions 3.4).
pub fn error_wait(pod: &Value) -> Option<ErrorWait> {
    if text(pod, "/metadata/deletionTimestamp").is_some() {
        return None;
    }
    [
        "/status/initContainerStatuses",
        "/status/containerStatuses",
        "/status/ephemeralContainerStatuses",
    ]
    .iter()
    .filter_map(|list| pod.pointer(list)?.as_array())
    .flatten()
    .find_map(|status| {
        let reason = text(status, "/state/waiting/reason")?;
        ERROR_WAITS.contains(&reason).then(|| ErrorWait {
            pod: text(pod, "/metadata/name").unwrap_or_default().to_owned(),
            container: text(status, "/name").unwrap_or_default().to_owned(),
            reason: reason.to_owned(),
            message: text(status, "/state/waiting/message").unwrap_or_default().to_owned(),
        })
    })
}

/// Looks through a ReplicaSet or StatefulSet that is in progress to its pods: a pod that failed for good
/// fails the workload. A pod that is being deleted or only lacks a node does not (run 27.3). The failure
/// stays recoverable: one crashing pod may still come up within the stage's bound.
pub fn look_through(workload: &Value, own: Readiness, pods: &[Value], now: Timestamp) -> Readiness {
    let looks = matches!(
        kinds::group_kind(workload),
        ("apps" | "extensions", "ReplicaSet") | ("apps", "StatefulSet")
    );
    if !looks || !matches!(own, Readiness::InProgress { .. }) {
        return own;
    }
    let failed = pods
        .iter()
        .filter(|pod| !kinds::is_unschedulable(pod))
        .find_map(|pod| match judge(pod, now) {
            Readiness::Failed { message, .. } => {
                let name = text(pod, "/metadata/name").unwrap_or_default();
                Some(Readiness::failed_for_now(format!("pod {name}: {message}")))
            }
            _ => None,
        });
    failed.unwrap_or(own)
}

/// Adds to an `InProgress` message what the workload's pods wait for, so that the person reading it need not
/// look for the pod. Does not change the verdict.
pub fn explain(own: Readiness, pods: &[Value]) -> Readiness {
    match own {
        Readiness::InProgress { message } => {
            let message = match pods.iter().find_map(error_wait) {
                Some(wait) => format!("{message} ({wait})"),
                None => message,
            };
            Readiness::InProgress { message }
        }
        other => other,
    }
}

/// The label selector of a workload's pods (`spec.selector`) as query text, for example
/// `app=web,tier in (a,b)`. None where the object has no usable selector.
pub fn pod_selector(workload: &Value) -> Option<String> {
    let selector = workload.pointer("/spec/selector")?.as_object()?;
    let mut terms = match_labels(selector)?;
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for expression in expressions.into_iter().flatten() {
        terms.push(match_expression(expression)?);
    }
    (!terms.is_empty()).then(|| terms.join(","))
}

fn match_labels(selector: &Map<String, Value>) -> Option<Vec<String>> {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    labels
        .into_iter()
        .flatten()
        .map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect()
}

fn match_expression(expression: &Value) -> Option<String> {
    let key = text(expression, "/key")?;
    let values: Vec<&str> = expression
        .get("values")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match text(expression, "/operator")? {
        "In" => Some(format!("{key} in ({})", values.join(","))),
        "NotIn" => Some(format!("{key} notin ({})", values.join(","))),
        "Exists" => Some(key.to_owned()),
        "DoesNotExist" => Some(format!("!{key}")),
        _ => None,
    }
}
