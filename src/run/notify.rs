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
/// As often as Flux's own controllers try.
const POSTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Events on their way at once, to the API and to Flux each.
const AT_ONCE: usize = 4;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    StageSet,
    /// The one that leadership hangs on. Flux has no alerts about those.
    Lease,
}

/// One event about a StageSet, or about our Lease.
#[derive(Debug, Clone)]
pub struct Notice {
    pub subject: Subject,
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
            subject: Subject::StageSet,
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

    /// The same with the token of the reconcile request it answers.
    #[must_use]
    pub fn with_token(mut self, token: Option<String>) -> Self {
        if let Some(token) = token {
            self.annotations.insert(event_annotation::TOKEN, token);
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
        let (api_version, kind) = match self.subject {
            Subject::StageSet => (API_VERSION, "StageSet"),
            Subject::Lease => ("coordination.k8s.io/v1", "Lease"),
        };
        json!({
            "apiVersion": api_version,
            "kind": kind,
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
            .filter(|_| notice.subject == Subject::StageSet)
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
    let mut pause = FIRST_PAUSE;
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

async fn post_all(http: outbound::Client, url: url::Url, instance: String, notices: mpsc::Receiver<Notice>) {
    let (http, url, instance) = (&http, &url, &instance);
    ReceiverStream::new(notices)
        .for_each_concurrent(AT_ONCE, async |notice| {
            let event = notice.to_flux(instance);
            let mut pause = FIRST_PAUSE;
            for attempt in 1..=POSTS {
                let Err(problem) = post(http, url, &event).await else { return };
                if attempt == POSTS || !problem.may_pass {
                    let (namespace, name, why) = (&notice.namespace, &notice.name, &problem.why);
                    tracing::warn!(namespace, name, address = %outbound::RedactedUrl::from(url), "an event could not be posted: {why}");
                    return;
                }
                tokio::time::sleep(pause).await;
                pause *= 4;
            }
        })
        .await;
}

/// Why an event was not taken, and whether trying again may help.
struct NotPosted {
    why: String,
    may_pass: bool,
}

async fn post(http: &outbound::Client, url: &url::Url, event: &Value) -> Result<(), NotPosted> {
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
        // notification-controller says 429 to an event it has had a moment ago: it is known there.
        Ok(answer) if answer.status.is_success() || answer.status == http::StatusCode::TOO_MANY_REQUESTS => Ok(()),
        Ok(answer) => Err(NotPosted {
            why: format!("the address answered {}", answer.status),
            may_pass: answer.status.is_server_error(),
        }),
        Err(error) => Err(NotPosted {
            why: error.to_string(),
            may_pass: !error.is_terminal(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::extract::{Json, State};
    use http::StatusCode;

    use super::*;

    /// Names of the StageSets that events came about, in order.
    type Came = Arc<Mutex<Vec<String>>>;

    /// Refuses all about `down`, the first two about `shaky`, and takes the rest.
    async fn receive(State(came): State<Came>, Json(event): Json<Value>) -> StatusCode {
        let name = event["involvedObject"]["name"].as_str().unwrap().to_owned();
        let mut came = came.lock().unwrap();
        came.push(name.clone());
        let times = came.iter().filter(|n| **n == name).count();
        match name.as_str() {
            "shaky" if times > 2 => StatusCode::ACCEPTED,
            "down" | "shaky" => StatusCode::SERVICE_UNAVAILABLE,
            "known" => StatusCode::TOO_MANY_REQUESTS,
            "wrong" => StatusCode::BAD_REQUEST,
            _ => StatusCode::ACCEPTED,
        }
    }

    /// Rules: contract 8
    #[tokio::test]
    async fn an_event_that_flux_does_not_take_is_posted_again_beside_the_others() {
        let came = Came::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let router = axum::Router::new().fallback(receive).with_state(came.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let policy = outbound::Policy {
            allow_loopback: true,
            allowed_hosts: None,
        };
        let http = outbound::Client::new(policy).unwrap();
        let (posts, notices) = mpsc::channel(8);
        for name in ["down", "shaky", "known", "wrong", "fine"] {
            let mut notice = Notice::about(&StageSet::default(), Reason::Succeeded, false, "note");
            notice.name = name.to_owned();
            posts.send(notice).await.unwrap();
        }
        drop(posts);
        post_all(http, url, "instance".into(), notices).await;
        let came = came.lock().unwrap();
        let times = |name: &str| came.iter().filter(|n| *n == name).count();
        assert_eq!(
            ["down", "shaky", "known", "wrong", "fine"].map(times),
            [3, 3, 1, 1, 1],
            "{came:?}"
        );
        assert_ne!(came.last().unwrap(), "fine", "it waited for the others: {came:?}");
    }

    #[test]
    fn flux_hears_nothing_of_the_lease() {
        let ((events, mut created), (posts, mut posted)) = (mpsc::channel(1), mpsc::channel(1));
        let notifier = Notifier {
            events,
            posts: Some(posts),
        };
        let mut notice = Notice::about(&StageSet::default(), Reason::LeaderElection, false, "note");
        notice.subject = Subject::Lease;
        notifier.send(notice);
        assert!(posted.try_recv().is_err());
        let event = created.try_recv().unwrap().to_event("instance");
        assert_eq!(event["regarding"]["kind"], "Lease");
        assert_eq!(event["regarding"]["apiVersion"], "coordination.k8s.io/v1");
    }

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
