//! Leadership: one replica reconciles (contract 6). The lease is renewed in time or the process ends, so two
//! replicas never act at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::names::FIELD_MANAGER;
use crate::cluster::{Cluster, Error, Identity, Target, resource_version};

const LEASE: &str = "stageset-controller.stages.metio.wtf";
/// How long a lease holds without renewal.
const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long gives up.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// One try may take so long: a request that hangs must not use up the deadline.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Pause between tries.
const RETRY: Duration = Duration::from_secs(2);

/// One replica's claim to the lease.
pub struct Lease {
    cluster: Arc<Cluster>,
    target: Target,
    holder: String,
    /// The lease as last seen, and when: expiry is judged by our own clock.
    seen: Option<(String, Instant)>,
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
        }
    }

    /// Waits until the lease is ours.
    pub async fn acquire(&mut self) {
        loop {
            match self.try_take().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the lease cannot be taken; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews until that fails for the deadline; then returns, and the process must end.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RETRY).await;
            let left = RENEW_DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left.min(ATTEMPT), self.try_take()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed; trying again"),
                Err(_) => tracing::warn!("the lease could not be renewed in {ATTEMPT:?}; trying again"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return;
            }
        }
    }

    async fn try_take(&mut self) -> Result<bool, Error> {
        let tenant = self.cluster.tenant(Identity::Controller);
        let now = Timestamp::now();
        let Some(mut lease) = tenant.get(&self.target).await? else {
            return match tenant.create(&self.fresh(now), FIELD_MANAGER).await {
                Ok(_) => Ok(true),
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
        tenant.replace(&lease, FIELD_MANAGER).await.map(|_| true)
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
