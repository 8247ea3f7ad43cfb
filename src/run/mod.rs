//! One step of a run for one StageSet: observe, decide, act until something must be waited for, write the
//! status, return. Whatever it waits for wakes it again.

mod apply;
mod attempt;
mod awaiting;
mod care;
mod context;
mod doubt;
mod gates;
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
mod treatment;
mod variables;
mod verify;

use std::sync::Arc;
use std::time::Duration;

pub use context::{Context, Memories};
pub use notify::{Notice, Notifier};
pub use outcome::{Stop, Wake};

pub use crate::slot;

use crate::cluster::watch::Owner;
use crate::rules::backoff::ERROR_LADDER;

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
    match result {
        Ok(wake) => Stepped { wake, undecided: None },
        Err(Stop::Gone) => Stepped {
            wake: Wake::OnChange,
            undecided: None,
        },
        Err(Stop::Changed) => Stepped {
            wake: Wake::In(Duration::ZERO),
            undecided: None,
        },
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
