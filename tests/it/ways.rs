//! One cluster reached by different ways: what is deployed there stays, whichever of them is used.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::remote::{admin, far, furnish, kubeconfig, maps, names, publish, remote, secret};
use crate::support::{
    Cluster, World, objects,
    stageset::{StageSet, stage, stageset},
};

async fn uids(cluster: &Cluster, namespace: &str) -> BTreeSet<String> {
    let maps = cluster
        .list(&objects::configmaps(), namespace, "stages.metio.wtf/name")
        .await;
    maps.iter().map(|m| m["metadata"]["uid"].to_string()).collect()
}

/// The record of the one stage is as it was, and names this Secret.
async fn recorded(world: &World, app: &StageSet<'_>, secret: Value) {
    let stages: Vec<String> = app.inventory().await.into_keys().collect();
    assert_eq!(stages, ["web"]);
    let all = world.cluster.list(&objects::inventories(), &world.namespace, "").await;
    assert_eq!(all[0]["spec"]["target"]["kubeConfig"]["secretRef"]["name"], secret);
}

/// The credentials move to another Secret, the old one stays or goes: nothing that is deployed is deleted.
///
/// Rules: decisions 6 ways
#[tokio::test(flavor = "multi_thread")]
async fn another_secret_for_the_same_cluster_deletes_nothing() {
    let world = World::start("ways-secret").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    for name in ["a", "b", "c"] {
        secret(&world, name, "value", &admin(&far)).await;
    }
    publish(&world, "app", &["one", "two"]).await;
    let mut app = remote("app", "a").apply(&world).await;
    app.until_ready().await;
    let before = uids(&far, &world.namespace).await;
    app.patch_spec(json!({ "kubeConfig": { "secretRef": { "name": "b" } } }))
        .await;
    app.until_ready().await;
    assert_eq!(uids(&far, &world.namespace).await, before);
    recorded(&world, &app, json!("b")).await;

    // The old one is gone already, and the stage has another name: what moved is handed over, what left is pruned.
    world.cluster.delete(&objects::secrets(), &world.namespace, "b").await;
    app.suspend(true).await;
    app.until_reason("Suspended").await;
    publish(&world, "app", &["one"]).await;
    let spec = json!({ "suspend": false, "kubeConfig": { "secretRef": { "name": "c" } },
        "stages": [{ "name": "shop", "sourceRef": { "name": "app" } }] });
    app.patch_spec(spec).await;
    app.until_ready().await;
    let after = uids(&far, &world.namespace).await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["one"]));
    assert!(before.is_superset(&after), "{before:?} {after:?}");
    assert_eq!(app.inventory().await.into_keys().collect::<Vec<_>>(), ["shop"]);
    app.delete().await;
    app.until_gone().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&[]));
}

/// Rules: decisions 6 ways
#[tokio::test(flavor = "multi_thread")]
async fn the_local_cluster_by_a_kubeconfig_is_the_local_cluster() {
    let world = World::start("ways-local").await;
    secret(&world, "loop", "value", &admin(&world.cluster)).await;
    publish(&world, "app", &["one"]).await;
    let mut app = stageset("app").stage(stage("web", "app")).apply(&world).await;
    app.until_ready().await;
    let before = uids(&world.cluster, &world.namespace).await;
    for (way, name) in [
        (json!({ "secretRef": { "name": "loop" } }), json!("loop")),
        (Value::Null, Value::Null),
    ] {
        app.patch_spec(json!({ "kubeConfig": way })).await;
        app.until_ready().await;
        assert_eq!(uids(&world.cluster, &world.namespace).await, before, "{name}");
        recorded(&world, &app, name).await;
    }
}

/// Where a kubeconfig may not tell which cluster it leads to, the objects themselves tell.
///
/// Rules: decisions 6 ways
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_cannot_be_recognised_is_not_pruned_of_what_is_wanted_there() {
    let world = World::start("ways-blind").await;
    let ns = &world.namespace;
    let robot = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: robot }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
         metadata: {{ name: robot }}\nrules: [{{ apiGroups: [\"\"], resources: [serviceaccounts], verbs: [impersonate] }}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: robot }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: Role, name: robot }}\nsubjects: [{{ kind: ServiceAccount, name: robot, namespace: {ns} }}]\n"
    );
    world.cluster.apply_yaml(&robot, ns).await;
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let request = http::Request::post(format!("/api/v1/namespaces/{ns}/serviceaccounts/robot/token"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a request");
    let answer: Value = world.cluster.client.request(request).await.expect("a token");
    let token = answer["status"]["token"].as_str().expect("a token").to_owned();
    secret(&world, "blind", "value", &kubeconfig(&world.cluster, &token)).await;
    publish(&world, "app", &["one", "two"]).await;
    let mut app = stageset("app").stage(stage("web", "app")).apply(&world).await;
    app.until_ready().await;
    let before = uids(&world.cluster, ns).await;
    app.patch_spec(json!({ "kubeConfig": { "secretRef": { "name": "blind" } } }))
        .await;
    app.until_ready().await;
    assert_eq!(uids(&world.cluster, ns).await, before);
    recorded(&world, &app, json!("blind")).await;
}
