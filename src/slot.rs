//! The slot a step runs in, one of `--concurrent`. It is given up while the step waits for a server that is not the
//! API server, so that one slow server cannot hold up everybody's StageSets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A server of a tenant that takes longer to answer is waited for without a slot.
pub const PATIENCE: Duration = Duration::from_millis(250);

tokio::task_local! {
    static PLACE: Arc<Place>;
}

/// A slot that is held; dropping it frees it.
pub struct Slot {
    share: Option<OwnedSemaphorePermit>,
    slot: OwnedSemaphorePermit,
}

/// Where a slot was taken, to queue there again.
#[derive(Clone)]
struct Queues {
    slots: Arc<Semaphore>,
    share: Option<Arc<Semaphore>>,
}

/// The slot of one step. Several of its requests may wait outside at once: the slot is back when none does any more.
struct Place {
    queues: Queues,
    state: Mutex<State>,
    /// Held while the slot is queued for, so that a step queues once.
    queueing: tokio::sync::Mutex<()>,
}

struct State {
    slot: Option<Slot>,
    outside: usize,
}

/// One wait outside, also one that is given up.
struct Outside(Arc<Place>);

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

    fn queues(&self) -> Queues {
        Queues {
            slots: self.slot.semaphore().clone(),
            share: self.share.as_ref().map(|share| share.semaphore().clone()),
        }
    }
}

impl Place {
    fn leave(self: &Arc<Self>) -> Outside {
        let mut state = self.state();
        state.outside += 1;
        state.slot = None;
        drop(state);
        Outside(self.clone())
    }

    /// Queues for the slot, unless it is held or somebody still waits outside.
    async fn come_back(&self) {
        let _one = self.queueing.lock().await;
        if !self.is_away() {
            return;
        }
        let queues = self.queues.clone();
        let slot = Slot::take(queues.slots, queues.share).await;
        let mut state = self.state();
        if state.outside == 0 {
            state.slot = slot;
        }
    }

    /// Whether there is no slot, and no reason to be without one.
    fn is_away(&self) -> bool {
        let state = self.state();
        state.slot.is_none() && state.outside == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.state().outside -= 1;
    }
}

/// Runs `step` in `slot`, which is free again once it has ended.
pub async fn within<F: Future>(slot: Slot, step: F) -> F::Output {
    let place = Place {
        queues: slot.queues(),
        state: Mutex::new(State {
            slot: Some(slot),
            outside: 0,
        }),
        queueing: tokio::sync::Mutex::default(),
    };
    PLACE.scope(Arc::new(place), step).await
}

/// Waits for `outside` without holding a slot; queues for one again afterwards, behind those that wait already.
pub async fn given_up<F: Future>(outside: F) -> F::Output {
    let Ok(place) = PLACE.try_with(Arc::clone) else {
        return outside.await;
    };
    let left = place.leave();
    let result = outside.await;
    drop(left);
    place.come_back().await;
    result
}

/// Waits for `outside`, for as long as `patience` in the slot and without it from then on: what is usually quick should
/// not queue twice.
pub async fn given_up_after<F: Future>(patience: Duration, outside: F) -> F::Output {
    if let Ok(place) = PLACE.try_with(Arc::clone) {
        // A wait that was given up has left nobody behind to queue.
        place.come_back().await;
    }
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
    async fn of_many_that_wait_outside_the_last_brings_the_slot_back() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Slot::take(slots.clone(), None).await.unwrap();
        let (first, one) = oneshot::channel::<()>();
        let (last, two) = oneshot::channel::<()>();
        let inside = slots.clone();
        let step = tokio::spawn(within(slot, async move {
            tokio::join!(given_up(one), given_up(two)).1.unwrap();
            inside.available_permits()
        }));
        while slots.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        first.send(()).unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(slots.available_permits(), 1, "the other one still waits");
        last.send(()).unwrap();
        assert_eq!(step.await.unwrap(), 0, "the step has its slot again");
        assert_eq!(slots.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_does_not_cost_the_slot() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Slot::take(slots.clone(), None).await.unwrap();
        let step = async {
            let given_up = given_up(std::future::pending::<()>());
            assert!(tokio::time::timeout(Duration::from_millis(1), given_up).await.is_err());
            assert_eq!(slots.available_permits(), 1);
            given_up_after(Duration::from_secs(60), async { slots.available_permits() }).await
        };
        assert_eq!(within(slot, step).await, 0);
    }

    #[tokio::test]
    async fn outside_of_a_step_there_is_nothing_to_give_up() {
        assert_eq!(given_up(async { 7 }).await, 7);
    }
}
