//! Artifacts that claim to be a producer's.

use serde_json::json;

use crate::support::{
    Archive, World,
    archive::sha256,
    artifacts::Answer,
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
