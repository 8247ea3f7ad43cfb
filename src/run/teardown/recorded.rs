//! What there is to tear down: what is recorded, what was in records that others have taken away, and, where even that is
//! less than the status counts, what carries our labels. Collecting the records is up to the cluster: it does so before
//! us where a deletion says so, or where the whole namespace goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures::StreamExt;

use super::obstacle::Obstacle;
use super::{NAMED, Teardown, is_left_alone};
use crate::api::names::label;
use crate::api::{InventoryTarget, Reason};
use crate::cluster::{Error, Target, Tenant};
use crate::rules::inventory::{Entries, Entry, StoredStage};
use crate::run::notify::Notice;
use crate::run::prune::successor;
use crate::run::record::{self, Record};
use crate::run::target::{of_record, same_reference};

/// Kinds listed at once.
const LISTS_AT_ONCE: usize = 4;

/// The record of a stage.
pub type Found = (StoredStage, Record);

impl Teardown<'_> {
    /// What there is to tear down, last stage first, and why there may be more.
    pub(super) async fn recorded(&mut self) -> (Vec<Found>, Option<Obstacle>) {
        let mut stages = record::all(self.ctx, self.owner);
        add(&mut stages, record::all_lost(self.ctx, self.owner, self.set));
        let mut unknown = None;
        if self.is_incomplete(&stages) {
            if self.memory.teardown.found.is_none() {
                match self.find().await {
                    Ok(found) => self.memory.teardown.found = Some(found),
                    Err(why) => unknown = Some(Obstacle::unread(&why)),
                }
            }
            add(&mut stages, self.memory.teardown.found.clone().unwrap_or_default());
        }
        stages.sort_by(|(a, _), (b, _)| b.position.cmp(&a.position).then_with(|| a.name.cmp(&b.name)));
        (stages, unknown)
    }

    /// Whether a stage has fewer objects recorded than its status counts.
    fn is_incomplete(&self, stages: &[Found]) -> bool {
        let counted = self.set.status.iter().flat_map(|s| &s.stages);
        counted.into_iter().any(|stage| {
            let known = stages.iter().filter(|(stored, _)| stored.name == stage.name);
            let known: usize = known.map(|(stored, _)| stored.entries.len()).sum();
            let wanted = stage.entries_count.unwrap_or_default();
            i64::try_from(known).is_ok_and(|known| known < wanted)
        })
    }

    /// Finds what the stages have on the cluster of the spec by its labels, each as the account of its stage.
    async fn find(&self) -> Result<Vec<Found>, String> {
        let spec = &self.set.spec;
        let stages = spec.stages.iter().map(|s| s.name.as_str());
        let accounts: BTreeSet<Option<&str>> = stages.chain([""]).map(|stage| successor(spec, stage, None)).collect();
        let mut found = Vec::new();
        let mut unlisted = BTreeSet::new();
        for account in accounts {
            let record = Record {
                account: account.map(str::to_owned),
                target: spec.kube_config.as_ref().map(|reference| InventoryTarget {
                    cluster_id: None,
                    kube_config: Some(reference.clone()),
                }),
                ..Record::default()
            };
            for (name, entries) in self.find_as(&record, &mut unlisted).await? {
                if successor(spec, &name, None) != account {
                    continue;
                }
                let at = spec.stages.iter().position(|s| s.name == name);
                let stored = StoredStage {
                    position: at.and_then(|at| i64::try_from(at).ok()).unwrap_or_default(),
                    settled: entries.len(),
                    added: BTreeSet::new(),
                    name,
                    entries,
                };
                found.push((stored, record.clone()));
            }
        }
        self.tell_found(&found, &unlisted);
        Ok(found)
    }

    /// What carries our labels where a record would have it and its account may look, by the stages it names.
    async fn find_as(
        &self,
        record: &Record,
        unlisted: &mut BTreeSet<String>,
    ) -> Result<BTreeMap<String, Entries>, String> {
        let cluster = of_record(self.ctx, self.owner, self.set, record).await;
        let cluster = cluster.map_err(|e| e.to_string())?;
        let kinds = cluster.kinds().listable(&cluster.own_client()).await;
        let kinds = kinds.map_err(|e| e.to_string())?;
        let tenant = &cluster.acting_for(&self.owner.namespace, record.account.as_deref());
        let looks = kinds.into_iter().map(|kind| self.labelled(tenant, kind));
        let mut looks = futures::stream::iter(looks).buffer_unordered(LISTS_AT_ONCE);
        let mut found: BTreeMap<String, Entries> = BTreeMap::new();
        while let Some(look) = looks.next().await {
            match look.map_err(|e| e.to_string())? {
                Look::Forbidden(kind) => {
                    unlisted.insert(kind);
                }
                Look::Found(some) => {
                    for (stage, entry) in some {
                        found.entry(stage).or_default().insert(entry.id, entry.version);
                    }
                }
            }
        }
        Ok(found)
    }

    fn tell_found(&self, found: &[Found], unlisted: &BTreeSet<String>) {
        let going = found.iter().filter(|(stored, _)| !is_left_alone(self.set, stored));
        let count: usize = going.map(|(stored, _)| stored.entries.len()).sum();
        let mut note = format!("the inventory was lost; the teardown goes by the labels of {count} objects");
        if !unlisted.is_empty() {
            let named: Vec<&str> = unlisted.iter().take(NAMED).map(String::as_str).collect();
            let more = if unlisted.len() > NAMED { " and others" } else { "" };
            note.push_str(&format!(" (incomplete: {}{more} cannot be listed)", named.join(", ")));
        }
        tracing::warn!(count, unlisted = unlisted.len(), "teardown by labels");
        let notice = Notice::about(self.set, Reason::InventoryReconstructed, true, note);
        self.ctx.notifier.send(notice);
    }

    /// Live objects of one kind that carry the labels of this StageSet, with the stage each names; wherever the tenant may
    /// look, or in the namespace of the StageSet alone.
    async fn labelled(&self, tenant: &Tenant, (api_version, kind): (String, String)) -> Result<Look, Error> {
        let owner = self.owner;
        let selector = format!(
            "{}={},{}={}",
            label::NAME,
            owner.name,
            label::NAMESPACE,
            owner.namespace
        );
        for namespace in [None, Some(owner.namespace.clone())] {
            let place = Target {
                api_version: api_version.clone(),
                kind: kind.clone(),
                namespace,
                name: String::new(),
            };
            let mut found = Vec::new();
            let looked = tenant.scan(&place, Some(&selector), |mut item| {
                item["apiVersion"] = api_version.clone().into();
                item["kind"] = kind.clone().into();
                let stage = crate::cluster::label(&item, label::STAGE)
                    .unwrap_or_default()
                    .to_owned();
                // What another object controls has its labels from there, and goes with it.
                found.extend(Entry::of(&item).filter(|_| !is_controlled(&item)).map(|e| (stage, e)));
                ControlFlow::Continue(())
            });
            match looked.await {
                Ok(()) => return Ok(Look::Found(found)),
                Err(e) if e.is_forbidden() => {}
                // It is not served any more, or its server takes no lists.
                Err(Error::UnknownKind { .. }) => return Ok(Look::Found(Vec::new())),
                Err(e) if e.is_not_found() || e.code() == Some(405) => return Ok(Look::Found(Vec::new())),
                Err(e) => return Err(e),
            }
        }
        Ok(Look::Forbidden(kind))
    }
}

/// What came of listing a kind.
enum Look {
    Found(Vec<(String, Entry)>),
    Forbidden(String),
}

fn is_controlled(object: &serde_json::Value) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(|o| o.as_array());
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner.get("controller").and_then(serde_json::Value::as_bool) == Some(true))
}

/// Adds what no record of the same cluster has yet.
fn add(stages: &mut Vec<Found>, more: Vec<Found>) {
    for (mut stored, record) in more {
        let there = |other: &Record| {
            let id = |record: &Record| record.target.as_ref().and_then(|t| t.cluster_id.clone());
            same_reference(other.target.as_ref(), record.target.as_ref())
                && id(other).zip(id(&record)).is_none_or(|(a, b)| a == b)
        };
        let known = |id: &_| {
            let mut there = stages.iter().filter(|(_, other)| there(other));
            there.any(|(stored, _)| stored.entries.contains_key(id))
        };
        stored.entries.retain(|id, _| !known(id));
        if !stored.entries.is_empty() {
            stages.push((stored, record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::KubeConfig;
    use crate::api::common::SecretKeyRef;
    use crate::rules::inventory::ObjectId;

    fn found(record: &str, far: bool, cluster: Option<&str>) -> Found {
        let secret = SecretKeyRef {
            name: "far".into(),
            key: None,
        };
        let reference = KubeConfig {
            config_map_ref: None,
            secret_ref: Some(secret),
        };
        let target = far.then(|| InventoryTarget {
            cluster_id: cluster.map(str::to_owned),
            kube_config: Some(reference),
        });
        let stored = StoredStage {
            position: 0,
            settled: 1,
            added: BTreeSet::new(),
            name: record.into(),
            entries: Entries::from([(ObjectId::new("ns", "a", "", "ConfigMap"), "v1".into())]),
        };
        let record = Record {
            target,
            ..Record::default()
        };
        (stored, record)
    }

    #[test]
    fn objects_of_the_same_name_on_two_clusters_are_two() {
        let mut stages = vec![found("web", false, None)];
        add(&mut stages, vec![found("web.1", false, None)]);
        assert_eq!(stages.len(), 1, "it is known");
        add(
            &mut stages,
            vec![found("web.2", true, Some("A")), found("web.3", true, Some("B"))],
        );
        assert_eq!(stages.len(), 3);
        add(
            &mut stages,
            vec![found("web.4", true, None), found("web.5", true, Some("B"))],
        );
        assert_eq!(stages.len(), 3, "which of them is not known, or it is");
    }
}
