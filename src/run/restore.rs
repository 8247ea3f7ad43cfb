//! Records that were lost: rebuilt from what is rendered and from live objects that carry our labels, before
//! anything else is decided (run 26, 28 B36). What was found but is not rendered is pruned by a later pass.

use std::collections::BTreeSet;

use super::notify::Notice;
use super::outcome::Failure;
use super::pass::Pass;
use super::record::{self, Record};
use crate::api::names::label;
use crate::api::{Reason, Stage};
use crate::cluster::{Target, Tenant};
use crate::rules::inventory::{Entries, Entry, union};

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
            let complete = self.restore(at, stage).await.map_err(|failure| (at, failure))?;
            restored.push(if complete {
                stage.name.clone()
            } else {
                format!("{} (incomplete)", stage.name)
            });
        }
        if restored.is_empty() {
            return Ok(false);
        }
        let note = format!(
            "the inventory of {} was lost and has been rebuilt from labels; pruning waits for the next pass",
            restored.join(", ")
        );
        tracing::warn!(stages = restored.join(", "), "inventory rebuilt from labels");
        self.ctx
            .notifier
            .send(Notice::about(&self.set, Reason::InventoryReconstructed, true, note));
        Ok(true)
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

    async fn restore(&mut self, at: usize, stage: &Stage) -> Result<bool, Failure> {
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
        let mut kinds: BTreeSet<(String, String)> = rendered
            .objects
            .iter()
            .filter_map(|o| Target::of(o).ok())
            .map(|t| (t.api_version, t.kind))
            .collect();
        kinds.extend(record.entries().into_iter().map(|(id, version)| {
            let entry = Entry { id, version };
            (entry.api_version(), entry.id.kind)
        }));
        if let Some(memory) = self.memory.stages.get(&stage.name) {
            kinds.extend(
                memory
                    .objects
                    .iter()
                    .map(|(id, known)| (known.api_version.clone(), id.kind.clone())),
            );
        }
        let mut complete = true;
        for (api_version, kind) in kinds {
            match self.labelled(&tenant, stage, api_version, kind).await {
                Ok(found) => wanted.extend(found),
                Err(()) => complete = false,
            }
        }
        let recorder = self.recorder(at, stage).before_prune(&record, &now);
        let shards = recorder.write(&stored, &wanted).await;
        let shards = shards.map_err(|e| Failure::of_request("record inventory", &e))?;
        let entry = &mut self.status.stages[at];
        // What only labels knew is to be pruned; until then the record holds more than the status speaks of.
        entry.entries_count = i64::try_from(expected).ok();
        entry.shards = i32::try_from(shards).ok();
        Ok(complete)
    }

    /// Live objects of one kind that carry the three labels of this stage.
    async fn labelled(&self, tenant: &Tenant, stage: &Stage, api_version: String, kind: String) -> Result<Entries, ()> {
        let selector = format!(
            "{}={},{}={},{}={}",
            label::NAME,
            self.owner.name,
            label::NAMESPACE,
            self.owner.namespace,
            label::STAGE,
            stage.name
        );
        let target = Target {
            api_version,
            kind,
            namespace: None,
            name: String::new(),
        };
        let mut found = tenant.list(&target, Some(&selector)).await;
        if found.is_err() {
            // A tenant usually may list its own namespace alone.
            let own = Target {
                namespace: Some(self.owner.namespace.clone()),
                ..target.clone()
            };
            found = tenant.list(&own, Some(&selector)).await;
        }
        let items = found.map_err(|error| tracing::info!(%error, kind = target.kind, "objects cannot be listed"))?;
        Ok(items
            .into_iter()
            .filter_map(|mut item| {
                item["apiVersion"] = target.api_version.clone().into();
                item["kind"] = target.kind.clone().into();
                Entry::of(&item).map(|e| (e.id, e.version))
            })
            .collect())
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
