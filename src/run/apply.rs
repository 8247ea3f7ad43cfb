//! Applying the objects of a stage, wave by wave: what exists and is as it should be is not written.

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use super::context::{Context, Known};
use super::judge::Judge;
use super::outcome::Failure;
use super::render::content_hash;
use crate::api::names::{FIELD_MANAGER, applyset};
use crate::cluster::watch::{Knowledge, Owner, WatchKey, parse_version};
use crate::cluster::{self, Served, Target, Tenant, resource_version, uid};
use crate::rules::inventory::{ObjectId, OwnerRef, owner_of};
use crate::rules::order::{self, Wave};
use crate::rules::readiness::Readiness;

/// Objects of one kind that are sent at once.
const PARALLEL: usize = 8;

/// What became of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Created,
    Configured,
    Unchanged,
}

/// How an apply ended.
#[derive(Debug, Default)]
pub struct Report {
    pub changed: Vec<(ObjectId, Change)>,
    /// Definitions that are not in force yet; what needs them has not been applied.
    pub waiting: Option<String>,
}

/// Applies as one tenant on behalf of one StageSet.
pub struct Applier<'a> {
    pub ctx: &'a Arc<Context>,
    pub owner: &'a Owner,
    pub tenant: &'a Tenant,
    pub judge: &'a Judge,
    /// Id of the ApplySet the objects join.
    pub part_of: String,
}

/// Where an object is found.
struct Place<'a> {
    id: &'a ObjectId,
    target: &'a Target,
    key: &'a WatchKey,
    served: &'a Served,
}

impl Applier<'_> {
    /// Applies `objects` in order. What was learned of each goes into `known`.
    ///
    /// # Errors
    /// The first object that fails; those before it stay applied.
    pub async fn run(
        &self,
        objects: Vec<Value>,
        known: &mut std::collections::BTreeMap<ObjectId, Known>,
    ) -> Result<Report, Failure> {
        let mut report = Report::default();
        for (wave, members) in order::waves(objects) {
            let mut current = Vec::new();
            for batch in batches(members) {
                let applied: Vec<Result<(ObjectId, Known, Change), Failure>> =
                    futures::stream::iter(batch.into_iter().map(|object| {
                        let before = ObjectId::of(&object).and_then(|id| known.get(&id).cloned());
                        self.one(object, before)
                    }))
                    .buffered(PARALLEL)
                    .collect()
                    .await;
                for result in applied {
                    let (id, now_known, change) = result?;
                    // What its controller makes of it is for the verify: the controller may come with the next wave.
                    if !self.judge.covers(&id) && now_known.settles_at.is_none() {
                        current.push((id.clone(), now_known.readiness.clone()));
                    }
                    known.insert(id.clone(), now_known);
                    report.changed.push((id, change));
                }
            }
            if wave != Wave::Rest {
                report.waiting = not_in_force(&current);
                if report.waiting.is_some() {
                    return Ok(report);
                }
            }
            if report.changed.iter().any(|(id, c)| id.kind == "CustomResourceDefinition" && *c != Change::Unchanged) {
                self.tenant.cluster().kinds().invalidate();
            }
        }
        Ok(report)
    }

    async fn one(&self, mut object: Value, before: Option<Known>) -> Result<(ObjectId, Known, Change), Failure> {
        let failed = |e: &cluster::Error| Failure::of_request("apply", e);
        let target = Target::of(&object).map_err(|e| failed(&e))?;
        let id = ObjectId::of(&object).ok_or_else(|| Failure::retried("apply", format!("{target} has no identity")))?;
        self.join_applyset(&mut object);
        let sent = content_hash(&object);
        let served = self.tenant.served(&target.api_version, &target.kind).await.map_err(|e| failed(&e))?;
        let key = WatchKey::of("", self.tenant.identity(), &target, served.namespaced);
        if let Some(known) = before.as_ref().filter(|k| k.sent == sent)
            && known.readiness.is_ready()
            && known.rules == self.judge.rules(&id)
            && self.ctx.hub.knows(&key, &target.name, &known.uid, known.version) == Knowledge::Unchanged
        {
            return Ok((id, known.clone(), Change::Unchanged));
        }
        let place = Place {
            id: &id,
            target: &target,
            key: &key,
            served: &served,
        };
        let live = self.tenant.get(&target).await.map_err(|e| failed(&e))?;
        if let Some(live) = &live {
            self.refuse_foreign(&target, live).await?;
            let same_release = before.as_ref().is_some_and(|k| k.sent == sent && k.uid == uid(live));
            if same_release && !crate::rules::drift::differs(&object, live) {
                let known = self.learn(&place, live, sent, before.as_ref()).await;
                return Ok((id, known, Change::Unchanged));
            }
        }
        let applied = self.tenant.apply(&object, FIELD_MANAGER, false).await.map_err(|e| failed(&e))?;
        let change = match &live {
            None => Change::Created,
            Some(live) if resource_version(live) == resource_version(&applied) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        let before = before.filter(|_| change == Change::Unchanged);
        let known = self.learn(&place, &applied, sent, before.as_ref()).await;
        Ok((id, known, change))
    }

    fn join_applyset(&self, object: &mut Value) {
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.insert(applyset::PART_OF_LABEL.to_owned(), Value::String(self.part_of.clone()));
        }
    }

    async fn learn(&self, at: &Place<'_>, live: &Value, sent: u64, before: Option<&Known>) -> Known {
        let now = Timestamp::now();
        let version = parse_version(Some(resource_version(live)));
        self.ctx.hub.note(at.key, &at.target.name, uid(live), version, self.owner);
        let changed_at = before.map_or(now, |b| b.changed_at);
        let verdict = self.judge.judge(at.id, live, Some(at.served), changed_at).await;
        Known {
            api_version: at.target.api_version.clone(),
            uid: uid(live).to_owned(),
            version,
            sent,
            compared: version,
            readiness: verdict.readiness,
            rules: verdict.rules,
            settles_at: verdict.settles_at,
            changed_at,
        }
    }

    /// An object that another StageSet owns is never taken over in silence (run 28 B29).
    async fn refuse_foreign(&self, target: &Target, live: &Value) -> Result<(), Failure> {
        let Some(found) = owner_of(live) else {
            return Ok(());
        };
        let ours = OwnerRef {
            name: self.owner.name.clone(),
            namespace: self.owner.namespace.clone(),
        };
        if found == ours || !self.exists(&found).await? {
            return Ok(());
        }
        Err(Failure::retried(
            "apply",
            format!(
                "{target} belongs to StageSet {}/{}: remove it from that StageSet's source first, or rename it in this one",
                found.namespace, found.name
            ),
        ))
    }

    async fn exists(&self, other: &OwnerRef) -> Result<bool, Failure> {
        let owner = Owner {
            namespace: other.namespace.clone(),
            name: other.name.clone(),
        };
        if self.ctx.sets.get(&owner).is_some() {
            return Ok(true);
        }
        if self.ctx.config.watch_namespaces.contains(&owner.namespace) {
            return Ok(false);
        }
        let target = Target {
            api_version: crate::api::names::API_VERSION.into(),
            kind: "StageSet".into(),
            namespace: Some(owner.namespace),
            name: owner.name,
        };
        let own = self.ctx.cluster.tenant(cluster::Identity::Controller);
        Ok(own.get(&target).await.map_err(|e| Failure::of_request("apply", &e))?.is_some())
    }
}

/// Runs of one kind: their members do not need each other, so they go out together.
fn batches(members: Vec<Value>) -> Vec<Vec<Value>> {
    let mut batches: Vec<Vec<Value>> = Vec::new();
    for object in members {
        let same = batches.last().and_then(|b| b.last()).is_some_and(|last| last.get("kind") == object.get("kind"));
        match batches.last_mut() {
            Some(batch) if same => batch.push(object),
            _ => batches.push(vec![object]),
        }
    }
    batches
}

fn not_in_force(current: &[(ObjectId, Readiness)]) -> Option<String> {
    let waiting: Vec<String> =
        current.iter().filter(|(_, r)| !r.is_ready()).map(|(id, r)| format!("{id}: {r}")).collect();
    (!waiting.is_empty()).then(|| waiting.join("; "))
}
