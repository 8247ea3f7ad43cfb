//! The beginning of a run, or of a new attempt of it (run 9, decisions 3).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::outcome::Stop;
use super::pass::Pass;
use super::pin;
use crate::api::{RunStatus, StagePhase, Step};
use crate::rules::condition::Situation;
use crate::source::Artifact;

impl Pass<'_> {
    /// Pins what is offered, and sets the stages that are to go through to their first step.
    pub(super) async fn start(&mut self, offered: Vec<Artifact>, attempt: i32) -> Result<(), Stop> {
        let fresh = self
            .pinned()
            .is_none_or(|p| p.len() != offered.len() || !p.iter().zip(&offered).all(|(a, b)| pin::same(a, b)));
        let update_override = self.use_up_override().or_else(|| {
            // It counts for what it let through, however often that is tried, and for nothing newer (run 28 B9).
            let run = self.status.run.as_ref().filter(|_| !fresh);
            run.and_then(|run| run.update_override.clone())
        });
        let spec = self.set.spec.clone();
        let pins = spec.stages.iter().zip(&offered);
        self.status.run = Some(RunStatus {
            artifacts: pins.map(|(stage, pin)| pin::record(&stage.name, pin)).collect(),
            attempt,
            generation: self.set.metadata.generation.unwrap_or_default(),
            started_at: match (&self.status.run, attempt) {
                (Some(run), 2..) => run.started_at.clone(),
                _ => MicroTime(Timestamp::now()),
            },
            update_override,
        });
        self.artifacts = offered;
        self.outdated = false;
        self.memory.changed_at = None;
        self.memory.polls = 0;
        if attempt == 1 {
            // What comes of it is news, though it should read like what came before.
            self.memory.told = None;
        }
        for at in 0..spec.stages.len() {
            let inputs = self.inputs(at);
            // While an update is held, what was applied last may not be had any more: what stands is not applied again.
            let done = (!fresh || self.hold.is_some()) && self.is_done(at, &inputs);
            let entry = &mut self.status.stages[at];
            entry.message = None;
            entry.waiting_for = None;
            if !done {
                entry.phase = Some(StagePhase::Pending);
                entry.step = None;
                entry.step_started_at = None;
            }
        }
        if let Some(at) = self.position(|s| s.phase == Some(StagePhase::Pending)) {
            self.enter(at, StagePhase::Applying, Step::Apply);
            let message = self.progress(at, "applying");
            self.write(&Situation::Unfinished { message }).await?;
        }
        Ok(())
    }

    /// Records a fresh override of the update windows as handled; its token.
    pub(super) fn use_up_override(&mut self) -> Option<String> {
        let token = self.update_token.take()?;
        self.status.last_handled_update_override = Some(token.clone());
        Some(token)
    }
}
