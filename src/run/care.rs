//! Looking after the stages that a run is through with while it waits, rests or is held at another: every pass puts
//! back what others changed (run 20), whatever becomes of the rest.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::attempt::rest_until;
use super::context::Turn;
use super::outcome::{End, Failure};
use super::pass::{Pass, earlier, jittered};
use super::treatment::{self, Left};
use super::verify::Look;
use crate::api::Stage;
use crate::cluster::{Target, Tenant};
use crate::rules::backoff::{POLL_LADDER, RBAC_LADDER, spread};
use crate::rules::conflict::Policy;
use crate::rules::inventory::OwnerRef;

/// The shortest wait for a stage's next turn.
const SHORTEST: Duration = Duration::from_secs(1);

impl Pass<'_> {
    /// Looks after every stage that is through, and keeps the watches of the others.
    pub(super) async fn care_for_all(&mut self) {
        for (at, stage) in self.set.spec.stages.clone().iter().enumerate() {
            if self.is_done(at, &self.inputs(at)) {
                self.care(at, stage).await;
            } else {
                self.keep_watching(stage);
            }
        }
    }

    /// The same for those behind stage `at`, which the run does not come to in this pass.
    pub(super) async fn care_for_later(&mut self, at: usize) {
        for (later, stage) in self.set.spec.stages.clone().iter().enumerate().skip(at + 1) {
            if self.is_done(later, &self.inputs(later)) {
                self.care(later, stage).await;
            }
        }
    }

    /// Looks after a stage that is through. It is compared with what was sent when that is due or asked for; where the
    /// run rests it is looked at each time, and otherwise only watched. Nothing that goes wrong here changes how the
    /// run stands: its stage tells.
    pub(super) async fn care(&mut self, at: usize, stage: &Stage) {
        let steady = self.cadence().steady;
        let turns = &mut self.memory.turns;
        // After a restart.
        let turn = *turns.entry(stage.name.clone()).or_insert_with(|| Turn {
            due: Instant::now() + spread(steady, rand::random::<f64>()),
            failed: false,
        });
        let full = self.is_asked_for() || turn.due <= Instant::now();
        if !full && (turn.failed || !self.resting) {
            self.keep_watching(stage);
            return;
        }
        let next = match self.care_for(at, stage, full).await {
            Ok(look) => {
                let blocking = self.blockers(stage, &look);
                let entry = &mut self.status.stages[at];
                entry.message = blocking.as_ref().map(|b| format!("is not ready any more: {b}"));
                entry.waiting_for = blocking;
                let due = match full {
                    // What was deleted to be made anew is not gone yet.
                    _ if std::mem::take(&mut self.comes_back) => Instant::now() + POLL_LADDER.first,
                    true => Instant::now() + jittered(steady),
                    false => turn.due,
                };
                Turn { due, failed: false }
            }
            Err(failure) => {
                let told = self.mask(&failure.told());
                tracing::warn!(
                    stage = stage.name,
                    error = told,
                    "a stage that is through cannot be looked after"
                );
                self.status.stages[at].message = Some(told);
                self.keep_watching(stage);
                Turn {
                    due: Instant::now() + self.cadence().retry.min(RBAC_LADDER.last),
                    failed: true,
                }
            }
        };
        self.memory.turns.insert(stage.name.clone(), next);
    }

    async fn care_for(&mut self, at: usize, stage: &Stage, full: bool) -> Result<Look, Failure> {
        if !self.knows_inputs(at) {
            // Its record may hold what left the stage and is still to be pruned.
            self.relearn(at, stage).await?;
        }
        let tenant = self.tenant(stage);
        self.tend(at, stage, &tenant, full).await
    }

    /// Ends a step of an unfinished run in time for the next turn of the stages that are through.
    pub(super) fn with_care(&self, end: End) -> End {
        if self.status.run.is_none() {
            return end;
        }
        let through = (0..self.status.stages.len()).filter(|at| self.is_done(*at, &self.inputs(*at)));
        let turns = through.filter_map(|at| self.memory.turns.get(&self.status.stages[at].name));
        match turns.map(|turn| turn.due).min() {
            Some(due) => End {
                wake: earlier(end.wake, rest_until(due).max(SHORTEST)),
                ..end
            },
            None => end,
        }
    }

    /// Begins the interval of a stage whose objects were just applied.
    pub(super) fn cared_for(&mut self, stage: &Stage) {
        let due = Instant::now() + jittered(self.cadence().steady);
        self.memory
            .turns
            .insert(stage.name.clone(), Turn { due, failed: false });
    }

    /// Whether an object is left as it is, and so not waited for, where that is not remembered. One that the run under
    /// way has made is not.
    pub(super) async fn is_left_alone(
        &self,
        policy: &Policy,
        tenant: &Tenant,
        target: &Target,
        object: &Value,
    ) -> Result<bool, Failure> {
        match treatment::left(policy, object) {
            Left::Never => Ok(false),
            Left::Always => Ok(true),
            Left::IfFound => {
                let live = tenant.get(target).await;
                let live = live.map_err(|e| Failure::of_access("apply", &e, "get", target))?;
                Ok(live.is_some_and(|live| !self.is_of_this_run(&live)))
            }
        }
    }

    fn is_of_this_run(&self, live: &Value) -> bool {
        let me = OwnerRef {
            name: self.owner.name.clone(),
            namespace: self.owner.namespace.clone(),
        };
        let began = self.status.run.as_ref().map(|run| run.started_at.0);
        treatment::is_made_since(live, &me, began)
    }
}
