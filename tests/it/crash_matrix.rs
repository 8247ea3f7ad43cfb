//! SIGKILL anywhere in a run that has everything: a definition and its resource, an object that has to be recreated,
//! drift, an object that leaves, and one that moves from one stage to another.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use rand::{SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Value, json};

use crate::{
    crash::keep_alive,
    support::{
        Moment, World, full, look,
        objects::{self, Kind, configmap, deployment, multi},
        seed,
        stageset::{StageSet, condition_of, stage, stage_of, stageset},
    },
    workloads::custom::{definition, may_define, plural, resource},
};

/// Both stages take one artifact, so that a move between them is one revision.
async fn publish(world: &World, one: &[String], two: &[String]) -> String {
    let files = [("one/all.yaml", multi(one)), ("two/all.yaml", multi(two))];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    world.publish("app", &files).await
}

fn kind_of(world: &World) -> Kind {
    let random = world.namespace.rsplit('-').next().unwrap_or_default();
    Kind::new("workloads.stageset.test/v1", &format!("Gear{random}"))
}

fn web(app: &str) -> String {
    deployment("web", "web:1", 1).replace("app: web", &format!("app: {app}"))
}

/// The kinds that the two stages apply, with the name of their object of interest.
fn watched(world: &World) -> Vec<(Kind, String)> {
    let gear = kind_of(world);
    let crd = format!("{}.{}", plural(&gear), gear.group());
    vec![
        (objects::crds(), crd),
        (gear, "gear".to_owned()),
        (objects::configmaps(), "moves".to_owned()),
        (objects::configmaps(), "stays".to_owned()),
        (objects::deployments(), "web".to_owned()),
    ]
}

async fn uids(world: &World) -> BTreeMap<String, Value> {
    let mut uids = BTreeMap::new();
    for (kind, name) in watched(world) {
        let object = world.cluster.must_get(&kind, &world.namespace, &name).await;
        let called = if kind == objects::crds() {
            "definition".to_owned()
        } else {
            name
        };
        uids.insert(called, object["metadata"]["uid"].clone());
    }
    uids
}

/// What the run must leave behind, whatever happened on the way.
#[derive(Debug, PartialEq)]
struct State {
    objects: BTreeMap<String, Value>,
    inventory: Value,
    stages: Value,
    ready: Value,
}

impl State {
    async fn read(world: &World, shop: &StageSet<'_>) -> Self {
        let gear = kind_of(world);
        let anonymous = |value: Value| -> Value {
            let text = value.to_string().replace(&world.namespace, "NAMESPACE");
            let text = text.replace(&plural(&gear), "gears").replace(&gear.kind, "Gear");
            serde_json::from_str(&text).expect("JSON")
        };
        let mut objects = BTreeMap::new();
        for kind in [objects::configmaps(), objects::deployments(), gear.clone()] {
            for object in world
                .cluster
                .list(&kind, &world.namespace, "stages.metio.wtf/name")
                .await
            {
                let name = format!(
                    "{} {}",
                    kind.kind,
                    object["metadata"]["name"].as_str().unwrap_or_default()
                );
                let says = json!([
                    object["data"],
                    object["spec"]["size"],
                    object["spec"]["selector"],
                    object["metadata"]["labels"]["stages.metio.wtf/stage"],
                ]);
                objects.insert(name.replace(&gear.kind, "Gear"), says);
            }
        }
        let status = shop.status().await;
        let stages = ["one", "two"].map(|name| {
            let entry = stage_of(&status, name);
            let fields = ["phase", "entriesCount", "shards", "message", "waitingFor"];
            json!(fields.map(|field| anonymous(entry[field].clone())))
        });
        let ready = condition_of(&status, "Ready").cloned().unwrap_or_default();
        Self {
            objects,
            inventory: anonymous(json!(shop.inventory().await)),
            stages: json!(stages),
            ready: json!([ready["status"], ready["reason"], status["run"]]),
        }
    }
}

async fn until_done(shop: &StageSet<'_>, revision: &str) {
    let good = |s: &Value| {
        let ready = condition_of(s, "Ready").is_some_and(|c| c["status"] == "True");
        let at = |name: &str| stage_of(s, name)["appliedRevision"] == revision && stage_of(s, name)["phase"] == "Ready";
        ready && s["run"].is_null() && at("one") && at("two")
    };
    shop.until("rolled out with a finished run", good).await;
}

/// The run; gives the state after each part and how many events there were by reason.
async fn run(world: &World) -> (Vec<State>, BTreeMap<String, u64>) {
    let gear = kind_of(world);
    let first = publish(
        world,
        &[
            resource(&gear, "gear", 1),
            definition(&gear, false),
            configmap("moves", "1"),
            configmap("leaves", "1"),
            web("one"),
        ],
        &[configmap("stays", "1")],
    )
    .await;
    let rules = json!({ "rules": [{ "target": { "kind": "Deployment" }, "action": "Recreate" }] });
    let shop = stageset("shop")
        .stage(stage("one", "app").path("./one").set("conflictPolicy", rules))
        .stage(stage("two", "app").path("./two"))
        .apply(world)
        .await;
    until_done(&shop, &first).await;
    let mut states = vec![State::read(world, &shop).await];
    let before = uids(world).await;

    let by_hand = json!({ "data": { "value": "by hand", "added": "too" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "stays", by_hand)
        .await;
    shop.request().await;
    let corrected = |map: &Value| map["data"]["value"] == "1";
    world
        .cluster
        .until(&objects::configmaps(), &world.namespace, "stays", "put back", corrected)
        .await;
    until_done(&shop, &first).await;
    states.push(State::read(world, &shop).await);

    let second = publish(
        world,
        &[resource(&gear, "gear", 2), definition(&gear, false), web("two")],
        &[configmap("moves", "2"), configmap("stays", "2")],
    )
    .await;
    until_done(&shop, &second).await;
    states.push(State::read(world, &shop).await);
    for (name, uid) in uids(world).await {
        if name == "web" {
            assert_ne!(uid, before[&name], "recreated");
        } else {
            assert_eq!(uid, before[&name], "{name} was deleted on the way");
        }
    }

    shop.delete().await;
    shop.until_gone().await;
    nothing_is_left(world).await;
    let mut events = BTreeMap::new();
    for event in shop.events().await {
        *events
            .entry(event["reason"].as_str().unwrap_or_default().to_owned())
            .or_insert(0) += event["series"]["count"].as_u64().unwrap_or(1);
    }
    (states, events)
}

async fn nothing_is_left(world: &World) {
    for kind in [objects::configmaps(), objects::deployments(), objects::inventories()] {
        let gone = look(crate::support::PATIENCE, || async {
            let left = world.cluster.list(&kind, &world.namespace, "").await;
            let left: Vec<&Value> = left
                .iter()
                .map(|o| &o["metadata"]["name"])
                .filter(|name| **name != "kube-root-ca.crt")
                .collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
        gone.await
            .unwrap_or_else(|left| panic!("orphans of kind {kind}: {left}"));
    }
    let gear = kind_of(world);
    let crd = format!("{}.{}", plural(&gear), gear.group());
    world.cluster.until_gone(&objects::crds(), "", &crd).await;
}

/// How many writes the run takes when nobody disturbs it, and what it leaves.
async fn undisturbed() -> (u64, Vec<State>, BTreeMap<String, u64>) {
    let world = World::builder("matrix-ref").without_controller().start().await;
    may_define(&world).await;
    let mut controller = world.replica("a");
    controller.until_ready().await;
    let mark = world.proxy.mark();
    let (states, events) = run(&world).await;
    let writes = world.proxy.since(mark).writes();
    println!("the reference run takes {} writes:\n{}", writes.count(), writes.lines());
    (writes.count() as u64, states, events)
}

/// Rules: run B38, run 19.2 moved
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_write_of_a_run_with_everything_changes_nothing_in_the_end() {
    let (writes, expected, usual) = undisturbed().await;
    let all: Vec<(u64, Moment)> = (1..=writes)
        .flat_map(|n| [(n, Moment::Before), (n, Moment::After)])
        .collect();
    let cases: Vec<(u64, Moment)> = if full() {
        all
    } else {
        let mut dice = StdRng::seed_from_u64(seed());
        all.sample(&mut dice, 10).copied().collect()
    };
    let (expected, usual) = (&expected, &usual);
    stream::iter(cases)
        .for_each_concurrent(2, |(nth, moment)| async move {
            let world = World::builder(&format!("matrix-{nth}"))
                .without_controller()
                .start()
                .await;
            may_define(&world).await;
            let mut controller = world.replica("a");
            controller.until_ready().await;
            world.proxy.kill_at_write(controller.pid(), nth, moment);
            let (states, events) = tokio::select! {
                outcome = run(&world) => outcome,
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
