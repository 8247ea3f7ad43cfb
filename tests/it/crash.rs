//! SIGKILL anywhere: what is left converges to the state of a run nobody disturbed.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt as _, stream};
use rand::{SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

use crate::support::{
    Controller, Match, Moment, Verb, When, World, full, look,
    objects::{self, configmap},
    seed,
    stageset::{StageSet, stage, stage_of, stageset},
};

/// Restarts whenever the process is gone; never returns.
pub async fn keep_alive(controller: &mut Controller) -> ! {
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if !controller.running() {
            controller.reap();
            controller.start_again();
            controller.until_ready().await;
        }
    }
}

/// What a rollout must leave behind, whatever happened on the way.
#[derive(Debug, PartialEq)]
struct State {
    objects: BTreeMap<String, Value>,
    inventory: Value,
    stages: Value,
    ready: Value,
}

impl State {
    async fn read(world: &World, shop: &StageSet<'_>) -> Self {
        let anonymous = |value: Value| -> Value {
            serde_json::from_str(&value.to_string().replace(&world.namespace, "NAMESPACE")).expect("JSON")
        };
        let maps = world
            .cluster
            .list(&objects::configmaps(), &world.namespace, "stages.metio.wtf/name")
            .await;
        let objects = maps
            .iter()
            .map(|map| {
                let mut labels = map["metadata"]["labels"].clone();
                // A hash over the namespace.
                labels["applyset.kubernetes.io/part-of"].take();
                (
                    map["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    anonymous(json!([map["data"], labels])),
                )
            })
            .collect();
        let status = shop.status().await;
        let stages = ["one", "two"].map(|name| {
            let entry = stage_of(&status, name);
            json!([
                entry["phase"],
                entry["appliedRevision"],
                entry["entriesCount"],
                entry["shards"]
            ])
        });
        let ready = shop.condition("Ready").await.unwrap_or_default();
        Self {
            objects,
            inventory: anonymous(json!(shop.inventory().await)),
            stages: json!(stages),
            ready: json!([
                ready["status"],
                ready["reason"],
                status["run"],
                anonymous(status["lastAppliedRevisions"].clone())
            ]),
        }
    }
}

/// The reference rollout: two stages; one object leaves; everything is torn down. Gives the state after each part
/// and how many events there were by reason.
async fn rollout(world: &World) -> (Vec<State>, BTreeMap<String, u64>) {
    world
        .publish(
            "one",
            &[("a.yaml", &configmap("a", "1")), ("b.yaml", &configmap("b", "1"))],
        )
        .await;
    world.publish("two", &[("c.yaml", &configmap("c", "1"))]).await;
    let shop = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(world)
        .await;
    shop.until_ready().await;
    shop.until("a finished run", |s| s["run"].is_null()).await;
    let first = State::read(world, &shop).await;

    let two = world.publish("two", &[("c.yaml", &configmap("c", "2"))]).await;
    let one = world.publish("one", &[("a.yaml", &configmap("a", "2"))]).await;
    shop.until("rolled out with a finished run", |s| {
        let at = |name: &str, revision: &str| {
            stage_of(s, name)["appliedRevision"] == revision && stage_of(s, name)["phase"] == "Ready"
        };
        let ready = crate::support::stageset::condition_of(s, "Ready").is_some_and(|c| c["status"] == "True");
        ready && s["run"].is_null() && at("one", &one) && at("two", &two)
    })
    .await;
    let second = State::read(world, &shop).await;

    shop.delete().await;
    shop.until_gone().await;
    let left = world
        .cluster
        .list(&objects::configmaps(), &world.namespace, "stages.metio.wtf/name")
        .await;
    assert!(left.is_empty(), "orphans: {left:?}");
    let mut events = BTreeMap::new();
    for event in shop.events().await {
        *events
            .entry(event["reason"].as_str().unwrap_or_default().to_owned())
            .or_insert(0) += event["series"]["count"].as_u64().unwrap_or(1);
    }
    (vec![first, second], events)
}

/// How many writes the reference rollout takes, and what it leaves.
async fn undisturbed() -> (u64, Vec<State>, BTreeMap<String, u64>) {
    let world = World::builder("crash-ref").without_controller().start().await;
    let mut controller = world.replica("a");
    controller.until_ready().await;
    let mark = world.proxy.mark();
    let (states, events) = rollout(&world).await;
    let writes = world.proxy.since(mark).writes();
    println!(
        "the reference rollout takes {} writes:\n{}",
        writes.count(),
        writes.lines()
    );
    (writes.count() as u64, states, events)
}

/// Rules: run B1, run B38, decisions 3.1
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_write_changes_nothing_in_the_end() {
    let (writes, expected, usual) = undisturbed().await;
    let all: Vec<(u64, Moment)> = (1..=writes)
        .flat_map(|n| [(n, Moment::Before), (n, Moment::After)])
        .collect();
    let cases: Vec<(u64, Moment)> = if full() {
        all
    } else {
        let mut dice = StdRng::seed_from_u64(seed());
        all.sample(&mut dice, 8).copied().collect()
    };
    let (expected, usual) = (&expected, &usual);
    stream::iter(cases)
        .for_each_concurrent(2, |(nth, moment)| async move {
            let world = World::builder(&format!("crash-{nth}"))
                .without_controller()
                .start()
                .await;
            let mut controller = world.replica("a");
            controller.until_ready().await;
            world.proxy.kill_at_write(controller.pid(), nth, moment);
            let (states, events) = tokio::select! {
                outcome = rollout(&world) => outcome,
                never = keep_alive(&mut controller) => never,
            };
            let at = world.proxy.killed_at().map(|call| call.line());
            println!("killed {moment:?} write {nth}: {at:?}");
            assert_eq!(&states, expected, "killed {moment:?} write {nth}, {at:?}");
            for (reason, count) in &events {
                let most = usual.get(reason).copied().unwrap_or(0) + 1;
                assert!(
                    *count <= most,
                    "{count} events {reason}, killed {moment:?} write {nth}, {at:?}: {events:?}"
                );
            }
        })
        .await;
}

/// Rules: decisions 3.1
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_resumes_a_wait_where_it_was() {
    let mut world = World::start("resume").await;
    world
        .publish(
            "one",
            &[
                ("m.yaml", &configmap("before", "1")),
                ("w.yaml", &objects::widget("gate", 1)),
            ],
        )
        .await;
    world.publish("two", &[("m.yaml", &configmap("after", "1"))]).await;
    world.widget("gate", false).await;
    stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    let began = {
        let shop = StageSet::named(&world, "shop").await;
        shop.until_phase("one", "Verifying").await;
        shop.stage("one").await["stepStartedAt"].clone()
    };
    assert!(began.is_string(), "{began}");
    world.controller().kill();
    let mark = world.proxy.mark();
    world.controller().start_again();
    world.controller().until_ready().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let shop = StageSet::named(&world, "shop").await;
    assert_eq!(
        shop.stage("one").await["stepStartedAt"],
        began,
        "the clock of the wait goes on"
    );
    let repeated = world
        .proxy
        .since(mark)
        .matching(&Match::writes().resource("configmaps"));
    assert!(repeated.is_empty(), "applied again:\n{}", repeated.lines());
    world.widget("gate", true).await;
    shop.until_ready().await;
    shop.until_event("Succeeded").await;
    assert_eq!(shop.event_count("Succeeded").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_that_came_while_it_was_down_is_seen_after_the_restart() {
    let mut world = World::start("missed").await;
    world.publish("one", &[("w.yaml", &objects::widget("gate", 1))]).await;
    world.publish("two", &[("m.yaml", &configmap("after", "1"))]).await;
    world.widget("gate", false).await;
    stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    StageSet::named(&world, "shop")
        .await
        .until_phase("one", "Verifying")
        .await;
    world.controller().kill();
    world.widget("gate", true).await;
    world.controller().start_again();
    world.controller().until_ready().await;
    StageSet::named(&world, "shop")
        .await
        .until_ready_within(Duration::from_secs(10))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_nothing_to_do_writes_nothing() {
    let mut world = World::start("restart").await;
    for name in ["one", "two"] {
        world.publish(name, &[("m.yaml", &configmap(name, "1"))]).await;
        stageset(name)
            .stage(stage("app", name))
            .apply(&world)
            .await
            .until_ready()
            .await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.controller().kill();
    let mark = world.proxy.mark();
    world.controller().start_again();
    world.controller().until_ready().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let tally = world.proxy.since(mark);
    assert!(
        tally.writes().is_empty() && tally.events().is_empty(),
        "\n{}{}",
        tally.writes().lines(),
        tally.events().lines()
    );
}

/// After a restart readiness comes first; comparisons are spread over the interval.
/// Rules: decisions 5 restart
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_health_is_known_at_once_and_comparisons_are_spread() {
    let mut world = World::start("restart-spread").await;
    world
        .publish(
            "app",
            &[
                ("m.yaml", &configmap("map", "1")),
                ("w.yaml", &objects::widget("gate", 1)),
            ],
        )
        .await;
    world.widget("gate", true).await;
    stageset("shop")
        .interval("24h")
        .retry_interval("6s")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    world.controller().kill();
    let mark = world.proxy.mark();
    world.controller().start_again();
    world.controller().until_ready().await;
    let shop = StageSet::named(&world, "shop").await;
    let looked = Match::any().verb(Verb::Get).resource("widgets").name("gate");
    look(Duration::from_secs(10), || async {
        match world.proxy.since(mark).matching(&looked).count() {
            0 => Err("not looked at yet".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("readiness is looked at");
    let data = json!({ "data": { "value": "by hand" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "map", data)
        .await;
    world
        .stays("the comparison waits for its place", Duration::from_secs(3), || async {
            match world.config_value("map").await.as_deref() {
                Some("by hand") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let reads = world.proxy.since(mark).gets_per_object();
    assert!(reads.values().all(|&n| n <= 2), "{reads:?}");
    world.widget("gate", false).await;
    shop.until_phase("app", "Verifying").await;
    // A look that was asked for and failed is still to be done, whenever the comparison would have come.
    let read = Match::any().verb(Verb::Get).resource("configmaps").name("map");
    world.proxy.fail(read, When::First(1), 422);
    shop.request().await;
    look(Duration::from_secs(20), || async {
        match world.config_value("map").await.as_deref() {
            Some("1") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("a request compares at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_came_while_it_was_down_is_carried_out() {
    let mut world = World::start("deleted-down").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("shop")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    world.controller().kill();
    StageSet::named(&world, "shop").await.delete().await;
    world.controller().start_again();
    world.controller().until_ready().await;
    world
        .cluster
        .until_gone(&objects::stagesets(), &world.namespace, "shop")
        .await;
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
}
