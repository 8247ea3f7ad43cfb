//! May this live object be deleted? (run 19.3, decisions 6)

use std::collections::BTreeSet;

use serde_json::Value;

use super::{ObjectId, keys};

/// The StageSet that owns an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerRef {
    pub name: String,
    pub namespace: String,
}

/// What a DELETE is sent with, so that it hits the object that was judged and no successor of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// Why a recorded object is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// It carries no owner labels, or another StageSet's.
    #[error("its owner labels name {}, not this StageSet", describe(.owner.as_ref()))]
    NotOurs { owner: Option<OwnerRef> },
    /// An opt-out on the live object.
    #[error("{key} is {value:?} on it")]
    OptedOut { key: &'static str, value: String },
    /// A delete is under way already.
    #[error("it is being deleted already")]
    Terminating,
}

/// The decision on one live object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    Delete(Preconditions),
    Skip(Skip),
}

fn describe(owner: Option<&OwnerRef>) -> String {
    owner.map_or("nobody".to_owned(), |one| format!("{}/{}", one.namespace, one.name))
}

/// The StageSet named by an object's owner labels; both must be there.
pub fn owner_of(object: &Value) -> Option<OwnerRef> {
    let labels = object.pointer("/metadata/labels")?;
    let label = |key: &str| labels.get(key)?.as_str().map(str::to_owned);
    Some(OwnerRef {
        name: label(keys::OWNER_NAME)?,
        namespace: label(keys::OWNER_NAMESPACE)?,
    })
}

/// Decides whether a recorded object that was just read may be deleted for `owner`: its owner labels must still
/// name that StageSet, and neither a `prune` nor a `reconcile` opt-out (ours or Flux's; label or annotation, value
/// in any case) may stand on it.
pub fn may_delete(live: &Value, owner: &OwnerRef) -> Deletion {
    let found = owner_of(live);
    if found.as_ref() != Some(owner) {
        return Deletion::Skip(Skip::NotOurs { owner: found });
    }
    let opt_outs = [keys::PRUNE, keys::FLUX_PRUNE, keys::RECONCILE, keys::FLUX_RECONCILE];
    for key in opt_outs {
        if let Some(value) = marker(live, key, "disabled") {
            return Deletion::Skip(Skip::OptedOut { key, value });
        }
    }
    if is_terminating(live) {
        return Deletion::Skip(Skip::Terminating);
    }
    let meta = |field: &str| {
        let value = live.get("metadata")?.get(field)?.as_str()?;
        Some(value.to_owned())
    };
    Deletion::Delete(Preconditions {
        uid: meta("uid"),
        resource_version: meta("resourceVersion"),
    })
}

/// The value of a label or annotation that equals `wanted` in any case.
fn marker(object: &Value, key: &str, wanted: &str) -> Option<String> {
    ["/metadata/labels", "/metadata/annotations"]
        .iter()
        .filter_map(|map| object.pointer(map)?.get(key)?.as_str())
        .find(|value| value.eq_ignore_ascii_case(wanted))
        .map(str::to_owned)
}

/// What is known of a namespace that is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceFacts {
    pub name: String,
    /// The StageSet (and so its inventory) is in it, on this cluster.
    pub holds_stage_set: bool,
    /// Objects in it that are to stay; see [`Leaving::is_held_by`].
    pub staying: Vec<ObjectId>,
    /// Kinds that could not be listed, so that what they hold is unknown.
    pub unread: Vec<String>,
}

/// Why a namespace stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceRefusal {
    #[error("namespace {namespace} is kept: the StageSet itself lives in it")]
    HoldsStageSet { namespace: String },
    #[error(
        "namespace {namespace} is kept: it holds objects that are not to be deleted, for example {example}; \
         delete or move them first"
    )]
    HoldsOthers { namespace: String, example: Box<ObjectId> },
    #[error("namespace {namespace} is kept: {kinds} in it cannot be listed, so it may hold anything")]
    Unread { namespace: String, kinds: String },
}

/// Decides whether a namespace that left the render may be deleted: never while it holds the StageSet, an object that
/// is to stay, or something that cannot be seen.
///
/// # Errors
/// The reason it stays.
pub fn may_delete_namespace(facts: &NamespaceFacts) -> Result<(), NamespaceRefusal> {
    let namespace = facts.name.clone();
    if facts.holds_stage_set {
        return Err(NamespaceRefusal::HoldsStageSet { namespace });
    }
    if let Some(example) = facts.staying.first() {
        return Err(NamespaceRefusal::HoldsOthers {
            namespace,
            example: Box::new(example.clone()),
        });
    }
    if !facts.unread.is_empty() {
        return Err(NamespaceRefusal::Unread {
            namespace,
            kinds: facts.unread.join(", "),
        });
    }
    Ok(())
}

/// What is being deleted for one StageSet in one go.
#[derive(Debug, Clone, Copy)]
pub struct Leaving<'a> {
    pub owner: &'a OwnerRef,
    pub ids: &'a BTreeSet<ObjectId>,
}

impl Leaving<'_> {
    /// Whether a live object keeps the namespace it is in, for it is to stay: somebody else's, or the StageSet's own
    /// that is not deleted as well (its stage does not prune, it has an opt-out, or it is still rendered). Not so one that
    /// is being deleted, that the cluster puts into every namespace, or that is derived from others: those are judged
    /// themselves. `is_namespaced` says whether a kind (group, kind) lives in namespaces.
    pub fn is_held_by(&self, object: &Value, is_namespaced: impl Fn(&str, &str) -> bool) -> bool {
        let Some(id) = ObjectId::of(object) else {
            return false;
        };
        match may_delete(object, self.owner) {
            Deletion::Skip(Skip::OptedOut { .. }) => !is_terminating(object),
            _ if is_terminating(object) || is_furniture(&id) || self.is_derived(object, is_namespaced) => false,
            Deletion::Delete(_) => !self.ids.contains(&id),
            Deletion::Skip(_) => true,
        }
    }

    /// Whether an object goes with its owners: each is in the same namespace, or one that is deleted as well.
    fn is_derived(&self, object: &Value, is_namespaced: impl Fn(&str, &str) -> bool) -> bool {
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.is_some_and(|owners| {
            !owners.is_empty()
                && owners.iter().all(|owner| {
                    let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
                    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
                    is_namespaced(group, text("kind"))
                        || self.ids.contains(&ObjectId::new("", text("name"), group, text("kind")))
                })
        })
    }
}

fn is_terminating(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|at| !at.is_null())
}

/// Objects that the control plane itself creates in a namespace.
fn is_furniture(id: &ObjectId) -> bool {
    match (id.group.as_str(), id.kind.as_str()) {
        ("", "ServiceAccount") => id.name == "default",
        ("", "ConfigMap") => id.name == "kube-root-ca.crt",
        (group, kind) => is_all_furniture(group, kind),
    }
}

/// Kinds of which every object is of that sort: whether there are any says nothing of a namespace.
pub fn is_all_furniture(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "Event" | "Endpoints")
            | ("events.k8s.io", "Event")
            | ("discovery.k8s.io", "EndpointSlice")
            | ("coordination.k8s.io", "Lease")
            | ("metrics.k8s.io", _)
    )
}
