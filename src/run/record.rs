//! The inventory: recorded before the apply, shrunk only after a confirmed prune (decisions 6).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::context::Context;
use crate::api::names::{API_VERSION, FIELD_MANAGER};
use crate::api::{InventoryTarget, StageInventory, StageSet, StageSetStatus};
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Identity, Preconditions, Target};
use crate::rules::inventory::{
    Entries, Entry, RawEntry, Shard, ShardWrite, StoredStage, choose_name, hashed_name, keys, mark_settled,
    parent_metadata, plain_name, plan_shards, rebase, settled, shard_labels, stored_entries,
};

/// Plans at most: each round has learned of one shard or one taken name.
const MAX_TRIES: usize = 8;

/// What is recorded for one stage.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub position: i64,
    /// ServiceAccount the objects were applied as.
    pub account: Option<String>,
    /// The cluster they were applied to; none for the local one.
    pub target: Option<InventoryTarget>,
    pub shards: Vec<Shard>,
}

impl Record {
    /// The union of the shards.
    pub fn entries(&self) -> Entries {
        stored_entries(&self.shards)
    }
}

/// The record of a stage, from the cache.
pub fn of_stage(ctx: &Context, owner: &Owner, stage: &str) -> Record {
    collect(&ctx.inventories.of(owner), stage)
}

/// The mark of the release that is or was in place last: it changes when a run gets through with another one.
pub fn release_of(set: &StageSet, status: &StageSetStatus) -> String {
    let mut hasher = Sha256::new();
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let revisions = status.last_applied_revisions.iter();
    for part in std::iter::once(uid).chain(revisions.flat_map(|(source, revision)| [source.as_str(), revision])) {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().take(4).map(|b| format!("{b:02x}")).collect()
}

/// The records of every stage, also of those that left the spec, with what was in place with a release.
pub fn all_since(ctx: &Context, owner: &Owner, release: &str) -> Vec<(StoredStage, Record)> {
    let shards = ctx.inventories.of(owner);
    let mut records = all(ctx, owner);
    for (stored, _) in &mut records {
        let own = shards.iter().filter(|s| stage_of(s) == Some(&stored.name));
        stored.settled = own.map(|s| settled(mark_on(s), release, s.spec.entries.len())).sum();
    }
    records
}

fn mark_on(shard: &StageInventory) -> Option<&str> {
    let annotations = shard.metadata.annotations.as_ref()?;
    annotations.get(keys::SETTLED).map(String::as_str)
}

/// The records of every stage, also of those that left the spec.
pub fn all(ctx: &Context, owner: &Owner) -> Vec<(StoredStage, Record)> {
    by_stage(&ctx.inventories.of(owner))
}

/// The same of the shards that others have taken away from `set` and that were not made anew.
pub fn all_lost(ctx: &Context, owner: &Owner, set: &StageSet) -> Vec<(StoredStage, Record)> {
    let mut lost = ctx.inventories.lost(owner);
    lost.retain(|shard| {
        let owners = shard.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|o| Some(&o.uid) == set.metadata.uid.as_ref())
    });
    by_stage(&lost)
}

fn by_stage(shards: &[Arc<StageInventory>]) -> Vec<(StoredStage, Record)> {
    let mut names: Vec<&str> = shards.iter().filter_map(|s| stage_of(s)).collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let record = collect(shards, name);
            let entries = record.entries();
            let stored = StoredStage {
                name: name.to_owned(),
                position: record.position,
                settled: entries.len(),
                added: BTreeSet::new(),
                entries,
            };
            (stored, record)
        })
        .collect()
}

fn stage_of(shard: &StageInventory) -> Option<&str> {
    shard.metadata.labels.as_ref()?.get(keys::STAGE).map(String::as_str)
}

fn collect(shards: &[Arc<StageInventory>], stage: &str) -> Record {
    let mut record = Record::default();
    for shard in shards.iter().filter(|s| stage_of(s) == Some(stage)) {
        let label = shard.metadata.labels.as_ref().and_then(|l| l.get(keys::SHARD));
        let raw = shard.spec.entries.iter().map(|e| (e.id.clone(), e.v.clone()));
        let name = shard.metadata.name.as_deref().unwrap_or_default();
        record.shards.push(Shard::read(name, label.map(String::as_str), raw));
        record.position = i64::from(shard.spec.stage_position.unwrap_or_default());
        record.account = record.account.or_else(|| shard.spec.service_account_name.clone());
        record.target = record.target.or_else(|| shard.spec.target.clone());
    }
    record
}

/// How a stage's record is to be written.
pub struct Recorder<'a> {
    pub ctx: &'a Context,
    pub set: &'a StageSet,
    pub owner: &'a Owner,
    pub stage: &'a str,
    pub position: usize,
    pub account: Option<String>,
    pub target: Option<InventoryTarget>,
    /// Mark of the release that was in place last.
    pub release: String,
    /// Nothing but what is in place is recorded now.
    pub settles: bool,
}

impl Recorder<'_> {
    /// The same before anything is applied: with the identity and on the cluster that what is stored was applied with.
    pub fn before_apply(self, stored: &Record) -> Self {
        let stores = !stored.entries().is_empty();
        self.with_leftovers(stored, stores)
    }

    /// The same where it is known whether something stored before is still to be pruned.
    pub fn with_leftovers(mut self, stored: &Record, leftovers: bool) -> Self {
        if leftovers {
            self.account.clone_from(&stored.account);
        }
        self.target = super::target::carried_over(stored, self.target.as_ref());
        self
    }

    /// Makes the shards hold `wanted`, which was decided on by what was `known` to be stored; no request where they do
    /// already. What turns out to be stored beyond that is kept. Returns their number.
    ///
    /// # Errors
    /// The first failed write. What was stored and is wanted is recorded after any number of writes.
    pub async fn write(&self, known: &Entries, wanted: &Entries) -> Result<usize, Error> {
        let mut clash = BTreeSet::new();
        for _ in 0..MAX_TRIES {
            let stored = of_stage(self.ctx, self.owner, self.stage);
            let wanted = &rebase(&stored.entries(), known, wanted);
            let in_use = self.ctx.inventories.known(|ns| ns == self.owner.namespace);
            let name_of = |shard: u32| {
                choose_name(&self.owner.name, self.stage, shard, |name| {
                    clash.contains(name) || self.taken(&in_use, name)
                })
            };
            let cap = self.ctx.config.inventory_shard_cap as usize;
            let writes = plan_shards(&stored.shards, wanted, cap, name_of);
            match self.carry_out(known, wanted, &writes).await {
                Ok(()) => return Ok(of_stage(self.ctx, self.owner, self.stage).shards.len()),
                Err(Clash::Name(name)) => {
                    clash.insert(name);
                }
                Err(Clash::Outdated) => {}
                Err(Clash::Failed(error)) => return Err(error),
            }
        }
        Err(Error::Busy {
            what: format!("record the inventory of stage {:?}", self.stage),
        })
    }

    /// Whether a name belongs to another StageSet's or stage's shard: `a-b` + `c` and `a` + `b-c` meet.
    fn taken(&self, in_use: &[Arc<StageInventory>], name: &str) -> bool {
        in_use.iter().any(|shard| {
            shard.metadata.name.as_deref() == Some(name)
                && !(stage_of(shard) == Some(self.stage)
                    && shard.metadata.labels.as_ref().and_then(|l| l.get(keys::STAGE_SET)) == Some(&self.owner.name))
        })
    }

    async fn carry_out(&self, known: &Entries, wanted: &Entries, writes: &[ShardWrite]) -> Result<(), Clash> {
        for write in writes {
            match write {
                ShardWrite::Put { index, name, entries } => self.put(*index, name, entries, (known, wanted)).await?,
                ShardWrite::Delete { name } => self.delete(name).await?,
            }
        }
        // Shards whose entries stay as they are get the header of the others.
        for shard in of_stage(self.ctx, self.owner, self.stage).shards {
            let found = self.ctx.inventories.of(self.owner);
            let Some(found) = found.iter().find(|s| s.metadata.name.as_deref() == Some(&shard.name)) else {
                continue;
            };
            if self.has_another_header(found) || self.has_old_owner(found) || self.is_to_settle(found) {
                let entries: Vec<RawEntry> = raw(found);
                let index = shard.index.unwrap_or_default();
                self.put(index, &shard.name, &entries, (known, wanted)).await?;
            }
        }
        Ok(())
    }

    /// Whether a shard still names a StageSet of this name that is gone: the collector would take it away.
    fn has_old_owner(&self, shard: &StageInventory) -> bool {
        let owners = shard.metadata.owner_references.iter().flatten();
        !owners
            .into_iter()
            .any(|o| Some(&o.uid) == self.set.metadata.uid.as_ref())
    }

    fn is_to_settle(&self, shard: &StageInventory) -> bool {
        let entries = shard.spec.entries.len();
        self.settles && settled(mark_on(shard), &self.release, entries) != entries
    }

    fn has_another_header(&self, shard: &StageInventory) -> bool {
        let spec = &shard.spec;
        i64::from(spec.stage_position.unwrap_or_default()) != self.position as i64
            || spec.service_account_name != self.account
            || spec.target != self.target
    }

    /// The mark that a shard gets: how many of its entries were in place with the last release.
    fn mark(&self, before: Option<&StageInventory>, entries: &[RawEntry], known: &Entries) -> String {
        let count = match before {
            _ if self.settles => entries.len(),
            Some(shard) => settled(mark_on(shard), &self.release, shard.spec.entries.len()),
            None => {
                let recorded = |e: &&RawEntry| Entry::parse(&e.id, &e.v).is_ok_and(|e| known.contains_key(&e.id));
                entries.iter().filter(recorded).count()
            }
        };
        mark_settled(&self.release, count)
    }

    fn target(&self, name: &str) -> Target {
        Target {
            api_version: API_VERSION.into(),
            kind: "StageInventory".into(),
            namespace: Some(self.owner.namespace.clone()),
            name: name.to_owned(),
        }
    }

    async fn put(
        &self,
        index: u32,
        name: &str,
        entries: &[RawEntry],
        (known, wanted): (&Entries, &Entries),
    ) -> Result<(), Clash> {
        let tenant = self.ctx.cluster.tenant(Identity::Controller);
        let shards = self.ctx.inventories.of(self.owner);
        let before = shards.iter().find(|s| s.metadata.name.as_deref() == Some(name));
        let mut body = self.body(index, name, entries, wanted);
        let mark = self.mark(before.map(AsRef::as_ref), entries, known);
        body["metadata"]["annotations"][keys::SETTLED] = Value::String(mark);
        let written = match before {
            None => tenant.create(&body, FIELD_MANAGER).await,
            Some(before) => {
                let mut patch = body;
                if let Some(meta) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
                    meta.insert("resourceVersion".into(), json!(before.metadata.resource_version));
                }
                tenant.merge(&self.target(name), None, &patch, FIELD_MANAGER).await
            }
        };
        match written {
            Ok(object) => self.took(object).map_err(Clash::Failed),
            Err(e) if e.already_exists() => self.look(name, &tenant).await,
            Err(e) if e.is_conflict() || e.is_not_found() => {
                self.refresh(name, &tenant).await?;
                Err(Clash::Outdated)
            }
            Err(e) => Err(Clash::Failed(e)),
        }
    }

    /// The name is taken: by a shard of ours that the cache has not seen yet, or by somebody else's.
    async fn look(&self, name: &str, tenant: &crate::cluster::Tenant) -> Result<(), Clash> {
        let Some(object) = tenant.get(&self.target(name)).await.map_err(Clash::Failed)? else {
            return Err(Clash::Outdated);
        };
        let ours = crate::cluster::label(&object, keys::STAGE_SET) == Some(&self.owner.name)
            && crate::cluster::label(&object, keys::STAGE) == Some(self.stage);
        if !ours {
            return Err(Clash::Name(name.to_owned()));
        }
        self.took(object).map_err(Clash::Failed)?;
        Err(Clash::Outdated)
    }

    async fn refresh(&self, name: &str, tenant: &crate::cluster::Tenant) -> Result<(), Clash> {
        match tenant.get(&self.target(name)).await.map_err(Clash::Failed)? {
            Some(object) => self.took(object).map_err(Clash::Failed),
            None => {
                let known = self.ctx.inventories.of(self.owner);
                if let Some(shard) = known.iter().find(|s| s.metadata.name.as_deref() == Some(name)) {
                    self.ctx.inventories.remove(shard);
                }
                Ok(())
            }
        }
    }

    async fn delete(&self, name: &str) -> Result<(), Clash> {
        let tenant = self.ctx.cluster.tenant(Identity::Controller);
        let known = self.ctx.inventories.of(self.owner);
        let before = known.iter().find(|s| s.metadata.name.as_deref() == Some(name));
        let only_if = Preconditions {
            uid: before.and_then(|s| s.metadata.uid.clone()),
            resource_version: None,
        };
        tenant
            .delete(&self.target(name), &only_if)
            .await
            .map_err(Clash::Failed)?;
        if let Some(shard) = before {
            self.ctx.inventories.remove(shard);
        }
        Ok(())
    }

    fn took(&self, object: Value) -> Result<(), Error> {
        let shard: StageInventory = serde_json::from_value(object).map_err(|source| Error::Decode {
            what: "read back a StageInventory".into(),
            source,
        })?;
        self.ctx.inventories.observe(shard);
        Ok(())
    }

    fn body(&self, index: u32, name: &str, entries: &[RawEntry], wanted: &Entries) -> Value {
        let entries: Vec<Value> = entries.iter().map(|e| json!({"id": e.id, "v": e.v})).collect();
        let mut labels: serde_json::Map<String, Value> = shard_labels(&self.owner.name, self.stage, index)
            .into_iter()
            .map(|(k, v)| (k.to_owned(), Value::String(v)))
            .collect();
        let mut metadata = json!({
            "name": name,
            "namespace": self.owner.namespace,
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": "StageSet",
                "name": self.owner.name,
                "uid": self.set.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        });
        if index == 0 {
            let parent = parent_metadata(name, &self.owner.namespace, env!("CARGO_PKG_VERSION"), wanted.keys());
            labels.extend(parent.labels.into_iter().map(|(k, v)| (k.to_owned(), Value::String(v))));
            metadata["annotations"] = json!(parent.annotations);
        }
        metadata["labels"] = Value::Object(labels);
        json!({
            "apiVersion": API_VERSION,
            "kind": "StageInventory",
            "metadata": metadata,
            "spec": {
                "stagePosition": self.position,
                "serviceAccountName": self.account,
                "target": self.target.as_ref().map(in_full),
                "entries": entries,
            },
        })
    }
}

/// A target with every field, so that a merge takes away what it does not have.
fn in_full(target: &InventoryTarget) -> Value {
    let secret = target.secret_ref().map(|s| json!({"name": s.name, "key": s.key}));
    json!({
        "clusterID": target.cluster_id,
        "kubeConfig": target.kube_config.as_ref().map(|_| json!({"secretRef": secret})),
    })
}

fn raw(shard: &StageInventory) -> Vec<RawEntry> {
    let entries = shard.spec.entries.iter();
    entries
        .map(|e| RawEntry {
            id: e.id.clone(),
            v: e.v.clone(),
        })
        .collect()
}

/// Why a write did not go as planned.
enum Clash {
    /// The name is somebody else's.
    Name(String),
    /// The cache was behind; it has caught up, so plan again.
    Outdated,
    Failed(Error),
}

/// Puts the shards of a stage under another stage's name.
///
/// # Errors
/// The first failed write.
pub async fn rename(ctx: &Context, owner: &Owner, stage: &str, to: &str) -> Result<(), Error> {
    let tenant = ctx.cluster.tenant(Identity::Controller);
    for shard in ctx.inventories.of(owner).iter().filter(|s| stage_of(s) == Some(stage)) {
        let target = Target {
            api_version: API_VERSION.into(),
            kind: "StageInventory".into(),
            namespace: Some(owner.namespace.clone()),
            name: shard.metadata.name.clone().unwrap_or_default(),
        };
        let patch = json!({"metadata": {
            "resourceVersion": shard.metadata.resource_version,
            "labels": {(keys::STAGE): to},
        }});
        let renamed = tenant.merge(&target, None, &patch, FIELD_MANAGER).await?;
        ctx.inventories
            .observe(serde_json::from_value(renamed).map_err(|source| Error::Decode {
                what: "read back a StageInventory".into(),
                source,
            })?);
    }
    Ok(())
}

/// Deletes every shard of a stage that left the spec, once nothing of it is left.
///
/// # Errors
/// The first failed delete.
pub async fn delete_all(ctx: &Context, owner: &Owner, stage: &str) -> Result<(), Error> {
    let tenant = ctx.cluster.tenant(Identity::Controller);
    for shard in ctx.inventories.of(owner).iter().filter(|s| stage_of(s) == Some(stage)) {
        let target = Target {
            api_version: API_VERSION.into(),
            kind: "StageInventory".into(),
            namespace: Some(owner.namespace.clone()),
            name: shard.metadata.name.clone().unwrap_or_default(),
        };
        let only_if = Preconditions {
            uid: shard.metadata.uid.clone(),
            resource_version: None,
        };
        match tenant.delete(&target, &only_if).await {
            Ok(_) => {}
            Err(e) if e.is_conflict() => {}
            Err(e) => return Err(e),
        }
        ctx.inventories.remove(shard);
    }
    Ok(())
}

/// The name shard 0 has or will have: the ApplySet parent's.
pub fn parent_name(ctx: &Context, owner: &Owner, stage: &str) -> String {
    let record = of_stage(ctx, owner, stage);
    let zero = record.shards.iter().find(|s| s.index == Some(0));
    match zero {
        Some(shard) => shard.name.clone(),
        None => {
            let plain = plain_name(&owner.name, stage, 0);
            if plain.len() > 253 {
                hashed_name(&owner.name, stage, 0)
            } else {
                plain
            }
        }
    }
}
