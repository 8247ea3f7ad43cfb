//! Stages: rules A1, A2, C1, C2, C3, T1, and the gaps of api 15 on conflict rules, patches, variables and
//! ignored paths.

use std::collections::HashMap;

use regex::Regex;

use crate::api::common::non_empty;
use crate::api::{
    ConflictAction, ConflictPolicy, ConflictRule, IgnoreRule, Patch, PostBuild, ReadyChecks, Selector, Stage,
    StageSetSpec,
};

use crate::rules::expr::ReadyExprs;

use super::report::Report;
use super::{access, actions, metrics, names, promotion, selectors, verbs};

pub(super) fn check(report: &mut Report, spec: &StageSetSpec) {
    if spec.stages.is_empty() {
        report.invalid(
            "spec.stages",
            "at least one stage is needed; to stop deploying, suspend or delete the StageSet",
        );
    }
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, stage) in spec.stages.iter().enumerate() {
        let path = format!("spec.stages[{index}]");
        report.syntax(&format!("{path}.name"), &stage.name, names::dns_label);
        if let Some(earlier) = seen.get(stage.name.as_str()) {
            let name = &stage.name;
            report.invalid(
                format!("{path}.name"),
                format!("the stage name \"{name}\" is already used by spec.stages[{earlier}]; stage names are unique"),
            );
        } else {
            seen.insert(&stage.name, index);
        }
        one(report, spec, &path, stage);
    }
}

fn one(report: &mut Report, spec: &StageSetSpec, path: &str, stage: &Stage) {
    let at = |field: &str| format!("{path}.{field}");
    verbs::source_ref(
        report,
        &at("sourceRef"),
        &format!("stage \"{}\"", stage.name),
        &stage.source_ref,
    );
    access::service_account(report, &at("serviceAccountName"), stage.service_account_name.as_ref());
    report.duration(&at("timeout"), stage.timeout.as_ref());
    report.known(&at("onTimeout"), stage.on_timeout.as_ref());
    if let Some(policy) = &stage.conflict_policy {
        conflicts(report, &at("conflictPolicy"), &stage.name, policy);
    }
    patches(report, &at("patches"), &stage.name, &stage.patches);
    if let Some(post_build) = &stage.post_build {
        variables(report, &at("postBuild"), post_build);
    }
    ignore_rules(report, &at("ignore"), &stage.ignore);
    if let Some(checks) = &stage.ready_checks {
        ready(report, &at("readyChecks"), &stage.name, checks);
    }
    if let Some(hooks) = &stage.actions {
        actions::stage(report, spec, &at("actions"), &stage.name, hooks);
    }
    if let Some(gate) = &stage.promotion {
        promotion::check(report, &at("promotion"), &stage.name, gate);
    }
    if let Some(budget) = &stage.error_budget {
        metrics::error_budget(report, &at("errorBudget"), budget);
    }
}

fn conflicts(report: &mut Report, path: &str, stage: &str, policy: &ConflictPolicy) {
    report.known(&format!("{path}.default"), policy.default.as_ref());
    for (index, rule) in policy.rules.iter().enumerate() {
        let path = format!("{path}.rules[{index}]");
        report.known(&format!("{path}.action"), Some(&rule.action));
        if rule.action == ConflictAction::Recreate && !rule.allow_data_loss && is_for_storage(rule) {
            let kind = rule.target.kind.as_deref().unwrap_or_default();
            report.invalid(
                path,
                format!("stage \"{stage}\": re-creating a {kind} deletes its data; set allowDataLoss to accept that, or choose another action"),
            );
        }
    }
}

/// A rule that names a claim or a volume. A broad rule is guarded when it meets one.
fn is_for_storage(rule: &ConflictRule) -> bool {
    let core = non_empty(&rule.target.api_version).is_none_or(|version| version == "v1");
    core && matches!(
        non_empty(&rule.target.kind),
        Some("PersistentVolumeClaim" | "PersistentVolume")
    )
}

fn patches(report: &mut Report, path: &str, stage: &str, patches: &[Patch]) {
    for (index, patch) in patches.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if patch.patch.trim().is_empty() {
            report.invalid(
                format!("{path}.patch"),
                format!("stage \"{stage}\": the patch is empty"),
            );
        }
        if let Some(target) = &patch.target {
            selector(report, &format!("{path}.target"), target);
        }
    }
}

fn selector(report: &mut Report, path: &str, target: &Selector) {
    for (field, text, values) in [
        ("labelSelector", &target.label_selector, true),
        ("annotationSelector", &target.annotation_selector, false),
    ] {
        if let Some(Err(cause)) = non_empty(text).map(|text| selectors::textual(text, values)) {
            report.invalid(format!("{path}.{field}"), cause.to_string());
        }
    }
    for (field, text) in [("name", &target.name), ("namespace", &target.namespace)] {
        if let Some(text) = non_empty(text)
            && Regex::new(text).is_err()
        {
            report.invalid(
                format!("{path}.{field}"),
                format!("\"{text}\" is no regular expression"),
            );
        }
    }
}

fn variables(report: &mut Report, path: &str, post_build: &PostBuild) {
    for name in post_build.substitute.keys() {
        report.syntax(&format!("{path}.substitute"), name, names::variable);
    }
    for (index, source) in post_build.substitute_from.iter().enumerate() {
        let path = format!("{path}.substituteFrom[{index}]");
        report.known(&format!("{path}.kind"), Some(&source.kind));
        let name_path = format!("{path}.name");
        if report.non_empty(&name_path, &source.name, &path) {
            report.syntax(&name_path, &source.name, names::dns_subdomain);
        }
    }
}

/// What an object is known by can never be left to others.
const IDENTITY: [&str; 5] = [
    "/apiVersion",
    "/kind",
    "/metadata",
    "/metadata/name",
    "/metadata/namespace",
];

pub(super) fn ignore_rules(report: &mut Report, path: &str, rules: &[IgnoreRule]) {
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if rule.paths.is_empty() {
            report.invalid(
                format!("{path}.paths"),
                "name at least one field, for example /spec/replicas",
            );
        }
        for (index, pointer) in rule.paths.iter().enumerate() {
            let path = format!("{path}.paths[{index}]");
            if !is_pointer(pointer) {
                report.invalid(
                    path,
                    format!("\"{pointer}\" is no JSON pointer (RFC 6901); write for example /spec/replicas"),
                );
            } else if IDENTITY.contains(&pointer.as_str()) {
                report.invalid(
                    path,
                    format!("\"{pointer}\" is part of what the object is known by and cannot be ignored"),
                );
            }
        }
        if let Some(target) = &rule.target {
            selector(report, &format!("{path}.target"), target);
        }
    }
}

/// A pointer to a field: not to the whole object, and every `~` an escape.
fn is_pointer(text: &str) -> bool {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.starts_with('/') && text.len() > 1 && escapes
}

fn ready(report: &mut Report, path: &str, stage: &str, checks: &ReadyChecks) {
    report.duration(&format!("{path}.timeout"), checks.timeout.as_ref());
    for (index, reference) in checks.checks.iter().enumerate() {
        let path = format!("{path}.checks[{index}]");
        if reference.kind.is_empty() || reference.name.is_empty() {
            report.invalid(path, format!("stage \"{stage}\": check {index} needs kind and name"));
        } else {
            verbs::object_ref(report, &path, &format!("stage \"{stage}\""), reference);
        }
    }
    for (index, expr) in checks.exprs.iter().enumerate() {
        let path = format!("{path}.exprs[{index}]");
        report.syntax(&format!("{path}.apiVersion"), &expr.api_version, names::api_version);
        report.syntax(&format!("{path}.kind"), &expr.kind, names::kind);
        if [&expr.current, &expr.in_progress, &expr.failed]
            .into_iter()
            .all(|text| non_empty(text).is_none())
        {
            report.invalid(
                path,
                format!("stage \"{stage}\": expression {index} needs at least one of current, inProgress and failed"),
            );
        }
    }
    for error in ReadyExprs::compile(&checks.exprs).err().into_iter().flatten() {
        report.invalid(
            format!("{path}.exprs{}", error.path()),
            format!("stage \"{stage}\": {error}"),
        );
    }
}
