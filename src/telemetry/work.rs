//! What the workers are at: how long each step under way has been going on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::Gauge;

/// The steps under way, by number.
#[derive(Clone)]
pub struct Work {
    steps: Arc<Mutex<Steps>>,
    unfinished: Gauge,
    longest: Gauge,
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
    /// Nothing is under way. The gauges are for the seconds that all steps have taken together, and the longest one.
    pub fn new(unfinished: Gauge, longest: Gauge) -> Self {
        Self {
            steps: Arc::default(),
            unfinished,
            longest,
        }
    }

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

    /// Sets the gauges to what holds now.
    pub fn publish(&self) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let took = || steps.began.values().map(Instant::elapsed);
        self.unfinished.set(took().sum::<Duration>().as_secs_f64());
        self.longest.set(took().max().unwrap_or_default().as_secs_f64());
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut steps = self.work.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.began.remove(&self.number);
    }
}
