//! Nothing stays behind unasked when a StageSet is deleted: not because time has passed, not because its records are gone,
//! not because something else of it is held up.

use std::time::Duration;

use serde_json::{Value, json};

use super::remote::{admin, far, furnish, maps, names, publish, secret, until_message};
use crate::support::{
    Match, StageSet, Verb, When, World, look,
    objects::{self, configmap, unbound_claim},
    stageset::{stage, stageset},
};

const STAGES: [&str; 3] = ["database", "backend", "frontend"];

/// A ConfigMap that stays until [`release`].
fn held(name: &str) -> String {
    let plain = format!("name: {name}\n");
    configmap(name, "1").replace(&plain, &format!("name: {name}\n  finalizers: [example.com/hold]\n"))
}

async fn release(world: &World, name: &str) {
    let patch = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, name, patch)
        .await;
}

async fn until_leaving(world: &World, name: &str) {
    let leaving = |m: &Value| !m["metadata"]["deletionTimestamp"].is_null();
    world
        .cluster
        .until(&objects::configmaps(), &world.namespace, name, "being deleted", leaving)
        .await;
}

/// Three stages of a ConfigMap each.
async fn three<'w>(world: &'w World, map: impl Fn(&str) -> String) -> StageSet<'w> {
    let mut spec = stageset("shop");
    for name in STAGES {
        world.publish(name, &[("map.yaml", &map(name))]).await;
        spec = spec.stage(stage(name, name));
    }
    let shop = spec.apply(world).await;
    shop.until_ready().await;
    shop
}

async fn nothing_is_left(world: &World, shop: &StageSet<'_>) {
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&[]));
    assert_eq!(shop.event_count("TeardownForced").await, 0);
}

async fn exists(world: &World, kind: &objects::Kind, name: &str) -> bool {
    world.cluster.exists(kind, &world.namespace, name).await
}

async fn for_a_while(world: &World, span: Duration, name: &str) {
    world
        .stays(&format!("{name} and the StageSet"), span, || async {
            let map = exists(world, &objects::configmaps(), name).await;
            let set = exists(world, &objects::stagesets(), "shop").await;
            if map && set {
                Ok(())
            } else {
                Err(format!("map {map}, StageSet {set}"))
            }
        })
        .await;
}

/// Another revision of `app`: a ConfigMap, and a claim that never gets ready.
async fn publish_unready(world: &World) -> String {
    let (map, claim) = (configmap("a", "1"), unbound_claim("never"));
    world.publish("app", &[("a.yaml", &map), ("c.yaml", &claim)]).await
}

/// The bound is one on trying in vain: time under protection does not count, nor does time in which stages go.
///
/// Rules: run 4.2 timed-out
#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_that_gets_on_is_not_given_up() {
    let world = World::builder("gets-on").flag("--max-teardown-wait=4s").start().await;
    let shop = three(&world, held).await;
    let protection = "stages.metio.wtf/deletion-protection";
    shop.annotate(protection, Some("enabled")).await;
    shop.delete().await;
    shop.until_reason("DeletionProtected").await;
    for_a_while(&world, Duration::from_secs(5), "frontend").await;
    shop.annotate(protection, None).await;
    for (name, before) in [
        ("frontend", "backend"),
        ("backend", "database"),
        ("database", "database"),
    ] {
        until_leaving(&world, name).await;
        for_a_while(&world, Duration::from_millis(2500), before).await;
        release(&world, name).await;
    }
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
}

/// What is given up over one stage is still tried for the others, and what has gone by that is not told as left.
///
/// Rules: run 4.2 timed-out
#[tokio::test(flavor = "multi_thread")]
async fn stages_that_had_no_turn_are_deleted_before_the_teardown_is_given_up() {
    let world = World::builder("last-round")
        .flag("--max-teardown-wait=3s")
        .start()
        .await;
    let map = |name: &str| {
        if name == "frontend" {
            held(name)
        } else {
            configmap(name, "1")
        }
    };
    let shop = three(&world, map).await;
    shop.delete().await;
    shop.until_gone().await;
    let event = shop.until_event("TeardownForced").await;
    let note = event["note"].as_str().unwrap_or_default();
    let left = note.split("may be left behind").nth(1).unwrap_or_default();
    assert!(left.contains("frontend"), "{note}");
    assert!(!left.contains("backend") && !left.contains("database"), "{note}");
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["frontend"]));
    release(&world, "frontend").await;
}

/// Deletes a StageSet the way `kubectl delete --cascade=foreground` does: the cluster collects the records at once.
async fn delete_foreground(world: &World) {
    let plane = world.cluster.plane;
    let args = [
        "delete",
        "stageset",
        "shop",
        "--cascade=foreground",
        "--wait=false",
        "-n",
    ];
    let args: Vec<&str> = args.into_iter().chain([world.namespace.as_str()]).collect();
    plane.kubectl(&args).expect("a deletion in the foreground");
    for name in STAGES {
        let shard = format!("shop-{name}-0");
        world
            .cluster
            .until_gone(&objects::inventories(), &world.namespace, &shard)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_collected_during_a_teardown_are_remembered() {
    let world = World::start("foreground").await;
    let map = |name: &str| {
        if name == "frontend" {
            held(name)
        } else {
            configmap(name, "1")
        }
    };
    let shop = three(&world, map).await;
    delete_foreground(&world).await;
    until_leaving(&world, "frontend").await;
    for_a_while(&world, Duration::from_secs(1), "backend").await;
    release(&world, "frontend").await;
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
    assert_eq!(shop.event_count("InventoryReconstructed").await, 0);
}

/// The controller comes back when nothing is recorded any more: it goes by the labels, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_were_collected_behind_the_controllers_back_are_made_up_for_by_labels() {
    let mut world = World::start("collected").await;
    let map = |name: &str| configmap(name, "1");
    three(&world, map).await;
    world.controller().kill();
    delete_foreground(&world).await;
    world.controller().start_again();
    world.controller().until_ready().await;
    let gone = look(Duration::from_secs(60), || async {
        if exists(&world, &objects::stagesets(), "shop").await {
            Err("it exists".to_owned())
        } else {
            Ok(())
        }
    });
    if let Err(seen) = gone.await {
        world.fail(&format!("the StageSet does not go: {seen}")).await;
    }
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&[]));
    let events = world.cluster.list(&objects::events(), &world.namespace, "").await;
    let told = events.iter().find(|e| e["reason"] == "InventoryReconstructed");
    let note = told.and_then(|e| e["note"].as_str()).unwrap_or_default();
    assert!(note.contains("3 objects"), "{note:?}");
}

/// A StageSet between two clusters has records of both, with objects of the same names.
///
/// Rules: decisions 6 target
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_gone_from_one_cluster_is_still_deleted_from_the_other() {
    let world = World::start("two-clusters").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let mut app = stageset("app").stage(stage("web", "app")).apply(&world).await;
    app.until_ready().await;
    publish_unready(&world).await;
    app.patch_spec(json!({ "kubeConfig": { "secretRef": { "name": "far" } } }))
        .await;
    app.until_phase("web", "Verifying").await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a"]));
    app.delete().await;
    app.until_gone().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&[]));
    nothing_is_left(&world, &app).await;
}

/// A cluster that is away holds up what is on it and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_away_does_not_hold_up_the_others() {
    let world = World::start("away").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "base", &["base"]).await;
    publish(&world, "app", &["a"]).await;
    let mut app = stageset("app")
        .set("kubeConfig", json!({ "secretRef": { "name": "far" } }))
        .stage(stage("base", "base"))
        .stage(stage("web", "app"))
        .apply(&world)
        .await;
    app.until_ready().await;
    publish_unready(&world).await;
    app.patch_spec(json!({ "kubeConfig": null })).await;
    app.until_phase("web", "Verifying").await;
    world.cluster.delete(&objects::secrets(), &world.namespace, "far").await;
    app.delete().await;
    until_message(&app, "does not exist").await;
    let gone = look(Duration::from_secs(10), || async {
        let left = maps(&world.cluster, &world.namespace).await;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    gone.await.expect("what can be reached is torn down");
    assert_eq!(maps(&far, &world.namespace).await, names(&["a", "base"]));
    secret(&world, "far", "value", &admin(&far)).await;
    app.until_gone().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&[]));
    nothing_is_left(&world, &app).await;
}

/// Another account that may do what the tenant may.
async fn account(world: &World, name: &str) {
    let text = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: {name} }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: \
         RoleBinding\nmetadata: {{ name: {name} }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \
         stageset-it-tenant }}\nsubjects: [{{ kind: ServiceAccount, name: {name}, namespace: {} }}]\n",
        world.namespace
    );
    world.cluster.apply_yaml(&text, &world.namespace).await;
}

/// Who has applied nothing yet is not the one to delete as.
///
/// Rules: run 19.2 identity
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_never_applied_anything_orphans_nothing() {
    let world = World::start("misspelt").await;
    let mut shop = three(&world, |name| configmap(name, "1")).await;
    shop.patch_spec(json!({ "serviceAccountName": "tennant" })).await;
    until_message(&shop, "tennant").await;
    shop.delete().await;
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
}

/// Who applied something last may do what whoever did so before may not any more.
///
/// Rules: run 4.1.4
#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_now_deletes_what_the_one_before_may_not() {
    let world = World::start("successor").await;
    account(&world, "first").await;
    publish(&world, "app", &["a", "b"]).await;
    let first = stage("web", "app").set("serviceAccountName", json!("first"));
    let mut shop = stageset("shop").stage(first).apply(&world).await;
    shop.until_ready().await;
    let bindings = objects::Kind {
        api_version: "rbac.authorization.k8s.io/v1".into(),
        kind: "RoleBinding".into(),
    };
    // What left the source is still to be pruned as the first account: the record stays with it.
    let revision = publish_unready(&world).await;
    world.cluster.delete(&bindings, &world.namespace, "first").await;
    let now = json!([{ "name": "web", "sourceRef": { "name": "app" } }]);
    shop.patch_spec(json!({ "stages": now })).await;
    shop.until_applied("web", &revision).await;
    shop.until_phase("web", "Verifying").await;
    shop.delete().await;
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
}

/// A right that is missing hides neither the other failures of its stage nor what that still waits for.
///
/// Rules: run B13 forbidden, run B13 wait
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_may_not_be_deleted_hides_nothing_else() {
    let world = World::start("hides").await;
    publish(&world, "operator", &["operator"]).await;
    let files = [
        ("denied", configmap("denied", "1")),
        ("a-slow", configmap("a-slow", "1")),
        ("held", held("held")),
    ];
    let files: Vec<(String, String)> = files.map(|(name, text)| (format!("{name}.yaml"), text)).into();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    world.publish("resources", &files).await;
    let shop = stageset("shop")
        .stage(stage("operator", "operator"))
        .stage(stage("resources", "resources"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let delete = |name| Match::writes().verb(Verb::Delete).resource("configmaps").name(name);
    world.proxy.fail(delete("denied"), When::Always, 403);
    world.proxy.fail(delete("a-slow"), When::First(2), 500);
    shop.delete().await;
    until_leaving(&world, "held").await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "a-slow")
        .await;
    for_a_while(&world, Duration::from_secs(2), "operator").await;
    release(&world, "held").await;
    shop.until_gone().await;
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["denied"]));
    let event = shop.until_event("TeardownForced").await;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("permanent") && note.contains("/denied"), "{note}");
}

/// A StageSet that renders itself does not wait for itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_that_renders_itself_goes() {
    let world = World::start("itself").await;
    let wait = json!({ "disableWait": true });
    let spec = stageset("shop").stage(stage("app", "app").set("readyChecks", wait));
    let own = spec.object(&world.namespace).to_string();
    world
        .publish("app", &[("self.yaml", &own), ("map.yaml", &configmap("map", "1"))])
        .await;
    let shop = spec.apply(&world).await;
    shop.until_ready().await;
    let recorded = shop.inventory().await;
    let recorded = recorded.get("app").cloned().unwrap_or_default();
    assert!(recorded.iter().any(|id| id.ends_with("_StageSet")), "{recorded:?}");
    shop.delete().await;
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
}

/// Nor for the namespace it is in, once that is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_that_renders_its_own_namespace_goes_with_it() {
    let mut world = World::builder("home").without_controller().start().await;
    let home = world.another_namespace("b").await;
    let watched = format!("--watch-namespaces={},{home}", world.namespace);
    world.set_flag("--watch-namespaces", &watched);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": format!("it-{home}-tenant") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stageset-it-tenant" },
        "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": home }],
    });
    world.cluster.apply(&binding, "").await;
    world.start_controller().await;
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {home}\n");
    world.publish("app", &[("ns.yaml", &namespace)]).await;
    let source = json!({ "name": "app", "namespace": world.namespace });
    let set = stageset("shop").stage(crate::support::stageset::stage_from("app", source));
    set.apply_in(&world, &home).await.until_ready().await;
    world.cluster.delete(&objects::namespaces(), "", &home).await;
    world.cluster.until_gone(&objects::namespaces(), "", &home).await;
}

/// Credentials that are refused may be on their way to be replaced.
///
/// Rules: run 4.2 unauthorized
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_refused_for_a_moment_orphan_nothing() {
    let world = World::start("rotated").await;
    let shop = three(&world, |name| configmap(name, "1")).await;
    let delete = Match::writes()
        .verb(Verb::Delete)
        .resource("configmaps")
        .name("backend");
    world.proxy.fail(delete, When::First(2), 401);
    shop.delete().await;
    shop.until_gone().await;
    nothing_is_left(&world, &shop).await;
}
