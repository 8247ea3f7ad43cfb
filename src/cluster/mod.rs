//! One door to a cluster. Every read and write on behalf of a tenant goes through a [`Tenant`]: a
//! client bound to an identity. No other module builds a client.

mod connect;
mod error;
#[cfg(test)]
mod hostile_tests;
mod kinds;
mod lent;
mod object;
pub mod remote;
mod tenant;
mod transport;
pub mod watch;

use std::future::Future;
use std::time::Duration;

pub use connect::{Cluster, Identity};
pub use error::Error;
pub use kinds::{Kinds, Served};
pub use object::{Target, is_deleting, label, resource_version, uid};
pub use remote::{Clusters, RemoteError};
pub use tenant::{Dependents, Preconditions, Tenant};
pub use transport::Counter;

/// How long one request may take before it counts as lost.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds one request: kube's client has no read timeout of its own.
///
/// # Errors
/// [`Error::Timeout`] naming `what` once [`REQUEST_TIMEOUT`] has passed.
pub async fn bounded<T>(what: String, request: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(REQUEST_TIMEOUT, request)
        .await
        .map_err(|_| Error::Timeout {
            what,
            after: REQUEST_TIMEOUT,
        })
}
