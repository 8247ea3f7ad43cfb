//! Waiting for a stage: what is looked at, how long, and what a failed run rests on (run 18).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::context::{Known, StageMemory};
use super::judge::Judge;
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, earlier, elapsed};
use super::verify::{Mode, OPERATION as VERIFY, Observer, Unwatched, target_of};
use crate::api::reason::Class;
use crate::api::{Reason, Stage, StagePhase, Step, TimeoutPolicy};
use crate::cluster::Tenant;
use crate::cluster::watch::WatchKey;
use crate::rules::condition::{MAX_MESSAGE, READY, RECONCILING, STALLED, Situation, cut};
use crate::rules::inventory::ObjectId;
use crate::rules::next::Held;
use crate::rules::readiness::{Awaited, Overall, Readiness};

/// Verify bound where no timeout is set anywhere (run 18.2).
const DEFAULT_BOUND: Duration = Duration::from_secs(15 * 60);

impl Pass<'_> {
    pub(super) fn watched_mode(&self) -> Mode {
        match self.since_look() {
            Some(since) if since < Duration::from_secs(25) => Mode::Watched,
            _ => Mode::Net,
        }
    }

    /// How a verify under way looks: all at once where its bound is over, so that what is told then is what there is.
    pub(super) fn verify_mode(&self, at: usize, stage: &Stage) -> Mode {
        let began = self.status.stages[at].step_started_at.as_ref();
        let over = began.is_some_and(|began| elapsed(began, Timestamp::now()) >= self.bound(stage).0);
        if over && !self.holds_on(stage) {
            Mode::Net
        } else {
            self.watched_mode()
        }
    }

    /// A look at the objects of a stage.
    pub(super) fn observer<'b>(&'b self, tenant: &'b Tenant, judge: &'b Judge, mode: Mode) -> Observer<'b> {
        Observer {
            ctx: self.ctx,
            owner: self.owner,
            tenant,
            judge,
            polls: self.memory.polls,
            mode,
            explained: AtomicUsize::new(0),
            ignore: &[],
        }
    }

    /// Time since the last complete look of an earlier step: each stage of this one is looked at alike.
    pub(super) fn since_look(&self) -> Option<Duration> {
        self.looked_at.map(|at| at.elapsed())
    }

    /// Looks at the objects the stage awaits.
    pub(super) async fn look(
        &mut self,
        stage: &Stage,
        tenant: &Tenant,
        mode: Mode,
    ) -> Result<super::verify::Look, Failure> {
        let checks = stage.ready_checks.as_ref();
        if checks.is_some_and(|c| c.disable_wait) {
            return Ok(super::verify::Look::default());
        }
        let judge = Judge::of(stage, &self.owner.namespace)?;
        let mut memory = self.memory.stages.remove(&stage.name).unwrap_or_default();
        let mut needed = std::mem::take(&mut self.needed);
        let result = match checks.filter(|c| !c.checks.is_empty()) {
            None => {
                self.observer(tenant, &judge, mode)
                    .look(&mut memory.objects, &mut needed, None)
                    .await
            }
            Some(checks) => {
                let mut awaited = match self.named(&checks.checks, &memory, tenant).await {
                    Ok(awaited) => awaited,
                    Err(failure) => {
                        self.needed = needed;
                        self.memory.stages.insert(stage.name.clone(), memory);
                        return Err(failure);
                    }
                };
                let covered = memory.objects.iter().filter(|(id, _)| judge.covers(id));
                awaited.extend(covered.map(|(id, known)| (id.clone(), known.clone())));
                // Objects of others were not learned by applying them.
                let mode = if mode == Mode::JustApplied { Mode::Net } else { mode };
                let look = self
                    .observer(tenant, &judge, mode)
                    .look(&mut awaited, &mut needed, None)
                    .await;
                let (named, own) = awaited.into_iter().partition(|(_, known)| known.alone);
                memory.named = named;
                memory.objects.extend::<BTreeMap<_, _>>(own);
                look
            }
        };
        if let Ok(look) = &result {
            // Noted by whoever looks first: the next look finds nothing new.
            if look.changed {
                self.memory.changed_at = Some(Timestamp::now());
            }
            self.tell_unwatched(stage, &look.unwatched);
        }
        self.needed = needed;
        self.memory.stages.insert(stage.name.clone(), memory);
        self.memory.looked_at = Some(Instant::now());
        result
    }

    /// Looks at what `readyChecks.checks` names beside the stage's own objects, and adds it to a look at those: a release is
    /// what it waited for, for as long as it is in place.
    pub(super) async fn tend_named(
        &self,
        stage: &Stage,
        tenant: &Tenant,
        mode: Mode,
        memory: &mut StageMemory,
        needed: &mut HashSet<WatchKey>,
        look: &mut super::verify::Look,
    ) -> Result<(), Failure> {
        let checks = stage.ready_checks.as_ref();
        let Some(checks) = checks.filter(|c| !c.disable_wait && !c.checks.is_empty()) else {
            return Ok(());
        };
        let judge = Judge::of(stage, &self.owner.namespace)?;
        let mut named = self.named(&checks.checks, memory, tenant).await?;
        named.retain(|_, known| known.alone);
        let found = self
            .observer(tenant, &judge, mode)
            .look(&mut named, needed, None)
            .await?;
        for known in named.values_mut() {
            // There is nothing to compare it with.
            known.compared = known.version;
        }
        memory.named = named;
        look.awaited.extend(found.awaited);
        look.unwatched.extend(found.unwatched);
        look.again = look.again.min(found.again);
        Ok(())
    }

    /// The objects that `readyChecks.checks` names.
    ///
    /// # Errors
    /// One that is nobody's business who names no account: its state would be told.
    async fn named(
        &self,
        checks: &[crate::api::ObjectRef],
        memory: &StageMemory,
        tenant: &Tenant,
    ) -> Result<BTreeMap<ObjectId, Known>, Failure> {
        let mut out = BTreeMap::new();
        for check in checks {
            let api_version = crate::api::common::non_empty(&check.api_version).unwrap_or("v1");
            let namespaced = tenant
                .served(api_version, &check.kind)
                .await
                .map_or(true, |s| s.namespaced);
            let namespace = crate::api::common::non_empty(&check.namespace).unwrap_or(&self.owner.namespace);
            let group = api_version.split_once('/').map_or("", |(g, _)| g);
            let id = ObjectId::new(if namespaced { namespace } else { "" }, &check.name, group, &check.kind);
            let own = memory.objects.get(&id).filter(|known| !known.skipped);
            if own.is_none() {
                let target = target_of(&id, api_version);
                let lent = tenant.lend_for_check(&target).await;
                lent.map_err(|e| Failure::of_access(VERIFY, &e, "get", &target))?;
            }
            let known = own.or(memory.named.get(&id)).cloned().unwrap_or_else(|| Known {
                alone: true,
                ..Known::unseen(api_version.to_owned(), Timestamp::now())
            });
            out.insert(id, known);
        }
        Ok(out)
    }

    /// Whether what a failed verify waited for has turned ready by itself.
    pub(super) async fn recovered(&mut self, at: usize) -> Result<bool, Stop> {
        if self.status.stages[at].step != Some(Step::Verify) {
            return Ok(false);
        }
        let stage = self.set.spec.stages[at].clone();
        if !self.knows_inputs(at) && self.relearn(at, &stage).await.is_err() {
            return Ok(false);
        }
        let tenant = self.tenant(&stage);
        let mode = self.watched_mode();
        Ok(matches!(
            self.look(&stage, &tenant, mode).await.map(|l| l.overall()),
            Ok(Overall::Ready)
        ))
    }

    /// Whether a pod behind something awaited is in an error wait.
    pub(super) async fn in_error_wait(&mut self, at: usize) -> Result<bool, Stop> {
        if !self.knows_inputs(at) {
            return Ok(false);
        }
        let stage = self.set.spec.stages[at].clone();
        let tenant = self.tenant(&stage);
        let look = self.look(&stage, &tenant, Mode::Watched).await;
        let (Ok(judge), Some(memory)) = (
            Judge::of(&stage, &self.owner.namespace),
            self.memory.stages.get(&stage.name),
        ) else {
            return Ok(false);
        };
        let known: BTreeMap<ObjectId, Known> = memory
            .objects
            .iter()
            .chain(&memory.named)
            .map(|(id, known)| (id.clone(), known.clone()))
            .collect();
        // Where something cannot be read, what is known of the others still counts.
        let awaited = look.map(|look| look.awaited).unwrap_or_else(|_| {
            let own = memory
                .objects
                .iter()
                .filter(|(id, known)| !known.skipped && judge.awaits(id));
            let remembered = |(id, known): (&ObjectId, &Known)| Awaited {
                id: id.clone(),
                readiness: known.readiness.clone(),
            };
            own.map(remembered).collect()
        });
        Ok(self
            .observer(&tenant, &judge, Mode::Watched)
            .error_wait(&awaited, &known)
            .await
            .is_some())
    }

    /// Says once in an event why changes are noticed by polling, and what would help.
    pub(super) fn tell_unwatched(&mut self, stage: &Stage, unwatched: &BTreeMap<String, Unwatched>) {
        let tenant = self.tenant(stage);
        for (watch, one) in unwatched {
            let why = one.why();
            if self.memory.told_denied.insert(watch.clone()) {
                let note = one.told(&stage.name, tenant.identity(), self.set.spec.kube_config.is_some());
                tracing::warn!(stage = stage.name, why, "objects are polled: they cannot be watched");
                self.tell(Reason::WatchForbidden, true, &note);
            }
        }
    }

    /// A failed run that waits for its next attempt: nothing is done, and the conditions say why.
    pub(super) async fn rest(&mut self) -> Result<End, Stop> {
        let Some(at) = self
            .status
            .stages
            .iter()
            .position(|s| s.phase == Some(StagePhase::Failed))
        else {
            return self.stages().await;
        };
        self.care_for_all().await;
        let entry = &self.status.stages[at];
        let waited = entry
            .step_started_at
            .as_ref()
            .map_or(Duration::ZERO, |t| elapsed(t, Timestamp::now()));
        let wake = Wake::In(self.again_in(at, waited));
        Ok(End {
            situation: self.failure_of(at),
            wake,
        })
    }

    /// What a stage failed with, by its own entry: the conditions may still speak of a trouble that came later and is over.
    fn failure_of(&self, at: usize) -> Situation {
        let entry = &self.status.stages[at];
        let told = entry.message.as_deref().unwrap_or_default();
        // The second where no operation is named.
        let forms = [" ", ": "].map(|joint| cut(format!("stage \"{}\"{joint}{told}", entry.name), MAX_MESSAGE));
        let stored = self.stored_failure().filter(|(_, message, _)| forms.contains(message));
        let reason = self.memory.reasons.get(&entry.name).copied();
        let reason = reason.or(stored.as_ref().map(|(reason, ..)| *reason));
        let terminal = match self.memory.remedies.get(&entry.name) {
            Some(remedy) => *remedy == Remedy::Change,
            None => stored.as_ref().is_some_and(|(.., terminal)| *terminal),
        };
        let [usual, _] = forms;
        let message = stored.map_or(usual, |(_, message, _)| message);
        let reason = reason.unwrap_or(Reason::StageFailed);
        if terminal {
            Situation::Terminal { reason, message }
        } else {
            Situation::Failed { reason, message }
        }
    }

    /// What the conditions say of a failure: its reason, its text, and whether no retry can help.
    fn stored_failure(&self) -> Option<(Reason, String, bool)> {
        let conditions = &self.set.status.as_ref()?.conditions;
        let ready = conditions.iter().find(|c| c.type_ == READY)?;
        let reason = Reason::from_word(&ready.reason);
        let reason = reason.filter(|r| matches!(r.class(), Some(Class::Retrying | Class::Terminal)))?;
        let told = conditions
            .iter()
            .find(|c| matches!(c.type_.as_str(), RECONCILING | STALLED))?;
        let terminal = told.type_ == STALLED && told.status == "True";
        Some((reason, told.message.clone(), terminal))
    }

    /// The bound of the verify phase and the field it comes from.
    pub(super) fn bound(&self, stage: &Stage) -> (Duration, &'static str) {
        let read = |d: Option<&crate::api::Duration>| crate::rules::duration::set(d.map(|d| d.0.as_str()));
        let checks = stage.ready_checks.as_ref().and_then(|c| c.timeout.as_ref());
        read(checks)
            .map(|d| (d, "readyChecks.timeout"))
            .or_else(|| read(stage.timeout.as_ref()).map(|d| (d, "the stage's timeout")))
            .or_else(|| read(self.set.spec.timeout.as_ref()).map(|d| (d, "spec.timeout")))
            .unwrap_or((DEFAULT_BOUND, "the default"))
    }

    /// Whether a verify that runs out of time goes on waiting instead of failing (run 18.4).
    fn holds_on(&self, stage: &Stage) -> bool {
        let policy = stage.on_timeout.as_ref().or(self.set.spec.on_timeout.as_ref());
        policy == Some(&TimeoutPolicy::Hold)
    }

    /// Whether a verify has run out of time and only goes on because it is told to: then anything newer may replace it.
    pub(super) fn is_held(&self, at: usize, now: Timestamp) -> bool {
        let Some(stage) = self.set.spec.stages.get(at).filter(|s| self.holds_on(s)) else {
            return false;
        };
        let began = self.status.stages[at].step_started_at.as_ref();
        began.is_some_and(|began| elapsed(began, now) >= self.bound(stage).0)
    }

    /// The same, and whether an object of the stage that it awaits is gone.
    pub(super) async fn held_verify(&mut self, at: usize, now: Timestamp) -> Result<Held, Stop> {
        if !self.is_held(at, now) {
            return Ok(Held::No);
        }
        let stage = self.set.spec.stages[at].clone();
        let tenant = self.tenant(&stage);
        if !self.knows_inputs(at) || self.look(&stage, &tenant, Mode::Watched).await.is_err() {
            return Ok(Held::Yes);
        }
        let judge = Judge::of(&stage, &self.owner.namespace).ok();
        let awaited = |id: &ObjectId| judge.as_ref().is_none_or(|j| j.awaits(id));
        let lost = self.memory.stages.get(&stage.name).is_some_and(|memory| {
            let gone = |k: &Known| !k.skipped && matches!(k.readiness, Readiness::NotFound);
            memory.objects.iter().any(|(id, known)| gone(known) && awaited(id))
        });
        Ok(if lost { Held::Lost } else { Held::Yes })
    }

    /// Bounds a wait: past its bound the stage fails; before it, a timer ends it in time.
    /// One that `slow` says is only slow goes on where it is told to.
    pub(super) fn bounded(
        &mut self,
        at: usize,
        stage: &Stage,
        end: End,
        operation: &'static str,
        slow: bool,
    ) -> Result<End, Stop> {
        let now = Timestamp::now();
        let (bound, origin) = self.bound(stage);
        let began = self.status.stages[at].step_started_at.clone();
        let waited = began.as_ref().map_or(Duration::ZERO, |t| elapsed(t, now));
        let Some(rest) = bound.checked_sub(waited).filter(|r| !r.is_zero()) else {
            let waiting = self.status.stages[at].waiting_for.clone().unwrap_or_default();
            let message = format!("timeout waiting for: {waiting} (bound {bound:?}, from {origin})");
            if slow && self.holds_on(stage) {
                return Ok(End {
                    situation: Situation::Held {
                        reason: crate::api::Reason::StageProgressing,
                        message: format!("stage \"{}\" {VERIFY}: {message}", stage.name),
                        retrying: true,
                        deployed: false,
                    },
                    wake: end.wake,
                });
            }
            return self.failed(at, Failure::retried(operation, message));
        };
        let began = began.map_or(now, |t| t.0);
        let mut wake = earlier(end.wake, rest);
        if self.outdated {
            // Something newer waits: whether this stage is stuck has to be known soon.
            let stuck = self.stuck_in(now, began).max(Duration::from_millis(100));
            wake = earlier(wake, stuck.min(Duration::from_secs(2)));
        }
        Ok(End { wake, ..end })
    }
}
