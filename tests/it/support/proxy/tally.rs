//! Questions to the proxy's log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    call::{Call, Class, Verb},
    faults::Match,
};

/// One request with its outcome.
#[derive(Clone, Debug)]
pub struct Record {
    pub index: usize,
    pub call: Call,
    pub started: Instant,
    /// When the server had answered; a watch has answered when its stream has begun.
    pub finished: Option<Instant>,
    pub status: Option<u16>,
}

impl Record {
    pub(super) fn started(index: usize, call: Call) -> Self {
        Self {
            index,
            call,
            started: Instant::now(),
            finished: None,
            status: None,
        }
    }
}

/// A part of the log.
#[derive(Clone, Debug)]
pub struct Tally {
    records: Vec<Record>,
}

impl Tally {
    pub(super) fn new(records: Vec<Record>) -> Self {
        Self { records }
    }

    /// Requests in the order of their arrival.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Requests that change the cluster: no dry run, no Lease, no Event.
    pub fn writes(&self) -> Self {
        self.only(|r| r.call.class() == Class::Write)
    }

    /// GETs and LISTs of objects: no watch, no discovery.
    pub fn object_reads(&self) -> Self {
        // The controller asks for the cluster's version by a list of StageSets, whatever else it does.
        self.only(|r| match r.call.verb {
            Verb::Get => true,
            Verb::List => r.call.resource != "stagesets",
            _ => false,
        })
    }

    pub fn events(&self) -> Self {
        self.only(|r| r.call.class() == Class::Event)
    }

    pub fn dry_runs(&self) -> Self {
        self.only(|r| r.call.class() == Class::DryRun)
    }

    /// Requests the matcher hits.
    pub fn matching(&self, wanted: &Match) -> Self {
        self.only(|r| wanted.hits(&r.call))
    }

    /// Requests about one namespace.
    pub fn within(&self, namespace: &str) -> Self {
        self.only(|r| r.call.namespace == namespace)
    }

    fn only(&self, keep: impl Fn(&Record) -> bool) -> Self {
        Self {
            records: self.records.iter().filter(|r| keep(r)).cloned().collect(),
        }
    }

    pub fn count(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The first of them.
    pub fn first(&self) -> Option<&Record> {
        self.records.first()
    }

    /// How often each object was read (GET only), by `resource/namespace/name`.
    pub fn gets_per_object(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for record in self.records.iter().filter(|r| r.call.verb == Verb::Get) {
            let call = &record.call;
            *counts
                .entry(format!("{}/{}/{}", call.resource, call.namespace, call.name))
                .or_insert(0) += 1;
        }
        counts
    }

    /// From the arrival of the first to the answer of the last.
    pub fn span(&self) -> Duration {
        let first = self.records.iter().map(|r| r.started).min();
        let last = self.records.iter().filter_map(|r| r.finished).max();
        first
            .zip(last)
            .map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first))
    }

    /// One line per request, for a failure message.
    pub fn lines(&self) -> String {
        self.records
            .iter()
            .map(|r| {
                format!(
                    "  {} -> {}",
                    r.call.line(),
                    r.status.map_or("unanswered".to_owned(), |s| s.to_string())
                )
            })
            .collect::<Vec<_>>()
            .join("\n")
    }
}
