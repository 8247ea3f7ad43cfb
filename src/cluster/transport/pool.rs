//! Connections for watches. HTTP/1.1 takes a TCP and TLS connection for each; here they share HTTP/2 connections, so
//! many streams to each (decisions 5). A server without HTTP/2 gets HTTP/1.1.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Http1;
use hyper_util::client::legacy::connect::Connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt};

use super::Dial;

/// Streams on one connection. kube-apiserver takes 100 to 250, depending on its version and flags.
const STREAMS: usize = 80;
/// TCP, TLS and HTTP/2 handshake together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection that does not answer a ping for so long is dead, and its watches start anew elsewhere.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes in flight per stream and per connection. A watch that nobody reads must not starve its neighbours.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Connections a request may find closed under its feet before it fails.
const TRIES: usize = 3;

/// A [`Service`] that spreads its requests over few connections.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    server: Uri,
    https: HttpsConnector<Dial>,
    http1: Http1<HttpsConnector<Dial>, Body>,
    without_http2: AtomicBool,
    lanes: Mutex<Vec<Lane>>,
    /// Failure of the last attempt to open a connection; held while one is under way.
    opening: tokio::sync::Mutex<String>,
    attempts: AtomicU64,
}

/// One HTTP/2 connection.
struct Lane {
    sender: SendRequest<Body>,
    /// One further holder for each stream.
    streams: Arc<()>,
    /// Streams the server takes at once, as it last said.
    limit: Arc<AtomicUsize>,
}

impl Lane {
    fn in_use(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }

    fn has_room(&self) -> bool {
        self.in_use() < STREAMS.min(self.limit.load(Ordering::Relaxed))
    }
}

/// A connection could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("no connection: {0}")]
struct NotOpened(String);

impl Pool {
    /// A pool of connections to `server`: `https` offers HTTP/2 and HTTP/1.1, `only_http1` does not.
    pub fn new(server: Uri, https: HttpsConnector<Dial>, only_http1: HttpsConnector<Dial>) -> Self {
        Self {
            shared: Arc::new(Shared {
                server,
                https,
                http1: Http1::builder(TokioExecutor::new()).build(only_http1),
                without_http2: AtomicBool::new(false),
                lanes: Mutex::default(),
                opening: tokio::sync::Mutex::default(),
                attempts: AtomicU64::new(0),
            }),
        }
    }
}

impl Service<Request<Body>> for Pool {
    type Response = Response<Held>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Held>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = self.shared.clone();
        async move { shared.send(request).await }.boxed()
    }
}

impl Shared {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Held>, BoxError> {
        for _ in 0..TRIES {
            let Some((mut sender, stream)) = self.lane().await? else {
                let response = self.http1.request(request).await?;
                return Ok(response.map(|body| Held { body, _stream: None }));
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(response.map(|body| Held {
                        body,
                        _stream: Some(stream),
                    }));
                }
                // The request comes back where nothing of it was sent: the connection was closed just then.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        Err(NotOpened(format!("{TRIES} connections were closed before they could be used")).into())
    }

    /// A connection with room for one more stream; `None` where the server does not speak HTTP/2.
    async fn lane(&self) -> Result<Option<(SendRequest<Body>, Arc<()>)>, BoxError> {
        if self.without_http2.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let before = self.attempts.load(Ordering::Acquire);
        if let Some(free) = self.free() {
            return Ok(Some(free));
        }
        let mut failure = self.opening.lock().await;
        if self.without_http2.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(free) = self.free() {
            return Ok(Some(free));
        }
        // Who waited for an attempt that failed shares its outcome: one after the other, they would wait for ever.
        if self.attempts.load(Ordering::Acquire) > before && !failure.is_empty() {
            return Err(NotOpened(failure.clone()).into());
        }
        let opened = tokio::time::timeout(OPEN_TIMEOUT, Box::pin(self.open())).await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        match opened {
            Ok(Ok(())) => {
                failure.clear();
                Ok(self.free())
            }
            Ok(Err(error)) => {
                *failure = crate::cluster::error::chain(error.as_ref());
                Err(error)
            }
            Err(_) => {
                *failure = format!("no handshake within {OPEN_TIMEOUT:?}");
                Err(NotOpened(failure.clone()).into())
            }
        }
    }

    /// The first open connection with room. Closed ones go, and spare ones too.
    fn free(&self) -> Option<(SendRequest<Body>, Arc<()>)> {
        let mut lanes = self.lanes();
        lanes.retain(|lane| !lane.sender.is_closed());
        let lane = lanes.iter().find(|lane| lane.has_room())?;
        Some((lane.sender.clone(), lane.streams.clone()))
    }

    async fn open(&self) -> Result<(), BoxError> {
        let io = self.https.clone().oneshot(self.server.clone()).await?;
        if !io.connected().is_negotiated_h2() {
            tracing::debug!(
                server = self.server.host(),
                "the API server does not offer HTTP/2: every watch takes a connection"
            );
            self.without_http2.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let (sender, mut connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(io)
            .await?;
        let limit = Arc::new(AtomicUsize::new(STREAMS));
        let said = limit.clone();
        let driven = std::future::poll_fn(move |cx| {
            let state = connection.poll_unpin(cx);
            said.store(connection.current_max_send_streams().max(1), Ordering::Relaxed);
            state
        });
        tokio::spawn(async move {
            if let Err(error) = driven.await {
                tracing::debug!(
                    error = crate::cluster::error::chain(&error),
                    "a connection for watches ended"
                );
            }
        });
        self.lanes().push(Lane {
            sender,
            streams: Arc::default(),
            limit,
        });
        Ok(())
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response body that keeps its place on a connection until it is dropped.
pub struct Held {
    body: Incoming,
    _stream: Option<Arc<()>>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
