//! What leaves: the prune set of a pass, claims by two stages, and the guard against losing most of a stage
//! (run 19.2, decisions 6).

use std::collections::{BTreeMap, BTreeSet};

use super::{Entries, Entry, ObjectId};

/// What is recorded for a stage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredStage {
    pub name: String,
    /// Index of the stage in the spec when its record was written; 0 where it is not recorded.
    pub position: i64,
    pub entries: Entries,
    /// How many of them were recorded when the release was last in place: what runs have come to render since does not
    /// make the loss of those smaller.
    pub settled: usize,
    /// Of the entries, some that were recorded after that.
    pub added: BTreeSet<ObjectId>,
}

/// What a stage of the spec renders in this pass; in spec order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DesiredStage {
    pub name: String,
    /// `stages[].prune`; true by default.
    pub prune: bool,
    pub ids: BTreeSet<ObjectId>,
}

/// What a pass takes out of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePrune {
    pub stage: String,
    /// The stage left the spec: it is torn down, and its shards are deleted afterwards.
    pub removed: bool,
    /// Number of objects recorded for the stage when the release was last in place.
    pub recorded: usize,
    /// How many of those are to be deleted, at most.
    pub lost: usize,
    /// To be deleted, with the recorded version; sorted by id.
    pub delete: Vec<Entry>,
    /// Now claimed by another stage (named): taken off this record without a delete.
    pub moved: Vec<(ObjectId, String)>,
    /// Left alone because the stage has `prune: false`: no longer recorded, not deleted.
    pub forgotten: Vec<ObjectId>,
}

/// An object that two stages render in one pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{id} is rendered by both stage {first:?} and stage {second:?}; \
     an object belongs to one stage: remove it from one of them"
)]
pub struct DuplicateClaim {
    pub id: ObjectId,
    pub first: String,
    pub second: String,
}

/// All objects that more than one stage renders, in spec order.
pub fn find_duplicate_claims(desired: &[DesiredStage]) -> Vec<DuplicateClaim> {
    let mut claims = BTreeMap::new();
    let mut duplicates = Vec::new();
    for stage in desired {
        for id in &stage.ids {
            match claims.get(id) {
                Some(first) => duplicates.push(DuplicateClaim {
                    id: id.clone(),
                    first: String::clone(first),
                    second: stage.name.clone(),
                }),
                None => {
                    claims.insert(id, stage.name.clone());
                }
            }
        }
    }
    duplicates
}

/// Plans what leaves each stage, last stage first: recorded minus rendered, minus what another stage claims now.
/// A stage that left the spec keeps its recorded position in the order (name ascending where positions are
/// equal) and is always torn down. Stages with nothing to do are left out.
///
/// # Errors
/// Every object that two stages render.
pub fn prune_set(stored: &[StoredStage], desired: &[DesiredStage]) -> Result<Vec<StagePrune>, Vec<DuplicateClaim>> {
    let duplicates = find_duplicate_claims(desired);
    if !duplicates.is_empty() {
        return Err(duplicates);
    }
    let claims: BTreeMap<&ObjectId, &str> = desired
        .iter()
        .flat_map(|stage| stage.ids.iter().map(|id| (id, stage.name.as_str())))
        .collect();
    let mut plans: Vec<(i64, StagePrune)> = stored
        .iter()
        .map(|record| {
            let place = desired.iter().position(|stage| stage.name == record.name);
            let stage = place.map(|index| &desired[index]);
            let position = place.map_or(record.position, |index| index as i64);
            (position, plan_stage(record, stage, &claims))
        })
        .filter(|(_, plan)| plan.removed || !plan.is_empty())
        .collect();
    plans.sort_by(|(left, a), (right, b)| {
        let last_first = right.cmp(left);
        last_first
            .then(b.removed.cmp(&a.removed))
            .then_with(|| a.stage.cmp(&b.stage))
    });
    Ok(plans.into_iter().map(|(_, plan)| plan).collect())
}

fn plan_stage(record: &StoredStage, stage: Option<&DesiredStage>, claims: &BTreeMap<&ObjectId, &str>) -> StagePrune {
    let mut plan = StagePrune {
        stage: record.name.clone(),
        removed: stage.is_none(),
        recorded: record.settled,
        lost: 0,
        delete: Vec::new(),
        moved: Vec::new(),
        forgotten: Vec::new(),
    };
    for (id, version) in &record.entries {
        match claims.get(id) {
            Some(&owner) if owner == record.name => {}
            Some(&owner) => plan.moved.push((id.clone(), owner.to_owned())),
            None if stage.is_some_and(|stage| !stage.prune) => plan.forgotten.push(id.clone()),
            None => plan.delete.push(Entry {
                id: id.clone(),
                version: version.clone(),
            }),
        }
    }
    let lost = plan.delete.iter().filter(|entry| !record.added.contains(&entry.id));
    plan.lost = lost.count().min(record.settled);
    plan
}

/// Marks on a shard how many of its entries were in place with a release; `release` is the release's own mark.
pub fn mark_settled(release: &str, count: usize) -> String {
    format!("{release} {count}")
}

/// How many of a shard's `entries` were in place with `release`, by the mark on it. One that is of another release says
/// nothing: then all of them were.
pub fn settled(mark: Option<&str>, release: &str, entries: usize) -> usize {
    let counted = mark.and_then(|mark| mark.split_once(' '));
    match counted.filter(|(of, _)| *of == release) {
        Some((_, count)) => count.parse().map_or(entries, |count: usize| count.min(entries)),
        None => entries,
    }
}

impl StagePrune {
    /// True where nothing leaves the stage.
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.moved.is_empty() && self.forgotten.is_empty()
    }
}

/// The guard against a render that lost most of a stage by mistake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PruneGuard {
    /// More than this share of a stage's recorded objects is too much (0..1; 1 switches the guard off).
    pub share: f64,
    /// Fewer deletes than this are never held.
    pub min: usize,
}

impl Default for PruneGuard {
    fn default() -> Self {
        PruneGuard { share: 0.5, min: 20 }
    }
}

/// A prune that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "stage {stage:?} would lose {lost} of its {recorded} objects, for example {example}; \
     if that is meant, confirm with the annotation stages.metio.wtf/confirm-prune: {revision}"
)]
pub struct PruneHold {
    pub stage: String,
    pub lost: usize,
    pub recorded: usize,
    pub example: Box<ObjectId>,
    /// The pinned revision, which is also the word of confirmation.
    pub revision: String,
}

impl PruneGuard {
    /// Holds a plan that deletes too much of a stage that is still in the spec, unless `confirmed` (the value of
    /// the confirmation annotation) names the stage's pinned `revision`.
    pub fn check(&self, plan: &StagePrune, revision: &str, confirmed: Option<&str>) -> Result<(), PruneHold> {
        let too_many = plan.lost >= self.min && plan.lost as f64 > self.share * plan.recorded as f64;
        let Some(example) = plan.delete.first().filter(|_| too_many && !plan.removed) else {
            return Ok(());
        };
        if confirmed == Some(revision) {
            return Ok(());
        }
        Err(PruneHold {
            stage: plan.stage.clone(),
            lost: plan.lost,
            recorded: plan.recorded,
            example: Box::new(example.id.clone()),
            revision: revision.to_owned(),
        })
    }
}
