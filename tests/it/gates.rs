//! What holds a run before it begins, and what goes into a build: dependencies, windows, variables, patches, rights.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    World,
    objects::{self, configmap},
    stageset::{condition_of, stage, stage_of, stageset},
};

/// A window that has been closed for a year and stays so for another.
fn closed() -> Value {
    json!([{ "type": "Deny", "from": "2020-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z" }])
}

/// Rules: run 2.1 dependency, run 7.3 missing, run 7.3 ready, run D16
#[tokio::test(flavor = "multi_thread")]
async fn a_dependent_waits_and_goes_on_as_soon_as_its_dependency_is_ready() {
    let world = World::start("depends").await;
    world.publish("app", &[("map.yaml", &configmap("app", "v"))]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .set("dependsOn", json!([{ "name": "db" }]))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_reason("DependencyNotReady").await;
    assert!(
        app.message().await.contains("/db does not exist"),
        "{}",
        app.message().await
    );
    world.publish("db", &[("map.yaml", &configmap("db", "v"))]).await;
    stageset("db")
        .stage(stage("db", "db"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    app.until_ready_within(Duration::from_secs(10)).await;
}

/// Rules: run 7.2
#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_is_named() {
    let world = World::start("cycle").await;
    world.publish("app", &[("map.yaml", &configmap("app", "v"))]).await;
    let on = |name: &str, other: &str| {
        stageset(name)
            .set("dependsOn", json!([{ "name": other }]))
            .stage(stage("app", "app"))
    };
    let a = on("a", "b").apply(&world).await;
    on("b", "a").apply(&world).await;
    let status = a.until_reason("Stalled").await;
    assert!(a.message().await.contains("a -> "), "{}", a.message().await);
    let _ = status;
    let conditions = a.status().await;
    assert_eq!(condition_of(&conditions, "Stalled").expect("Stalled")["status"], "True");
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "app")
            .await
    );
}

/// Rules: run 2.5 update-now, run 10.4, run 10.5.1, run B9 wake, gates 2.4.1, gates 2.4.4
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_window_holds_the_first_rollout_until_the_override() {
    let world = World::start("window-first").await;
    world.publish("app", &[("map.yaml", &configmap("app", "one"))]).await;
    let app = stageset("app")
        .set("updateWindows", closed())
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_reason("UpdateDeferred").await;
    assert_eq!(world.config_value("app").await, None);
    app.annotate("stages.metio.wtf/update-now", Some("please")).await;
    app.until_ready().await;
    assert_eq!(app.status().await["lastHandledUpdateOverride"], "please");
    assert_eq!(world.config_value("app").await.as_deref(), Some("one"));
}

/// Rules: run 9 attempted, run 10.5.2, run 10.5.5, run B9 drift, gates 2.4.2, gates 2.4.5, gates 2.4.6
/// Rules: decisions 6 held
#[tokio::test(flavor = "multi_thread")]
async fn a_held_update_leaves_the_release_ready_and_its_drift_is_corrected() {
    let world = World::start("window-held").await;
    world.publish("app", &[("map.yaml", &configmap("app", "one"))]).await;
    let mut app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    app.patch_spec(json!({ "updateWindows": closed() })).await;
    app.until("the window in force", |s| s["observedGeneration"] == 2).await;

    let second = world.publish("app", &[("map.yaml", &configmap("app", "two"))]).await;
    let status = app
        .until("a pending update", |s| !s["pendingUpdate"]["revisions"].is_null())
        .await;
    let ready = condition_of(&status, "Ready").expect("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("True"), &json!("Succeeded"))
    );
    assert!(
        ready["message"].as_str().unwrap_or_default().starts_with("Deployed; "),
        "{ready}"
    );
    assert_eq!(
        status["pendingUpdate"]["revisions"][format!("{}/app", world.namespace)],
        second.as_str()
    );
    assert_eq!(app.until_event("UpdateDeferred").await["type"], "Normal");

    let edit = json!({ "data": { "value": "edited" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "app", edit)
        .await;
    app.reconcile().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("one"));

    app.patch_spec(json!({ "updateWindows": null })).await;
    app.until_rolled_out("app", &second).await;
    assert!(app.status().await["pendingUpdate"].is_null());
}

/// Rules: run 3.1 j, run 14.6 order, run 14.6 optional, run 14.6 syntax
#[tokio::test(flavor = "multi_thread")]
async fn variables_come_from_maps_and_secrets_and_inline_values_win() {
    let world = World::start("variables").await;
    let text = configmap("app", "${greeting} ${name} ${secret} ${missing:-fallback}");
    world.publish("app", &[("map.yaml", &text)]).await;
    let post_build = json!({
        "substitute": { "name": "inline" },
        "substituteFrom": [
            { "kind": "ConfigMap", "name": "vars" },
            { "kind": "Secret", "name": "vars" },
            { "kind": "ConfigMap", "name": "none", "optional": true },
        ],
    });
    let app = stageset("app")
        .stage(stage("app", "app").set("postBuild", post_build))
        .apply(&world)
        .await;
    app.until_reason("StageFailed").await;
    assert!(
        app.message().await.contains("resolve postBuild variables: ConfigMap/"),
        "{}",
        app.message().await
    );
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: vars }\ndata: { greeting: hello, name: map }\n";
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: vars }\nstringData: { secret: whisper }\n";
    world.cluster.apply_yaml(map, &world.namespace).await;
    world.cluster.apply_yaml(secret, &world.namespace).await;
    app.until_ready().await;
    assert_eq!(
        world.config_value("app").await.as_deref(),
        Some("hello inline whisper fallback")
    );

    world
        .cluster
        .apply_yaml(&map.replace("hello", "goodbye"), &world.namespace)
        .await;
    app.reconcile().await;
    app.until_ready().await;
    assert_eq!(
        world.config_value("app").await.as_deref(),
        Some("goodbye inline whisper fallback")
    );
}

/// Rules: run 14.3
#[tokio::test(flavor = "multi_thread")]
async fn a_stages_patches_change_what_it_applies() {
    let world = World::start("patches").await;
    world.publish("app", &[("map.yaml", &configmap("app", "plain"))]).await;
    let patches = json!([{
        "target": { "kind": "ConfigMap" },
        "patch": "- op: replace\n  path: /data/value\n  value: patched\n",
    }]);
    let app = stageset("app")
        .stage(stage("app", "app").set("patches", patches))
        .apply(&world)
        .await;
    app.until_ready().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("patched"));
}

/// Rules: run 25 denied, run D5, decisions 5 rbac
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_its_grant_is_noticed_in_seconds() {
    let world = World::start("rights").await;
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: poor }\n";
    world.cluster.apply_yaml(account, &world.namespace).await;
    world.publish("app", &[("map.yaml", &configmap("app", "v"))]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .set("serviceAccountName", json!("poor"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_reason("StageFailed").await;
    let message = app.message().await;
    assert!(message.contains("poor") && message.contains("configmaps"), "{message}");
    let grant = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: poor }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, \
         kind: ClusterRole, name: cluster-admin }}\nsubjects: [{{ kind: ServiceAccount, name: poor, namespace: {} }}]\n",
        world.namespace
    );
    world.cluster.apply_yaml(&grant, &world.namespace).await;
    app.until_ready_within(Duration::from_secs(40)).await;
    assert!(app.event_count("StageFailed").await <= 3, "{:?}", app.events().await);
}

/// Rules: run 18.3 current, run 18.3 error, run B12 exprs
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_decides_when_a_custom_resource_is_ready() {
    let world = World::start("exprs").await;
    world.publish("app", &[("widget.yaml", &objects::widget("w", 1))]).await;
    let exprs =
        json!([{ "apiVersion": "fixture.stageset.test/v1", "kind": "Widget", "current": "status.phase == 'Good'" }]);
    let app = stageset("app")
        .stage(stage("app", "app").set("readyChecks", json!({ "exprs": exprs })))
        .apply(&world)
        .await;
    app.until_phase("app", "Verifying").await;
    let good = json!({ "phase": "Good", "observedGeneration": 1 });
    world
        .cluster
        .patch_status(&objects::widgets(), &world.namespace, "w", good)
        .await;
    app.until_ready().await;
}

/// One override, one run: it goes through all stages although the window is closed for everything, and the next
/// revision is held again.
///
/// Rules: run B9 override
#[tokio::test(flavor = "multi_thread")]
async fn an_override_lasts_for_the_run_it_begins_and_no_longer() {
    for scope in ["All", "Updates"] {
        let world = World::start(&format!("override-{}", scope.to_lowercase())).await;
        world.publish("one", &[("w.yaml", &objects::widget("gate", 1))]).await;
        world.publish("two", &[("map.yaml", &configmap("map", "1"))]).await;
        world.widget("gate", true).await;
        let mut app = stageset("app")
            .set("windowScope", json!(scope))
            .stage(stage("one", "one"))
            .stage(stage("two", "two"))
            .apply(&world)
            .await;
        app.until_ready().await;
        app.patch_spec(json!({ "updateWindows": closed() })).await;
        app.until("the window in force", |s| s["observedGeneration"] == 2).await;

        world.widget("gate", false).await;
        let bigger = objects::widget("gate", 1).replace("size: 1", "size: 1\n  color: red");
        let first = world.publish("one", &[("w.yaml", &bigger)]).await;
        let second = world.publish("two", &[("map.yaml", &configmap("map", "2"))]).await;
        app.until("a pending update", |s| !s["pendingUpdate"]["revisions"].is_null())
            .await;
        assert_eq!(world.config_value("map").await.as_deref(), Some("1"));
        app.annotate("stages.metio.wtf/update-now", Some("once")).await;
        let status = app
            .until("under way", |s| {
                !s["run"].is_null() && stage_of(s, "one")["phase"] == "Verifying"
            })
            .await;
        assert_eq!(
            status["lastHandledUpdateOverride"], "once",
            "used up by the run it begins"
        );
        // The run waits in its first stage; the window is closed all the time.
        let ready = objects::widget_status(2, true, false);
        world
            .cluster
            .patch_status(&objects::widgets(), &world.namespace, "gate", ready)
            .await;
        app.until_rolled_out("two", &second).await;
        assert_eq!(app.stage("one").await["appliedRevision"], first.as_str());

        let third = world.publish("two", &[("map.yaml", &configmap("map", "3"))]).await;
        app.until("the next one held", |s| {
            s["pendingUpdate"]["revisions"].to_string().contains(&third)
        })
        .await;
        assert_eq!(world.config_value("map").await.as_deref(), Some("2"), "{scope}");
    }
}
