//! A server that a tenant names, and that answers without end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::json;

use super::watch::{Coverage, Hub, Owner, WatchKey};
use super::{Cluster, Error, Identity, Target};

/// What the server sends without end.
#[derive(Clone)]
struct Endless {
    /// Bytes of each object.
    object: usize,
    /// It is the same object again and again.
    changes: bool,
    sent: Arc<AtomicUsize>,
}

impl Endless {
    fn of(object: usize) -> Self {
        Self {
            object,
            changes: false,
            sent: Arc::default(),
        }
    }

    fn next(&self) -> serde_json::Value {
        let at = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
        let id = if self.changes { 0 } else { at };
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": format!("{id}-{}", "x".repeat(self.object)), "uid": id.to_string(), "resourceVersion": at.to_string(),
            "labels": { "stages.metio.wtf/name": "shop", "stages.metio.wtf/namespace": "ns" } } })
    }

    fn answer(&self, uri: &http::Uri) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let whole = |value: serde_json::Value| Full::new(Bytes::from(value.to_string())).boxed_unsync();
        let pods = json!({ "resource": "pods", "responseKind": { "group": "", "version": "v1", "kind": "Pod" },
            "scope": "Namespaced", "singularResource": "pod", "verbs": ["list", "watch"] });
        let body = match uri.path() {
            "/api" | "/apis" => whole(
                json!({ "apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList", "metadata": {},
                "items": [{ "metadata": { "name": "" }, "versions": [{ "version": "v1", "resources": [pods] }] }] }),
            ),
            path if path.ends_with("/fat") => whole(json!({ "data": "x".repeat(8 << 20) })),
            path if path.ends_with("/dense") => whole(json!({ "data": vec![0; 1 << 20] })),
            path if path.ends_with("/nested") => {
                let nested = "[".repeat(120) + &"]".repeat(120);
                Full::new(Bytes::from(format!("[{}]", vec![nested; 2000].join(",")))).boxed_unsync()
            }
            _ if uri.query().is_some_and(|q| q.contains("watch=true")) => {
                let this = self.clone();
                let events = futures::stream::repeat_with(move || {
                    let line = json!({ "type": "ADDED", "object": this.next() }).to_string() + "\n";
                    Ok::<_, Infallible>(Frame::data(Bytes::from(line)))
                });
                StreamBody::new(events.boxed()).boxed_unsync()
            }
            _ if uri.query().is_some_and(|q| q.contains("resourceVersion=0")) => {
                whole(json!({ "metadata": { "resourceVersion": "1" }, "items": [] }))
            }
            _ => whole(json!({ "metadata": { "resourceVersion": "1", "continue": "more" }, "items": [self.next()] })),
        };
        Response::new(body)
    }

    fn cluster(&self, key: &str) -> Arc<Cluster> {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.answer(request.uri())) }
        });
        Cluster::of_client(key, Client::new(service, "default"))
    }
}

fn pods() -> Target {
    Target {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: Some("ns".into()),
        name: String::new(),
    }
}

/// Rules: decisions 7 memory
#[tokio::test]
async fn a_list_without_end_is_given_up() {
    let fat = Endless::of(1 << 20);
    let listed = fat
        .cluster("far")
        .tenant(Identity::Controller)
        .list(&pods(), None)
        .await;
    assert!(matches!(listed, Err(Error::TooLarge { .. })), "{listed:?}");
    assert!(fat.sent.load(Ordering::SeqCst) < 40);
    let thin = Endless::of(0);
    let listed = thin.cluster("").tenant(Identity::Controller).list(&pods(), None).await;
    assert!(matches!(listed, Err(Error::TooLarge { .. })), "{listed:?}");
}

/// Rules: decisions 7 memory
#[tokio::test]
async fn a_watch_that_tells_of_ever_more_objects_is_given_up_and_polled() {
    floods(Endless::of(2000), "more objects").await;
}

/// Rules: decisions 7 memory
#[tokio::test]
async fn a_watch_that_tells_of_ever_more_changes_is_given_up_and_polled() {
    let server = Endless {
        changes: true,
        ..Endless::of(10)
    };
    floods(server, "more changes").await;
}

async fn floods(server: Endless, expected: &str) {
    let tenant = server.cluster("far").tenant(Identity::Controller);
    let (wake, mut woken) = super::watch::queue();
    let hub = Hub::new(wake, 10);
    let owner = Owner {
        namespace: "ns".into(),
        name: "shop".into(),
    };
    let served = tenant.served("v1", "Pod").await.unwrap();
    let key = WatchKey::of("far", tenant.identity(), &pods(), true);
    let given_up = async {
        loop {
            if let Coverage::Flooded(why) = hub.watch(&key, &served, &tenant, &owner) {
                break why;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let why = tokio::time::timeout(Duration::from_secs(60), given_up).await.unwrap();
    assert!(why.contains(expected), "{why}");
    assert_eq!(woken.next().await, owner);
    assert!(server.sent.load(Ordering::SeqCst) < 50_000, "{:?}", server.sent);
}

/// Rules: decisions 7 memory
#[tokio::test]
async fn an_object_larger_than_any_is_not_taken_in() {
    let (far, local) = (Endless::of(0).cluster("far"), Endless::of(0).cluster(""));
    for name in ["fat", "dense", "nested"] {
        let target = Target {
            name: name.into(),
            ..pods()
        };
        let read = far.tenant(Identity::Controller).get(&target).await;
        assert!(matches!(read, Err(Error::TooLarge { .. })), "{name}");
        let trusted = local.tenant(Identity::Controller).get(&target).await;
        assert!(trusted.is_ok(), "the own server is trusted");
    }
}

/// A cluster that gives one answer to everything.
fn same(code: u16, body: String) -> Arc<Cluster> {
    let body = Bytes::from(body);
    let service = tower::service_fn(move |_: Request<Body>| {
        let body = Full::new(body.clone());
        async move { Response::builder().status(code).body(body) }
    });
    Cluster::of_client("far", Client::new(service, "default"))
}

/// Rules: decisions 7 memory
#[tokio::test]
async fn neither_discovery_nor_identity_nor_failures_are_taken_in_without_end() {
    let limit = |error: &Error| match error {
        Error::TooLarge { limit, .. } => *limit,
        _ => "none",
    };
    let countless = json!({ "items": vec![json!({}); 600_000] }).to_string();
    let discovered = same(200, countless)
        .tenant(Identity::Controller)
        .served("v1", "Pod")
        .await;
    assert_eq!(discovered.as_ref().map_err(limit), Err("half a million values"));
    let kinds = vec![json!({ "resource": "x", "responseKind": { "kind": "X" }, "verbs": [] }); 5001];
    let many =
        json!({ "items": [{ "metadata": { "name": "g" }, "versions": [{ "version": "v1", "resources": kinds }] }] });
    let many = same(200, many.to_string());
    let discovered = many.tenant(Identity::Controller).served("v1", "Pod").await;
    assert_eq!(discovered.as_ref().map_err(limit), Err("5,000 kinds"));
    let fat = json!({ "metadata": { "uid": "u", "name": "x".repeat(2 << 20) } }).to_string();
    assert_eq!(same(200, fat).id().await.map_err(|e| limit(&e)), Err("1 MiB"));
    let causes = json!({ "code": 403, "reason": "Forbidden", "details": { "causes": vec![json!({}); 40_000] } });
    let refused = same(403, causes.to_string());
    assert_eq!(refused.id().await.map_err(|e| limit(&e)), Err("50,000 values"));
}
