//! Opening a TCP connection: the address rule is applied to what is dialled, not to what a name said a moment before.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use crate::outbound::{Policy, Refusal, Resolve};

/// A TCP connection that is not there after this time is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A silent connection is probed after this time; the kernel gives it up three probes later.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBES: u32 = 3;

/// Which addresses may be dialled.
#[derive(Clone)]
pub struct Guard {
    pub policy: Policy,
    pub resolver: Arc<dyn Resolve>,
}

impl Guard {
    /// Checks a literal address; names are checked once they are resolved.
    fn check_literal(&self, uri: &Uri) -> Result<(), Refusal> {
        let host = uri.host().ok_or(Refusal::NoHost)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>() {
            Ok(address) => self
                .policy
                .check_address(address)
                .map_err(|class| Refusal::Address { address, class }),
            Err(_) => Ok(()),
        }
    }

    /// One forbidden address spoils the whole answer: a name that mixes addresses of both kinds is rebinding.
    fn check_answer(&self, host: &str, addresses: &[IpAddr]) -> Result<(), Refusal> {
        for &address in addresses {
            self.policy.check_address(address).map_err(|class| Refusal::Resolved {
                host: host.to_owned(),
                address,
                class,
            })?;
        }
        Ok(())
    }
}

/// Looks names up, and hands on only what the guard lets pass.
#[derive(Clone)]
pub struct GuardedNames {
    guard: Option<Guard>,
}

impl Service<Name> for GuardedNames {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let guard = self.guard.clone();
        async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = match guard {
                None => tokio::net::lookup_host((host.as_str(), 0)).await?.collect(),
                Some(guard) => {
                    let addresses = guard.resolver.resolve(host.clone()).await?;
                    guard.check_answer(&host, &addresses)?;
                    addresses.into_iter().map(|a| SocketAddr::new(a, 0)).collect()
                }
            };
            Ok(found.into_iter())
        }
        .boxed()
    }
}

/// Opens TCP connections within the guard; without one, any address will do.
#[derive(Clone)]
pub struct Dial {
    http: HttpConnector<GuardedNames>,
    guard: Option<Guard>,
}

impl Dial {
    /// A dialler held to `guard`.
    pub fn new(guard: Option<Guard>) -> Self {
        let mut http = HttpConnector::new_with_resolver(GuardedNames { guard: guard.clone() });
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        Self { http, guard }
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The connector below does not ask the resolver about a literal address.
        if let Some(Err(refusal)) = self.guard.as_ref().map(|g| g.check_literal(&uri)) {
            return std::future::ready(Err(refusal.into())).boxed();
        }
        let dialled = self.http.call(uri);
        async move { dialled.await.map_err(Into::into) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    struct Names(Vec<IpAddr>);

    impl Resolve for Names {
        fn resolve(&self, _: String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> {
            std::future::ready(Ok(self.0.clone())).boxed()
        }
    }

    fn dial(allow_loopback: bool, answer: &[&str]) -> Dial {
        Dial::new(Some(Guard {
            policy: Policy {
                allow_loopback,
                allowed_hosts: None,
            },
            resolver: Arc::new(Names(answer.iter().map(|a| a.parse().expect("an address")).collect())),
        }))
    }

    async fn refusal(mut dial: Dial, uri: &str) -> Option<Refusal> {
        let error = dial
            .call(uri.parse().expect("a URI"))
            .await
            .expect_err("nothing listens there");
        crate::cluster::error::refusal_in(error.as_ref())
    }

    #[rstest]
    #[case("https://169.254.169.254/")]
    #[case("https://[fe80::1]:6443/")]
    #[case("https://[::ffff:169.254.169.254]/")]
    #[case("https://100.100.100.200/")]
    #[case("https://0.0.0.0/")]
    #[case("https://127.0.0.1:1/")]
    #[case("https://[::1]:1/")]
    /// Rules: decisions 7 servers
    #[tokio::test]
    async fn literal_addresses_are_refused(#[case] uri: &str) {
        assert!(
            matches!(refusal(dial(false, &[]), uri).await, Some(Refusal::Address { .. })),
            "{uri}"
        );
    }

    #[rstest]
    #[case(&["169.254.169.254"])]
    #[case(&["192.0.2.1", "169.254.169.254"])]
    #[case(&["127.0.0.1"])]
    #[case(&["fd00:ec2::254"])]
    /// Rules: decisions 7 servers
    #[tokio::test]
    async fn names_are_judged_by_what_they_resolve_to(#[case] answer: &[&str]) {
        let found = refusal(dial(false, answer), "https://api.example.com:6443/").await;
        assert!(
            matches!(&found, Some(Refusal::Resolved { host, .. }) if host == "api.example.com"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn loopback_opens_on_request_and_nothing_else_does() {
        assert_eq!(refusal(dial(true, &["127.0.0.1"]), "https://localhost:1/").await, None);
        assert!(
            refusal(dial(true, &["169.254.1.1"]), "https://localhost:1/")
                .await
                .is_some()
        );
    }
}
