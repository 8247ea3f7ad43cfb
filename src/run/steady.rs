//! Looking after what is deployed: drift is corrected, health is watched, nothing is written where nothing
//! changed (run 20, 23, decisions 2).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::apply::Change;
use super::context::{Known, StageMemory};
use super::judge::Judge;
use super::outcome::{End, Failure, Stop, Wake};
use super::pass::{Pass, earlier, elapsed, jittered};
use super::record::{self, parent_name};
use super::render;
use super::treatment::Left;
use super::verify::{self, Look, Mode};
use crate::api::names::applyset;
use crate::api::{Reason, Stage, StagePhase, Step};
use crate::cluster::{Target, Tenant};
use crate::rules::backoff::{POLL_LADDER, spread};
use crate::rules::condition::{READY, Situation, without_runbook};
use crate::rules::inventory::{Entry, ObjectId, applyset_id};
use crate::rules::readiness::{self, Overall, name_blockers};

/// How long after a request what changes is compared as if it had been asked for.
const ASKED_FOR: Duration = Duration::from_secs(5);

/// What a look at one stage means for the StageSet.
enum Health {
    Good,
    /// Not ready, within its bound.
    Doubtful(Duration),
    /// Not ready for longer than its bound.
    Bad(String),
}

impl Pass<'_> {
    /// A pass over a release that is in place.
    pub(super) async fn steady(&mut self) -> Result<End, Stop> {
        let (full, mut wake) = self.comparison_is_due().await?;
        let mut bad = None;
        let mut doubtful = false;
        let spec = self.set.spec.clone();
        for (at, stage) in spec.stages.iter().enumerate() {
            if self.is_left_out(at) {
                continue;
            }
            let tenant = self.tenant(stage);
            // What a changed stage renders is not what was applied: putting that in place is no correction of drift.
            let full = full && self.status.stages[at].inputs_digest.as_deref() == Some(&self.inputs(at));
            let look = match self.tend(at, stage, &tenant, full).await {
                // With a change that waits for the windows, so does this.
                Ok(_) if self.status.stages[at].inputs_digest.is_none() && !self.change_waits() => {
                    return Ok(self.apply_anew(at));
                }
                Ok(look) => look,
                Err(failure) => {
                    // What a full look was asked for is still to be done.
                    self.memory.full_at = self.memory.full_at.filter(|_| !full);
                    self.memory.full_due = self.memory.full_due.filter(|_| !full);
                    return self.failed_care(at, failure);
                }
            };
            match self.health(at, stage, &look) {
                Health::Good => {}
                Health::Doubtful(rest) => {
                    doubtful = true;
                    wake = earlier(earlier(wake, look.again), rest);
                }
                Health::Bad(message) => {
                    wake = earlier(wake, look.again);
                    bad.get_or_insert(message);
                }
            }
        }
        if full {
            self.memory.full_at = Some(Instant::now());
            self.memory.full_due = None;
            self.memory.doubts.forget_ruled_out();
            self.forget_corrections();
            if self.comes_back {
                wake = earlier(wake, self.full_again());
            }
        }
        if self.has_leftovers() && !self.change_waits() {
            match self.prune().await {
                Ok(None) => self.count_records(),
                Ok(Some(end)) => return Ok(end),
                Err(unpruned) => return self.failed_prune(unpruned),
            }
        }
        if self.leaves {
            wake = earlier(wake, POLL_LADDER.wait(self.memory.polls));
        }
        let waits = doubtful || bad.is_some() || self.comes_back || self.leaves;
        self.memory.polls = if waits { self.memory.polls.saturating_add(1) } else { 0 };
        if self.prune_deferred {
            wake = Wake::In(Duration::ZERO);
        }
        Ok(End {
            situation: self.standing_of_release(bad, doubtful),
            wake,
        })
    }

    /// Whether everything is to be compared in this pass, and when the next one is due if nothing tells.
    async fn comparison_is_due(&mut self) -> Result<(bool, Wake), Stop> {
        let steady = self.cadence().steady;
        let since_full = self.memory.full_at.map(|at| at.elapsed());
        let doubts = self.memory.doubts.rest();
        let full = self.is_asked_for()
            || doubts == Some(Duration::ZERO)
            || match since_full {
                Some(since) => since + Duration::from_secs(1) >= steady.mul_f64(0.95),
                None => self.first_comparison_is_due(steady).await?,
            };
        let wake = Wake::In(match self.memory.full_due.filter(|_| !full) {
            Some(due) => due.saturating_duration_since(Instant::now()),
            None if full => jittered(steady),
            None => jittered(steady.saturating_sub(since_full.unwrap_or_default())),
        });
        Ok((
            full,
            match doubts.filter(|rest| !rest.is_zero()) {
                Some(rest) => earlier(wake, rest),
                None => wake,
            },
        ))
    }

    /// Whether somebody asks for a pass. A change just before a request may be told after it.
    pub(super) fn is_asked_for(&self) -> bool {
        self.requested || self.memory.requested_at.is_some_and(|at| at.elapsed() < ASKED_FOR)
    }

    /// After a restart everything is looked at once, readiness first; the comparison of a release that is in order
    /// comes at a random time within the interval, so that a thousand of them do not come together (decisions 5).
    async fn first_comparison_is_due(&mut self, steady: Duration) -> Result<bool, Stop> {
        if let Some(due) = self.memory.full_due {
            return Ok(due <= Instant::now());
        }
        let spec = self.set.spec.clone();
        if (0..spec.stages.len()).all(|at| self.knows_inputs(at)) || !self.is_in_order() {
            return Ok(true);
        }
        for (at, stage) in spec.stages.iter().enumerate() {
            let tenant = self.tenant(stage);
            let ready = match self.tend(at, stage, &tenant, false).await {
                Ok(look) => matches!(look.overall(), Overall::Ready),
                Err(_) => false,
            };
            if !ready {
                return Ok(true);
            }
        }
        self.memory.full_due = Some(Instant::now() + spread(steady, rand::random::<f64>()));
        Ok(false)
    }

    /// Whether the status says that all is well, and that the records hold what was rendered.
    fn is_in_order(&self) -> bool {
        let Some(status) = &self.set.status else {
            return false;
        };
        let ready = status.conditions.iter().find(|c| c.type_ == READY);
        let counts = status.stages.iter().all(|stage| {
            let recorded = record::of_stage(self.ctx, self.owner, &stage.name).entries().len();
            stage.entries_count == i64::try_from(recorded).ok()
        });
        counts && ready.is_some_and(|c| c.status == "True")
    }

    fn standing_of_release(&self, bad: Option<String>, doubtful: bool) -> Situation {
        let stored = self
            .set
            .status
            .as_ref()
            .and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
        match (bad, stored) {
            (Some(message), _) => Situation::Failed {
                reason: Reason::StageFailed,
                message,
            },
            // Within the bound, Ready stays as it is: a short wobble is no news.
            (None, Some(ready))
                if doubtful && ready.status == "False" && ready.reason == Reason::StageFailed.as_str() =>
            {
                Situation::Failed {
                    reason: Reason::StageFailed,
                    message: without_runbook(&ready.message).to_owned(),
                }
            }
            _ => Situation::Succeeded {
                message: self.deployed(),
            },
        }
    }

    /// A stage that cannot be looked after just now: the release stays, and Ready says what is wrong.
    pub(super) fn failed_care(&mut self, at: usize, failure: Failure) -> Result<End, Stop> {
        let before = self.status.stages[at].clone();
        let end = self.failed(at, failure)?;
        let message = self.status.stages[at].message.take();
        self.status.stages[at] = before;
        self.status.stages[at].message = message;
        Ok(End {
            wake: Wake::In(self.cadence().retry.min(crate::rules::backoff::RBAC_LADDER.last)),
            ..end
        })
    }

    /// Looks at a stage's objects; a full pass also compares them with what was sent, and corrects.
    pub(super) async fn tend(
        &mut self,
        at: usize,
        stage: &Stage,
        tenant: &Tenant,
        full: bool,
    ) -> Result<Look, Failure> {
        if !self.knows_inputs(at) {
            self.recall(at, stage);
        }
        let mode = if full { Mode::Full } else { self.watched_mode() };
        let mut memory = self.memory.stages.remove(&stage.name).unwrap_or_default();
        let mut needed = std::mem::take(&mut self.needed);
        let mut result = self
            .tend_objects(at, stage, tenant, mode, &mut memory, &mut needed)
            .await;
        if let Ok(look) = &mut result
            && let Err(failure) = self
                .tend_named(stage, tenant, mode, &mut memory, &mut needed, look)
                .await
        {
            result = Err(failure);
        }
        self.needed = needed;
        self.memory.stages.insert(stage.name.clone(), memory);
        self.memory.looked_at = Some(Instant::now());
        if let Ok(look) = &result {
            self.tell_unwatched(stage, &look.unwatched);
        }
        result
    }

    async fn tend_objects(
        &mut self,
        at: usize,
        stage: &Stage,
        tenant: &Tenant,
        mode: Mode,
        memory: &mut StageMemory,
        needed: &mut std::collections::HashSet<crate::cluster::watch::WatchKey>,
    ) -> Result<Look, Failure> {
        let judge = Judge::of(stage, &self.owner.namespace)?;
        let observer = self.observer(tenant, &judge, mode);
        let mut look = Look::default();
        if mode != Mode::Full {
            return observer.look(&mut memory.objects, needed, None).await;
        }
        if observer.stale(&memory.objects, needed, &mut look).await?.is_empty() {
            let look = observer.look(&mut memory.objects, needed, None).await?;
            self.note_clean(memory, &look);
            return Ok(look);
        }
        let rendered = match self.render(at, stage, tenant).await {
            Err(failure) if self.hold.is_some() && failure.operation == render::FETCH => {
                self.drift_waits(stage, &failure);
                return self
                    .observer(tenant, &judge, self.watched_mode())
                    .look(&mut memory.objects, needed, None)
                    .await;
            }
            rendered => rendered?,
        };
        if self.is_unrecorded(stage, &rendered.ids) {
            self.status.stages[at].inputs_digest = None;
            memory.inputs.clear();
            let observer = self.observer(tenant, &judge, self.watched_mode());
            return observer.look(&mut memory.objects, needed, None).await;
        }
        self.leave_alone(stage, tenant, &rendered.objects, memory).await?;
        let sent = self.as_sent(stage, rendered.objects);
        Self::forget_unrendered(memory, &sent);
        let ignore = super::treatment::ignore(&self.set.spec, stage)?;
        let observer = verify::Observer {
            ignore: &ignore,
            ..observer
        };
        let look = observer.look(&mut memory.objects, needed, Some(&sent)).await?;
        self.note_clean(memory, &look);
        if look.drifted.is_empty() {
            return Ok(look);
        }
        self.correct(stage, tenant, &judge, &look, sent, memory).await?;
        let observer = self.observer(tenant, &judge, Mode::JustApplied);
        observer.look(&mut memory.objects, needed, None).await
    }

    /// What a stage renders, as it is sent.
    fn as_sent(&self, stage: &Stage, objects: Vec<Value>) -> HashMap<ObjectId, Value> {
        let part_of = applyset_id(&parent_name(self.ctx, self.owner, &stage.name), &self.owner.namespace);
        objects
            .into_iter()
            .filter_map(|mut object| {
                if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
                    labels.insert(applyset::PART_OF_LABEL.into(), Value::String(part_of.clone()));
                }
                Some((ObjectId::of(&object)?, object))
            })
            .collect()
    }

    /// After a restart nobody remembers which objects are left as they are; and one that asked for it by itself may not
    /// any more.
    async fn leave_alone(
        &self,
        stage: &Stage,
        tenant: &Tenant,
        objects: &[Value],
        memory: &mut StageMemory,
    ) -> Result<(), Failure> {
        let policy = super::treatment::policy(stage);
        for object in objects {
            let (Some(id), Ok(target)) = (ObjectId::of(object), Target::of(object)) else {
                continue;
            };
            match memory.objects.get(&id) {
                Some(known) if known.skipped && super::treatment::left(&policy, object) == Left::Never => {
                    let unseen = Known::unseen(target.api_version, known.changed_at);
                    memory.objects.insert(id, unseen);
                }
                Some(known)
                    if !known.skipped
                        && known.sent == 0
                        && self.is_left_alone(&policy, tenant, &target, object).await? =>
                {
                    memory.objects.insert(id, Known::skipped(&target, None, 0));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An object that was deleted to be made anew is not gone yet: everything is compared again before long.
    fn full_again(&mut self) -> Duration {
        let wait = POLL_LADDER.wait(self.memory.polls);
        self.memory.full_at = None;
        self.memory.full_due = Some(Instant::now() + wait);
        wait
    }

    /// What left the stages is not remembered for its drift.
    fn forget_corrections(&mut self) {
        let stages = &self.memory.stages;
        let left = |id: &ObjectId| !stages.values().any(|m| m.objects.contains_key(id));
        let gone: Vec<ObjectId> = self.memory.corrected_at.keys().filter(|id| left(id)).cloned().collect();
        for id in gone {
            self.memory.corrected_at.remove(&id);
            self.memory.loops.forget(&id);
        }
    }

    /// A clean comparison ends a drift that kept returning.
    fn note_clean(&mut self, memory: &StageMemory, look: &Look) {
        let clean = memory.objects.keys().filter(|id| !look.drifted.contains_key(id));
        for id in clean {
            // Right after a correction that says little.
            let corrected = self.memory.corrected_at.get(id);
            if corrected.is_some_and(|at| at.elapsed() >= ASKED_FOR) {
                self.memory.corrected_at.remove(id);
                self.memory.loops.forget(id);
            }
        }
    }

    /// Puts drifted objects back; one that somebody else keeps changing is put back less and less often.
    async fn correct(
        &mut self,
        stage: &Stage,
        tenant: &Tenant,
        judge: &Judge,
        look: &Look,
        mut sent: HashMap<ObjectId, Value>,
        memory: &mut StageMemory,
    ) -> Result<(), Failure> {
        let interval = self.cadence().interval;
        let due = |id: &ObjectId| {
            let since = self.memory.corrected_at.get(id).map(Instant::elapsed);
            since.is_none_or(|since| since >= self.memory.loops.wait(id, interval))
        };
        let objects: Vec<Value> = look
            .drifted
            .keys()
            .filter(|id| due(id))
            .filter_map(|id| sent.remove(id))
            .collect();
        for id in objects.iter().filter_map(ObjectId::of) {
            if let Some(known) = memory.objects.get_mut(&id) {
                known.sent = 0;
            }
        }
        let report = self
            .applier(stage, tenant, judge)?
            .run(objects, &mut memory.objects)
            .await?;
        self.comes_back |= report.waiting.is_some();
        let put_back: Vec<&ObjectId> = report
            .changed
            .iter()
            .filter(|(_, c)| matches!(c, Change::Created | Change::Configured))
            .map(|(id, _)| id)
            .collect();
        if put_back.is_empty() {
            return Ok(());
        }
        for id in &put_back {
            self.memory.corrected_at.insert((*id).clone(), Instant::now());
            let changes = look.drifted.get(*id).map(Vec::as_slice).unwrap_or_default();
            for found in self.memory.loops.observe(id, changes) {
                self.tell(Reason::DriftLoop, true, &found.to_string());
            }
        }
        self.tell_corrected(stage, &put_back);
        Ok(())
    }

    fn tell_corrected(&self, stage: &Stage, put_back: &[&ObjectId]) {
        let (namespace, name) = (&self.owner.namespace, &self.owner.name);
        let metrics = &self.ctx.metrics;
        metrics.corrected(namespace, name, &stage.name, put_back.len() as u64);
        let names: Vec<String> = put_back.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        tracing::warn!(stage = stage.name, objects = names, "drift corrected");
        let note = format!("stage \"{}\": put back {names}", stage.name);
        self.tell(Reason::DriftCorrected, true, &note);
    }

    /// After a restart: what is recorded is what was deployed; it is looked at anew.
    fn recall(&mut self, at: usize, stage: &Stage) {
        let changed_at = Timestamp::UNIX_EPOCH;
        let objects = record::of_stage(self.ctx, self.owner, &stage.name)
            .entries()
            .into_iter()
            .map(|(id, version)| {
                let entry = Entry { id, version };
                let known = Known::unseen(entry.api_version(), changed_at);
                (entry.id, known)
            })
            .collect();
        let inputs = self.status.stages[at].inputs_digest.clone().unwrap_or_default();
        self.memory
            .stages
            .insert(stage.name.clone(), StageMemory::of(inputs, objects));
    }

    /// What was recalled from a record may hold more than is rendered; only a build can tell.
    fn forget_unrendered(memory: &mut StageMemory, sent: &HashMap<ObjectId, Value>) {
        memory.objects.retain(|id, _| sent.contains_key(id));
    }

    /// What a stage awaits that is not ready.
    pub(super) fn blockers(&self, stage: &Stage, look: &Look) -> Option<String> {
        let judge = Judge::of(stage, &self.owner.namespace).ok();
        let awaits = |id: &ObjectId| judge.as_ref().is_none_or(|j| j.awaits(id));
        let awaited = look.awaited.iter().filter(|one| awaits(&one.id));
        match readiness::overall(awaited.cloned()) {
            Overall::Failed(some) | Overall::Waiting(some) => Some(name_blockers(&some, 5)),
            Overall::Ready => None,
        }
    }

    /// Keeps the stage's phase true to what was seen; Ready only follows once the bound has run out.
    fn health(&mut self, at: usize, stage: &Stage, look: &Look) -> Health {
        let Some(blocking) = self.blockers(stage, look) else {
            if self.status.stages[at].phase != Some(StagePhase::Ready) {
                self.enter(at, StagePhase::Ready, Step::Done);
            }
            if self.hold.is_none() {
                self.status.stages[at].message = None;
            }
            self.status.stages[at].waiting_for = None;
            return Health::Good;
        };
        if self.status.stages[at].phase == Some(StagePhase::Ready) {
            self.enter(at, StagePhase::Verifying, Step::Done);
        }
        self.status.stages[at].waiting_for = Some(blocking.clone());
        let (bound, origin) = self.bound(stage);
        let since = self.status.stages[at]
            .step_started_at
            .as_ref()
            .map_or(Duration::ZERO, |t| elapsed(t, Timestamp::now()));
        match bound.checked_sub(since).filter(|rest| !rest.is_zero()) {
            Some(rest) if self.status.stages[at].phase != Some(StagePhase::Failed) => Health::Doubtful(rest),
            _ => {
                let entry = &mut self.status.stages[at];
                entry.phase = Some(StagePhase::Failed);
                entry.message = Some(format!("verify: the release is not ready any more: {blocking}"));
                Health::Bad(format!(
                    "stage \"{}\" verify: the release has not been ready for {bound:?} ({origin}): {blocking}",
                    stage.name
                ))
            }
        }
    }
}
