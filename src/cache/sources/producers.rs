//! Producers: objects that publish through an ExternalArtifact. One that fails publishes nothing, so only a watch on it
//! tells (run 2.4). It is never read otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::task::JoinSet;

use super::{Sources, WatchState, is_not_served};
use crate::source::SourceKey;

type Metadata = PartialObjectMeta<DynamicObject>;

/// A watch that nobody needs any more ends within this time.
const UNUSED: Duration = Duration::from_secs(30);
/// Objects of one page: a tenant may name a kind with many.
const PAGE: u32 = 100;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);

impl Sources {
    /// Watches the producers of a kind until no StageSet refers to one.
    pub(super) async fn producers(
        self: Arc<Self>,
        id: (String, String),
        resource: ApiResource,
        namespaces: Vec<Option<String>>,
    ) {
        let mut watches = JoinSet::new();
        for namespace in namespaces {
            watches.spawn(self.clone().follow_producers(resource.clone(), namespace));
        }
        let mut look = tokio::time::interval(UNUSED);
        loop {
            tokio::select! {
                _ = look.tick() => if !self.sets.refer_to(&id.0, &id.1) {
                    let mut state = self.lock();
                    state.watches.remove(&id);
                    state.producers.retain(|key, _| (&key.group, &key.kind) != (&id.0, &id.1));
                    return;
                },
                _ = watches.join_next() => {
                    self.set_state(&id, &resource.api_version, WatchState::Missing);
                    return;
                }
            }
        }
    }

    /// Ends where the kind is not served after all.
    async fn follow_producers(self: Arc<Self>, resource: ApiResource, namespace: Option<String>) {
        let api: Api<Metadata> = self.api(&resource, namespace.as_deref());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default().page_size(PAGE)));
        let mut listed = BTreeSet::new();
        let (mut first, mut news, mut pause) = (true, true, FIRST_PAUSE);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.extend(self.saw_producer(&resource, object)),
                Ok(Event::Apply(object)) => drop(self.saw_producer(&resource, object)),
                Ok(Event::Delete(object)) => self.forget_producers(key_of(&resource, &object).as_slice()),
                Ok(Event::InitDone) => {
                    (first, news, pause) = (false, true, FIRST_PAUSE);
                    self.listed_producers(&resource, namespace.as_deref(), &listed);
                }
                Err(error) if first && is_not_served(&error) => return,
                Err(error) => {
                    let gvk = format!("{}, Kind={}", resource.api_version, resource.kind);
                    self.metrics.watch_failures.with_label_values(&[&gvk]).inc();
                    if std::mem::take(&mut news) {
                        let kind = &resource.kind;
                        tracing::warn!(kind, namespace, %error, "watch on a kind of producers interrupted; trying again");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Notes the version of a producer that some StageSet refers to; gives its key then.
    fn saw_producer(&self, resource: &ApiResource, object: Metadata) -> Option<SourceKey> {
        let key = key_of(resource, &object)?;
        let users = self.sets.users_of(&key);
        let version = object.metadata.resource_version.unwrap_or_default();
        let mut state = self.lock();
        if users.is_empty() {
            state.producers.remove(&key);
            return None;
        }
        let news = state.producers.insert(key.clone(), version.clone()).as_ref() != Some(&version);
        drop(state);
        if news {
            self.wake_users(std::slice::from_ref(&key));
        }
        Some(key)
    }

    /// A list is complete: what it does not hold is gone.
    fn listed_producers(&self, resource: &ApiResource, namespace: Option<&str>, listed: &BTreeSet<SourceKey>) {
        let gone: Vec<SourceKey> = {
            let mut state = self.lock();
            let id = (resource.group.clone(), resource.kind.clone());
            if let Some((watch, _)) = state.watches.get_mut(&id) {
                *watch = WatchState::Live;
            }
            let known = state.producers.keys();
            known
                .filter(|key| (&key.group, &key.kind) == (&id.0, &id.1) && !listed.contains(*key))
                .filter(|key| namespace.is_none_or(|ns| ns == key.namespace))
                .cloned()
                .collect()
        };
        self.forget_producers(&gone);
    }

    fn forget_producers(&self, gone: &[SourceKey]) {
        let mut state = self.lock();
        for key in gone {
            state.producers.remove(key);
        }
        drop(state);
        self.wake_users(gone);
    }
}

fn key_of(resource: &ApiResource, object: &Metadata) -> Option<SourceKey> {
    Some(SourceKey {
        group: resource.group.clone(),
        kind: resource.kind.clone(),
        namespace: object.metadata.namespace.clone()?,
        name: object.metadata.name.clone()?,
    })
}
