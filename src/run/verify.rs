//! Readiness of what was applied: judged from what is known, read only where something changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use super::context::{Context, Known};
use super::judge::Judge;
use super::outcome::Failure;
use super::render::content_hash;
use crate::api::names::{FIELD_MANAGER, label};
use crate::cluster::watch::{Coverage, Knowledge, Owner, WatchKey, parse_version};
use crate::cluster::{Error, Identity, Target, Tenant, resource_version, uid};
use crate::rules::backoff::POLL_LADDER;
use crate::rules::drift;
use crate::rules::inventory::ObjectId;
use crate::rules::optout;
use crate::rules::readiness::{self, Awaited, Readiness, error_wait, explain, look_through, pod_selector};

/// The operation as the contract names it.
pub const OPERATION: &str = "verify";
/// Reads at once while looking at a stage's objects.
const PARALLEL: usize = 8;
/// The net under the watches: objects not ready are looked at again after this time.
const NET: Duration = Duration::from_secs(30);
/// Until a watch has been listed, its objects are polled.
const UNTIL_LISTED: Duration = Duration::from_secs(1);
/// The shortest wait for an object to settle.
const SETTLE_STEP: Duration = Duration::from_millis(100);

/// Workloads whose pods are listed in one look for the sake of a message.
const EXPLAINED: usize = 5;

/// What a look at a set of objects found.
#[derive(Debug, Default)]
pub struct Look {
    pub awaited: Vec<Awaited>,
    /// Something changed since the last look.
    pub changed: bool,
    /// When to look again if no watch tells.
    pub again: Duration,
    /// Why something is polled though it should be watched, by what it is; to be told once.
    pub unwatched: BTreeMap<String, Unwatched>,
    /// Objects that differ from what was sent, and how; nothing is listed for one that is gone.
    pub drifted: BTreeMap<ObjectId, Vec<drift::Change>>,
}

/// Why objects are polled though they should be watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unwatched {
    /// A right is missing; the text is the server's.
    Denied(String),
    /// The server tells of more than there is room for.
    Flooded(String),
}

impl Unwatched {
    fn of(coverage: &Coverage) -> Option<Self> {
        match coverage {
            Coverage::Denied(why) => Some(Self::Denied(why.clone())),
            Coverage::Flooded(why) => Some(Self::Flooded(why.clone())),
            Coverage::Live | Coverage::Starting | Coverage::None => None,
        }
    }

    /// What is in the way.
    pub fn why(&self) -> &str {
        match self {
            Self::Denied(why) | Self::Flooded(why) => why,
        }
    }

    /// The same for an event, with what can be done. `remote` where it is about another cluster.
    pub fn told(&self, stage: &str, identity: &Identity, remote: bool) -> String {
        let why = match self {
            Self::Denied(why) => why,
            Self::Flooded(why) => {
                return format!(
                    "stage {stage:?} polls: {why}; changes are noticed later, until there are fewer objects again"
                );
            }
        };
        let remedy = match identity {
            Identity::ServiceAccount { name, .. } => format!("grant list and watch to ServiceAccount {name:?}"),
            Identity::Controller if remote => "grant list and watch to the user of the kubeconfig".to_owned(),
            Identity::Controller => "give the stage a serviceAccountName that may list and watch it".to_owned(),
        };
        format!("stage {stage:?} polls what it cannot watch: {why}; {remedy}")
    }
}

impl Look {
    /// The sum of the verdicts.
    pub fn overall(&self) -> readiness::Overall {
        readiness::overall(self.awaited.iter().cloned())
    }
}

/// How a look treats what is known already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It was learned a moment ago, from the answers to our own writes: nothing is read.
    JustApplied,
    /// What a watch vouches for is not read.
    Watched,
    /// Everything that is not ready is read: time alone may have changed the verdict.
    Net,
    /// Everything is read that no watch vouches for, and compared with what was sent.
    Full,
}

/// Looks as one tenant on behalf of one StageSet.
pub struct Observer<'a> {
    pub ctx: &'a Arc<Context>,
    pub owner: &'a Owner,
    pub tenant: &'a Tenant,
    /// The rules of the stage.
    pub judge: &'a Judge,
    /// Steps in a row that had to poll, for the ladder.
    pub polls: u32,
    /// How much of what is known may be relied upon.
    pub mode: Mode,
    /// Workloads whose pods were asked why they do not start.
    pub explained: AtomicUsize,
    /// Fields that are left to others, for comparisons.
    pub ignore: &'a [drift::IgnoreRule],
}

impl Observer<'_> {
    /// Watches and judges the objects in `known`; `needed` collects the watches in use. Objects in `sent` are
    /// compared with it where they are read.
    ///
    /// # Errors
    /// A request that failed for another reason than a missing right.
    pub async fn look(
        &self,
        known: &mut BTreeMap<ObjectId, Known>,
        needed: &mut HashSet<WatchKey>,
        sent: Option<&HashMap<ObjectId, Value>>,
    ) -> Result<Look, Failure> {
        let mut look = Look {
            again: NET,
            ..Look::default()
        };
        let stale = self.stale(known, needed, &mut look).await?;
        let stale: Vec<_> = stale
            .into_iter()
            .filter_map(|(id, key)| Some((known.get(&id).cloned()?, id, key)))
            .collect();
        let mut reads = futures::stream::iter(stale.into_iter().map(|(known, id, key)| async move {
            let read = self.read(&id, &known, &key, sent.and_then(|s| s.get(&id))).await;
            (id, read)
        }))
        .buffer_unordered(PARALLEL);
        // The first that cannot be read ends the look: where the server is silent the others would wait as long.
        while let Some((id, read)) = reads.next().await {
            let (read, drifted) = read?;
            if let Some(changes) = drifted {
                look.drifted.insert(id.clone(), changes);
            }
            if let Some(entry) = known.get_mut(&id) {
                look.changed |= entry.version != read.version || entry.readiness != read.readiness;
                *entry = read;
            }
        }
        look.awaited = known
            .iter()
            .map(|(id, k)| Awaited {
                id: id.clone(),
                readiness: k.readiness.clone(),
            })
            .collect();
        Ok(look)
    }

    /// The objects whose state has to be read.
    ///
    /// # Errors
    /// A discovery that failed.
    pub async fn stale(
        &self,
        known: &BTreeMap<ObjectId, Known>,
        needed: &mut HashSet<WatchKey>,
        look: &mut Look,
    ) -> Result<Vec<(ObjectId, WatchKey)>, Failure> {
        let mut stale = Vec::new();
        let now = Timestamp::now();
        for (id, known) in known {
            if known.skipped && self.mode != Mode::Full {
                continue;
            }
            let (key, coverage) = self.cover(id, known, needed).await?;
            if let Some(why) = Unwatched::of(&coverage) {
                look.unwatched.insert(what_is_watched(&key), why);
            }
            let unchanged = self.ctx.hub.knows(&key, &id.name, &known.uid, known.version) == Knowledge::Unchanged;
            let vouched = coverage == Coverage::Live && unchanged;
            let ready = known.readiness.is_ready();
            if !ready {
                look.again = look.again.min(match &coverage {
                    Coverage::Live => NET,
                    Coverage::Starting => UNTIL_LISTED,
                    Coverage::Denied(_) | Coverage::Flooded(_) | Coverage::None => POLL_LADDER.wait(self.polls),
                });
                if let Some(at) = known.settles_at {
                    look.again = look.again.min(
                        Duration::try_from(at.duration_since(now))
                            .unwrap_or_default()
                            .max(SETTLE_STEP),
                    );
                }
            }
            // The verdict is out of date though the object is the same.
            let overdue = known.settles_at.is_some_and(|at| at <= now) || known.rules != self.judge.rules(id);
            let skip = match self.mode {
                Mode::JustApplied => true,
                Mode::Watched => vouched || (ready && coverage != Coverage::Live),
                Mode::Net => ready && (vouched || coverage != Coverage::Live),
                Mode::Full => vouched && ready && known.compared == known.version,
            };
            if overdue || !skip {
                stale.push((id.clone(), key));
            }
        }
        Ok(stale)
    }

    /// Makes sure the object is watched, with its kind or by its name.
    async fn cover(
        &self,
        id: &ObjectId,
        known: &Known,
        needed: &mut HashSet<WatchKey>,
    ) -> Result<(WatchKey, Coverage), Failure> {
        let target = target_of(id, &known.api_version);
        let key = |namespaced| {
            let of = if known.alone { WatchKey::by_name } else { WatchKey::of };
            of(self.tenant.cluster().key(), self.tenant.identity(), &target, namespaced)
        };
        let served = match self.tenant.served(&target.api_version, &target.kind).await {
            Ok(served) => served,
            Err(Error::UnknownKind { .. }) => return Ok((key(true), Coverage::None)),
            Err(e) => return Err(Failure::of_request(OPERATION, &e)),
        };
        let key = key(served.namespaced);
        needed.insert(key.clone());
        let coverage = self.ctx.hub.watch(&key, &served, self.tenant, self.owner);
        Ok((key, coverage))
    }

    async fn read(
        &self,
        id: &ObjectId,
        known: &Known,
        key: &WatchKey,
        sent: Option<&Value>,
    ) -> Result<(Known, Option<Vec<drift::Change>>), Failure> {
        let target = target_of(id, &known.api_version);
        let now = Timestamp::now();
        let mut known = known.clone();
        let live = match self.tenant.get(&target).await {
            Ok(live) => live,
            Err(Error::UnknownKind { .. }) => None,
            Err(e) => return Err(Failure::of_access(OPERATION, &e, "get", &target)),
        };
        let Some(live) = live else {
            return Ok(self.not_found(id, known, sent));
        };
        let unseen = known.uid.is_empty();
        known.uid = uid(&live).to_owned();
        known.version = parse_version(Some(resource_version(&live)));
        let served = self.tenant.served(&target.api_version, &target.kind).await.ok();
        let verdict = self.judge.judge(id, &live, served.as_ref(), known.changed_at).await;
        known.rules = verdict.rules;
        known.settles_at = verdict.settles_at;
        known.readiness = if self.judge.covers(id) {
            verdict.readiness
        } else {
            self.through_pods(&live, verdict.readiness, now).await
        };
        if known.alone || crate::cluster::label(&live, label::NAME) == Some(&self.owner.name) {
            self.ctx.hub.note(key, &id.name, &known.uid, known.version, self.owner);
        }
        // Where it was not asked before, as after a restart: an apply would leave it alone.
        if unseen && !known.alone && optout::mode(&Value::Null, Some(&live)) == optout::Mode::Ignore {
            known.skipped = true;
        }
        if known.skipped {
            known.compared = known.version;
            known.readiness = Readiness::Current;
            return Ok((known, None));
        }
        let changes = sent.map(|sent| {
            let outgoing = drift::object_to_send(sent, Some(&live), self.ignore, FIELD_MANAGER);
            drift::compare(&outgoing, &live, FIELD_MANAGER)
        });
        let drifted = changes.filter(|c| !c.is_empty());
        known.deletes_itself = readiness::deletes_itself(&live);
        if let Some(sent) = sent.filter(|_| drifted.is_none()) {
            known.compared = known.version;
            // Found equal: after a restart it is as good as sent by this process.
            known.sent = content_hash(sent, self.ignore);
        }
        Ok((known, drifted))
    }

    /// An object that is not there: gone by itself when it was done, or missing.
    fn not_found(&self, id: &ObjectId, mut known: Known, sent: Option<&Value>) -> (Known, Option<Vec<drift::Change>>) {
        known.deletes_itself |= sent.is_some_and(readiness::deletes_itself);
        let done = known.deletes_itself && !known.readiness.is_failed();
        known.readiness = if done { Readiness::Current } else { Readiness::NotFound };
        known.version = 0;
        known.rules = self.judge.rules(id);
        known.settles_at = None;
        if let Some(sent) = sent.filter(|_| done) {
            known.sent = content_hash(sent, self.ignore);
            return (known, None);
        }
        (known, sent.map(|_| Vec::new()))
    }

    /// The pods behind a StatefulSet or ReplicaSet decide whether it can still get there (run 27.3), and those behind any
    /// workload say why it does not; the latter are asked now and then, for a few workloads.
    /// Without the right to list pods, the object's own state has to do.
    async fn through_pods(&self, live: &Value, own: Readiness, now: Timestamp) -> Readiness {
        if !matches!(own, Readiness::InProgress { .. }) {
            return own;
        }
        let asked = match live.get("kind").and_then(Value::as_str).unwrap_or_default() {
            "StatefulSet" | "ReplicaSet" => true,
            "Deployment" | "DaemonSet" | "Job" if self.mode == Mode::Net => {
                self.explained.fetch_add(1, Ordering::Relaxed) < EXPLAINED
            }
            _ => false,
        };
        if !asked {
            return own;
        }
        match self.pods_of(live).await {
            Some(pods) => explain(look_through(live, own, &pods, now), &pods),
            None => own,
        }
    }

    async fn pods_of(&self, workload: &Value) -> Option<Vec<Value>> {
        let selector = pod_selector(workload)?;
        let namespace = workload.pointer("/metadata/namespace").and_then(Value::as_str)?;
        let pods = Target {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: Some(namespace.to_owned()),
            name: String::new(),
        };
        self.tenant.list(&pods, Some(&selector)).await.ok()
    }

    /// Whether a pod behind something awaited is in an error wait: then the stage is stuck, and a newer
    /// revision need not wait for it (decisions 3.4).
    pub async fn error_wait(&self, awaited: &[Awaited], known: &BTreeMap<ObjectId, Known>) -> Option<String> {
        for one in awaited.iter().filter(|a| !a.readiness.is_ready()) {
            if one.readiness.is_failed() {
                return Some(one.to_string());
            }
            if !matches!(
                one.id.kind.as_str(),
                "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job"
            ) {
                continue;
            }
            let Some(known) = known.get(&one.id) else {
                continue;
            };
            let read = self.tenant.get(&target_of(&one.id, &known.api_version)).await;
            let Some(live) = read.ok().flatten() else {
                continue;
            };
            for pod in self.pods_of(&live).await.unwrap_or_default() {
                if let Some(wait) = error_wait(&pod) {
                    return Some(format!("{}: pod {} waits with {}", one.id, wait.pod, wait.reason));
                }
            }
        }
        None
    }
}

/// A watch by what it is on: whatever a server says of it, it is the same.
fn what_is_watched(key: &WatchKey) -> String {
    let part = |part: &Option<String>| part.as_deref().unwrap_or("*").to_owned();
    let (namespace, name) = (part(&key.namespace), part(&key.name));
    format!("{} {} {namespace}/{name} {}", key.api_version, key.kind, key.identity)
}

/// The address of a recorded object.
pub fn target_of(id: &ObjectId, api_version: &str) -> Target {
    Target {
        api_version: api_version.to_owned(),
        kind: id.kind.clone(),
        namespace: Some(id.namespace.clone()).filter(|n| !n.is_empty()),
        name: id.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: decisions 5 tenant
    #[test]
    fn who_polls_is_told_what_helps_and_nothing_else() {
        let denied = Unwatched::Denied("cannot list pods".into());
        let begin = "stage \"app\" polls what it cannot watch: cannot list pods; ";
        for (account, remote, remedy) in [
            (Some("shop"), true, "grant list and watch to ServiceAccount \"shop\""),
            (None, true, "grant list and watch to the user of the kubeconfig"),
            (
                None,
                false,
                "give the stage a serviceAccountName that may list and watch it",
            ),
        ] {
            assert_eq!(
                denied.told("app", &Identity::of("ns", account), remote),
                format!("{begin}{remedy}")
            );
        }
        let flooded = Unwatched::Flooded("too many".into()).told("app", &Identity::of("ns", Some("shop")), true);
        assert!(!flooded.contains("grant"), "no right is missing: {flooded}");
    }
}
