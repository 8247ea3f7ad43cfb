//! Deleting recorded objects: those that are still ours, and a namespace only with all that it holds (run 19.3).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;

use serde_json::Value;

use super::verify::target_of;
use crate::api::names::GROUP;
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Preconditions, Target, Tenant, uid};
use crate::rules::inventory::{
    self, Deletion, Entry, Leaving, NamespaceFacts, NamespaceRefusal, ObjectId, OwnerRef, is_all_furniture, may_delete,
    may_delete_namespace,
};

/// Looks at something that changes from one look to the next.
const MAX_TRIES: usize = 4;

/// Deletes in a row without an answer: then the server is gone, and the others would wait as long.
const MAX_SILENT: u32 = 3;

/// What became of a set of objects to be deleted.
#[derive(Debug, Default)]
pub struct Removal {
    /// Gone, on their way, or not ours to delete: they need not be recorded any more.
    pub settled: BTreeSet<ObjectId>,
    /// Still there, with a delete under way; or a namespace that waits for what is deleted in it.
    pub leaving: Vec<ObjectId>,
    /// Why a namespace stays, which a person has to know: it is not recorded any more.
    pub kept: Vec<String>,
    pub errors: Vec<Error>,
    /// The server did not answer, and the rest was not tried.
    pub silent: bool,
}

impl Removal {
    /// Whether a namespace that holds objects of others is to be judged later: while what is deleted in it is not gone
    /// yet, an operator may still be clearing what it has made for that.
    fn may_yet_empty(&self, namespace: &str, why: &NamespaceRefusal) -> bool {
        matches!(why, NamespaceRefusal::HoldsOthers { .. }) && self.leaving.iter().any(|id| id.namespace == namespace)
    }

    /// Adds what became of those that were left over, tried again.
    fn followed_by(&mut self, again: Self) {
        self.settled.extend(again.settled);
        self.leaving.extend(again.leaving);
        self.kept.extend(again.kept);
        self.errors = again.errors;
        self.silent = again.silent;
    }
}

/// What became of one object.
enum Fate {
    Gone,
    Leaving,
    Kept(NamespaceRefusal),
}

/// A deletion of recorded objects as one identity, and as a second where the first may not.
#[derive(Clone, Copy)]
pub struct Remover<'a> {
    pub tenant: &'a Tenant,
    /// Who applies the objects now: whoever applied them before may have lost its rights.
    pub successor: Option<&'a Tenant>,
    pub owner: &'a Owner,
    /// Everything that is deleted in one go with these objects.
    pub going: &'a BTreeSet<ObjectId>,
    /// UIDs of objects that are not to be deleted, whatever record they are found by.
    pub wanted: &'a BTreeSet<String>,
}

impl Remover<'_> {
    /// Deletes recorded objects that are still ours, in reverse apply order. Every one is tried, unless the
    /// server does not answer.
    pub async fn remove(&self, entries: &[Entry]) -> Removal {
        let mut removal = self.remove_as_one(entries).await;
        if let Some(successor) = self.successor
            && removal.errors.iter().any(Error::is_forbidden)
        {
            let rest: Vec<Entry> = entries
                .iter()
                .filter(|e| !removal.settled.contains(&e.id))
                .cloned()
                .collect();
            let again = Remover {
                tenant: successor,
                ..*self
            };
            removal.followed_by(again.remove_as_one(&rest).await);
        }
        removal
    }

    async fn remove_as_one(&self, entries: &[Entry]) -> Removal {
        let began = Instant::now();
        let mut removal = Removal::default();
        let mut silent = 0;
        let mut waiting = BTreeSet::new();
        let mut ids: Vec<ObjectId> = entries.iter().map(|e| e.id.clone()).collect();
        crate::rules::order::sort_for_delete(&mut ids);
        for id in ids {
            let Some(entry) = entries.iter().find(|e| e.id == id) else {
                continue;
            };
            match self.remove_one(entry, began).await {
                Ok(fate) => {
                    silent = 0;
                    match fate {
                        Fate::Gone => {}
                        Fate::Leaving => removal.leaving.push(id.clone()),
                        Fate::Kept(why) if removal.may_yet_empty(&id.name, &why) => {
                            removal.leaving.push(id.clone());
                            waiting.insert(id.name);
                            continue;
                        }
                        Fate::Kept(why) => removal.kept.push(why.to_string()),
                    }
                    removal.settled.insert(id);
                }
                Err(error) => {
                    silent = if error.is_silence() { silent + 1 } else { 0 };
                    removal.errors.push(error);
                    if silent == MAX_SILENT {
                        removal.silent = true;
                        break;
                    }
                }
            }
        }
        // They stay recorded, so that it is known when they are gone.
        let leaving = &removal.leaving;
        let keeps = |id: &ObjectId| waiting.contains(&id.namespace) && leaving.contains(id);
        removal.settled.retain(|id| !keeps(id));
        removal
    }

    async fn remove_one(&self, entry: &Entry, since: Instant) -> Result<Fate, Error> {
        let mut target = target_of(&entry.id, &entry.api_version());
        let Some(live) = live(self.tenant, &mut target, since).await? else {
            return Ok(Fate::Gone);
        };
        match self.remove_live(entry, &target, &live).await {
            // Another object of that name may have come in between, which is then judged on its own. Where it is the same
            // one, the server had another reason, and the delete is still to be done.
            Err(e) if e.is_conflict() => match self::live(self.tenant, &mut target, since).await? {
                None => Ok(Fate::Gone),
                Some(now) if uid(&now) == uid(&live) => Err(e),
                Some(now) => self.remove_live(entry, &target, &now).await,
            },
            other => other,
        }
    }

    async fn remove_live(&self, entry: &Entry, target: &Target, live: &Value) -> Result<Fate, Error> {
        if self.wanted.contains(uid(live)) {
            tracing::info!(object = %target, "a recorded object is wanted, by another way to its cluster");
            return Ok(Fate::Gone);
        }
        let ours = OwnerRef {
            name: self.owner.name.clone(),
            namespace: self.owner.namespace.clone(),
        };
        match may_delete(live, &ours) {
            Deletion::Skip(inventory::Skip::Terminating) if self.waits_for_us(&entry.id) => {
                tracing::info!(object = %target, "a recorded object that is being deleted waits for this StageSet");
                Ok(Fate::Gone)
            }
            Deletion::Skip(inventory::Skip::Terminating) => Ok(Fate::Leaving),
            Deletion::Skip(skip) => {
                tracing::info!(object = %target, %skip, "a recorded object is left alone");
                Ok(Fate::Gone)
            }
            Deletion::Delete(only_if) => {
                if entry.id.kind == "Namespace"
                    && entry.id.group.is_empty()
                    && let Err(refusal) = may_delete_namespace(&self.namespace_facts(&ours, &entry.id.name).await?)
                {
                    tracing::warn!(object = %target, %refusal, "a namespace is left alone");
                    return Ok(Fate::Kept(refusal));
                }
                let only_if = Preconditions {
                    uid: only_if.uid,
                    resource_version: None,
                };
                let was_there = self.tenant.delete(target, &only_if).await?;
                Ok(if was_there { Fate::Leaving } else { Fate::Gone })
            }
        }
    }

    /// Whether an object cannot go before the StageSet has gone: its namespace, or the definition of its kind.
    fn waits_for_us(&self, id: &ObjectId) -> bool {
        self.tenant.cluster().is_local()
            && match (id.group.as_str(), id.kind.as_str()) {
                ("", "Namespace") => id.name == self.owner.namespace,
                ("apiextensions.k8s.io", "CustomResourceDefinition") => id.name == format!("stagesets.{GROUP}"),
                _ => false,
            }
    }

    /// What a namespace holds, as far as the tenant can see: nothing goes with it that is to stay (run 19, decisions 6).
    async fn namespace_facts(&self, ours: &OwnerRef, name: &str) -> Result<NamespaceFacts, Error> {
        let cluster = self.tenant.cluster();
        let holds_stage_set = cluster.is_local() && self.owner.namespace == name;
        if holds_stage_set {
            return Ok(NamespaceFacts {
                name: name.to_owned(),
                holds_stage_set,
                ..NamespaceFacts::default()
            });
        }
        for _ in 0..MAX_TRIES {
            let kinds = cluster.namespaced_kinds().await?;
            if let Some(facts) = self.look_into(ours, name, &kinds).await? {
                return Ok(facts);
            }
        }
        Err(Error::Busy {
            what: format!("find out what namespace {name} holds: what the cluster serves keeps changing"),
        })
    }

    /// The same by the kinds that were served a moment ago. `None` where one is not any more: it may be under another
    /// version.
    async fn look_into(
        &self,
        ours: &OwnerRef,
        name: &str,
        kinds: &[(String, String)],
    ) -> Result<Option<NamespaceFacts>, Error> {
        let mut facts = NamespaceFacts {
            name: name.to_owned(),
            ..NamespaceFacts::default()
        };
        let group = |api_version: &str| api_version.split_once('/').map_or(String::new(), |(g, _)| g.to_owned());
        let known: BTreeSet<(String, &str)> = kinds.iter().map(|(v, kind)| (group(v), kind.as_str())).collect();
        let leaving = Leaving {
            owner: ours,
            ids: self.going,
        };
        for (api_version, kind) in kinds {
            if is_all_furniture(&group(api_version), kind) {
                continue;
            }
            let target = Target {
                api_version: api_version.clone(),
                kind: kind.clone(),
                namespace: Some(name.to_owned()),
                name: String::new(),
            };
            let looked = self.tenant.scan(&target, None, |mut item| {
                item["apiVersion"] = target.api_version.clone().into();
                item["kind"] = target.kind.clone().into();
                if !leaving.is_held_by(&item, |group, kind| known.contains(&(group.to_owned(), kind))) {
                    return ControlFlow::Continue(());
                }
                facts.staying.extend(ObjectId::of(&item));
                ControlFlow::Break(())
            });
            match looked.await {
                Ok(()) => {}
                Err(Error::UnknownKind { .. }) => return Ok(None),
                Err(e) if e.is_not_found() => return Ok(None),
                Err(Error::NotLent { .. }) => {
                    let why = "not for a StageSet without spec.serviceAccountName";
                    facts.unread.push(format!("{} ({why})", target.kind));
                }
                Err(e) if e.is_forbidden() => facts.unread.push(target.kind),
                Err(e) => return Err(e),
            }
            if !facts.staying.is_empty() {
                break;
            }
        }
        Ok(Some(facts))
    }
}

/// Reads a recorded object, under another version where the recorded one is not served any more; then `target` has it.
/// `None` where there is none: the kind itself is gone, or no object can have that name.
pub(super) async fn live(tenant: &Tenant, target: &mut Target, since: Instant) -> Result<Option<Value>, Error> {
    let cluster = tenant.cluster();
    for _ in 0..MAX_TRIES {
        match tenant.get(target).await {
            Err(Error::UnknownKind { .. }) => {}
            Err(Error::NoName { .. }) => return Ok(None),
            other => return other,
        }
        let group = target.group().to_owned();
        let served = cluster.any_version(&group, &target.kind, since).await?;
        let Some(version) = served else {
            return Ok(None);
        };
        target.api_version = if group.is_empty() {
            version
        } else {
            format!("{group}/{version}")
        };
    }
    Err(Error::Busy {
        what: format!("get {target}: the versions it is served under keep changing"),
    })
}
