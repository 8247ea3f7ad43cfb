//! The StageSets as last known: what the watch reported, or what our own last write returned when
//! that is newer. So a step never decides on a state older than its own last write.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::Event;

use crate::api::names::annotation;
use crate::api::{StageSet, common::non_empty};
use crate::cluster::watch::{Owner, parse_version};
use crate::source::{Reference, SourceKey};

/// What a change of a StageSet means for the queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The StageSet itself has something new to act upon.
    pub wakes: bool,
    /// StageSets that depend on it and may go on now.
    pub dependents: Vec<Owner>,
}

#[derive(Default)]
struct Facts {
    own: u64,
    for_dependents: u64,
    sources: Box<[SourceKey]>,
    dependencies: Box<[Owner]>,
}

struct State {
    writer: Writer<StageSet>,
    facts: HashMap<Owner, Facts>,
    by_source: HashMap<SourceKey, HashSet<Owner>>,
    by_dependency: HashMap<Owner, HashSet<Owner>>,
}

/// The cache with its indexes.
pub struct StageSets {
    store: Store<StageSet>,
    state: Mutex<State>,
}

impl Default for StageSets {
    fn default() -> Self {
        let (store, mut writer) = kube::runtime::reflector::store();
        writer.apply_watcher_event(&Event::Init);
        writer.apply_watcher_event(&Event::InitDone);
        Self {
            store,
            state: Mutex::new(State {
                writer,
                facts: HashMap::new(),
                by_source: HashMap::new(),
                by_dependency: HashMap::new(),
            }),
        }
    }
}

impl StageSets {
    /// Read access for the controller runtime.
    pub fn store(&self) -> Store<StageSet> {
        self.store.clone()
    }

    /// The newest known state of a StageSet.
    pub fn get(&self, owner: &Owner) -> Option<Arc<StageSet>> {
        self.store.get(&reference(owner))
    }

    /// Every StageSet known.
    pub fn all(&self) -> Vec<Arc<StageSet>> {
        self.store.state()
    }

    /// Takes in a state of a StageSet; one older than what is known changes nothing.
    pub fn observe(&self, set: StageSet) -> Change {
        let Some(owner) = owner_of(&set) else {
            return Change::default();
        };
        let mut state = self.lock();
        let known = self.store.get(&reference(&owner));
        if known.is_some_and(|k| k.uid() == set.uid() && version(&k) > version(&set)) {
            return Change::default();
        }
        let change = state.index(&owner, &set);
        state.writer.apply_watcher_event(&Event::Apply(set));
        change
    }

    /// Forgets a StageSet that is gone; `uid` guards against a newer one of the same name. `None`
    /// when nothing was forgotten, otherwise those that depend on it.
    pub fn remove(&self, owner: &Owner, uid: Option<&str>) -> Option<Vec<Owner>> {
        let mut state = self.lock();
        let known = self.store.get(&reference(owner))?;
        if uid.is_some_and(|uid| known.uid().as_deref() != Some(uid)) {
            return None;
        }
        state.writer.apply_watcher_event(&Event::Delete((*known).clone()));
        if let Some(facts) = state.facts.remove(owner) {
            state.unlink(owner, &facts);
        }
        Some(state.dependents_of(owner))
    }

    /// StageSets that read a source.
    pub fn users_of(&self, source: &SourceKey) -> Vec<Owner> {
        self.lock()
            .by_source
            .get(source)
            .map(|s| s.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Whether any StageSet refers to a source of a kind.
    pub fn refer_to(&self, group: &str, kind: &str) -> bool {
        let state = self.lock();
        state
            .by_source
            .keys()
            .any(|source| source.group == group && source.kind == kind)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn index(&mut self, owner: &Owner, set: &StageSet) -> Change {
        let sources = set.spec.stages.iter();
        let sources = sources.map(|s| Reference::from(&s.source_ref).key(&owner.namespace));
        let dependencies = set.spec.depends_on.iter().map(|d| Owner {
            namespace: non_empty(&d.namespace).unwrap_or(&owner.namespace).to_owned(),
            name: d.name.clone(),
        });
        let facts = Facts {
            own: own_fingerprint(set),
            for_dependents: dependents_fingerprint(set),
            sources: once_each(sources),
            dependencies: once_each(dependencies),
        };
        let before = self.facts.remove(owner);
        let change = Change {
            wakes: before.as_ref().is_none_or(|b| b.own != facts.own),
            dependents: match &before {
                Some(b) if b.for_dependents == facts.for_dependents => Vec::new(),
                _ => self.dependents_of(owner),
            },
        };
        if let Some(before) = &before {
            self.unlink(owner, before);
        }
        for source in &facts.sources {
            self.by_source.entry(source.clone()).or_default().insert(owner.clone());
        }
        for dependency in &facts.dependencies {
            self.by_dependency
                .entry(dependency.clone())
                .or_default()
                .insert(owner.clone());
        }
        self.facts.insert(owner.clone(), facts);
        change
    }

    fn unlink(&mut self, owner: &Owner, facts: &Facts) {
        for source in &facts.sources {
            take_out(&mut self.by_source, source, owner);
        }
        for dependency in &facts.dependencies {
            take_out(&mut self.by_dependency, dependency, owner);
        }
    }

    fn dependents_of(&self, owner: &Owner) -> Vec<Owner> {
        self.by_dependency
            .get(owner)
            .map(|d| d.iter().cloned().collect())
            .unwrap_or_default()
    }
}

/// Without duplicates, and no larger than it is: a set takes room for eleven, and most StageSets have one source.
fn once_each<T: Ord>(keys: impl Iterator<Item = T>) -> Box<[T]> {
    keys.collect::<BTreeSet<T>>().into_iter().collect()
}

fn take_out<K: Eq + Hash>(index: &mut HashMap<K, HashSet<Owner>>, key: &K, owner: &Owner) {
    if let Some(users) = index.get_mut(key) {
        users.remove(owner);
        if users.is_empty() {
            index.remove(key);
        }
    }
}

/// Namespace and name of a StageSet.
pub fn owner_of(set: &StageSet) -> Option<Owner> {
    Some(Owner {
        namespace: set.metadata.namespace.clone()?,
        name: set.metadata.name.clone()?,
    })
}

/// The runtime's reference to a StageSet.
pub fn reference(owner: &Owner) -> ObjectRef<StageSet> {
    ObjectRef::new(&owner.name).within(&owner.namespace)
}

fn version(set: &StageSet) -> u64 {
    parse_version(set.metadata.resource_version.as_deref())
}

/// What wakes the controller (run 2.2): the spec, the deletion, the finalizers, and every annotation
/// of ours. Status writes do not.
fn own_fingerprint(set: &StageSet) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.metadata.uid.hash(&mut hasher);
    set.metadata.generation.hash(&mut hasher);
    set.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    set.metadata.finalizers.hash(&mut hasher);
    for (key, value) in set.annotations() {
        if annotation::ALL.contains(&key.as_str()) {
            (key, value).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// What a dependent looks at: Ready, generation, version, held revisions, and what was applied (run 7).
fn dependents_fingerprint(set: &StageSet) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.metadata.generation.hash(&mut hasher);
    if let Some(status) = &set.status {
        status.observed_generation.hash(&mut hasher);
        status.version.hash(&mut hasher);
        status
            .pending_update
            .as_ref()
            .map(|p| p.revisions.len())
            .hash(&mut hasher);
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        ready.map(|c| &c.status).hash(&mut hasher);
        for stage in &status.stages {
            (&stage.name, &stage.applied_digest, &stage.applied_revision).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Drops what no step reads: thousands of StageSets are kept.
pub fn trim(set: &mut StageSet) {
    set.metadata.managed_fields = None;
    if let Some(annotations) = &mut set.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
