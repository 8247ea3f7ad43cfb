//! The end of a run: what left the stages is deleted, the record shrinks, the release is in place (run 19, 22).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::context::Context;
use super::notify::Notice;
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, jittered};
use super::record::{self, Record};
use super::remove::{Removal, Remover, live};
use super::status;
use super::target::{is_here, of_record, same_reference, set_aside_from};
use super::verify::target_of;
use crate::api::common::non_empty;
use crate::api::names::annotation;
use crate::api::{Reason, StageSet, StageSetSpec};
use crate::cluster::{Cluster, uid};
use crate::rules::condition::Situation;
use crate::rules::inventory::{self, DesiredStage, Entries, Entry, ObjectId, PruneGuard, StagePrune, prune_set};

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
        let last = self.status.stages.len().saturating_sub(1);
        match self.prune().await {
            Ok(None) => {}
            Ok(Some(held)) => return Ok(held),
            Err(failure) => return self.failed_prune(last, failure),
        }
        let before = record::release_of(&self.set, &self.status);
        self.status.last_applied_revisions = self.artifacts.iter().map(|a| (a.key(), a.revision.clone())).collect();
        let newer = self.status.last_attempted_revisions != self.status.last_applied_revisions;
        if record::release_of(&self.set, &self.status) == before
            && let Err(failure) = self.settle_records().await
        {
            return self.failed_prune(last, failure);
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
            std::time::Duration::ZERO
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

    pub(super) fn failed_prune(&mut self, at: usize, failure: Failure) -> Result<End, Stop> {
        let before = self.status.stages[at].clone();
        let message = self.mask(&failure.message);
        let end = self.failed(at, failure)?;
        // The stage itself is as it should be; only what left it is not gone yet.
        self.status.stages[at] = before;
        self.status.stages[at].message = Some(message);
        Ok(End {
            wake: Wake::In(self.cadence().retry.min(crate::rules::backoff::RBAC_LADDER.last)),
            ..end
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

    pub(super) async fn prune(&mut self) -> Result<Option<End>, Failure> {
        if self.prune_deferred {
            return Ok(None);
        }
        let spec = self.set.spec.clone();
        let mut desired = Vec::with_capacity(spec.stages.len());
        for (at, stage) in spec.stages.iter().enumerate() {
            desired.push(DesiredStage {
                name: stage.name.clone(),
                prune: stage.prunes(),
                ids: self.desired_ids(at, stage).await?,
            });
        }
        let plans = self.plan(&desired).await?;
        for planned in &plans {
            if let Some(held) = self.guard(&planned.plan) {
                return Ok(Some(held));
            }
        }
        for planned in &plans {
            let going = going(&plans, planned, &spec);
            if let Some(held) = self.prune_stage(planned, &going, &desired).await? {
                return Ok(Some(held));
            }
        }
        self.adopt_cluster().await?;
        Ok(None)
    }

    /// What leaves each record. What another cluster has of the same name is not what is wanted here; the same cluster by
    /// another way is no other cluster.
    async fn plan(&self, desired: &[DesiredStage]) -> Result<Vec<Planned>, Failure> {
        let release = record::release_of(&self.set, &self.status);
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        let mut records = BTreeMap::new();
        for (mut stored, record) in record::all_since(self.ctx, self.owner, &release) {
            stored.added = self.memory.added.get(&stored.name).cloned().unwrap_or_default();
            let is_here = is_here(self.ctx, &self.target, record.target.as_ref()).await;
            let is_here = is_here.map_err(|e| Failure::of_request("prune", &e))?;
            records.insert(stored.name.clone(), record);
            if is_here { &mut here } else { &mut elsewhere }.push(stored);
        }
        let claimed = |claims: Vec<inventory::DuplicateClaim>| {
            let ids: Vec<String> = claims.iter().map(|c| c.id.to_string()).collect();
            Failure::retried("prune", ids.join(", "))
        };
        let mut plans = Vec::new();
        for (here, stored, desired) in [(true, here, desired), (false, elsewhere, &[])] {
            for mut plan in prune_set(&stored, desired).map_err(claimed)? {
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
    async fn adopt_cluster(&mut self) -> Result<(), Failure> {
        let spec = self.set.spec.clone();
        for (at, stage) in spec.stages.iter().enumerate() {
            let record = record::of_stage(self.ctx, self.owner, &stage.name);
            if !record.shards.is_empty() && record.target != self.target.recorded {
                let entries = record.entries();
                let written = self.recorder(at, stage).write(&entries, &entries).await;
                written.map_err(|e| Failure::of_request("prune", &e))?;
            }
        }
        Ok(())
    }

    /// A run that got through with the revisions of before, for a changed spec: what it brought counts from here on for
    /// what is in place. With other revisions the marks of before say nothing any more.
    async fn settle_records(&mut self) -> Result<(), Failure> {
        if self.prune_deferred {
            return Ok(());
        }
        for (at, stage) in self.set.spec.stages.clone().iter().enumerate() {
            let record = record::of_stage(self.ctx, self.owner, &stage.name);
            let ids = self.desired_ids(at, stage).await?;
            let entries = record.entries();
            if record.shards.is_empty() || entries.keys().any(|id| !ids.contains(id)) {
                continue;
            }
            let mut recorder = self.recorder(at, stage);
            recorder.settles = true;
            let written = recorder.write(&entries, &entries).await;
            written.map_err(|e| Failure::of_request("record inventory", &e))?;
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
        let stage = set_aside_from(&plan.stage).unwrap_or(&plan.stage);
        let at = self.status.stages.iter().position(|s| s.name == stage);
        let revision = at.map_or("", |at| self.artifacts[at].revision.as_str());
        let hold = guard
            .check(plan, revision, self.annotation(annotation::CONFIRM_PRUNE))
            .err()?;
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
        let written = status::write(self.ctx, self.owner, &self.set, &self.status, self.memory).await;
        self.set = written.map_err(|stop| Failure {
            remedy: Remedy::Stumble,
            ..Failure::retried("prune", stop.to_string())
        })?;
        Ok(())
    }

    /// Deletes what left one stage, on the cluster and as the account it was applied with. `Some` when that has to be
    /// confirmed first.
    async fn prune_stage(
        &mut self,
        planned: &Planned,
        going: &BTreeSet<ObjectId>,
        desired: &[DesiredStage],
    ) -> Result<Option<End>, Failure> {
        let Planned { plan, record, here } = planned;
        let left_alone = is_left_alone(&plan.stage, &self.set.spec);
        let delete = if left_alone { &[][..] } else { &plan.delete };
        let mut removal = Removal::default();
        if !delete.is_empty() {
            let (cluster, account) = self.reach_record(plan, record, *here).await?;
            if let Some(other) = self.other_cluster(&plan.stage, record, &cluster).await? {
                return Ok(Some(self.prune_held(other.to_string())));
            }
            let wanted = if *here {
                BTreeSet::new()
            } else {
                self.wanted_uids(delete, desired).await?
            };
            let tenant = cluster.acting_for(&self.owner.namespace, account.as_deref());
            let remover = Remover {
                tenant: &tenant,
                owner: self.owner,
                going,
                wanted: &wanted,
            };
            removal = remover.remove(delete).await;
            if let Some(successor) = self.successor(plan, account.as_deref())
                && removal.errors.iter().any(crate::cluster::Error::is_forbidden)
            {
                let tenant = cluster.acting_for(&self.owner.namespace, Some(successor));
                let rest: Vec<Entry> = delete
                    .iter()
                    .filter(|e| !removal.settled.contains(&e.id))
                    .cloned()
                    .collect();
                let again = Remover {
                    tenant: &tenant,
                    ..remover
                };
                removal.followed_by(again.remove(&rest).await);
            }
            tell_kept(self.ctx, &self.set, &plan.stage, &removal.kept);
        } else if left_alone {
            removal.settled = plan.delete.iter().map(|e| e.id.clone()).collect();
        }
        self.shrink_record(plan, record, &removal, desired).await?;
        match removal.errors.first() {
            None => Ok(None),
            Some(first) => {
                let mut failure = Failure::of_request("prune", first);
                if removal.errors.len() > 1 {
                    failure
                        .message
                        .push_str(&format!(" (and {} more)", removal.errors.len() - 1));
                }
                Err(failure)
            }
        }
    }

    /// Who applies the stage now, where that is somebody else than `account`, who may have lost its rights.
    fn successor(&self, plan: &StagePrune, account: Option<&str>) -> Option<&str> {
        let spec = &self.set.spec;
        let stage = spec.stages.iter().find(|s| s.name == plan.stage)?;
        let now = non_empty(&stage.service_account_name).or(non_empty(&spec.service_account_name))?;
        (account != Some(now)).then_some(now)
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
        let stage = set_aside_from(&plan.stage).unwrap_or(&plan.stage);
        let stage = spec.stages.iter().find(|s| s.name == stage);
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
        let note = format!("stage \"{stage}\": {}", kept.join("; "));
        ctx.notifier.send(Notice::about(set, Reason::NamespaceKept, true, note));
    }
}
