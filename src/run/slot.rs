//! The slot a step runs in, one of `--concurrent`. It is given up while the step waits for a server that is not the
//! API server, so that one slow server cannot hold up everybody's StageSets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

tokio::task_local! {
    static SLOT: Mutex<Option<Slot>>;
}

/// A slot that is held; dropping it frees it.
pub struct Slot {
    share: Option<OwnedSemaphorePermit>,
    slot: OwnedSemaphorePermit,
}

impl Slot {
    /// Queues for one of `slots`, where there is a `share` within that. `None` when they are closed.
    pub async fn take(slots: Arc<Semaphore>, share: Option<Arc<Semaphore>>) -> Option<Self> {
        let share = match share {
            Some(share) => Some(share.acquire_owned().await.ok()?),
            None => None,
        };
        let slot = slots.acquire_owned().await.ok()?;
        Some(Self { share, slot })
    }

    fn give_up(self) -> (Arc<Semaphore>, Option<Arc<Semaphore>>) {
        (
            self.slot.semaphore().clone(),
            self.share.as_ref().map(|share| share.semaphore().clone()),
        )
    }
}

/// Runs `step` in `slot`, which is free again once it has ended.
pub async fn within<F: Future>(slot: Slot, step: F) -> F::Output {
    SLOT.scope(Mutex::new(Some(slot)), step).await
}

/// Waits for `outside` without holding a slot; queues for one again afterwards, behind those that wait already.
pub async fn given_up<F: Future>(outside: F) -> F::Output {
    let swap = |slot: Option<Slot>| {
        SLOT.try_with(|held| std::mem::replace(&mut *held.lock().unwrap_or_else(PoisonError::into_inner), slot))
            .ok()
            .flatten()
    };
    let queues = swap(None).map(Slot::give_up);
    let result = outside.await;
    if let Some((slots, share)) = queues {
        swap(Slot::take(slots, share).await);
    }
    result
}

/// Waits for `outside`, for as long as `patience` in the slot and without it from then on: what is usually quick should
/// not queue twice.
pub async fn given_up_after<F: Future>(patience: Duration, outside: F) -> F::Output {
    let mut outside = std::pin::pin!(outside);
    match tokio::time::timeout(patience, &mut outside).await {
        Ok(result) => result,
        Err(_) => given_up(outside).await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_slot_is_free_while_its_step_waits_outside_and_taken_afterwards() {
        let slots = Arc::new(Semaphore::new(1));
        let share = Arc::new(Semaphore::new(1));
        let slot = Slot::take(slots.clone(), Some(share.clone())).await.unwrap();
        let (answer, awaited) = oneshot::channel::<()>();
        let (waits, waiting) = oneshot::channel();
        let (go_on, hold) = oneshot::channel::<()>();
        let step = tokio::spawn(within(slot, async move {
            given_up(async {
                waits.send(()).unwrap();
                awaited.await.unwrap();
            })
            .await;
            hold.await.unwrap();
        }));
        waiting.await.unwrap();
        let other = slots.clone().try_acquire_owned().expect("the slot is free");
        assert_eq!(share.available_permits(), 1);
        answer.send(()).unwrap();
        tokio::task::yield_now().await;
        drop(other);
        while slots.available_permits() == 1 {
            tokio::task::yield_now().await;
        }
        assert!(
            slots.clone().try_acquire_owned().is_err(),
            "the step has its slot again"
        );
        go_on.send(()).unwrap();
        step.await.unwrap();
        assert_eq!((slots.available_permits(), share.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn what_answers_in_time_is_waited_for_in_the_slot() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Slot::take(slots.clone(), None).await.unwrap();
        let quick = async { slots.available_permits() };
        let slow = async {
            while slots.available_permits() == 0 {
                tokio::task::yield_now().await;
            }
        };
        let step = async {
            assert_eq!(given_up_after(Duration::from_secs(60), quick).await, 0);
            given_up_after(Duration::ZERO, slow).await;
        };
        within(slot, step).await;
    }

    #[tokio::test]
    async fn outside_of_a_step_there_is_nothing_to_give_up() {
        assert_eq!(given_up(async { 7 }).await, 7);
    }
}
