//! Applying the objects of a stage, wave by wave: what exists and is as it should be is not written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use super::context::{Context, Known};
use super::doubt::Doubts;
use super::judge::Judge;
use super::outcome::{Failure, Remedy};
use super::render::content_hash;
use super::treatment;
use crate::api::names::{FIELD_MANAGER, applyset};
use crate::cluster::watch::{Knowledge, Owner, WatchKey, parse_version};
use crate::cluster::{self, Dependents, Preconditions, Served, Target, Tenant, is_deleting, resource_version, uid};
use crate::rules::conflict::{
    BeforeApply, Decision, Policy, before_apply, immutable_conflict, on_conflict, trial_object,
};
use crate::rules::drift::{self, IgnoreRule, object_to_send};
use crate::rules::inventory::{ObjectId, OwnerRef, owner_of};
use crate::rules::managers;
use crate::rules::optout::{self, Mode};
use crate::rules::order::{self, Wave};
use crate::rules::readiness;

/// Objects of one kind that are sent at once.
const PARALLEL: usize = 8;

/// What became of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Created,
    Configured,
    Unchanged,
    /// Left alone by its own wish or by policy.
    Skipped,
}

/// How an apply ended.
#[derive(Debug, Default)]
pub struct Report {
    pub changed: Vec<(ObjectId, Change)>,
    /// What has to happen before the rest can be applied.
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
    pub policy: Policy,
    pub ignore: Vec<IgnoreRule>,
    /// Objects that no record named before this apply: most likely there are none yet.
    pub new: BTreeSet<ObjectId>,
    /// When the run under way began.
    pub began: Option<Timestamp>,
    /// Whether one of those was there and carried our labels.
    pub met_own: AtomicBool,
    /// Collects the objects whose apply got no answer.
    pub doubts: Doubts,
}

/// How one object fared.
enum Step {
    Done(ObjectId, Known, Change),
    /// A delete is under way; it is created again once it is gone.
    Leaving(ObjectId, Known),
    /// A field cannot be changed in place.
    Conflict(Box<Conflicted>),
}

struct Conflicted {
    id: ObjectId,
    target: Target,
    object: Value,
    only_if: Preconditions,
    dependents: Dependents,
}

/// An object to be applied, and what there is of it.
struct Found {
    id: ObjectId,
    target: Target,
    key: WatchKey,
    served: Served,
    object: Value,
    live: Option<Value>,
    sent: u64,
    before: Option<Known>,
}

impl Found {
    fn place(&self) -> Place<'_> {
        Place {
            id: &self.id,
            target: &self.target,
            key: &self.key,
            served: &self.served,
        }
    }
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
    pub async fn run(&self, objects: Vec<Value>, known: &mut BTreeMap<ObjectId, Known>) -> Result<Report, Failure> {
        treatment::guard(&self.policy, &objects)?;
        let mut report = Report::default();
        for (wave, members) in order::waves(objects) {
            let ids: Vec<ObjectId> = members.iter().filter_map(ObjectId::of).collect();
            self.wave(members, known, &mut report).await?;
            if wave != Wave::Rest && report.waiting.is_none() {
                // What its controller makes of it is for the verify: the controller may come with the next wave.
                let ids: Vec<ObjectId> = ids.into_iter().filter(|id| !self.judge.covers(id)).collect();
                report.waiting = not_in_force(&ids, known);
            }
            if report
                .changed
                .iter()
                .any(|(id, c)| id.kind == "CustomResourceDefinition" && *c != Change::Unchanged)
            {
                self.tenant.cluster().kinds().invalidate();
            }
            if report.waiting.is_some() {
                return Ok(report);
            }
        }
        Ok(report)
    }

    /// Applies one wave. Deletes come last, once everything else of the wave is in place and every object to be
    /// recreated is known to be acceptable (run 28 B5, B6).
    async fn wave(
        &self,
        members: Vec<Value>,
        known: &mut BTreeMap<ObjectId, Known>,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let mut conflicts = Vec::new();
        let mut leaving = Vec::new();
        for batch in batches(members) {
            let steps: Vec<Result<Step, Failure>> = futures::stream::iter(batch.into_iter().map(|object| {
                let before = ObjectId::of(&object).and_then(|id| known.get(&id).cloned());
                self.one(object, before)
            }))
            .buffered(PARALLEL)
            .collect()
            .await;
            for step in steps {
                match step? {
                    Step::Done(id, now, change) => {
                        known.insert(id.clone(), now);
                        report.changed.push((id, change));
                    }
                    Step::Leaving(id, now) => {
                        leaving.push(id.to_string());
                        known.insert(id, now);
                    }
                    Step::Conflict(conflict) => conflicts.push(conflict),
                }
            }
        }
        for conflict in &conflicts {
            if let Some(trial) = trial_object(&conflict.object) {
                let tried = self.tenant.try_create(&trial, FIELD_MANAGER).await;
                tried.map_err(|e| Failure::of_access("apply", &e, "create", &conflict.target).about(&trial))?;
            }
        }
        for conflict in conflicts {
            let (id, target) = (conflict.id.clone(), conflict.target.clone());
            match self.recreate(*conflict).await? {
                Some(now) => {
                    known.insert(id.clone(), now);
                    report.changed.push((id, Change::Created));
                }
                None => {
                    known.insert(id.clone(), Known::leaving(&target, known.get(&id)));
                    leaving.push(id.to_string());
                    // One object at a time: the next is only deleted once this one is back.
                    break;
                }
            }
        }
        if !leaving.is_empty() {
            report.waiting = Some(format!("{}: until the old one is gone", leaving.join(", ")));
        }
        Ok(())
    }

    async fn recreate(&self, conflict: Conflicted) -> Result<Option<Known>, Failure> {
        let failed =
            |e: &cluster::Error, verb| Failure::of_access("apply", e, verb, &conflict.target).about(&conflict.object);
        tracing::info!(object = %conflict.target, "recreated: a field cannot be changed in place");
        self.tenant
            .delete_with(&conflict.target, &conflict.only_if, conflict.dependents)
            .await
            .map_err(|e| Failure::of_access("apply", &e, "delete", &conflict.target))?;
        if self
            .tenant
            .get(&conflict.target)
            .await
            .map_err(|e| failed(&e, "get"))?
            .is_some()
        {
            return Ok(None);
        }
        let sent = content_hash(&conflict.object, &self.ignore);
        let applied = self
            .tenant
            .apply(&conflict.object, FIELD_MANAGER, false)
            .await
            .inspect_err(|e| self.doubt(&conflict.id, e))
            .map_err(|e| failed(&e, "create"))?;
        let (key, served) = self.key(&conflict.target).await?;
        let place = Place {
            id: &conflict.id,
            target: &conflict.target,
            key: &key,
            served: &served,
        };
        Ok(Some(self.learn(&place, &applied, sent, None).await))
    }

    async fn key(&self, target: &Target) -> Result<(WatchKey, Served), Failure> {
        let served = self.tenant.served(&target.api_version, &target.kind).await;
        let served = served.map_err(|e| Failure::of_request("apply", &e))?;
        let cluster = self.tenant.cluster().key();
        Ok((
            WatchKey::of(cluster, self.tenant.identity(), target, served.namespaced),
            served,
        ))
    }

    async fn one(&self, mut object: Value, before: Option<Known>) -> Result<Step, Failure> {
        let failed = |e: &cluster::Error| Failure::of_request("apply", e);
        let target = Target::of(&object).map_err(|e| failed(&e))?;
        let id = ObjectId::of(&object).ok_or_else(|| Failure::retried("apply", format!("{target} has no identity")))?;
        self.join_applyset(&mut object);
        let sent = content_hash(&object, &self.ignore);
        let (key, served) = self.key(&target).await?;
        if let Some(known) = before.as_ref().filter(|k| k.sent == sent && !k.skipped)
            && known.readiness.is_ready()
            && known.rules == self.judge.rules(&id)
            && known.compared == known.version
            && self.ctx.hub.knows(&key, &target.name, &known.uid, known.version) == Knowledge::Unchanged
        {
            return Ok(Step::Done(id, known.clone(), Change::Unchanged));
        }
        // The watch begins before the first look, so that no change after it is missed.
        self.ctx.hub.watch(&key, &served, self.tenant, self.owner);
        let found = Found {
            id,
            target,
            key,
            served,
            object,
            live: None,
            sent,
            before,
        };
        if self.may_create(&found)
            && let Some(step) = self.create(&found).await?
        {
            return Ok(step);
        }
        self.look(found).await
    }

    /// Looks at the object before anything is decided about it.
    async fn look(&self, mut found: Found) -> Result<Step, Failure> {
        let live = self.tenant.get(&found.target).await;
        found.live = live.map_err(|e| Failure::of_access("apply", &e, "get", &found.target))?;
        if self.new.contains(&found.id) && found.live.as_ref().is_some_and(|live| self.owns(live)) {
            self.met_own.store(true, Ordering::Relaxed);
        }
        let before = found.before.as_ref();
        if found.live.is_none()
            && let Some(done) = before.filter(|k| k.deletes_itself && k.sent == found.sent)
            && done.readiness.is_ready()
        {
            return Ok(Step::Done(found.id, done.clone(), Change::Unchanged));
        }
        // What is left alone may go as it likes.
        let waits = |live: &&Value| is_deleting(live) && optout::mode(&found.object, Some(live)) != Mode::Ignore;
        if found.live.as_ref().filter(waits).is_some() {
            return Ok(Step::Leaving(found.id, Known::leaving(&found.target, before)));
        }
        self.treat(found).await
    }

    fn may_create(&self, found: &Found) -> bool {
        found.before.is_none() && self.new.contains(&found.id) && optout::mode(&found.object, None) != Mode::Ignore
    }

    /// Creates an object that there should be none of yet. None where there is one: it has to be looked at, and is
    /// untouched. Of two StageSets that bring the same object at once only one creates it (run 28 B29).
    async fn create(&self, found: &Found) -> Result<Option<Step>, Failure> {
        let outgoing = object_to_send(&found.object, None, &self.ignore, FIELD_MANAGER);
        match self.tenant.apply_new(&outgoing, FIELD_MANAGER).await {
            Ok(applied) => {
                let known = self.learn(&found.place(), &applied, found.sent, None).await;
                Ok(Some(Step::Done(found.id.clone(), known, Change::Created)))
            }
            Err(error) if error.needs_a_look() => Ok(None),
            Err(error) => {
                self.doubt(&found.id, &error);
                Err(Failure::of_access("apply", &error, "create", &found.target).about(&outgoing))
            }
        }
    }

    /// Decides what to do about an object as it was found: leave it alone, leave it as it is, or send it.
    async fn treat(&self, found: Found) -> Result<Step, Failure> {
        let (object, live) = (&found.object, found.live.as_ref());
        let mode = optout::mode(object, live);
        let kept = before_apply(&self.policy, object, live.is_some()) == BeforeApply::KeepExisting;
        let kept = kept || (mode == Mode::IfNotPresent && live.is_some());
        if let Some(live) = live.filter(|_| kept && mode != Mode::Ignore)
            && self.is_as_made(&found, live)
        {
            let before = found.before.as_ref();
            let known = self.learn(&found.place(), live, found.sent, before).await;
            return Ok(Step::Done(found.id, known, Change::Unchanged));
        }
        if kept || mode == Mode::Ignore {
            let skipped = Known::skipped(&found.target, live, found.sent);
            return Ok(Step::Done(found.id, skipped, Change::Skipped));
        }
        let mut same_release = false;
        if let Some(live) = live {
            self.refuse_foreign(&found.target, live).await?;
            let before = found.before.as_ref();
            same_release = before.is_some_and(|k| k.sent == found.sent && k.uid == uid(live));
        }
        let outgoing = object_to_send(object, live, &self.ignore, FIELD_MANAGER);
        if let Some(live) = live
            && same_release
            && drift::compare(&outgoing, live, FIELD_MANAGER).is_empty()
        {
            let known = self
                .learn(&found.place(), live, found.sent, found.before.as_ref())
                .await;
            return Ok(Step::Done(found.id, known, Change::Unchanged));
        }
        self.send(found, outgoing, mode).await
    }

    /// Whether an object that may not be touched is there because we made it, in this run or as it is to be made now: then
    /// it is waited for like any other.
    fn is_as_made(&self, found: &Found, live: &Value) -> bool {
        let before = found.before.as_ref().filter(|k| !k.skipped && k.sent == found.sent);
        treatment::is_made_since(live, &self.me(), self.began) || before.is_some_and(|k| k.uid == uid(live))
    }

    /// Applies one object that has to be applied; `outgoing` is without what is left to others.
    async fn send(&self, found: Found, outgoing: Value, mode: Mode) -> Result<Step, Failure> {
        let taken = match found.live.as_ref().filter(|_| mode == Mode::Apply) {
            Some(live) => self.take_over(&found.target, live).await?,
            None => None,
        };
        // What is left to others depends on who owns it, and that has just changed.
        let outgoing = match &taken {
            Some(taken) => object_to_send(&found.object, Some(taken), &self.ignore, FIELD_MANAGER),
            None => outgoing,
        };
        let current = taken.as_ref().or(found.live.as_ref());
        let adopted = current.filter(|live| !self.owns(live));
        let applied = match adopted {
            // As it was looked at: nobody else may have adopted it since.
            Some(live) => {
                let seen = resource_version(live);
                self.tenant.apply_at(&outgoing, seen, FIELD_MANAGER).await
            }
            None => self.tenant.apply(&outgoing, FIELD_MANAGER, false).await,
        };
        let applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                self.doubt(&found.id, &error);
                return self
                    .refused(&found, current, &error)
                    .map_err(|failure| failure.about(&outgoing));
            }
        };
        let change = match &found.live {
            None => Change::Created,
            Some(live) if resource_version(live) == resource_version(&applied) => Change::Unchanged,
            Some(_) => Change::Configured,
        };
        let before = found.before.as_ref().filter(|_| change == Change::Unchanged);
        let known = self.learn(&found.place(), &applied, found.sent, before).await;
        Ok(Step::Done(found.id, known, change))
    }

    /// Moves what kubectl owned into our apply. None where there was nothing to move.
    async fn take_over(&self, target: &Target, live: &Value) -> Result<Option<Value>, Failure> {
        let Some(patch) = managers::takeover(live, FIELD_MANAGER) else {
            return Ok(None);
        };
        match self.tenant.json_patch(target, &patch, FIELD_MANAGER).await {
            Ok(taken) => Ok(Some(taken)),
            // It went meanwhile: the next look finds that.
            Err(error) if error.is_not_found() => Err(Failure {
                remedy: Remedy::Stumble,
                ..Failure::of_request("apply", &error)
            }),
            Err(error) => Err(Failure::of_access("apply", &error, "patch", target)),
        }
    }

    /// The server refused the apply: by policy, a conflict over an immutable field may have a remedy.
    fn refused(&self, found: &Found, live: Option<&Value>, error: &cluster::Error) -> Result<Step, Failure> {
        let Found { id, target, object, .. } = found;
        let conflict = treatment::refusal(error).as_ref().and_then(immutable_conflict);
        let (Some(live), Some(conflict)) = (live, conflict) else {
            let verb = if live.is_some() { "patch" } else { "create" };
            return Err(Failure::of_access("apply", error, verb, target));
        };
        match on_conflict(&self.policy, object, live, &conflict) {
            Decision::Fail { message } => Err(Failure::retried("apply", message)),
            Decision::RefuseDataLoss(loss) => Err(treatment::refused(loss.to_string())),
            Decision::KeepExisting => Ok(Step::Done(
                id.clone(),
                Known::skipped(target, Some(live), found.sent),
                Change::Skipped,
            )),
            Decision::Recreate {
                preconditions, orphan, ..
            } => Ok(Step::Conflict(Box::new(Conflicted {
                id: id.clone(),
                target: target.clone(),
                object: object.clone(),
                only_if: Preconditions {
                    uid: preconditions.uid,
                    resource_version: preconditions.resource_version,
                },
                dependents: if orphan {
                    Dependents::Orphaned
                } else {
                    Dependents::Deleted
                },
            }))),
        }
    }

    fn doubt(&self, id: &ObjectId, error: &cluster::Error) {
        if error.leaves_in_doubt() {
            self.doubts.note(id.clone());
        }
    }

    fn join_applyset(&self, object: &mut Value) {
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.insert(applyset::PART_OF_LABEL.to_owned(), Value::String(self.part_of.clone()));
        }
    }

    async fn learn(&self, at: &Place<'_>, live: &Value, sent: u64, before: Option<&Known>) -> Known {
        let now = Timestamp::now();
        let version = parse_version(Some(resource_version(live)));
        self.ctx
            .hub
            .note(at.key, &at.target.name, uid(live), version, self.owner);
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
            skipped: false,
            alone: false,
            deletes_itself: readiness::deletes_itself(live),
        }
    }

    /// An object that another StageSet owns is never taken over in silence (run 28 B29).
    async fn refuse_foreign(&self, target: &Target, live: &Value) -> Result<(), Failure> {
        let Some(found) = owner_of(live).filter(|owner| *owner != self.me()) else {
            return Ok(());
        };
        if !self.exists(&found).await? {
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

    fn me(&self) -> OwnerRef {
        OwnerRef {
            name: self.owner.name.clone(),
            namespace: self.owner.namespace.clone(),
        }
    }

    fn owns(&self, live: &Value) -> bool {
        owner_of(live).is_some_and(|owner| owner == self.me())
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
        Ok(own
            .get(&target)
            .await
            .map_err(|e| Failure::of_request("apply", &e))?
            .is_some())
    }
}

/// Runs of one kind: their members do not need each other, so they go out together.
fn batches(members: Vec<Value>) -> Vec<Vec<Value>> {
    let kind = |object: &Value| ObjectId::of(object).map(|id| (id.group, id.kind));
    let mut batches: Vec<Vec<Value>> = Vec::new();
    for object in members {
        let same = batches
            .last()
            .and_then(|b| b.last())
            .is_some_and(|last| kind(last) == kind(&object));
        match batches.last_mut() {
            Some(batch) if same => batch.push(object),
            _ => batches.push(vec![object]),
        }
    }
    batches
}

fn not_in_force(ids: &[ObjectId], known: &BTreeMap<ObjectId, Known>) -> Option<String> {
    let waiting: Vec<String> = ids
        .iter()
        .filter_map(|id| {
            known
                .get(id)
                .filter(|k| !k.skipped && k.settles_at.is_none() && !k.readiness.is_ready())
                .map(|k| format!("{id}: {}", k.readiness))
        })
        .collect();
    (!waiting.is_empty()).then(|| waiting.join("; "))
}
