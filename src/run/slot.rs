//! The slot a step runs in, one of `--concurrent`. It is given up while the step waits for a server that is not the
//! API server, so that one slow server cannot hold up everybody's StageSets.

use std::sync::{Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

tokio::task_local! {
    static SLOT: Mutex<Option<OwnedSemaphorePermit>>;
}

/// Runs `step` in `slot`, which is free again once it has ended.
pub async fn within<F: Future>(slot: OwnedSemaphorePermit, step: F) -> F::Output {
    SLOT.scope(Mutex::new(Some(slot)), step).await
}

/// Waits for `outside` without holding a slot; queues for one again afterwards, behind those that wait already.
pub async fn given_up<F: Future>(outside: F) -> F::Output {
    let swap = |slot: Option<OwnedSemaphorePermit>| {
        SLOT.try_with(|held| std::mem::replace(&mut *held.lock().unwrap_or_else(PoisonError::into_inner), slot))
            .ok()
            .flatten()
    };
    let slots = swap(None).map(|slot| slot.semaphore().clone());
    let result = outside.await;
    if let Some(slots) = slots {
        swap(slots.acquire_owned().await.ok());
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    #[tokio::test]
    async fn a_slot_is_free_while_its_step_waits_outside_and_taken_afterwards() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = slots.clone().acquire_owned().await.unwrap();
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
        assert_eq!(slots.available_permits(), 1);
    }

    #[tokio::test]
    async fn outside_of_a_step_there_is_nothing_to_give_up() {
        assert_eq!(given_up(async { 7 }).await, 7);
    }
}
