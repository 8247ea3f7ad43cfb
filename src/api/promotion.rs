//! The promotion gate of a stage (api 5.7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Duration, LabelSelector, saturating_i32};
use super::metric::{MetricSource, Threshold};

/// What must hold after a stage is ready before the next one begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promotion {
    /// Metrics that must stay within bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,
    /// Warning events of pods that must stay rare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_gate: Option<EventGate>,
    /// Ends a soak early while a metric is good. Needs soak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_track: Option<FastTrack>,
    /// Waits for the annotation stages.metio.wtf/promote to name this stage. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub require_manual_promotion: bool,
    /// Container restarts of pods that must stay rare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_gate: Option<RestartGate>,
    /// How long the ready stage must stay healthy, for example 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<Duration>,
}

/// Metric checks that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Analysis {
    /// The checks; all must hold.
    #[schemars(length(min = 1))]
    pub checks: Vec<AnalysisCheck>,
    /// Records results but holds nothing. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub dry_run: bool,
    /// Failed rounds in a row that are tolerated; one more breaches the gate. Defaults to 0.
    #[serde(
        default,
        deserialize_with = "saturating_i32",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0))]
    pub failure_limit: Option<i32>,
    /// How often the checks are evaluated. Defaults to spec.retryInterval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// What a breach does: Hold (the default), or Rollback, which needs spec.rollbackOnFailure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<GateFailurePolicy>,
    /// What happens while a source cannot be read: Hold (the default) waits, Allow lets the check pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_source_error: Option<AnalysisSourceErrorPolicy>,
}

/// One metric and its bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisCheck {
    /// Name of the check, unique in the analysis.
    pub name: String,
    /// Where the number comes from.
    pub source: MetricSource,
    /// Bounds the number must keep.
    pub threshold: Threshold,
}

wire_enum! {
    /// What a breached gate does.
    GateFailurePolicy {
        Hold = "Hold",
        Rollback = "Rollback",
    }
}

wire_enum! {
    /// What an analysis does while a source cannot be read. Its default is the opposite of an error
    /// budget's.
    AnalysisSourceErrorPolicy {
        Hold = "Hold",
        Allow = "Allow",
    }
}

/// Ends a soak early while a metric is good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FastTrack {
    /// Shortest soak before it may end early. Defaults to 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Duration>,
    /// Highest value that lets the soak end early, inclusive, as a decimal string.
    pub max: String,
    /// Where the number comes from.
    pub source: MetricSource,
}

/// Holds while containers of pods restart too often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartGate {
    /// The pods to look at and how many restarts they may have.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub checks: Vec<RestartCheck>,
    /// What a breach does unless the check says otherwise: Hold (the default) or Rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<GateFailurePolicy>,
}

/// One group of pods and the restarts it may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartCheck {
    /// Restarts since the last promotion that are tolerated. Defaults to 0.
    #[serde(
        default,
        deserialize_with = "saturating_i32",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0))]
    pub max_restarts: Option<i32>,
    /// Name of the check, unique in the gate.
    pub name: String,
    /// What a breach does. Defaults to the gate's onFailure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<GateFailurePolicy>,
    /// Pods in the namespace of the StageSet on the target cluster; must not be empty.
    pub selector: LabelSelector,
}

/// Holds while pods have too many Warning events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventGate {
    /// The pods to look at and how many events they may have.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub checks: Vec<EventCheck>,
    /// What a breach does unless the check says otherwise: Hold (the default) or Rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<GateFailurePolicy>,
}

/// One group of pods and the Warning events it may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventCheck {
    /// Events that are tolerated, repeats counted. Defaults to 0.
    #[serde(
        default,
        deserialize_with = "saturating_i32",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0))]
    pub max_events: Option<i32>,
    /// Name of the check, unique in the gate.
    pub name: String,
    /// What a breach does. Defaults to the gate's onFailure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<GateFailurePolicy>,
    /// Event reasons that count, for example BackOff.
    #[schemars(length(min = 1))]
    pub reasons: Vec<String>,
    /// Pods in the namespace of the StageSet on the target cluster; must not be empty.
    pub selector: LabelSelector,
}
