//! Servers: probes and metrics.

mod health;
mod metrics;

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};

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
    let listeners = listen(address)
        .await
        .map_err(|e| format!("cannot listen on {address} for {name}: {e}"))?;
    for listener in listeners {
        let serving = axum::serve(listener, router.clone()).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(name, %error, "a server ended");
            }
        });
    }
    Ok(())
}

/// Listens on an address. `[::]` stands for every address of both families, as far as the machine has them.
async fn listen(address: SocketAddr) -> io::Result<Vec<TcpListener>> {
    let first = TcpListener::bind(address).await;
    if !address.is_ipv6() || !address.ip().is_unspecified() {
        return Ok(vec![first?]);
    }
    let ipv4 = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    match first {
        Ok(first) => {
            // Refused where the first takes both families, which is usual; net.ipv6.bindv6only makes it needed.
            let second = ipv4(first.local_addr()?.port()).await;
            Ok(std::iter::once(first).chain(second).collect())
        }
        Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => Err(error),
        Err(error) => {
            tracing::info!(%address, %error, "no IPv6 here: listening on IPv4 alone");
            Ok(vec![ipv4(address.port()).await?])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn both_families_are_listened_to_as_far_as_there_are_any() {
        let any = crate::config::any_address(0);
        let listeners = listen(any).await.unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
        assert_eq!(
            listen(SocketAddr::new(any.ip(), port)).await.unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
    }
}
