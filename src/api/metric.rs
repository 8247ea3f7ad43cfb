//! Metric sources, thresholds and error budgets (api 4.4, 4.5).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Duration, LocalRef};

/// Where a number comes from. Exactly one of prometheus and webhook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSource {
    /// Asks a Prometheus server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSource>,
    /// Asks any endpoint that answers JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSource>,
}

/// An instant query to a Prometheus server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusSource {
    /// Base address of the server, for example http://prometheus.monitoring:9090.
    pub address: String,
    /// PromQL query whose result is a scalar or exactly one sample.
    pub query: String,
    /// Secret whose token key is sent as bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
}

/// A GET request whose JSON answer holds the number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSource {
    /// JSONPath that selects exactly one number or numeric string, for example {.budget.remaining}.
    pub json_path: String,
    /// Secret whose token key is sent as bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
    /// Address to fetch.
    pub url: String,
}

/// Bounds a number must keep. Both are inclusive; at least one is needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// Highest good value, as a decimal string such as "0.01".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// Lowest good value, as a decimal string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
}

/// Holds new revisions while an error budget is spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBudget {
    /// Records a freeze in status and metrics but holds nothing. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub dry_run: bool,
    /// Freezes while the remaining budget is below this decimal string, for example "0.1".
    pub freeze_threshold: String,
    /// How often a held budget is asked again. Defaults to spec.retryInterval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// What happens while the source cannot be read: Allow (the default) proceeds, Hold waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_source_error: Option<SourceErrorPolicy>,
    /// Once frozen, stays frozen until the remaining budget is at least this decimal string.
    /// Defaults to freezeThreshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_threshold: Option<String>,
    /// The remaining budget as a number: 1 is full, 0 is spent, less is overspent.
    pub source: MetricSource,
}

wire_enum! {
    /// What an error budget does while its source cannot be read.
    SourceErrorPolicy {
        Allow = "Allow",
        Hold = "Hold",
    }
}
