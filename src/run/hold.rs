//! An update that is held: what is told of it, and what becomes of the release meanwhile (run 10.5, 28 B9, decisions 6).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::gates::Windowed;
use super::outcome::{End, Failure, Stop, Wake};
use super::pass::{Pass, earlier};
use super::render;
use crate::api::{PendingUpdate, Reason, Stage, StagePhase, StageStatus};
use crate::rules::backoff::{RBAC_LADDER, clamp_hold};
use crate::rules::condition::{READY, Situation, without_runbook};
use crate::rules::next::Next;
use crate::rules::window::Scope;
use crate::source::Artifact;

/// A held update.
pub(super) struct Hold {
    message: String,
    wake: Wake,
    /// A change of the spec waits with it.
    change_waits: bool,
}

impl Pass<'_> {
    /// When to look again after something held.
    pub(super) fn opening(&self, at: Option<Timestamp>) -> Wake {
        let wait = at.map(|at| Duration::try_from(at.duration_since(Timestamp::now())));
        Wake::In(wait.map_or_else(
            || self.cadence().retry,
            |wait| clamp_hold(wait.unwrap_or(Duration::ZERO)),
        ))
    }

    /// Holds what is offered until a window opens, and tells that once.
    pub(super) fn hold_back(
        &mut self,
        offered: Vec<Artifact>,
        newer: bool,
        scope: Scope,
        opens: Option<Timestamp>,
    ) -> Windowed {
        let first = self.status.pending_update.is_none();
        self.status.pending_update = Some(pending(if newer { &offered } else { &[] }, opens));
        let until = opens.map_or_else(
            || "no window is in sight".to_owned(),
            |at| format!("the next window opens at {at:.0}"),
        );
        let what = if newer { "a new revision" } else { "every change" };
        let message = format!("{what} is held by the update windows: {until}");
        if first {
            let labels = [self.owner.namespace.as_str(), &self.owner.name];
            self.ctx.metrics.update_deferred.with_label_values(&labels).inc();
            self.tell(Reason::UpdateDeferred, false, &message);
        }
        let wake = self.opening(opens);
        if scope == Scope::Updates && (self.was_deployed() || self.status.run.is_some()) {
            let stages = self.status.stages.iter().zip(offered);
            return Windowed::Held {
                applied: stages.map(|(stage, source)| applied_or(stage, source)).collect(),
                hold: Hold {
                    message,
                    wake,
                    change_waits: false,
                },
            };
        }
        Windowed::Closed(End {
            situation: self.held(message),
            wake,
        })
    }

    fn was_deployed(&self) -> bool {
        !self.status.last_applied_revisions.is_empty()
    }

    fn held(&self, held: String) -> Situation {
        let deployed = self.was_deployed();
        let stored = self
            .set
            .status
            .as_ref()
            .and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
        let failed = stored.filter(|c| deployed && c.status == "False" && c.reason == Reason::StageFailed.as_str());
        match failed {
            // A hold does not hide that the deployed release is in trouble.
            Some(ready) => Situation::Failed {
                reason: Reason::StageFailed,
                message: without_runbook(&ready.message).to_owned(),
            },
            None => {
                // A run that is held half way has not deployed what it is about.
                let deployed = deployed && self.status.run.is_none();
                Situation::Held {
                    reason: Reason::UpdateDeferred,
                    message: if deployed { format!("Deployed; {held}") } else { held },
                    retrying: false,
                    deployed,
                }
            }
        }
    }

    /// Ends a pass that looked after the deployed release while an update is held.
    pub(super) fn with_hold(&mut self, end: End) -> End {
        let Some(hold) = self.hold.take() else {
            return end;
        };
        let wake = sooner(end.wake, &hold.wake);
        let situation = match end.situation {
            Situation::Succeeded { .. } => Situation::Held {
                reason: Reason::UpdateDeferred,
                message: format!("Deployed; {}", hold.message),
                retrying: false,
                deployed: true,
            },
            other => other,
        };
        End { situation, wake }
    }

    /// While an update is held, a changed spec is rolled out with what was applied last. Where that is not all there -
    /// a stage is new, or its artifact cannot be had any more - the change waits, too; what is deployed is looked after.
    pub(super) async fn wait_with_update(&mut self, next: Next) -> Result<Option<End>, Stop> {
        if self.hold.is_none() {
            return Ok(None);
        }
        let spec = self.set.spec.clone();
        let new: Vec<usize> = (0..spec.stages.len()).filter(|at| self.is_left_out(*at)).collect();
        if !new.is_empty() {
            for at in &new {
                let entry = &mut self.status.stages[*at];
                if entry.phase.is_none() {
                    entry.phase = Some(StagePhase::Pending);
                    entry.waiting_for = Some("an update window".into());
                }
            }
            let new: Vec<String> = new.iter().map(|at| format!("\"{}\"", spec.stages[*at].name)).collect();
            self.wait_too(&format!(
                "what is new in the spec, stage {}, waits, too",
                new.join(", ")
            ));
        } else if matches!(next, Next::Start { .. })
            && let Some((stage, failure)) = self.missing(&spec.stages).await
        {
            let retry = self.cadence().retry.min(RBAC_LADDER.last);
            let note = format!(
                "the changed spec waits, too: what stage \"{}\" applied last cannot be had any more: {}",
                stage.name, failure.message
            );
            self.tell_waits(Reason::UpdateDeferred, false, stage, &note);
            self.wait_too(&note);
            if let Some(hold) = &mut self.hold {
                hold.wake = earlier(hold.wake, retry);
            }
        } else {
            return Ok(None);
        }
        if self.status.run.is_none() {
            return self.steady().await.map(Some);
        }
        self.care_for_all().await;
        let message = self.hold.as_ref().map(|hold| hold.message.clone());
        let end = End {
            situation: self.held(message.unwrap_or_default()),
            wake: self.opening(None),
        };
        Ok(Some(self.with_care(end)))
    }

    fn wait_too(&mut self, why: &str) {
        if let Some(hold) = &mut self.hold {
            hold.message = format!("{}; {why}", hold.message);
            hold.change_waits = true;
        }
    }

    /// The first stage whose artifact would be needed for a run, and cannot be had.
    async fn missing<'s>(&self, stages: &'s [Stage]) -> Option<(&'s Stage, Failure)> {
        for (at, stage) in stages.iter().enumerate() {
            if self.knows_inputs(at) && self.is_done(at, &self.inputs(at)) {
                continue;
            }
            if let Err(failure) = render::fetch(self.ctx, self.owner, stage, &self.artifacts[at]).await {
                return Some((stage, failure));
            }
        }
        None
    }

    /// Whether a stage is new while an update is held: it waits for the window.
    pub(super) fn is_left_out(&self, at: usize) -> bool {
        self.hold.is_some() && !has_applied(&self.status.stages[at])
    }

    /// Whether a change of the spec waits with an update that is held. Nothing is pruned then: what left one stage may be
    /// what another one is to bring.
    pub(super) fn change_waits(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.change_waits)
    }

    /// While an update is held, what is deployed may not be had any more: then drift waits, and that is told once.
    pub(super) fn drift_waits(&mut self, stage: &Stage, failure: &Failure) {
        let note = format!(
            "stage \"{}\": drift is not corrected while the update is held: {}",
            stage.name, failure.message
        );
        self.tell_waits(Reason::DriftDeferred, true, stage, &note);
        let entry = self.status.stages.iter_mut().find(|s| s.name == stage.name);
        if let Some(entry) = entry {
            entry.message = Some(note);
        }
    }

    fn tell_waits(&mut self, reason: Reason, warning: bool, stage: &Stage, note: &str) {
        let before = self
            .memory
            .told_waits
            .insert((reason, stage.name.clone()), note.to_owned());
        if before.as_deref() != Some(note) {
            self.tell(reason, warning, note);
        }
    }
}

/// The sooner of two wakes.
pub(super) fn sooner(wake: Wake, other: &Wake) -> Wake {
    match other {
        Wake::In(wait) => earlier(wake, *wait),
        Wake::OnChange => wake,
    }
}

/// What a stage applied last of its source; none where it never applied anything.
pub(super) fn applied_last(stage: &StageStatus, source: &Artifact) -> Option<Artifact> {
    Some(Artifact {
        revision: stage.applied_revision.clone()?,
        digest: stage.applied_digest.clone()?,
        url: stage.applied_url.clone()?,
        size: None,
        last_update: None,
        ..source.clone()
    })
}

fn applied_or(stage: &StageStatus, source: Artifact) -> Artifact {
    applied_last(stage, &source).unwrap_or(source)
}

fn has_applied(stage: &StageStatus) -> bool {
    stage.applied_revision.is_some() && stage.applied_digest.is_some() && stage.applied_url.is_some()
}

/// What waits for a window, and until when.
pub(super) fn pending(offered: &[Artifact], opens: Option<Timestamp>) -> PendingUpdate {
    PendingUpdate {
        revisions: offered.iter().map(|a| (a.key(), a.revision.clone())).collect(),
        next_window_opens: opens.map(|at| Time(Timestamp::from_second(at.as_second()).unwrap_or(at))),
    }
}
