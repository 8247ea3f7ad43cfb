//! How much memory watches take, so that a server that a tenant names cannot have it all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that one watch on another cluster may take: some ten thousand objects.
const ONE: usize = 4 * 1024 * 1024;
/// Bytes that all of them together may take.
const ALL: usize = 64 * 1024 * 1024;
/// A watch that takes no more is left alone when all together take too much.
const SMALL: usize = 256 * 1024;
/// What one object takes beside its texts, roughly.
const OBJECT: usize = 160;

/// Bytes of all watches on other clusters.
#[derive(Debug, Clone, Default)]
pub struct Scale {
    total: Arc<AtomicUsize>,
}

/// Bytes of one watch; they leave the scale with it.
#[derive(Debug, Default)]
pub struct Weight {
    own: usize,
    /// None for a watch on the controller's own cluster, which may take what it needs.
    scale: Option<Scale>,
}

impl Weight {
    /// The weight of a watch on another cluster.
    pub fn on(scale: &Scale) -> Self {
        Self {
            own: 0,
            scale: Some(scale.clone()),
        }
    }

    /// An object with texts of so many bytes came.
    pub fn add(&mut self, texts: usize) {
        self.own += texts + OBJECT;
        if let Some(scale) = &self.scale {
            scale.total.fetch_add(texts + OBJECT, Ordering::Relaxed);
        }
    }

    /// The same object left.
    pub fn remove(&mut self, texts: usize) {
        let left = (texts + OBJECT).min(self.own);
        self.own -= left;
        if let Some(scale) = &self.scale {
            scale.total.fetch_sub(left, Ordering::Relaxed);
        }
    }

    /// Nothing is left.
    pub fn clear(&mut self) {
        if let Some(scale) = &self.scale {
            scale.total.fetch_sub(self.own, Ordering::Relaxed);
        }
        self.own = 0;
    }

    /// Whether it takes more than it may.
    pub fn is_too_much(&self) -> bool {
        self.scale
            .as_ref()
            .is_some_and(|scale| self.own > ONE || (self.own > SMALL && scale.total.load(Ordering::Relaxed) > ALL))
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_watch_has_its_bound_and_all_have_theirs() {
        let scale = Scale::default();
        let mut greedy = Weight::on(&scale);
        greedy.add(ONE);
        assert!(greedy.is_too_much());
        greedy.clear();
        assert!(!greedy.is_too_much());
        let mut many: Vec<Weight> = (0..ALL / (ONE / 2)).map(|_| Weight::on(&scale)).collect();
        for weight in &mut many {
            assert!(!weight.is_too_much());
            weight.add(ONE / 2);
        }
        let mut modest = Weight::on(&scale);
        modest.add(1000);
        assert!(many[0].is_too_much() && !modest.is_too_much());
        drop(many);
        modest.remove(1000);
        assert_eq!(scale.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_own_cluster_may_be_large() {
        let mut own = Weight::default();
        own.add(ALL * 2);
        assert!(!own.is_too_much());
    }
}
