//! The end of a run: what left the stages is deleted, the record shrinks, the release is in place (run 19, 22).

use std::collections::BTreeSet;

use super::context::Context;
use super::notify::Notice;
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, jittered};
use super::record::{self, Record};
use super::remove::{Removal, Remover};
use super::status;
use super::target::{of_record, same_reference, set_aside_from};
use crate::api::names::annotation;
use crate::api::{Reason, StageSet, StageSetSpec};
use crate::cluster::Identity;
use crate::rules::condition::Situation;
use crate::rules::inventory::{self, DesiredStage, Entries, ObjectId, PruneGuard, StagePrune, prune_set};

impl Pass<'_> {
    /// Prunes, then records the run as done.
    pub(super) async fn conclude(&mut self) -> Result<End, Stop> {
        let last = self.status.stages.len().saturating_sub(1);
        match self.prune().await {
            Ok(None) => {}
            Ok(Some(held)) => return Ok(held),
            Err(failure) => return self.failed_prune(last, failure),
        }
        self.status.last_applied_revisions = self.artifacts.iter().map(|a| (a.key(), a.revision.clone())).collect();
        let newer = self.status.last_attempted_revisions != self.status.last_applied_revisions;
        self.status.run = None;
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
        let records = record::all(self.ctx, self.owner);
        let now = self.target.recorded.clone();
        let here = |record: &Record| same_reference(record.target.as_ref(), now.as_ref());
        let stored = |on: &dyn Fn(&Record) -> bool| -> Vec<_> {
            records.iter().filter(|(_, r)| on(r)).map(|(s, _)| s.clone()).collect()
        };
        let claimed = |claims: Vec<inventory::DuplicateClaim>| {
            Failure::retried(
                "prune",
                claims.iter().map(|c| c.id.to_string()).collect::<Vec<_>>().join(", "),
            )
        };
        let mut plans = prune_set(&stored(&here), &desired).map_err(claimed)?;
        // What another cluster has of the same name is not what is wanted here.
        plans.extend(prune_set(&stored(&|r| !here(r)), &[]).map_err(claimed)?);
        for plan in &plans {
            if let Some(held) = self.guard(plan) {
                return Ok(Some(held));
            }
        }
        let going = going(&plans, &spec);
        for plan in &plans {
            let record = records.iter().find(|(s, _)| s.name == plan.stage).map(|(_, r)| r);
            if let Some(held) = self
                .prune_stage(plan, record.unwrap_or(&Record::default()), &going)
                .await?
            {
                return Ok(Some(held));
            }
        }
        self.adopt_cluster().await?;
        Ok(None)
    }

    /// Nothing of the time before is left: from here on the records name the cluster that is reached now.
    async fn adopt_cluster(&mut self) -> Result<(), Failure> {
        let spec = self.set.spec.clone();
        for (at, stage) in spec.stages.iter().enumerate() {
            let record = record::of_stage(self.ctx, self.owner, &stage.name);
            if !record.shards.is_empty() && record.target != self.target.recorded {
                let written = self.recorder(at, stage).write(&record.entries()).await;
                written.map_err(|e| Failure::of_request("prune", &e))?;
            }
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
        let at = self.status.stages.iter().position(|s| s.name == plan.stage);
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
        plan: &StagePrune,
        record: &Record,
        going: &BTreeSet<ObjectId>,
    ) -> Result<Option<End>, Failure> {
        let left_alone = is_left_alone(&plan.stage, &self.set.spec);
        let delete = if left_alone { &[][..] } else { &plan.delete };
        let mut removal = Removal::default();
        if !delete.is_empty() {
            let cluster = of_record(self.ctx, self.owner, &self.set, record)
                .await
                .map_err(|e| super::target::failure(&e))?;
            if let Some(other) = self.other_cluster(&plan.stage, record, &cluster).await? {
                return Ok(Some(self.prune_held(other.to_string())));
            }
            let tenant = cluster.tenant(Identity::of(&self.owner.namespace, record.account.as_deref()));
            let remover = Remover {
                tenant: &tenant,
                owner: self.owner,
                going,
                wanted: &BTreeSet::new(),
            };
            removal = remover.remove(delete).await;
            tell_kept(self.ctx, &self.set, &plan.stage, &removal.kept);
        } else if left_alone {
            removal.settled = plan.delete.iter().map(|e| e.id.clone()).collect();
        }
        let mut kept: Entries = record.entries();
        let doubts = &self.memory.doubts;
        kept.retain(|id, _| {
            let settled = removal.settled.contains(id) && !doubts.is_open(id);
            !settled && !plan.forgotten.contains(id) && !plan.moved.iter().any(|(m, _)| m == id)
        });
        let position = self.status.stages.iter().position(|s| s.name == plan.stage);
        match position {
            Some(at) => {
                let stage = self.set.spec.stages[at].clone();
                if kept.len() < record.entries().len() {
                    self.announce_shrink(at, kept.len()).await?;
                }
                let shards = self.recorder(at, &stage).write(&kept).await;
                let shards = shards.map_err(|e| Failure::of_request("prune", &e))?;
                let entry = &mut self.status.stages[at];
                entry.entries_count = i64::try_from(kept.len()).ok();
                entry.shards = i32::try_from(shards).ok();
            }
            None if kept.is_empty() => {
                record::delete_all(self.ctx, self.owner, &plan.stage)
                    .await
                    .map_err(|e| Failure::of_request("prune", &e))?;
            }
            None => {}
        }
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
}

/// Whether a record was set aside from a stage that does not prune.
fn is_left_alone(record: &str, spec: &StageSetSpec) -> bool {
    set_aside_from(record)
        .and_then(|stage| spec.stages.iter().find(|s| s.name == stage))
        .is_some_and(|stage| !stage.prunes())
}

/// Everything that is deleted together.
fn going(plans: &[StagePrune], spec: &StageSetSpec) -> BTreeSet<ObjectId> {
    let plans = plans.iter().filter(|plan| !is_left_alone(&plan.stage, spec));
    plans.flat_map(|p| p.delete.iter().map(|e| e.id.clone())).collect()
}

/// Tells which namespaces stay: they are not recorded any more, so somebody has to look after them.
pub(super) fn tell_kept(ctx: &Context, set: &StageSet, stage: &str, kept: &[String]) {
    if !kept.is_empty() {
        let note = format!("stage \"{stage}\": {}", kept.join("; "));
        ctx.notifier.send(Notice::about(set, Reason::NamespaceKept, true, note));
    }
}
