//! The promotion gate of a stage: rules P1 to P19.

use std::collections::HashSet;

use crate::api::{Analysis, EventGate, FastTrack, GateFailurePolicy, LabelSelector, Promotion, RestartGate};
use crate::rules::duration;

use super::report::Report;
use super::{metrics, selectors};

pub(super) fn check(report: &mut Report, path: &str, stage: &str, promotion: &Promotion) {
    report.duration(&format!("{path}.soak"), promotion.soak.as_ref());
    if let Some(analysis) = &promotion.analysis {
        analyse(report, &format!("{path}.analysis"), stage, analysis);
    }
    if let Some(fast_track) = &promotion.fast_track {
        fast(report, path, stage, promotion, fast_track);
    }
    if let Some(gate) = &promotion.restart_gate {
        restarts(report, &format!("{path}.restartGate"), stage, gate);
    }
    if let Some(gate) = &promotion.event_gate {
        events(report, &format!("{path}.eventGate"), stage, gate);
    }
}

fn analyse(report: &mut Report, path: &str, stage: &str, analysis: &Analysis) {
    if analysis.checks.is_empty() {
        report.invalid(
            format!("{path}.checks"),
            format!("stage \"{stage}\": an analysis needs at least one check"),
        );
    }
    let mut seen = HashSet::new();
    for (index, check) in analysis.checks.iter().enumerate() {
        let path = format!("{path}.checks[{index}]");
        check_name(report, &path, stage, &check.name, &mut seen);
        metrics::source(report, &format!("{path}.source"), &check.source);
        metrics::threshold(report, &format!("{path}.threshold"), &check.threshold);
    }
    report.duration(&format!("{path}.interval"), analysis.interval.as_ref());
    report.known(&format!("{path}.onFailure"), analysis.on_failure.as_ref());
    report.known(&format!("{path}.onSourceError"), analysis.on_source_error.as_ref());
    count(report, &format!("{path}.failureLimit"), stage, analysis.failure_limit);
}

fn fast(report: &mut Report, path: &str, stage: &str, promotion: &Promotion, fast_track: &FastTrack) {
    // A malformed soak is reported as that.
    let soaks = promotion
        .soak
        .as_ref()
        .is_some_and(|soak| !matches!(duration::positive(soak.as_str()), Ok(None)));
    let path = format!("{path}.fastTrack");
    if !soaks {
        report.invalid(
            path.clone(),
            format!("stage \"{stage}\": fastTrack ends a soak early, so it needs a positive soak"),
        );
    }
    metrics::source(report, &format!("{path}.source"), &fast_track.source);
    metrics::number(report, &format!("{path}.max"), &fast_track.max);
    report.duration(&format!("{path}.after"), fast_track.after.as_ref());
}

/// One check of a gate over pods, whatever it counts.
struct PodCheck<'a> {
    name: &'a str,
    on_failure: Option<&'a GateFailurePolicy>,
    selector: &'a LabelSelector,
}

fn restarts(report: &mut Report, path: &str, stage: &str, gate: &RestartGate) {
    let checks = gate.checks.iter().map(|check| PodCheck {
        name: &check.name,
        on_failure: check.on_failure.as_ref(),
        selector: &check.selector,
    });
    pods(report, path, stage, gate.on_failure.as_ref(), checks.collect());
    for (index, check) in gate.checks.iter().enumerate() {
        count(
            report,
            &format!("{path}.checks[{index}].maxRestarts"),
            stage,
            check.max_restarts,
        );
    }
}

fn events(report: &mut Report, path: &str, stage: &str, gate: &EventGate) {
    let checks = gate.checks.iter().map(|check| PodCheck {
        name: &check.name,
        on_failure: check.on_failure.as_ref(),
        selector: &check.selector,
    });
    pods(report, path, stage, gate.on_failure.as_ref(), checks.collect());
    for (index, check) in gate.checks.iter().enumerate() {
        let path = format!("{path}.checks[{index}]");
        if check.reasons.is_empty() {
            let name = &check.name;
            report.invalid(
                format!("{path}.reasons"),
                format!("stage \"{stage}\", check \"{name}\": name at least one event reason, for example BackOff"),
            );
        }
        count(report, &format!("{path}.maxEvents"), stage, check.max_events);
    }
}

fn pods(
    report: &mut Report,
    path: &str,
    stage: &str,
    on_failure: Option<&GateFailurePolicy>,
    checks: Vec<PodCheck<'_>>,
) {
    report.known(&format!("{path}.onFailure"), on_failure);
    if checks.is_empty() {
        report.invalid(
            format!("{path}.checks"),
            format!("stage \"{stage}\": a gate needs at least one check"),
        );
    }
    let mut seen = HashSet::new();
    for (index, check) in checks.iter().enumerate() {
        let path = format!("{path}.checks[{index}]");
        check_name(report, &path, stage, check.name, &mut seen);
        report.known(&format!("{path}.onFailure"), check.on_failure);
        let owner = format!("stage \"{stage}\", check \"{}\"", check.name);
        selectors::structured(report, &format!("{path}.selector"), &owner, check.selector);
    }
}

fn check_name<'a>(report: &mut Report, path: &str, stage: &str, name: &'a str, seen: &mut HashSet<&'a str>) {
    let path = format!("{path}.name");
    if report.non_empty(&path, name, &format!("stage \"{stage}\": every check")) && !seen.insert(name) {
        report.invalid(
            path,
            format!("stage \"{stage}\": the check name \"{name}\" is used twice; names are unique in a gate"),
        );
    }
}

fn count(report: &mut Report, path: &str, stage: &str, number: Option<i32>) {
    if let Some(number) = number.filter(|number| *number < 0) {
        report.invalid(
            path,
            format!("stage \"{stage}\": {number} is negative; allowed: 0 or more"),
        );
    }
}
