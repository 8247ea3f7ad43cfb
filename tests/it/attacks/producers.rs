//! Artifacts that claim to be a producer's.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    Archive, Match, PATIENCE, Verb, World,
    archive::sha256,
    artifacts::Answer,
    look,
    objects::{self, configmap},
    stageset::{stage_from, stageset},
    world::artifact_status,
};

/// An ExternalArtifact of `namespace` that says it was made by a producer of the world's namespace.
async fn forge(world: &World, namespace: &str, producer: &str) {
    let bytes = Archive::of(&[("map.yaml", &configmap("map", "forged"))]).gzip();
    let digest = sha256(&bytes);
    let url = world.artifacts.put("forged.tar.gz", Answer::Bytes(bytes.into()));
    let kind = objects::external_artifacts();
    let claim = json!({
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": { "name": "forged", "namespace": namespace },
        "spec": { "sourceRef": {
            "apiVersion": objects::snippets().api_version, "kind": objects::snippets().kind, "name": producer,
            "namespace": world.namespace,
        } },
    });
    world.cluster.apply(&claim, namespace).await;
    let status = artifact_status(&url, &format!("v1@{digest}"), &digest, true);
    world.cluster.patch_status(&kind, namespace, "forged", status).await;
}

/// Whoever may write artifacts in one namespace speaks for no producer of another: neither in place of the real artifact
/// nor beside it, and wakes nobody.
///
/// Rules: run 8.2.2, contract 13.7
#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_of_a_neighbour_does_not_pass_for_a_producers() {
    let mut world = World::builder("attack-producer")
        .flag("--no-cross-namespace-refs")
        .without_controller()
        .start()
        .await;
    let there = world.another_namespace("b").await;
    let both = format!("--watch-namespaces={},{there}", world.namespace);
    world.set_flag("--watch-namespaces", &both);
    forge(&world, &there, "web").await;
    world.start_controller().await;
    let snippet = objects::snippets();
    let source = json!({ "apiVersion": snippet.api_version, "kind": snippet.kind, "name": "web" });
    let shop = stageset("shop").stage(stage_from("app", source)).apply(&world).await;
    shop.until_reason("ArtifactNotFound").await;
    assert_eq!(world.config_value("map").await, None);
    world.external_artifact("rendered", Some((&snippet, "web"))).await;
    world
        .publish("rendered", &[("map.yaml", &configmap("map", "own"))])
        .await;
    shop.until_ready().await;
    // News of the forged one after both are known changes nothing either.
    forge(&world, &there, "web").await;
    shop.reconcile().await;
    shop.until_ready().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("own"));
    assert_eq!(world.artifacts.downloads("forged.tar.gz"), 0);
}

/// A producer's kind is the tenant's choice: its objects are not read for that, and the watch goes with its last user.
///
/// Rules: run 2.4 unused
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_watched_for_its_users_alone() {
    let world = World::start("attack-kinds").await;
    let refers_to = |name: &str, api_version: &str, kind: &str| {
        let source = json!({ "apiVersion": api_version, "kind": kind, "name": "web" });
        stageset(name).stage(stage_from("app", source))
    };
    let snippet = objects::snippets();
    let shop = refers_to("shop", &snippet.api_version, &snippet.kind)
        .apply(&world)
        .await;
    let roles = refers_to("roles", "rbac.authorization.k8s.io/v1", "ClusterRole");
    let roles = roles.apply(&world).await;
    for set in [&shop, &roles] {
        set.until_reason("ArtifactNotFound").await;
    }
    let watches = |of: &str| Match::any().verb(Verb::Watch).resource(of);
    look(PATIENCE, || async {
        let seen = world.proxy.all().matching(&watches("snippets")).count();
        if seen > 0 { Ok(()) } else { Err("no watch".to_owned()) }
    })
    .await
    .expect("the producer is watched");
    shop.delete().await;
    shop.until_gone().await;
    // A watch that goes on is opened anew when its connection breaks.
    look(PATIENCE, || async {
        let mark = world.proxy.mark();
        world.proxy.drop_connections();
        let again = |of: &'static str| {
            let proxy = &world.proxy;
            async move {
                let there = || async {
                    let seen = proxy.since(mark).matching(&watches(of)).count();
                    if seen > 0 { Ok(()) } else { Err(String::new()) }
                };
                look(Duration::from_secs(5), there).await.is_ok()
            }
        };
        assert!(again("externalartifacts").await, "that one goes on");
        if again("snippets").await {
            Err("it is watched still".to_owned())
        } else {
            Ok(())
        }
    })
    .await
    .expect("the watch ends");
    let clusterwide = Match::any().resource("clusterroles");
    assert!(world.proxy.all().matching(&clusterwide).is_empty());
}
