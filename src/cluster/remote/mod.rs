//! Clusters other than the controller's own, reached by a kubeconfig in a Secret (run 11.3, run B15).

mod error;
mod kubeconfig;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::Value;
use tokio::sync::Semaphore;

pub use error::{RemoteError, SecretKey};
pub use kubeconfig::{Fault, accept};

use super::transport::Guard;
use super::{Cluster, Error, Identity, Target};
use crate::api::KubeConfig;
use crate::outbound::{Policy, Resolve, SystemResolver};

/// Key of the kubeconfig where the reference names none.
const DEFAULT_KEY: &str = "value";
/// How long an answer to "may this account read the Secret" holds.
const ALLOWED_FOR: Duration = Duration::from_secs(10);
/// A cluster that cannot be connected to is not asked again for so long: whoever asks meanwhile gets the same answer.
const FAILED_FOR: Duration = Duration::from_secs(5);
/// The same for one that was waited for in vain; longer from one time to the next.
const SILENT_FOR: Duration = Duration::from_secs(30);
const SILENT_FOR_LAST: Duration = Duration::from_secs(120);
/// A failure that took longer was a wait in vain.
const PROMPT: Duration = Duration::from_secs(2);
/// Connections of a Secret that nobody has used for so long are dropped.
const IDLE_FOR: Duration = Duration::from_secs(60 * 60);

/// The clusters StageSets apply to: the local one, and one for each kubeconfig in use.
pub struct Clusters {
    local: Arc<Cluster>,
    guard: Guard,
    slots: Mutex<HashMap<SecretKey, Arc<Slot>>>,
}

/// What is known of one reference. The lock is held while a connection is made, so that StageSets that share a
/// kubeconfig make one.
struct Slot {
    used: Mutex<Instant>,
    /// How many steps may work on the cluster at once.
    turns: Mutex<Option<Arc<Semaphore>>>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    allowed: HashMap<String, Instant>,
    connected: Option<(Version, Arc<Cluster>)>,
    failed: Option<Failed>,
}

/// A connection that could not be made.
struct Failed {
    version: Version,
    error: RemoteError,
    /// When it may be tried again.
    until: Instant,
    /// Waits in vain, in a row.
    silent: u32,
}

/// How long a failure that took so long is the answer, after `silent` waits in vain before it.
fn remembered(took: Duration, silent: u32) -> Duration {
    if took < PROMPT {
        FAILED_FOR
    } else {
        SILENT_FOR.saturating_mul(1 << silent.min(4)).min(SILENT_FOR_LAST)
    }
}

/// Which Secret it was, and as of when.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    uid: String,
    resource_version: String,
}

impl Clusters {
    /// Clusters around the local one. `allow_loopback` opens loopback addresses to kubeconfigs, for local development.
    pub fn new(local: Arc<Cluster>, allow_loopback: bool) -> Arc<Self> {
        Self::with_resolver(local, allow_loopback, Arc::new(SystemResolver))
    }

    /// The same, with another way to look names up.
    pub fn with_resolver(local: Arc<Cluster>, allow_loopback: bool, resolver: Arc<dyn Resolve>) -> Arc<Self> {
        Arc::new(Self {
            local,
            guard: Guard {
                policy: Policy {
                    allow_loopback,
                    allowed_hosts: None,
                },
                resolver,
            },
            slots: Mutex::default(),
        })
    }

    /// The controller's own cluster.
    pub fn local(&self) -> &Arc<Cluster> {
        &self.local
    }

    /// The cluster that `reference` leads to from `namespace`. The Secret is read as the controller, and read anew each
    /// time; with `account`, that ServiceAccount has to be allowed to read it too, or the author of a StageSet could use
    /// credentials that are hidden from them (contract 17.5). A connection is kept as long as the Secret stays as it is.
    ///
    /// # Errors
    /// [`RemoteError`]; never the local cluster by mistake.
    pub async fn target(
        &self,
        namespace: &str,
        reference: &KubeConfig,
        account: Option<&str>,
    ) -> Result<Arc<Cluster>, RemoteError> {
        let secret = secret_key(namespace, reference)?;
        let slot = self.slot(&secret);
        let mut state = slot.state.lock().await;
        if let Some(account) = account.filter(|a| !a.is_empty()) {
            self.require_allowed(&mut state, &secret, account).await?;
        }
        let (version, text) = match self.read(&secret).await {
            Ok(read) => read,
            Err(error) => {
                if !error.is_transient() {
                    state.connected = None;
                }
                return Err(error);
            }
        };
        let connected = state.connected.as_ref().filter(|(known, _)| *known == version);
        let connected = connected.map(|(_, cluster)| cluster.clone());
        if let Some(cluster) = &connected
            && !cluster.is_silent()
        {
            return Ok(cluster.clone());
        }
        let failed = state.failed.as_ref().filter(|failed| failed.version == version);
        if let Some(failed) = failed.filter(|failed| Instant::now() < failed.until) {
            return Err(failed.error.clone());
        }
        let silent = failed.map_or(0, |failed| failed.silent);
        let began = Instant::now();
        let reached = match connected {
            Some(cluster) => self.again(&secret, cluster).await,
            None => {
                state.connected = None;
                self.connect(&secret, &version, &text).await
            }
        };
        match reached {
            Ok(cluster) => {
                state.failed = None;
                state.connected = Some((version, cluster.clone()));
                Ok(cluster)
            }
            Err(error) => {
                let took = began.elapsed();
                state.failed = Some(Failed {
                    version,
                    error: error.clone(),
                    until: Instant::now() + remembered(took, silent),
                    silent: if took < PROMPT { 0 } else { silent + 1 },
                });
                Err(error)
            }
        }
    }

    /// The turns of the steps that work on the cluster of `reference`, `at_once` of them: one that has died holds up
    /// no more than that. None where the reference names no Secret.
    pub fn turns(&self, namespace: &str, reference: &KubeConfig, at_once: usize) -> Option<Arc<Semaphore>> {
        let slot = self.slot(&secret_key(namespace, reference).ok()?);
        let mut turns = slot.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Some(turns.get_or_insert_with(|| Arc::new(Semaphore::new(at_once))).clone())
    }

    fn slot(&self, secret: &SecretKey) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        slots.retain(|key, slot| key == secret || slot.used_at().elapsed() < IDLE_FOR);
        let slot = slots.entry(secret.clone()).or_insert_with(|| {
            Arc::new(Slot {
                used: Mutex::new(now),
                turns: Mutex::default(),
                state: tokio::sync::Mutex::default(),
            })
        });
        *slot.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
        slot.clone()
    }

    async fn require_allowed(&self, state: &mut State, secret: &SecretKey, account: &str) -> Result<(), RemoteError> {
        if state.allowed.get(account).is_some_and(|at| at.elapsed() < ALLOWED_FOR) {
            return Ok(());
        }
        state.allowed.remove(account);
        let tenant = self.local.tenant(Identity::of(&secret.namespace, Some(account)));
        match tenant.may("get", &target_of(secret)).await {
            Ok(true) => {
                state.allowed.insert(account.to_owned(), Instant::now());
                Ok(())
            }
            Ok(false) => Err(RemoteError::NotAllowed {
                secret: secret.clone(),
                account: account.to_owned(),
            }),
            Err(error) => Err(lookup(error)),
        }
    }

    async fn read(&self, secret: &SecretKey) -> Result<(Version, String), RemoteError> {
        let object = match self.local.tenant(Identity::Controller).get(&target_of(secret)).await {
            Ok(Some(object)) => object,
            Ok(None) => return Err(RemoteError::SecretMissing { secret: secret.clone() }),
            Err(e) if e.is_forbidden() => return Err(RemoteError::ControllerForbidden { secret: secret.clone() }),
            Err(e) => return Err(lookup(e)),
        };
        let version = Version {
            uid: super::uid(&object).to_owned(),
            resource_version: super::resource_version(&object).to_owned(),
        };
        let data = object
            .get("data")
            .and_then(|d| d.get(&secret.key))
            .and_then(Value::as_str)
            .filter(|d| !d.is_empty());
        let data = data.ok_or_else(|| RemoteError::KeyMissing { secret: secret.clone() })?;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data)
            .unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|_| RemoteError::Refused {
            secret: secret.clone(),
            fault: Box::new(Fault::new(
                "the value",
                "is not text",
                "store a kubeconfig in YAML or JSON",
            )),
        })?;
        Ok((version, text))
    }

    async fn connect(&self, secret: &SecretKey, version: &Version, text: &str) -> Result<Arc<Cluster>, RemoteError> {
        let refused = |fault| RemoteError::Refused {
            secret: secret.clone(),
            fault: Box::new(fault),
        };
        let config = accept(text, &self.guard.policy).map_err(refused)?;
        let key = format!(
            "{}/{}/{}@{}",
            secret.namespace, secret.name, secret.key, version.resource_version
        );
        let cluster = self
            .local
            .connect_guarded(key, config, self.guard.clone())
            .map_err(|_| {
                refused(Fault::new(
                    "the certificates or the key",
                    "cannot be used for TLS",
                    "check that client-certificate-data and client-key-data belong together",
                ))
            })?;
        reached(secret, cluster.id().await.map(drop)).map(|()| cluster)
    }

    /// A cluster that stopped to answer is asked once, for all that wait for it.
    async fn again(&self, secret: &SecretKey, cluster: Arc<Cluster>) -> Result<Arc<Cluster>, RemoteError> {
        reached(secret, cluster.answers().await).map(|()| cluster)
    }
}

fn reached(secret: &SecretKey, answer: Result<(), Error>) -> Result<(), RemoteError> {
    match answer {
        Ok(()) => Ok(()),
        Err(Error::Refused { refusal, .. }) => Err(RemoteError::Refused {
            secret: secret.clone(),
            fault: Box::new(kubeconfig::refused("the server's address", &refusal)),
        }),
        Err(source) => Err(RemoteError::Unreachable {
            secret: secret.clone(),
            source: Arc::new(source),
        }),
    }
}

impl Slot {
    fn used_at(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn secret_key(namespace: &str, reference: &KubeConfig) -> Result<SecretKey, RemoteError> {
    let found = reference
        .secret_ref
        .as_ref()
        .filter(|r| !r.name.is_empty())
        .ok_or(RemoteError::NoSecret)?;
    Ok(SecretKey {
        namespace: namespace.to_owned(),
        name: found.name.clone(),
        key: found
            .key
            .clone()
            .filter(|k| !k.is_empty())
            .unwrap_or_else(|| DEFAULT_KEY.to_owned()),
    })
}

fn target_of(secret: &SecretKey) -> Target {
    Target {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: Some(secret.namespace.clone()),
        name: secret.name.clone(),
    }
}

fn lookup(error: Error) -> RemoteError {
    RemoteError::Lookup {
        source: Arc::new(error),
    }
}
