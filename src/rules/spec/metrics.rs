//! Metric sources, decimal numbers and error budgets: rules G1 to G7.

use url::Url;

use crate::api::common::non_empty;
use crate::api::{ErrorBudget, MetricSource, PrometheusSource, Threshold, WebhookSource};

use super::report::Report;
use super::{access, jsonpath};

/// A finite number that was carried as a string.
pub type Decimal = f64;

/// Reads a decimal string. Infinities and NaN are refused: no comparison with NaN ever holds, so a
/// threshold of that value would never act.
pub fn decimal(text: &str) -> Option<Decimal> {
    let is_number = text
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'));
    text.parse::<f64>()
        .ok()
        .filter(|number| is_number && number.is_finite())
}

/// Reports a decimal string that is none; the number otherwise.
pub(super) fn number(report: &mut Report, path: &str, text: &str) -> Option<Decimal> {
    let number = decimal(text);
    if number.is_none() {
        report.invalid(
            path,
            format!("\"{text}\" is no decimal number; write for example \"0.05\""),
        );
    }
    number
}

pub(super) fn error_budget(report: &mut Report, path: &str, budget: &ErrorBudget) {
    source(report, &format!("{path}.source"), &budget.source);
    let freeze = number(report, &format!("{path}.freezeThreshold"), &budget.freeze_threshold);
    if let Some(text) = non_empty(&budget.resume_threshold) {
        let resume_path = format!("{path}.resumeThreshold");
        let resume = number(report, &resume_path, text);
        if let (Some(freeze), Some(resume)) = (freeze, resume)
            && resume < freeze
        {
            let frozen = &budget.freeze_threshold;
            report.invalid(
                resume_path,
                format!("resumeThreshold {text} is below freezeThreshold {frozen}; it must be at least that"),
            );
        }
    }
    report.known(&format!("{path}.onSourceError"), budget.on_source_error.as_ref());
    report.duration(&format!("{path}.interval"), budget.interval.as_ref());
}

pub(super) fn source(report: &mut Report, path: &str, source: &MetricSource) {
    let found = usize::from(source.prometheus.is_some()) + usize::from(source.webhook.is_some());
    if found != 1 {
        report.invalid(
            path,
            format!("set exactly one of prometheus and webhook, found {found}"),
        );
    }
    if let Some(prometheus) = &source.prometheus {
        prometheus_source(report, &format!("{path}.prometheus"), prometheus);
    }
    if let Some(webhook) = &source.webhook {
        webhook_source(report, &format!("{path}.webhook"), webhook);
    }
}

fn prometheus_source(report: &mut Report, path: &str, source: &PrometheusSource) {
    http_url(report, &format!("{path}.address"), &source.address);
    report.non_empty(&format!("{path}.query"), &source.query, "a Prometheus source");
    if let Some(reference) = &source.secret_ref {
        access::local(report, &format!("{path}.secretRef"), reference);
    }
}

fn webhook_source(report: &mut Report, path: &str, source: &WebhookSource) {
    http_url(report, &format!("{path}.url"), &source.url);
    let json_path = format!("{path}.jsonPath");
    if report.non_empty(&json_path, &source.json_path, "a webhook source")
        && let Err(cause) = jsonpath::check(&source.json_path)
    {
        report.invalid(json_path, format!("\"{}\" is no JSONPath: {cause}", source.json_path));
    }
    if let Some(reference) = &source.secret_ref {
        access::local(report, &format!("{path}.secretRef"), reference);
    }
}

/// An address must be http or https with a host. The message shows no address that may hold a password.
pub(super) fn http_url(report: &mut Report, path: &str, text: &str) {
    let shown = if text.contains('@') { "the address" } else { text };
    match Url::parse(text) {
        Err(cause) => report.invalid(
            path,
            format!("{shown:?} is no URL ({cause}); write for example https://example.com/hook"),
        ),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            report.invalid(
                path,
                format!("scheme \"{}\" is not supported; use http or https", url.scheme()),
            );
        }
        Ok(_) => {}
    }
}

/// A threshold needs a bound, and one below the other.
pub(super) fn threshold(report: &mut Report, path: &str, threshold: &Threshold) {
    let mut bound = |field: &str, text: &Option<String>| {
        non_empty(text).and_then(|text| number(report, &format!("{path}.{field}"), text))
    };
    let (min, max) = (bound("min", &threshold.min), bound("max", &threshold.max));
    if non_empty(&threshold.min).is_none() && non_empty(&threshold.max).is_none() {
        report.invalid(path, "set min, max or both; without a bound the check always holds");
    }
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        report.invalid(path, format!("min {min} is above max {max}; no value can hold"));
    }
}
