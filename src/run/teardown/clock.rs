//! How far a teardown has come, and since when it gets no further. The bound on a teardown is one on trying in vain: it
//! starts anew whenever something has gone, and neither a protected StageSet nor a controller that did not run uses it up.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Teardown;
use super::obstacle::{Kind, Obstacle};
use crate::api::{Reason, StageSet};
use crate::rules::condition::READY;
use crate::rules::inventory::ObjectId;

/// A process tries for so long at least before it gives up what another one has begun.
const OWN_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Refused credentials may be on their way to be replaced.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// What this process knows of a teardown.
#[derive(Debug, Default)]
pub struct Progress {
    /// Objects whose removal has been confirmed, each with the record it is in: another cluster may have its like.
    gone: BTreeSet<(String, ObjectId)>,
    /// Rounds of deletes that are behind us.
    rounds: u32,
    /// When it was first tried, or last got on.
    since: Option<Instant>,
    /// It got on since the status was last written.
    got_on: bool,
    /// The connection whose credentials are refused, and since when.
    refused: Option<(String, Instant)>,
    /// Objects that were found by their labels, where records were lost.
    pub(super) found: Option<Vec<super::recorded::Found>>,
}

impl Progress {
    /// Nothing is tried now.
    pub(super) fn pause(&mut self) {
        self.since = None;
    }

    pub(super) fn tries(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// A round is over.
    pub(super) fn tried(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
    }

    /// What there was to tell is in the status.
    pub(super) fn told(&mut self) {
        self.got_on = false;
    }

    pub(super) fn is_gone(&self, record: &str, id: &ObjectId) -> bool {
        self.gone.contains(&(record.to_owned(), id.clone()))
    }

    /// Takes in what has gone; `true` where the teardown got on by that. What the first round of a process finds gone may
    /// have been so before: a process that restarts often would otherwise never come to an end.
    pub(super) fn settle(&mut self, record: &str, ids: impl Iterator<Item = ObjectId>) -> bool {
        let before = self.gone.len();
        self.gone.extend(ids.map(|id| (record.to_owned(), id)));
        let got_on = self.gone.len() > before && self.rounds > 0;
        if got_on {
            self.since = Some(Instant::now());
            self.got_on = true;
        }
        got_on
    }

    /// Where credentials are refused: how long to wait for others; none once that was long enough.
    pub(super) fn refused(&mut self, obstacle: &Obstacle) -> Option<Duration> {
        let Kind::Refused(connection) = &obstacle.kind else {
            self.refused = None;
            return None;
        };
        let known = self.refused.take().filter(|(known, _)| known == connection);
        let (_, since) = self
            .refused
            .insert(known.unwrap_or((connection.clone(), Instant::now())));
        REFUSED_FOR.checked_sub(since.elapsed()).filter(|rest| !rest.is_zero())
    }
}

impl Teardown<'_> {
    pub(super) fn is_overdue(&self) -> bool {
        let progress = &self.memory.teardown;
        if progress.got_on {
            return false;
        }
        let bound = self.ctx.config.teardown_bound();
        let own = progress.since.map_or(Duration::ZERO, |since| since.elapsed());
        let of_all = begun(self.set).map(|begun| Timestamp::now().duration_since(begun));
        let of_all = of_all.and_then(|in_vain| Duration::try_from(in_vain).ok());
        own >= bound || (own >= OWN_PATIENCE && of_all.is_some_and(|in_vain| in_vain >= bound))
    }

    /// Whether the clock of the teardown starts with the status that is written now.
    pub(super) fn restarts_clock(&self) -> bool {
        self.memory.teardown.got_on || begun(self.set).is_none()
    }
}

/// Since when a teardown is tried in vain, by its status: the transition of the Ready condition that this teardown wrote.
fn begun(set: &StageSet) -> Option<Timestamp> {
    let deleted = set.metadata.deletion_timestamp.as_ref()?.0;
    let ready = set.status.as_ref()?.conditions.iter().find(|c| c.type_ == READY)?;
    // The deletion was a new generation.
    let ours = ready.observed_generation == set.metadata.generation;
    let tried = ready.reason != Reason::DeletionProtected.as_str();
    (ours && tried).then(|| ready.last_transition_time.0.max(deleted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(reason: &str, observed: i64) -> StageSet {
        let ready = json!({ "type": "Ready", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T10:00:00Z", "observedGeneration": observed });
        let set = json!({ "apiVersion": "stages.metio.wtf/v1", "kind": "StageSet",
            "metadata": { "name": "shop", "generation": 2, "deletionTimestamp": "2026-01-01T09:00:00Z" },
            "spec": { "interval": "1h", "stages": [] }, "status": { "conditions": [ready] } });
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn a_teardown_begins_with_the_first_status_that_it_writes() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(begun(&set("StageFailed", 2)), Some(at("2026-01-01T10:00:00Z")));
        assert_eq!(begun(&set("StageFailed", 1)), None, "that was before the deletion");
        assert_eq!(begun(&set("DeletionProtected", 2)), None, "nothing was tried");
        let mut early = set("StageFailed", 2);
        let deleted = early.metadata.deletion_timestamp.as_mut().unwrap();
        deleted.0 = at("2026-01-01T11:00:00Z");
        assert_eq!(begun(&early), Some(at("2026-01-01T11:00:00Z")));
    }

    #[test]
    fn what_is_gone_is_gone_from_one_record_and_counts_after_the_first_round() {
        let mut progress = Progress::default();
        let id = |name| ObjectId::new("n", name, "", "ConfigMap");
        assert!(!progress.settle("web", [id("a")].into_iter()));
        assert!(progress.is_gone("web", &id("a")) && !progress.is_gone("web.12345678", &id("a")));
        progress.tried();
        assert!(!progress.settle("web", [id("a")].into_iter()), "that is no news");
        assert!(progress.settle("web", [id("b")].into_iter()));
    }

    #[test]
    fn credentials_that_are_refused_get_a_while_to_be_replaced() {
        let mut progress = Progress::default();
        let refused = |connection: &str| Obstacle {
            kind: Kind::Refused(connection.to_owned()),
            message: String::new(),
        };
        assert!(progress.refused(&refused("n/far/value@1")).is_some());
        let long_ago = Instant::now().checked_sub(REFUSED_FOR).unwrap();
        progress.refused = Some(("n/far/value@1".to_owned(), long_ago));
        assert!(progress.refused(&refused("n/far/value@2")).is_some(), "others now");
        progress.refused = Some(("n/far/value@2".to_owned(), long_ago));
        assert_eq!(progress.refused(&refused("n/far/value@2")), None);
        progress.refused(&Obstacle::elsewhere(String::new()));
        assert!(
            progress.refused(&refused("n/far/value@2")).is_some(),
            "taken in between"
        );
    }
}
