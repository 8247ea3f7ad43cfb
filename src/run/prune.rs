//! The end of a run: what left the stages is deleted, the record shrinks, the release is in place (run 19, 22).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::notify::Notice;
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, STUMBLES, jittered, stage_message};
use super::record::{self, Record};
use super::remove::{Removal, Remover, live};
use super::status;
use super::target::{forget_word, is_here, of_record, or_forget, same_reference, set_aside_from, shown};
use super::verify::target_of;
use crate::api::common::non_empty;
use crate::api::names::annotation;
use crate::api::{Reason, StageSet, StageSetSpec};
use crate::cluster::{Cluster, uid};
use crate::rules::backoff::{POLL_LADDER, RBAC_LADDER};
use crate::rules::condition::{MAX_MESSAGE, Situation, cut};
use crate::rules::inventory::{
    DesiredStage, DuplicateClaim, Entries, Entry, ObjectId, PruneGuard, StagePrune, prune_set,
};
use crate::source::Artifact;

/// Stages or objects a message names at most.
const NAMED: usize = 5;

/// What a prune could not do: every failure with the stage it is about, be it in the spec or not, and what waits for a
/// person.
#[derive(Debug, Default)]
pub(super) struct Unpruned {
    failures: Vec<(String, Failure)>,
    held: Option<String>,
}

impl Unpruned {
    fn of(record: &str, failure: Failure) -> Self {
        Self {
            failures: vec![(shown(record).to_owned(), failure)],
            held: None,
        }
    }
}

/// Why a prune does not go on with the next stage.
enum Halt {
    /// It has to be confirmed first.
    Held(String),
    /// The server does not answer: the others would wait as long.
    Silent(Failure),
}

/// A plan with the record it is for.
struct Planned {
    plan: StagePrune,
    record: Record,
    /// The objects are on the cluster that is applied to now.
    here: bool,
}

impl Pass<'_> {
    /// Prunes, then records the run as done.
    pub(super) async fn conclude(&mut self) -> Result<End, Stop> {
        match self.prune().await {
            Ok(None) => {}
            Ok(Some(end)) => return Ok(end),
            Err(unpruned) => return self.failed_prune(unpruned),
        }
        let before = record::release_of(&self.set, &self.status);
        self.status.last_applied_revisions = self.artifacts.iter().map(|a| (a.key(), a.revision.clone())).collect();
        let newer = self.status.last_attempted_revisions != self.status.last_applied_revisions;
        if record::release_of(&self.set, &self.status) == before
            && let Err(unpruned) = self.settle_records().await
        {
            return self.failed_prune(unpruned);
        }
        self.status.run = None;
        self.memory.added.clear();
        self.count_records();
        for entry in &mut self.status.stages {
            entry.message = None;
            entry.waiting_for = None;
        }
        self.memory.full_at = Some(std::time::Instant::now());
        tracing::info!(stages = self.status.stages.len(), ready = true, "StageSet synced");
        let again = newer || self.prune_deferred || self.is_disturbed();
        let steady = jittered(self.cadence().steady);
        let wake = if again {
            Duration::ZERO
        } else if self.leaves {
            POLL_LADDER.first
        } else {
            self.memory.doubts.rest().map_or(steady, |rest| rest.min(steady))
        };
        Ok(End {
            situation: Situation::Succeeded {
                message: self.deployed(),
            },
            wake: Wake::In(wake),
        })
    }

    /// Says what could not be pruned, in Ready and at the stages of the spec that it is about. Those themselves are as
    /// they should be; only what left them is not gone yet.
    pub(super) fn failed_prune(&mut self, unpruned: Unpruned) -> Result<End, Stop> {
        let Unpruned { mut failures, held } = unpruned;
        // What will not go away by itself is told first.
        failures.sort_by_key(|(_, failure)| failure.remedy == Remedy::Stumble);
        let texts = failures.iter().map(|(stage, failure)| stage_message(stage, failure));
        let mut texts: Vec<String> = texts.chain(held).collect();
        let more = texts.len().saturating_sub(NAMED);
        texts.truncate(NAMED);
        let mut text = texts.join("; ");
        if more > 0 {
            text.push_str(&format!(" (and {more} more)"));
        }
        let message = cut(self.mask(&text), MAX_MESSAGE);
        let first = failures.first().map(|(_, failure)| (failure.reason, failure.remedy));
        let (reason, remedy) = first.unwrap_or((Reason::StageFailed, Remedy::Retry));
        if remedy == Remedy::Stumble && self.memory.undecided < STUMBLES {
            return Err(Stop::Stumbled(message));
        }
        for (stage, failure) in &failures {
            let told = self.mask(&failure.told());
            tracing::error!(stage, error = told, "what left a stage cannot be pruned");
            if let Some(at) = self.position(|s| s.name == *stage) {
                self.status.stages[at].message = Some(told);
            }
        }
        Ok(End {
            situation: match remedy {
                Remedy::Change => Situation::Terminal { reason, message },
                _ => Situation::Failed { reason, message },
            },
            wake: Wake::In(self.cadence().retry.min(RBAC_LADDER.last)),
        })
    }

    /// `deployed 2 stages at main@sha1:…`.
    pub(super) fn deployed(&self) -> String {
        let mut revisions: Vec<&str> = self
            .artifacts
            .iter()
            .map(|a| a.revision.as_str())
            .filter(|r| !r.is_empty())
            .collect();
        revisions.dedup();
        let count = self.status.stages.len();
        let stages = if count == 1 { "stage" } else { "stages" };
        match revisions.as_slice() {
            [] => format!("deployed {count} {stages}"),
            some => format!("deployed {count} {stages} at {}", some.join(", ")),
        }
    }

    /// Deletes what left the stages. Whatever cannot be deleted holds up no other stage, nor what left the spec. `Some`
    /// when it has to be confirmed first, or is not the time yet.
    pub(super) async fn prune(&mut self) -> Result<Option<End>, Unpruned> {
        if self.prune_deferred {
            return Ok(None);
        }
        let spec = self.set.spec.clone();
        let desired = self.desired().await?;
        if let Some(at) = self.unapplied(&desired) {
            return Ok(Some(self.apply_anew(at)));
        }
        let plans = self.plan(&desired).await?;
        for planned in &plans {
            if let Some(held) = self.guard(&planned.plan) {
                return Ok(Some(held));
            }
        }
        let mut unpruned = Unpruned::default();
        for planned in &plans {
            let going = going(&plans, planned, &spec);
            let stage = shown(&planned.plan.stage).to_owned();
            match self.prune_stage(planned, &going, &desired).await {
                Ok(None) => {}
                Ok(Some(Halt::Held(message))) => {
                    unpruned.held = Some(message);
                    break;
                }
                Ok(Some(Halt::Silent(failure))) => {
                    unpruned.failures.push((stage, failure));
                    break;
                }
                Err(failure) => unpruned.failures.push((stage, failure)),
            }
        }
        match unpruned.held {
            _ if !unpruned.failures.is_empty() => Err(unpruned),
            Some(message) => Ok(Some(self.prune_held(message))),
            None => {
                self.adopt_cluster().await?;
                Ok(None)
            }
        }
    }

    /// What each stage of the spec renders.
    async fn desired(&mut self) -> Result<Vec<DesiredStage>, Unpruned> {
        let spec = self.set.spec.clone();
        let mut desired = Vec::with_capacity(spec.stages.len());
        for (at, stage) in spec.stages.iter().enumerate() {
            let ids = self.desired_ids(at, stage).await;
            desired.push(DesiredStage {
                name: stage.name.clone(),
                prune: stage.prunes(),
                ids: ids.map_err(|failure| Unpruned::of(&stage.name, failure))?,
            });
        }
        Ok(desired)
    }

    /// What leaves each record. What another cluster has of the same name is not what is wanted here; the same cluster by
    /// another way is no other cluster.
    async fn plan(&self, desired: &[DesiredStage]) -> Result<Vec<Planned>, Unpruned> {
        let release = record::release_of(&self.set, &self.status);
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        let mut records = BTreeMap::new();
        for (mut stored, record) in record::all_since(self.ctx, self.owner, &release) {
            stored.added = self.memory.added.get(&stored.name).cloned().unwrap_or_default();
            let is_here = is_here(self.ctx, &self.target, record.target.as_ref()).await;
            let is_here = is_here.map_err(|e| Unpruned::of(&stored.name, Failure::of_request("prune", &e)))?;
            records.insert(stored.name.clone(), record);
            if is_here { &mut here } else { &mut elsewhere }.push(stored);
        }
        let mut plans = Vec::new();
        for (here, stored, desired) in [(true, here, desired), (false, elsewhere, &[])] {
            for mut plan in prune_set(&stored, desired).map_err(|claims| claimed(&claims))? {
                // Set aside although its stage is on this cluster as before: nothing of it is meant to leave at large.
                let stage = set_aside_from(&plan.stage).filter(|_| here);
                plan.removed &= !stage.is_some_and(|stage| desired.iter().any(|d| d.name == stage));
                let record = records.remove(&plan.stage).unwrap_or_default();
                plans.push(Planned { plan, record, here });
            }
        }
        Ok(plans)
    }

    /// UIDs of what is wanted on the cluster that is applied to now, of objects to be deleted on another: should the two be
    /// one after all, they are left alone.
    async fn wanted_uids(&self, delete: &[Entry], desired: &[DesiredStage]) -> Result<BTreeSet<String>, Failure> {
        let began = std::time::Instant::now();
        let mut uids = BTreeSet::new();
        for entry in delete {
            let Some(at) = desired.iter().position(|stage| stage.ids.contains(&entry.id)) else {
                continue;
            };
            let tenant = self.tenant(&self.set.spec.stages[at]);
            let mut target = target_of(&entry.id, &entry.api_version());
            let live = live(&tenant, &mut target, began).await;
            let live = live.map_err(|e| Failure::of_access("prune", &e, "get", &target))?;
            uids.extend(live.as_ref().map(|live| uid(live).to_owned()));
        }
        Ok(uids)
    }

    /// Nothing of the time before is left: from here on the records name the cluster that is reached now.
    async fn adopt_cluster(&mut self) -> Result<(), Unpruned> {
        let spec = self.set.spec.clone();
        for (at, stage) in spec.stages.iter().enumerate() {
            let record = record::of_stage(self.ctx, self.owner, &stage.name);
            if !record.shards.is_empty() && record.target != self.target.recorded {
                let entries = record.entries();
                let written = self.recorder(at, stage).write(&entries, &entries).await;
                written.map_err(|e| Unpruned::of(&stage.name, Failure::of_request("prune", &e)))?;
            }
        }
        Ok(())
    }

    /// A run that got through with the revisions of before, for a changed spec: what it brought counts from here on for
    /// what is in place. With other revisions the marks of before say nothing any more.
    async fn settle_records(&mut self) -> Result<(), Unpruned> {
        if self.prune_deferred {
            return Ok(());
        }
        for (at, stage) in self.set.spec.stages.clone().iter().enumerate() {
            let record = record::of_stage(self.ctx, self.owner, &stage.name);
            let ids = self.desired_ids(at, stage).await;
            let ids = ids.map_err(|failure| Unpruned::of(&stage.name, failure))?;
            let entries = record.entries();
            if record.shards.is_empty() || entries.keys().any(|id| !ids.contains(id)) {
                continue;
            }
            let mut recorder = self.recorder(at, stage);
            recorder.settles = true;
            let written = recorder.write(&entries, &entries).await;
            written.map_err(|e| Unpruned::of(&stage.name, Failure::of_request("record inventory", &e)))?;
        }
        Ok(())
    }

    fn prune_held(&self, message: String) -> End {
        End {
            situation: Situation::Held {
                reason: Reason::PruneHeld,
                message,
                retrying: false,
                deployed: false,
            },
            wake: Wake::In(jittered(self.cadence().interval)),
        }
    }

    fn guard(&self, plan: &StagePrune) -> Option<End> {
        let guard = PruneGuard {
            share: self.ctx.config.prune_guard_share,
            min: self.ctx.config.prune_guard_min,
        };
        let stage = shown(&plan.stage);
        let at = self.position(|s| s.name == stage);
        let word = at.map_or("", |at| word_of(&self.artifacts[at]));
        let mut hold = guard
            .check(plan, word, self.annotation(annotation::CONFIRM_PRUNE))
            .err()?;
        hold.stage = stage.to_owned();
        Some(self.prune_held(hold.to_string()))
    }

    /// Brings the counts in the status in line with the records: a crash may have come between the two.
    pub(super) fn count_records(&mut self) {
        if self.prune_deferred {
            return;
        }
        for at in 0..self.status.stages.len() {
            let recorded = record::of_stage(self.ctx, self.owner, &self.status.stages[at].name);
            let entry = &mut self.status.stages[at];
            entry.entries_count = i64::try_from(recorded.entries().len()).ok();
            entry.shards = i32::try_from(recorded.shards.len()).ok();
        }
    }

    /// Says in the status that fewer entries are to be expected before the record shrinks, so that a crash between the
    /// two does not look like a lost inventory.
    async fn announce_shrink(&mut self, at: usize, entries: usize) -> Result<(), Failure> {
        let entry = &mut self.status.stages[at];
        entry.entries_count = i64::try_from(entries).ok();
        entry.shards = None;
        self.mask_stages();
        let written = status::write(self.ctx, self.owner, &self.set, &self.status, self.memory).await;
        self.set = written.map_err(|stop| Failure {
            remedy: Remedy::Stumble,
            ..Failure::retried("prune", stop.to_string())
        })?;
        Ok(())
    }

    /// Deletes what left one stage, on the cluster and as the account it was applied with. `Some` when the prune is not to
    /// go on with the next one.
    async fn prune_stage(
        &mut self,
        planned: &Planned,
        going: &BTreeSet<ObjectId>,
        desired: &[DesiredStage],
    ) -> Result<Option<Halt>, Failure> {
        let Planned { plan, record, here } = planned;
        let mut removal = Removal::default();
        if is_left_alone(&plan.stage, &self.set.spec) {
            removal.settled = plan.delete.iter().map(|e| e.id.clone()).collect();
        } else if !plan.delete.is_empty() {
            match self.reach_record(plan, record, *here).await {
                Ok((cluster, account)) => {
                    if let Some(other) = self.other_cluster(&plan.stage, record, &cluster).await? {
                        return Ok(Some(Halt::Held(other.to_string())));
                    }
                    removal = self.remove(planned, &cluster, account, going, desired).await?;
                }
                Err(failure) if *here => return Err(failure),
                Err(_) if self.is_to_be_forgotten(record) => {
                    removal.settled = plan.delete.iter().map(|e| e.id.clone()).collect();
                    self.tell_forgotten(plan, record);
                }
                Err(failure) => return Err(or_forget(failure, record, plan.delete.len())),
            }
            tell_kept(self.ctx, &self.set, &plan.stage, &removal.kept);
        }
        self.leaves |= removal.leaving.iter().any(|id| !removal.settled.contains(id));
        self.shrink_record(plan, record, &removal, desired).await?;
        let Some(first) = removal.errors.first() else {
            return Ok(None);
        };
        let mut failure = Failure::of_request("prune", first);
        if removal.errors.len() > 1 {
            let more = removal.errors.len() - 1;
            failure.message.push_str(&format!(" (and {more} more)"));
        }
        if removal.silent {
            return Ok(Some(Halt::Silent(failure)));
        }
        Err(failure)
    }

    /// Deletes as the account of the record, and what that may not as the one that applies the stage now.
    async fn remove(
        &self,
        planned: &Planned,
        cluster: &Arc<Cluster>,
        account: Option<String>,
        going: &BTreeSet<ObjectId>,
        desired: &[DesiredStage],
    ) -> Result<Removal, Failure> {
        let plan = &planned.plan;
        let wanted = if planned.here {
            BTreeSet::new()
        } else {
            self.wanted_uids(&plan.delete, desired).await?
        };
        let tenant = cluster.acting_for(&self.owner.namespace, account.as_deref());
        let successor = successor(&self.set.spec, &plan.stage, account.as_deref())
            .map(|name| cluster.acting_for(&self.owner.namespace, Some(name)));
        let remover = Remover {
            tenant: &tenant,
            successor: successor.as_ref(),
            owner: self.owner,
            going,
            wanted: &wanted,
        };
        Ok(remover.remove(&plan.delete).await)
    }

    /// Whether somebody has confirmed that the cluster of a record is gone for good.
    fn is_to_be_forgotten(&self, record: &Record) -> bool {
        let word = forget_word(record);
        word.is_some() && word == self.annotation(annotation::CONFIRM_PRUNE)
    }

    fn tell_forgotten(&self, plan: &StagePrune, record: &Record) {
        let named: Vec<String> = plan.delete.iter().take(NAMED).map(|e| e.id.to_string()).collect();
        let more = plan.delete.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let note = format!(
            "stage \"{}\": cluster {} cannot be reached and is forgotten as confirmed; may be left behind there: {}{more}",
            shown(&plan.stage),
            forget_word(record).unwrap_or_default(),
            named.join(", ")
        );
        tracing::warn!(stage = shown(&plan.stage), note, "a record is forgotten");
        self.tell(Reason::TeardownForced, true, &note);
    }

    /// The cluster a record's objects are on, and the account to delete them as. A record of the cluster that is applied to
    /// now needs no other way there: the one it names may be gone.
    async fn reach_record(
        &self,
        plan: &StagePrune,
        record: &Record,
        here: bool,
    ) -> Result<(Arc<Cluster>, Option<String>), Failure> {
        if !here || same_reference(record.target.as_ref(), self.target.recorded.as_ref()) {
            let cluster = of_record(self.ctx, self.owner, &self.set, record).await;
            let cluster = cluster.map_err(|e| super::target::failure(&e))?;
            return Ok((cluster, record.account.clone()));
        }
        // What a kubeconfig may do by itself says nothing about another one: then the present account counts.
        let spec = &self.set.spec;
        let stage = spec.stages.iter().find(|s| s.name == shown(&plan.stage));
        let account = record
            .account
            .as_deref()
            .or(stage.and_then(|s| non_empty(&s.service_account_name)))
            .or(non_empty(&spec.service_account_name));
        Ok((self.target.cluster.clone(), account.map(str::to_owned)))
    }

    /// Takes off a record what the prune is through with.
    async fn shrink_record(
        &mut self,
        plan: &StagePrune,
        record: &Record,
        removal: &Removal,
        desired: &[DesiredStage],
    ) -> Result<(), Failure> {
        let recorded = record.entries();
        let mut kept: Entries = recorded.clone();
        let doubts = &self.memory.doubts;
        kept.retain(|id, _| {
            let settled = removal.settled.contains(id) && !doubts.is_open(id);
            !settled && !plan.forgotten.contains(id) && !plan.moved.iter().any(|(m, _)| m == id)
        });
        let Some(at) = self.status.stages.iter().position(|s| s.name == plan.stage) else {
            if kept.is_empty() {
                let deleted = record::delete_all(self.ctx, self.owner, &plan.stage).await;
                deleted.map_err(|e| Failure::of_request("prune", &e))?;
            }
            return Ok(());
        };
        let stage = self.set.spec.stages[at].clone();
        if kept.len() < recorded.len() {
            self.announce_shrink(at, kept.len()).await?;
        }
        let mut recorder = self.recorder(at, &stage);
        let rendered = desired.iter().find(|d| d.name == plan.stage).map(|d| &d.ids);
        if kept.keys().any(|id| rendered.is_none_or(|ids| !ids.contains(id))) {
            recorder = recorder.with_leftovers(record, true);
        } else {
            recorder.settles = true;
        }
        let shards = recorder.write(&recorded, &kept).await;
        let shards = shards.map_err(|e| Failure::of_request("prune", &e))?;
        let entry = &mut self.status.stages[at];
        entry.entries_count = i64::try_from(kept.len()).ok();
        entry.shards = i32::try_from(shards).ok();
        Ok(())
    }
}

/// An object of two stages, at the second of them.
fn claimed(claims: &[DuplicateClaim]) -> Unpruned {
    let failure = |claim: &DuplicateClaim| (claim.second.clone(), Failure::of_claim(claim));
    Unpruned {
        failures: claims.iter().map(failure).collect(),
        held: None,
    }
}

/// What a prune is confirmed with: the revision, or the digest where the source has none.
fn word_of(artifact: &Artifact) -> &str {
    if artifact.revision.is_empty() {
        &artifact.digest
    } else {
        &artifact.revision
    }
}

/// Who applies what a record is of now, or would if its stage were still there, where that is somebody else than
/// `account`, who may have lost its rights. Never the controller itself.
pub(super) fn successor<'s>(spec: &'s StageSetSpec, record: &str, account: Option<&str>) -> Option<&'s str> {
    let name = set_aside_from(record).unwrap_or(record);
    let stage = spec.stages.iter().find(|s| s.name == name);
    let own = stage.and_then(|s| non_empty(&s.service_account_name));
    let now = own.or(non_empty(&spec.service_account_name))?;
    (account != Some(now)).then_some(now)
}

/// Whether a record was set aside from a stage that does not prune.
fn is_left_alone(record: &str, spec: &StageSetSpec) -> bool {
    set_aside_from(record)
        .and_then(|stage| spec.stages.iter().find(|s| s.name == stage))
        .is_some_and(|stage| !stage.prunes())
}

/// Everything that is deleted together with the objects of one plan: what leaves the same cluster.
fn going(plans: &[Planned], of: &Planned, spec: &StageSetSpec) -> BTreeSet<ObjectId> {
    let together = |other: &&Planned| {
        let same = same_reference(other.record.target.as_ref(), of.record.target.as_ref());
        other.here == of.here && (of.here || same) && !is_left_alone(&other.plan.stage, spec)
    };
    let plans = plans.iter().filter(together);
    plans.flat_map(|p| p.plan.delete.iter().map(|e| e.id.clone())).collect()
}

/// Tells which namespaces stay: they are not recorded any more, so somebody has to look after them.
pub(super) fn tell_kept(ctx: &Context, set: &StageSet, stage: &str, kept: &[String]) {
    if !kept.is_empty() {
        let note = format!("stage \"{}\": {}", shown(stage), kept.join("; "));
        ctx.notifier.send(Notice::about(set, Reason::NamespaceKept, true, note));
    }
}
