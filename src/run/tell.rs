//! Events about how a StageSet stands (contract 8).

use super::notify::Notice;
use super::pass::Pass;
use crate::api::{Reason, StagePhase};
use crate::rules::condition::{Situation, Transition};

impl Pass<'_> {
    /// Tells people something in an event, without what Secrets hold.
    pub(super) fn tell(&self, reason: Reason, warning: bool, note: &str) {
        let notice = Notice::about(&self.set, reason, warning, self.mask(note));
        self.ctx.notifier.send(notice);
    }

    /// Tells a transition of Ready, which answers the request `token`. A retry that fails like
    /// the one before is no news, unless somebody asked for it; what succeeds always is.
    pub(super) fn tell_transition(&mut self, event: Transition, situation: &Situation, token: Option<String>) {
        let told = match situation {
            Situation::Succeeded { .. } => None,
            _ => Some((situation.reason(), situation.message().to_owned())),
        };
        if told.is_some() && self.memory.told == told && token.is_none() {
            return;
        }
        self.memory.told = told;
        let notice = Notice::about(&self.set, event.reason, event.warning, situation.message());
        let notice = notice.with_revision(self.revision_of(situation)).with_token(token);
        self.ctx.notifier.send(notice);
    }

    /// The revision that an event is about: that of the stage that failed, else of the last one. What the sources offer
    /// meanwhile is another matter.
    fn revision_of(&self, situation: &Situation) -> Option<String> {
        let failed = match situation {
            Situation::Failed { .. } | Situation::Terminal { .. } => {
                self.position(|s| s.phase == Some(StagePhase::Failed))
            }
            _ => None,
        };
        let at = failed.or_else(|| self.status.stages.len().checked_sub(1))?;
        let entry = self.status.stages.get(at)?;
        let pinned = self.artifacts.get(at).map(|a| a.revision.clone());
        let before = || {
            entry
                .attempted_revision
                .clone()
                .or_else(|| entry.applied_revision.clone())
        };
        // Of a stage that was never begun, what the only source offers.
        let offered = || {
            let mut offered = self.status.last_attempted_revisions.values();
            offered.next().filter(|_| offered.next().is_none()).cloned()
        };
        pinned.or_else(before).or_else(offered)
    }
}
