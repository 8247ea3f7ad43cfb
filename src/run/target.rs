//! Which cluster a StageSet applies to, and which one its records speak of (run 11.3, decisions 6).

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::context::Context;
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::pass::{Pass, jittered};
use super::record::{self, Record};
use super::slot;
use crate::api::common::non_empty;
use crate::api::names::annotation;
use crate::api::{InventoryTarget, KubeConfig, StageSet, StageSetSpec};
use crate::cluster::watch::Owner;
use crate::cluster::{self, Cluster, RemoteError, Target};
use crate::rules::backoff::RBAC_LADDER;
use crate::rules::condition::Situation;

/// The operation as the contract names it.
const OPERATION: &str = "connect to target cluster";
/// Key of a kubeconfig Secret where the reference names none.
const DEFAULT_KEY: &str = "value";
/// Longest label value.
const MAX_LABEL: usize = 63;

/// The cluster this step works on.
pub(super) struct Aim {
    pub cluster: Arc<Cluster>,
    /// As inventories record it; none for the local cluster.
    pub recorded: Option<InventoryTarget>,
}

impl Aim {
    /// The local cluster.
    pub fn local(ctx: &Context) -> Self {
        Self {
            cluster: ctx.clusters.local().clone(),
            recorded: None,
        }
    }
}

/// A record's objects are on another cluster than the one its reference leads to now.
#[derive(Debug, thiserror::Error)]
#[error(
    "stage \"{stage}\": what left it was applied to cluster {recorded}, but {reference} now leads to cluster {found}: nothing is deleted \
     there; restore the reference, or set the annotation {} to {confirm} to delete it from cluster {found}",
    annotation::CONFIRM_PRUNE
)]
pub(super) struct OtherCluster {
    stage: String,
    recorded: String,
    reference: String,
    found: String,
    confirm: String,
}

impl Pass<'_> {
    /// Connects to the cluster the spec names; without a reference it is the local one. `Some` is the end of the step:
    /// nothing is ever applied to the local cluster because another one cannot be reached.
    ///
    /// # Errors
    /// A cluster that cannot be identified, or a failed write of the status.
    pub(super) async fn connect(&mut self) -> Result<Option<End>, Stop> {
        let mut id = String::new();
        if let Some(reference) = self.set.spec.kube_config.clone() {
            self.watch_kubeconfig(&reference).await;
            match slot::given_up_after(slot::PATIENCE, Box::pin(self.reach(&reference))).await {
                Ok(aim) => {
                    id = aim
                        .recorded
                        .as_ref()
                        .and_then(|r| r.cluster_id.clone())
                        .unwrap_or_default();
                    self.target = aim;
                }
                Err(error) => return Ok(Some(self.unreachable(&error))),
            }
        }
        let other = self.memory.target != id;
        if self.status.run.is_none() || other {
            self.mark_elsewhere(other).await?;
        }
        if other {
            // Versions and states learned on one cluster mean nothing on another.
            self.memory.stages.clear();
            self.memory.looked_at = None;
            self.memory.full_at = None;
            self.memory.full_due = None;
            self.memory.target = id;
        }
        Ok(None)
    }

    /// The reference leads to another cluster than the one that is recorded: whatever the inputs, nothing was applied
    /// there, so a run has to bring it. In a run it is written down at once where it has just been found out, `other`: the
    /// record names the cluster of before until the run has come to its prune.
    async fn mark_elsewhere(&mut self, other: bool) -> Result<(), Stop> {
        let mut first = None;
        for at in 0..self.status.stages.len() {
            let record = record::of_stage(self.ctx, self.owner, &self.status.stages[at].name);
            let recorded = record.target.as_ref().and_then(|t| t.cluster_id.as_deref());
            let Some(id) = recorded.filter(|_| same_reference(record.target.as_ref(), self.target.recorded.as_ref()))
            else {
                continue;
            };
            if !self.target.cluster.is(id).await? && self.status.stages[at].inputs_digest.take().is_some() {
                first = first.or(Some(at));
            }
        }
        if let Some(at) = first.filter(|_| other && self.status.run.is_some()) {
            let message = self.progress(
                at,
                "spec.kubeConfig leads to another cluster now; applies all of it there",
            );
            self.write(&Situation::Unfinished { message }).await?;
        }
        Ok(())
    }

    /// A kubeconfig that appears, is rotated or leaves wakes the StageSet where one of its readers may watch it.
    async fn watch_kubeconfig(&mut self, reference: &KubeConfig) {
        let Some(secret) = &reference.secret_ref else {
            return;
        };
        let target = Target {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: Some(self.owner.namespace.clone()),
            name: secret.name.clone(),
        };
        let spec = self.set.spec.clone();
        for account in readers(&spec) {
            let tenant = self.ctx.cluster.acting_for(&self.owner.namespace, account);
            self.watch_by_name(&tenant, &target).await;
        }
    }

    async fn reach(&self, reference: &KubeConfig) -> Result<Aim, RemoteError> {
        let mut cluster = None;
        for account in readers(&self.set.spec) {
            cluster = Some(
                self.ctx
                    .clusters
                    .target(&self.owner.namespace, reference, account)
                    .await?,
            );
        }
        let cluster = cluster.ok_or(RemoteError::NoSecret)?;
        // Known since the connection was made.
        let id = cluster.id().await.ok().map(str::to_owned);
        Ok(Aim {
            cluster,
            recorded: Some(InventoryTarget {
                cluster_id: id,
                kube_config: Some(reference.clone()),
            }),
        })
    }

    fn unreachable(&self, error: &RemoteError) -> End {
        let failure = failure(error);
        let stage = self.set.spec.stages.first().map_or("", |s| s.name.as_str());
        let message = format!("stage \"{stage}\" {}: {}", failure.operation, failure.message);
        tracing::error!(
            stage,
            op = failure.operation,
            error = failure.message,
            terminal = false,
            "stage failed"
        );
        End {
            situation: Situation::Failed {
                reason: failure.reason,
                message,
            },
            wake: Wake::In(jittered(self.cadence().retry.min(RBAC_LADDER.last))),
        }
    }

    /// Refuses to delete a record's objects where the cluster they were applied to is not the one that is reached now.
    ///
    /// # Errors
    /// A cluster that cannot be identified.
    pub(super) async fn other_cluster(
        &self,
        stage: &str,
        record: &Record,
        cluster: &Cluster,
    ) -> Result<Option<OtherCluster>, Failure> {
        let at = self.status.stages.iter().position(|s| s.name == stage);
        let revision = at
            .and_then(|at| self.artifacts.get(at))
            .map_or("", |a| a.revision.as_str());
        let confirmed = self.annotation(annotation::CONFIRM_PRUNE);
        let found = other_cluster(stage, record, cluster, revision, confirmed).await;
        found.map_err(|e| Failure::of_request("prune", &e))
    }
}

/// The same outside of a pass: `confirmed` may name the revision or the cluster that is found.
///
/// # Errors
/// A cluster that cannot be identified.
pub(super) async fn other_cluster(
    stage: &str,
    record: &Record,
    cluster: &Cluster,
    revision: &str,
    confirmed: Option<&str>,
) -> Result<Option<OtherCluster>, cluster::Error> {
    let Some(recorded) = record.target.as_ref().and_then(|t| t.cluster_id.as_deref()) else {
        return Ok(None);
    };
    if cluster.is_local() || cluster.is(recorded).await? {
        return Ok(None);
    }
    let found = cluster.id().await?.to_owned();
    let confirm = if revision.is_empty() {
        found.clone()
    } else {
        revision.to_owned()
    };
    if confirmed.is_some_and(|c| c == confirm || c == found) {
        return Ok(None);
    }
    let reference = record.target.as_ref().and_then(InventoryTarget::secret_ref);
    Ok(Some(OtherCluster {
        stage: shown(stage).to_owned(),
        recorded: recorded.to_owned(),
        reference: reference.map_or_else(|| "its reference".to_owned(), |r| format!("Secret {}", r.name)),
        found,
        confirm,
    }))
}

/// The accounts that have to be allowed to read the kubeconfig: the StageSet's, or those of its stages; `None` where a
/// stage has none.
fn readers(spec: &StageSetSpec) -> Vec<Option<&str>> {
    if let Some(account) = non_empty(&spec.service_account_name) {
        return vec![Some(account)];
    }
    let mut accounts: Vec<Option<&str>> = spec.stages.iter().map(|s| non_empty(&s.service_account_name)).collect();
    accounts.sort_unstable();
    accounts.dedup();
    accounts
}

/// The cluster a record's objects are on.
///
/// # Errors
/// [`RemoteError`]; a record of a remote cluster never leads to the local one.
pub(super) async fn of_record(
    ctx: &Context,
    owner: &Owner,
    set: &StageSet,
    record: &Record,
) -> Result<Arc<Cluster>, RemoteError> {
    match record.target.as_ref().and_then(|t| t.kube_config.as_ref()) {
        None => Ok(ctx.clusters.local().clone()),
        Some(reference) => {
            let account = non_empty(&set.spec.service_account_name).or(record.account.as_deref());
            let target = ctx.clusters.target(&owner.namespace, reference, account);
            slot::given_up_after(slot::PATIENCE, Box::pin(target)).await
        }
    }
}

/// A cluster that cannot be reached, as the failure of a stage.
pub(super) fn failure(error: &RemoteError) -> Failure {
    let remedy = match error {
        e if e.is_transient() => Remedy::Soon,
        e if e.is_forbidden() => Remedy::Right,
        _ => Remedy::Retry,
    };
    Failure {
        remedy,
        ..Failure::retried(OPERATION, error.to_string())
    }
}

/// Whether what is recorded is on the cluster that is applied to now, by whatever way it was reached then. One that could
/// not be identified by both ways counts as another.
///
/// # Errors
/// A cluster that cannot be identified.
pub(super) async fn is_here(
    ctx: &Context,
    now: &Aim,
    recorded: Option<&InventoryTarget>,
) -> Result<bool, cluster::Error> {
    if same_reference(recorded, now.recorded.as_ref()) {
        return Ok(true);
    }
    match recorded {
        None => now.cluster.is(ctx.clusters.local().id().await?).await,
        Some(target) => match &target.cluster_id {
            Some(id) => now.cluster.is(id).await,
            None => Ok(false),
        },
    }
}

/// Whether two records speak of the same reference; the cluster behind it is another matter.
pub(super) fn same_reference(a: Option<&InventoryTarget>, b: Option<&InventoryTarget>) -> bool {
    reference(a) == reference(b)
}

fn reference(target: Option<&InventoryTarget>) -> Option<(&str, &str)> {
    let secret = target?.secret_ref()?;
    Some((&secret.name, non_empty(&secret.key).unwrap_or(DEFAULT_KEY)))
}

/// What a record is to say of the cluster while objects of the time before may still have to be pruned: the identity
/// that was recorded with them.
pub(super) fn carried_over(stored: &Record, now: Option<&InventoryTarget>) -> Option<InventoryTarget> {
    let mut target = now.cloned()?;
    let before = stored.target.as_ref().and_then(|t| t.cluster_id.clone());
    if before.is_some() && same_reference(stored.target.as_ref(), now) {
        target.cluster_id = before;
    }
    Some(target)
}

/// Sets the record of a stage aside when the stage now goes to another cluster: under a name of its own it is pruned like
/// a stage that left the spec, on the cluster and as the account it was recorded with. Another way to the same cluster
/// changes nothing about what is recorded.
///
/// # Errors
/// A cluster that cannot be identified, or the first failed write. Shards already set aside stay so, and the rest follow in the next pass.
pub(super) async fn set_aside(ctx: &Context, owner: &Owner, stage: &str, now: &Aim) -> Result<(), cluster::Error> {
    let stored = record::of_stage(ctx, owner, stage);
    if stored.shards.is_empty() || is_here(ctx, now, stored.target.as_ref()).await? {
        return Ok(());
    }
    record::rename(ctx, owner, stage, &aside(stage, stored.target.as_ref())).await
}

/// A stage name has no dot, so this is no stage's.
fn aside(stage: &str, target: Option<&InventoryTarget>) -> String {
    let mut hasher = Sha256::new();
    let (secret, key) = reference(target).unwrap_or_default();
    let id = target.and_then(|t| t.cluster_id.as_deref()).unwrap_or_default();
    for part in [stage, secret, key, id] {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part);
    }
    let hash: String = hasher.finalize().iter().take(4).map(|b| format!("{b:02x}")).collect();
    let room = MAX_LABEL - hash.len() - 1;
    format!("{}.{hash}", &stage[..stage.len().min(room)])
}

/// The stage of the spec that a record was set aside from.
pub(super) fn set_aside_from(name: &str) -> Option<&str> {
    name.split_once('.').map(|(stage, _)| stage)
}

/// A record's stage as people know it.
pub(super) fn shown(record: &str) -> &str {
    set_aside_from(record).unwrap_or(record)
}

/// What the annotation `confirm-prune` is to say where the cluster of a record is gone for good: its identity, or the
/// Secret that led to it.
pub(super) fn forget_word(record: &Record) -> Option<&str> {
    let target = record.target.as_ref()?;
    let secret = target.secret_ref().map(|s| s.name.as_str());
    target.cluster_id.as_deref().or(secret)
}

/// A cluster that cannot be reached, with the way out where it never will be.
pub(super) fn or_forget(mut failure: Failure, record: &Record, left: usize) -> Failure {
    if let Some(word) = forget_word(record) {
        let objects = if left == 1 { "object" } else { "objects" };
        failure.message.push_str(&format!(
            "; {left} {objects} of the stage are still recorded on that cluster: if it is gone for good, set the annotation {} to {word} \
             to forget them",
            annotation::CONFIRM_PRUNE
        ));
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::common::SecretKeyRef;

    fn target(name: &str, key: Option<&str>, id: Option<&str>) -> InventoryTarget {
        InventoryTarget {
            cluster_id: id.map(str::to_owned),
            kube_config: Some(KubeConfig {
                config_map_ref: None,
                secret_ref: Some(SecretKeyRef {
                    name: name.into(),
                    key: key.map(str::to_owned),
                }),
            }),
        }
    }

    fn record(target: Option<InventoryTarget>) -> Record {
        Record {
            target,
            ..Record::default()
        }
    }

    #[test]
    fn a_reference_is_its_secret_and_key() {
        let plain = target("a", None, Some("1"));
        assert!(same_reference(
            Some(&plain),
            Some(&target("a", Some("value"), Some("2")))
        ));
        assert!(!same_reference(
            Some(&plain),
            Some(&target("a", Some("other"), Some("1")))
        ));
        assert!(!same_reference(Some(&plain), Some(&target("b", None, Some("1")))));
        assert!(!same_reference(Some(&plain), None));
        assert!(same_reference(None, None));
    }

    #[test]
    fn the_recorded_identity_stays_until_its_objects_are_pruned() {
        let now = target("a", None, Some("new"));
        let kept = carried_over(&record(Some(target("a", None, Some("old")))), Some(&now));
        assert_eq!(kept.and_then(|t| t.cluster_id).as_deref(), Some("old"));
        let fresh = carried_over(&record(None), Some(&now));
        assert_eq!(fresh.and_then(|t| t.cluster_id).as_deref(), Some("new"));
        let moved = carried_over(&record(Some(target("b", None, Some("old")))), Some(&now));
        assert_eq!(moved.and_then(|t| t.cluster_id).as_deref(), Some("new"));
        assert_eq!(carried_over(&record(Some(target("a", None, Some("old")))), None), None);
    }

    #[test]
    fn a_record_set_aside_has_a_name_no_stage_can_have() {
        let long = "s".repeat(63);
        for stage in ["web", &long] {
            let name = aside(stage, Some(&target("a", None, Some("1"))));
            assert!(name.len() <= MAX_LABEL && name.contains('.'), "{name}");
            assert_ne!(name, aside(stage, None));
            assert_ne!(name, aside(stage, Some(&target("a", None, Some("2")))));
        }
        assert_eq!(set_aside_from(&aside("web", None)), Some("web"));
        assert_eq!(set_aside_from("web"), None);
    }

    #[test]
    fn the_accounts_that_must_be_able_to_read_the_secret() {
        let stage = |account: Option<&str>| crate::api::Stage {
            service_account_name: account.map(str::to_owned),
            ..crate::api::Stage::default()
        };
        let mut spec = StageSetSpec {
            stages: vec![stage(Some("b")), stage(None), stage(Some("a")), stage(Some("a"))],
            ..StageSetSpec::default()
        };
        assert_eq!(readers(&spec), [None, Some("a"), Some("b")]);
        spec.service_account_name = Some("all".into());
        assert_eq!(readers(&spec), [Some("all")]);
    }
}
