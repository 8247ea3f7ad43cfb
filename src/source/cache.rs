//! Artifacts by digest, within a budget of bytes.
//!
//! Kept are the compressed bytes, which for manifests are five to ten times smaller than the files: the default budget
//! of 32 MiB then holds the artifacts of hundreds of StageSets, and unpacking again costs milliseconds where a download
//! costs a round trip to a server that may be gone. The unpacked tree is only remembered weakly: stages that use one
//! artifact at the same time share one tree, and nothing is held once they are done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use bytes::Bytes;
use moka::future::Cache as Store;
use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;

use super::archive::Limits;
use super::digest::Digest;
use super::error::Error;
use super::fetch;
use super::resolve::Artifact;
use super::tree::Tree;
use crate::outbound;

/// Default budget in bytes (decisions 8).
pub const DEFAULT_BUDGET: u64 = 32 << 20;

/// Downloads from one server at once, and for the sources of one namespace.
const FOR_ONE: usize = 8;
/// Downloads at once. Each may take the memory of an artifact of the largest size.
const FOR_ALL: usize = 32;

/// What an entry costs beside its bytes, roughly.
const OVERHEAD: usize = 512;

/// How often the cache helped. Monotonic.
#[derive(Debug, Default)]
pub struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

impl Counters {
    /// Requests answered without a download, those included that waited for another's download.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Downloads started.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Entries dropped to stay within the budget.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }
}

struct Entry {
    bytes: Bytes,
    /// Held while unpacking, so that it happens once.
    tree: Mutex<Weak<Tree>>,
}

/// Who has turns of its own at downloading.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Of {
    /// Host and port.
    Server(String, u16),
    /// Namespace of the source.
    Namespace(String),
}

impl Of {
    fn server(url: &str) -> Self {
        let url = url::Url::parse(url).ok();
        let host = url.as_ref().and_then(url::Url::host_str).unwrap_or_default();
        let port = url
            .as_ref()
            .and_then(url::Url::port_or_known_default)
            .unwrap_or_default();
        Self::Server(host.trim_end_matches('.').to_owned(), port)
    }
}

/// Fetches artifacts, each once at a time, and keeps the least recently used within the budget.
#[derive(Clone)]
pub struct Cache {
    client: outbound::Client,
    limits: Limits,
    store: Store<Digest, Arc<Entry>>,
    /// Downloads under way. Holds nothing (capacity 0); its keys carry the URL, so that one source's dead server does
    /// not fail another's download of the same content.
    flights: Store<(Digest, String), Arc<Entry>>,
    counters: Arc<Counters>,
    /// Downloads under way, so that neither a slow server nor one tenant's many can take all memory or hold up the others.
    turns: Arc<std::sync::Mutex<HashMap<Of, Arc<Semaphore>>>>,
    downloads: Arc<Semaphore>,
    /// Unpacking takes a core each; more at once would only take memory.
    cores: Arc<Semaphore>,
}

impl Cache {
    /// A cache of `budget` bytes. Artifacts larger than the budget are fetched on every use; a budget of 0 caches
    /// nothing but still shares concurrent downloads.
    #[must_use]
    pub fn new(client: outbound::Client, limits: Limits, budget: u64) -> Self {
        let counters = Arc::new(Counters::default());
        let listener = Arc::clone(&counters);
        let store = Store::builder()
            .max_capacity(budget)
            .weigher(|_: &Digest, entry: &Arc<Entry>| u32::try_from(entry.bytes.len() + OVERHEAD).unwrap_or(u32::MAX))
            .eviction_policy(EvictionPolicy::lru())
            .eviction_listener(move |_, _, cause| {
                if cause == RemovalCause::Size {
                    listener.evictions.fetch_add(1, Ordering::Relaxed);
                }
            })
            .build();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            client,
            limits,
            store,
            flights: Store::new(0),
            counters,
            turns: Arc::default(),
            downloads: Arc::new(Semaphore::new(FOR_ALL)),
            cores: Arc::new(Semaphore::new(cores)),
        }
    }

    /// The files of an artifact: from the cache, from a download already under way, or from its URL, verified against
    /// its digest. The URL is held to the address rule also when no download is needed.
    ///
    /// # Errors
    /// [`Error::InvalidDigest`], [`Error::Fetch`], [`Error::DigestMismatch`], [`Error::Archive`],
    /// [`Error::Interrupted`]. Failures are not remembered.
    pub async fn tree(&self, artifact: &Artifact) -> Result<Arc<Tree>, Error> {
        let digest = fetch::digest(artifact)?;
        self.client.check(&artifact.url).map_err(|error| Error::Fetch {
            object: artifact.object(),
            error,
        })?;
        let entry = self.entry(artifact, digest).await?;
        self.unpack(artifact, &entry).await
    }

    /// Whether an artifact can be had without a download.
    pub async fn holds(&self, artifact: &Artifact) -> bool {
        match fetch::digest(artifact) {
            Ok(digest) => self.store.get(&digest).await.is_some(),
            Err(_) => true,
        }
    }

    /// The verified compressed bytes of a digest, if they are here; looks nowhere else and counts nothing.
    pub async fn bytes(&self, digest: &Digest) -> Option<Bytes> {
        self.store.get(digest).await.map(|entry| entry.bytes.clone())
    }

    /// How often the cache helped.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes held now, as far as bookkeeping has caught up.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.store.weighted_size()
    }

    async fn entry(&self, artifact: &Artifact, digest: Digest) -> Result<Arc<Entry>, Error> {
        if let Some(entry) = self.store.get(&digest).await {
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(entry);
        }
        let mut missed = false;
        let flight = (digest.clone(), artifact.url.clone());
        let load = async {
            // Another flight may have landed between the look-up and here.
            if let Some(entry) = self.store.get(&digest).await {
                return Ok(entry);
            }
            missed = true;
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            Box::pin(self.load(artifact, &digest)).await
        };
        let entry = self.flights.try_get_with(flight, load).await;
        if entry.is_ok() && !missed {
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
        }
        entry.map_err(|shared| about(artifact, Arc::unwrap_or_clone(shared)))
    }

    async fn load(&self, artifact: &Artifact, digest: &Digest) -> Result<Arc<Entry>, Error> {
        let namespace = self.turns(Of::Namespace(artifact.namespace.clone()));
        let server = self.turns(Of::server(&artifact.url));
        let bytes = {
            // The scarcest last: nobody waits with one that others need.
            let _turn = namespace.acquire().await;
            let _turn_there = server.acquire().await;
            let _place = self.downloads.acquire().await;
            // Hundreds may wait for their turn: only those that have it need room for a request.
            Box::pin(fetch::download(&self.client, artifact, &self.limits)).await?
        };
        let (subject, expected, content) = (artifact.clone(), digest.clone(), bytes.clone());
        self.on_a_core(artifact, move || fetch::verify(&subject, &expected, &content))
            .await?;
        let entry = Arc::new(Entry {
            bytes,
            tree: Mutex::default(),
        });
        self.store.insert(digest.clone(), Arc::clone(&entry)).await;
        Ok(entry)
    }

    fn turns(&self, of: Of) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the table itself still knows those that nobody downloads for.
        turns.retain(|_, turns| Arc::strong_count(turns) > 1);
        turns
            .entry(of)
            .or_insert_with(|| Arc::new(Semaphore::new(FOR_ONE)))
            .clone()
    }

    async fn unpack(&self, artifact: &Artifact, entry: &Entry) -> Result<Arc<Tree>, Error> {
        let mut shared = entry.tree.lock().await;
        if let Some(tree) = shared.upgrade() {
            return Ok(tree);
        }
        let (subject, content, limits) = (artifact.clone(), entry.bytes.clone(), self.limits);
        let tree = self
            .on_a_core(artifact, move || fetch::unpack(&subject, &content, &limits))
            .await?;
        let tree = Arc::new(tree);
        *shared = Arc::downgrade(&tree);
        Ok(tree)
    }

    async fn on_a_core<T: Send + 'static>(
        &self,
        artifact: &Artifact,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let interrupted = || Error::Interrupted {
            object: artifact.object(),
        };
        let permit = Arc::clone(&self.cores)
            .acquire_owned()
            .await
            .map_err(|_| interrupted())?;
        spawn_blocking(move || {
            let _permit = permit;
            work()
        })
        .await
        .unwrap_or_else(|_| Err(interrupted()))
    }
}

/// Puts the caller's own source into an error that another's download of the same digest produced.
fn about(artifact: &Artifact, error: Error) -> Error {
    let object = artifact.object();
    match error {
        Error::Fetch { error, .. } => Error::Fetch { object, error },
        Error::DigestMismatch { expected, actual, .. } => Error::DigestMismatch {
            object,
            expected,
            actual,
        },
        Error::Interrupted { .. } => Error::Interrupted { object },
        other => other,
    }
}

#[cfg(test)]
mod tests;
