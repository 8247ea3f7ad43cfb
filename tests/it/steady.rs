//! A steady state costs nothing.

use std::time::Duration;

use crate::support::{
    Match, World,
    objects::{self, configmap, deployment, multi, service, widget},
    stageset::{StageSet, stage, stageset},
};

/// A settled StageSet with eight objects in two stages.
async fn settled<'w>(world: &'w World, interval: &str) -> StageSet<'w> {
    let maps: Vec<String> = (0..5).map(|i| configmap(&format!("map-{i}"), "1")).collect();
    world.publish("base", &[("maps.yaml", &multi(&maps))]).await;
    let app = multi(&[deployment("web", "web:1", 1), service("web", 80), widget("w", 1)]);
    world.publish("app", &[("app.yaml", &app)]).await;
    world.widget("w", true).await;
    let shop = stageset("shop")
        .interval(interval)
        .stage(stage("base", "base"))
        .stage(stage("app", "app"))
        .apply(world)
        .await;
    shop.until_ready().await;
    // The events of the rollout itself (its inventory, the Deployment's last status) settle.
    world.quiet().await;
    shop
}

/// Rules: run 23, run 16.2.2, run 21.1 quiet, run B19 cache
#[tokio::test(flavor = "multi_thread")]
async fn an_interval_pass_asks_the_api_server_for_nothing() {
    let world = World::start("steady").await;
    let shop = settled(&world, "1s").await;
    // The first passes compare what nobody has compared yet.
    shop.until_passes(shop.passes().await + 2.0).await;
    let (mark, before) = (world.proxy.mark(), shop.passes().await);
    shop.until_passes(before + 5.0).await;
    let tally = world.proxy.since(mark);
    assert!(tally.is_empty(), "five passes over eight objects:\n{}", tally.lines());
    assert_eq!(world.artifacts.all_downloads(), 2, "each artifact is downloaded once");
}

/// Rules: run 23
#[tokio::test(flavor = "multi_thread")]
async fn a_requested_pass_costs_one_status_write_and_at_most_one_read() {
    let world = World::start("asked").await;
    let shop = settled(&world, "1h").await;
    // The first comparison reads what nobody has compared yet.
    shop.reconcile().await;
    world.quiet().await;
    let (mark, before) = (world.proxy.mark(), shop.passes().await);
    shop.reconcile().await;
    world.quiet().await;
    assert!(shop.passes().await > before, "no pass");
    let tally = world.proxy.since(mark);
    let writes = tally.writes();
    assert_eq!(writes.count(), 1, "\n{}", writes.lines());
    assert_eq!(
        writes
            .matching(&Match::any().resource("stagesets").subresource("status"))
            .count(),
        1,
        "\n{}",
        writes.lines()
    );
    assert!(tally.dry_runs().is_empty(), "dry runs:\n{}", tally.dry_runs().lines());
    assert!(
        tally.object_reads().count() <= 1,
        "reads:\n{}",
        tally.object_reads().lines()
    );
}

/// Rules: run B17
#[tokio::test(flavor = "multi_thread")]
async fn the_heartbeat_of_a_source_costs_nothing() {
    let world = World::start("heartbeat").await;
    settled(&world, "1h").await;
    let mark = world.proxy.mark();
    for i in 0..5 {
        let status = serde_json::json!({ "lastHandledReconcileAt": format!("{i}") });
        world
            .cluster
            .patch_status(&objects::external_artifacts(), &world.namespace, "base", status)
            .await;
        world
            .cluster
            .annotate(
                &objects::external_artifacts(),
                &world.namespace,
                "base",
                "example.com/beat",
                Some(&i.to_string()),
            )
            .await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tally = world.proxy.since(mark);
    assert!(tally.writes().is_empty(), "writes:\n{}", tally.writes().lines());
    assert!(
        tally.object_reads().is_empty(),
        "reads:\n{}",
        tally.object_reads().lines()
    );
}

/// Rules: run 3.1 p, run 20 correct, run 20 report, run 20 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_made_change_is_corrected_and_reported() {
    let world = World::start("drift").await;
    let shop = settled(&world, "1h").await;
    let patch = serde_json::json!({ "data": { "value": "by hand" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "map-1", patch)
        .await;
    shop.reconcile().await;
    assert_eq!(world.config_value("map-1").await.as_deref(), Some("1"));
    let event = shop.until_event("DriftCorrected").await;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(
        note.contains("ConfigMap") && note.contains("map-1") && !note.contains("map-2"),
        "{note}"
    );
    assert_eq!(event["type"], "Warning");
    shop.until_ready().await;
}

/// Rules: run 2.7 success, run 3 step 24, run 16.3, run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn an_object_deleted_by_hand_comes_back() {
    let world = World::start("deleted").await;
    settled(&world, "2s").await;
    world
        .cluster
        .delete(&objects::configmaps(), &world.namespace, "map-1")
        .await;
    world
        .cluster
        .until(&objects::configmaps(), &world.namespace, "map-1", "back", |m| {
            m["data"]["value"] == "1"
        })
        .await;
}

/// Rules: run 16.4 dropped, run 20 rollout
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_left_the_render_is_removed_from_the_object() {
    let world = World::start("fields").await;
    let two = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: map\n  annotations: { old: 'yes' }\ndata:\n  a: '1'\n  b: '2'\n";
    world.publish("app", &[("map.yaml", two)]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let one = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: map\ndata:\n  a: '1'\n";
    let revision = world.publish("app", &[("map.yaml", one)]).await;
    shop.until_rolled_out("app", &revision).await;
    let map = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "map")
        .await;
    assert_eq!(map["data"], serde_json::json!({ "a": "1" }));
    assert!(map["metadata"]["annotations"]["old"].is_null(), "{map}");
    assert_eq!(shop.event_count("DriftCorrected").await, 0, "a rollout is no drift");
}
