//! The six verbs of an action, and the references they share.

use serde_json::Value;

use crate::api::common::non_empty;
use crate::api::{
    DeleteAction, HttpAction, ObjectRef, PatchAction, PatchType, SecretKeyRef, SourceReference, Verb, WaitAction,
};

use crate::rules::expr::{self, Expression};

use super::report::Report;
use super::{access, metrics, names, selectors};

const STATUS_CODES: std::ops::RangeInclusive<i32> = 100..=599;

pub(super) fn check(report: &mut Report, path: &str, owner: &str, verb: Verb<'_>) {
    match verb {
        Verb::Patch(patch) => patch_action(report, path, owner, patch),
        Verb::Http(http) => http_action(report, path, owner, http),
        Verb::Wait(wait) => wait_action(report, path, owner, wait),
        Verb::Job(job) => source_ref(report, &format!("{path}.sourceRef"), owner, &job.source_ref),
        Verb::Delete(delete) => delete_action(report, path, owner, delete),
        Verb::Apply(apply) => source_ref(report, &format!("{path}.sourceRef"), owner, &apply.source_ref),
    }
}

fn patch_action(report: &mut Report, path: &str, owner: &str, action: &PatchAction) {
    let target_path = format!("{path}.target");
    let target = &action.target;
    object_kind(report, &target_path, owner, target.api_version.as_ref(), &target.kind);
    report.optional_syntax(
        &format!("{target_path}.namespace"),
        target.namespace.as_ref(),
        names::dns_label,
    );
    report.optional_syntax(
        &format!("{target_path}.name"),
        target.name.as_ref(),
        names::path_segment,
    );
    match (non_empty(&target.name), &target.selector) {
        (Some(_), Some(_)) => {
            report.invalid(
                target_path,
                format!("{owner}: name and selector exclude each other; set one of them"),
            );
        }
        (None, None) => report.invalid(
            target_path,
            format!("{owner}: set name, or selector to patch all that match"),
        ),
        (None, Some(selector)) => selectors::structured(report, &format!("{target_path}.selector"), owner, selector),
        (Some(_), None) => {}
    }
    report.known(&format!("{path}.type"), action.patch_type.as_ref());
    patch_text(report, &format!("{path}.patch"), owner, action);
}

/// The text goes to the API server as it is, so it must be JSON of the right shape.
fn patch_text(report: &mut Report, path: &str, owner: &str, action: &PatchAction) {
    let parsed = match serde_json::from_str::<Value>(&action.patch) {
        Ok(parsed) => parsed,
        Err(cause) => {
            let (line, column) = (cause.line(), cause.column());
            report.invalid(
                path,
                format!("{owner}: the patch is no JSON, at line {line}, column {column}"),
            );
            return;
        }
    };
    match (&action.patch_type, parsed) {
        (Some(PatchType::Json6902), Value::Array(operations)) => {
            if let Some(index) = operations.iter().position(|operation| !is_operation(operation)) {
                report.invalid(
                    path,
                    format!("{owner}: operation {index} of the patch needs op (add, remove, replace, move, copy or test), path, and what goes with them"),
                );
            }
        }
        (Some(PatchType::Json6902), _) => {
            report.invalid(
                path,
                format!("{owner}: a json6902 patch is a list of operations (RFC 6902)"),
            );
        }
        (Some(PatchType::Unknown(_)), _) | (_, Value::Object(_)) => {}
        (Some(PatchType::Merge) | None, _) => {
            report.invalid(
                path,
                format!("{owner}: a merge patch is an object; for a list of operations set type to json6902"),
            );
        }
    }
}

fn is_operation(operation: &Value) -> bool {
    let pointer = |field: &str| {
        operation[field]
            .as_str()
            .is_some_and(|text| text.is_empty() || text.starts_with('/'))
    };
    let complete = match operation["op"].as_str() {
        Some("add" | "replace" | "test") => operation.get("value").is_some(),
        Some("move" | "copy") => pointer("from"),
        Some("remove") => true,
        _ => false,
    };
    complete && pointer("path")
}

fn http_action(report: &mut Report, path: &str, owner: &str, action: &HttpAction) {
    let url_path = format!("{path}.url");
    if report.non_empty(&url_path, &action.url, owner) {
        metrics::http_url(report, &url_path, &action.url);
    }
    report.known(&format!("{path}.method"), action.method.as_ref());
    if let Some(reference) = &action.body_from {
        needed_key(report, &format!("{path}.bodyFrom"), owner, reference);
    }
    for (index, reference) in action.headers_from.iter().enumerate() {
        let path = format!("{path}.headersFrom[{index}]");
        needed_key(report, &path, owner, reference);
        report.optional_syntax(&format!("{path}.key"), reference.key.as_ref(), names::header);
    }
    for (index, status) in action
        .expected_status
        .iter()
        .enumerate()
        .filter(|(_, s)| !STATUS_CODES.contains(s))
    {
        report.invalid(
            format!("{path}.expectedStatus[{index}]"),
            format!("{owner}: {status} is no status code; allowed: 100 to 599"),
        );
    }
}

fn needed_key(report: &mut Report, path: &str, owner: &str, reference: &SecretKeyRef) {
    access::secret_key(report, path, reference);
    if non_empty(&reference.key).is_none() {
        let secret = &reference.name;
        report.invalid(
            format!("{path}.key"),
            format!("{owner}: name the key of Secret \"{secret}\" to use; there is no default"),
        );
    }
}

fn wait_action(report: &mut Report, path: &str, owner: &str, action: &WaitAction) {
    report.duration(&format!("{path}.duration"), action.duration.as_ref());
    report.duration(&format!("{path}.timeout"), action.timeout.as_ref());
    match (&action.duration, non_empty(&action.expr)) {
        (Some(_), Some(_)) => report.invalid(
            path,
            format!("{owner}: duration and expr exclude each other; set one of them"),
        ),
        (None, None) => report.invalid(
            path,
            format!("{owner}: set duration, or expr with target; there is nothing to wait for"),
        ),
        (None, Some(_)) if action.target.is_none() => {
            report.invalid(path, format!("{owner}: expr needs target, the object it looks at"));
        }
        _ => {}
    }
    if let Some(text) = non_empty(&action.expr)
        && let Err(cause) = Expression::compile(text)
    {
        let text = expr::shown(text);
        report.invalid(
            format!("{path}.expr"),
            format!("{owner}: the expression \"{text}\" does not compile: {cause}"),
        );
    }
    if let Some(target) = &action.target {
        object_ref(report, &format!("{path}.target"), owner, target);
    }
}

fn delete_action(report: &mut Report, path: &str, owner: &str, action: &DeleteAction) {
    object_ref(report, &format!("{path}.target"), owner, &action.target);
    report.known(&format!("{path}.cascade"), action.cascade.as_ref());
}

/// A reference to one object: kind and name must be there, and everything must be well formed.
pub(super) fn object_ref(report: &mut Report, path: &str, owner: &str, reference: &ObjectRef) {
    object_kind(report, path, owner, reference.api_version.as_ref(), &reference.kind);
    let name_path = format!("{path}.name");
    if report.non_empty(&name_path, &reference.name, owner) {
        report.syntax(&name_path, &reference.name, names::path_segment);
    }
    report.optional_syntax(
        &format!("{path}.namespace"),
        reference.namespace.as_ref(),
        names::dns_label,
    );
}

fn object_kind(report: &mut Report, path: &str, owner: &str, api_version: Option<&String>, kind: &str) {
    report.optional_syntax(&format!("{path}.apiVersion"), api_version, names::api_version);
    let kind_path = format!("{path}.kind");
    if report.non_empty(&kind_path, kind, owner) {
        report.syntax(&kind_path, kind, names::kind);
    }
}

/// A reference to an artifact. A producer is found by its API group, so it must name one (A2), and not one of Kubernetes itself.
pub(super) fn source_ref(report: &mut Report, path: &str, owner: &str, reference: &SourceReference) {
    let name_path = format!("{path}.name");
    if report.non_empty(&name_path, &reference.name, owner) {
        report.syntax(&name_path, &reference.name, names::dns_subdomain);
    }
    report.optional_syntax(
        &format!("{path}.namespace"),
        reference.namespace.as_ref(),
        names::dns_label,
    );
    report.optional_syntax(&format!("{path}.kind"), reference.kind.as_ref(), names::kind);
    report.optional_syntax(
        &format!("{path}.apiVersion"),
        reference.api_version.as_ref(),
        names::api_version,
    );
    if !reference.is_producer() {
        return;
    }
    let kind = reference.kind();
    match non_empty(&reference.api_version) {
        None => report.invalid(
            format!("{path}.apiVersion"),
            format!("{owner}: {kind} is no Flux source, so its producer is found by API group; set apiVersion"),
        ),
        // A producer is watched by the controller itself, which has no business with what tenants keep in these.
        Some(version) if of_kubernetes(version) => report.invalid(
            format!("{path}.apiVersion"),
            format!("{owner}: {kind} of {version} belongs to Kubernetes and produces no artifacts; name a producer of its own API group"),
        ),
        Some(_) => {}
    }
}

/// Kubernetes' own groups without a domain: core, apps, batch and so on.
fn of_kubernetes(api_version: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    names::api_version(api_version).is_ok() && !group.contains('.')
}
