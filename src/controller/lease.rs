//! Leadership: one replica reconciles (contract 6). The lease is renewed in time or the process ends, so two
//! replicas never act at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use crate::api::Reason;
use crate::api::names::FIELD_MANAGER;
use crate::cluster::{Cluster, Error, Identity, Target, resource_version, uid};
use crate::run::{Notice, Subject};

const LEASE: &str = "stageset-controller.stages.metio.wtf";
/// How long a lease holds without renewal.
const DURATION: Duration = Duration::from_secs(15);
const TIMES: Times = Times {
    deadline: Duration::from_secs(10),
    attempt: Duration::from_secs(4),
    retry: Duration::from_secs(2),
};

#[derive(Clone, Copy)]
struct Times {
    /// A holder that could not renew for so long gives up.
    deadline: Duration,
    /// One try may take so long: a request that hangs must not use up the deadline, and what an answer tells is no older.
    attempt: Duration,
    /// Pause between tries.
    retry: Duration,
}

/// One replica's claim to the lease.
pub struct Lease {
    cluster: Arc<Cluster>,
    target: Target,
    holder: String,
    /// The lease as last seen, and when: expiry is judged by our own clock.
    seen: Option<(String, Instant)>,
    /// When the try began that last made it ours: others count from when the server stored it, which is no earlier.
    renewed: Option<Instant>,
    /// UID and version of the lease as we last wrote it.
    written: (String, String),
    times: Times,
}

impl Lease {
    /// A claim in `namespace`, under a holder name of its own.
    pub fn new(cluster: Arc<Cluster>, namespace: &str) -> Self {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| FIELD_MANAGER.to_owned());
        Self {
            cluster,
            target: Target {
                api_version: "coordination.k8s.io/v1".into(),
                kind: "Lease".into(),
                namespace: Some(namespace.to_owned()),
                name: LEASE.into(),
            },
            holder: format!("{host}_{}", uuid::Uuid::new_v4()),
            seen: None,
            renewed: None,
            written: Default::default(),
            times: TIMES,
        }
    }

    /// Waits until the lease is ours.
    pub async fn acquire(&mut self) {
        let Times { attempt, retry, .. } = self.times;
        loop {
            match self.attempt(attempt).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be taken; trying again"),
                Err(_) => tracing::warn!("the lease could not be taken in {attempt:?}; trying again"),
            }
            tokio::time::sleep(retry).await;
        }
    }

    /// Renews until that fails for the deadline; then returns, and the process must end. May be dropped and called anew.
    pub async fn keep(&mut self) {
        let Times { attempt, retry, .. } = self.times;
        loop {
            tokio::time::sleep(retry.min(self.left())).await;
            let left = self.left();
            if left.is_zero() {
                return;
            }
            match self.attempt(left.min(attempt)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed; trying again"),
                Err(_) => tracing::warn!("the lease could not be renewed in {attempt:?}; trying again"),
            }
        }
    }

    /// How long the lease may be relied upon without a renewal.
    fn left(&self) -> Duration {
        let since = self.renewed.map_or(Duration::MAX, |at| at.elapsed());
        self.times.deadline.saturating_sub(since)
    }

    /// One try; what it tells counts from its beginning, since the server may have stored it long before it answered.
    async fn attempt(&mut self, within: Duration) -> Result<Result<bool, Error>, Elapsed> {
        let began = Instant::now();
        let taken = tokio::time::timeout(within, self.try_take()).await?;
        if matches!(taken, Ok(true)) {
            self.renewed = Some(began);
        }
        Ok(taken)
    }

    async fn try_take(&mut self) -> Result<bool, Error> {
        let tenant = self.cluster.tenant(Identity::Controller);
        let now = Timestamp::now();
        let Some(mut lease) = tenant.get(&self.target).await? else {
            return match tenant.create(&self.fresh(now), FIELD_MANAGER).await {
                Ok(lease) => {
                    self.wrote(&lease);
                    Ok(true)
                }
                Err(e) if e.already_exists() => Ok(false),
                Err(e) => Err(e),
            };
        };
        let holder = lease
            .pointer("/spec/holderIdentity")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if holder != self.holder && !holder.is_empty() && !self.has_expired(&lease) {
            return Ok(false);
        }
        let transitions = lease
            .pointer("/spec/leaseTransitions")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        let spec = lease.get_mut("spec").and_then(Value::as_object_mut);
        if let Some(spec) = spec {
            spec.insert("renewTime".into(), micro(now));
            if holder != self.holder {
                spec.insert("holderIdentity".into(), json!(self.holder));
                spec.insert("acquireTime".into(), micro(now));
                spec.insert("leaseTransitions".into(), json!(transitions + 1));
                spec.insert("leaseDurationSeconds".into(), json!(DURATION.as_secs()));
            }
        }
        // Somebody else wrote in between: whether that was another holder, only the next look tells.
        let lease = tenant.replace(&lease, FIELD_MANAGER).await?;
        self.wrote(&lease);
        Ok(true)
    }

    fn wrote(&mut self, lease: &Value) {
        self.written = (uid(lease).to_owned(), resource_version(lease).to_owned());
    }

    /// The event that says who leads now.
    pub fn taken(&self) -> Notice {
        let (uid, resource_version) = self.written.clone();
        Notice {
            subject: Subject::Lease,
            namespace: self.target.namespace.clone().unwrap_or_default(),
            name: LEASE.into(),
            uid,
            resource_version,
            reason: Reason::LeaderElection,
            warning: false,
            note: format!("{} became leader", self.holder),
            annotations: BTreeMap::new(),
            at: Timestamp::now(),
        }
    }

    /// A lease has expired once we have seen it unchanged for its duration: another machine's clock is not trusted.
    fn has_expired(&mut self, lease: &Value) -> bool {
        let version = resource_version(lease).to_owned();
        let duration = lease
            .pointer("/spec/leaseDurationSeconds")
            .and_then(Value::as_u64)
            .map_or(DURATION, Duration::from_secs);
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed() >= duration,
            _ => {
                self.seen = Some((version, Instant::now()));
                false
            }
        }
    }

    fn fresh(&self, now: Timestamp) -> Value {
        json!({
            "apiVersion": self.target.api_version,
            "kind": self.target.kind,
            "metadata": {"name": LEASE, "namespace": self.target.namespace},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": DURATION.as_secs(),
                "acquireTime": micro(now),
                "renewTime": micro(now),
                "leaseTransitions": 0,
            },
        })
    }
}

fn micro(at: Timestamp) -> Value {
    Value::String(format!("{at:.6}"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    use bytes::Bytes;
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt, Full};
    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// A server with one lease.
    #[derive(Default)]
    struct Server {
        lease: Mutex<Option<(Bytes, Instant)>>,
        /// Writes that are stored and answered; those after them are stored only.
        answered: AtomicUsize,
        writes: AtomicUsize,
    }

    impl Server {
        async fn answer(&self, request: Request<Body>) -> Response<Full<Bytes>> {
            let whole = |code: u16, body: Bytes| {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
                response
            };
            if matches!(request.uri().path(), "/api" | "/apis") {
                let leases = json!({ "resource": "leases", "responseKind": { "group": "coordination.k8s.io", "version": "v1",
                    "kind": "Lease" }, "scope": "Namespaced", "singularResource": "lease", "verbs": ["get"] });
                let groups = json!({ "metadata": {}, "items": [{ "metadata": { "name": "coordination.k8s.io" },
                    "versions": [{ "version": "v1", "resources": [leases] }] }] });
                return whole(200, groups.to_string().into());
            }
            if request.method() == Method::GET {
                let missing = json!({ "code": 404, "reason": "NotFound", "details": { "name": LEASE } });
                return match self.stored() {
                    Some((lease, _)) => whole(200, lease),
                    None => whole(404, missing.to_string().into()),
                };
            }
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some((body.clone(), Instant::now()));
            if self.writes.fetch_add(1, Ordering::SeqCst) >= self.answered.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            whole(200, body)
        }

        fn stored(&self) -> Option<(Bytes, Instant)> {
            self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    fn claim(server: &Arc<Server>, times: Times) -> Lease {
        let server = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let cluster = Cluster::of_client("", Client::new(service, "default"));
        Lease {
            times,
            ..Lease::new(cluster, "ns")
        }
    }

    const MANY: usize = 1000;

    /// Rules: run 24 leader
    #[tokio::test]
    async fn a_try_that_hangs_does_not_take_a_lease_late() {
        let server = Arc::new(Server::default());
        let times = Times {
            attempt: Duration::from_millis(200),
            retry: Duration::from_millis(10),
            ..TIMES
        };
        let mut lease = claim(&server, times);
        let answers = async {
            while server.writes.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            server.answered.store(MANY, Ordering::SeqCst);
        };
        let taken = async { tokio::join!(lease.acquire(), answers) };
        tokio::time::timeout(Duration::from_secs(10), taken)
            .await
            .expect("taken by another try");
        let stored = server.stored().map(|(_, at)| at);
        assert!(
            server.writes.load(Ordering::SeqCst) > 1 && lease.renewed <= stored,
            "it counts from before it was stored"
        );
    }

    /// Rules: run 24 leader
    #[tokio::test]
    async fn a_lease_is_no_fresher_for_being_kept_anew() {
        let server = Arc::new(Server::default());
        server.answered.store(1, Ordering::SeqCst);
        let times = Times {
            deadline: Duration::from_secs(2),
            attempt: Duration::from_millis(100),
            retry: Duration::from_millis(10),
        };
        let mut lease = claim(&server, times);
        lease.acquire().await;
        let renewed = lease.renewed.expect("it is held");
        assert!(
            tokio::time::timeout(Duration::from_secs(1), lease.keep())
                .await
                .is_err()
        );
        tokio::time::timeout(Duration::from_secs(10), lease.keep())
            .await
            .expect("it is lost");
        assert!(
            renewed.elapsed() < Duration::from_millis(2800),
            "{:?}",
            renewed.elapsed()
        );
    }

    /// Rules: run 24 leader
    #[tokio::test]
    async fn no_pause_outlasts_the_lease() {
        let server = Arc::new(Server::default());
        server.answered.store(MANY, Ordering::SeqCst);
        let times = Times {
            deadline: Duration::from_millis(200),
            retry: Duration::from_secs(60),
            ..TIMES
        };
        let mut lease = claim(&server, times);
        lease.acquire().await;
        tokio::time::timeout(Duration::from_secs(10), lease.keep())
            .await
            .expect("it is lost");
    }
}
