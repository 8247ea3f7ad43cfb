//! How fast a watch on another cluster may tell of changes.

use std::time::Instant;

/// Events a second that may go on for ever; a rollout of thousands of objects is slower.
const STEADY: f64 = 300.0;
/// Events that may come at once.
const BURST: f64 = 5000.0;

/// Counts events, and forgets them as time passes.
#[derive(Debug)]
pub struct Flow {
    level: f64,
    at: Instant,
}

impl Flow {
    /// Nothing has come yet.
    pub fn new(now: Instant) -> Self {
        Self { level: 0.0, at: now }
    }

    /// Takes in an event. `false` where it is one too many.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.level = passed.mul_add(-STEADY, self.level).max(0.0) + 1.0;
        self.level <= BURST
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_taken_and_a_flood_is_not() {
        let began = Instant::now();
        let mut flow = Flow::new(began);
        assert!((0..5000).all(|_| flow.take(began)));
        assert!(!flow.take(began));
        let later = began + Duration::from_secs(30);
        assert!((0..5000).all(|_| flow.take(later)), "forgotten meanwhile");
        let mut steady = Flow::new(began);
        let events = (0..60_000).map(|at| began + Duration::from_millis(at * 4));
        assert!(
            events.into_iter().all(|at| steady.take(at)),
            "250 a second go on for ever"
        );
        let mut flood = Flow::new(began);
        let mut events = (0..60_000).map(|at| began + Duration::from_millis(at));
        assert!(events.any(|at| !flood.take(at)), "a thousand a second do not");
    }
}
