//! Who is to be looked at: a queue that holds each StageSet once, however often it is woken.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use tokio::sync::Notify;

use super::Owner;

#[derive(Default)]
struct Queue {
    order: VecDeque<Owner>,
    waiting: HashSet<Owner>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Notify,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes StageSets.
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

/// The StageSets that were woken.
pub struct Woken(Arc<Shared>);

/// A queue, empty at first.
pub fn queue() -> (Waker, Woken) {
    let shared = Arc::new(Shared::default());
    (Waker(shared.clone()), Woken(shared))
}

impl Waker {
    /// Queues a StageSet, unless it waits already.
    pub fn wake(&self, owner: Owner) {
        let mut queue = self.0.queue();
        if !queue.waiting.contains(&owner) {
            queue.waiting.insert(owner.clone());
            queue.order.push_back(owner);
            self.0.news.notify_one();
        }
    }
}

#[cfg(test)]
impl Waker {
    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.0.queue().order.len()
    }
}

impl Woken {
    /// The StageSet that has waited longest.
    pub async fn next(&mut self) -> Owner {
        loop {
            if let Some(owner) = self.try_next() {
                return owner;
            }
            self.0.news.notified().await;
        }
    }

    /// The same, where there is one.
    pub fn try_next(&mut self) -> Option<Owner> {
        let mut queue = self.0.queue();
        let owner = queue.order.pop_front()?;
        queue.waiting.remove(&owner);
        Some(owner)
    }

    /// All of them, one after the other, without end.
    pub fn stream(self) -> impl Stream<Item = Owner> {
        futures::stream::unfold(self, |mut woken| async move { Some((woken.next().await, woken)) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn owner(name: &str) -> Owner {
        Owner {
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    /// Rules: decisions 7 memory
    #[tokio::test]
    async fn whoever_is_woken_often_waits_once_and_in_turn() {
        let (waker, mut woken) = queue();
        for _ in 0..10_000 {
            waker.wake(owner("noisy"));
            waker.wake(owner("quiet"));
        }
        assert_eq!(waker.waiting(), 2);
        assert_eq!(woken.next().await, owner("noisy"));
        // A wake while it is worked on is not lost.
        waker.wake(owner("noisy"));
        assert_eq!(woken.next().await, owner("quiet"));
        assert_eq!(woken.next().await, owner("noisy"));
        let nobody = tokio::time::timeout(Duration::from_millis(10), woken.next()).await;
        assert!(nobody.is_err());
        let waker = tokio::spawn(async move { waker.wake(owner("late")) });
        assert_eq!(woken.next().await, owner("late"));
        waker.await.unwrap();
    }
}
