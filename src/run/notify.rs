//! Events: written to the API (events.k8s.io/v1) and, where an address is given, POSTed the way Flux's
//! notification-controller takes them. Delivery never delays or fails a step (contract 8).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::api::names::{API_VERSION, FIELD_MANAGER, event_annotation};
use crate::api::{Reason, StageSet};
use crate::cluster::{Cluster, Identity, Tenant};
use crate::outbound;
use crate::rules::condition::cut;

/// Longest note the events API takes, in bytes.
const MAX_NOTE: usize = 1024;
/// Events waiting for delivery at most; past it the newest are dropped and logged.
const QUEUE: usize = 4096;
const TRIES: u32 = 4;
/// Events written to the API at once.
const AT_ONCE: usize = 4;

/// One event about a StageSet.
#[derive(Debug, Clone)]
pub struct Notice {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub reason: Reason,
    pub warning: bool,
    pub note: String,
    /// Revision applied or attempted, and the token of the request it answers, for Flux.
    pub annotations: BTreeMap<&'static str, String>,
    pub at: Timestamp,
}

impl Notice {
    /// An event about `set`.
    pub fn about(set: &StageSet, reason: Reason, warning: bool, note: impl Into<String>) -> Self {
        let meta = &set.metadata;
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            reason,
            warning,
            note: note.into(),
            annotations: BTreeMap::new(),
            at: Timestamp::now(),
        }
    }

    /// The same with a revision for people and for commit statuses.
    #[must_use]
    pub fn with_revision(mut self, revision: Option<String>) -> Self {
        if let Some(revision) = revision.filter(|r| !r.is_empty()) {
            self.annotations.insert(event_annotation::REVISION, revision);
        }
        self
    }

    fn to_event(&self, instance: &str) -> Value {
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{}.{:x}", self.name, self.at.as_nanosecond()),
                "namespace": self.namespace,
                "annotations": self.annotations,
            },
            "eventTime": format!("{:.6}", self.at),
            "type": if self.warning { "Warning" } else { "Normal" },
            "reason": self.reason.as_str(),
            "action": self.reason.as_str(),
            "note": cut(self.note.clone(), MAX_NOTE),
            "reportingController": FIELD_MANAGER,
            "reportingInstance": instance,
            "regarding": self.regarding(),
        })
    }

    fn to_flux(&self, instance: &str) -> Value {
        json!({
            "involvedObject": self.regarding(),
            "severity": if self.warning { "error" } else { "info" },
            "timestamp": format!("{:.0}", self.at),
            "message": self.note,
            "reason": self.reason.as_str(),
            "metadata": self.annotations,
            "reportingController": FIELD_MANAGER,
            "reportingInstance": instance,
        })
    }

    fn regarding(&self) -> Value {
        json!({
            "apiVersion": API_VERSION,
            "kind": "StageSet",
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        })
    }
}

/// Where events go.
#[derive(Clone)]
pub struct Notifier {
    events: mpsc::Sender<Notice>,
    /// For Flux, where an address is given: a queue of its own, so that a slow receiver delays nothing else.
    posts: Option<mpsc::Sender<Notice>>,
}

impl Notifier {
    /// Starts delivery. `address` is where Flux events are POSTed.
    pub fn start(cluster: Arc<Cluster>, http: outbound::Client, address: Option<url::Url>) -> Self {
        let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| FIELD_MANAGER.to_owned());
        let (events, notices) = mpsc::channel(QUEUE);
        tokio::spawn(deliver(cluster, instance.clone(), notices));
        let posts = address.map(|url| {
            let (posts, notices) = mpsc::channel(QUEUE);
            tokio::spawn(post_all(http, url, instance, notices));
            posts
        });
        Self { events, posts }
    }

    /// Hands an event over for delivery.
    pub fn send(&self, notice: Notice) {
        let posted = self
            .posts
            .as_ref()
            .is_none_or(|posts| posts.try_send(notice.clone()).is_ok());
        // A receiver that does not answer fills its own queue only.
        let created = self.events.try_send(notice).is_ok();
        if !posted || !created {
            tracing::warn!("an event was dropped: more are waiting than can be delivered");
        }
    }
}

async fn deliver(cluster: Arc<Cluster>, instance: String, notices: mpsc::Receiver<Notice>) {
    let tenant = cluster.tenant(Identity::Controller);
    ReceiverStream::new(notices)
        .for_each_concurrent(AT_ONCE, |notice| create(&tenant, &instance, notice))
        .await;
}

async fn create(tenant: &Tenant, instance: &str, notice: Notice) {
    let event = notice.to_event(instance);
    let mut pause = Duration::from_millis(200);
    for attempt in 1..=TRIES {
        match tenant.create(&event, FIELD_MANAGER).await {
            Ok(_) => break,
            Err(e) if e.is_transient() && attempt < TRIES => {
                tokio::time::sleep(pause).await;
                pause *= 4;
            }
            Err(error) => {
                tracing::warn!(%error, namespace = notice.namespace, name = notice.name, "an event could not be written");
                break;
            }
        }
    }
}

async fn post_all(http: outbound::Client, url: url::Url, instance: String, mut notices: mpsc::Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        post(&http, &url, &notice.to_flux(&instance)).await;
    }
}

async fn post(http: &outbound::Client, url: &url::Url, event: &Value) {
    let mut request = outbound::Request::get(url.clone());
    request.method = http::Method::POST;
    request.headers.insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    request.body = serde_json::to_vec(event).ok().map(Into::into);
    let limits = outbound::Limits {
        body: 4096,
        overflow: outbound::Overflow::Truncate,
        total: Duration::from_secs(5),
        pace: None,
    };
    match http.send(request, &limits).await {
        Ok(answer) if answer.status.is_success() => {}
        Ok(answer) => tracing::warn!(status = answer.status.as_u16(), "the events address refused an event"),
        Err(error) => tracing::warn!(%error, "an event could not be posted to the events address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: contract 8
    #[test]
    fn a_receiver_that_keeps_its_events_waiting_costs_none_of_the_others() {
        let ((events, mut created), (posts, mut posted)) = (mpsc::channel(8), mpsc::channel(1));
        let notifier = Notifier {
            events,
            posts: Some(posts),
        };
        for _ in 0..3 {
            notifier.send(Notice::about(&StageSet::default(), Reason::StageFailed, true, "note"));
        }
        let count = |queue: &mut mpsc::Receiver<Notice>| std::iter::from_fn(|| queue.try_recv().ok()).count();
        assert_eq!((count(&mut created), count(&mut posted)), (3, 1));
    }
}
