//! Backoff: when to try again, and how to spread it. The caller hands in the random number, so that the same input
//! gives the same instant.

use std::time::Duration;

/// Share by which an interval is spread, up and down (run 2.6).
pub const INTERVAL_JITTER: f64 = 0.05;
/// First and last wait while a right is missing (decisions 5).
pub const RBAC_LADDER: Ladder = Ladder::doubling(Duration::from_secs(2), Duration::from_secs(30));
/// First and last wait between polls of objects that cannot be watched (decisions 5).
pub const POLL_LADDER: Ladder = Ladder::doubling(Duration::from_secs(2), Duration::from_secs(30));
/// First and last wait after an unexpected API error.
pub const ERROR_LADDER: Ladder = Ladder::doubling(Duration::from_secs(1), Duration::from_secs(300));

/// Waits that double from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    pub first: Duration,
    pub last: Duration,
}

impl Ladder {
    /// A ladder from `first`, doubling, never above `last`.
    pub const fn doubling(first: Duration, last: Duration) -> Self {
        Ladder { first, last }
    }

    /// The wait before try number `attempt + 1`, where `attempt` counts what was tried before (0: nothing).
    pub fn wait(&self, attempt: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.last)
    }

    /// As [`Ladder::wait`], drawn from the upper half of it by `random` (0..1), so that many waiters part.
    pub fn wait_with_jitter(&self, attempt: u32, random: f64) -> Duration {
        self.wait(attempt).mul_f64(0.5 + 0.5 * unit(random))
    }
}

/// Spreads a wait by [`INTERVAL_JITTER`] to both sides; `random` is in 0..1.
pub fn with_jitter(wait: Duration, random: f64) -> Duration {
    wait.mul_f64(1.0 - INTERVAL_JITTER + 2.0 * INTERVAL_JITTER * unit(random))
}

/// A place within `interval`, for work that is to be spread over it after a start; `random` is in 0..1.
pub fn spread(interval: Duration, random: f64) -> Duration {
    interval.mul_f64(unit(random))
}

/// `random` as a number in 0..=1; what is none counts as the middle.
fn unit(random: f64) -> f64 {
    if random.is_nan() { 0.5 } else { random.clamp(0.0, 1.0) }
}

/// The shortest cadence: what is asked for more often would keep the controller from everybody else's work.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// The cadences of a StageSet after their defaults (run 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    /// Between two passes when nothing else wakes it.
    pub steady: Duration,
    /// After a failure, and while waiting for something without a watch.
    pub retry: Duration,
    /// `spec.interval` or the default.
    pub interval: Duration,
}

impl Cadence {
    /// Resolves `spec.interval`, `spec.retryInterval` and `spec.driftDetectionInterval`; a value of zero (a negative
    /// one is given as zero) counts as unset, a shorter one than [`SHORTEST`] as that. Drift detection only ever shortens
    /// the interval.
    pub fn resolve(
        interval: Option<Duration>,
        retry: Option<Duration>,
        drift: Option<Duration>,
        default_interval: Duration,
    ) -> Self {
        let set = |value: Option<Duration>| value.filter(|wait| !wait.is_zero()).map(|wait| wait.max(SHORTEST));
        let interval = set(interval).unwrap_or(default_interval.max(SHORTEST));
        Cadence {
            interval,
            retry: set(retry).unwrap_or(interval),
            steady: set(drift).map_or(interval, |drift| drift.min(interval)),
        }
    }
}

/// Bounds a wait for a known instant, such as the opening of a window: at least 5 s, at most 1 h (run 2.7).
pub fn clamp_hold(wait: Duration) -> Duration {
    wait.clamp(Duration::from_secs(5), Duration::from_secs(3600))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Rules: decisions 5 rbac
    #[test]
    fn the_rbac_ladder_goes_from_two_to_thirty_seconds() {
        let waits: Vec<u64> = (0..7).map(|n| RBAC_LADDER.wait(n).as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(RBAC_LADDER.wait(u32::MAX).as_secs(), 30);
        assert_eq!(POLL_LADDER.wait(31).as_secs(), 30);
    }

    /// Rules: run 2.6 jitter
    #[test]
    fn jitter_spreads_by_five_percent() {
        let wait = 100 * SECOND;
        assert_eq!(with_jitter(wait, 0.0), 95 * SECOND);
        assert_eq!(with_jitter(wait, 0.5), wait);
        assert_eq!(with_jitter(wait, 1.0), 105 * SECOND);
        assert_eq!(with_jitter(wait, f64::NAN), wait);
        assert_eq!(spread(wait, 0.25), 25 * SECOND);
    }

    /// Rules: run 2.6 effective, run 2.6 retry, run 2.6 steady, run B31
    #[test]
    fn unset_and_zero_take_the_next_default() {
        let minute = 60 * SECOND;
        let ten = 10 * minute;
        let zero = Some(Duration::ZERO);
        let cadence = Cadence::resolve(zero, zero, zero, ten);
        assert_eq!((cadence.interval, cadence.retry, cadence.steady), (ten, ten, ten));
        let cadence = Cadence::resolve(Some(5 * minute), Some(SECOND), Some(minute), ten);
        assert_eq!(cadence.interval, 5 * minute);
        assert_eq!((cadence.retry, cadence.steady), (SECOND, minute));
        let longer = Cadence::resolve(Some(minute), None, Some(ten), ten);
        assert_eq!((longer.retry, longer.steady), (minute, minute));
    }

    /// Rules: run 2.6 effective, run 2.6 retry, run 2.6 steady
    #[test]
    fn nothing_comes_more_often_than_once_a_second() {
        let moment = Some(Duration::from_nanos(1));
        let cadence = Cadence::resolve(moment, moment, moment, 60 * SECOND);
        assert_eq!(
            (cadence.interval, cadence.retry, cadence.steady),
            (SECOND, SECOND, SECOND)
        );
        let cadence = Cadence::resolve(None, None, None, Duration::from_millis(1));
        assert_eq!(
            (cadence.interval, cadence.retry, cadence.steady),
            (SECOND, SECOND, SECOND)
        );
    }

    /// Rules: run 2.7 window
    #[test]
    fn a_hold_looks_again_within_the_hour() {
        assert_eq!(clamp_hold(Duration::ZERO), 5 * SECOND);
        assert_eq!(clamp_hold(90 * SECOND), 90 * SECOND);
        assert_eq!(clamp_hold(86_400 * SECOND), 3600 * SECOND);
    }

    proptest! {
        #[test]
        fn waits_grow_and_stay_within_bounds(first in 1_u64..100, more in 0_u64..1000, attempt in 0_u32..80, random in 0.0..1.0) {
            let ladder = Ladder::doubling(Duration::from_secs(first), Duration::from_secs(first + more));
            prop_assert!(ladder.wait(attempt) <= ladder.wait(attempt + 1));
            prop_assert!(ladder.wait(attempt) >= ladder.first && ladder.wait(attempt) <= ladder.last);
            let drawn = ladder.wait_with_jitter(attempt, random);
            prop_assert!(drawn * 2 >= ladder.wait(attempt) && drawn <= ladder.wait(attempt));
        }
    }
}
