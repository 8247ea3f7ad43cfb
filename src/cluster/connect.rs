//! Connections: one pool per cluster, shared by every identity that speaks to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Request};
use kube::client::Body;
use kube::{Client, Config};

use super::{Error, Kinds, Tenant};

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

/// One cluster: its connection pool, what it serves, and the identities bound to it.
pub struct Cluster {
    base: Client,
    kinds: Arc<Kinds>,
    bound: Mutex<HashMap<Identity, Client>>,
}

impl Cluster {
    /// Connects with `config`. The client retries nothing by itself: every retry is a decision of
    /// the run, so that no write is ever repeated behind its back.
    ///
    /// # Errors
    /// [`Error::Client`] when the configuration's TLS material or credentials are unusable.
    pub fn connect(mut config: Config) -> Result<Arc<Self>, Error> {
        config.default_retry = false;
        config.headers.push((
            http::header::USER_AGENT,
            HeaderValue::from_static(concat!("stageset-controller/", env!("CARGO_PKG_VERSION"))),
        ));
        let base = Client::try_from(config).map_err(|e| Error::Client(e.to_string()))?;
        Ok(Arc::new(Self {
            base,
            kinds: Arc::default(),
            bound: Mutex::default(),
        }))
    }

    /// The connection's own client, for the controller's bookkeeping and its watches.
    pub fn own_client(&self) -> Client {
        self.base.clone()
    }

    /// What the cluster serves.
    pub fn kinds(&self) -> &Arc<Kinds> {
        &self.kinds
    }

    /// A client bound to `identity`. Cheap: the connection pool is shared, only a header is added.
    pub fn tenant(self: &Arc<Self>, identity: Identity) -> Tenant {
        let client = match identity.user() {
            None => self.base.clone(),
            Some(user) => self
                .bound
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(identity.clone())
                .or_insert_with(|| impersonating(&self.base, &user))
                .clone(),
        };
        Tenant::new(self.clone(), identity, client)
    }

    /// Drops the clients of identities that no live StageSet uses any more.
    pub fn retain(&self, used: impl Fn(&Identity) -> bool) {
        self.bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|identity, _| used(identity));
    }
}

fn impersonating(base: &Client, user: &str) -> Client {
    let base = base.clone();
    let header = HeaderValue::from_str(user).ok();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let base = base.clone();
        let header = header.clone();
        async move {
            let Some(header) = header else {
                return Err(kube::Error::Service(
                    "the ServiceAccount's name is no valid header value".into(),
                ));
            };
            if request.headers().keys().any(|k| k.as_str().starts_with("impersonate-")) {
                return Err(kube::Error::Service("a request already names another identity".into()));
            }
            request.headers_mut().insert("impersonate-user", header);
            base.send(request).await
        }
    });
    Client::new(service, "default")
}
