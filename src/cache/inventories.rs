//! The StageInventories as last known, grouped by StageSet. Like the StageSets, our own writes are
//! taken in at once, so a step sees them before the watch reports them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;

use crate::api::StageInventory;
use crate::api::names::label;
use crate::cluster::watch::{Owner, parse_version};

type Shards = BTreeMap<String, Arc<StageInventory>>;

/// The cache.
#[derive(Default)]
pub struct Inventories {
    shards: Mutex<HashMap<Owner, Shards>>,
    /// Those that others took away, by the same: a StageSet that is deleted may have nothing else to go by.
    lost: Mutex<HashMap<Owner, Shards>>,
}

impl Inventories {
    /// Every shard of a StageSet, by object name.
    pub fn of(&self, owner: &Owner) -> Vec<Arc<StageInventory>> {
        self.lock()
            .get(owner)
            .map(|s| s.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Takes in a shard; `true` when it was news. One older than what is known changes nothing.
    pub fn observe(&self, mut shard: StageInventory) -> Option<Owner> {
        let owner = owner_of(&shard)?;
        // Larger than the rest together, and read by no step.
        shard.metadata.managed_fields = None;
        let mut all = self.lock();
        let shards = all.entry(owner.clone()).or_default();
        let name = shard.name_any();
        let stale = shards
            .get(&name)
            .is_some_and(|known| known.uid() == shard.uid() && version(known) >= version(&shard));
        if stale {
            return None;
        }
        if let Some(lost) = self.lock_lost().get_mut(&owner) {
            lost.remove(&name);
        }
        shards.insert(name, Arc::new(shard));
        Some(owner)
    }

    /// Shards of a StageSet that others took away and that were not made anew since.
    pub fn lost(&self, owner: &Owner) -> Vec<Arc<StageInventory>> {
        let lost = self.lock_lost();
        lost.get(owner)
            .map(|s| s.values().cloned().collect())
            .unwrap_or_default()
    }

    /// The same as [`Inventories::remove`] for a shard that we have not deleted ourselves: what it held is remembered until
    /// its StageSet is gone.
    pub fn lose(&self, shard: &StageInventory) -> Option<Owner> {
        let owner = self.remove(shard)?;
        let mut kept = shard.clone();
        kept.metadata.managed_fields = None;
        let mut lost = self.lock_lost();
        let shards = lost.entry(owner.clone()).or_default();
        shards.insert(kept.name_any(), Arc::new(kept));
        Some(owner)
    }

    /// Forgets what a StageSet has lost.
    pub fn forget_lost(&self, owner: &Owner) {
        self.lock_lost().remove(owner);
    }

    /// Forgets a shard that is gone.
    pub fn remove(&self, shard: &StageInventory) -> Option<Owner> {
        let owner = owner_of(shard)?;
        let mut all = self.lock();
        // The watch may have told of our own delete before we are here.
        if let Some(lost) = self.lock_lost().get_mut(&owner) {
            lost.retain(|_, known| known.uid() != shard.uid());
        }
        let shards = all.get_mut(&owner)?;
        let name = shard.name_any();
        if shards.get(&name).is_none_or(|known| known.uid() != shard.uid()) {
            return None;
        }
        shards.remove(&name);
        if shards.is_empty() {
            all.remove(&owner);
        }
        Some(owner)
    }

    /// Forgets everything of a StageSet.
    pub fn forget(&self, owner: &Owner) {
        self.lock().remove(owner);
    }

    /// Forgets what a new list of the namespaces that `of` selects lacks, by UID; gives whose it was.
    pub fn keep_listed(&self, of: impl Fn(&str) -> bool, listed: &HashSet<String>) -> BTreeSet<Owner> {
        let known = self.known(of);
        let gone = known
            .iter()
            .filter(|shard| shard.uid().is_some_and(|uid| !listed.contains(&uid)));
        gone.filter_map(|shard| self.lose(shard)).collect()
    }

    /// The shards known in the namespaces that `of` selects.
    pub fn known(&self, of: impl Fn(&str) -> bool) -> Vec<Arc<StageInventory>> {
        self.lock()
            .iter()
            .filter(|(owner, _)| of(&owner.namespace))
            .flat_map(|(_, shards)| shards.values().cloned())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Shards>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_lost(&self) -> MutexGuard<'_, HashMap<Owner, Shards>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner_of(shard: &StageInventory) -> Option<Owner> {
    Some(Owner {
        namespace: shard.metadata.namespace.clone()?,
        name: shard.labels().get(label::STAGE_SET)?.clone(),
    })
}

fn version(shard: &StageInventory) -> u64 {
    parse_version(shard.metadata.resource_version.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(namespace: &str, set: &str, uid: &str) -> StageInventory {
        let mut shard = StageInventory::new(&format!("{set}-app-0"), Default::default());
        shard.metadata.namespace = Some(namespace.into());
        shard.metadata.uid = Some(uid.into());
        shard.metadata.resource_version = Some("1".into());
        shard.labels_mut().insert(label::STAGE_SET.into(), set.into());
        shard
    }

    #[test]
    fn what_no_step_reads_is_not_kept() {
        let inventories = Inventories::default();
        let mut answer = shard("a", "s", "u");
        answer.metadata.managed_fields = Some(vec![Default::default()]);
        let owner = inventories.observe(answer.clone()).unwrap();
        assert_eq!(inventories.of(&owner)[0].metadata.managed_fields, None);
        inventories.lose(&answer);
        assert_eq!(inventories.lost(&owner)[0].metadata.managed_fields, None);
    }

    #[test]
    fn a_shard_that_we_deleted_ourselves_is_not_lost_however_early_the_watch_tells() {
        let inventories = Inventories::default();
        let ours = shard("a", "set", "uid");
        let owner = owner_of(&ours).expect("an owner");
        inventories.observe(ours.clone());
        inventories.lose(&ours);
        assert_eq!(inventories.lost(&owner).len(), 1);
        inventories.remove(&ours);
        assert!(inventories.lost(&owner).is_empty());
    }

    /// As with a deletion that a watch tells, the StageSet has to look.
    #[test]
    fn who_lost_a_shard_while_no_watch_was_open_is_told() {
        let inventories = Inventories::default();
        for (namespace, set) in [("a", "kept"), ("a", "lost"), ("b", "elsewhere")] {
            inventories.observe(shard(namespace, set, set));
        }
        let listed = HashSet::from(["kept".to_owned()]);
        let woken = inventories.keep_listed(|namespace| namespace == "a", &listed);
        let lost = Owner {
            namespace: "a".into(),
            name: "lost".into(),
        };
        assert_eq!(woken, BTreeSet::from([lost.clone()]));
        assert!(inventories.of(&lost).is_empty());
        assert_eq!(inventories.lost(&lost).len(), 1, "what it held is still known");
        inventories.observe(shard("a", "lost", "anew"));
        assert!(inventories.lost(&lost).is_empty());
        let elsewhere = Owner {
            namespace: "b".into(),
            name: "elsewhere".into(),
        };
        assert_eq!(inventories.of(&elsewhere).len(), 1);
    }
}
