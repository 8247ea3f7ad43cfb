//! Writes whose answer never came. The server may carry such a write out long after, over something newer, or after
//! its object was pruned; until that is ruled out the object stays recorded, and then it is looked at once more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rules::inventory::ObjectId;

/// An API server gives a request up after a minute (`--request-timeout`); a proxy before it may add a little.
const HORIZON: Duration = Duration::from_secs(70);

/// The objects of one StageSet with such a write behind them.
#[derive(Debug, Clone, Default)]
pub struct Doubts(Arc<Mutex<HashMap<ObjectId, Instant>>>);

impl Doubts {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectId, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write of this object just went without an answer.
    pub fn note(&self, id: ObjectId) {
        self.note_at(id, Instant::now());
    }

    fn note_at(&self, id: ObjectId, at: Instant) {
        self.lock().insert(id, at);
    }

    /// Whether a write of this object may still be carried out.
    pub fn is_open(&self, id: &ObjectId) -> bool {
        self.lock().get(id).is_some_and(|at| at.elapsed() < HORIZON)
    }

    /// How long until the last of them is ruled out; zero once that is so, none where there were none.
    pub fn rest(&self) -> Option<Duration> {
        let last = self.lock().values().max().copied()?;
        Some(HORIZON.saturating_sub(last.elapsed()))
    }

    /// Forgets those that are ruled out.
    pub fn forget_ruled_out(&self) {
        self.lock().retain(|_, at| at.elapsed() < HORIZON);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_lasts_for_its_horizon() {
        let doubts = Doubts::default();
        assert_eq!(doubts.rest(), None);
        let (new, old) = (
            ObjectId::new("n", "new", "", "Secret"),
            ObjectId::new("n", "old", "", "Secret"),
        );
        doubts.note_at(old.clone(), Instant::now().checked_sub(HORIZON).unwrap());
        assert_eq!(doubts.rest(), Some(Duration::ZERO));
        assert!(!doubts.is_open(&old) && !doubts.is_open(&new));
        doubts.note(new.clone());
        assert!(doubts.is_open(&new) && doubts.rest() > Some(HORIZON / 2));
        doubts.forget_ruled_out();
        assert_eq!(doubts.lock().len(), 1);
    }
}
