//! What a step does about the run: begin one, go on with it, leave it be, or only look after what is
//! deployed (decisions 3).

/// Where an unfinished run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A stage awaits its objects.
    Verifying {
        /// An awaited object failed, a pod of it is in an error wait, or nothing has changed for long.
        stuck: bool,
        /// What is awaited is known in this process, so the wait can go on whatever the spec says now.
        known: bool,
        /// Time was up, and it only goes on because it is told to.
        held: Held,
    },
    /// A stage failed.
    Failed {
        /// The retry is due, or what was awaited has turned ready by itself.
        due: bool,
    },
    /// Every stage is through; what is left, the prune, is held or failed.
    Held,
    /// The API server keeps stumbling over a step; nothing is decided yet.
    Stumbling,
    /// Anything else: interrupted between two steps.
    Between,
}

/// Whether a verify goes on although its time is up (run 18.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    No,
    Yes,
    /// And something it awaits is gone: only an apply brings it back.
    Lost,
}

/// An unfinished run against what is wanted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFacts {
    pub attempt: i32,
    /// The run was begun for the current generation.
    pub generation_current: bool,
    /// What it has pinned is what the sources offer now.
    pub pins_current: bool,
    pub standing: Standing,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Begin a run, or a new attempt of it.
    Start { attempt: i32 },
    /// Go on where it stands.
    Resume,
    /// Nothing is to be done before something changes.
    Rest,
    /// No run is needed: look after what is deployed.
    Steady,
}

/// Decides what a step does.
///
/// A newer revision replaces a run at once when it failed or is stuck; otherwise the run ends first, so that a
/// source faster than its verify still reaches the last stage. A newer generation only waits for the verify
/// under way: the rest of the old run could not be told from the new one.
///
/// `settled`: every stage is ready with what is wanted now. `requested`: a person asked for a new attempt.
pub fn next(run: Option<RunFacts>, settled: bool, requested: bool) -> Next {
    let Some(run) = run else {
        return if settled {
            Next::Steady
        } else {
            Next::Start { attempt: 1 }
        };
    };
    let outdated = !run.generation_current || !run.pins_current;
    match run.standing {
        Standing::Failed { .. } | Standing::Held | Standing::Stumbling | Standing::Verifying { stuck: true, .. }
            if outdated =>
        {
            Next::Start { attempt: 1 }
        }
        Standing::Failed { due } if due || requested => Next::Start {
            attempt: run.attempt.saturating_add(1),
        },
        Standing::Failed { .. } => Next::Rest,
        Standing::Verifying { known, .. } if !run.generation_current && !known => Next::Start { attempt: 1 },
        Standing::Verifying { held, .. } if held == Held::Lost || (held == Held::Yes && requested) => Next::Start {
            attempt: run.attempt.saturating_add(1),
        },
        Standing::Verifying { .. } => Next::Resume,
        Standing::Between if !run.generation_current => Next::Start { attempt: 1 },
        Standing::Between | Standing::Stumbling | Standing::Held => Next::Resume,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(standing: Standing, generation_current: bool, pins_current: bool) -> Option<RunFacts> {
        Some(RunFacts {
            attempt: 2,
            generation_current,
            pins_current,
            standing,
        })
    }

    const WAITING: Standing = Standing::Verifying {
        stuck: false,
        known: true,
        held: Held::No,
    };
    const STUCK: Standing = Standing::Verifying {
        stuck: true,
        known: true,
        held: Held::No,
    };

    #[test]
    fn without_a_run_only_what_is_not_settled_starts_one() {
        assert_eq!(next(None, true, true), Next::Steady);
        assert_eq!(next(None, false, false), Next::Start { attempt: 1 });
    }

    /// Rules: decisions 3.4
    #[test]
    fn a_healthy_verify_is_waited_for_and_a_stuck_one_is_replaced_at_once() {
        for (generation, pins) in [(true, false), (false, true), (false, false)] {
            assert_eq!(next(run(WAITING, generation, pins), false, false), Next::Resume);
            assert_eq!(
                next(run(STUCK, generation, pins), false, false),
                Next::Start { attempt: 1 }
            );
        }
        assert_eq!(next(run(STUCK, true, true), false, false), Next::Resume);
    }

    /// Rules: run 18.4 bound
    #[test]
    fn a_held_verify_is_begun_anew_on_request_or_when_what_it_awaits_is_gone() {
        let held = |held| Standing::Verifying {
            stuck: false,
            known: true,
            held,
        };
        let again = Next::Start { attempt: 3 };
        assert_eq!(next(run(held(Held::Yes), true, true), false, false), Next::Resume);
        assert_eq!(next(run(held(Held::Yes), true, true), false, true), again);
        assert_eq!(next(run(held(Held::Lost), true, true), false, false), again);
        assert_eq!(next(run(WAITING, true, true), false, true), Next::Resume);
    }

    #[test]
    fn a_failed_run_rests_until_something_gives_it_a_new_attempt() {
        let failed = |due| Standing::Failed { due };
        assert_eq!(next(run(failed(false), true, true), false, false), Next::Rest);
        assert_eq!(
            next(run(failed(true), true, true), false, false),
            Next::Start { attempt: 3 }
        );
        assert_eq!(
            next(run(failed(false), true, true), false, true),
            Next::Start { attempt: 3 }
        );
        assert_eq!(
            next(run(failed(false), true, false), false, false),
            Next::Start { attempt: 1 }
        );
    }

    #[test]
    fn a_held_prune_gives_way_to_something_newer() {
        assert_eq!(next(run(Standing::Held, true, true), false, false), Next::Resume);
        assert_eq!(
            next(run(Standing::Held, true, false), false, false),
            Next::Start { attempt: 1 }
        );
        assert_eq!(
            next(run(Standing::Held, false, true), false, false),
            Next::Start { attempt: 1 }
        );
    }

    #[test]
    fn a_run_that_the_server_holds_up_gives_way_to_something_newer() {
        assert_eq!(next(run(Standing::Stumbling, true, true), false, false), Next::Resume);
        for (generation, pins) in [(true, false), (false, true), (false, false)] {
            assert_eq!(
                next(run(Standing::Stumbling, generation, pins), false, false),
                Next::Start { attempt: 1 }
            );
        }
    }

    #[test]
    fn an_interrupted_run_goes_on_unless_the_spec_changed() {
        assert_eq!(next(run(Standing::Between, true, false), false, false), Next::Resume);
        assert_eq!(
            next(run(Standing::Between, false, true), false, false),
            Next::Start { attempt: 1 }
        );
    }
}
