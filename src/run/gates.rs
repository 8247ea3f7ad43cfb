//! What update windows hold, and what they let through (run 10).

use jiff::{SignedDuration, Timestamp};

use super::hold::{Hold, applied_last, pending};
use super::outcome::{End, Wake};
use super::pass::Pass;
use crate::api::common::non_empty;
use crate::api::names::annotation;
use crate::api::{Reason, UpdateWindow, WindowScope, WindowType};
use crate::rules::condition::Situation;
use crate::rules::window::{self, Effect, Gate, Scope, Window, WindowFields};
use crate::source::Artifact;

/// What the windows leave of a pass.
pub(super) enum Windowed {
    /// This may be rolled out; what is newer than that waits until `opening`.
    Open {
        artifacts: Vec<Artifact>,
        opening: Option<Wake>,
    },
    /// It is held; what was applied last is looked after meanwhile. Of a stage that never applied anything, what is
    /// offered stands in: it is left out.
    Held { applied: Vec<Artifact>, hold: Hold },
    /// Nothing is touched.
    Closed(End),
}

impl Pass<'_> {
    /// Applies the update windows to what the sources offer. A run under way finishes whatever the windows say.
    pub(super) fn windows(&mut self, offered: Vec<Artifact>) -> Windowed {
        let token = self
            .annotation(annotation::UPDATE_NOW)
            .filter(|t| !t.is_empty())
            .map(str::to_owned);
        let overridden = token.is_some() && token != self.status.last_handled_update_override;
        let spec = &self.set.spec;
        let Some(windows) = spec.update_windows.iter().map(parse).collect::<Option<Vec<Window>>>() else {
            return Windowed::Closed(End {
                situation: Situation::Terminal {
                    reason: Reason::InvalidSpec,
                    message: "spec.updateWindows holds a window that cannot be read; nothing is rolled out".into(),
                },
                wake: Wake::OnChange,
            });
        };
        let scope = match spec.window_scope {
            Some(WindowScope::All) => Scope::All,
            _ => Scope::Updates,
        };
        let newer = self.differs_from(&offered);
        let gate = window::gate(&windows, scope, newer, overridden, Timestamp::now());
        let Gate::Held { next_opening } = gate else {
            // Used up by the run that begins with it, not by a pass that comes to nothing.
            self.update_token = token.filter(|_| overridden);
            self.status.pending_update = None;
            self.memory.told_waits.clear();
            return Windowed::Open {
                artifacts: offered,
                opening: None,
            };
        };
        if let Some(run) = &self.status.run
            && (scope != Scope::All || run.update_override.is_some())
        {
            // A stage that the run does not know stays at what it applied; a new one has to wait for a window.
            let stages = self.status.stages.iter().zip(&offered);
            let pinned: Option<Vec<Artifact>> = stages
                .map(|(stage, source)| super::pin::recorded(run, &stage.name).or_else(|| applied_last(stage, source)))
                .collect();
            if let Some(pinned) = pinned {
                let newer = !pinned.iter().zip(&offered).all(|(a, b)| super::pin::same(a, b));
                // The run goes on; what came after it waits for a window, and that shows.
                self.status.pending_update = newer.then(|| pending(&offered, next_opening));
                return Windowed::Open {
                    artifacts: pinned,
                    opening: newer.then(|| self.opening(next_opening)),
                };
            }
        }
        self.hold_back(offered, newer, scope, next_opening)
    }

    /// Whether some stage would deploy something else than it did last.
    fn differs_from(&self, offered: &[Artifact]) -> bool {
        let mut stages = self.status.stages.iter().zip(offered);
        stages.any(|(stage, artifact)| !super::pin::is_applied(stage, artifact))
    }
}

fn parse(wire: &UpdateWindow) -> Option<Window> {
    let duration = wire
        .duration
        .as_ref()
        .and_then(|d| crate::rules::duration::set(Some(d.0.as_str())));
    let fields = WindowFields {
        effect: if wire.window_type == WindowType::Deny {
            Effect::Deny
        } else {
            Effect::Allow
        },
        schedule: non_empty(&wire.schedule),
        duration: duration.and_then(|d| SignedDuration::try_from(d).ok()),
        time_zone: non_empty(&wire.time_zone),
        from: wire.from.as_ref().and_then(|t| t.parse().ok()),
        to: wire.to.as_ref().and_then(|t| t.parse().ok()),
    };
    Window::parse(&fields).ok()
}
