//! Taking a deleted StageSet's objects away, last stage first, each stage gone before the one before it is
//! touched; then the finalizer (run 4, run 28 B13).

mod clock;
mod give_up;
mod obstacle;
mod recorded;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub use self::clock::Progress;
use self::obstacle::{Kind, Obstacle};
use super::context::{Context, Memory};
use super::notify::Notice;
use super::outcome::{Stop, Wake};
use super::prune::{successor, tell_kept};
use super::record::Record;
use super::remove::{Removal, Remover};
use super::status;
use super::target::{of_record, other_cluster, same_reference, set_aside_from};
use crate::api::names::{FINALIZER, annotation};
use crate::api::{Reason, StageSet};
use crate::cluster::Cluster;
use crate::cluster::watch::Owner;
use crate::rules::backoff::{ERROR_LADDER, Ladder};
use crate::rules::condition::{READY, Situation, conditions, transition};
use crate::rules::inventory::{Entry, ObjectId, StoredStage};

/// Pauses between looks at objects that are on their way out: most are gone in a moment, some have finalizers.
const LEAVING_LADDER: Ladder = Ladder::doubling(Duration::from_millis(100), Duration::from_secs(5));

/// Objects a message names at most.
const NAMED: usize = 5;

/// The records of the stages to be torn down, last first.
type Stages = [(StoredStage, Record)];

/// One step of the teardown.
///
/// # Errors
/// Why nothing was decided.
pub async fn step(ctx: &Arc<Context>, owner: &Owner, set: Arc<StageSet>, memory: &mut Memory) -> Result<Wake, Stop> {
    let finalizers = set.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(Wake::OnChange);
    }
    memory.belong_to(&set);
    let mut teardown = Teardown {
        ctx,
        owner,
        set: &set,
        memory,
    };
    if protected(&set) {
        teardown.memory.teardown.pause();
        let message = format!(
            "deletion is held by the annotation {}: remove it to let the teardown go on",
            annotation::DELETION_PROTECTION
        );
        return teardown.hold(Reason::DeletionProtected, message, Wake::OnChange).await;
    }
    teardown.go_on().await
}

fn protected(set: &StageSet) -> bool {
    let annotations = set.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(annotation::DELETION_PROTECTION))
        .is_some_and(|v| v == annotation::ENABLED)
}

/// The working state of one step.
struct Teardown<'a> {
    ctx: &'a Arc<Context>,
    owner: &'a Owner,
    set: &'a Arc<StageSet>,
    memory: &'a mut Memory,
}

/// What became of one stage.
enum Torn {
    Gone,
    Stopped(Obstacle),
}

/// Whether the objects of a record stay by the wish of their stage.
fn is_left_alone(set: &StageSet, stored: &StoredStage) -> bool {
    let name = set_aside_from(&stored.name).unwrap_or(&stored.name);
    let in_spec = set.spec.stages.iter().find(|s| s.name == name);
    in_spec.is_some_and(|s| !s.prunes())
}

/// Everything the teardown deletes on the cluster of a record.
fn going(set: &StageSet, stages: &Stages, of: &Record) -> BTreeSet<ObjectId> {
    let together = stages.iter().filter(|(stored, record)| {
        same_reference(record.target.as_ref(), of.target.as_ref()) && !is_left_alone(set, stored)
    });
    together
        .flat_map(|(stored, _)| stored.entries.keys().cloned())
        .collect()
}

impl Teardown<'_> {
    async fn go_on(&mut self) -> Result<Wake, Stop> {
        self.memory.teardown.tries();
        let (stages, unknown) = self.recorded().await;
        let obstacle = match self.round(&stages).await {
            // What is not known yet may still be deleted.
            Some(denied) if denied.kind == Kind::Denied => unknown.or(Some(denied)),
            None => unknown,
            some => some,
        };
        self.memory.teardown.tried();
        match obstacle {
            None => self.drop_finalizer().await,
            Some(obstacle) => self.stopped(&stages, &obstacle).await,
        }
    }

    /// Takes the stages away in their order, as far as they go without waiting. Gives what the teardown waits for.
    async fn round(&mut self, stages: &Stages) -> Option<Obstacle> {
        let mut first: Option<Obstacle> = None;
        let mut stopped: Vec<&Record> = Vec::new();
        for (stored, record) in stages {
            // The order holds on each cluster; one that is away does not hold up the others.
            let same = |other: &&Record| same_reference(other.target.as_ref(), record.target.as_ref());
            if stopped.iter().any(same) {
                continue;
            }
            let Torn::Stopped(obstacle) = self.tear_down(stages, stored, record).await else {
                continue;
            };
            match obstacle.kind {
                Kind::Leaving => return Some(obstacle),
                // What may not be deleted holds nothing else back: the rest goes, then the teardown gives up.
                Kind::Denied | Kind::Elsewhere => {}
                Kind::Failed | Kind::Refused(_) | Kind::Unreachable | Kind::Unread => stopped.push(record),
            }
            // That a right is missing ends the teardown, so it is told only where nothing else is left to be done.
            if first.as_ref().is_none_or(|first| first.kind == Kind::Denied) {
                first = Some(obstacle);
            }
        }
        first
    }

    async fn tear_down(&mut self, stages: &Stages, stored: &StoredStage, record: &Record) -> Torn {
        let left = self.left_of(stored);
        if left.is_empty() {
            return Torn::Gone;
        }
        let cluster = match self.cluster_of(stored, record).await {
            Ok(cluster) => cluster,
            Err(obstacle) => return Torn::Stopped(obstacle),
        };
        let tenant = |account: Option<&str>| cluster.acting_for(&self.owner.namespace, account);
        let successor = successor(&self.set.spec, &stored.name, record.account.as_deref());
        let successor = successor.map(|name| tenant(Some(name)));
        let remover = Remover {
            tenant: &tenant(record.account.as_deref()),
            successor: successor.as_ref(),
            owner: self.owner,
            going: &going(self.set, stages, record),
            // A StageSet that renders itself does not wait for itself.
            wanted: &self.set.metadata.uid.iter().cloned().collect(),
        };
        let removal = remover.remove(&left).await;
        tell_kept(self.ctx, self.set, &stored.name, &removal.kept);
        self.judge(stored, &left, removal, cluster.key())
    }

    /// What of a record is still to be taken away.
    fn left_of(&self, stored: &StoredStage) -> Vec<Entry> {
        if is_left_alone(self.set, stored) {
            return Vec::new();
        }
        let entries = stored.entries.iter();
        entries
            .filter(|(id, _)| !self.memory.teardown.is_gone(&stored.name, id))
            .map(|(id, version)| Entry {
                id: id.clone(),
                version: version.clone(),
            })
            .collect()
    }

    /// The cluster a record's objects are on, where that is the one they were applied to.
    async fn cluster_of(&self, stored: &StoredStage, record: &Record) -> Result<Arc<Cluster>, Obstacle> {
        let set = self.set;
        let cluster = of_record(self.ctx, self.owner, set, record).await;
        let cluster = cluster.map_err(|e| Obstacle::unreachable(&stored.name, &e))?;
        let deployed = set.status.as_ref().and_then(|s| s.stage(&stored.name));
        let revision = deployed.and_then(|s| s.applied_revision.as_deref()).unwrap_or_default();
        let annotations = set.metadata.annotations.as_ref();
        let confirmed = annotations.and_then(|a| a.get(annotation::CONFIRM_PRUNE));
        match other_cluster(&stored.name, record, &cluster, revision, confirmed.map(String::as_str)).await {
            Ok(None) => Ok(cluster),
            Ok(Some(other)) => Err(Obstacle::elsewhere(other.to_string())),
            Err(error) => Err(Obstacle::failed(&stored.name, &error, cluster.key())),
        }
    }

    fn judge(&mut self, stored: &StoredStage, left: &[Entry], removal: Removal, cluster: &str) -> Torn {
        // What is gone may be made again by a write that is still to be carried out.
        let doubtful = left
            .iter()
            .map(|e| &e.id)
            .filter(|id| self.memory.doubts.is_open(id))
            .cloned();
        let leaving: BTreeSet<ObjectId> = removal.leaving.into_iter().chain(doubtful).collect();
        let settled = removal.settled.into_iter().filter(|id| !leaving.contains(id));
        if self.memory.teardown.settle(&stored.name, settled) {
            self.memory.polls = 0;
            self.memory.undecided = 0;
        }
        let (denied, failed): (Vec<_>, Vec<_>) = removal.errors.iter().partition(|e| e.is_forbidden());
        let name = &stored.name;
        if let Some(error) = failed.first() {
            return Torn::Stopped(Obstacle::failed(name, error, cluster));
        }
        if !leaving.is_empty() {
            return Torn::Stopped(Obstacle::leaving(name, &leaving));
        }
        match denied.first() {
            Some(error) => Torn::Stopped(Obstacle::denied(name, error)),
            None => Torn::Gone,
        }
    }

    /// Waits, or gives up where waiting is of no use any more.
    async fn stopped(&mut self, stages: &Stages, obstacle: &Obstacle) -> Result<Wake, Stop> {
        let refused = self.memory.teardown.refused(obstacle);
        if self.is_overdue() {
            return self.give_up(stages, "timed_out", obstacle).await;
        }
        let reason = match &obstacle.kind {
            Kind::Denied => return self.give_up(stages, "permanent", obstacle).await,
            Kind::Refused(_) if refused.is_none() => return self.give_up(stages, "unauthorized", obstacle).await,
            Kind::Leaving => {
                let wake = LEAVING_LADDER.wait(self.memory.polls);
                self.memory.polls = self.memory.polls.saturating_add(1);
                let message = obstacle.message.clone();
                return self.write(&Situation::Unfinished { message }, Wake::In(wake)).await;
            }
            Kind::Elsewhere => Reason::PruneHeld,
            Kind::Failed | Kind::Refused(_) | Kind::Unreachable | Kind::Unread => Reason::StageFailed,
        };
        self.memory.undecided = self.memory.undecided.saturating_add(1);
        let wake = ERROR_LADDER.wait(self.memory.undecided.min(6));
        let wake = refused.map_or(wake, |rest| rest.min(wake));
        self.hold(reason, obstacle.message.clone(), Wake::In(wake)).await
    }

    async fn drop_finalizer(&self) -> Result<Wake, Stop> {
        let rest: Vec<String> = self
            .set
            .metadata
            .finalizers
            .clone()
            .unwrap_or_default()
            .into_iter()
            .filter(|f| f != FINALIZER)
            .collect();
        let body = serde_json::json!({"metadata": {
            "finalizers": rest,
            "resourceVersion": self.set.metadata.resource_version,
            "uid": self.set.metadata.uid,
        }});
        match status::patch_set(self.ctx, self.owner, None, &body).await {
            Ok(_) | Err(Stop::Gone) => Ok(Wake::OnChange),
            Err(stop) => Err(stop),
        }
    }

    async fn hold(&mut self, reason: Reason, message: String, wake: Wake) -> Result<Wake, Stop> {
        let situation = match reason {
            Reason::DeletionProtected | Reason::PruneHeld => Situation::Held {
                reason,
                message,
                retrying: false,
                deployed: false,
            },
            _ => Situation::Failed { reason, message },
        };
        self.write(&situation, wake).await
    }

    async fn write(&mut self, situation: &Situation, wake: Wake) -> Result<Wake, Stop> {
        let (ctx, set) = (self.ctx, self.set);
        let mut next = set.status.clone().unwrap_or_default();
        let before = next.conditions.clone();
        if self.restarts_clock() {
            next.conditions.retain(|c| c.type_ != READY);
        }
        let generation = set.metadata.generation.unwrap_or_default();
        next.conditions = conditions(
            &next.conditions,
            situation,
            generation,
            Timestamp::now(),
            &ctx.config.runbook_base_url,
        );
        let written = status::write(ctx, self.owner, set, &next, self.memory).await?;
        self.memory.teardown.told();
        if let Some(event) = transition(&before, situation) {
            let notice = Notice::about(&written, event.reason, event.warning, situation.message());
            ctx.notifier.send(notice);
        }
        Ok(wake)
    }
}
