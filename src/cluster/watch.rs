//! Watches on what was applied: one per (cluster, identity, namespace, kind), metadata only, shared
//! by every StageSet of that identity. They say *that* an object changed; its content is read by the
//! run when it is needed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::{Identity, Served, Target, Tenant};
use crate::api::names::label;

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
    /// Which cluster; empty for the local one.
    pub cluster: String,
    pub identity: Identity,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    pub api_version: String,
    pub kind: String,
}

impl WatchKey {
    /// The watch that covers `target`.
    pub fn of(cluster: &str, identity: &Identity, target: &Target, namespaced: bool) -> Self {
        Self {
            cluster: cluster.to_owned(),
            identity: identity.clone(),
            namespace: target.namespace.clone().filter(|_| namespaced),
            api_version: target.api_version.clone(),
            kind: target.kind.clone(),
        }
    }
}

/// How far a watch can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage {
    /// Every change since the initial list is known.
    Live,
    /// Not listed yet.
    Starting,
    /// The identity may not list or watch the kind; the text is the server's.
    Denied(String),
    /// No watch: the cap is reached.
    None,
}

/// What is known of one object without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// Nothing happened to it since the version given.
    Unchanged,
    /// It changed, was deleted or recreated, or nothing is known.
    Unknown,
}

#[derive(Debug, Clone)]
struct Seen {
    uid: String,
    version: u64,
    owner: Option<Owner>,
    deleted: bool,
}

struct Entry {
    objects: HashMap<String, Seen>,
    coverage: Coverage,
    users: HashSet<Owner>,
    task: AbortHandle,
}

/// The shared watches.
pub struct Hub {
    watches: Mutex<HashMap<WatchKey, Entry>>,
    wake: UnboundedSender<Owner>,
    max: usize,
}

/// Pause before a refused or broken watch is tried again.
const RETRY_DENIED: Duration = Duration::from_secs(30);

impl Hub {
    /// `wake` receives the owner of every object that changed; at most `max` watches run.
    pub fn new(wake: UnboundedSender<Owner>, max: usize) -> Arc<Self> {
        Arc::new(Self {
            watches: Mutex::default(),
            wake,
            max,
        })
    }

    /// Wakes StageSets for another reason than a watch.
    pub fn wake_all(&self, owners: &[Owner]) {
        for owner in owners {
            let _ = self.wake.send(owner.clone());
        }
    }

    /// Number of watches running.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no watch runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes sure a watch covers `key` on behalf of `owner`, and tells how far it can be trusted.
    pub fn watch(self: &Arc<Self>, key: &WatchKey, served: &Served, tenant: &Tenant, owner: &Owner) -> Coverage {
        let mut watches = self.lock();
        if let Some(entry) = watches.get_mut(key) {
            entry.users.insert(owner.clone());
            return entry.coverage.clone();
        }
        if watches.len() >= self.max {
            return Coverage::None;
        }
        let task = tokio::spawn(self.clone().follow(key.clone(), served.clone(), tenant.clone()));
        watches.insert(
            key.clone(),
            Entry {
                objects: HashMap::new(),
                coverage: Coverage::Starting,
                users: HashSet::from([owner.clone()]),
                task: task.abort_handle(),
            },
        );
        Coverage::Starting
    }

    /// States the complete set of watches `owner` still needs; those nobody needs end.
    pub fn keep_only(&self, owner: &Owner, needed: &HashSet<WatchKey>) {
        self.lock().retain(|key, entry| {
            if !needed.contains(key) {
                entry.users.remove(owner);
            }
            if entry.users.is_empty() {
                entry.task.abort();
            }
            !entry.users.is_empty()
        });
    }

    /// Whether an object is still exactly the one known by uid and resourceVersion.
    pub fn knows(&self, key: &WatchKey, name: &str, uid: &str, version: u64) -> Knowledge {
        let watches = self.lock();
        let Some(entry) = watches.get(key).filter(|e| e.coverage == Coverage::Live) else {
            return Knowledge::Unknown;
        };
        match entry.objects.get(name) {
            // Not reported yet: our own write is ahead of the watch.
            None => Knowledge::Unchanged,
            Some(seen) if seen.deleted && seen.version >= version => Knowledge::Unknown,
            Some(seen) if seen.version > version => Knowledge::Unknown,
            Some(seen) if seen.version == version && seen.uid != uid => Knowledge::Unknown,
            Some(_) => Knowledge::Unchanged,
        }
    }

    /// Notes a version the run has just read or written, so that its echo wakes nobody.
    pub fn note(&self, key: &WatchKey, name: &str, uid: &str, version: u64, owner: &Owner) {
        if let Some(entry) = self.lock().get_mut(key) {
            let newer = entry.objects.get(name).is_none_or(|s| s.version < version);
            if newer {
                entry.objects.insert(
                    name.to_owned(),
                    Seen {
                        uid: uid.to_owned(),
                        version,
                        owner: Some(owner.clone()),
                        deleted: false,
                    },
                );
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WatchKey, Entry>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow(self: Arc<Self>, key: WatchKey, served: Served, tenant: Tenant) {
        let (group, _) = key.api_version.split_once('/').unwrap_or(("", ""));
        let resource = ApiResource {
            group: group.to_owned(),
            version: served.version.clone(),
            api_version: key.api_version.clone(),
            kind: key.kind.clone(),
            plural: served.plural.clone(),
        };
        let client = tenant.client().clone();
        let api: Api<PartialObjectMeta<DynamicObject>> = match &key.namespace {
            Some(ns) => Api::namespaced_with(client, ns, &resource),
            None => Api::all_with(client, &resource),
        };
        let config = watcher::Config::default().labels(label::NAME).any_semantic();
        let mut events = std::pin::pin!(watcher(api, config));
        let mut listed: HashSet<String> = HashSet::new();
        let mut pause = Duration::from_millis(200);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    pause = Duration::from_millis(200);
                    self.take(&key, event, &mut listed);
                }
                Err(error) => {
                    let denied = denial(&error);
                    tracing::debug!(kind = key.kind, identity = %key.identity, %error, "watch interrupted");
                    pause = if denied.is_some() {
                        RETRY_DENIED
                    } else {
                        (pause * 2).min(RETRY_DENIED)
                    };
                    self.interrupted(&key, denied);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn interrupted(&self, key: &WatchKey, denied: Option<String>) {
        let mut watches = self.lock();
        let Some(entry) = watches.get_mut(key) else {
            return;
        };
        let before = entry.coverage.clone();
        entry.coverage = denied.map_or(Coverage::Starting, Coverage::Denied);
        if entry.coverage != before && matches!(entry.coverage, Coverage::Denied(_)) {
            for user in &entry.users {
                let _ = self.wake.send(user.clone());
            }
        }
    }

    fn take(&self, key: &WatchKey, event: Event<PartialObjectMeta<DynamicObject>>, listed: &mut HashSet<String>) {
        let mut watches = self.lock();
        let Some(entry) = watches.get_mut(key) else {
            return;
        };
        let woken = match event {
            Event::Init => {
                listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(name) = &object.metadata.name {
                    listed.insert(name.clone());
                }
                entry.saw(&object, false)
            }
            Event::Apply(object) => entry.saw(&object, false),
            Event::Delete(object) => entry.saw(&object, true),
            Event::InitDone => entry.list_ended(listed),
        };
        for owner in woken {
            let _ = self.wake.send(owner);
        }
    }
}

impl Entry {
    fn saw(&mut self, object: &PartialObjectMeta<DynamicObject>, deleted: bool) -> Vec<Owner> {
        let meta = &object.metadata;
        let (Some(name), Some(uid)) = (&meta.name, &meta.uid) else {
            return Vec::new();
        };
        let version = parse_version(meta.resource_version.as_deref());
        let owner = owner_of(meta.labels.as_ref());
        let before = self.objects.get(name);
        let stale = before.is_some_and(|s| s.version > version || (s.version == version && s.deleted == deleted));
        if stale {
            return Vec::new();
        }
        let previous = before.and_then(|s| s.owner.clone());
        let mut woken: Vec<Owner> = owner.iter().cloned().collect();
        woken.extend(previous.filter(|p| Some(p) != owner.as_ref()));
        self.objects.insert(
            name.clone(),
            Seen {
                uid: uid.clone(),
                version,
                owner,
                deleted,
            },
        );
        woken.retain(|w| self.users.contains(w));
        woken
    }

    fn list_ended(&mut self, listed: &HashSet<String>) -> Vec<Owner> {
        self.coverage = Coverage::Live;
        let mut woken: HashSet<Owner> = HashSet::new();
        for (name, seen) in &mut self.objects {
            if !listed.contains(name) && !seen.deleted {
                seen.deleted = true;
                woken.extend(seen.owner.clone());
            }
        }
        woken.into_iter().filter(|w| self.users.contains(w)).collect()
    }
}

fn owner_of(labels: Option<&std::collections::BTreeMap<String, String>>) -> Option<Owner> {
    let labels = labels?;
    Some(Owner {
        namespace: labels.get(label::NAMESPACE)?.clone(),
        name: labels.get(label::NAME)?.clone(),
    })
}

fn denial(error: &watcher::Error) -> Option<String> {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(s))
        | watcher::Error::WatchStartFailed(kube::Error::Api(s)) => s,
        watcher::Error::WatchError(s) => s,
        _ => return None,
    };
    (status.code == 403).then(|| status.message.clone())
}

/// A resourceVersion as a number. The API server documents them as comparable integers (KEP-5504);
/// anything else counts as never seen.
pub fn parse_version(text: Option<&str>) -> u64 {
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}
