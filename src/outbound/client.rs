//! The HTTP client behind the guard: manual redirects, caps on time and size, no proxy.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::error::{Error, Phase, RedactedUrl, Refusal};
use super::policy::{AllowedHosts, Policy};
use super::resolver::{GuardedResolver, Resolve, ResolveError, SystemResolver};

/// How many redirects are followed (contract 13.2).
pub const MAX_REDIRECTS: usize = 10;

const USER_AGENT: &str = concat!("stageset-controller/", env!("CARGO_PKG_VERSION"));

/// Buffer reserved up front on a server's word; the rest grows with what really arrives.
const INITIAL_BUFFER: u64 = 1 << 20;

/// Time caps of one client. Part of the connection set-up, hence the same for every request.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// TCP connect and TLS handshake.
    pub connect: Duration,
    /// Longest silence of the server.
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
        }
    }
}

/// Caps of one request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest body in bytes.
    pub body: u64,
    /// Whether a larger body is an error or is cut off at the cap.
    pub overflow: Overflow,
    /// Time for the whole request, redirects included.
    pub total: Duration,
    /// How fast the body has to come, where that matters.
    pub pace: Option<Pace>,
}

/// The least that has to have arrived of a body, on average since it began.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Bytes of a second.
    pub rate: u32,
    /// Time before it counts.
    pub after: Duration,
}

impl Pace {
    fn is_missed(&self, bytes: usize, took: Duration) -> bool {
        took > self.after && (bytes as f64) < f64::from(self.rate) * took.as_secs_f64()
    }
}

/// What happens to a body past its cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// [`Error::TooLarge`].
    Refuse,
    /// The body ends at the cap.
    Truncate,
}

impl Limits {
    /// Caps for a download: `body` bytes, 5 minutes (contract 13.2), and no trickle: downloads wait for each other.
    #[must_use]
    pub fn download(body: u64) -> Self {
        Self {
            body,
            overflow: Overflow::Refuse,
            total: Duration::from_secs(300),
            pace: Some(Pace {
                rate: 64 << 10,
                after: Duration::from_secs(10),
            }),
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// Extra headers. The user agent is set by the client.
    pub headers: HeaderMap,
    /// Body, sent again on a 307 or 308.
    pub body: Option<Bytes>,
    /// Headers or body carry secrets: a redirect may then neither leave the host and port nor drop https.
    pub secret: bool,
}

impl Request {
    /// A plain GET.
    #[must_use]
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: None,
            secret: false,
        }
    }
}

/// What came back, after redirects.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status of the last hop.
    pub status: StatusCode,
    /// Headers of the last hop.
    pub headers: HeaderMap,
    /// Body, at most `Limits::body` bytes.
    pub body: Bytes,
    /// The URL that answered, redacted.
    pub url: RedactedUrl,
}

/// The one HTTP client of the process. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    policy: Policy,
    timeouts: Timeouts,
}

impl Client {
    /// A client that looks names up with the machine's resolver.
    ///
    /// # Errors
    /// [`Error::Setup`] where TLS cannot be initialised.
    pub fn new(policy: Policy) -> Result<Self, Error> {
        Self::with_resolver(policy, Timeouts::default(), Arc::new(SystemResolver))
    }

    /// A client with its own name look-up and time caps.
    ///
    /// # Errors
    /// [`Error::Setup`] where TLS cannot be initialised.
    pub fn with_resolver(policy: Policy, timeouts: Timeouts, resolver: Arc<dyn Resolve>) -> Result<Self, Error> {
        // The answer is an error when a provider is already installed, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let builder = || builder(&policy, timeouts, Arc::clone(&resolver));
        let http = builder().build().or_else(|error| {
            tracing::warn!(
                cause = chain(&error),
                "no system CA certificates; https servers will not be trusted"
            );
            let no_roots = std::iter::empty::<reqwest::Certificate>();
            builder()
                .tls_certs_only(no_roots)
                .build()
                .map_err(|error| Error::Setup { cause: chain(&error) })
        })?;
        Ok(Self { http, policy, timeouts })
    }

    /// The same client, held to an allowlist of hosts on every hop.
    #[must_use]
    pub fn with_allowed_hosts(&self, hosts: Option<AllowedHosts>) -> Self {
        let mut client = self.clone();
        client.policy.allowed_hosts = hosts;
        client
    }

    /// The rule this client is held to.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Reads a URL and holds it to everything that can be checked without a look-up.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`] or [`Error::Refused`].
    pub fn check(&self, url: &str) -> Result<Url, Error> {
        let url = Url::parse(url.trim()).map_err(|error| Error::InvalidUrl {
            cause: error.to_string(),
        })?;
        self.check_hop(&url, None)?;
        Ok(url)
    }

    /// Downloads a URL; only status 200 counts.
    ///
    /// # Errors
    /// Every variant of [`Error`] but `Setup`.
    pub async fn fetch(&self, url: &str, limits: &Limits) -> Result<Bytes, Error> {
        let url = self.check(url)?;
        let response = self.run(Request::get(url), limits, true).await?;
        Ok(response.body)
    }

    /// Sends a request and follows its redirects. Any status is an answer, not an error.
    ///
    /// # Errors
    /// Every variant of [`Error`] but `InvalidUrl`, `NotFound`, `Status` and `Setup`.
    pub async fn send(&self, request: Request, limits: &Limits) -> Result<Response, Error> {
        self.run(request, limits, false).await
    }

    async fn run(&self, request: Request, limits: &Limits, only_ok: bool) -> Result<Response, Error> {
        let url = RedactedUrl::from(&request.url);
        tokio::time::timeout(limits.total, self.follow(request, limits, only_ok))
            .await
            .unwrap_or(Err(Error::Timeout {
                url,
                phase: Phase::Total,
                after: limits.total,
            }))
    }

    async fn follow(&self, mut request: Request, limits: &Limits, only_ok: bool) -> Result<Response, Error> {
        let first = request.url.clone();
        let mut from: Option<RedactedUrl> = None;
        for _ in 0..=MAX_REDIRECTS {
            self.check_hop(&request.url, from.as_ref())?;
            let response = self.dial(&request, from.as_ref()).await?;
            let status = response.status();
            if !is_redirect(status) {
                return self.read(response, &request.url, limits, only_ok).await;
            }
            let here = RedactedUrl::from(&request.url);
            let target = location(&request.url, response.headers()).ok_or_else(|| Error::BadRedirect {
                url: here.clone(),
                status,
            })?;
            request = redirect(request, target, status)?;
            from = Some(here);
        }
        Err(Error::TooManyRedirects {
            url: RedactedUrl::from(&first),
            limit: MAX_REDIRECTS,
        })
    }

    fn check_hop(&self, url: &Url, from: Option<&RedactedUrl>) -> Result<(), Error> {
        self.policy.check_url(url).map_err(|refusal| Error::Refused {
            url: RedactedUrl::from(url),
            from: from.cloned(),
            refusal,
        })
    }

    async fn dial(&self, request: &Request, from: Option<&RedactedUrl>) -> Result<reqwest::Response, Error> {
        let mut builder = self
            .http
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        builder
            .send()
            .await
            .map_err(|error| self.explain(error, &request.url, from))
    }

    async fn read(
        &self,
        mut response: reqwest::Response,
        url: &Url,
        limits: &Limits,
        only_ok: bool,
    ) -> Result<Response, Error> {
        let status = response.status();
        let redacted = RedactedUrl::from(url);
        if only_ok {
            expect_ok(status, &redacted)?;
        }
        let headers = std::mem::take(response.headers_mut());
        let announced = response.content_length().unwrap_or(0);
        let too_large = || Error::TooLarge {
            url: redacted.clone(),
            limit: limits.body,
        };
        if limits.overflow == Overflow::Refuse && announced > limits.body {
            return Err(too_large());
        }
        let reserve = announced.min(limits.body).min(INITIAL_BUFFER);
        let mut body = BytesMut::with_capacity(usize::try_from(reserve).unwrap_or(0));
        let began = Instant::now();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.explain(error, url, None))? {
            let (bytes, took) = (body.len() + chunk.len(), began.elapsed());
            if let Some(pace) = limits.pace.filter(|pace| pace.is_missed(bytes, took)) {
                return Err(Error::TooSlow {
                    url: redacted,
                    bytes,
                    took,
                    rate: pace.rate,
                });
            }
            let room = limits.body - body.len() as u64;
            if chunk.len() as u64 <= room {
                body.extend_from_slice(&chunk);
                continue;
            }
            if limits.overflow == Overflow::Refuse {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk[..usize::try_from(room).unwrap_or(0)]);
            break;
        }
        Ok(Response {
            status,
            headers,
            body: body.freeze(),
            url: redacted,
        })
    }

    fn explain(&self, error: reqwest::Error, url: &Url, from: Option<&RedactedUrl>) -> Error {
        let redacted = RedactedUrl::from(url);
        if let Some(cause) = find_resolve_error(&error) {
            return match cause.clone() {
                ResolveError::Refused(refusal) => Error::Refused {
                    url: redacted,
                    from: from.cloned(),
                    refusal,
                },
                ResolveError::Failed { host, cause } => Error::Unresolvable {
                    url: redacted,
                    host,
                    cause,
                },
            };
        }
        if error.is_timeout() {
            let (phase, after) = if error.is_connect() {
                (Phase::Connect, self.timeouts.connect)
            } else {
                (Phase::Read, self.timeouts.read)
            };
            return Error::Timeout {
                url: redacted,
                phase,
                after,
            };
        }
        Error::Transport {
            url: redacted,
            cause: chain(&error.without_url()),
        }
    }
}

fn builder(policy: &Policy, timeouts: Timeouts, resolver: Arc<dyn Resolve>) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .dns_resolver(GuardedResolver::new(resolver, policy.clone()))
        // Redirects are followed here, so that each hop meets the guard.
        .redirect(reqwest::redirect::Policy::none())
        // A proxy would resolve the name itself, past the guard.
        .no_proxy()
        // Digests are over the bytes as sent.
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd()
        .referer(false)
        .connect_timeout(timeouts.connect)
        .read_timeout(timeouts.read)
        .pool_max_idle_per_host(4)
        .pool_idle_timeout(Duration::from_secs(30))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn location(base: &Url, headers: &HeaderMap) -> Option<Url> {
    let text = headers.get(LOCATION)?.to_str().ok()?;
    base.join(text).ok()
}

/// The next hop: RFC 9110 15.4, with POST turned into GET on 301 and 302 as every client does.
fn redirect(request: Request, target: Url, status: StatusCode) -> Result<Request, Error> {
    let refuse = |refusal| {
        Err(Error::Refused {
            url: RedactedUrl::from(&target),
            from: Some(RedactedUrl::from(&request.url)),
            refusal,
        })
    };
    let foreign = origin(&request.url) != origin(&target);
    if request.secret && request.url.scheme() == "https" && target.scheme() != "https" {
        return refuse(Refusal::Downgrade);
    }
    if request.secret && foreign {
        return refuse(Refusal::ForeignRedirect);
    }
    let mut next = Request { url: target, ..request };
    if foreign {
        next.headers.remove(AUTHORIZATION);
        next.headers.remove(COOKIE);
    }
    let keeps = matches!(status.as_u16(), 307 | 308);
    if !keeps && next.method != Method::HEAD && next.method != Method::GET {
        next.method = Method::GET;
        next.body = None;
        next.headers.remove(CONTENT_TYPE);
        next.headers.remove(CONTENT_LENGTH);
    }
    Ok(next)
}

/// Host and port: what a secret may be sent to again.
fn origin(url: &Url) -> (Option<&str>, Option<u16>) {
    (url.host_str(), url.port_or_known_default())
}

fn expect_ok(status: StatusCode, url: &RedactedUrl) -> Result<(), Error> {
    let url = url.clone();
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Error::NotFound { url, status }),
        _ => Err(Error::Status { url, status }),
    }
}

fn find_resolve_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a ResolveError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<ResolveError>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The messages of an error and its causes, outermost first, repetitions left out.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut out = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        next = error.source();
    }
    out
}

#[cfg(test)]
mod tests;
