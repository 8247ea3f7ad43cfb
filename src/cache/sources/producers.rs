//! Producers: objects that publish through an ExternalArtifact. One that fails publishes nothing, so only a watch on it
//! tells (run 2.4). It is never read otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Sources, WatchState, is_not_served};
use crate::source::SourceKey;

type Metadata = PartialObjectMeta<DynamicObject>;

/// A watch that nobody needs any more ends within this time.
const UNUSED: Duration = Duration::from_secs(30);
/// Objects of one page: a tenant may name a kind with many.
const PAGE: u32 = 100;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// A producer that is only written to, as by a heartbeat, starts a pass no more often.
const WAKE_EVERY: Duration = Duration::from_secs(30);

/// What is known of a producer.
#[derive(Debug, Default)]
pub(super) struct Producer {
    uid: String,
    generation: Option<i64>,
    deleting: bool,
    version: String,
    /// When it last woke its users by a mere write.
    woken_at: Option<Instant>,
    /// Written to since then.
    owes: bool,
}

/// Whether the users of a producer are to look at it.
#[derive(Debug, PartialEq, Eq)]
enum Wake {
    No,
    Now,
    At(Instant),
}

impl Producer {
    /// Takes note of what the server tells.
    fn saw(&mut self, meta: ObjectMeta, now: Instant) -> Wake {
        let uid = meta.uid.unwrap_or_default();
        let version = meta.resource_version.unwrap_or_default();
        let deleting = meta.deletion_timestamp.is_some();
        let other = (&self.uid, self.generation, self.deleting) != (&uid, meta.generation, deleting);
        let written = self.version != version;
        (self.uid, self.generation, self.deleting, self.version) = (uid, meta.generation, deleting, version);
        if other {
            return Wake::Now;
        }
        if !written || self.owes {
            return Wake::No;
        }
        match self.woken_at.map(|at| at + WAKE_EVERY).filter(|at| *at > now) {
            Some(at) => {
                self.owes = true;
                Wake::At(at)
            }
            None => {
                self.woken_at = Some(now);
                Wake::Now
            }
        }
    }

    /// The time has come that was told of; `false` where nothing is owed any more.
    fn falls_due(&mut self, now: Instant) -> bool {
        if self.owes {
            self.woken_at = Some(now);
        }
        std::mem::take(&mut self.owes)
    }
}

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

    /// Takes note of a producer that some StageSet refers to; gives its key then.
    fn saw_producer(self: &Arc<Self>, resource: &ApiResource, object: Metadata) -> Option<SourceKey> {
        let key = key_of(resource, &object)?;
        let users = self.sets.users_of(&key);
        let mut state = self.lock();
        if users.is_empty() {
            state.producers.remove(&key);
            return None;
        }
        let producer = state.producers.entry(key.clone()).or_default();
        let wake = producer.saw(object.metadata, Instant::now());
        drop(state);
        match wake {
            Wake::No => {}
            Wake::Now => self.wake_users(std::slice::from_ref(&key)),
            Wake::At(at) => drop(tokio::spawn(self.clone().wake_later(key.clone(), at))),
        }
        Some(key)
    }

    async fn wake_later(self: Arc<Self>, key: SourceKey, at: Instant) {
        tokio::time::sleep_until(at).await;
        let mut state = self.lock();
        let due = state
            .producers
            .get_mut(&key)
            .is_some_and(|p| p.falls_due(Instant::now()));
        drop(state);
        if due {
            self.wake_users(&[key]);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(uid: &str, generation: i64, version: &str) -> ObjectMeta {
        ObjectMeta {
            uid: Some(uid.into()),
            generation: Some(generation),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        }
    }

    /// Rules: run 2.4.6, run B17
    #[test]
    fn heartbeats_of_a_producer_wake_now_and_then_and_its_changes_at_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut producer = Producer::default();
        assert_eq!(producer.saw(meta("u", 1, "1"), start), Wake::Now, "it is new");
        assert_eq!(
            producer.saw(meta("u", 1, "1"), start),
            Wake::No,
            "a list tells of it again"
        );
        assert_eq!(producer.saw(meta("u", 1, "2"), after(1)), Wake::Now, "its status");
        assert_eq!(producer.saw(meta("u", 1, "3"), after(2)), Wake::At(after(31)));
        assert_eq!(
            producer.saw(meta("u", 1, "4"), after(3)),
            Wake::No,
            "that is owed already"
        );
        assert_eq!(producer.saw(meta("u", 2, "5"), after(4)), Wake::Now, "its spec");
        assert!(producer.falls_due(after(31)));
        assert!(!producer.falls_due(after(31)), "once");
        assert_eq!(producer.saw(meta("u", 2, "6"), after(40)), Wake::At(after(61)));
        assert_eq!(
            producer.saw(meta("v", 2, "7"), after(41)),
            Wake::Now,
            "another of that name"
        );
        let deleted = ObjectMeta {
            deletion_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                jiff::Timestamp::UNIX_EPOCH,
            )),
            ..meta("v", 2, "8")
        };
        assert_eq!(producer.saw(deleted, after(42)), Wake::Now, "its end");
    }
}
