//! What is sent to Flux's notification-controller, decoded by a receiver with Flux's own types.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    World, look,
    objects::{self, configmap, widget},
    stageset::{StageSet, stage, stage_of, stageset},
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

/// The revisions that the events of a reason are about, oldest first, once there are so many.
async fn revisions(set: &StageSet<'_>, reason: &str, count: usize) -> Vec<String> {
    let seen = look(Duration::from_secs(20), || async {
        let mut events = set.events().await;
        events.retain(|e| e["reason"] == reason);
        events.sort_by_key(|e| e["eventTime"].to_string());
        let of = |e: &Value| {
            let revision = &e["metadata"]["annotations"]["stages.metio.wtf/revision"];
            revision.as_str().unwrap_or_default().to_owned()
        };
        let revisions: Vec<String> = events.iter().map(of).collect();
        if revisions.len() == count {
            Ok(revisions)
        } else {
            Err(format!("{revisions:?}"))
        }
    });
    seen.await
        .unwrap_or_else(|seen| panic!("not {count} events {reason}: {seen}"))
}

/// What the sources offer by then is another matter.
///
/// Rules: contract 8.1, contract 8.2
#[tokio::test(flavor = "multi_thread")]
async fn an_event_names_the_revision_that_it_is_about() {
    let world = World::start("events-revision").await;
    let publish = async |color: &str| {
        let text = widget("w", 1).replace("size: 1", &format!("size: 1\n  color: {color}"));
        world.publish("app", &[("w.yaml", &text)]).await
    };
    let ready = async |generation: i64| {
        let status = objects::widget_status(generation, true, false);
        let widgets = objects::widgets();
        world
            .cluster
            .patch_status(&widgets, &world.namespace, "w", status)
            .await;
    };
    let first = publish("red").await;
    let mut shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_phase("app", "Verifying").await;
    ready(1).await;
    shop.until_rolled_out("app", &first).await;
    let second = publish("green").await;
    shop.until("the second under way", |s| {
        stage_of(s, "app")["appliedRevision"] == second.as_str()
    })
    .await;
    let third = publish("blue").await;
    shop.until("the third known", |s| {
        s["lastAttemptedRevisions"].to_string().contains(&third)
    })
    .await;
    ready(2).await;
    shop.until("the third under way", |s| {
        stage_of(s, "app")["appliedRevision"] == third.as_str()
    })
    .await;
    ready(3).await;
    shop.until_rolled_out("app", &third).await;
    let told = revisions(&shop, "Succeeded", 3).await;
    assert_eq!(told, [&first[..], &second, &third]);
    // Once more with the same revision, and with the same text.
    shop.patch_spec(json!({ "stages": [{ "name": "app", "sourceRef": { "name": "app" }, "timeout": "9m" }] }))
        .await;
    shop.until_ready().await;
    assert_eq!(revisions(&shop, "Succeeded", 4).await[3], third);
    for _ in 0..2 {
        shop.reconcile().await;
    }
    assert_eq!(shop.event_count("Succeeded").await, 4, "an unchanged Ready is no news");
}

/// Rules: contract 8.2
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_names_the_revision_of_its_stage() {
    let world = World::start("events-stage").await;
    world.publish("a", &[("m.yaml", &configmap("map", "1"))]).await;
    let claim = objects::unbound_claim("never");
    let bad = world.publish("b", &[("c.yaml", &claim)]).await;
    let shop = stageset("shop")
        .retry_interval("1s")
        .stage(stage("a", "a"))
        .stage(stage("b", "b").timeout("1s"))
        .apply(&world)
        .await;
    shop.until_reason("StageFailed").await;
    shop.until("tried again", |s| s["run"]["attempt"].as_i64() > Some(3))
        .await;
    assert_eq!(revisions(&shop, "StageFailed", 1).await, [bad]);
}
