//! Connections: one pool per cluster, shared by every identity that speaks to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue};
use kube::{Client, Config};
use prometheus::IntCounterVec;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::lent::Lending;
use super::transport::{Counter, Guard, Most, Transport};
use super::{Error, Kinds, Tenant};
use crate::slot;

/// The one impersonation header that is sent: the API server adds a ServiceAccount's groups by itself.
pub(super) const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// On whose behalf requests are made.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// The credentials the connection itself carries.
    Controller,
    /// A ServiceAccount, assumed by impersonation. The API server adds the account's groups.
    ServiceAccount { namespace: String, name: String },
}

impl Identity {
    /// The ServiceAccount `name` of `namespace`, or the controller when no name is given.
    pub fn of(namespace: &str, name: Option<&str>) -> Self {
        match name.filter(|n| !n.is_empty()) {
            Some(name) => Self::ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            None => Self::Controller,
        }
    }

    /// User name as the API server's authorizer sees it.
    pub fn user(&self) -> Option<String> {
        match self {
            Self::Controller => None,
            Self::ServiceAccount { namespace, name } => Some(format!("system:serviceaccount:{namespace}:{name}")),
        }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Controller => f.write_str("the controller's own identity"),
            Self::ServiceAccount { namespace, name } => {
                write!(f, "ServiceAccount {namespace}/{name}")
            }
        }
    }
}

/// One cluster: its connections, what it serves, and the identities bound to it.
pub struct Cluster {
    key: String,
    base: Client,
    watches: Client,
    kinds: Arc<Kinds>,
    lending: Lending,
    /// Hash of the server's address and certificate authority.
    address: String,
    id: OnceCell<String>,
    counter: Option<Counter>,
    /// The last request got no answer.
    silent: AtomicBool,
}

impl Cluster {
    /// Connects to the controller's own cluster. The client retries nothing by itself: every retry is a decision of
    /// the run, so that no write is ever repeated behind its back.
    ///
    /// # Errors
    /// [`Error::Client`] when the configuration's TLS material or credentials are unusable.
    pub fn connect(config: Config) -> Result<Arc<Self>, Error> {
        Self::connect_counted(config, None)
    }

    /// The same, with its requests counted in a series with the labels code, method and host.
    ///
    /// # Errors
    /// As [`Cluster::connect`].
    pub fn connect_counted(config: Config, requests: Option<IntCounterVec>) -> Result<Arc<Self>, Error> {
        let config = ours(config);
        let address = address_of(&config);
        let host = config.cluster_url.authority().map(|a| a.as_str().to_owned());
        let counter = requests.map(|requests| Counter::new(requests, host.unwrap_or_default()));
        let transport = Transport::trusted(config).map_err(|e| Error::Client(e.to_string()))?;
        Ok(Self::new(String::new(), address, transport, counter))
    }

    /// Connects from this cluster to one that a tenant names, within the address guard.
    ///
    /// # Errors
    /// TLS material or credentials that cannot be used; the text of the error may quote them.
    pub(super) fn connect_guarded(&self, key: String, config: Config, guard: Guard) -> Result<Arc<Self>, kube::Error> {
        let config = ours(config);
        let transport = Transport::guarded(&config, guard)?;
        let counter = self.counter.as_ref().map(Counter::elsewhere);
        Ok(Self::new(key, address_of(&config), transport, counter))
    }

    /// A cluster behind a client of a test.
    #[cfg(test)]
    pub(crate) fn of_client(key: &str, client: Client) -> Arc<Self> {
        let transport = Transport {
            watches: client.clone(),
            requests: if key.is_empty() {
                client
            } else {
                super::transport::within_bounds(client)
            },
        };
        Self::new(key.to_owned(), String::new(), transport, None)
    }

    fn new(key: String, address: String, mut transport: Transport, counter: Option<Counter>) -> Arc<Self> {
        if let Some(counter) = &counter {
            transport = transport.counted(counter);
        }
        let kinds = if key.is_empty() {
            Kinds::default()
        } else {
            Kinds::foreign()
        };
        Arc::new(Self {
            counter,
            key,
            base: transport.requests,
            watches: transport.watches,
            kinds: Arc::new(kinds),
            lending: Lending::default(),
            address,
            id: OnceCell::new(),
            silent: AtomicBool::new(false),
        })
    }

    /// Tells clusters, and connections to one cluster with different credentials, apart; empty for the local one.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether this is the controller's own cluster.
    pub fn is_local(&self) -> bool {
        self.key.is_empty()
    }

    /// Identity of the cluster: the UID of its kube-system namespace where that may be read, else a hash of its address
    /// and certificate authority (decisions 6). One request, once.
    ///
    /// # Errors
    /// The failed request, except where it was answered with a refusal.
    pub async fn id(&self) -> Result<&str, Error> {
        let id = self.id.get_or_try_init(|| self.find_id()).await?;
        Ok(id)
    }

    /// Whether `recorded` is an identity of this cluster. Both kinds count: the right to read kube-system may come and go.
    ///
    /// # Errors
    /// As [`Cluster::id`].
    pub async fn is(&self, recorded: &str) -> Result<bool, Error> {
        Ok(recorded == self.address || recorded == self.id().await?)
    }

    /// Whether the last request got no answer.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub(super) fn note_answer(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Asks for an answer, whatever it is.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn answers(&self) -> Result<(), Error> {
        match self.find_id().await {
            Err(e) if e.is_silence() => Err(e),
            _ => {
                self.note_answer(false);
                Ok(())
            }
        }
    }

    async fn find_id(&self) -> Result<String, Error> {
        let what = || "identify the cluster by its namespace kube-system".to_owned();
        let request = http::Request::get("/api/v1/namespaces/kube-system")
            .extension(Most::SMALL)
            .body(Vec::new())
            .map_err(|e| Error::Client(e.to_string()))?;
        let answer = super::bounded(what(), self.base.request_text(request)).await?;
        match answer.map_err(|e| Error::from_kube(what(), e)) {
            Ok(text) => {
                let object: serde_json::Value =
                    serde_json::from_str(&text).map_err(|source| Error::Decode { what: what(), source })?;
                let uid = super::uid(&object);
                Ok(if uid.is_empty() {
                    self.address.clone()
                } else {
                    uid.to_owned()
                })
            }
            Err(e) if e.is_forbidden() || e.is_not_found() => Ok(self.address.clone()),
            Err(e) => Err(e),
        }
    }

    /// The connection's own client, for the controller's bookkeeping and its watches.
    pub fn own_client(&self) -> Client {
        self.base.clone()
    }

    /// The client whose streams share connections, for watches of which there are many.
    pub(super) fn watch_client(&self) -> &Client {
        &self.watches
    }

    /// What the cluster serves.
    pub fn kinds(&self) -> &Arc<Kinds> {
        &self.kinds
    }

    /// Waits for an answer of this cluster. One that a tenant names may take its time, but holds no slot meanwhile.
    /// Boxed, since every request of a step passes here.
    pub async fn patiently<T>(&self, answer: BoxFuture<'_, T>) -> T {
        if self.is_local() {
            answer.await
        } else {
            slot::given_up_after(slot::PATIENCE, answer).await
        }
    }

    /// What can be listed in a namespace, see [`Kinds::namespaced`].
    ///
    /// # Errors
    /// As there.
    pub async fn namespaced_kinds(&self) -> Result<Vec<(String, String)>, Error> {
        self.patiently(self.kinds.namespaced(&self.base).boxed()).await
    }

    /// A version that a kind is served under, see [`Kinds::any_version`].
    ///
    /// # Errors
    /// As there.
    pub async fn any_version(&self, group: &str, kind: &str, since: Instant) -> Result<Option<String>, Error> {
        let found = self.kinds.any_version(&self.base, group, kind, since);
        self.patiently(found.boxed()).await
    }

    /// Requests as `identity`. Cheap: connections are shared, only a header is added.
    pub fn tenant(self: &Arc<Self>, identity: Identity) -> Tenant {
        Tenant::new(self.clone(), identity)
    }

    /// Requests on behalf of a StageSet of `namespace`: as its account, or by the credentials of the connection where it
    /// names none. Those of the controller are for its own work too, and lent with care.
    pub fn acting_for(self: &Arc<Self>, namespace: &str, account: Option<&str>) -> Tenant {
        let tenant = self.tenant(Identity::of(namespace, account));
        if self.is_local() && tenant.identity() == &Identity::Controller {
            return tenant.lent(namespace);
        }
        tenant
    }

    pub(super) fn lending(&self) -> &Lending {
        &self.lending
    }
}

fn ours(mut config: Config) -> Config {
    config.default_retry = false;
    config.headers.push((
        http::header::USER_AGENT,
        HeaderValue::from_static(concat!("stageset-controller/", env!("CARGO_PKG_VERSION"))),
    ));
    config
}

fn address_of(config: &Config) -> String {
    let mut hasher = Sha256::new();
    hasher.update(config.cluster_url.to_string());
    for certificate in config.root_cert.iter().flatten() {
        hasher.update(certificate.len().to_be_bytes());
        hasher.update(certificate);
    }
    let hex: String = hasher.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}
