//! Records that were lost: rebuilt from what is rendered and from live objects that carry our labels, before
//! anything else is decided (run 26, 28 B36). What was found but is not rendered is pruned by a later pass.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::StreamExt;

use super::notify::Notice;
use super::outcome::{End, Failure, Wake};
use super::pass::Pass;
use super::record::{self, Record};
use crate::api::names::label;
use crate::api::{Reason, Stage};
use crate::cluster::{Target, Tenant};
use crate::rules::inventory::{DesiredStage, Entries, Entry, ObjectId, union};

/// Kinds listed at once.
const LISTS_AT_ONCE: usize = 4;

/// What to list: kinds, each in one namespace or wherever the tenant may; no names.
type Kinds = BTreeSet<Target>;

/// A kind, wherever the tenant may.
fn anywhere(api_version: String, kind: String) -> Target {
    Target {
        api_version,
        kind,
        namespace: None,
        name: String::new(),
    }
}

/// A stage, with what its record may lack.
fn told(stage: &str, unlisted: &[String]) -> String {
    if unlisted.is_empty() {
        stage.to_owned()
    } else {
        format!("{stage} (incomplete: {} cannot be listed)", unlisted.join(", "))
    }
}

impl Pass<'_> {
    /// Rebuilds the records of stages that have lost some. `true` when one was rebuilt: then nothing is pruned in
    /// this pass.
    ///
    /// # Errors
    /// The stage whose record cannot be rebuilt, and why.
    pub(super) async fn restore_records(&mut self) -> Result<bool, (usize, Failure)> {
        let spec = self.set.spec.clone();
        let mut restored = Vec::new();
        for (at, stage) in spec.stages.iter().enumerate() {
            let recorded = record::of_stage(self.ctx, self.owner, &stage.name);
            self.count_unreadable(stage, &recorded);
            if !self.has_lost_records(at, &recorded) {
                continue;
            }
            let unlisted = self.restore(at, stage).await.map_err(|failure| (at, failure))?;
            restored.push(told(&stage.name, &unlisted));
        }
        if restored.is_empty() {
            return Ok(false);
        }
        self.tell_restored(&restored.join(", "));
        Ok(true)
    }

    fn tell_restored(&self, stages: &str) {
        let note = format!(
            "the inventory of {stages} was lost and has been rebuilt from labels; pruning waits for the next pass"
        );
        tracing::warn!(stages, "inventory rebuilt from labels");
        self.ctx
            .notifier
            .send(Notice::about(&self.set, Reason::InventoryReconstructed, true, note));
    }

    /// A stage without record and status is new, or comes from a backup that had neither. It is known for the latter by an
    /// object of its own that it was about to create: then what its earlier life has left of the kinds and namespaces it
    /// has now is found by its labels, and recorded with the rest. Nothing is pruned in this pass.
    ///
    /// # Errors
    /// The record cannot be written; the next attempt looks again.
    pub(super) async fn find_earlier(&mut self, at: usize, stage: &Stage, tenant: &Tenant) -> Result<(), Failure> {
        let objects = self.memory.stages.get(&stage.name).map(|m| &m.objects);
        let kinds = objects.into_iter().flatten().map(|(id, known)| Target {
            namespace: (!id.namespace.is_empty()).then(|| id.namespace.clone()),
            ..anywhere(known.api_version.clone(), id.kind.clone())
        });
        let (found, unlisted) = self.labelled_of(tenant, stage, kinds.collect()).await;
        let record = record::of_stage(self.ctx, self.owner, &stage.name);
        let stored = record.entries();
        let wanted = union(&stored, &found);
        if wanted.len() > stored.len() {
            let mut recorder = self.recorder(at, stage);
            recorder.settles = true;
            let shards = recorder.write(&stored, &wanted).await;
            let shards = shards.map_err(|e| Failure::of_request("record inventory", &e))?;
            let entry = &mut self.status.stages[at];
            entry.entries_count = i64::try_from(wanted.len()).ok();
            entry.shards = i32::try_from(shards).ok();
            self.prune_deferred = true;
            self.tell_restored(&told(&stage.name, &unlisted));
        }
        Ok(())
    }

    /// Live objects of these kinds that carry the labels of a stage, and the kinds that could not be listed.
    async fn labelled_of(&self, tenant: &Tenant, stage: &Stage, kinds: Kinds) -> (Entries, Vec<String>) {
        let (mut found, mut unlisted) = (Entries::new(), Vec::new());
        let looks = kinds.into_iter().map(|target| async move {
            let found = self.labelled(tenant, stage, &target).await;
            found.map_err(|()| target.kind)
        });
        let mut looks = futures::stream::iter(looks).buffer_unordered(LISTS_AT_ONCE);
        while let Some(look) = looks.next().await {
            match look {
                Ok(some) => found.extend(some),
                Err(kind) => unlisted.push(kind),
            }
        }
        unlisted.sort_unstable();
        unlisted.dedup();
        (found, unlisted)
    }

    /// Counts, once each, recorded entries that cannot be read: what they stand for escapes pruning (run 17.3).
    fn count_unreadable(&mut self, stage: &Stage, recorded: &Record) {
        for entry in recorded.shards.iter().flat_map(|shard| &shard.malformed) {
            if self.memory.unreadable.insert(entry.id.clone()) {
                tracing::warn!(
                    stage = stage.name,
                    entry = entry.id,
                    "an inventory entry cannot be read"
                );
                let labels = [self.owner.namespace.as_str(), &self.owner.name, &stage.name];
                self.ctx.metrics.skipped_entries.with_label_values(&labels).inc();
            }
        }
    }

    fn has_lost_records(&self, at: usize, recorded: &Record) -> bool {
        let entry = &self.status.stages[at];
        let wanted = entry.entries_count.unwrap_or_default();
        let shards = entry.shards.unwrap_or_default();
        entry.applied_revision.is_some()
            && (i64::try_from(recorded.entries().len()).is_ok_and(|n| n < wanted)
                || i32::try_from(recorded.shards.len()).is_ok_and(|n| n < shards))
    }

    async fn restore(&mut self, at: usize, stage: &Stage) -> Result<Vec<String>, Failure> {
        let tenant = self.tenant(stage);
        let rendered = self.render(at, stage, &tenant).await?;
        let now: Entries = rendered
            .objects
            .iter()
            .filter_map(Entry::of)
            .map(|e| (e.id, e.version))
            .collect();
        let record = record::of_stage(self.ctx, self.owner, &stage.name);
        let stored = record.entries();
        let mut wanted = union(&stored, &now);
        let expected = wanted.len();
        let targets = rendered.objects.iter().filter_map(|o| Target::of(o).ok());
        let mut kinds: Kinds = targets.map(|t| anywhere(t.api_version, t.kind)).collect();
        kinds.extend(stored.iter().map(|(id, version)| {
            let entry = Entry {
                id: id.clone(),
                version: version.clone(),
            };
            anywhere(entry.api_version(), entry.id.kind)
        }));
        if let Some(memory) = self.memory.stages.get(&stage.name) {
            let objects = memory.objects.iter();
            kinds.extend(objects.map(|(id, known)| anywhere(known.api_version.clone(), id.kind.clone())));
        }
        let (found, unlisted) = self.labelled_of(&tenant, stage, kinds).await;
        wanted.extend(found);
        let recorder = self.recorder(at, stage).before_apply(&record);
        // All of it was in place.
        let shards = recorder.write(&wanted, &wanted).await;
        let shards = shards.map_err(|e| Failure::of_request("record inventory", &e))?;
        let entry = &mut self.status.stages[at];
        // What only labels knew is to be pruned; until then the record holds more than the status speaks of.
        entry.entries_count = i64::try_from(expected).ok();
        entry.shards = i32::try_from(shards).ok();
        Ok(unlisted)
    }

    /// Live objects of one kind that carry the three labels of this stage.
    async fn labelled(&self, tenant: &Tenant, stage: &Stage, target: &Target) -> Result<Entries, ()> {
        let selector = format!(
            "{}={},{}={},{}={}",
            label::NAME,
            self.owner.name,
            label::NAMESPACE,
            self.owner.namespace,
            label::STAGE,
            stage.name
        );
        let own = Target {
            namespace: Some(self.owner.namespace.clone()),
            ..target.clone()
        };
        // A tenant usually may list its own namespace alone.
        let narrower = target.namespace.is_none().then_some(&own);
        let mut error = None;
        for place in [Some(target), narrower].into_iter().flatten() {
            let mut found = Entries::new();
            let looked = tenant.scan(place, Some(&selector), |mut item| {
                item["apiVersion"] = target.api_version.clone().into();
                item["kind"] = target.kind.clone().into();
                found.extend(Entry::of(&item).map(|e| (e.id, e.version)));
                ControlFlow::Continue(())
            });
            match looked.await {
                Ok(()) => return Ok(found),
                Err(e) => error = Some(e),
            }
        }
        tracing::info!(
            error = error.map(tracing::field::display),
            kind = target.kind,
            "objects cannot be listed"
        );
        Err(())
    }

    /// Whether a stage renders something that is not recorded for it. What was applied always is, so this has not been:
    /// another version of the controller made other objects of the same inputs, such as another suffix of a name.
    pub(super) fn is_unrecorded(&self, stage: &Stage, ids: &BTreeSet<ObjectId>) -> bool {
        let recorded = record::of_stage(self.ctx, self.owner, &stage.name).entries();
        ids.iter().any(|id| !recorded.contains_key(id))
    }

    /// The first stage that renders something unrecorded. Pruning what it rendered before would leave it with neither.
    pub(super) fn unapplied(&self, desired: &[DesiredStage]) -> Option<usize> {
        let stages = self.set.spec.stages.iter().zip(desired);
        let mut stages = stages.enumerate();
        stages.find_map(|(at, (stage, desired))| self.is_unrecorded(stage, &desired.ids).then_some(at))
    }

    /// Has the run, or a new one, apply a stage again although its inputs are the same: recorded first, as ever, and only
    /// then pruned.
    pub(super) fn apply_anew(&mut self, at: usize) -> End {
        let entry = &mut self.status.stages[at];
        entry.inputs_digest = None;
        tracing::info!(
            stage = entry.name,
            "the same inputs render to other objects than were applied"
        );
        self.unfinished(
            at,
            "renders other objects than were applied; applies them",
            Wake::In(Duration::ZERO),
        )
    }

    /// Whether more is recorded than is wanted: something is left to prune although no run is under way.
    pub(super) fn has_leftovers(&self) -> bool {
        let spec = &self.set.spec;
        let records = record::all(self.ctx, self.owner);
        records.iter().any(|(stored, _)| {
            let at = spec.stages.iter().position(|s| s.name == stored.name);
            let known = self.memory.stages.get(&stored.name);
            match (at, known) {
                (None, _) => true,
                (Some(at), Some(known)) if self.knows_inputs(at) => {
                    spec.stages[at].prunes() && stored.entries.keys().any(|id| !known.objects.contains_key(id))
                }
                _ => false,
            }
        })
    }
}
