//! What is sent to Flux's notification-controller, decoded by a receiver with Flux's own types.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    World, look,
    objects::{self, configmap},
    stageset::{stage, stageset},
};

/// Events the receiver decoded, or the requests it refused, about this world's namespace.
fn received(world: &World, variable: &str) -> Vec<Value> {
    let text = fs::read_to_string(world.cluster.plane.var(variable)).unwrap_or_default();
    let about = |line: &&str| line.contains(&world.namespace);
    text.lines()
        .filter(about)
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect()
}

async fn world(name: &str) -> World {
    let plane = crate::support::ControlPlane::shared().await;
    World::builder(name)
        .flag(&format!("--events-addr={}", plane.var("TESTENV_EVENTS_URL")))
        .start()
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn flux_reads_the_events_of_a_rollout() {
    let world = world("events").await;
    let revision = world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let bad = stageset("bad").stage(stage("app", "absent")).apply(&world).await;
    bad.until_reason("ArtifactNotFound").await;

    let find = async |name: &str, reason: &str| {
        look(Duration::from_secs(10), || async {
            let all = received(&world, "TESTENV_EVENTS_FILE");
            let found = all
                .iter()
                .find(|e| e["involvedObject"]["name"] == name && e["reason"] == reason);
            found.cloned().ok_or_else(|| {
                format!(
                    "{all:?}, refused {:?}",
                    received(&world, "TESTENV_EVENTS_REJECTED_FILE")
                )
            })
        })
        .await
        .unwrap_or_else(|seen| panic!("no event {reason} about {name}: {seen}"))
    };
    let good = find("shop", "Succeeded").await;
    assert_eq!(good["severity"], "info");
    assert_eq!(good["involvedObject"]["kind"], "StageSet");
    assert_eq!(good["involvedObject"]["namespace"], world.namespace.as_str());
    assert_eq!(good["involvedObject"]["apiVersion"], "stages.metio.wtf/v1");
    assert!(good["involvedObject"]["uid"].is_string(), "{good}");
    assert_eq!(good["reportingController"], "stageset-controller");
    assert!(
        good["timestamp"].is_string() && good["message"].as_str().is_some_and(|m| !m.is_empty()),
        "{good}"
    );
    let metadata = good["metadata"].to_string();
    assert!(
        metadata.contains("stages.metio.wtf/revision") && metadata.contains(&revision),
        "{good}"
    );
    assert_eq!(find("bad", "ArtifactNotFound").await["severity"], "info");
    assert_eq!(received(&world, "TESTENV_EVENTS_REJECTED_FILE"), Vec::<Value>::new());

    let kubernetes = shop.until_event("Succeeded").await;
    assert_eq!(
        kubernetes["metadata"]["annotations"]["stages.metio.wtf/revision"],
        revision.as_str(),
        "{kubernetes}"
    );
}

/// The event of a rollout that somebody asked for names the request.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_answers_a_request_carries_its_token() {
    let world = world("events-token").await;
    let mut shop = stageset("shop").stage(stage("app", "late")).apply(&world).await;
    shop.until_reason("ArtifactNotFound").await;
    shop.until_event("ArtifactNotFound").await;
    let token = shop.request().await;
    shop.until_handled(&token).await;
    world.publish("late", &[("m.yaml", &configmap("map", "1"))]).await;
    shop.until_ready().await;
    let unasked = shop.until_event("Succeeded").await;
    let of = |event: &Value| event["metadata"]["annotations"]["stages.metio.wtf/token"].clone();
    assert_eq!(of(&unasked), Value::Null, "it was handled before: {unasked}");
    shop.suspend(true).await;
    shop.until_reason("Suspended").await;
    let again = json!({
        "metadata": { "annotations": { "reconcile.fluxcd.io/requestedAt": "again" } }, "spec": { "suspend": false },
    });
    world
        .cluster
        .patch(&objects::stagesets(), &world.namespace, "shop", again)
        .await;
    let event = look(Duration::from_secs(10), || async {
        let events = shop.events().await;
        let found = events.iter().find(|e| e["reason"] == "Succeeded" && of(e) == "again");
        found.map(|_| ()).ok_or_else(|| format!("{events:?}"))
    });
    event.await.unwrap_or_else(|seen| panic!("none with the token: {seen}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_delays_nothing() {
    let world = World::builder("events-down")
        .flag("--events-addr=http://127.0.0.1:1/")
        .start()
        .await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(5)).await;
    shop.until_event("Succeeded").await;
}
