//! The task behind one watch: list, then watch from the list's version; resume where it stopped, list anew only when the
//! server no longer knows that version.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::core::Status;
use serde::Deserialize;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::entry::{Entry, Wire};
use super::pace::Flow;
use super::{Hub, Owner, WatchKey};
use crate::api::names::label;
use crate::cluster::transport::{Most, values_in};
use crate::cluster::{Served, Target, Tenant, bounded};
use crate::rules::condition::cut;

/// Pause before a refused watch is tried again.
const RETRY_DENIED: Duration = Duration::from_secs(30);
/// Pauses after failures grow from the first to the second.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// A stream that lasted so long worked.
const GOOD_STREAM: Duration = Duration::from_secs(5);
/// Seconds after which the server is to end a stream; spread, so that they do not all end at once.
const STREAM_SECONDS: std::ops::Range<u64> = 240..290;
/// A stream that is still open so long after that is dead.
const STREAM_GRACE: Duration = Duration::from_secs(20);
/// Objects per page where the server pages at all.
const PAGE: &str = "500";
/// Pages of one list. A server may answer without end.
const PAGES: usize = 200;
/// Bytes of one page, of one event, and of an error.
const PAGE_BYTES: usize = 64 * 1024 * 1024;
const EVENT_BYTES: usize = 4 * 1024 * 1024;
const ERROR_BYTES: usize = 64 * 1024;
/// Bytes of a server's words that are repeated.
const MAX_SAID: usize = 1024;
/// First size of the buffer for events; most are smaller.
const EVENT_BUFFER: usize = 1024;

const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const WATCH: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Why a list or a stream ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Denied(String),
    #[error("the server tells of more {0}")]
    Flooded(&'static str),
    #[error("the version to go on from is no longer known")]
    Expired,
    #[error("{0}")]
    Failed(String),
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Wire>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    token: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Wire,
}

#[derive(Deserialize)]
struct ErrorEvent {
    object: Box<Status>,
}

/// Follows one kind, or one object, on behalf of the [`Hub`].
pub(super) struct Follower {
    hub: Weak<Hub>,
    key: Arc<WatchKey>,
    serial: u64,
    path: String,
    tenant: Tenant,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.fell(&self.key, self.serial);
        }
    }
}

impl Follower {
    pub(super) fn new(hub: &Arc<Hub>, key: Arc<WatchKey>, serial: u64, served: &Served, tenant: &Tenant) -> Self {
        let target = Target {
            api_version: key.api_version.clone(),
            kind: key.kind.clone(),
            namespace: key.namespace.clone(),
            name: String::new(),
        };
        Self {
            hub: Arc::downgrade(hub),
            path: served.path(&target, None),
            key,
            serial,
            tenant: tenant.clone(),
        }
    }

    /// Runs until nobody wants the watch any more.
    pub(super) async fn run(self) {
        let foreign = !self.tenant.cluster().is_local();
        let mut pace = Pace {
            flow: foreign.then(|| Flow::new(Instant::now())),
            ..Pace::default()
        };
        let mut again = false;
        while self.tell(|_| Vec::new()) {
            let began = Instant::now();
            let listed = self.list(again).await;
            again = true;
            match listed {
                Ok(mut version) => while self.go_on(&mut version, &mut pace).await {},
                Err(broken) => {
                    self.interrupted(&broken);
                    pace.wait(Some(&broken), began.elapsed()).await;
                }
            }
        }
    }

    /// One stream from `version` on. `false` when only a new list helps.
    async fn go_on(&self, version: &mut u64, pace: &mut Pace) -> bool {
        let began = Instant::now();
        let broken = self.stream(version, &mut pace.flow).await.err();
        if let Some(broken) = &broken {
            self.interrupted(broken);
        }
        pace.wait(broken.as_ref(), began.elapsed()).await;
        !matches!(broken, Some(Broken::Expired | Broken::Flooded(_))) && self.tell(|_| Vec::new())
    }

    fn interrupted(&self, broken: &Broken) {
        tracing::debug!(kind = self.key.kind, identity = %self.key.identity, error = %broken, "watch interrupted");
        self.tell(|entry| match broken {
            Broken::Denied(why) => entry.interrupted(Some(why.clone())),
            Broken::Flooded(_) => entry.flooded(format!("{} cannot be watched: {broken}", self.key.kind)),
            Broken::Expired | Broken::Failed(_) => entry.interrupted(None),
        });
    }

    fn tell(&self, what: impl FnOnce(&mut Entry) -> Vec<Owner>) -> bool {
        self.hub
            .upgrade()
            .is_some_and(|hub| hub.update(&self.key, self.serial, what))
    }

    /// The same for what a server tells, as far as there is room for it.
    fn learn(&self, what: impl FnOnce(&mut Entry) -> Vec<Owner>) -> Result<(), Broken> {
        let mut too_much = false;
        self.tell(|entry| {
            let woken = what(entry);
            too_much = entry.is_too_much();
            woken
        });
        if too_much {
            return Err(Broken::Flooded("objects than a watch on another cluster may hold"));
        }
        Ok(())
    }

    /// Lists. The first list may come from the server's cache and be old: the stream that follows makes it good. A later
    /// one has to be current, or it could lie before what is known already.
    async fn list(&self, current: bool) -> Result<u64, Broken> {
        let mut next: Option<String> = None;
        let mut version = 0;
        for page in 0..PAGES {
            let query = self.list_query(current, next.as_deref());
            let answer: Page = self.page(&format!("{}?{query}", self.path)).await?;
            if page == 0 {
                version = super::parse_version(answer.metadata.resource_version.as_deref());
                self.tell(|entry| entry.list_begins(version));
            }
            for sighting in answer.items.into_iter().flatten().filter_map(Wire::sighting) {
                self.learn(|entry| entry.listed(sighting))?;
            }
            next = answer.metadata.token.filter(|t| !t.is_empty());
            if next.is_none() {
                self.tell(Entry::list_ends);
                return Ok(version);
            }
        }
        Err(Broken::Failed(format!("the list has more than {PAGES} pages")))
    }

    fn list_query(&self, current: bool, next: Option<&str>) -> String {
        let mut query = self.selector();
        match (next, current) {
            (Some(token), _) => query.append_pair("limit", PAGE).append_pair("continue", token),
            (None, true) => query.append_pair("limit", PAGE),
            (None, false) => query.append_pair("resourceVersion", "0"),
        };
        query.finish()
    }

    fn watch_query(&self, seconds: u64, version: u64) -> String {
        let mut query = self.selector();
        query
            .append_pair("watch", "true")
            .append_pair("allowWatchBookmarks", "true")
            .append_pair("timeoutSeconds", &seconds.to_string())
            .append_pair("resourceVersion", &version.to_string());
        query.finish()
    }

    fn selector(&self) -> url::form_urlencoded::Serializer<'static, String> {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        match &self.key.name {
            Some(name) => query.append_pair("fieldSelector", &format!("metadata.name={name}")),
            None => query.append_pair("labelSelector", label::NAME),
        };
        query
    }

    async fn page(&self, path: &str) -> Result<Page, Broken> {
        let response = self.open(path, LIST).await?;
        let trusted = self.tenant.cluster().is_local();
        let limit = if trusted { PAGE_BYTES } else { Most::ANY.bytes };
        let body = Limited::new(response.into_body(), limit).collect();
        let body = bounded(format!("list {}", self.key.kind), body).await.map_err(failed)?;
        let bytes = body
            .map_err(|e| Broken::Failed(crate::cluster::error::chain(e.as_ref())))?
            .to_bytes();
        read_page(&bytes, trusted)
    }

    /// Reads events until the server ends the stream, as it does every few minutes.
    async fn stream(&self, version: &mut u64, flow: &mut Option<Flow>) -> Result<(), Broken> {
        let seconds = rand::random_range(STREAM_SECONDS);
        let response = self
            .open(&format!("{}?{}", self.path, self.watch_query(seconds, *version)), WATCH)
            .await?;
        self.tell(Entry::resumed);
        let bytes = response.into_body().into_data_stream().map_err(std::io::Error::other);
        let codec = LinesCodec::new_with_max_length(EVENT_BYTES);
        let mut lines = FramedRead::with_capacity(StreamReader::new(bytes), codec, EVENT_BUFFER);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(seconds) + STREAM_GRACE;
        loop {
            let line = tokio::time::timeout_at(deadline, lines.next()).await;
            let line = line.map_err(|_| Broken::Failed("the stream outlived its time".into()))?;
            match line {
                None => return Ok(()),
                Some(Ok(line)) => {
                    if flow.as_mut().is_some_and(|flow| !flow.take(Instant::now())) {
                        return Err(Broken::Flooded(
                            "changes than a watch on another cluster may, for too long",
                        ));
                    }
                    self.take(&line, version)?;
                    // Where the next line is always there already, others would never have their turn.
                    tokio::task::consume_budget().await;
                }
                Some(Err(error)) => return Err(Broken::Failed(crate::cluster::error::chain(&error))),
            }
        }
    }

    fn take(&self, line: &str, version: &mut u64) -> Result<(), Broken> {
        let event: Event = serde_json::from_str(line).map_err(failed)?;
        if event.kind == "ERROR" {
            if line.len() > ERROR_BYTES {
                return Err(Broken::Failed("the server tells of an error without end".into()));
            }
            let error: ErrorEvent = serde_json::from_str(line).map_err(failed)?;
            return Err(broken(*error.object));
        }
        let at = event.object.version();
        if at == 0 {
            return Err(Broken::Failed(format!(
                "an event of type {} has no version",
                event.kind
            )));
        }
        *version = at;
        match (event.kind.as_str(), event.object.sighting()) {
            ("ADDED" | "MODIFIED", Some(sighting)) => self.learn(|entry| entry.changed(sighting)),
            ("DELETED", Some(sighting)) => self.learn(|entry| entry.deleted(&sighting)),
            _ => self.learn(|entry| {
                entry.passed(at);
                Vec::new()
            }),
        }
    }

    /// Sends a request as the tenant; a failure is read for what it means here.
    async fn open(&self, path: &str, accept: &str) -> Result<Response<Body>, Broken> {
        let request = Request::get(path)
            .header(http::header::ACCEPT, accept)
            .body(Body::empty())
            .map_err(failed)?;
        let sent = bounded(format!("watch {}", self.key.kind), self.tenant.stream(request)).await;
        let response = sent
            .map_err(failed)?
            .map_err(|e| Broken::Failed(crate::cluster::error::chain(&e)))?;
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        let body = bounded(
            "read an error".to_owned(),
            Limited::new(response.into_body(), ERROR_BYTES).collect(),
        )
        .await;
        let bytes = body.ok().and_then(Result::ok).map(|b| b.to_bytes()).unwrap_or_default();
        let status = serde_json::from_slice(&bytes).unwrap_or_else(|_| Status::failure(&code.to_string(), "Unknown"));
        Err(broken(status.with_code(code.as_u16())))
    }
}

fn read_page(bytes: &[u8], trusted: bool) -> Result<Page, Broken> {
    if !trusted && values_in(bytes) > Most::ANY.values {
        return Err(Broken::Failed(
            "a page of the list holds more values than objects have".into(),
        ));
    }
    serde_json::from_slice(bytes).map_err(failed)
}

fn broken(mut status: Status) -> Broken {
    status.message = cut(status.message, MAX_SAID);
    match StatusCode::from_u16(status.code) {
        Ok(StatusCode::FORBIDDEN) => Broken::Denied(status.message),
        Ok(StatusCode::GONE) => Broken::Expired,
        _ => Broken::Failed(format!("{} ({} {})", status.message, status.code, status.reason)),
    }
}

fn failed(error: impl std::error::Error) -> Broken {
    Broken::Failed(error.to_string())
}

/// Spaces attempts out, and counts what comes in between.
struct Pace {
    next: Duration,
    /// None for the controller's own cluster.
    flow: Option<Flow>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            next: RETRY_FIRST,
            flow: None,
        }
    }
}

impl Pace {
    /// How long to wait after an attempt that ended as told, having lasted so long.
    fn after(&mut self, broken: Option<&Broken>, lasted: Duration) -> Duration {
        let good = lasted >= GOOD_STREAM;
        if good {
            self.next = RETRY_FIRST;
        }
        match broken {
            None if good => Duration::ZERO,
            Some(Broken::Denied(_) | Broken::Flooded(_)) => RETRY_DENIED,
            _ => {
                let wait = self.next;
                self.next = (wait * 2).min(RETRY_LAST);
                wait
            }
        }
    }

    /// Waits, with a jitter: what broke one watch has often broken all.
    async fn wait(&mut self, broken: Option<&Broken>, lasted: Duration) {
        let wait = self.after(broken, lasted);
        tokio::time::sleep(wait.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: decisions 7 memory
    #[test]
    fn a_page_of_countless_objects_is_not_read() {
        let page = format!(r#"{{"items": [{}]}}"#, vec!["{}"; Most::ANY.values].join(","));
        assert!(matches!(read_page(page.as_bytes(), false), Err(Broken::Failed(_))));
        assert!(read_page(page.as_bytes(), true).is_ok(), "the own server is trusted");
        assert!(read_page(br#"{"items": [{}]}"#, false).is_ok());
    }

    #[test]
    fn failures_slow_down_and_a_good_stream_starts_afresh() {
        let mut pace = Pace::default();
        let failed = Broken::Failed("x".into());
        let waits: Vec<u128> = (0..10)
            .map(|_| pace.after(Some(&failed), Duration::ZERO).as_millis())
            .collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(pace.after(None, GOOD_STREAM), Duration::ZERO);
        assert_eq!(pace.after(Some(&failed), Duration::ZERO), RETRY_FIRST);
        assert_eq!(
            pace.after(Some(&Broken::Denied("no".into())), Duration::ZERO),
            RETRY_DENIED
        );
    }

    #[test]
    fn a_server_that_ends_streams_at_once_is_not_asked_in_a_loop() {
        let mut pace = Pace::default();
        assert_eq!(pace.after(None, Duration::ZERO), RETRY_FIRST);
        assert_eq!(pace.after(None, Duration::ZERO), RETRY_FIRST * 2);
    }
}
