//! Giving a teardown up: whatever can be deleted is, then the finalizer goes, and what is left is told.

use jiff::Timestamp;

use super::obstacle::{Kind, Obstacle};
use super::{Stages, Teardown};
use crate::api::Reason;
use crate::run::notify::Notice;
use crate::run::outcome::{Stop, Wake};

/// Objects the event names at most.
const NAMED: usize = 10;
/// Rounds without waiting: the first deletes what was not tried yet, the second sees what has gone by that.
const LAST_ROUNDS: usize = 2;

impl Teardown<'_> {
    /// Drops the finalizer although something may be left behind, and tells what.
    pub(super) async fn give_up(&mut self, stages: &Stages, reason: &str, why: &Obstacle) -> Result<Wake, Stop> {
        for _ in 0..LAST_ROUNDS {
            for (stored, record) in stages {
                self.tear_down(stages, stored, record).await;
            }
        }
        let left: Vec<String> = stages
            .iter()
            .flat_map(|(stored, _)| self.left_of(stored))
            .map(|entry| entry.id.to_string())
            .collect();
        if left.is_empty() && why.kind != Kind::Unread {
            return self.drop_finalizer().await;
        }
        let elapsed = self
            .set
            .metadata
            .deletion_timestamp
            .as_ref()
            .map(|t| Timestamp::now().duration_since(t.0).as_secs());
        let wake = self.drop_finalizer().await?;
        tracing::error!(
            reason,
            elapsed,
            op = why.message,
            "finalizer dropped although the teardown failed"
        );
        self.ctx
            .metrics
            .teardown_forced
            .with_label_values(&[self.owner.namespace.as_str(), &self.owner.name, reason])
            .inc();
        let note = format!(
            "teardown given up after {}s ({reason}): {}; may be left behind: {}",
            elapsed.unwrap_or_default(),
            why.message,
            named(&left)
        );
        let notice = Notice::about(self.set, Reason::TeardownForced, true, note);
        self.ctx.notifier.send(notice);
        Ok(wake)
    }
}

fn named(left: &[String]) -> String {
    if left.is_empty() {
        return "what carries the labels of this StageSet".to_owned();
    }
    let mut text = left[..left.len().min(NAMED)].join(", ");
    if left.len() > NAMED {
        text.push_str(&format!(" and {} more", left.len() - NAMED));
    }
    text
}
