//! A namespace goes only with everything that it holds: nothing that is to stay goes with it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, configmap},
    stageset::{Spec, StageSet, stage, stageset},
};

/// A world whose tenant may make namespaces, and the name of one.
async fn world(name: &str) -> (World, String) {
    let world = World::start(name).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": format!("it-{}-tenant", world.namespace) },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stageset-it-tenant" },
        "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": world.namespace }],
    });
    world.cluster.apply(&binding, "").await;
    let inner = format!("{}-inner", world.namespace);
    (world, inner)
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n")
}

fn map_in(namespace: &str, name: &str) -> String {
    configmap(name, "1").replace("metadata:\n", &format!("metadata:\n  namespace: {namespace}\n"))
}

/// One stage: the namespace, and a ConfigMap `db` in it.
async fn both(world: &World, inner: &str) -> Spec {
    let (ns, db) = (namespace(inner), map_in(inner, "db"));
    world.publish("app", &[("ns.yaml", &ns), ("db.yaml", &db)]).await;
    stageset("shop").stage(stage("app", "app"))
}

async fn stays(world: &World, inner: &str, map: &str) {
    let ns = world.cluster.must_get(&objects::namespaces(), "", inner).await;
    assert!(ns["metadata"]["deletionTimestamp"].is_null(), "{ns}");
    let map = world.cluster.must_get(&objects::configmaps(), inner, map).await;
    assert!(map["metadata"]["deletionTimestamp"].is_null(), "{map}");
}

async fn until_told(shop: &StageSet<'_>, inner: &str, example: &str) {
    let event = shop.until_event("NamespaceKept").await;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains(inner) && note.contains(example), "{note}");
    assert_eq!(event["type"], "Warning");
}

async fn clear(world: &World, inner: &str) {
    world.cluster.delete(&objects::namespaces(), "", inner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_all_that_it_holds() {
    let (world, inner) = world("ns-goes").await;
    let shop = both(&world, &inner).await.apply(&world).await;
    shop.until_ready().await;
    shop.delete().await;
    shop.until_gone().await;
    world.cluster.until_gone(&objects::namespaces(), "", &inner).await;
    assert_eq!(shop.event_count("NamespaceKept").await, 0);
}

/// Rules: run 19.3 namespace, run 4.1.4
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_does_not_prune_keeps_the_namespace_its_objects_are_in() {
    let (world, inner) = world("ns-keep").await;
    world.publish("base", &[("ns.yaml", &namespace(&inner))]).await;
    world.publish("data", &[("db.yaml", &map_in(&inner, "db"))]).await;
    let shop = stageset("shop")
        .stage(stage("base", "base"))
        .stage(stage("data", "data").prune(false))
        .apply(&world)
        .await;
    shop.until_ready().await;
    shop.delete().await;
    shop.until_gone().await;
    stays(&world, &inner, "db").await;
    until_told(&shop, &inner, &format!("ConfigMap/{inner}/db")).await;
    clear(&world, &inner).await;
}

/// Rules: run 19.3 namespace, run 19.3.3
#[tokio::test(flavor = "multi_thread")]
async fn a_protected_object_keeps_its_namespace() {
    for key in ["stages.metio.wtf/prune", "stages.metio.wtf/reconcile"] {
        let (world, inner) = world("ns-protect").await;
        let shop = both(&world, &inner).await.apply(&world).await;
        shop.until_ready().await;
        let maps = objects::configmaps();
        world.cluster.annotate(&maps, &inner, "db", key, Some("disabled")).await;
        shop.delete().await;
        shop.until_gone().await;
        stays(&world, &inner, "db").await;
        until_told(&shop, &inner, "/db").await;
        clear(&world, &inner).await;
    }
}

/// Rules: run 19.3 namespace
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_left_the_source_stays_while_something_is_rendered_into_it() {
    let (world, inner) = world("ns-left").await;
    let shop = both(&world, &inner).await.apply(&world).await;
    shop.until_ready().await;
    let revision = world.publish("app", &[("db.yaml", &map_in(&inner, "db"))]).await;
    shop.until_rolled_out("app", &revision).await;
    stays(&world, &inner, "db").await;
    until_told(&shop, &inner, "/db").await;
    clear(&world, &inner).await;
}

/// What was installed after the controller had learned what the cluster serves counts too.
///
/// Rules: run 19.3 namespace
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_a_kind_that_came_later_keeps_its_namespace() {
    let (world, inner) = world("ns-late").await;
    let shop = both(&world, &inner).await.apply(&world).await;
    shop.until_ready().await;
    let kind = super::triggers::own_kind(&world).await;
    let thing = json!({ "apiVersion": kind.api_version, "kind": kind.kind, "metadata": { "name": "thing" } });
    look(Duration::from_secs(20), || async {
        let applied = world.cluster.try_apply(&thing, &inner).await;
        applied.map_err(|e| e.to_string())
    })
    .await
    .expect("its endpoint is there a moment after the definition");
    shop.delete().await;
    shop.until_gone().await;
    until_told(&shop, &inner, "/thing").await;
    let ns: Value = world.cluster.must_get(&objects::namespaces(), "", &inner).await;
    assert!(ns["metadata"]["deletionTimestamp"].is_null(), "{ns}");
    super::triggers::remove_own_kind(&world, &kind).await;
    clear(&world, &inner).await;
}

/// A list that is answered with 404 says that the kind is not served that way, not that there is nothing.
///
/// Rules: run 19.3 namespace
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_found_is_looked_for_again() {
    let (world, inner) = world("ns-404").await;
    let shop = both(&world, &inner).await.apply(&world).await;
    shop.until_ready().await;
    world.cluster.apply_yaml(&configmap("theirs", "1"), &inner).await;
    let list = Match::any().verb(Verb::List).resource("configmaps").namespace(&inner);
    world.proxy.fail(list, When::First(1), 404);
    shop.delete().await;
    shop.until_gone().await;
    stays(&world, &inner, "theirs").await;
    until_told(&shop, &inner, "/theirs").await;
    clear(&world, &inner).await;
}

/// What an operator has made for an object is cleared once that is deleted: the namespace waits for it, and then goes.
///
/// Rules: run 19.3 namespace
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_waits_for_what_is_deleted_in_it() {
    for delete in [false, true] {
        let (world, inner) = world("ns-waits").await;
        let shop = both(&world, &inner).await.apply(&world).await;
        shop.until_ready().await;
        let maps = objects::configmaps();
        let finalizers = |f: Value| json!({ "metadata": { "finalizers": f } });
        let held = finalizers(json!(["fixture.stageset.test/held"]));
        world.cluster.patch(&maps, &inner, "db", held).await;
        world.cluster.apply_yaml(&configmap("derived", "1"), &inner).await;
        if delete {
            shop.delete().await;
        } else {
            let revision = world.publish("app", &[("x.yaml", &configmap("x", "1"))]).await;
            shop.until_rolled_out("app", &revision).await;
        }
        let leaving = |db: &Value| !db["metadata"]["deletionTimestamp"].is_null();
        world.cluster.until(&maps, &inner, "db", "deleted", leaving).await;
        if !delete {
            let recorded = shop.inventory().await["app"].clone();
            assert!(
                recorded.iter().any(|id| id.contains(&format!("{inner}__Namespace"))),
                "{recorded:?}"
            );
            shop.reconcile().await;
        }
        assert_eq!(shop.event_count("NamespaceKept").await, 0);
        world.cluster.delete(&maps, &inner, "derived").await;
        world.cluster.patch(&maps, &inner, "db", finalizers(Value::Null)).await;
        world.cluster.until_gone(&objects::namespaces(), "", &inner).await;
        assert_eq!(shop.event_count("NamespaceKept").await, 0);
        if delete {
            shop.until_gone().await;
        } else {
            let cleared = look(Duration::from_secs(40), || async {
                let recorded = shop.inventory().await["app"].clone();
                if recorded.len() == 1 {
                    Ok(())
                } else {
                    Err(format!("{recorded:?}"))
                }
            });
            cleared.await.expect("nothing but what is rendered stays recorded");
            shop.until_ready().await;
        }
    }
}
