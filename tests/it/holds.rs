//! What becomes of a release, and of changes of its spec, while an update is held.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Archive, World,
    artifacts::Answer,
    look,
    objects::{self, configmap, widget},
    stageset::{Spec, StageSet, condition_of, stage, stageset},
};

fn closed() -> Value {
    json!([{ "type": "Deny", "from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z" }])
}

/// Where the bytes of a published revision are.
fn bytes_of(world: &World, name: &str, revision: &str) -> String {
    let digest = revision.trim_start_matches("v1@sha256:");
    format!("{}/{name}/{}.tar.gz", world.namespace, &digest[..12])
}

async fn publish(world: &World, name: &str, value: &str) -> String {
    world.publish(name, &[("map.yaml", &configmap(name, value))]).await
}

/// Deployed at `one`; `two` is held. Gives the revision that is deployed.
async fn held<'w>(world: &'w World, spec: Spec) -> (StageSet<'w>, String) {
    let first = publish(world, "app", "one").await;
    let mut app = spec.apply(world).await;
    app.until_ready().await;
    app.patch_spec(json!({ "updateWindows": closed() })).await;
    app.until_ready().await;
    publish(world, "app", "two").await;
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    (app, first)
}

async fn until_value(world: &World, name: &str, value: &str) {
    let seen = look(Duration::from_secs(40), || async {
        match world.config_value(name).await {
            Some(seen) if seen == value => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    if let Err(seen) = seen.await {
        world.fail(&format!("{name} is not {value:?} but {seen}")).await;
    }
}

async fn edit(world: &World, name: &str) {
    let edit = json!({ "data": { "value": "by hand" } });
    let maps = objects::configmaps();
    world.cluster.patch(&maps, &world.namespace, name, edit).await;
}

/// Rules: decisions 6 held, run B9 drift
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_waits_where_what_is_deployed_cannot_be_had_any_more() {
    let world = World::builder("hold-gone")
        .flag("--artifact-cache-bytes=0")
        .start()
        .await;
    let (mut app, first) = held(&world, stageset("app").stage(stage("app", "app"))).await;
    let path = bytes_of(&world, "app", &first);
    world.artifacts.remove(&path);
    // What concerns no stage asks for no bytes.
    app.patch_spec(json!({ "interval": "59m" })).await;
    app.until_ready().await;
    // Drift waits, and so does a stage that is to be built anew.
    edit(&world, "app").await;
    app.reconcile().await;
    app.until_event("DriftDeferred").await;
    let patch = "- { op: add, path: /data/more, value: patched }\n";
    let patched = json!([{ "name": "app", "sourceRef": { "name": "app" },
                           "patches": [{ "target": { "kind": "ConfigMap" }, "patch": patch }] }]);
    app.patch_spec(json!({ "stages": patched })).await;
    app.until_ready().await;
    let message = app.message().await;
    assert!(
        message.starts_with("Deployed; ") && message.contains("the changed spec waits, too"),
        "{message}"
    );
    for _ in 0..3 {
        app.reconcile().await;
    }
    let status = app.status().await;
    assert!(status["run"].is_null(), "{status}");
    assert_eq!(app.event_count("StageFailed").await, 0);
    assert_eq!(app.event_count("DriftDeferred").await, 1, "{:?}", app.events().await);
    assert_eq!(app.event_count("UpdateDeferred").await, 2, "{:?}", app.events().await);
    // They are there again.
    let bytes = Archive::of(&[("map.yaml", &configmap("app", "one"))]).gzip();
    world.artifacts.put(&path, Answer::Bytes(bytes.into()));
    until_value(&world, "app", "one").await;
    let map = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "app")
        .await;
    assert_eq!(map["data"]["more"], "patched");
}

/// A run that waits in front of a closed window, and a stage that is new: nothing can go on, and nothing is asked for
/// again and again.
///
/// Rules: decisions 6 held
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_added_to_a_run_in_a_closed_window_is_waited_for_at_rest() {
    let world = World::start("hold-run").await;
    world.publish("w", &[("w.yaml", &widget("w", 1))]).await;
    publish(&world, "more", "one").await;
    world.widget("w", false).await;
    let mut app = stageset("app").stage(stage("w", "w")).apply(&world).await;
    app.until_phase("w", "Verifying").await;
    let of = |name: &str| json!({ "name": name, "sourceRef": { "name": name } });
    app.patch_spec(json!({ "updateWindows": closed(), "stages": [of("w"), of("more")] }))
        .await;
    app.until("held", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains("stage \\\"more\\\""))
    })
    .await;
    let before = app.passes().await;
    world
        .stays("at rest", Duration::from_secs(3), || async {
            let passes = app.passes().await - before;
            if passes <= 6.0 {
                Ok(())
            } else {
                Err(format!("{passes} passes"))
            }
        })
        .await;
    assert_eq!(world.config_value("more").await, None);
}

/// Rules: decisions 6 held, run B9 drift, run B9 failure
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_added_in_a_closed_window_leaves_the_others_looked_after() {
    let world = World::start("hold-added").await;
    world.publish("w", &[("w.yaml", &widget("w", 1))]).await;
    publish(&world, "more", "one").await;
    world.widget("w", true).await;
    let spec = stageset("app").stage(stage("app", "app"));
    let (mut app, _) = held(&world, spec.stage(stage("w", "w").timeout("2s"))).await;
    let of = |name: &str| json!({ "name": name, "sourceRef": { "name": name }, "timeout": "2s" });
    app.patch_spec(json!({ "stages": [of("more"), of("app"), of("w")] }))
        .await;
    app.until_ready().await;
    let message = app.message().await;
    assert!(message.contains("stage \"more\""), "{message}");
    edit(&world, "app").await;
    // Its stage was changed, too: what it renders now is not what was applied.
    app.patch_spec(
        json!({ "stages": [of("more"), { "name": "app", "sourceRef": { "name": "app" } },
                                      { "name": "w", "sourceRef": { "name": "w" }, "timeout": "2s" }] }),
    )
    .await;
    app.reconcile().await;
    until_value(&world, "app", "one").await;
    world.widget("w", false).await;
    app.until_reason("StageFailed").await;
    world.widget("w", true).await;
    app.until("Ready again", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["status"] == "True")
    })
    .await;
    assert_eq!(world.config_value("more").await, None);
    app.patch_spec(json!({ "updateWindows": null })).await;
    app.until_ready().await;
    until_value(&world, "more", "one").await;
    until_value(&world, "app", "two").await;
}

/// What leaves one stage for another that has to wait is not deleted meanwhile.
///
/// Rules: decisions 6 held
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_renamed_in_a_closed_window_loses_nothing() {
    let world = World::start("hold-renamed").await;
    let (mut app, _) = held(&world, stageset("app").stage(stage("app", "app"))).await;
    let before = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "app")
        .await;
    app.patch_spec(json!({ "stages": [{ "name": "web", "sourceRef": { "name": "app" } }] }))
        .await;
    app.until_ready().await;
    app.reconcile().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("one"));
    app.patch_spec(json!({ "updateWindows": null })).await;
    app.until_ready().await;
    until_value(&world, "app", "two").await;
    let after = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "app")
        .await;
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
}

/// An override counts for the run that it begins, through all its attempts; a later run that fails is no business of it.
///
/// Rules: run B9 override
#[tokio::test(flavor = "multi_thread")]
async fn an_override_that_was_used_up_opens_no_later_freeze() {
    let world = World::start("hold-token").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", true).await;
    let mut app = stageset("app")
        .retry_interval("1s")
        .set("updateWindows", closed())
        .set("windowScope", json!("All"))
        .annotation("stages.metio.wtf/update-now", "once")
        .stage(stage("app", "app").timeout("1s"))
        .apply(&world)
        .await;
    app.until_ready().await;
    assert_eq!(app.status().await["lastHandledUpdateOverride"], "once");

    app.patch_spec(json!({ "updateWindows": null })).await;
    app.until_ready().await;
    world.widget("w", false).await;
    let red = widget("w", 1).replace("size: 1", "size: 1\n  color: red");
    world.publish("app", &[("w.yaml", &red)]).await;
    app.until_reason("StageFailed").await;
    app.patch_spec(json!({ "updateWindows": closed() })).await;
    let status = app.until("frozen", |s| !s["pendingUpdate"].is_null()).await;
    let run = status["run"].clone();
    assert!(run["updateOverride"].is_null(), "{run}");
    world
        .stays("frozen", Duration::from_secs(4), || async {
            let now = app.status().await["run"].clone();
            if now == run { Ok(()) } else { Err(now.to_string()) }
        })
        .await;

    app.annotate("stages.metio.wtf/update-now", Some("again")).await;
    let status = app
        .until("tried again and again", |s| s["run"]["attempt"].as_i64() > Some(3))
        .await;
    assert_eq!(status["run"]["updateOverride"], "again");
    let ready = objects::widget_status(2, true, false);
    world
        .cluster
        .patch_status(&objects::widgets(), &world.namespace, "w", ready)
        .await;
    app.until("Ready", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["status"] == "True") && s["run"].is_null()
    })
    .await;
}
