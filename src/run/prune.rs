//! The end of a run: what left the stages is deleted, the record shrinks, the release is in place (run 19, 22).

use std::collections::BTreeSet;

use serde_json::Value;

use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, jittered};
use super::record::{self, Record};
use super::status;
use super::target::{of_record, same_reference};
use super::verify::target_of;
use crate::api::Reason;
use crate::api::names::annotation;
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Identity, Preconditions, Target, Tenant, uid};
use crate::rules::condition::Situation;
use crate::rules::inventory::{
    self, Deletion, DesiredStage, Entries, Entry, NamespaceFacts, ObjectId, OwnerRef, PruneGuard, StagePrune,
    is_foreign_in_namespace, may_delete, may_delete_namespace, prune_set,
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
        for plan in &plans {
            let record = records.iter().find(|(s, _)| s.name == plan.stage).map(|(_, r)| r);
            if let Some(held) = self.prune_stage(plan, record.unwrap_or(&Record::default())).await? {
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
    async fn prune_stage(&mut self, plan: &StagePrune, record: &Record) -> Result<Option<End>, Failure> {
        let left_alone = super::target::set_aside_from(&plan.stage)
            .and_then(|stage| self.set.spec.stages.iter().find(|s| s.name == stage))
            .is_some_and(|stage| !stage.prunes());
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
            removal = remove(&tenant, self.owner, delete).await;
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
    let Some(live) = live(tenant, &target).await? else {
        return Ok(false);
    };
    match remove_live(tenant, owner, entry, &target, &live).await {
        // Another object of that name may have come in between, which is then judged on its own. Where it is the same
        // one, the server had another reason, and the delete is still to be done.
        Err(e) if e.is_conflict() => match self::live(tenant, &target).await? {
            None => Ok(false),
            Some(now) if uid(&now) == uid(&live) => Err(e),
            Some(now) => remove_live(tenant, owner, entry, &target, &now).await,
        },
        other => other,
    }
}

async fn live(tenant: &Tenant, target: &Target) -> Result<Option<Value>, Error> {
    match tenant.get(target).await {
        Err(Error::UnknownKind { .. } | Error::NoName { .. }) => Ok(None),
        other => other,
    }
}

async fn remove_live(
    tenant: &Tenant,
    owner: &Owner,
    entry: &Entry,
    target: &Target,
    live: &Value,
) -> Result<bool, Error> {
    let ours = OwnerRef {
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
    };
    match may_delete(live, &ours) {
        Deletion::Skip(inventory::Skip::Terminating) => Ok(true),
        Deletion::Skip(skip) => {
            tracing::info!(object = %target, %skip, "a recorded object is left alone");
            Ok(false)
        }
        Deletion::Delete(only_if) => {
            if entry.id.kind == "Namespace"
                && entry.id.group.is_empty()
                && let Err(refusal) =
                    may_delete_namespace(&namespace_facts(tenant, owner, &ours, &entry.id.name).await?)
            {
                tracing::warn!(object = %target, %refusal, "a namespace is left alone");
                return Ok(false);
            }
            let only_if = Preconditions {
                uid: only_if.uid,
                resource_version: None,
            };
            tenant.delete(target, &only_if).await
        }
    }
}

/// What a namespace holds, as far as the tenant can see: nobody else's objects go with it (run 19, decisions 6).
async fn namespace_facts(tenant: &Tenant, owner: &Owner, ours: &OwnerRef, name: &str) -> Result<NamespaceFacts, Error> {
    let mut facts = NamespaceFacts {
        name: name.to_owned(),
        holds_stage_set: tenant.cluster().is_local() && owner.namespace == name,
        foreign: Vec::new(),
        unread: Vec::new(),
    };
    for (api_version, kind) in tenant.cluster().kinds().namespaced() {
        if facts.holds_stage_set || !facts.foreign.is_empty() {
            break;
        }
        let target = Target {
            api_version,
            kind,
            namespace: Some(name.to_owned()),
            name: String::new(),
        };
        match tenant.list(&target, None).await {
            Ok(items) => facts.foreign.extend(items.into_iter().filter_map(|mut item| {
                item["apiVersion"] = target.api_version.clone().into();
                item["kind"] = target.kind.clone().into();
                is_foreign_in_namespace(&item, ours)
                    .then(|| ObjectId::of(&item))
                    .flatten()
            })),
            // Kinds that can only be created (reviews, bindings) hold nothing.
            Err(e) if matches!(e.code(), Some(404 | 405)) => {}
            Err(e) if e.is_forbidden() => facts.unread.push(target.kind),
            Err(e) => return Err(e),
        }
    }
    Ok(facts)
}
