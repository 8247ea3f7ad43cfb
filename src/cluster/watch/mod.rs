//! Watches on what was applied: one per (cluster, identity, namespace, kind), metadata only, shared
//! by every StageSet of that identity. They say *that* an object changed; its content is read by the
//! run when it is needed.

mod entry;
#[cfg(test)]
mod entry_tests;
mod follow;
mod pace;
mod wakes;
mod weight;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

pub use entry::{Coverage, Knowledge, parse_version};
use entry::{Entry, Sighting};
use follow::Follower;
pub use wakes::{Waker, Woken, queue};
use weight::{Scale, Weight};

use super::{Identity, Served, Target, Tenant};

/// Namespace and name of a StageSet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What one watch covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WatchKey {
    /// Which cluster, as [`super::Cluster::key`] says; empty for the local one.
    pub cluster: String,
    pub identity: Identity,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    pub api_version: String,
    pub kind: String,
    /// One object, whatever its labels; `None` for all that carry the label of a StageSet.
    pub name: Option<String>,
}

impl WatchKey {
    /// The watch that covers `target` by the label it carries.
    pub fn of(cluster: &str, identity: &Identity, target: &Target, namespaced: bool) -> Self {
        Self {
            cluster: cluster.to_owned(),
            identity: identity.clone(),
            namespace: target.namespace.clone().filter(|_| namespaced),
            api_version: target.api_version.clone(),
            kind: target.kind.clone(),
            name: None,
        }
    }

    /// A watch on `target` alone, for an object that does not carry our label: one that `checks[]` lists, or one that
    /// is left to its owner (decisions 5).
    pub fn by_name(cluster: &str, identity: &Identity, target: &Target, namespaced: bool) -> Self {
        Self {
            name: Some(target.name.clone()),
            ..Self::of(cluster, identity, target, namespaced)
        }
    }
}

struct Watch {
    entry: Entry,
    task: AbortHandle,
    /// Tells this watch from an earlier one of the same key, whose task may still be ending.
    serial: u64,
    /// Namespace of the StageSet that began it.
    of: String,
}

#[derive(Default)]
struct Table {
    watches: HashMap<Arc<WatchKey>, Watch>,
    used: HashMap<Owner, HashSet<Arc<WatchKey>>>,
    serial: u64,
    /// Watches that each namespace has begun.
    shares: HashMap<String, usize>,
    /// Namespaces that were told of having had their share.
    told: HashSet<String>,
}

impl Table {
    /// Whether a namespace may begin another watch: there is room, and while room is scarce it has not had its share.
    fn has_room(&mut self, namespace: &str, max: usize) -> bool {
        let (all, own) = (
            self.watches.len(),
            self.shares.get(namespace).copied().unwrap_or_default(),
        );
        if all < max && (all < max / 4 * 3 || own < max / 4) {
            return true;
        }
        if self.told.insert(namespace.to_owned()) {
            tracing::warn!(
                namespace,
                watches = own,
                of = all,
                "no more watches for the StageSets of this namespace: what they wait for is polled; raise --max-watches"
            );
        }
        false
    }

    fn insert(&mut self, key: Arc<WatchKey>, watch: Watch) {
        *self.shares.entry(watch.of.clone()).or_default() += 1;
        self.watches.insert(key, watch);
    }

    fn remove(&mut self, key: &WatchKey) -> Option<Watch> {
        let watch = self.watches.remove(key)?;
        if let Some(share) = self.shares.get_mut(&watch.of) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&watch.of);
            }
            self.told.remove(&watch.of);
        }
        Some(watch)
    }
}

/// The shared watches.
pub struct Hub {
    table: Mutex<Table>,
    wake: Waker,
    max: usize,
    scale: Scale,
}

impl Hub {
    /// `wake` receives the owner of every object that changed; at most `max` watches run.
    pub fn new(wake: Waker, max: usize) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            wake,
            max,
            scale: Scale::default(),
        })
    }

    /// Wakes StageSets for another reason than a watch.
    pub fn wake_all(&self, owners: &[Owner]) {
        for owner in owners {
            self.wake.wake(owner.clone());
        }
    }

    /// Number of watches running.
    pub fn len(&self) -> usize {
        self.lock().watches.len()
    }

    /// Whether no watch runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes sure a watch covers `key` on behalf of `owner`, and tells how far it can be trusted. Called before the first
    /// read or write of an object, so that no change after it is missed.
    pub fn watch(self: &Arc<Self>, key: &WatchKey, served: &Served, tenant: &Tenant, owner: &Owner) -> Coverage {
        let mut guard = self.lock();
        let table = &mut *guard;
        let known = table.watches.get_key_value(key).map(|(shared, _)| shared.clone());
        let shared = match known {
            Some(shared) => shared,
            None if !table.has_room(&owner.namespace, self.max) => return Coverage::None,
            None => {
                table.serial += 1;
                let shared = Arc::new(key.clone());
                let follower = Follower::new(self, shared.clone(), table.serial, served, tenant);
                let watch = Watch {
                    entry: Entry::new(owner.clone(), key.name.is_some(), self.weight(key)),
                    task: tokio::spawn(follower.run()).abort_handle(),
                    serial: table.serial,
                    of: owner.namespace.clone(),
                };
                table.insert(shared.clone(), watch);
                shared
            }
        };
        table.used.entry(owner.clone()).or_default().insert(shared);
        match table.watches.get_mut(key) {
            Some(watch) => {
                watch.entry.join(owner);
                watch.entry.coverage().clone()
            }
            None => Coverage::None,
        }
    }

    fn weight(&self, key: &WatchKey) -> Weight {
        if key.cluster.is_empty() {
            Weight::default()
        } else {
            Weight::on(&self.scale)
        }
    }

    /// States the complete set of watches `owner` still needs; those nobody needs end.
    pub fn keep_only(&self, owner: &Owner, needed: &HashSet<WatchKey>) {
        let mut ended = Vec::new();
        {
            let mut guard = self.lock();
            let table = &mut *guard;
            let Some(mut keys) = table.used.remove(owner) else {
                return;
            };
            keys.retain(|key| {
                let keep = needed.contains(&**key);
                if !keep && table.watches.get_mut(key).is_some_and(|w| w.entry.leave(owner)) {
                    ended.extend(table.remove(key));
                }
                keep
            });
            if !keys.is_empty() {
                table.used.insert(owner.clone(), keys);
            }
        }
        for watch in ended {
            watch.task.abort();
        }
    }

    /// Whether an object is still exactly the one known by uid and resourceVersion.
    pub fn knows(&self, key: &WatchKey, name: &str, uid: &str, version: u64) -> Knowledge {
        match self.lock().watches.get(key) {
            Some(watch) => watch.entry.knows(name, uid, version),
            None => Knowledge::Unknown,
        }
    }

    /// Notes a version the run has just read or written, so that its echo wakes nobody.
    pub fn note(&self, key: &WatchKey, name: &str, uid: &str, version: u64, owner: &Owner) {
        let woken = match self.lock().watches.get_mut(key) {
            None => return,
            Some(watch) => watch.entry.note(Sighting {
                name: name.to_owned(),
                uid: uid.to_owned(),
                version,
                owner: Some(owner.clone()),
            }),
        };
        self.wake_all(&woken);
    }

    /// Applies what a watch has told, and wakes whom it concerns. `false` when the watch is not wanted any more.
    fn update(&self, key: &WatchKey, serial: u64, tell: impl FnOnce(&mut Entry) -> Vec<Owner>) -> bool {
        let woken = match self.lock().watches.get_mut(key) {
            Some(watch) if watch.serial == serial => tell(&mut watch.entry),
            _ => return false,
        };
        self.wake_all(&woken);
        true
    }

    /// A watch whose task has ended unasked is forgotten, and its users look again, which starts a new one.
    fn fell(&self, key: &WatchKey, serial: u64) {
        let fallen = {
            let mut guard = self.lock();
            let table = &mut *guard;
            match table.watches.get(key) {
                Some(watch) if watch.serial == serial => {}
                _ => return,
            }
            for keys in table.used.values_mut() {
                keys.remove(key);
            }
            table.remove(key)
        };
        let users: Vec<Owner> = fallen.iter().flat_map(|w| w.entry.users().cloned()).collect();
        self.wake_all(&users);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch of nobody, for the counts.
    fn watch(of: &str) -> Watch {
        let owner = Owner {
            namespace: of.into(),
            name: "shop".into(),
        };
        Watch {
            entry: Entry::new(owner, false, Weight::default()),
            task: tokio::spawn(async {}).abort_handle(),
            serial: 0,
            of: of.into(),
        }
    }

    fn key(kind: &str) -> WatchKey {
        WatchKey {
            cluster: String::new(),
            identity: Identity::Controller,
            namespace: None,
            api_version: "v1".into(),
            kind: kind.into(),
            name: None,
        }
    }

    /// Rules: decisions 7 memory
    #[tokio::test]
    async fn no_namespace_has_all_the_watches() {
        const MAX: usize = 20;
        let mut table = Table::default();
        let begin = |table: &mut Table, of: &str| {
            let has_room = table.has_room(of, MAX);
            if has_room {
                let kind = format!("{of}-{}", table.watches.len());
                table.insert(Arc::new(key(&kind)), watch(of));
            }
            has_room
        };
        assert_eq!((0..MAX).filter(|_| begin(&mut table, "greedy")).count(), 15);
        assert_eq!(
            (0..MAX).filter(|_| begin(&mut table, "modest")).count(),
            5,
            "the rest is for the others"
        );
        assert!(!begin(&mut table, "late"));
        let given_back = |table: &mut Table| table.remove(&key("modest-15")).is_some();
        assert!(given_back(&mut table) && !given_back(&mut table));
        assert!(!begin(&mut table, "greedy") && begin(&mut table, "late"));
        assert_eq!(table.shares.values().sum::<usize>(), table.watches.len());
    }
}
