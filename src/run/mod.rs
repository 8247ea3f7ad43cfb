//! One step of a run for one StageSet: observe, decide, act until something must be waited for, write the
//! status, return. Whatever it waits for wakes it again.

mod apply;
mod attempt;
mod awaiting;
mod begin;
mod care;
mod context;
mod dependencies;
mod doubt;
mod gates;
mod hold;
mod judge;
mod notify;
mod outcome;
mod pass;
mod pin;
mod prune;
mod record;
mod remove;
mod render;
mod restore;
mod stage;
mod status;
mod steady;
mod target;
mod teardown;
mod tell;
mod treatment;
mod variables;
mod verify;

use std::sync::Arc;
use std::time::Duration;

pub use context::{Context, Memories};
pub use notify::{Notice, Notifier, Subject};
pub use outcome::{Stop, Wake};

pub use crate::slot;

use crate::cluster::watch::Owner;
use crate::rules::backoff::ERROR_LADDER;

/// Steps in a row that somebody else's write may end before that costs a pause.
const OVERTAKEN: u32 = 5;

/// How a step ended, for the queue.
#[derive(Debug)]
pub struct Stepped {
    pub wake: Wake,
    /// The failure, where nothing was decided.
    pub undecided: Option<String>,
}

/// Performs one step for the StageSet `owner`.
pub async fn step(ctx: &Arc<Context>, owner: &Owner) -> Stepped {
    let memory = ctx.memories.of(owner);
    let mut memory = memory.lock().await;
    let Some(set) = ctx.sets.get(owner) else {
        return Stepped {
            wake: Wake::OnChange,
            undecided: None,
        };
    };
    let result = if set.metadata.deletion_timestamp.is_some() {
        teardown::step(ctx, owner, set, &mut memory).await
    } else {
        pass::Pass::new(ctx, owner, set, &mut memory).run().await
    };
    if !matches!(result, Err(Stop::Changed)) {
        memory.overtaken = 0;
    }
    match result {
        Ok(wake) => Stepped { wake, undecided: None },
        Err(Stop::Gone) => Stepped {
            wake: Wake::OnChange,
            undecided: None,
        },
        Err(Stop::Changed) => {
            memory.overtaken = memory.overtaken.saturating_add(1);
            Stepped {
                wake: Wake::In(after_a_change(memory.overtaken)),
                undecided: None,
            }
        }
        Err(stop @ (Stop::Undecided(_) | Stop::Stumbled(_))) => {
            let wait = ERROR_LADDER.wait_with_jitter(memory.undecided, rand::random::<f64>());
            memory.undecided = memory.undecided.saturating_add(1);
            Stepped {
                wake: Wake::In(wait.min(Duration::from_secs(30))),
                undecided: Some(stop.to_string()),
            }
        }
    }
}

/// How long to wait after somebody else wrote in between, for the `times`-th time in a row. That is looked at at once;
/// but where it goes on and on, looking again right away helps nobody, and keeps the server busy.
fn after_a_change(times: u32) -> Duration {
    match times.checked_sub(OVERTAKEN) {
        None | Some(0) => Duration::ZERO,
        Some(further) => ERROR_LADDER.wait(further - 1).min(Duration::from_secs(30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_a_row_are_looked_at_at_once_and_then_at_leisure() {
        let waits = [1, 2, 3, 4, 5, 6, 7, 50].map(|times| after_a_change(times).as_secs());
        assert_eq!(waits, [0, 0, 0, 0, 0, 1, 2, 30]);
    }
}
