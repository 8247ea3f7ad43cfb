//! Where an unfinished run stands, and when a failed one gets its next attempt (decisions 3).

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::outcome::{End, Missing, Remedy, Stop, Wake};
use super::pass::{Pass, elapsed};
use super::pin;
use crate::api::{StagePhase, StageStatus, Step};
use crate::cluster::{Error, Target, Tenant};
use crate::rules::backoff::{RBAC_LADDER, spread};
use crate::rules::condition::Situation;
use crate::rules::next::{Held, Next, RunFacts, Standing, next};
use crate::source::Artifact;

/// Nothing awaited has changed for so long: the stage counts as stuck (decisions 3.4).
const STUCK_AFTER: Duration = Duration::from_secs(30);

impl Pass<'_> {
    pub(super) async fn next(&mut self, offered: &[Artifact]) -> Result<Next, Stop> {
        let Some(run) = self.status.run.clone() else {
            return Ok(next(None, self.settled(), self.requested));
        };
        let pinned = self.pinned();
        let pins_current = pinned
            .as_ref()
            .is_some_and(|p| p.len() == offered.len() && p.iter().zip(offered).all(|(a, b)| pin::same(a, b)));
        // A run that does not pin every stage of the spec cannot go on.
        let generation_current = Some(run.generation) == self.set.metadata.generation && pinned.is_some();
        let outdated = !pins_current || !generation_current;
        self.outdated = outdated;
        let standing = self.standing(outdated).await?;
        self.resting = match standing {
            Standing::Failed { .. } | Standing::Held => true,
            Standing::Verifying { held, .. } => held != Held::No,
            Standing::Stumbling | Standing::Between => false,
        };
        let facts = RunFacts {
            attempt: run.attempt,
            generation_current,
            pins_current,
            standing,
        };
        Ok(next(Some(facts), false, self.requested))
    }

    pub(super) async fn standing(&mut self, outdated: bool) -> Result<Standing, Stop> {
        let now = Timestamp::now();
        if let Some(at) = self.position(|s| s.phase == Some(StagePhase::Failed)) {
            let due = self.memory.owed
                || self.retry_due(at, now)
                || self.due_after_restart(at)
                || self.other_inputs(at)
                || self.appeared(at).await
                || self.recovered(at).await?;
            return Ok(Standing::Failed { due });
        }
        match self.position(|s| s.step == Some(Step::Verify) && s.phase == Some(StagePhase::Verifying)) {
            Some(at) => {
                let known = self.knows_inputs(at) && self.pinned().is_some();
                let stuck = outdated
                    && (self.is_held(at, now) || self.unchanged_for_long(at, now) || self.in_error_wait(at).await?);
                let held = self.held_verify(at, now).await?;
                Ok(Standing::Verifying { stuck, known, held })
            }
            None if self.position(|s| s.phase != Some(StagePhase::Ready)).is_none() => Ok(Standing::Held),
            None if let Some(at) =
                self.position(|s| s.phase == Some(StagePhase::Applying) && s.waiting_for.is_some()) =>
            {
                Ok(Standing::Verifying {
                    stuck: outdated && self.unchanged_for_long(at, now),
                    known: false,
                    held: Held::No,
                })
            }
            None if self.memory.undecided > 0 => Ok(Standing::Stumbling),
            None => Ok(Standing::Between),
        }
    }

    pub(super) fn position(&self, of: impl Fn(&StageStatus) -> bool) -> Option<usize> {
        self.status.stages.iter().position(of)
    }

    /// Whether a failed stage would be built from something else now, such as a variable that was corrected.
    fn other_inputs(&self, at: usize) -> bool {
        let failed_with = self.memory.failed_inputs.get(&self.status.stages[at].name);
        failed_with.is_some_and(|inputs| *inputs != self.inputs(at))
    }

    fn retry_due(&self, at: usize, now: Timestamp) -> bool {
        let since = self.status.stages[at]
            .step_started_at
            .as_ref()
            .map_or(Duration::ZERO, |t| elapsed(t, now));
        // A timer that fires a moment early must not cost a whole interval.
        since + Duration::from_millis(50) >= self.retry_wait(at)
    }

    /// Why a stage failed to apply is not remembered over a restart, and with it what would be asked for: it is tried
    /// once more soon, at a time of its own.
    fn due_after_restart(&mut self, at: usize) -> bool {
        let entry = &self.status.stages[at];
        if entry.step == Some(Step::Verify) || self.memory.remedies.contains_key(&entry.name) {
            return false;
        }
        let within = RBAC_LADDER.last.min(self.cadence().retry);
        let due = *self
            .memory
            .attempt_due
            .get_or_insert_with(|| Instant::now() + spread(within, rand::random::<f64>()));
        due <= Instant::now()
    }

    /// How long a failed stage waits for its next attempt.
    pub(super) fn retry_wait(&self, at: usize) -> Duration {
        let cadence = self.cadence();
        let attempt = self.status.run.as_ref().map_or(1, |r| r.attempt);
        let rung = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0);
        if self.memory.missing.contains_key(&self.status.stages[at].name) {
            return cadence.retry;
        }
        match self.memory.remedies.get(&self.status.stages[at].name) {
            Some(Remedy::Stumble | Remedy::Soon | Remedy::Right) => RBAC_LADDER.wait(rung).min(cadence.retry),
            Some(Remedy::Change) => cadence.interval,
            Some(Remedy::Retry) | None => cadence.retry,
        }
    }

    /// Whether the right or the kind that a failed stage lacks is there now: asked after 2 s, then less and less often.
    async fn appeared(&mut self, at: usize) -> bool {
        let stage = self.set.spec.stages[at].clone();
        let Some((missing, asked, last)) = self.memory.missing.get(&stage.name).cloned() else {
            return false;
        };
        if last.elapsed() + Duration::from_millis(50) < RBAC_LADDER.wait(asked) {
            return false;
        }
        self.memory.missing.insert(
            stage.name.clone(),
            (missing.clone(), asked.saturating_add(1), Instant::now()),
        );
        let tenant = self.tenant(&stage);
        match missing {
            Missing::Access { verb, target } => may(&tenant, verb, &target).await.unwrap_or(false),
            Missing::Kind { api_version, kind } => tenant.served(&api_version, &kind).await.is_ok(),
        }
    }

    /// Notes what a stage failed for want of. It goes on being asked for less and less often where it is the same as
    /// before. Whether it is a right.
    pub(super) fn lacks(&mut self, stage: &str, missing: Option<Box<Missing>>) -> bool {
        let Some(missing) = missing else {
            self.memory.missing.remove(stage);
            return false;
        };
        let before = self.memory.missing.get(stage).filter(|(m, ..)| *m == *missing);
        let asked = before.map_or(0, |(_, asked, _)| *asked);
        let is_right = matches!(*missing, Missing::Access { .. });
        self.memory
            .missing
            .insert(stage.to_owned(), (*missing, asked, Instant::now()));
        is_right
    }

    /// A denial of something the account has the right to comes from somewhere else: a quota, a policy, a webhook, a
    /// namespace that goes. No grant will end it, so it waits for the retry interval; but the first time it is tried
    /// once more soon, since rights take a moment to reach every API server.
    pub(super) async fn explain_denial(&mut self, end: End) -> End {
        let Some(stage) = self.denied.and_then(|at| self.set.spec.stages.get(at)).cloned() else {
            return end;
        };
        let Some((missing @ Missing::Access { verb, target }, ..)) = self.memory.missing.get(&stage.name) else {
            return end;
        };
        if !may(&self.tenant(&stage), verb, target).await.unwrap_or(false) {
            self.memory.unexplained.remove(&stage.name);
            return end;
        }
        let missing = missing.clone();
        self.memory.missing.remove(&stage.name);
        if self.memory.unexplained.get(&stage.name) == Some(&missing) {
            self.memory.remedies.insert(stage.name, Remedy::Retry);
            return End {
                wake: Wake::In(self.cadence().retry),
                ..end
            };
        }
        self.memory.unexplained.insert(stage.name.clone(), missing);
        self.memory.remedies.insert(stage.name, Remedy::Soon);
        end
    }

    /// When a failed stage is to be looked at again.
    pub(super) fn again_in(&self, at: usize, waited: Duration) -> Duration {
        let retry = self
            .retry_wait(at)
            .saturating_sub(waited)
            .min(self.memory.attempt_due.map_or(Duration::MAX, rest_until))
            .max(Duration::from_millis(100));
        match self.memory.missing.get(&self.status.stages[at].name) {
            Some((_, asked, last)) => retry.min(RBAC_LADDER.wait(*asked).saturating_sub(last.elapsed())),
            None => retry,
        }
    }

    /// What is newer and known does not wait for the next attempt of a run that fails or is held in front of it.
    pub(super) fn give_way(&self, end: End) -> End {
        match end.situation {
            Situation::Unfinished { .. } => end,
            // It is the windows that what is newer waits for.
            _ if self.outdated && self.hold.is_none() => End {
                wake: Wake::In(Duration::ZERO),
                ..end
            },
            _ => end,
        }
    }

    fn unchanged_for_long(&self, at: usize, now: Timestamp) -> bool {
        let began = self.status.stages[at].step_started_at.as_ref().map(|t| t.0);
        let last = self.memory.changed_at.into_iter().chain(began).max();
        last.is_some_and(|last| {
            now.duration_since(last) >= jiff::SignedDuration::try_from(STUCK_AFTER).unwrap_or_default()
        })
    }

    /// When the awaited objects will count as stuck, if nothing changes.
    pub(super) fn stuck_in(&self, now: Timestamp, began: Timestamp) -> Duration {
        let last = self.memory.changed_at.map_or(began, |c| c.max(began));
        let quiet = Duration::try_from(now.duration_since(last)).unwrap_or_default();
        STUCK_AFTER.saturating_sub(quiet)
    }
}

/// Whether a request would be allowed. What creates an object is an apply, which is a patch to the authorizer too.
async fn may(tenant: &Tenant, verb: &str, target: &Target) -> Result<bool, Error> {
    let also_patch = verb == "create";
    Ok(tenant.may(verb, target).await? && (!also_patch || tenant.may("patch", target).await?))
}

/// How long it is until then.
pub(super) fn rest_until(due: Instant) -> Duration {
    due.saturating_duration_since(Instant::now())
}
