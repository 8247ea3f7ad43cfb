//! From a configuration to clients: one for requests, one for watches.

mod bounds;
mod count;
mod dial;
mod pool;

use http::{Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Http1;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, Service, ServiceBuilder};
use tower_http::decompression::DecompressionLayer;

pub use bounds::{Most, TooMuch, values_in, within_bounds};
pub use count::Counter;
pub use dial::{Dial, Guard};
use pool::Pool;

/// The clients of one cluster.
pub struct Transport {
    /// For requests with an answer.
    pub requests: Client,
    /// For lists and watches of many.
    pub watches: Client,
}

impl Transport {
    /// The same, with its requests counted.
    #[must_use]
    pub fn counted(self, counter: &Counter) -> Self {
        Self {
            requests: count::counted(self.requests, counter.clone()),
            watches: count::counted(self.watches, counter.clone()),
        }
    }

    /// Clients for the controller's own cluster: its configuration is trusted, a proxy is respected.
    ///
    /// # Errors
    /// TLS material or credentials that cannot be used.
    pub fn trusted(config: Config) -> Result<Self, kube::Error> {
        let watches = match &config.proxy_url {
            None => Some(watches(&config, None)?),
            Some(_) => None,
        };
        let requests = Client::try_from(config)?;
        Ok(Self {
            watches: watches.unwrap_or_else(|| requests.clone()),
            requests,
        })
    }

    /// Clients for a cluster that a tenant names: every address is checked when it is dialled, answers are bounded, and
    /// no proxy is used, since it would resolve names past the guard.
    ///
    /// # Errors
    /// TLS material or credentials that cannot be used.
    pub fn guarded(config: &Config, guard: Guard) -> Result<Self, kube::Error> {
        let watches = watches(config, Some(guard.clone()))?;
        let https = https(config, Some(guard), false)?;
        let http: Http1<_, Body> = Http1::builder(TokioExecutor::new()).build(https);
        Ok(Self {
            requests: within_bounds(client(config, http)?),
            watches,
        })
    }
}

fn watches(config: &Config, guard: Option<Guard>) -> Result<Client, kube::Error> {
    let both = https(config, guard.clone(), true)?;
    let only_http1 = https(config, guard, false)?;
    let pool = Pool::new(config.cluster_url.clone(), both, only_http1);
    // A watch is endless; the reader bounds each list and each line of it.
    client(config, pool)
}

fn https(config: &Config, guard: Option<Guard>, http2: bool) -> Result<HttpsConnector<Dial>, kube::Error> {
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|e| kube::Error::Service(Box::new(e)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let dial = Dial::new(guard);
    let builder = builder.enable_http1();
    Ok(if http2 {
        builder.enable_http2().wrap_connector(dial)
    } else {
        builder.wrap_connector(dial)
    })
}

/// Credentials, headers, the server's address and decompression around a plain HTTP service.
fn client<S, B>(config: &Config, service: S) -> Result<Client, kube::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(
            DecompressionLayer::new()
                .no_br()
                .no_deflate()
                .no_zstd()
                .gzip(!config.disable_compression),
        )
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(|e: S::Error| -> BoxError { e.into() })
        .service(service);
    Ok(Client::new(service, "default"))
}
