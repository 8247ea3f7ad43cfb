//! What every step needs: the doors, the caches, and what is remembered between steps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::doubt::Doubts;
use super::notify::Notifier;
use super::outcome::{Missing, Remedy};
use super::teardown::Progress;
use crate::api::StageSet;
use crate::cache::{Inventories, Sources, StageSets};
use crate::cluster::watch::{Hub, Owner, parse_version};
use crate::cluster::{Cluster, Clusters, Target, resource_version, uid};
use crate::config::Config;
use crate::rules::drift::DriftLoops;
use crate::rules::inventory::ObjectId;
use crate::rules::readiness::Readiness;
use crate::source;
use crate::telemetry::Metrics;

/// Shared by all steps.
pub struct Context {
    pub config: Config,
    pub cluster: Arc<Cluster>,
    /// The local cluster and those reached by kubeconfig.
    pub clusters: Arc<Clusters>,
    pub hub: Arc<Hub>,
    pub sets: Arc<StageSets>,
    pub inventories: Arc<Inventories>,
    pub sources: Arc<Sources>,
    pub artifacts: source::Cache,
    pub notifier: Notifier,
    pub metrics: Metrics,
    pub memories: Memories,
    /// Builds at once: each takes a core and, at worst, much memory.
    pub builds: Arc<Semaphore>,
}

impl Context {
    /// Drops what is kept for a StageSet that is gone.
    pub fn forget(&self, owner: &Owner) {
        self.memories.forget(owner);
        self.inventories.forget_lost(owner);
        self.hub.keep_only(owner, &HashSet::new());
        self.metrics.forget(&owner.namespace, &owner.name);
    }
}

/// What is remembered of each StageSet while the process lives. Losing it costs requests, never
/// correctness: everything that matters is in the status and the inventory.
#[derive(Default)]
pub struct Memories {
    of: Mutex<HashMap<Owner, Arc<tokio::sync::Mutex<Memory>>>>,
}

impl Memories {
    /// The memory of one StageSet.
    pub fn of(&self, owner: &Owner) -> Arc<tokio::sync::Mutex<Memory>> {
        self.of
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(owner.clone())
            .or_default()
            .clone()
    }

    /// Forgets a StageSet that is gone.
    pub fn forget(&self, owner: &Owner) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }
}

/// Memory of one StageSet.
#[derive(Default)]
pub struct Memory {
    /// UID the rest belongs to: a namesake created later starts afresh.
    pub uid: String,
    /// Identity of the remote cluster the rest was learned on; empty for the local one.
    pub target: String,
    pub stages: HashMap<String, StageMemory>,
    /// Steps in a row that ended undecided.
    pub undecided: u32,
    /// Steps in a row that ended because somebody else wrote the StageSet meanwhile.
    pub overtaken: u32,
    /// The request that the events of the run under way answer.
    pub answering: Option<String>,
    /// When the last complete look at everything ended.
    pub looked_at: Option<Instant>,
    /// When somebody last asked for a pass.
    pub requested_at: Option<Instant>,
    /// When everything was last compared with what was sent.
    pub full_at: Option<Instant>,
    /// When that is due for the first time after a restart.
    pub full_due: Option<Instant>,
    /// Watches that may not be, and were told of.
    pub told_denied: std::collections::BTreeSet<String>,
    /// Drift that returns, and when each drifted object was last put back.
    pub loops: DriftLoops,
    pub corrected_at: HashMap<ObjectId, Instant>,
    /// What can be done about the last failure of each stage.
    pub remedies: HashMap<String, Remedy>,
    /// The reason of that failure.
    pub reasons: HashMap<String, crate::api::Reason>,
    /// When each stage that a run is through with has its turn again while the run waits at another.
    pub turns: HashMap<String, Turn>,
    /// When a stage that failed before a restart is tried again.
    pub attempt_due: Option<Instant>,
    /// The inputs each failed stage failed with: others are worth an attempt at once.
    pub failed_inputs: HashMap<String, String>,
    /// What each failed stage lacks, and how often it has been asked for since.
    pub missing: HashMap<String, (Missing, u32, Instant)>,
    /// What each failed stage was denied although its account has the right.
    pub unexplained: HashMap<String, Missing>,
    /// Reason and text of the last transition that was told: a retry that fails alike is no news.
    pub told: Option<(crate::api::Reason, String)>,
    /// The last event about Helm hooks.
    pub told_hooks: Option<(crate::api::Reason, String)>,
    /// What was told last of each stage that has to wait with an update that is held.
    pub told_waits: HashMap<(crate::api::Reason, String), String>,
    /// Objects recorded since the release was last in place.
    pub added: BTreeMap<String, BTreeSet<ObjectId>>,
    /// An attempt that was begun by something that is told once has to wait for a dependency.
    pub owed: bool,
    /// Stages that had neither record nor status when they were first recorded, and whether an object of theirs was there
    /// all the same: then they come from a backup.
    pub unknown: BTreeMap<String, bool>,
    /// Recorded entries that could not be read and have been told.
    pub unreadable: BTreeSet<String>,
    /// Writes whose answer never came.
    pub doubts: Doubts,
    /// Looks in a row that found something not ready.
    pub polls: u32,
    /// When a status write last went out.
    pub wrote_at: Option<Instant>,
    /// When something awaited last changed.
    pub changed_at: Option<Timestamp>,
    /// How far a teardown has come.
    pub teardown: Progress,
}

impl Memory {
    /// Starts afresh where the rest belongs to a namesake.
    pub fn belong_to(&mut self, set: &StageSet) {
        let uid = set.metadata.uid.clone().unwrap_or_default();
        if self.uid != uid {
            *self = Self { uid, ..Self::default() };
        }
    }
}

impl Memory {
    /// Drops what is remembered of stages that left the spec: one that comes back under the name of one is another. What
    /// was recorded and not pruned yet is kept.
    pub fn keep_stages(&mut self, stages: &[crate::api::Stage]) {
        let stays = |name: &str| stages.iter().any(|stage| stage.name == name);
        self.stages.retain(|name, _| stays(name));
        self.remedies.retain(|name, _| stays(name));
        self.reasons.retain(|name, _| stays(name));
        self.turns.retain(|name, _| stays(name));
        self.failed_inputs.retain(|name, _| stays(name));
        self.missing.retain(|name, _| stays(name));
        self.unexplained.retain(|name, _| stays(name));
    }
}

/// A stage's turn to be compared with what was sent.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub due: Instant,
    /// It could not be looked after the last time.
    pub failed: bool,
}

/// Memory of one stage.
#[derive(Default)]
pub struct StageMemory {
    /// The inputs that the objects below were rendered from.
    pub inputs: String,
    pub objects: BTreeMap<ObjectId, Known>,
    /// Objects of others that `readyChecks.checks` lists.
    pub named: BTreeMap<ObjectId, Known>,
}

/// What is known of one object since our last look.
#[derive(Debug, Clone)]
pub struct Known {
    pub api_version: String,
    pub uid: String,
    pub version: u64,
    /// Hash of what was sent, so that an object that did not change between revisions is not sent again.
    pub sent: u64,
    /// The version that was last compared with what was sent, and found equal.
    pub compared: u64,
    pub readiness: Readiness,
    /// The rules that the verdict was found by; 0 stands for those of the kind.
    pub rules: u64,
    /// When time alone changes the verdict.
    pub settles_at: Option<Timestamp>,
    /// When we last changed it.
    pub changed_at: Timestamp,
    /// Left alone by its own wish or by policy: not waited for.
    pub skipped: bool,
    /// It need not carry our label, so it is watched by its name.
    pub alone: bool,
    /// It goes away by itself once it is done (run 27.4).
    pub deletes_itself: bool,
}

impl Known {
    /// An object that is being deleted.
    pub fn leaving(target: &Target, before: Option<&Self>) -> Self {
        let mut known = before
            .cloned()
            .unwrap_or_else(|| Self::unseen(target.api_version.clone(), Timestamp::now()));
        known.readiness = Readiness::Terminating;
        known.sent = 0;
        known
    }

    /// An object that is left alone, and so not waited for.
    pub fn skipped(target: &Target, live: Option<&Value>, sent: u64) -> Self {
        let version = live.map_or(0, |l| parse_version(Some(resource_version(l))));
        Self {
            api_version: target.api_version.clone(),
            uid: live.map(uid).unwrap_or_default().to_owned(),
            version,
            sent,
            compared: version,
            readiness: Readiness::Current,
            rules: 0,
            settles_at: None,
            changed_at: Timestamp::now(),
            skipped: true,
            alone: false,
            deletes_itself: false,
        }
    }

    /// An object that nobody here has looked at.
    pub fn unseen(api_version: String, changed_at: Timestamp) -> Self {
        Self {
            api_version,
            uid: String::new(),
            version: 0,
            sent: 0,
            compared: 0,
            readiness: Readiness::Unknown {
                message: "not looked at yet".into(),
            },
            rules: 0,
            settles_at: None,
            changed_at,
            skipped: false,
            alone: false,
            deletes_itself: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Stage;

    #[test]
    fn what_is_remembered_of_a_stage_goes_with_it() {
        let mut memory = Memory::default();
        for name in ["stays", "leaves"] {
            memory.stages.insert(name.into(), StageMemory::default());
            memory.remedies.insert(name.into(), Remedy::Retry);
            memory.failed_inputs.insert(name.into(), String::new());
            memory.added.insert(name.into(), BTreeSet::new());
        }
        let stays = Stage {
            name: "stays".into(),
            ..Stage::default()
        };
        memory.keep_stages(&[stays]);
        assert!(memory.stages.keys().eq(["stays"]) && memory.remedies.keys().eq(["stays"]));
        assert!(memory.failed_inputs.keys().eq(["stays"]));
        assert_eq!(memory.added.len(), 2, "what is still to be pruned is known");
    }
}
