//! Shard 0 as the ApplySet parent of its stage (KEP-3659, api 7.6).

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::{ObjectId, keys};

/// Id of the ApplySet whose parent is the StageInventory `name` in `namespace`:
/// `applyset-<hash>-v1` over `<name>.<namespace>.<kind>.<group>`.
pub fn applyset_id(name: &str, namespace: &str) -> String {
    let seed = format!("{name}.{namespace}.StageInventory.stages.metio.wtf");
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(seed.as_bytes()));
    format!("applyset-{hash}-v1")
}

/// Labels and annotations of an ApplySet parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentMetadata {
    pub labels: BTreeMap<&'static str, String>,
    pub annotations: BTreeMap<&'static str, String>,
}

/// What shard 0 carries to be the ApplySet parent of `members`. `version` is the controller's, without `v`.
pub fn parent_metadata<'a>(
    name: &str,
    namespace: &str,
    version: &str,
    members: impl IntoIterator<Item = &'a ObjectId>,
) -> ParentMetadata {
    let mut group_kinds = BTreeSet::new();
    let mut namespaces = BTreeSet::new();
    for member in members {
        group_kinds.insert(member.group_kind());
        if !member.namespace.is_empty() && member.namespace != namespace {
            namespaces.insert(member.namespace.as_str());
        }
    }
    let join = |set: Vec<&str>| set.join(",");
    ParentMetadata {
        labels: BTreeMap::from([(keys::APPLYSET_ID, applyset_id(name, namespace))]),
        annotations: BTreeMap::from([
            (keys::APPLYSET_TOOLING, format!("stageset-controller/v{version}")),
            (
                keys::APPLYSET_GROUP_KINDS,
                join(group_kinds.iter().map(String::as_str).collect()),
            ),
            (keys::APPLYSET_NAMESPACES, join(namespaces.into_iter().collect())),
        ]),
    }
}
