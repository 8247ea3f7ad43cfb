//! An API server that errs, stalls, forgets and goes away: everything converges, nothing is lost or repeated.

use std::{collections::BTreeSet, time::Duration};

use crate::support::{
    Match, When, World,
    objects::{self, configmap},
    seed,
    stageset::{StageSet, stage, stageset},
};

const SETS: usize = 6;

async fn publish(world: &World, set: usize, names: &[&str], value: &str) -> String {
    let files: Vec<(String, String)> = names
        .iter()
        .map(|n| (format!("{n}.yaml"), configmap(&format!("{n}-{set}"), value)))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    world.publish(&format!("app-{set}"), &files).await
}

/// Rolls out, changes and prunes several StageSets while the faults are on; then heals and checks the end.
async fn converges(world: &World, trouble: impl Fn(&World), lull: Duration) {
    for set in 0..SETS {
        publish(world, set, &["a", "b"], "1").await;
    }
    trouble(world);
    let mut sets = Vec::new();
    for set in 0..SETS {
        sets.push(
            stageset(&format!("set-{set}"))
                .retry_interval("1s")
                .stage(stage("app", &format!("app-{set}")))
                .apply(world)
                .await,
        );
    }
    tokio::time::sleep(lull).await;
    let mut revisions = Vec::new();
    for set in 0..SETS {
        revisions.push(publish(world, set, &["a"], "2").await);
    }
    tokio::time::sleep(lull).await;
    world.proxy.heal();
    for (set, revision) in sets.iter().zip(&revisions) {
        set.until_rolled_out("app", revision).await;
    }
    for (set, handle) in sets.iter().enumerate() {
        end_state(world, set, handle).await;
    }
    for set in &sets {
        set.delete().await;
    }
    for set in &sets {
        set.until_gone().await;
    }
    let left = world
        .cluster
        .list(&objects::configmaps(), &world.namespace, "stages.metio.wtf/name")
        .await;
    assert!(left.is_empty(), "orphans: {left:?}");
}

async fn end_state(world: &World, set: usize, handle: &StageSet<'_>) {
    let name = format!("a-{set}");
    assert_eq!(
        world.applied(&objects::configmaps(), &handle.name).await,
        std::slice::from_ref(&name),
        "\n{}",
        world.report().await
    );
    assert_eq!(world.config_value(&name).await.as_deref(), Some("2"));
    assert_eq!(handle.recorded_configmaps("app").await, BTreeSet::from([name]));
    let events: u64 = handle
        .events()
        .await
        .iter()
        .map(|e| e["series"]["count"].as_u64().unwrap_or(1))
        .sum();
    assert!(events <= 20, "{events} events about {}: a storm", handle.name);
}

/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn random_errors_and_cut_connections_are_survived() {
    let seed = seed();
    let world = World::builder("random").seed(seed).start().await;
    let trouble = |world: &World| {
        for code in [429, 500, 503, 409] {
            world.proxy.fail(Match::writes(), When::Chance(0.05), code);
        }
        world.proxy.fail(Match::any(), When::Chance(0.05), 500);
        world.proxy.cut(Match::any(), When::Chance(0.05));
        world.proxy.cut_answer(Match::writes(), When::Chance(0.05));
    };
    converges(&world, trouble, Duration::from_secs(4)).await;
}

/// Rules: run 24 start
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_in_the_middle_is_survived() {
    let world = World::start("outage").await;
    converges(&world, |world| world.proxy.outage(true), Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_api_server_only_slows() {
    let world = World::start("slow").await;
    converges(
        &world,
        |world| world.proxy.delay(Match::any(), Duration::from_millis(300)),
        Duration::from_secs(3),
    )
    .await;
}

/// Rules: run 21.1, decisions 3.1
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_on_any_status_write_is_decided_again() {
    let world = World::start("conflict").await;
    for nth in 1..=4 {
        world.proxy.fail(
            Match::writes().resource("stagesets").subresource("status"),
            When::Nth(nth),
            409,
        );
        let artifact = format!("app-{nth}");
        world
            .publish(&artifact, &[("m.yaml", &configmap(&artifact, "1"))])
            .await;
        let set = stageset(&format!("set-{nth}"))
            .stage(stage("app", &artifact))
            .apply(&world)
            .await;
        set.until_ready_within(Duration::from_secs(15)).await;
        set.until_event("Succeeded").await;
        assert_eq!(set.event_count("Succeeded").await, 1);
        world.proxy.heal();
    }
}

/// Rules: run 21.1
#[tokio::test(flavor = "multi_thread")]
async fn a_status_write_whose_answer_is_lost_is_not_repeated_blindly() {
    let world = World::start("lost").await;
    for nth in 1..=4 {
        world
            .proxy
            .cut_answer(Match::writes().resource("stagesets"), When::Nth(nth));
        let artifact = format!("app-{nth}");
        world
            .publish(&artifact, &[("m.yaml", &configmap(&artifact, "1"))])
            .await;
        let set = stageset(&format!("set-{nth}"))
            .stage(stage("app", &artifact))
            .apply(&world)
            .await;
        set.until_ready_within(Duration::from_secs(15)).await;
        world.proxy.heal();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_fails_nothing() {
    let world = World::start("no-events").await;
    world.proxy.fail(Match::events(), When::Always, 500);
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(5)).await;
}

/// A failed stage is tried again after `retryInterval`, neither sooner nor never; B31: zero counts as unset.
///
/// Rules: run 2.6 retry, run 2.7 failure, run B11, run B31
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_stage_is_tried_again_after_its_retry_interval() {
    let world = World::start("retry").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    // The request that looks and creates in one, and the look that follows its refusal.
    world
        .proxy
        .fail(Match::any().resource("configmaps").name("map"), When::First(2), 422);
    let shop = stageset("shop")
        .interval("1h")
        .retry_interval("3s")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    shop.until_reason("StageFailed").await;
    shop.until_ready().await;
    // By the clock of the proxy, which does not depend on when this test looks.
    let tries = world
        .proxy
        .all()
        .matching(&Match::writes().resource("configmaps").name("map"));
    let (Some(first), Some(last)) = (tries.first(), tries.records().last()) else {
        panic!("never tried:\n{}", tries.lines());
    };
    let waited = last.started.duration_since(first.started);
    assert!(waited > Duration::from_millis(2800), "tried again after {waited:?}");

    world.publish("zero", &[("m.yaml", &configmap("zero", "1"))]).await;
    world.proxy.heal();
    world
        .proxy
        .fail(Match::any().resource("configmaps").name("zero"), When::First(2), 422);
    let zero = stageset("zero")
        .interval("4s")
        .retry_interval("0s")
        .stage(stage("app", "zero"))
        .apply(&world)
        .await;
    zero.until_reason("StageFailed").await;
    zero.until_ready_within(Duration::from_secs(10)).await;
}
