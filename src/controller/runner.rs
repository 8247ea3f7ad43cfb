//! The queue: never two steps of one StageSet at once, at most `--concurrent` steps together, first come first
//! served, and a panic in a step is an outcome like any other (decisions 4).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::api::{KubeConfig, StageInventory, StageSet};
use crate::cache::{owner_of, reference};
use crate::cluster::watch::Woken;
use crate::rules::backoff::ERROR_LADDER;
use crate::run::slot::Slot;
use crate::run::{self, Context, Wake};

struct Shared {
    ctx: Arc<Context>,
    slots: Arc<Semaphore>,
    /// The part of the slots that steps on other clusters may have: dead ones leave the rest to the local cluster.
    remote: Arc<Semaphore>,
    stop: CancellationToken,
}

/// What a step has to wait for: its turn at its cluster, and a slot.
struct Place {
    slot: Slot,
    turn: Option<OwnedSemaphorePermit>,
}

/// Why a step gave no answer.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("the step panicked: {0}")]
    Panicked(String),
    #[error("the queue is closed")]
    Closed,
}

/// Runs steps for woken StageSets until `stop`; steps under way are finished first, and those that only queue do not begin.
pub async fn run(ctx: Arc<Context>, woken: Woken, stop: CancellationToken) {
    let concurrent = ctx.config.concurrent as usize;
    ctx.metrics
        .max_concurrent
        .set(i64::try_from(concurrent).unwrap_or(i64::MAX));
    let metrics = ctx.metrics.clone();
    let wakes = woken.stream().map(move |owner| {
        metrics.queue_adds.inc();
        reference(&owner)
    });
    let shared = Arc::new(Shared {
        slots: Arc::new(Semaphore::new(concurrent)),
        remote: Arc::new(Semaphore::new((concurrent * 3 / 4).max(1))),
        ctx: ctx.clone(),
        stop: stop.clone(),
    });
    Controller::for_stream(futures::stream::pending(), ctx.sets.store())
        .reconcile_on(wakes)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, |_, _, _| Action::requeue(ERROR_LADDER.wait(3)), shared)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(set: Arc<StageSet>, shared: Arc<Shared>) -> Result<Action, Failed> {
    let Some(owner) = owner_of(&set) else {
        return Ok(Action::await_change());
    };
    let elsewhere = elsewhere(&set, &shared.ctx.inventories.of(&owner));
    let turns = elsewhere.and_then(|reference| {
        let turns = (shared.ctx.config.concurrent as usize / 2).max(1);
        shared.ctx.clusters.turns(&owner.namespace, &reference, turns)
    });
    drop(set);
    let metrics = &shared.ctx.metrics;
    metrics.queue_depth.inc();
    let queued = Instant::now();
    let place = tokio::select! {
        biased;
        () = shared.stop.cancelled() => None,
        place = place(&shared, turns) => place,
    };
    metrics.queue_depth.dec();
    metrics.queue_time.observe(queued.elapsed().as_secs_f64());
    let Place { slot, turn } = place.ok_or(Failed::Closed)?;
    metrics.active_workers.inc();
    let began = Instant::now();
    let id = uuid::Uuid::new_v4();
    let span = tracing::info_span!(
        parent: None,
        "step",
        controller = "stageset",
        controllerKind = "StageSet",
        namespace = owner.namespace,
        name = owner.name,
        reconcileID = %id,
    );
    let ctx = shared.ctx.clone();
    // A step is large, and one that waits for a download waits with hundreds of others: it is kept once, not once in
    // each layer around it.
    let step = Box::pin(async move {
        let stepped = run::step(&ctx, &owner).await;
        if ctx.sets.get(&owner).is_none() {
            // It went while the step was under way: what the step has learned since is nobody's.
            ctx.forget(&owner);
        }
        stepped
    });
    let working = metrics.work.begin();
    let step = tokio::spawn(run::slot::within(slot, step).instrument(span)).await;
    drop((turn, working));
    metrics.active_workers.dec();
    let took = began.elapsed();
    metrics.reconcile_time.observe(took.as_secs_f64());
    metrics.work_time.observe(took.as_secs_f64());
    if took > Duration::from_secs(10) {
        tracing::warn!(took = ?took, "a slow step");
    }
    conclude(&shared.ctx, step)
}

/// The other cluster that a step may have to wait for: the one of the spec, or one that still holds what was recorded.
fn elsewhere(set: &StageSet, records: &[Arc<StageInventory>]) -> Option<KubeConfig> {
    let recorded = || {
        let targets = records.iter().filter_map(|record| record.spec.target.as_ref());
        targets.filter_map(|target| target.kube_config.clone()).next()
    };
    set.spec.kube_config.clone().or_else(recorded)
}

async fn place(shared: &Shared, turns: Option<Arc<Semaphore>>) -> Option<Place> {
    let slots = shared.slots.clone();
    match turns {
        None => Some(Place {
            slot: Slot::take(slots, None).await?,
            turn: None,
        }),
        Some(turns) => {
            let turn = turns.acquire_owned().await.ok()?;
            Some(Place {
                slot: Slot::take(slots, Some(shared.remote.clone())).await?,
                turn: Some(turn),
            })
        }
    }
}

fn conclude(ctx: &Context, step: Result<run::Stepped, tokio::task::JoinError>) -> Result<Action, Failed> {
    let metrics = &ctx.metrics;
    let result = |label: &str| metrics.reconcile_results.with_label_values(&[label]).inc();
    match step {
        Ok(stepped) => {
            match &stepped.undecided {
                Some(why) => {
                    tracing::warn!(error = why, "the step decided nothing; trying again");
                    metrics.reconcile_errors.inc();
                    metrics.queue_retries.inc();
                    result("error");
                }
                None if stepped.wake == Wake::OnChange => result("success"),
                None => result("requeue_after"),
            }
            Ok(match stepped.wake {
                Wake::OnChange => Action::await_change(),
                Wake::In(wait) => Action::requeue(wait),
            })
        }
        Err(error) => {
            metrics.reconcile_panics.inc();
            metrics.reconcile_errors.inc();
            metrics.queue_retries.inc();
            result("error");
            tracing::error!(%error, "a step panicked");
            Err(Failed::Panicked(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InventoryTarget;
    use crate::api::common::SecretKeyRef;

    fn reference(name: &str) -> KubeConfig {
        KubeConfig {
            config_map_ref: None,
            secret_ref: Some(SecretKeyRef {
                name: name.into(),
                key: None,
            }),
        }
    }

    #[test]
    fn what_is_recorded_on_another_cluster_is_waited_for_there() {
        let mut set = StageSet::new("shop", Default::default());
        let mut record = StageInventory::new("shop-app-0", Default::default());
        let local = Arc::new(record.clone());
        assert_eq!(elsewhere(&set, std::slice::from_ref(&local)), None);
        record.spec.target = Some(InventoryTarget {
            cluster_id: None,
            kube_config: Some(reference("before")),
        });
        let records = [local, Arc::new(record)];
        assert_eq!(elsewhere(&set, &records), Some(reference("before")));
        set.spec.kube_config = Some(reference("now"));
        assert_eq!(elsewhere(&set, &records), Some(reference("now")));
    }
}
