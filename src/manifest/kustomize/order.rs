//! Sort order of kinds: the reference's "legacy" order.

use super::file::LegacySortOptions;
use super::id::{Gvk, Id};
use super::resource::Resource;

const FIRST: [&str; 22] = [
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

fn position(list: &[impl AsRef<str>], kind: &str) -> Option<i64> {
    // A repeated kind counts where it stands last, as in the reference's map.
    list.iter()
        .rposition(|k| k.as_ref() == kind)
        .and_then(|i| i64::try_from(i).ok())
}

fn rank(first: &[impl AsRef<str>], last: &[impl AsRef<str>], kind: &str) -> i64 {
    if let Some(at) = position(last, kind) {
        return 1 + at;
    }
    let len = i64::try_from(first.len()).unwrap_or(i64::MAX);
    position(first, kind).map_or(0, |at| at - len)
}

fn or<'a>(text: &'a str, placeholder: &'a str) -> &'a str {
    if text.is_empty() { placeholder } else { text }
}

/// Sort key of a type: rank of the kind, then group, version and kind.
pub(crate) fn kind_key(group: &str, version: &str, kind: &str) -> (i64, String) {
    let text = format!("{}_{}_{}", or(group, "~G"), or(version, "~V"), or(kind, "~K"));
    (rank(&FIRST, &LAST, kind), text)
}

/// Where an object stands in the legacy order.
pub type LegacyKey = (i64, bool, String, String);

/// The key of an object by the built-in lists of kinds.
pub fn legacy_key(api_version: &str, kind: &str, namespace: &str, name: &str) -> LegacyKey {
    key(
        Id {
            gvk: Gvk::new(api_version, kind),
            name,
            namespace,
        },
        rank(&FIRST, &LAST, kind),
    )
}

fn key(id: Id<'_>, rank: i64) -> LegacyKey {
    let gvk = id.gvk;
    let core_namespace_first = !(gvk.kind == "Namespace" && gvk.group.is_empty());
    let (_, by_type) = kind_key(gvk.group, gvk.version, gvk.kind);
    let by_name = format!(
        "{}.{}.{}|{}|{}",
        or(gvk.kind, "[noKind]"),
        or(gvk.version, "[noVer]"),
        or(gvk.group, "[noGrp]"),
        or(id.namespace, "~X"),
        or(id.name, "~N"),
    );
    (rank, core_namespace_first, by_type, by_name)
}

/// Sorts in the legacy order, by the given lists or the built-in ones.
pub(crate) fn sort_legacy(resources: &mut [Resource], options: Option<&LegacySortOptions>) {
    resources.sort_by_cached_key(|resource| {
        let id = resource.id();
        let rank = match options {
            Some(options) => rank(&options.order_first, &options.order_last, id.gvk.kind),
            None => rank(&FIRST, &LAST, id.gvk.kind),
        };
        key(id, rank)
    });
}
