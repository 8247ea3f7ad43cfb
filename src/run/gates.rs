//! What update windows hold, and what they let through (run 10).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::notify::Notice;
use super::outcome::{End, Wake};
use super::pass::{Pass, earlier};
use crate::api::common::non_empty;
use crate::api::names::annotation;
use crate::api::{PendingUpdate, Reason, StageStatus, UpdateWindow, WindowScope, WindowType};
use crate::rules::backoff::clamp_hold;
use crate::rules::condition::{READY, Situation, without_runbook};
use crate::rules::window::{self, Effect, Gate, Scope, Window, WindowFields};
use crate::source::Artifact;

/// What the windows leave of a pass.
pub(super) enum Windowed {
    /// This may be rolled out; what is newer than that waits until `opening`.
    Open {
        artifacts: Vec<Artifact>,
        opening: Option<Wake>,
    },
    /// It is held; what was applied last is looked after meanwhile.
    Held { applied: Vec<Artifact>, hold: Hold },
    /// Nothing is touched.
    Closed(End),
}

/// A held update.
pub(super) struct Hold {
    message: String,
    wake: Wake,
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
            return Windowed::Open {
                artifacts: offered,
                opening: None,
            };
        };
        let begun_by_override = token.is_some() && token == self.status.last_handled_update_override;
        if let Some(run) = &self.status.run
            && (scope != Scope::All || begun_by_override)
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
        self.hold(offered, newer, scope, next_opening)
    }

    /// When to look again after something held.
    fn opening(&self, at: Option<Timestamp>) -> Wake {
        let wait = at.map(|at| Duration::try_from(at.duration_since(Timestamp::now())));
        Wake::In(wait.map_or_else(
            || self.cadence().retry,
            |wait| clamp_hold(wait.unwrap_or(Duration::ZERO)),
        ))
    }

    fn hold(&mut self, offered: Vec<Artifact>, newer: bool, scope: Scope, opens: Option<Timestamp>) -> Windowed {
        let first = self.status.pending_update.is_none();
        self.status.pending_update = Some(pending(if newer { &offered } else { &[] }, opens));
        let until = opens.map_or_else(
            || "no window is in sight".to_owned(),
            |at| format!("the next window opens at {at:.0}"),
        );
        let what = if newer { "a new revision" } else { "every change" };
        let held = format!("{what} is held by the update windows: {until}");
        if first {
            let labels = [self.owner.namespace.as_str(), &self.owner.name];
            self.ctx.metrics.update_deferred.with_label_values(&labels).inc();
            self.ctx
                .notifier
                .send(Notice::about(&self.set, Reason::UpdateDeferred, false, held.clone()));
        }
        let wake = self.opening(opens);
        let deployed = !self.status.last_applied_revisions.is_empty();
        if let (Scope::Updates, true, Some(applied)) = (scope, deployed, self.applied(&offered)) {
            return Windowed::Held {
                applied,
                hold: Hold { message: held, wake },
            };
        }
        Windowed::Closed(End {
            situation: self.held(held, deployed),
            wake,
        })
    }

    fn held(&self, held: String, deployed: bool) -> Situation {
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
    pub(super) fn with_hold(&self, end: End, hold: Option<Hold>) -> End {
        let Some(hold) = hold else {
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

    /// What each stage applied last; `None` when one never applied anything.
    fn applied(&self, offered: &[Artifact]) -> Option<Vec<Artifact>> {
        self.status
            .stages
            .iter()
            .zip(offered)
            .map(|(stage, source)| applied_last(stage, source))
            .collect()
    }

    /// Whether some stage would deploy something else than it did last.
    fn differs_from(&self, offered: &[Artifact]) -> bool {
        let mut stages = self.status.stages.iter().zip(offered);
        stages.any(|(stage, artifact)| !super::pin::is_applied(stage, artifact))
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
fn applied_last(stage: &StageStatus, source: &Artifact) -> Option<Artifact> {
    Some(Artifact {
        revision: stage.applied_revision.clone()?,
        digest: stage.applied_digest.clone()?,
        url: stage.applied_url.clone()?,
        size: None,
        last_update: None,
        ..source.clone()
    })
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

/// What waits for a window, and until when.
fn pending(offered: &[Artifact], opens: Option<Timestamp>) -> PendingUpdate {
    PendingUpdate {
        revisions: offered.iter().map(|a| (a.key(), a.revision.clone())).collect(),
        next_window_opens: opens.map(|at| Time(Timestamp::from_second(at.as_second()).unwrap_or(at))),
    }
}
