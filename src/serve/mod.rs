//! Servers: probes and metrics.

mod health;
mod metrics;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use health::{Readiness, router as health};
pub use metrics::router as metrics;

/// Serves `router` until `stop` is cancelled.
///
/// # Errors
/// When the address cannot be bound; the text names it.
pub async fn start(
    name: &'static str,
    address: SocketAddr,
    router: Router,
    stop: CancellationToken,
) -> Result<(), String> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|e| format!("cannot listen on {address} for {name}: {e}"))?;
    tokio::spawn(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::error!(name, %error, "a server ended");
        }
    });
    Ok(())
}
