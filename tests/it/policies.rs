//! What a stage may say about single objects: conflicts, opt-outs, fields left to others, ownership, mass prunes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, Kind, configmap, deployment, multi},
    stageset::{Stage, stage, stageset},
};

fn relabelled(app: &str) -> String {
    deployment("web", "web:1", 1).replace("app: web", &format!("app: {app}"))
}

async fn uid(world: &World, kind: &Kind, name: &str) -> String {
    let object = world.cluster.must_get(kind, &world.namespace, name).await;
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn policy(stage: Stage, policy: Value) -> Stage {
    stage.set("conflictPolicy", policy)
}

/// Rules: run 16.6 fail, run 16.8
#[tokio::test(flavor = "multi_thread")]
async fn an_immutable_field_fails_the_stage_and_touches_nothing_unless_a_rule_says_so() {
    let world = World::start("conflict-fail").await;
    world.publish("web", &[("web.yaml", &relabelled("one"))]).await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    let before = uid(&world, &objects::deployments(), "web").await;

    world.publish("web", &[("web.yaml", &relabelled("two"))]).await;
    web.until_reason("StageFailed").await;
    let message = web.message().await;
    assert!(
        message.contains("Deployment") && message.contains("conflictPolicy"),
        "{message}"
    );
    assert_eq!(uid(&world, &objects::deployments(), "web").await, before);
}

/// Rules: run 16.6 match, run 16.7
#[tokio::test(flavor = "multi_thread")]
async fn recreate_replaces_the_object_and_the_stage_goes_on() {
    let world = World::start("conflict-recreate").await;
    world.publish("web", &[("web.yaml", &relabelled("one"))]).await;
    let rules = json!({ "rules": [{ "target": { "kind": "Deployment" }, "action": "Recreate" }] });
    let web = stageset("web")
        .stage(policy(stage("web", "web"), rules))
        .apply(&world)
        .await;
    web.until_ready().await;
    let before = uid(&world, &objects::deployments(), "web").await;

    let revision = world.publish("web", &[("web.yaml", &relabelled("two"))]).await;
    web.until_rolled_out("web", &revision).await;
    let after = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    assert_ne!(after["metadata"]["uid"], before.as_str());
    assert_eq!(after["spec"]["selector"]["matchLabels"]["app"], "two");
}

/// Rules: run B5
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_the_server_refuses_never_deletes_what_is_there() {
    let world = World::start("conflict-invalid").await;
    world.publish("web", &[("web.yaml", &relabelled("one"))]).await;
    let web = stageset("web")
        .stage(stage("web", "web").set("force", json!(true)))
        .apply(&world)
        .await;
    web.until_ready().await;
    let before = uid(&world, &objects::deployments(), "web").await;

    // The selector changes and no longer matches the template: it could not be created either.
    let broken = relabelled("two").replacen("app: two", "app: three", 1);
    world.publish("web", &[("web.yaml", &broken)]).await;
    web.until_reason("StageFailed").await;
    assert_eq!(uid(&world, &objects::deployments(), "web").await, before);
}

/// Rules: run 16.6 keep
#[tokio::test(flavor = "multi_thread")]
async fn keep_existing_creates_once_and_leaves_alone_afterwards() {
    let world = World::start("conflict-keep").await;
    world.publish("app", &[("map.yaml", &configmap("app", "first"))]).await;
    let keep = policy(stage("app", "app"), json!({ "default": "KeepExisting" }));
    let app = stageset("app").stage(keep).apply(&world).await;
    app.until_ready().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("first"));

    let revision = world.publish("app", &[("map.yaml", &configmap("app", "second"))]).await;
    app.until_rolled_out("app", &revision).await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("first"));
}

/// Rules: run 16.6 data, run 3.1 n
#[tokio::test(flavor = "multi_thread")]
async fn a_broad_recreate_rule_does_not_destroy_a_claim() {
    let world = World::start("conflict-data").await;
    world
        .publish("db", &[("claim.yaml", &objects::unbound_claim("data"))])
        .await;
    let rules = json!({ "rules": [{ "target": {}, "action": "Recreate" }] });
    let db = stageset("db")
        .stage(policy(stage("db", "db"), rules))
        .apply(&world)
        .await;
    db.until_reason("StageFailed").await;
    let message = db.message().await;
    assert!(
        message.contains("conflict policy") && message.contains("allowDataLoss"),
        "{message}"
    );
    assert!(!world.cluster.exists(&objects::claims(), &world.namespace, "data").await);
}

/// Rules: run 16.5 ssa, run B24
#[tokio::test(flavor = "multi_thread")]
async fn an_object_can_ask_to_be_left_alone() {
    let world = World::start("optout").await;
    let with = |value: &str| {
        configmap("once", value).replace(
            "name: once\n",
            "name: once\n  annotations: { kustomize.toolkit.fluxcd.io/ssa: IfNotPresent }\n",
        )
    };
    world.publish("app", &[("map.yaml", &with("first"))]).await;
    let app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    let revision = world.publish("app", &[("map.yaml", &with("second"))]).await;
    app.until_rolled_out("app", &revision).await;
    assert_eq!(world.config_value("once").await.as_deref(), Some("first"));
}

/// Rules: decisions 1.4, run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_field_stays_with_whoever_sets_it_and_the_rest_is_corrected() {
    let world = World::start("ignore").await;
    world
        .publish("web", &[("web.yaml", &deployment("web", "web:1", 1))])
        .await;
    let ignore = json!([{ "paths": ["/spec/replicas"], "target": { "kind": "Deployment" } }]);
    let web = stageset("web")
        .set("ignore", ignore)
        .stage(stage("web", "web"))
        .apply(&world)
        .await;
    web.until_ready().await;
    let edit = json!({ "spec": { "replicas": 3, "template": { "spec": { "containers": [{ "name": "main", "image": "edited:1" }] } } } });
    world
        .cluster
        .patch(&objects::deployments(), &world.namespace, "web", edit)
        .await;
    web.reconcile().await;
    let live = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    assert_eq!(live["spec"]["replicas"], 3);
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "web:1");
}

/// A watch vouches for the object since it was last compared, under the rule that is gone.
///
/// Rules: decisions 1.4, run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_is_not_ignored_any_more_is_put_back() {
    let world = World::start("ignore-ends").await;
    world.publish("app", &[("map.yaml", &configmap("map", "ours"))]).await;
    let mut app = stageset("app")
        .set("ignore", json!([{ "paths": ["/data/value"] }]))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_ready().await;
    let edit = json!({ "data": { "value": "theirs" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "map", edit)
        .await;
    app.reconcile().await;
    app.reconcile().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("theirs"));
    app.patch_spec(json!({ "ignore": null })).await;
    app.until_ready().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("ours"));
}

/// What is left alone may go as it likes: nobody waits for that.
///
/// Rules: run 16.5 ssa, run 16.5 reconcile, run B12 skipped
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_left_alone_may_be_on_its_way_out() {
    let world = World::start("optout-leaving").await;
    let with = |name: &str, notes: &str| {
        let from = format!("  name: {name}\n");
        configmap(name, "1").replace(&from, &format!("{from}  annotations: {{ {notes} }}\n"))
    };
    let key = "stages.metio.wtf/reconcile: disabled";
    let held = |map: String, name: &str| {
        let from = format!("  name: {name}\n");
        map.replace(&from, &format!("{from}  finalizers: [example.com/hold]\n"))
    };
    let maps = objects::configmaps();
    for map in [
        held(configmap("rendered", "0"), "rendered"),
        held(with("live", key), "live"),
    ] {
        world.cluster.apply_yaml(&map, &world.namespace).await;
    }
    for name in ["rendered", "live"] {
        world.cluster.delete(&maps, &world.namespace, name).await;
    }
    let all = multi(&[
        with("rendered", "stages.metio.wtf/ssa: Ignore"),
        configmap("live", "1"),
        configmap("map", "1"),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("20s"))
        .apply(&world)
        .await;
    app.until_ready_within(Duration::from_secs(15)).await;
    for name in ["rendered", "live"] {
        let none = json!({ "metadata": { "finalizers": null } });
        world.cluster.patch(&maps, &world.namespace, name, none).await;
    }
}

/// Rules: run 16.4 kubectl, run B23
#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_applied_before_is_taken_over() {
    let world = World::start("takeover").await;
    let file = world.scratch("kubectl").join("map.yaml");
    let old = configmap("app", "old").replace("\ndata:\n", "\ndata:\n  left: behind\n");
    std::fs::write(&file, old).expect("a file");
    let plane = crate::support::ControlPlane::shared().await;
    plane
        .kubectl(&["-n", &world.namespace, "apply", "-f", file.to_str().expect("a path")])
        .expect("kubectl apply");
    world.publish("app", &[("map.yaml", &configmap("app", "new"))]).await;
    stageset("app")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    let live = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "app")
        .await;
    assert_eq!(live["data"], json!({ "value": "new" }));
    let annotations = live["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("last-applied"), "{annotations}");
}

/// kubectl sets an ignored field, or has set it before we came: it stays as it is, whoever owns it afterwards.
///
/// Rules: decisions 1.4, run 16.4 kubectl
#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_field_that_kubectl_sets_outlives_the_takeover() {
    let world = World::start("ignore-kubectl").await;
    let plane = crate::support::ControlPlane::shared().await;
    let kubectl = |args: &[&str]| {
        let all = [&["-n", world.namespace.as_str()], args].concat();
        plane.kubectl(&all).expect("kubectl")
    };
    let file = world.scratch("kubectl").join("old.yaml");
    std::fs::write(&file, deployment("old", "web:0", 3)).expect("a file");
    kubectl(&["apply", "-f", file.to_str().expect("a path")]);
    let both = multi(&[deployment("new", "web:1", 1), deployment("old", "web:1", 1)]);
    world.publish("web", &[("web.yaml", &both)]).await;
    let web = stageset("web")
        .set("ignore", json!([{ "paths": ["/spec/replicas"] }]))
        .stage(stage("web", "web"))
        .apply(&world)
        .await;
    web.until_ready().await;
    let edit = r#"{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"main","image":"edited:1"}]}}}}"#;
    for name in ["new", "old", "new"] {
        kubectl(&["patch", "deployment", name, "-p", edit]);
        web.reconcile().await;
        for name in ["new", "old"] {
            let live = world
                .cluster
                .until(&objects::deployments(), &world.namespace, name, "corrected", |d| {
                    d["spec"]["template"]["spec"]["containers"][0]["image"] == "web:1"
                })
                .await;
            assert_eq!(live["spec"]["replicas"], 3, "{live}");
        }
    }
}

/// Somebody writes between our look and the takeover: that is no failure.
///
/// Rules: run 16.4 kubectl, decisions 2 unfinished
#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_the_middle_of_a_takeover_costs_no_retry_interval() {
    let world = World::start("takeover-race").await;
    let plane = crate::support::ControlPlane::shared().await;
    let file = world.scratch("kubectl").join("map.yaml");
    std::fs::write(&file, configmap("map", "old")).expect("a file");
    let kubectl = |args: &[&str]| {
        let all = [&["-n", world.namespace.as_str()], args].concat();
        plane.kubectl(&all).expect("kubectl")
    };
    kubectl(&["apply", "-f", file.to_str().expect("a path")]);
    let patches = Match::writes().verb(Verb::Patch).resource("configmaps").name("map");
    // The first asks whether it can be created, the second takes over.
    world
        .proxy
        .delay_some(patches.clone(), When::Nth(2), Duration::from_secs(3));
    world.publish("app", &[("map.yaml", &configmap("map", "new"))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    look(Duration::from_secs(15), || async {
        match world.proxy.all().matching(&patches).count() {
            2.. => Ok(()),
            few => Err(few.to_string()),
        }
    })
    .await
    .expect("a takeover under way");
    kubectl(&[
        "annotate",
        "configmap",
        "map",
        "kubectl.kubernetes.io/last-applied-configuration-",
        "note=theirs",
    ]);
    set.until_ready_within(Duration::from_secs(15)).await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("new"));
    assert_eq!(set.event_count("StageFailed").await, 0);
}

/// Rules: run B29
#[tokio::test(flavor = "multi_thread")]
async fn two_stagesets_do_not_fight_over_one_object() {
    let world = World::start("foreign").await;
    world.publish("one", &[("map.yaml", &configmap("shared", "one"))]).await;
    world.publish("two", &[("map.yaml", &configmap("shared", "two"))]).await;
    stageset("one")
        .stage(stage("app", "one"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    let two = stageset("two").stage(stage("app", "two")).apply(&world).await;
    two.until_reason("StageFailed").await;
    let message = two.message().await;
    assert!(
        message.contains("belongs to StageSet") && message.contains("/one"),
        "{message}"
    );
    assert_eq!(world.config_value("shared").await.as_deref(), Some("one"));
}

/// Two StageSets bring the same object in the same moment: each write of it takes a second, so neither has seen the
/// other's when its own goes out. One has the object in the end, and the other says whose it is.
async fn one_of_two_gets_it(world: &World) {
    let names = ["one", "two"];
    for name in names {
        world.publish(name, &[("map.yaml", &configmap("shared", name))]).await;
    }
    let writes = Match::writes().verb(Verb::Patch).resource("configmaps").name("shared");
    world.proxy.delay_some(writes, When::First(4), Duration::from_secs(1));
    let mut sets = Vec::new();
    for name in names {
        let set = stageset(name).retry_interval("1h").stage(stage("app", name));
        sets.push(set.apply(world).await);
    }
    let mut reasons = std::collections::BTreeMap::new();
    for set in &sets {
        let ended = |s: &Value| ["Succeeded", "StageFailed"].contains(&reason(s));
        let status = set.until("come to an end", ended).await;
        reasons.insert(reason(&status).to_owned(), set);
    }
    let (winner, loser) = (&reasons["Succeeded"], &reasons["StageFailed"]);
    let message = loser.message().await;
    assert!(
        message.contains(&format!("belongs to StageSet {}/{}", world.namespace, winner.name)),
        "{message}"
    );
    assert_eq!(world.config_value("shared").await.as_ref(), Some(&winner.name));
}

fn reason(status: &Value) -> &str {
    let conditions = status["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    ready.and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// Rules: run B29
#[tokio::test(flavor = "multi_thread")]
async fn of_two_stagesets_that_create_one_object_at_once_one_gets_it() {
    one_of_two_gets_it(&World::start("created-twice").await).await;
}

/// Rules: run B29
#[tokio::test(flavor = "multi_thread")]
async fn of_two_stagesets_that_adopt_one_object_at_once_one_gets_it() {
    let world = World::start("adopted-twice").await;
    world
        .cluster
        .apply_yaml(&configmap("shared", "old"), &world.namespace)
        .await;
    one_of_two_gets_it(&world).await;
}

/// Rules: decisions 6 mass
#[tokio::test(flavor = "multi_thread")]
async fn a_render_that_lost_most_of_a_stage_prunes_nothing_before_it_is_confirmed() {
    let world = World::start("mass-prune").await;
    let many: Vec<String> = (0..30).map(|i| configmap(&format!("m{i:02}"), "v")).collect();
    world.publish("app", &[("maps.yaml", &multi(&many))]).await;
    let app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    let revision = world.publish("app", &[("maps.yaml", &many[0])]).await;
    app.until_reason("PruneHeld").await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await.len(), 30);
    app.annotate("stages.metio.wtf/confirm-prune", Some(&revision)).await;
    app.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await, ["m00"]);
}

/// What was found again by labels counts for what is in place, and so does what a changed spec brought at the same
/// revision.
///
/// Rules: decisions 6 mass, run 26.6
#[tokio::test(flavor = "multi_thread")]
async fn a_mass_prune_is_held_after_a_lost_record_and_after_a_changed_spec_too() {
    let world = World::start("mass-after").await;
    let many: Vec<String> = (0..30).map(|i| configmap(&format!("m{i:02}"), "v")).collect();
    let one = |folder: &str| (format!("{folder}/maps.yaml"), many[0].clone());
    let publish = async |few: bool| {
        let (path, text) = one("many");
        let files = [one("few"), (path, if few { text } else { multi(&many) })];
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        world.publish("app", &files).await
    };
    publish(false).await;
    let mut app = stageset("app")
        .stage(stage("app", "app").path("few"))
        .apply(&world)
        .await;
    app.until_ready().await;
    let many_path = json!([{ "name": "app", "sourceRef": { "name": "app" }, "path": "many" }]);
    app.patch_spec(json!({ "stages": many_path })).await;
    app.until_ready().await;
    let confirmed = publish(true).await;
    app.until_reason("PruneHeld").await;
    app.annotate("stages.metio.wtf/confirm-prune", Some(&confirmed)).await;
    app.until_ready().await;

    let revision = publish(false).await;
    app.until_rolled_out("app", &revision).await;
    app.until("a finished run", |s| s["run"].is_null()).await;
    world
        .cluster
        .delete(&objects::inventories(), &world.namespace, "app-app-0")
        .await;
    app.until_event("InventoryReconstructed").await;
    app.annotate("stages.metio.wtf/confirm-prune", None).await;
    app.reconcile().await;
    publish(true).await;
    app.until_reason("PruneHeld").await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await.len(), 30);
}

/// Rules: decisions 6 protection
#[tokio::test(flavor = "multi_thread")]
async fn deletion_protection_holds_the_teardown() {
    let world = World::start("protected").await;
    world.publish("app", &[("map.yaml", &configmap("app", "v"))]).await;
    let app = stageset("app")
        .annotation("stages.metio.wtf/deletion-protection", "enabled")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_ready().await;
    app.delete().await;
    app.until_reason("DeletionProtected").await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("v"));
    app.annotate("stages.metio.wtf/deletion-protection", None).await;
    app.until_gone().await;
    assert_eq!(world.config_value("app").await, None);
}
