//! What tests of fetching share: archives, and a real HTTP server on loopback.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{StatusCode, Uri};

use super::resolve::Artifact;
use crate::outbound::{Client, Policy};

pub(super) fn client(allow_loopback: bool) -> Client {
    Client::new(Policy {
        allow_loopback,
        allowed_hosts: None,
    })
    .expect("a client")
}

/// A tar.gz of these files; names are written as they are.
pub(super) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(content.as_bytes());
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&tar).expect("in memory");
    encoder.finish().expect("in memory")
}

pub(super) fn artifact(url: &str, digest: &str) -> Artifact {
    Artifact {
        kind: "GitRepository".to_owned(),
        namespace: "apps".to_owned(),
        name: "web".to_owned(),
        revision: "main@sha1:abc".to_owned(),
        digest: digest.to_owned(),
        url: url.to_owned(),
        size: None,
        last_update: None,
    }
}

/// Serves fixed content and counts requests.
pub(super) struct Server {
    base: String,
    requests: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Site {
    content: Arc<HashMap<String, Bytes>>,
    requests: Arc<AtomicUsize>,
    delay: Duration,
}

impl Server {
    pub(super) async fn start(content: &[(&str, &[u8])]) -> Self {
        Self::slow(content, Duration::ZERO).await
    }

    /// Answers only after `delay`, so that requests overlap.
    pub(super) async fn slow(content: &[(&str, &[u8])], delay: Duration) -> Self {
        let content = content
            .iter()
            .map(|(path, bytes)| ((*path).to_owned(), Bytes::copy_from_slice(bytes)))
            .collect();
        let site = Site {
            content: Arc::new(content),
            requests: Arc::default(),
            delay,
        };
        let requests = Arc::clone(&site.requests);
        let router = Router::new().fallback(answer).with_state(site);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            base: format!("http://{address}"),
            requests,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn answer(State(site): State<Site>, uri: Uri) -> Response {
    site.requests.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(site.delay).await;
    match site.content.get(uri.path()) {
        Some(bytes) => bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
