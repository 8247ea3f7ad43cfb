//! Connections, forwarding and the faults as they look on the wire.

use std::{convert::Infallible, io, sync::Arc};

use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::{TcpListener, TcpStream};

use super::{Call, Moment, Plan, Shared, Verb, Verdict};

type Body = BoxBody<Bytes, io::Error>;

/// The connection ends here, without an answer.
#[derive(Debug)]
pub struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut by the fault proxy")
    }
}

impl std::error::Error for Cut {}

/// The real API server.
pub struct Upstream {
    base: String,
    client: reqwest::Client,
}

impl Upstream {
    pub fn new(server: &str, ca_pem: &[u8]) -> Self {
        crate::support::install_crypto();
        let ca = reqwest::Certificate::from_pem(ca_pem).expect("the control plane's CA certificate");
        // One connection per running request, as kube's own client has: a shared HTTP/2 connection
        // would cap the number of watches that can be open at once.
        let client = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tls_certs_only([ca])
            .pool_max_idle_per_host(64)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("the proxy's client");
        Self {
            base: server.trim_end_matches('/').to_owned(),
            client,
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<reqwest::Response, reqwest::Error> {
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |pq| pq.as_str());
        let mut headers = parts.headers;
        strip_hop_by_hop(&mut headers);
        headers.remove(http::header::HOST);
        headers.remove(http::header::CONTENT_LENGTH);
        self.client
            .request(parts.method, format!("{}{target}", self.base))
            .headers(headers)
            .body(body)
            .send()
            .await
    }
}

/// Takes connections until the task is aborted.
pub async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        if shared.state().outage {
            continue;
        }
        let _ = stream.set_nodelay(true);
        tokio::spawn(connection(stream, shared.clone()));
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut epoch = shared.epoch.subscribe();
    let born = *epoch.borrow_and_update();
    let service = service_fn(move |request| handle(shared.clone(), born, request));
    let builder = auto::Builder::new(TokioExecutor::new());
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = serving => {}
        _ = epoch.changed() => {}
    }
}

async fn handle(shared: Arc<Shared>, born: u64, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let mut call = Call::read(request.method(), request.uri(), request.headers());
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    call.name_from_body(&body);
    if *shared.epoch.borrow() != born {
        return Err(Cut);
    }
    if shared.state().hanging {
        // The connection's end ends this wait too.
        std::future::pending::<()>().await;
    }
    let plan = shared.admit(call.clone());
    if !plan.delay.is_zero() {
        // What is held here goes on to the server though its client may have given up, as from a gateway's buffer.
        let held = async move {
            tokio::time::sleep(plan.delay).await;
            carry_out(shared, plan, call, parts, body).await
        };
        return tokio::spawn(held).await.unwrap_or(Err(Cut));
    }
    carry_out(shared, plan, call, parts, body).await
}

async fn carry_out(
    shared: Arc<Shared>,
    plan: Plan,
    call: Call,
    parts: Parts,
    body: Bytes,
) -> Result<Response<Body>, Cut> {
    if let Some((pid, Moment::Before)) = plan.kill {
        shared.kill(pid, &call);
        return Err(Cut);
    }
    match plan.verdict {
        Verdict::Cut => return Err(Cut),
        Verdict::Status(code) => {
            shared.answered(plan.index, code);
            return Ok(refusal(code, &call));
        }
        Verdict::OldList => {
            shared.answered(plan.index, 200);
            return Ok(json_answer(OLD_LIST.to_owned()));
        }
        Verdict::Pass | Verdict::CutAnswer => {}
    }
    forward(&shared, plan, call, Request::from_parts(parts, body)).await
}

async fn forward(shared: &Shared, plan: Plan, call: Call, request: Request<Bytes>) -> Result<Response<Body>, Cut> {
    let answer = shared.upstream.send(request).await.map_err(|_| Cut)?;
    let status = answer.status();
    let mut headers = answer.headers().clone();
    strip_hop_by_hop(&mut headers);
    let body: Body = if call.verb == Verb::Watch {
        let frames = answer.bytes_stream().map_ok(Frame::data).map_err(io::Error::other);
        BodyExt::boxed(StreamBody::new(Box::pin(sync(frames))))
    } else {
        whole(answer.bytes().await.map_err(|_| Cut)?)
    };
    shared.answered(plan.index, status.as_u16());
    if let Some((pid, Moment::After)) = plan.kill {
        shared.kill(pid, &call);
        return Err(Cut);
    }
    if plan.verdict == Verdict::CutAnswer {
        return Err(Cut);
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// `BoxBody` wants a stream that is also `Sync`; a mutex that is never contended makes it one.
fn sync<S>(stream: S) -> impl futures::Stream<Item = S::Item> + Send + Sync
where
    S: futures::Stream + Send + 'static,
{
    let stream = std::sync::Mutex::new(Box::pin(stream));
    futures::stream::poll_fn(move |cx| {
        stream
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .as_mut()
            .poll_next(cx)
    })
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
}

const OLD_LIST: &str = r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;

fn json_answer(text: String) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::from(text)));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

/// A refusal in the API server's own format, with the hint to retry that it gives for 429 and 503.
fn refusal(code: u16, call: &Call) -> Response<Body> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        403 => "Forbidden",
        504 => "Timeout",
        _ => "Unknown",
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": format!("injected {code} for {}", call.line()),
    });
    let mut response = json_answer(status.to_string());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if matches!(code, 429 | 503) {
        let retry = http::HeaderValue::from_static("1");
        response.headers_mut().insert(http::header::RETRY_AFTER, retry);
    }
    response
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    const NAMES: [&str; 6] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    for name in NAMES {
        headers.remove(HeaderName::from_static(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_reads_like_the_servers_own() {
        let call = Call::read(&http::Method::GET, &"/api/v1/pods".parse().unwrap(), &HeaderMap::new());
        let response = refusal(429, &call);
        assert_eq!(response.headers()["retry-after"], "1");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (status["kind"].as_str(), status["code"].as_u64()),
            (Some("Status"), Some(429))
        );
    }
}
