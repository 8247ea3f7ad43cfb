//! What the workers are at: how long each step under way has been going on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The steps under way, by number.
#[derive(Clone, Default)]
pub struct Work {
    steps: Arc<Mutex<Steps>>,
}

#[derive(Default)]
struct Steps {
    next: u64,
    began: HashMap<u64, Instant>,
}

/// One step under way; it has ended once this is dropped.
pub struct Working {
    work: Work,
    number: u64,
}

impl Work {
    /// A step begins.
    pub fn begin(&self) -> Working {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let number = steps.next;
        steps.next += 1;
        steps.began.insert(number, Instant::now());
        Working {
            work: self.clone(),
            number,
        }
    }

    /// How long all that is under way has taken together, and the longest of it.
    pub fn unfinished(&self) -> (Duration, Duration) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let took = steps.began.values().map(Instant::elapsed);
        took.fold((Duration::ZERO, Duration::ZERO), |(sum, longest), one| {
            (sum + one, longest.max(one))
        })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut steps = self.work.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.began.remove(&self.number);
    }
}
