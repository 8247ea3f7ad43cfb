//! Taking a deleted StageSet's objects away, last stage first, each stage gone before the one before it is
//! touched; then the finalizer (run 4, run 28 B13).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::context::{Context, Memory};
use super::notify::Notice;
use super::outcome::{Stop, Wake};
use super::prune::tell_kept;
use super::record::{self, Record};
use super::remove::Remover;
use super::status;
use super::target::{OtherCluster, of_record, other_cluster, same_reference};
use crate::api::names::{FINALIZER, annotation};
use crate::api::{Reason, StageSet};
use crate::cluster::watch::Owner;
use crate::cluster::{Error, RemoteError};
use crate::rules::backoff::{ERROR_LADDER, Ladder};
use crate::rules::condition::{Situation, conditions, transition};
use crate::rules::inventory::{Entry, ObjectId, StoredStage};

/// Pauses between looks at objects that are on their way out: most are gone in a moment, some have finalizers.
const LEAVING_LADDER: Ladder = Ladder::doubling(Duration::from_millis(100), Duration::from_secs(5));

/// Objects a message names at most.
const NAMED: usize = 5;

/// One step of the teardown.
///
/// # Errors
/// Why nothing was decided.
pub async fn step(ctx: &Arc<Context>, owner: &Owner, set: Arc<StageSet>, memory: &mut Memory) -> Result<Wake, Stop> {
    let finalizers = set.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(Wake::OnChange);
    }
    if protected(&set) {
        let message = format!(
            "deletion is held by the annotation {}: remove it to let the teardown go on",
            annotation::DELETION_PROTECTION
        );
        return hold(
            ctx,
            owner,
            &set,
            memory,
            Reason::DeletionProtected,
            message,
            Wake::OnChange,
        )
        .await;
    }
    let mut stages = record::all(ctx, owner);
    stages.sort_by(|(a, _), (b, _)| b.position.cmp(&a.position).then_with(|| a.name.cmp(&b.name)));
    let mut denied: Option<(&str, Error)> = None;
    for (stored, record) in &stages {
        let going = going(&set, &stages, record);
        match tear_down(ctx, owner, &set, (stored, record), &going, memory).await {
            Torn::Gone => {}
            Torn::Leaving(names) => {
                let wake = LEAVING_LADDER.wait(memory.polls);
                memory.polls = memory.polls.saturating_add(1);
                let message = format!("stage \"{}\": waits until these are gone: {names}", stored.name);
                let overdue = overdue(ctx, &set);
                if overdue {
                    return force(ctx, owner, &set, memory, "timed_out", &message).await;
                }
                return hold_progress(ctx, owner, &set, memory, message, Wake::In(wake)).await;
            }
            // What may not be deleted holds nothing else back: the rest goes, then the teardown gives up.
            Torn::Failed(error) if error.is_forbidden() => {
                denied.get_or_insert((&stored.name, error));
            }
            Torn::Failed(error) => return failed(ctx, owner, &set, memory, &stored.name, error).await,
            Torn::Unreachable(error) => {
                let message = format!("stage \"{}\" connect to target cluster: {error}", stored.name);
                return wait_for_cluster(ctx, owner, &set, memory, Reason::StageFailed, message).await;
            }
            Torn::Elsewhere(other) => {
                return wait_for_cluster(ctx, owner, &set, memory, Reason::PruneHeld, other.to_string()).await;
            }
        }
    }
    match denied {
        Some((stage, error)) => failed(ctx, owner, &set, memory, stage, error).await,
        None => drop_finalizer(ctx, owner, &set).await,
    }
}

fn protected(set: &StageSet) -> bool {
    let annotations = set.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(annotation::DELETION_PROTECTION))
        .is_some_and(|v| v == annotation::ENABLED)
}

enum Torn {
    Gone,
    Leaving(String),
    Failed(Error),
    /// The cluster the objects are on cannot be reached.
    Unreachable(RemoteError),
    /// The cluster the objects are on is not the one that is reached now.
    Elsewhere(OtherCluster),
}

/// Whether the objects of a record stay by the wish of their stage.
fn is_left_alone(set: &StageSet, stored: &StoredStage) -> bool {
    let name = super::target::set_aside_from(&stored.name).unwrap_or(&stored.name);
    let in_spec = set.spec.stages.iter().find(|s| s.name == name);
    in_spec.is_some_and(|s| !s.prunes())
}

/// Everything the teardown deletes on the cluster of a record.
fn going(set: &StageSet, stages: &[(StoredStage, Record)], of: &Record) -> BTreeSet<ObjectId> {
    let together = stages.iter().filter(|(stored, record)| {
        same_reference(record.target.as_ref(), of.target.as_ref()) && !is_left_alone(set, stored)
    });
    together
        .flat_map(|(stored, _)| stored.entries.keys().cloned())
        .collect()
}

async fn tear_down(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &StageSet,
    (stored, record): (&StoredStage, &Record),
    going: &BTreeSet<ObjectId>,
    memory: &mut Memory,
) -> Torn {
    if is_left_alone(set, stored) {
        return Torn::Gone;
    }
    let cluster = match of_record(ctx, owner, set, record).await {
        Ok(cluster) => cluster,
        Err(error) => return Torn::Unreachable(error),
    };
    let deployed = set
        .status
        .as_ref()
        .and_then(|s| s.stages.iter().find(|s| s.name == stored.name));
    let revision = deployed.and_then(|s| s.applied_revision.as_deref()).unwrap_or_default();
    let confirmed = set
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(annotation::CONFIRM_PRUNE))
        .map(String::as_str);
    match other_cluster(&stored.name, record, &cluster, revision, confirmed).await {
        Ok(None) => {}
        Ok(Some(other)) => return Torn::Elsewhere(other),
        Err(error) => return Torn::Failed(error),
    }
    let tenant = cluster.acting_for(&owner.namespace, record.account.as_deref());
    let left: Vec<Entry> = stored
        .entries
        .iter()
        .filter(|(id, _)| !memory.gone.contains(id))
        .map(|(id, version)| Entry {
            id: id.clone(),
            version: version.clone(),
        })
        .collect();
    let remover = Remover {
        tenant: &tenant,
        owner,
        going,
        wanted: &BTreeSet::new(),
    };
    let mut removal = remover.remove(&left).await;
    tell_kept(ctx, set, &stored.name, &removal.kept);
    // What is gone may be made again by a write that is still to be carried out.
    let doubtful = left.iter().map(|e| &e.id).filter(|id| memory.doubts.is_open(id));
    removal.leaving.extend(doubtful.cloned());
    let leaving: BTreeSet<ObjectId> = removal.leaving.into_iter().collect();
    let settled = removal.settled.into_iter().filter(|id| !leaving.contains(id));
    memory.gone.extend(settled);
    let leaving: Vec<String> = leaving.iter().take(NAMED).map(ToString::to_string).collect();
    match removal.errors.into_iter().next() {
        Some(error) => Torn::Failed(error),
        None if leaving.is_empty() => Torn::Gone,
        None => Torn::Leaving(leaving.join(", ")),
    }
}

/// Somebody has to restore a Secret, or confirm; past the bound the objects are left behind, and that is told.
async fn wait_for_cluster(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &mut Memory,
    reason: Reason,
    message: String,
) -> Result<Wake, Stop> {
    if overdue(ctx, set) {
        return force(ctx, owner, set, memory, "timed_out", &message).await;
    }
    memory.undecided = memory.undecided.saturating_add(1);
    let wake = Wake::In(ERROR_LADDER.wait(memory.undecided.min(6)));
    hold(ctx, owner, set, memory, reason, message, wake).await
}

fn overdue(ctx: &Context, set: &StageSet) -> bool {
    let since = set
        .metadata
        .deletion_timestamp
        .as_ref()
        .map(|t| Timestamp::now().duration_since(t.0));
    since
        .and_then(|s| Duration::try_from(s).ok())
        .is_some_and(|s| s >= ctx.config.teardown_bound())
}

async fn failed(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &mut Memory,
    stage: &str,
    error: Error,
) -> Result<Wake, Stop> {
    let message = format!("stage \"{stage}\" teardown: {error}");
    if overdue(ctx, set) {
        return force(ctx, owner, set, memory, "timed_out", &message).await;
    }
    if error.is_forbidden() {
        return force(ctx, owner, set, memory, "permanent", &message).await;
    }
    if error.code() == Some(401) {
        return force(ctx, owner, set, memory, "unauthorized", &message).await;
    }
    memory.undecided = memory.undecided.saturating_add(1);
    let wake = Wake::In(ERROR_LADDER.wait(memory.undecided.min(6)));
    hold(ctx, owner, set, memory, Reason::StageFailed, message, wake).await
}

/// Gives up: the finalizer goes although something may be left behind, and that is told.
async fn force(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &Memory,
    reason: &str,
    why: &str,
) -> Result<Wake, Stop> {
    let elapsed = set
        .metadata
        .deletion_timestamp
        .as_ref()
        .map(|t| Timestamp::now().duration_since(t.0).as_secs());
    let left: Vec<String> = record::all(ctx, owner)
        .iter()
        .flat_map(|(stored, _)| stored.entries.keys())
        .filter(|id| !memory.gone.contains(id))
        .map(ToString::to_string)
        .take(10)
        .collect();
    let wake = drop_finalizer(ctx, owner, set).await?;
    tracing::error!(
        reason,
        elapsed,
        op = why,
        "finalizer dropped although the teardown failed"
    );
    ctx.metrics
        .teardown_forced
        .with_label_values(&[owner.namespace.as_str(), &owner.name, reason])
        .inc();
    let note = format!(
        "teardown given up after {}s ({reason}): {why}; may be left behind: {}",
        elapsed.unwrap_or_default(),
        left.join(", ")
    );
    ctx.notifier
        .send(Notice::about(set, Reason::TeardownForced, true, note));
    Ok(wake)
}

async fn drop_finalizer(ctx: &Arc<Context>, owner: &Owner, set: &StageSet) -> Result<Wake, Stop> {
    let rest: Vec<String> = set
        .metadata
        .finalizers
        .clone()
        .unwrap_or_default()
        .into_iter()
        .filter(|f| f != FINALIZER)
        .collect();
    let body = serde_json::json!({"metadata": {
        "finalizers": rest,
        "resourceVersion": set.metadata.resource_version,
        "uid": set.metadata.uid,
    }});
    match status::patch_set(ctx, owner, None, &body).await {
        Ok(_) | Err(Stop::Gone) => Ok(Wake::OnChange),
        Err(stop) => Err(stop),
    }
}

async fn hold_progress(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &mut Memory,
    message: String,
    wake: Wake,
) -> Result<Wake, Stop> {
    write(ctx, owner, set, memory, &Situation::Unfinished { message }, wake).await
}

async fn hold(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &mut Memory,
    reason: Reason,
    message: String,
    wake: Wake,
) -> Result<Wake, Stop> {
    let situation = match reason {
        Reason::DeletionProtected | Reason::PruneHeld => Situation::Held {
            reason,
            message,
            retrying: false,
            deployed: false,
        },
        _ => Situation::Failed { reason, message },
    };
    write(ctx, owner, set, memory, &situation, wake).await
}

async fn write(
    ctx: &Arc<Context>,
    owner: &Owner,
    set: &Arc<StageSet>,
    memory: &mut Memory,
    situation: &Situation,
    wake: Wake,
) -> Result<Wake, Stop> {
    let mut next = set.status.clone().unwrap_or_default();
    let before = next.conditions.clone();
    let generation = set.metadata.generation.unwrap_or_default();
    next.conditions = conditions(
        &before,
        situation,
        generation,
        Timestamp::now(),
        &ctx.config.runbook_base_url,
    );
    let written = status::write(ctx, owner, set, &next, memory).await?;
    if let Some(event) = transition(&before, situation) {
        ctx.notifier.send(Notice::about(
            &written,
            event.reason,
            event.warning,
            situation.message(),
        ));
    }
    Ok(wake)
}
