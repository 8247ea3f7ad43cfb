//! The watches on our own kinds and on CustomResourceDefinitions.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::oneshot;

use crate::api::{StageInventory, StageSet};
use crate::cache::{owner_of, trim};
use crate::cluster::watch::{Owner, Waker};
use crate::run::Context;

/// The watches every replica keeps, and how many of them still owe their first list.
pub struct Feeds {
    ctx: Arc<Context>,
    wake: Waker,
    owed: Arc<Owed>,
    /// Set once everything has been listed: a watch that begins later does not undo that.
    listed: AtomicBool,
}

/// First lists that are still owed.
#[derive(Default)]
struct Owed {
    pending: AtomicUsize,
    /// Those of them that fail, and have for a while.
    failing: AtomicUsize,
}

impl Feeds {
    /// Starts the watches. `wake` receives the StageSets that have something to act upon.
    pub fn start(ctx: &Arc<Context>, wake: Waker) -> Arc<Self> {
        let namespaces: Vec<Option<String>> = match ctx.config.watch_namespaces.0.as_slice() {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let feeds = Arc::new(Self {
            ctx: ctx.clone(),
            wake,
            owed: Arc::default(),
            listed: AtomicBool::new(false),
        });
        for namespace in namespaces {
            // No StageSet is known before what has been recorded for it.
            let (recorded, records) = oneshot::channel();
            let sets = Gate::new(&feeds.owed, "StageSet", None);
            let inventories = Gate::new(&feeds.owed, "StageInventory", Some(recorded));
            tokio::spawn(feeds.clone().follow_inventories(namespace.clone(), inventories));
            let follow = feeds.clone().follow_sets(namespace, sets);
            tokio::spawn(async move {
                if records.await.is_ok() {
                    follow.await;
                }
            });
        }
        tokio::spawn(feeds.clone().follow_definitions());
        ctx.sources.start();
        feeds
    }

    /// The watches from the start that have not completed their first list, however long that takes (decisions 11).
    pub fn unsynced(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.listed.load(Ordering::Acquire) {
            return missing;
        }
        if self.owed.pending.load(Ordering::Acquire) > 0 {
            missing.push("StageSet and StageInventory".to_owned());
        }
        missing.extend(self.ctx.sources.unlisted());
        self.listed.store(missing.is_empty(), Ordering::Release);
        missing
    }

    /// Whether work has to wait for a first list. One that keeps failing holds up what it is about, and nothing else.
    pub fn hold_up(&self) -> bool {
        let pending = self.owed.pending.load(Ordering::Acquire);
        pending > self.owed.failing.load(Ordering::Acquire) || !self.ctx.sources.is_synced()
    }

    fn api<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        let client = self.ctx.cluster.own_client();
        match namespace {
            Some(ns) => Api::namespaced(client, ns),
            None => Api::all(client),
        }
    }

    async fn follow_sets(self: Arc<Self>, namespace: Option<String>, mut gate: Gate) {
        let mut events = std::pin::pin!(watcher(
            self.api::<StageSet>(namespace.as_deref()),
            watcher::Config::default()
        ));
        let mut listed: HashSet<Owner> = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(set)) => {
                    listed.extend(owner_of(&set));
                    self.saw_set(set);
                }
                Ok(Event::Apply(set)) => self.saw_set(set),
                Ok(Event::Delete(set)) => {
                    if let Some(owner) = owner_of(&set) {
                        self.set_gone(&owner, set.uid().as_deref());
                    }
                }
                Ok(Event::InitDone) => {
                    for set in self.ctx.sets.all() {
                        let gone = owner_of(&set)
                            .filter(|o| namespace.as_ref().is_none_or(|ns| *ns == o.namespace) && !listed.contains(o));
                        if let Some(owner) = gone {
                            self.set_gone(&owner, set.uid().as_deref());
                        }
                    }
                    gate.open();
                }
                Err(error) => gate.wait(&error).await,
            }
        }
    }

    fn saw_set(&self, mut set: StageSet) {
        trim(&mut set);
        let Some(owner) = owner_of(&set) else {
            return;
        };
        let change = self.ctx.sets.observe(set);
        if change.wakes {
            self.wake.wake(owner);
        }
        for dependent in change.dependents {
            self.wake.wake(dependent);
        }
    }

    fn set_gone(&self, owner: &Owner, uid: Option<&str>) {
        let Some(dependents) = self.ctx.sets.remove(owner, uid) else {
            return;
        };
        self.ctx.forget(owner);
        for dependent in dependents {
            self.wake.wake(dependent);
        }
    }

    async fn follow_inventories(self: Arc<Self>, namespace: Option<String>, mut gate: Gate) {
        let mut events = std::pin::pin!(watcher(
            self.api::<StageInventory>(namespace.as_deref()),
            watcher::Config::default()
        ));
        let mut listed: HashSet<String> = HashSet::new();
        let in_scope = |ns: &str| namespace.as_ref().is_none_or(|n| n == ns);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(shard)) => {
                    listed.extend(shard.uid());
                    self.saw_shard(shard);
                }
                Ok(Event::Apply(shard)) => self.saw_shard(shard),
                Ok(Event::Delete(shard)) => {
                    // A shard that somebody deleted is missed by its StageSet: it looks again at once.
                    if let Some(owner) = self.ctx.inventories.lose(&shard) {
                        self.lost_shard(owner);
                    }
                }
                Ok(Event::InitDone) => {
                    for owner in self.ctx.inventories.keep_listed(in_scope, &listed) {
                        self.lost_shard(owner);
                    }
                    gate.open();
                }
                Err(error) => gate.wait(&error).await,
            }
        }
    }

    fn lost_shard(&self, owner: Owner) {
        if self.ctx.sets.get(&owner).is_none() {
            // It was collected after its StageSet.
            self.ctx.inventories.forget_lost(&owner);
        }
        self.wake.wake(owner);
    }

    fn saw_shard(&self, shard: StageInventory) {
        self.ctx.inventories.observe(shard);
    }

    /// A kind that becomes served starts the watches that waited for it. Without the right to read
    /// definitions only that instant detection is lost (run 2.4).
    async fn follow_definitions(self: Arc<Self>) {
        let api: Api<CustomResourceDefinition> = Api::all(self.ctx.cluster.own_client());
        let config = watcher::Config::default().page_size(50);
        let mut events = std::pin::pin!(watcher(api, config));
        let mut warned = false;
        let mut pause = Duration::from_millis(500);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(crd) | Event::InitApply(crd)) => {
                    pause = Duration::from_millis(500);
                    if is_established(&crd) {
                        self.ctx.sources.established(&crd.spec.group, &crd.spec.names.kind);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(%error, "CustomResourceDefinitions cannot be watched: kinds installed later are noticed late");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(60));
                }
            }
        }
    }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Established" && c.status == "True"))
}

/// Counts down the first list of one watch, and paces its errors.
struct Gate {
    owed: Option<Arc<Owed>>,
    /// Whom the first list is told to.
    listed: Option<oneshot::Sender<()>>,
    kind: &'static str,
    began: Instant,
    /// Counted among those that fail.
    failing: bool,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A first list that has failed for so long does not hold the others up any more.
const PATIENCE: Duration = Duration::from_secs(5);

impl Gate {
    fn new(owed: &Arc<Owed>, kind: &'static str, listed: Option<oneshot::Sender<()>>) -> Self {
        owed.pending.fetch_add(1, Ordering::AcqRel);
        Self {
            owed: Some(owed.clone()),
            listed,
            kind,
            began: Instant::now(),
            failing: false,
            pause: FIRST_PAUSE,
        }
    }

    fn open(&mut self) {
        self.pause = FIRST_PAUSE;
        if let Some(owed) = self.owed.take() {
            owed.pending.fetch_sub(1, Ordering::AcqRel);
            if std::mem::take(&mut self.failing) {
                owed.failing.fetch_sub(self.lists(), Ordering::AcqRel);
            }
        }
        if let Some(listed) = self.listed.take() {
            let _ = listed.send(());
        }
    }

    /// First lists that depend on this one.
    fn lists(&self) -> usize {
        1 + usize::from(self.listed.is_some())
    }

    async fn wait(&mut self, error: &watcher::Error) {
        if let Some(owed) = self
            .owed
            .as_ref()
            .filter(|_| !self.failing && self.began.elapsed() >= PATIENCE)
        {
            self.failing = true;
            owed.failing.fetch_add(self.lists(), Ordering::AcqRel);
        }
        tracing::warn!(kind = self.kind, %error, "watch interrupted; trying again");
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(10));
    }
}
