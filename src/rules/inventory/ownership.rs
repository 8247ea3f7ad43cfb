//! May this live object be deleted? (run 19.3, decisions 6)

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
    if live
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|at| !at.is_null())
    {
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
    /// Objects in it that are not this StageSet's; see [`is_foreign_in_namespace`].
    pub foreign: Vec<ObjectId>,
    /// Kinds that could not be listed, so that what they hold is unknown.
    pub unread: Vec<String>,
}

/// Why a namespace stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceRefusal {
    #[error("namespace {namespace} is kept: the StageSet itself lives in it")]
    HoldsStageSet { namespace: String },
    #[error(
        "namespace {namespace} is kept: it holds {count} object(s) of others, for example {example}; \
         delete or move them first"
    )]
    HoldsForeign {
        namespace: String,
        count: usize,
        example: Box<ObjectId>,
    },
    #[error("namespace {namespace} is kept: {kinds} in it cannot be listed, so it may hold objects of others")]
    Unread { namespace: String, kinds: String },
}

/// Decides whether a namespace that left the render may be deleted: never while it holds the StageSet, an object of
/// others, or something that cannot be seen.
///
/// # Errors
/// The reason it stays.
pub fn may_delete_namespace(facts: &NamespaceFacts) -> Result<(), NamespaceRefusal> {
    let namespace = facts.name.clone();
    if facts.holds_stage_set {
        return Err(NamespaceRefusal::HoldsStageSet { namespace });
    }
    if let Some(example) = facts.foreign.first() {
        return Err(NamespaceRefusal::HoldsForeign {
            namespace,
            count: facts.foreign.len(),
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

/// True for an object in a namespace that is somebody else's: not `owner`'s by its labels, not derived from another
/// object (an owner reference: that owner is judged itself), not being deleted, and none of what the cluster puts
/// into every namespace on its own.
pub fn is_foreign_in_namespace(object: &Value, owner: &OwnerRef) -> bool {
    let owned = object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty());
    let leaving = object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|at| !at.is_null());
    if owned || leaving || owner_of(object).as_ref() == Some(owner) {
        return false;
    }
    ObjectId::of(object).is_some_and(|id| !is_furniture(&id))
}

/// Objects that the control plane itself creates in a namespace.
fn is_furniture(id: &ObjectId) -> bool {
    match (id.group.as_str(), id.kind.as_str()) {
        ("", "ServiceAccount") => id.name == "default",
        ("", "ConfigMap") => id.name == "kube-root-ca.crt",
        ("", "Event" | "Endpoints") | ("events.k8s.io", "Event") => true,
        ("discovery.k8s.io", "EndpointSlice") | ("coordination.k8s.io", "Lease") => true,
        ("metrics.k8s.io", _) => true,
        _ => false,
    }
}
