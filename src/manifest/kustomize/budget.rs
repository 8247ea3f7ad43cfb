//! What one build may hold, all layers together: a tiny artifact can stand for gigabytes.

use std::cell::Cell;

use super::error::Problem;
use super::resource::Resource;
use crate::manifest::node::{Map, Node};

/// Values of one build; ten thousand objects of the usual size have a quarter of that.
pub(crate) const MOST: usize = 4_000_000;
/// Bytes of text that take as much as a value.
const TEXT: usize = 64;

/// There is more than a build may hold.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
#[error("the objects of the build grow past {MOST} values")]
pub struct Heavy;

impl From<Heavy> for Problem {
    fn from(_: Heavy) -> Self {
        Self::TooMuch {
            what: "values",
            limit: MOST,
        }
    }
}

/// What a transformer may still add.
#[derive(Debug)]
pub(crate) struct Allowance(Cell<usize>);

impl Allowance {
    /// As much as `left`.
    pub fn of(left: usize) -> Self {
        Self(Cell::new(left))
    }

    /// Takes a weight before what has it is made.
    pub fn take(&self, weight: usize) -> Result<(), Heavy> {
        self.0.set(self.0.get().checked_sub(weight).ok_or(Heavy)?);
        Ok(())
    }

    /// What is left.
    pub fn left(&self) -> usize {
        self.0.get()
    }
}

/// Weight of a text.
pub(crate) fn of_text(text: &str) -> usize {
    1 + text.len() / TEXT
}

/// Weight of a node.
pub(crate) fn of_node(node: &Node) -> usize {
    match node {
        Node::Scalar(scalar) => of_text(&scalar.text),
        Node::Seq(items) => 1 + items.iter().map(of_node).sum::<usize>(),
        Node::Map(map) => of_map(map),
    }
}

/// Weight of a mapping.
pub(crate) fn of_map(map: &Map) -> usize {
    1 + map
        .iter()
        .map(|(key, node)| key.len() / TEXT + of_node(node))
        .sum::<usize>()
}

/// Weight of resources.
pub(crate) fn of_all(resources: &[Resource]) -> usize {
    resources.iter().map(|resource| of_map(&resource.root)).sum()
}

/// The resources of one layer while its transformers run. What is added is summed up; only where that comes near the
/// bound, the resources are weighed anew, since what is added often takes the place of something.
pub(crate) struct Scale {
    /// Of the layers around this one.
    held: usize,
    known: usize,
    added: usize,
}

impl Scale {
    /// For resources of a known weight.
    pub fn new(held: usize, known: usize) -> Self {
        Self { held, known, added: 0 }
    }

    /// What the next transformer may add.
    pub fn allowance(&mut self, resources: &[Resource]) -> Result<Allowance, Heavy> {
        let room = MOST.saturating_sub(self.held + self.known);
        if self.added > room / 2 {
            self.known = of_all(resources);
            self.added = 0;
        }
        let left = MOST.checked_sub(self.held + self.known + self.added).ok_or(Heavy)?;
        Ok(Allowance::of(left))
    }

    /// What was added by it.
    pub fn spent(&mut self, before: usize, allowance: &Allowance) {
        self.added += before - allowance.left();
    }
}
