//! The end of a run: what left the stages is deleted, the record shrinks, the release is in place (run 19, 22).

use std::collections::BTreeSet;

use super::outcome::{End, Failure, Stop, Wake};
use super::pass::{Pass, jittered};
use super::record::{self, Record};
use super::verify::target_of;
use crate::api::Reason;
use crate::api::names::annotation;
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Identity, Preconditions, Tenant};
use crate::rules::condition::Situation;
use crate::rules::inventory::{
    self, Deletion, DesiredStage, Entries, Entry, ObjectId, OwnerRef, PruneGuard, StagePrune, may_delete, prune_set,
};

/// What became of a set of objects to be deleted.
#[derive(Debug, Default)]
pub struct Removal {
    /// Gone, on their way, or not ours to delete: they need not be recorded any more.
    pub settled: BTreeSet<ObjectId>,
    /// Still there, with a delete under way.
    pub leaving: Vec<ObjectId>,
    pub errors: Vec<Error>,
}

impl Pass<'_> {
    /// Prunes, then records the run as done.
    pub(super) async fn conclude(&mut self) -> Result<End, Stop> {
        let last = self.status.stages.len().saturating_sub(1);
        match self.prune().await {
            Ok(None) => {}
            Ok(Some(held)) => return Ok(held),
            Err(failure) => return Ok(self.failed_prune(last, failure)),
        }
        self.status.last_applied_revisions = self.artifacts.iter().map(|a| (a.key(), a.revision.clone())).collect();
        let newer = self.status.last_attempted_revisions != self.status.last_applied_revisions;
        self.status.run = None;
        self.memory.full_at = Some(std::time::Instant::now());
        tracing::info!(stages = self.status.stages.len(), ready = true, "StageSet synced");
        let again = newer || self.prune_deferred;
        let wake = if again {
            std::time::Duration::ZERO
        } else {
            jittered(self.cadence().steady)
        };
        Ok(End {
            situation: Situation::Succeeded {
                message: self.deployed(),
            },
            wake: Wake::In(wake),
        })
    }

    pub(super) fn failed_prune(&mut self, at: usize, failure: Failure) -> End {
        let phase = self.status.stages[at].phase.clone();
        let message = failure.message.clone();
        let end = self.failed(at, failure);
        // The stage itself is as it should be; only what left it is not gone yet.
        self.status.stages[at].phase = phase;
        self.status.stages[at].message = Some(message);
        End {
            wake: Wake::In(self.cadence().retry.min(crate::rules::backoff::RBAC_LADDER.last)),
            ..end
        }
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
        let stored: Vec<_> = records.iter().map(|(stored, _)| stored.clone()).collect();
        let plans = prune_set(&stored, &desired).map_err(|claims| {
            Failure::retried(
                "prune",
                claims.iter().map(|c| c.id.to_string()).collect::<Vec<_>>().join(", "),
            )
        })?;
        for plan in &plans {
            if let Some(held) = self.guard(plan) {
                return Ok(Some(held));
            }
        }
        for plan in &plans {
            let record = records.iter().find(|(s, _)| s.name == plan.stage).map(|(_, r)| r);
            self.prune_stage(plan, record.unwrap_or(&Record::default())).await?;
        }
        Ok(None)
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
        Some(End {
            situation: Situation::Held {
                reason: Reason::PruneHeld,
                message: hold.to_string(),
                retrying: false,
                deployed: false,
            },
            wake: Wake::In(jittered(self.cadence().interval)),
        })
    }

    async fn prune_stage(&mut self, plan: &StagePrune, record: &Record) -> Result<(), Failure> {
        let tenant = self
            .ctx
            .cluster
            .tenant(Identity::of(&self.owner.namespace, record.account.as_deref()));
        let removal = remove(&tenant, self.owner, &plan.delete).await;
        let mut kept: Entries = record.entries();
        kept.retain(|id, _| {
            !removal.settled.contains(id) && !plan.forgotten.contains(id) && !plan.moved.iter().any(|(m, _)| m == id)
        });
        let position = self.status.stages.iter().position(|s| s.name == plan.stage);
        match position {
            Some(at) => {
                let stage = self.set.spec.stages[at].clone();
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
            None => Ok(()),
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

/// Deletes recorded objects that are still ours, in reverse apply order. Every one is tried.
pub async fn remove(tenant: &Tenant, owner: &Owner, entries: &[Entry]) -> Removal {
    let mut removal = Removal::default();
    let mut ids: Vec<ObjectId> = entries.iter().map(|e| e.id.clone()).collect();
    crate::rules::order::sort_for_delete(&mut ids);
    for id in ids {
        let Some(entry) = entries.iter().find(|e| e.id == id) else {
            continue;
        };
        match remove_one(tenant, owner, entry).await {
            Ok(true) => {
                removal.leaving.push(id.clone());
                removal.settled.insert(id);
            }
            Ok(false) => {
                removal.settled.insert(id);
            }
            Err(error) => removal.errors.push(error),
        }
    }
    removal
}

/// Whether the object is still there with a delete under way.
async fn remove_one(tenant: &Tenant, owner: &Owner, entry: &Entry) -> Result<bool, Error> {
    let target = target_of(&entry.id, &entry.api_version());
    let live = match tenant.get(&target).await {
        Ok(Some(live)) => live,
        Ok(None) | Err(Error::UnknownKind { .. }) => return Ok(false),
        Err(e) => return Err(e),
    };
    let ours = OwnerRef {
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
    };
    match may_delete(&live, &ours) {
        Deletion::Skip(inventory::Skip::Terminating) => Ok(true),
        Deletion::Skip(skip) => {
            tracing::info!(object = %target, %skip, "a recorded object is left alone");
            Ok(false)
        }
        Deletion::Delete(_)
            if entry.id.kind == "Namespace" && entry.id.group.is_empty() && entry.id.name == owner.namespace =>
        {
            tracing::info!(object = %target, "the namespace the StageSet lives in is left alone");
            Ok(false)
        }
        Deletion::Delete(only_if) => {
            let only_if = Preconditions {
                uid: only_if.uid,
                resource_version: None,
            };
            match tenant.delete(&target, &only_if).await {
                Ok(there) => Ok(there),
                Err(e) if e.is_conflict() => Ok(false),
                Err(e) => Err(e),
            }
        }
    }
}
