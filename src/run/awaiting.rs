//! Waiting for a stage: what is looked at, how long, and what a failed run rests on (run 18).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::context::{Known, StageMemory};
use super::judge::Judge;
use super::notify::Notice;
use super::outcome::{End, Failure, Stop, Wake};
use super::pass::{Pass, earlier, elapsed};
use super::verify::{Mode, OPERATION as VERIFY, Observer, target_of};
use crate::api::reason::Class;
use crate::api::{Reason, Stage, StagePhase, Step, TimeoutPolicy};
use crate::cluster::Tenant;
use crate::rules::condition::Situation;
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

    /// A look at the objects of a stage.
    pub(super) fn observer<'b>(&'b self, tenant: &'b Tenant, judge: &'b Judge, mode: Mode) -> Observer<'b> {
        Observer {
            ctx: self.ctx,
            owner: self.owner,
            tenant,
            judge,
            polls: self.memory.polls,
            mode,
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
            self.tell_denied(stage, &look.denied);
        }
        self.needed = needed;
        self.memory.stages.insert(stage.name.clone(), memory);
        self.memory.looked_at = Some(Instant::now());
        result
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

    /// Says once in an event which right to watch is missing: until it is granted, changes are noticed by polling.
    pub(super) fn tell_denied(&mut self, stage: &Stage, denied: &BTreeMap<String, String>) {
        for (watch, why) in denied {
            if self.memory.told_denied.insert(watch.clone()) {
                let note = format!(
                    "stage \"{}\" polls what it cannot watch: {why}; grant list and watch to its ServiceAccount",
                    stage.name
                );
                tracing::warn!(stage = stage.name, why, "objects are polled: they cannot be watched");
                self.ctx
                    .notifier
                    .send(Notice::about(&self.set, Reason::WatchForbidden, true, note));
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
        let message = self
            .stored_message()
            .unwrap_or_else(|| format!("stage \"{}\" {}", entry.name, entry.message.clone().unwrap_or_default()));
        let terminal = self.set.status.as_ref().is_some_and(|s| {
            s.conditions
                .iter()
                .any(|c| c.type_ == crate::rules::condition::STALLED && c.status == "True")
        });
        let reason = self.stored_reason().unwrap_or(crate::api::Reason::StageFailed);
        let wake = Wake::In(self.again_in(at, waited));
        Ok(End {
            situation: if terminal {
                Situation::Terminal { reason, message }
            } else {
                Situation::Failed { reason, message }
            },
            wake,
        })
    }

    /// What Ready says of the failure already.
    fn stored_message(&self) -> Option<String> {
        self.stored_reason()?;
        let conditions = &self.set.status.as_ref()?.conditions;
        let told = conditions.iter().find(|c| {
            matches!(
                c.type_.as_str(),
                crate::rules::condition::RECONCILING | crate::rules::condition::STALLED
            )
        })?;
        Some(told.message.clone())
    }

    fn stored_reason(&self) -> Option<crate::api::Reason> {
        let status = self.set.status.as_ref()?;
        let ready = status
            .conditions
            .iter()
            .find(|c| c.type_ == crate::rules::condition::READY)?;
        crate::api::Reason::from_word(&ready.reason)
            .filter(|r| matches!(r.class(), Some(Class::Retrying | Class::Terminal)))
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
    pub(super) fn bounded(&mut self, at: usize, stage: &Stage, end: End, operation: &'static str) -> Result<End, Stop> {
        let now = Timestamp::now();
        let (bound, origin) = self.bound(stage);
        let began = self.status.stages[at].step_started_at.clone();
        let waited = began.as_ref().map_or(Duration::ZERO, |t| elapsed(t, now));
        let Some(rest) = bound.checked_sub(waited).filter(|r| !r.is_zero()) else {
            let waiting = self.status.stages[at].waiting_for.clone().unwrap_or_default();
            let message = format!("timeout waiting for: {waiting} (bound {bound:?}, from {origin})");
            if operation == VERIFY && self.holds_on(stage) {
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
