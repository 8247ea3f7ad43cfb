//! A loopback HTTP server for artifacts, with the misbehaviour a hostile or broken producer would show.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{StatusCode, header};
use tokio::net::TcpListener;

/// What a path answers.
#[derive(Clone)]
pub enum Answer {
    Bytes(Bytes),
    /// 302 to any address.
    Redirect(String),
    /// A status without a body.
    Status(u16),
    /// The bytes after a pause.
    Slow(Duration, Bytes),
    /// Promises more bytes than it sends.
    Truncated(Bytes),
}

/// Serves until dropped.
pub struct ArtifactServer {
    address: SocketAddr,
    shelf: Arc<Shelf>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shelf {
    answers: Mutex<HashMap<String, Answer>>,
    downloads: Mutex<HashMap<String, usize>>,
}

impl ArtifactServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a loopback port for artifacts");
        let address = listener.local_addr().expect("the artifact server's address");
        let shelf = Arc::new(Shelf::default());
        let app = Router::new().fallback(serve).with_state(shelf.clone());
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self { address, shelf, server }
    }

    /// Where a path is to be had.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{}", self.address, path.trim_start_matches('/'))
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Puts an answer under a path and gives its URL.
    pub fn put(&self, path: &str, answer: Answer) -> String {
        let path = path.trim_start_matches('/');
        lock(&self.shelf.answers).insert(path.to_owned(), answer);
        self.url(path)
    }

    /// Takes a path away: 404 from now on.
    pub fn remove(&self, path: &str) {
        lock(&self.shelf.answers).remove(path.trim_start_matches('/'));
    }

    /// How often a path was asked for.
    pub fn downloads(&self, path: &str) -> usize {
        lock(&self.shelf.downloads)
            .get(path.trim_start_matches('/'))
            .copied()
            .unwrap_or(0)
    }

    /// How often anything was asked for.
    pub fn all_downloads(&self) -> usize {
        lock(&self.shelf.downloads).values().sum()
    }
}

impl Drop for ArtifactServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn serve(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    *lock(&shelf.downloads).entry(path.clone()).or_insert(0) += 1;
    let answer = lock(&shelf.answers).get(&path).cloned();
    match answer {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Answer::Bytes(bytes)) => bytes.into_response(),
        Some(Answer::Redirect(to)) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Some(Answer::Status(code)) => StatusCode::from_u16(code)
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into_response(),
        Some(Answer::Slow(pause, bytes)) => {
            tokio::time::sleep(pause).await;
            bytes.into_response()
        }
        Some(Answer::Truncated(bytes)) => {
            let promised = bytes.len() + 1024;
            let frames = futures::stream::iter([Ok(bytes), Err(std::io::Error::other("cut short"))]);
            (
                [(header::CONTENT_LENGTH, promised.to_string())],
                Body::from_stream(frames),
            )
                .into_response()
        }
    }
}
