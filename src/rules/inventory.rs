//! Inventory: which objects a stage accounts for, and what follows from it: what is recorded where, what is
//! pruned, and what must not be deleted.
//!
//! Nothing recorded is forgotten before its deletion was confirmed: [`union`] is what is written before an
//! apply, and every prefix of the writes that [`plan_shards`] asks for still accounts for every object.

mod applyset;
mod id;
pub mod keys;
mod names;
mod ownership;
mod prune;
mod shards;

use std::collections::{BTreeMap, BTreeSet};

pub use applyset::{ParentMetadata, applyset_id, parent_metadata};
pub use id::{Entry, MalformedEntry, ObjectId};
pub use names::{MAX_NAME_LENGTH, choose_name, hashed_name, object_labels, plain_name, shard_labels};
pub use ownership::{
    Deletion, Leaving, NamespaceFacts, NamespaceRefusal, OwnerRef, Preconditions, Skip, is_all_furniture, may_delete,
    may_delete_namespace, owner_of,
};
pub use prune::{
    DesiredStage, DuplicateClaim, PruneGuard, PruneHold, StagePrune, StoredStage, find_duplicate_claims, mark_settled,
    prune_set, settled,
};
pub use shards::{RawEntry, Shard, ShardWrite, plan_shards, read_entries, stored_entries};

/// A set of recorded objects: identity to bare API version (`v1`, not `apps/v1`).
pub type Entries = BTreeMap<ObjectId, String>;

/// What is recorded before an apply: everything stored and everything rendered, the rendered version winning
/// (decisions 6, run 28 B1).
pub fn union(stored: &Entries, rendered: &Entries) -> Entries {
    let mut all = stored.clone();
    all.extend(rendered.iter().map(|(id, v)| (id.clone(), v.clone())));
    all
}

/// What is to be recorded where the record turns out to hold more than was known: `wanted` was decided on by `known`;
/// what is `stored` beyond that is kept, what was known and is not wanted goes.
pub fn rebase(stored: &Entries, known: &Entries, wanted: &Entries) -> Entries {
    let unknown = stored.iter().filter(|(id, _)| !known.contains_key(id));
    let mut all: Entries = unknown.map(|(id, v)| (id.clone(), v.clone())).collect();
    all.extend(wanted.iter().map(|(id, v)| (id.clone(), v.clone())));
    all
}

/// What stays recorded after a prune: everything rendered, and everything recorded that is not confirmed to be `gone`
/// (deleted, found absent, left to somebody else, moved to another stage, or forgotten).
pub fn shrink(recorded: &Entries, rendered: &Entries, gone: &BTreeSet<ObjectId>) -> Entries {
    let mut kept = union(recorded, rendered);
    kept.retain(|id, _| rendered.contains_key(id) || !gone.contains(id));
    kept
}

#[cfg(test)]
mod ownership_tests;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod tests;
