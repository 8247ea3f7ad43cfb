//! Sources as last known, one watch for each kind that some StageSet refers to. A watch on a kind
//! that is not served yet starts when its CustomResourceDefinition is established.

mod producers;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt};
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde_json::{Value, json};

use self::producers::Producer;
use super::stagesets::StageSets;
use crate::cluster::watch::Waker;
use crate::cluster::{Cluster, Error, Identity, Target};
use crate::config::Namespaces;
use crate::source::SourceKey;
use crate::telemetry::Metrics;

/// Group of the Flux source kinds.
const FLUX_GROUP: &str = "source.toolkit.fluxcd.io";
/// `apiVersion` assumed for the kinds that are read directly.
const FLUX_API_VERSION: &str = "source.toolkit.fluxcd.io/v1";
/// The kinds that are watched from the start.
const STATIC_KINDS: [&str; 4] = ["ExternalArtifact", "GitRepository", "OCIRepository", "Bucket"];

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// A definition is established a moment before discovery serves its kind: pauses between tries, in milliseconds.
const DISCOVERY_LAG: [u64; 6] = [100, 250, 500, 1000, 2000, 4000];
/// The first list of a kind holds nobody up for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Kinds that are watched at once; producers of others are noticed by their artifacts alone.
const MAX_KINDS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchState {
    /// Not listed yet, since then.
    Starting(Instant),
    Live,
    /// Not served: waits for its CustomResourceDefinition.
    Missing,
}

/// A source as it is kept: its text takes a quarter of the memory of its values, and is read in microseconds.
struct Kept(Box<str>);

impl Kept {
    fn new(object: &Value) -> Self {
        Self(object.to_string().into_boxed_str())
    }

    fn value(&self) -> Value {
        // Never fails: it was written from a value.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

#[derive(Default)]
struct State {
    objects: HashMap<SourceKey, Kept>,
    by_producer: HashMap<SourceKey, BTreeSet<SourceKey>>,
    watches: HashMap<(String, String), (WatchState, String)>,
    /// Kinds and namespaces whose watch tells everything, `None` for all namespaces.
    covered: HashSet<(String, String, Option<String>)>,
    /// The producers that some StageSet refers to.
    producers: HashMap<SourceKey, Producer>,
}

/// The cache of sources.
pub struct Sources {
    cluster: Arc<Cluster>,
    scope: Namespaces,
    sets: Arc<StageSets>,
    wake: Waker,
    metrics: Metrics,
    state: Mutex<State>,
}

impl Sources {
    /// A cache that wakes the StageSets of `sets` through `wake`.
    pub fn new(
        cluster: Arc<Cluster>,
        scope: Namespaces,
        sets: Arc<StageSets>,
        wake: Waker,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            scope,
            sets,
            wake,
            metrics,
            state: Mutex::default(),
        })
    }

    /// Starts the watches on the kinds that are always of interest.
    pub fn start(self: &Arc<Self>) {
        for kind in STATIC_KINDS {
            self.engage(FLUX_API_VERSION, kind);
        }
    }

    /// Whether every kind watched so far has been listed, or is known not to be served. One that takes long, or cannot
    /// be listed, is not waited for: its objects are read one by one.
    pub fn is_synced(&self) -> bool {
        let owed = |state: &WatchState| matches!(state, WatchState::Starting(since) if since.elapsed() < PATIENCE);
        !self.lock().watches.values().any(|(state, _)| owed(state))
    }

    /// The kinds that are watched from the start and served, and have not been listed yet. What kinds tenants choose for
    /// their producers says nothing about the controller.
    pub fn unlisted(&self) -> Vec<String> {
        let state = self.lock();
        let starting = |state: &WatchState| matches!(state, WatchState::Starting(_));
        let unlisted = state
            .watches
            .iter()
            .filter(|(id, (state, _))| is_static(id) && starting(state));
        let mut kinds: Vec<String> = unlisted.map(|((_, kind), _)| kind.clone()).collect();
        kinds.sort();
        kinds
    }

    /// Makes sure the producers of a kind are watched, for as long as a StageSet refers to one. The kind is the tenants'
    /// choice: of its objects nothing but metadata is read, and of those nobody refers to nothing is kept.
    pub fn engage_producers(self: &Arc<Self>, api_version: &str, kind: &str) {
        let id = (group_of(api_version).to_owned(), kind.to_owned());
        let watched: Vec<(String, String)> = {
            let state = self.lock();
            if state.watches.contains_key(&id) {
                return;
            }
            state.watches.keys().filter(|id| !is_static(id)).cloned().collect()
        };
        // Those that are not served have no task that would end them.
        let unused: Vec<_> = watched
            .iter()
            .filter(|(group, kind)| !self.sets.refer_to(group, kind))
            .collect();
        let missing = |(state, _): &(WatchState, String)| *state == WatchState::Missing;
        {
            let mut state = self.lock();
            state
                .watches
                .retain(|id, watch| !(unused.contains(&id) && missing(watch)));
            if state.watches.len() >= MAX_KINDS {
                tracing::debug!(kind, "too many kinds of producers: this one is not watched");
                return;
            }
        }
        self.engage(api_version, kind);
    }

    /// Makes sure a kind is watched.
    fn engage(self: &Arc<Self>, api_version: &str, kind: &str) {
        self.begin(api_version, kind, &[]);
    }

    /// `patience`: pauses before a kind that is not served counts as missing.
    fn begin(self: &Arc<Self>, api_version: &str, kind: &str, patience: &'static [u64]) {
        let id = (group_of(api_version).to_owned(), kind.to_owned());
        {
            let mut state = self.lock();
            if state.watches.contains_key(&id) {
                return;
            }
            let starting = WatchState::Starting(Instant::now());
            state.watches.insert(id, (starting, api_version.to_owned()));
        }
        let this = self.clone();
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        tokio::spawn(async move { this.run(api_version, kind, patience).await });
    }

    /// A kind that counted as missing is served after all: its watch may begin.
    fn revive(&self, api_version: &str, kind: &str) {
        let id = (group_of(api_version).to_owned(), kind.to_owned());
        let mut state = self.lock();
        if matches!(state.watches.get(&id), Some((WatchState::Missing, _))) {
            state.watches.remove(&id);
        }
    }

    /// A CustomResourceDefinition was established: kinds that waited for it are watched now.
    pub fn established(self: &Arc<Self>, group: &str, kind: &str) {
        let waiting = {
            let mut state = self.lock();
            let id = (group.to_owned(), kind.to_owned());
            match state.watches.get(&id) {
                Some((WatchState::Missing, api_version)) => {
                    let api_version = api_version.clone();
                    state.watches.remove(&id);
                    Some(api_version)
                }
                _ => None,
            }
        };
        if let Some(api_version) = waiting {
            self.cluster.kinds().invalidate();
            self.begin(&api_version, kind, &DISCOVERY_LAG);
        }
    }

    /// Reads a source: from the watch where one covers it, else from the server.
    ///
    /// # Errors
    /// The failed request; [`Error::UnknownKind`] where the kind is not served.
    pub async fn get(self: &Arc<Self>, key: &SourceKey, api_version: &str) -> Result<Option<Arc<Value>>, Error> {
        // Asked first: a watch on one version must not answer for a version that is not served.
        let client = self.cluster.own_client();
        let served = self.cluster.kinds().resolve(&client, api_version, &key.kind);
        served.boxed().await?;
        self.revive(api_version, &key.kind);
        self.engage(api_version, &key.kind);
        if self.covers(key) {
            let state = self.lock();
            return Ok(state.objects.get(key).map(|kept| Arc::new(kept.value())));
        }
        let target = Target {
            api_version: api_version.to_owned(),
            kind: key.kind.clone(),
            namespace: Some(key.namespace.clone()),
            name: key.name.clone(),
        };
        let found = self.cluster.tenant(Identity::Controller).get(&target).await?;
        Ok(found.map(|v| Arc::new(trim(&v))))
    }

    /// The ExternalArtifacts of a namespace that point back at a producer.
    ///
    /// # Errors
    /// The failed request.
    pub async fn artifacts_of(self: &Arc<Self>, producer: &SourceKey) -> Result<Vec<Arc<Value>>, Error> {
        self.engage(FLUX_API_VERSION, "ExternalArtifact");
        let external = SourceKey {
            group: FLUX_GROUP.into(),
            kind: "ExternalArtifact".into(),
            ..producer.clone()
        };
        if self.covers(&external) {
            let state = self.lock();
            let keys = state.by_producer.get(producer);
            return Ok(keys
                .into_iter()
                .flatten()
                .filter_map(|k| state.objects.get(k).map(|kept| Arc::new(kept.value())))
                .collect());
        }
        let kind = Target {
            api_version: FLUX_API_VERSION.into(),
            kind: external.kind.clone(),
            namespace: Some(producer.namespace.clone()),
            name: String::new(),
        };
        let items = self.cluster.tenant(Identity::Controller).list(&kind, None).await?;
        Ok(items
            .iter()
            .filter(|item| SourceKey::back_pointer(item).as_ref() == Some(producer))
            .map(|item| Arc::new(trim(item)))
            .collect())
    }

    fn covers(&self, key: &SourceKey) -> bool {
        let state = self.lock();
        let covers = |namespace| {
            state
                .covered
                .contains(&(key.group.clone(), key.kind.clone(), namespace))
        };
        self.scope.contains(&key.namespace) && (covers(None) || covers(Some(key.namespace.clone())))
    }

    async fn run(self: Arc<Self>, api_version: String, kind: String, patience: &[u64]) {
        let mut pauses = patience.iter();
        let id = (group_of(&api_version).to_owned(), kind.clone());
        let served = loop {
            match self
                .cluster
                .kinds()
                .resolve(&self.cluster.own_client(), &api_version, &kind)
                .await
            {
                Ok(served) => break served,
                Err(Error::UnknownKind { .. }) => match pauses.next() {
                    Some(pause) => {
                        tokio::time::sleep(Duration::from_millis(*pause)).await;
                        self.cluster.kinds().invalidate();
                    }
                    None => {
                        self.set_state(&id, &api_version, WatchState::Missing);
                        return;
                    }
                },
                Err(error) => {
                    tracing::warn!(kind, error = %error, "cannot discover a source kind; trying again");
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            }
        };
        if !served.namespaced {
            // Whoever refers to one names a namespace, so it cannot be meant.
            self.set_state(&id, &api_version, WatchState::Missing);
            return;
        }
        let resource = ApiResource {
            group: id.0.clone(),
            version: served.version.clone(),
            api_version,
            kind,
            plural: served.plural,
        };
        let namespaces: Vec<Option<String>> = match self.scope.0.as_slice() {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        if is_static(&id) {
            let pending = Arc::new(AtomicUsize::new(namespaces.len()));
            for namespace in namespaces {
                tokio::spawn(self.clone().follow(resource.clone(), namespace, pending.clone()));
            }
        } else {
            self.producers(id, resource, namespaces).await;
        }
    }

    fn set_state(&self, id: &(String, String), api_version: &str, new: WatchState) {
        self.lock().watches.insert(id.clone(), (new, api_version.to_owned()));
    }

    async fn follow(self: Arc<Self>, resource: ApiResource, namespace: Option<String>, pending: Arc<AtomicUsize>) {
        let api: Api<DynamicObject> = self.api(&resource, namespace.as_deref());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default().any_semantic()));
        let mut listed: BTreeSet<SourceKey> = BTreeSet::new();
        let mut first = true;
        let mut news = true;
        let mut pause = Duration::from_millis(250);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(self.saw(&resource, object));
                }
                Ok(Event::Apply(object)) => {
                    self.saw(&resource, object);
                }
                Ok(Event::Delete(object)) => self.gone(&resource, &object),
                Ok(Event::InitDone) => {
                    pause = Duration::from_millis(250);
                    news = true;
                    self.retain_listed(&resource, namespace.as_deref(), &listed);
                    let covered = (resource.group.clone(), resource.kind.clone(), namespace.clone());
                    self.lock().covered.insert(covered);
                    if std::mem::take(&mut first) && pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                        let id = (resource.group.clone(), resource.kind.clone());
                        self.set_state(&id, &resource.api_version, WatchState::Live);
                    }
                }
                Err(error) => {
                    if is_not_served(&error) && first {
                        let id = (resource.group.clone(), resource.kind.clone());
                        self.set_state(&id, &resource.api_version, WatchState::Missing);
                        return;
                    }
                    let gvk = format!("{}, Kind={}", resource.api_version, resource.kind);
                    self.metrics.watch_failures.with_label_values(&[&gvk]).inc();
                    if std::mem::take(&mut news) {
                        tracing::warn!(kind = resource.kind, namespace, %error, "watch on a source kind interrupted; trying again");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(30));
                }
            }
        }
    }

    fn api<K>(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let client = self.cluster.own_client();
        match namespace {
            Some(ns) => Api::namespaced_with(client, ns, resource),
            None => Api::all_with(client, resource),
        }
    }

    fn saw(&self, resource: &ApiResource, object: DynamicObject) -> Option<SourceKey> {
        let key = key_of(resource, &object)?;
        let value = trim(&serde_json::to_value(&object).ok()?);
        let producer = SourceKey::back_pointer(&value);
        let mut wakes = Vec::new();
        {
            let mut state = self.lock();
            let before = state.objects.get(&key).map(Kept::value);
            if before.as_ref().map(fingerprint) != Some(fingerprint(&value)) {
                wakes.push(key.clone());
                wakes.extend(producer.clone());
            }
            let old_producer = before.as_ref().and_then(SourceKey::back_pointer);
            if old_producer != producer {
                if let Some(old) = old_producer {
                    forget_producer(&mut state, &old, &key);
                    wakes.push(old);
                }
                if let Some(new) = producer {
                    state.by_producer.entry(new).or_default().insert(key.clone());
                }
            }
            state.objects.insert(key.clone(), Kept::new(&value));
        }
        self.wake_users(&wakes);
        Some(key)
    }

    fn gone(&self, resource: &ApiResource, object: &DynamicObject) {
        if let Some(key) = key_of(resource, object) {
            self.forget(&key);
        }
    }

    fn forget(&self, key: &SourceKey) {
        let mut wakes = vec![key.clone()];
        {
            let mut state = self.lock();
            if let Some(kept) = state.objects.remove(key)
                && let Some(producer) = SourceKey::back_pointer(&kept.value())
            {
                forget_producer(&mut state, &producer, key);
                wakes.push(producer);
            }
        }
        self.wake_users(&wakes);
    }

    fn retain_listed(&self, resource: &ApiResource, namespace: Option<&str>, listed: &BTreeSet<SourceKey>) {
        let gone: Vec<SourceKey> = self
            .lock()
            .objects
            .keys()
            .filter(|k| k.group == resource.group && k.kind == resource.kind)
            .filter(|k| namespace.is_none_or(|ns| ns == k.namespace) && !listed.contains(*k))
            .cloned()
            .collect();
        for key in gone {
            self.forget(&key);
        }
    }

    fn wake_users(&self, keys: &[SourceKey]) {
        for key in keys {
            for owner in self.sets.users_of(key) {
                self.wake.wake(owner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_producer(state: &mut State, producer: &SourceKey, artifact: &SourceKey) {
    if let Some(artifacts) = state.by_producer.get_mut(producer) {
        artifacts.remove(artifact);
        if artifacts.is_empty() {
            state.by_producer.remove(producer);
        }
    }
}

fn is_static((group, kind): &(String, String)) -> bool {
    group == FLUX_GROUP && STATIC_KINDS.contains(&kind.as_str())
}

fn is_not_served(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

fn key_of(resource: &ApiResource, object: &DynamicObject) -> Option<SourceKey> {
    Some(SourceKey {
        group: resource.group.clone(),
        kind: resource.kind.clone(),
        namespace: object.metadata.namespace.clone()?,
        name: object.metadata.name.clone()?,
    })
}

/// Only what resolution reads: a thousand sources cost little memory.
fn trim(object: &Value) -> Value {
    let pick = |from: &str, keys: &[&str]| -> Value {
        let mut out = serde_json::Map::new();
        for key in keys {
            if let Some(value) = object.get(from).and_then(|f| f.get(*key)) {
                out.insert((*key).to_owned(), value.clone());
            }
        }
        Value::Object(out)
    };
    json!({
        "apiVersion": object.get("apiVersion"),
        "kind": object.get("kind"),
        "metadata": pick("metadata", &["name", "namespace", "uid", "generation", "resourceVersion", "deletionTimestamp"]),
        "spec": pick("spec", &["sourceRef", "ref", "suspend", "verify"]),
        "status": pick("status", &["observedGeneration", "conditions", "artifact"]),
    })
}

/// What a StageSet acts upon: artifact and readiness, not heartbeats (run 28 B17).
fn fingerprint(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for pointer in [
        "/metadata/uid",
        "/metadata/generation",
        "/metadata/deletionTimestamp",
        "/spec",
        "/status/observedGeneration",
        "/status/artifact/revision",
        "/status/artifact/digest",
        "/status/artifact/url",
    ] {
        object.pointer(pointer).map(Value::to_string).hash(&mut hasher);
    }
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    for condition in conditions.into_iter().flatten() {
        for key in ["type", "status", "reason"] {
            condition.get(key).and_then(Value::as_str).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(revision: &str, heartbeat: &str) -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 1, "annotations": {"x": heartbeat}},
            "spec": {"sourceRef": {"apiVersion": "p.io/v1", "kind": "P", "name": "x"}},
            "status": {
                "artifact": {"revision": revision, "digest": "sha256:aa", "url": "http://h/a", "lastUpdateTime": heartbeat},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ok", "message": heartbeat}],
            },
        })
    }

    /// Rules: run B17
    #[test]
    fn a_heartbeat_wakes_nobody_and_a_revision_does() {
        let print = |v: &Value| fingerprint(&trim(v));
        assert_eq!(print(&artifact("1", "a")), print(&artifact("1", "b")));
        assert_ne!(print(&artifact("1", "a")), print(&artifact("2", "a")));
    }
}
