//! Figures of the controller at rest: small in the suite, in full by `hack/bench/bench`, which prints them.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};

use crate::support::{
    Class, World, look,
    objects::{self, configmap, multi, service},
    stageset::{condition_of, stage, stageset},
};

/// How many StageSets: `STAGESET_BENCH_COUNT`, else few enough for every run of the suite.
fn count() -> usize {
    std::env::var("STAGESET_BENCH_COUNT")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40)
}

/// Two ConfigMaps, a ServiceAccount and a Service, with names of their own.
fn four_objects(name: &str) -> String {
    let account = format!("apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {name}\n");
    let [a, b] = ["a", "b"].map(|suffix| configmap(&format!("{name}-{suffix}"), "1"));
    multi(&[a, b, account, service(name, 80)])
}

/// Applies StageSets of four objects each and waits until all are Ready; gives how long that took.
async fn fleet(world: &World, count: usize, interval: &str) -> Duration {
    stream::iter(0..count)
        .for_each_concurrent(8, |i| async move {
            let name = format!("set-{i}");
            world.publish(&name, &[("all.yaml", &four_objects(&name))]).await;
        })
        .await;
    let began = Instant::now();
    stream::iter(0..count)
        .for_each_concurrent(8, |i| async move {
            let name = format!("set-{i}");
            stageset(&name)
                .interval(interval)
                .stage(stage("app", &name))
                .apply(world)
                .await;
        })
        .await;
    let ready = look(Duration::from_secs(300), || async {
        let all = world.cluster.list(&objects::stagesets(), &world.namespace, "").await;
        let is_ready =
            |s: &&serde_json::Value| condition_of(&s["status"], "Ready").is_some_and(|c| c["status"] == "True");
        let ready = all.iter().filter(is_ready).count();
        if ready == count {
            Ok(())
        } else {
            Err(format!("{ready} of {count} are Ready"))
        }
    })
    .await;
    if let Err(seen) = ready {
        world.fail(&format!("not everything got Ready: {seen}")).await;
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_at_rest_stays_small() {
    let world = World::builder("figures-idle").alone().start().await;
    let empty = world.controller_ref().rss_kib();
    let took = fleet(&world, count(), "1h").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (rss, cpu) = (world.controller_ref().rss_kib(), world.controller_ref().cpu_time());
    println!(
        "figure: {} StageSets of four objects Ready after {took:.1?}, {cpu:.1?} CPU",
        count()
    );
    println!(
        "figure: resident {:.1} MiB empty, {:.1} MiB with all of them Ready",
        mib(empty),
        mib(rss)
    );
    assert!(rss < 64 * 1024, "{:.1} MiB with {} Ready StageSets", mib(rss), count());
}

/// Passes of all StageSets that came to an outcome.
async fn passes(world: &World) -> usize {
    let passes = world.controller_ref().metric("stageset_reconcile_total", &[]).await;
    passes as usize
}

async fn until_passes(world: &World, wanted: usize, seconds: usize) {
    let seen = look(Duration::from_secs(seconds as u64), || async {
        match passes(world).await {
            seen if seen >= wanted => Ok(()),
            seen => Err(format!("{seen} passes, not {wanted}")),
        }
    })
    .await;
    if let Err(seen) = seen {
        world.fail(&seen).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_over_a_fleet_at_rest_writes_nothing() {
    let world = World::builder("figures-steady").alone().start().await;
    let count = count();
    // Long enough for a pass over all of them at leisure.
    let seconds = 10 + count / 20;
    fleet(&world, count, &format!("{seconds}s")).await;
    // Everything has been compared once.
    until_passes(&world, passes(&world).await + 2 * count, 4 * seconds).await;
    let (mark, cpu, before) = (
        world.proxy.mark(),
        world.controller_ref().cpu_time(),
        passes(&world).await,
    );
    until_passes(&world, before + 2 * count, 4 * seconds).await;
    let tally = world.proxy.since(mark);
    let passes = passes(&world).await - before;
    let per_pass = |n: usize| n as f64 / passes as f64;
    println!(
        "figure: {passes} interval passes over four objects: {:.2} reads and {:.2} writes each, {:.1?} CPU in all",
        per_pass(tally.object_reads().count()),
        per_pass(tally.writes().count()),
        world.controller_ref().cpu_time() - cpu
    );
    assert!(tally.writes().is_empty(), "\n{}", tally.writes().lines());
    assert!(tally.object_reads().is_empty(), "\n{}", tally.object_reads().lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_costs_few_requests() {
    let world = World::builder("figures-rollout").alone().start().await;
    let mark = world.proxy.mark();
    let took = fleet(&world, count(), "1h").await;
    let tally = world.proxy.since(mark);
    let of = |class: Class| tally.records().iter().filter(|r| r.call.class() == class).count() as f64 / count() as f64;
    println!(
        "figure: from nothing to Ready, {} StageSets in {took:.1?}: {:.1} reads, {:.1} writes, {:.1} dry runs, {:.1} events each",
        count(),
        tally.object_reads().count() as f64 / count() as f64,
        of(Class::Write),
        of(Class::DryRun),
        of(Class::Event)
    );
    let each = tally.records().len() as f64 / count() as f64;
    assert!(each < 14.0, "{each:.1} requests each");
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
