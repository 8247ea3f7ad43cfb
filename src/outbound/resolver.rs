//! Name look-up with the address rule applied to the answer, so that the address checked is the address dialled.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolving};

use super::error::Refusal;
use super::policy::Policy;

/// Looks up the addresses of a host name. Injected where a test needs a name that no real resolver has.
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of `host`, in order of preference.
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The machine's own resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        async move {
            let addresses = tokio::net::lookup_host((host, 0)).await?;
            Ok(addresses.map(|a| a.ip()).collect())
        }
        .boxed()
    }
}

/// Why a look-up gave nothing to dial. Travels through the HTTP client as an error source.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("host {host:?} cannot be resolved: {cause}")]
    Failed { host: String, cause: String },
}

/// Hands the HTTP client only answers without a forbidden address.
pub(super) struct GuardedResolver {
    inner: Arc<dyn Resolve>,
    policy: Policy,
}

impl GuardedResolver {
    pub(super) fn new(inner: Arc<dyn Resolve>, policy: Policy) -> Self {
        Self { inner, policy }
    }
}

impl reqwest::dns::Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let lookup = self.inner.resolve(host.clone());
        let policy = self.policy.clone();
        async move {
            let addresses = lookup.await.map_err(|error| ResolveError::Failed {
                host: host.clone(),
                cause: error.to_string(),
            })?;
            check(&policy, &host, &addresses)?;
            let dial: Vec<SocketAddr> = addresses
                .into_iter()
                .map(|address| SocketAddr::new(address, 0))
                .collect();
            Ok(Box::new(dial.into_iter()) as Addrs)
        }
        .boxed()
    }
}

/// One forbidden address spoils the whole answer: a name that mixes public and internal addresses is rebinding.
fn check(policy: &Policy, host: &str, addresses: &[IpAddr]) -> Result<(), ResolveError> {
    if addresses.is_empty() {
        return Err(ResolveError::Failed {
            host: host.to_owned(),
            cause: "the name has no address".to_owned(),
        });
    }
    for &address in addresses {
        policy.check_address(address).map_err(|class| {
            ResolveError::Refused(Refusal::Resolved {
                host: host.to_owned(),
                address,
                class,
            })
        })?;
    }
    Ok(())
}
