//! The stages of a run: apply, verify, next (run 3.1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::apply::Applier;
use super::context::{Known, StageMemory};
use super::judge::Judge;
use super::outcome::{End, Failure, Missing, Stop, Wake};
use super::pass::{Pass, elapsed};
use super::record::{Recorder, parent_name};
use super::render::{self, Rendered};
use super::verify::{Mode, OPERATION as VERIFY, target_of};
use crate::api::{Stage, StagePhase, StageSetSpec, Step};
use crate::cluster::watch::{Coverage, Knowledge, WatchKey};
use crate::cluster::{Target, Tenant};
use crate::rules::backoff::POLL_LADDER;
use crate::rules::condition::Situation;
use crate::rules::inventory::{DesiredStage, Entries, Entry, ObjectId, applyset_id, find_duplicate_claims, union};
use crate::rules::readiness::{self, Overall, Readiness, name_blockers};

/// Objects a message names at most.
const NAMED: usize = 5;
/// While an apply waits, look again after this time at first, and for as long as a watch is not yet listed.
const SOON: Duration = Duration::from_secs(1);
/// A definition that is in force is served within this time.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// The watch that covers an object.
fn watch_key(tenant: &Tenant, id: &ObjectId, known: &Known) -> WatchKey {
    let target = target_of(id, &known.api_version);
    let of = if known.alone { WatchKey::by_name } else { WatchKey::of };
    of(
        tenant.cluster().key(),
        tenant.identity(),
        &target,
        !id.namespace.is_empty(),
    )
}

/// Where a stage leaves the step.
pub(super) enum Flow {
    /// Through: the next stage may begin.
    Ready,
    /// The step ends here.
    End(End),
}

impl Pass<'_> {
    /// Takes the stages in order as far as they go without waiting, then prunes and ends the run.
    pub(super) async fn stages(&mut self) -> Result<End, Stop> {
        let spec = self.set.spec.clone();
        if self.is_superseded() {
            return self.end_verify(&spec).await;
        }
        for (at, stage) in spec.stages.iter().enumerate() {
            if self.variables[at].is_err() {
                self.variables[at] = self.variables_of(stage).await;
            }
            let inputs = self.inputs(at);
            if self.is_done(at, &inputs) {
                self.care(at, stage).await;
                continue;
            }
            if let Err(failure) = self.variables[at].clone() {
                return self.failed(at, failure);
            }
            match self.stage(at, stage, inputs).await? {
                Flow::Ready => {}
                Flow::End(end) => {
                    self.care_for_later(at).await;
                    return Ok(end);
                }
            }
        }
        Box::pin(self.conclude()).await
    }

    /// Keeps the watches of a stage that is through: what breaks behind the run's back is noticed all the same.
    pub(super) fn keep_watching(&mut self, stage: &Stage) {
        let tenant = self.tenant(stage);
        let Some(memory) = self.memory.stages.get(&stage.name) else {
            return;
        };
        let objects = memory.objects.iter().chain(&memory.named);
        let keys = objects.map(|(id, known)| watch_key(&tenant, id, known));
        self.needed.extend(keys);
    }

    /// Whether an object of a stage before the last has changed since the run was through with it, or was seen to break:
    /// nobody has drawn a conclusion from that yet.
    pub(super) fn is_disturbed(&self) -> bool {
        let stages = &self.set.spec.stages;
        stages.iter().take(stages.len().saturating_sub(1)).any(|stage| {
            let tenant = self.tenant(stage);
            let judge = Judge::of(stage, &self.owner.namespace).ok();
            let awaited = |id: &ObjectId| judge.as_ref().is_some_and(|judge| judge.awaits(id));
            let memory = self.memory.stages.get(&stage.name);
            memory
                .into_iter()
                .flat_map(|memory| memory.objects.iter().chain(&memory.named))
                .filter(|(_, known)| !known.skipped)
                .any(|(id, known)| {
                    let key = watch_key(&tenant, id, known);
                    let broke = !known.readiness.is_ready() && awaited(id);
                    broke || self.ctx.hub.knows(&key, &id.name, &known.uid, known.version) != Knowledge::Unchanged
                })
        })
    }

    /// Whether the spec has changed since the run began.
    fn is_superseded(&self) -> bool {
        self.status.run.as_ref().map(|r| r.generation) != self.set.metadata.generation
    }

    /// A run for an older spec only ends the verify it is at; then the newer one begins.
    async fn end_verify(&mut self, spec: &StageSetSpec) -> Result<End, Stop> {
        let at = self
            .status
            .stages
            .iter()
            .position(|s| s.step == Some(Step::Verify) && s.phase == Some(StagePhase::Verifying));
        let at = at.unwrap_or_default();
        self.care_for_all().await;
        match self.verify(at, &spec.stages[at], self.watched_mode()).await? {
            Flow::Ready => Ok(self.unfinished(at, "a newer spec takes over", Wake::In(Duration::ZERO))),
            Flow::End(end) => Ok(end),
        }
    }

    async fn stage(&mut self, at: usize, stage: &Stage, inputs: String) -> Result<Flow, Stop> {
        let entry = &self.status.stages[at];
        let verifying = entry.step == Some(Step::Verify) && entry.phase == Some(StagePhase::Verifying);
        let same = entry.inputs_digest.as_deref() == Some(&inputs);
        if verifying && same {
            if !self.knows_inputs(at)
                && let Err(failure) = self.relearn(at, stage).await
            {
                return Ok(Flow::End(self.failed(at, failure)?));
            }
            return self.verify(at, stage, self.verify_mode(at, stage)).await;
        }
        self.apply(at, stage, inputs).await
    }

    async fn apply(&mut self, at: usize, stage: &Stage, inputs: String) -> Result<Flow, Stop> {
        if self.status.stages[at].step != Some(Step::Apply)
            || self.status.stages[at].phase != Some(StagePhase::Applying)
        {
            self.enter(at, StagePhase::Applying, Step::Apply);
        }
        let artifact = self.artifacts[at].clone();
        let stored = self.set.status.as_ref().and_then(|s| s.stages.get(at));
        let announced = stored.is_some_and(|s| {
            s.step == Some(Step::Apply)
                && s.phase == Some(StagePhase::Applying)
                && s.inputs_digest.as_deref() == Some(&inputs)
                && s.attempted_digest.as_deref() == Some(&artifact.digest)
        });
        let entry = &mut self.status.stages[at];
        entry.attempted_revision = Some(artifact.revision.clone());
        entry.attempted_digest = Some(artifact.digest.clone());
        entry.inputs_digest = Some(inputs.clone());
        if !announced {
            self.write_intent(at).await?;
        }
        let tenant = self.tenant(stage);
        match self.apply_objects(at, stage, &tenant, inputs).await {
            Err(failure) => {
                let failure = self.just_defined(at, tenant.cluster(), failure);
                Ok(Flow::End(self.failed(at, failure)?))
            }
            Ok(Some(waiting)) => {
                self.status.stages[at].waiting_for = Some(waiting.clone());
                self.keep_watching(stage);
                let again = self.watch_unready(&tenant, stage).await;
                self.memory.polls = self.memory.polls.saturating_add(1);
                let end = self.unfinished(at, &format!("waits for {waiting}"), Wake::In(again));
                Ok(Flow::End(self.bounded(at, stage, end, "apply", false)?))
            }
            Ok(None) => {
                let entry = &mut self.status.stages[at];
                entry.applied_revision = Some(artifact.revision);
                entry.applied_digest = Some(artifact.digest);
                entry.applied_url = Some(artifact.url);
                self.memory.polls = 0;
                self.enter(at, StagePhase::Verifying, Step::Verify);
                self.verify(at, stage, Mode::JustApplied).await
            }
        }
    }

    /// A kind whose definition this StageSet itself brings is served a moment after the definition is in force: that
    /// it is not yet is no failure.
    fn just_defined(&self, at: usize, cluster: &crate::cluster::Cluster, failure: Failure) -> Failure {
        let Some(Missing::Kind { api_version, .. }) = failure.missing.as_deref() else {
            return failure;
        };
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let began = self.status.stages[at].step_started_at.as_ref();
        let fresh = began.is_some_and(|t| elapsed(t, Timestamp::now()) < SERVED_WITHIN);
        let defines = |id: &ObjectId| {
            id.kind == "CustomResourceDefinition" && id.name.split_once('.').is_some_and(|(_, g)| g == group)
        };
        let records = super::record::all(self.ctx, self.owner);
        if !fresh || !records.iter().any(|(stage, _)| stage.entries.keys().any(defines)) {
            return failure;
        }
        cluster.kinds().invalidate();
        Failure {
            remedy: super::outcome::Remedy::Stumble,
            ..failure
        }
    }

    /// The intent goes out before the effect: at the start of a pass, and again where the pass took long.
    async fn write_intent(&mut self, at: usize) -> Result<(), Stop> {
        let recent = self
            .memory
            .wrote_at
            .is_some_and(|w: Instant| w.elapsed() < Duration::from_secs(1));
        if self.wrote_in_pass && recent {
            return Ok(());
        }
        let message = self.progress(at, "applying");
        self.write(&Situation::Unfinished { message }).await
    }

    /// Digest over what the stage is to apply.
    pub(super) fn inputs(&self, at: usize) -> String {
        let variables = self.variables.get(at).and_then(|v| v.as_ref().ok());
        // Unresolved variables never equal any that were.
        let digest = variables.map_or("unresolved", |v| v.digest.as_str());
        render::inputs_digest(&self.artifacts[at], &self.set.spec, &self.set.spec.stages[at], digest)
    }

    /// Fetches and builds a stage with its variables.
    pub(super) async fn render(&self, at: usize, stage: &Stage, tenant: &Tenant) -> Result<Rendered, Failure> {
        let variables = self.variables[at].clone()?.values;
        render::stage(self.ctx, self.owner, stage, &self.artifacts[at], variables, tenant).await
    }

    /// Renders, records and applies. `Some` names definitions that are not in force yet.
    async fn apply_objects(
        &mut self,
        at: usize,
        stage: &Stage,
        tenant: &Tenant,
        inputs: String,
    ) -> Result<Option<String>, Failure> {
        let judge = Judge::of(stage, &self.owner.namespace)?;
        let rendered = self.render(at, stage, tenant).await?;
        self.refuse_duplicates(at, &rendered).await?;
        refuse_unlent(tenant, &rendered).await?;
        self.tell_build(at, stage, &rendered);
        let new = self.record(at, stage, &rendered).await?;
        let memory = self.memory.stages.entry(stage.name.clone()).or_default();
        // Every object is in the memory from here on, so that a crash of the apply in the middle still awaits all.
        let mut known: BTreeMap<ObjectId, Known> = std::mem::take(&mut memory.objects);
        known.retain(|id, _| rendered.ids.contains(id));
        let applier = Applier {
            new,
            ..self.applier(stage, tenant, &judge)?
        };
        let report = applier.run(rendered.objects, &mut known).await;
        let met_own = applier.met_own.into_inner();
        self.cared_for(stage);
        let complete = known.len() == rendered.ids.len();
        let memory = self.memory.stages.entry(stage.name.clone()).or_default();
        *memory = StageMemory {
            inputs: if complete { inputs } else { String::new() },
            objects: known,
            named: std::mem::take(&mut memory.named),
        };
        let moved = |r: &super::apply::Report| {
            r.changed
                .iter()
                .any(|(_, c)| matches!(c, super::apply::Change::Created | super::apply::Change::Configured))
        };
        if report.as_ref().is_ok_and(moved) {
            self.memory.changed_at = Some(Timestamp::now());
        }
        if met_own && let Some(lived) = self.memory.unknown.get_mut(&stage.name) {
            *lived = true;
        }
        let waiting = report?.waiting;
        if waiting.is_none() && self.memory.unknown.get(&stage.name) == Some(&true) {
            self.find_earlier(at, stage, tenant).await?;
        }
        if waiting.is_none() {
            self.memory.unknown.remove(&stage.name);
            self.sign_record(at, stage, &rendered.ids).await?;
        }
        Ok(waiting)
    }

    /// Records who has applied the stage, once that is done: until then whoever applied it before is the one known to have
    /// the rights to delete it. What is still to be pruned stays theirs.
    async fn sign_record(&self, at: usize, stage: &Stage, rendered: &BTreeSet<ObjectId>) -> Result<(), Failure> {
        let stored = super::record::of_stage(self.ctx, self.owner, &stage.name);
        let entries = stored.entries();
        let recorder = self.recorder(at, stage);
        if stored.account == recorder.account || entries.keys().any(|id| !rendered.contains(id)) {
            return Ok(());
        }
        let written = recorder.with_leftovers(&stored, false).write(&entries, &entries).await;
        written
            .map(drop)
            .map_err(|e| Failure::of_request("record inventory", &e))
    }

    /// What is worth knowing about a build: its warnings in the log, hooks that are no hooks here as an event.
    fn tell_build(&mut self, at: usize, stage: &Stage, rendered: &Rendered) {
        for warning in &rendered.warnings {
            tracing::warn!(stage = stage.name, warning, "build warning");
        }
        if rendered.hooks.is_empty() {
            return;
        }
        let note = format!(
            "stage \"{}\" at {}: applied like other objects although annotated as Helm hooks: {}; set applyHelmHookResources: false to leave them out",
            stage.name,
            self.artifacts[at].revision,
            rendered.hooks.join(", ")
        );
        let told = (crate::api::Reason::HelmHookApplied, note.clone());
        if self.memory.told_hooks.as_ref() != Some(&told) {
            self.memory.told_hooks = Some(told);
            self.tell(crate::api::Reason::HelmHookApplied, true, &note);
        }
    }

    /// Refuses, before anything is applied, an object that an earlier stage of this run renders too.
    async fn refuse_duplicates(&mut self, at: usize, rendered: &Rendered) -> Result<(), Failure> {
        let spec = self.set.spec.clone();
        let mut desired = Vec::new();
        for (earlier, stage) in spec.stages.iter().enumerate().take(at) {
            desired.push(DesiredStage {
                name: stage.name.clone(),
                prune: stage.prunes(),
                ids: self.desired_ids(earlier, stage).await?,
            });
        }
        desired.push(DesiredStage {
            name: spec.stages[at].name.clone(),
            prune: true,
            ids: rendered.ids.clone(),
        });
        let claims = find_duplicate_claims(&desired);
        claims.first().map_or(Ok(()), |claim| Err(Failure::of_claim(claim)))
    }

    /// What a stage renders in this run: remembered, or built again after a restart.
    pub(super) async fn desired_ids(
        &mut self,
        at: usize,
        stage: &Stage,
    ) -> Result<std::collections::BTreeSet<ObjectId>, Failure> {
        if self.knows_inputs(at) {
            let memory = self.memory.stages.get(&stage.name);
            return Ok(memory.map(|m| m.objects.keys().cloned().collect()).unwrap_or_default());
        }
        let tenant = self.tenant(stage);
        let rendered = self.render(at, stage, &tenant).await?;
        Ok(rendered.ids)
    }

    /// Records stored and rendered objects, before anything is applied. Returns the objects that were not recorded
    /// before.
    async fn record(&mut self, at: usize, stage: &Stage, rendered: &Rendered) -> Result<BTreeSet<ObjectId>, Failure> {
        let now: Entries = rendered
            .objects
            .iter()
            .filter_map(Entry::of)
            .map(|e| (e.id, e.version))
            .collect();
        let aside = super::target::set_aside(self.ctx, self.owner, &stage.name, &self.target).await;
        aside.map_err(|e| Failure::of_request("record inventory", &e))?;
        let stored = super::record::of_stage(self.ctx, self.owner, &stage.name);
        let before = stored.entries();
        if self.status.stages[at].applied_revision.is_none() {
            // Where a record is found, an apply before a restart has not come to its end: whom it met is not known.
            let unfinished = !stored.shards.is_empty();
            self.memory.unknown.entry(stage.name.clone()).or_insert(unfinished);
        }
        let wanted = union(&before, &now);
        let shards = self
            .recorder(at, stage)
            .before_apply(&stored)
            .write(&before, &wanted)
            .await;
        let shards = shards.map_err(|e| Failure::of_request("record inventory", &e))?;
        let entry = &mut self.status.stages[at];
        entry.entries_count = i64::try_from(wanted.len()).ok();
        entry.shards = i32::try_from(shards).ok();
        let new: BTreeSet<ObjectId> = now.into_keys().filter(|id| !before.contains_key(id)).collect();
        let added = self.memory.added.entry(stage.name.clone()).or_default();
        added.extend(new.iter().cloned());
        Ok(new)
    }

    /// An apply of this stage's objects, under its policy.
    pub(super) fn applier<'b>(
        &'b self,
        stage: &Stage,
        tenant: &'b Tenant,
        judge: &'b Judge,
    ) -> Result<Applier<'b>, Failure> {
        Ok(Applier {
            ctx: self.ctx,
            owner: self.owner,
            tenant,
            judge,
            part_of: applyset_id(&parent_name(self.ctx, self.owner, &stage.name), &self.owner.namespace),
            policy: super::treatment::policy(stage),
            ignore: super::treatment::ignore(&self.set.spec, stage)?,
            new: BTreeSet::new(),
            began: self.status.run.as_ref().map(|run| run.started_at.0),
            met_own: AtomicBool::new(false),
            doubts: self.memory.doubts.clone(),
        })
    }

    pub(super) fn recorder<'b>(&'b self, at: usize, stage: &'b Stage) -> Recorder<'b> {
        Recorder {
            ctx: self.ctx,
            set: &self.set,
            owner: self.owner,
            stage: &stage.name,
            position: at,
            account: crate::api::common::non_empty(&stage.service_account_name)
                .or(crate::api::common::non_empty(&self.set.spec.service_account_name))
                .map(str::to_owned),
            target: self.target.recorded.clone(),
            release: super::record::release_of(&self.set, &self.status),
            settles: false,
        }
    }

    /// After a restart, or for objects nobody here has seen: what the stage awaits is built again, and judged anew.
    pub(super) async fn relearn(&mut self, at: usize, stage: &Stage) -> Result<(), Failure> {
        let tenant = self.tenant(stage);
        let rendered = self.render(at, stage, &tenant).await?;
        let changed_at = self.status.stages[at]
            .step_started_at
            .as_ref()
            .map_or_else(Timestamp::now, |t| t.0);
        let failed = self.status.stages[at].phase == Some(StagePhase::Failed);
        let policy = super::treatment::policy(stage);
        let mut objects = BTreeMap::new();
        for object in &rendered.objects {
            let (Ok(target), Some(id)) = (Target::of(object), ObjectId::of(object)) else {
                continue;
            };
            let known = if self.is_left_alone(&policy, &tenant, &target, object).await? {
                Known::skipped(&target, None, 0)
            } else {
                Known {
                    // One that may be gone because it failed is not taken for done.
                    deletes_itself: !failed && readiness::deletes_itself(object),
                    ..Known::unseen(target.api_version, changed_at)
                }
            };
            objects.insert(id, known);
        }
        let inputs = self.status.stages[at].inputs_digest.clone().unwrap_or_default();
        self.memory
            .stages
            .insert(stage.name.clone(), StageMemory::of(inputs, objects));
        Ok(())
    }

    /// Judges what the stage awaits.
    async fn verify(&mut self, at: usize, stage: &Stage, mode: Mode) -> Result<Flow, Stop> {
        let tenant = self.tenant(stage);
        let look = match self.look(stage, &tenant, mode).await {
            Ok(look) => look,
            Err(failure) => return Ok(Flow::End(self.failed(at, failure)?)),
        };
        match look.overall() {
            Overall::Ready => {
                self.enter(at, StagePhase::Ready, Step::Done);
                self.memory.polls = 0;
                self.memory.unexplained.remove(&stage.name);
                let metrics = &self.ctx.metrics;
                metrics.applied(&self.owner.namespace, &self.owner.name, &stage.name);
                Ok(Flow::Ready)
            }
            Overall::Failed(failed)
                if failed
                    .iter()
                    .any(|f| !matches!(f.readiness, Readiness::Failed { recoverable: true, .. })) =>
            {
                let message = name_blockers(&failed, NAMED);
                Ok(Flow::End(self.failed(at, Failure::retried(VERIFY, message))?))
            }
            overall @ (Overall::Failed(_) | Overall::Waiting(_)) => {
                let slow = matches!(overall, Overall::Waiting(_));
                let waiting = overall.blocking();
                let mut blocking = name_blockers(&waiting, NAMED);
                if let Some(unwatched) = look.unwatched.values().next() {
                    blocking.push_str(&format!(" (polled: {})", unwatched.why()));
                }
                self.status.stages[at].waiting_for = Some(blocking.clone());
                self.memory.polls = self.memory.polls.saturating_add(1);
                let end = self.unfinished(at, &format!("waits for {blocking}"), Wake::In(look.again));
                Ok(Flow::End(self.bounded(at, stage, end, VERIFY, slow)?))
            }
        }
    }

    /// Watches what an apply waits for; when to look again if no watch tells.
    async fn watch_unready(&mut self, tenant: &Tenant, stage: &Stage) -> Duration {
        let polls = self.memory.polls;
        let mut again = polls.checked_sub(1).map_or(SOON, |rung| POLL_LADDER.wait(rung));
        let Some(memory) = self.memory.stages.get(&stage.name) else {
            return again;
        };
        for (id, known) in memory.objects.iter().filter(|(_, k)| !k.readiness.is_ready()) {
            let target = target_of(id, &known.api_version);
            if let Ok(served) = tenant.served(&target.api_version, &target.kind).await {
                // One that was not applied before need not carry our label.
                let of = if known.uid.is_empty() {
                    WatchKey::by_name
                } else {
                    WatchKey::of
                };
                let key = of(tenant.cluster().key(), tenant.identity(), &target, served.namespaced);
                if self.ctx.hub.watch(&key, &served, tenant, self.owner) == Coverage::Starting {
                    again = SOON;
                }
                self.needed.insert(key);
            }
        }
        again
    }

    /// An unfinished run, waiting at a stage.
    pub(super) fn unfinished(&self, at: usize, what: &str, wake: Wake) -> End {
        End {
            situation: Situation::Unfinished {
                message: self.progress(at, what),
            },
            wake,
        }
    }
}

/// Refuses, before anything is recorded or applied, what the controller's rights are not lent for.
async fn refuse_unlent(tenant: &Tenant, rendered: &Rendered) -> Result<(), Failure> {
    for object in &rendered.objects {
        let target = Target::of(object).map_err(|e| Failure::of_request("apply", &e))?;
        let lent = tenant.lend(&target).await;
        lent.map_err(|e| Failure::of_access("apply", &e, "patch", &target))?;
    }
    Ok(())
}

impl StageMemory {
    /// What a stage deploys, by the inputs it was rendered from.
    pub fn of(inputs: String, objects: BTreeMap<ObjectId, Known>) -> Self {
        Self {
            inputs,
            objects,
            named: BTreeMap::new(),
        }
    }
}
