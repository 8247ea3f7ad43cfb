//! What wakes a StageSet: sources of every kind, wherever they are, and kinds that appear later.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    Archive, Match, Verb, When, World, archive,
    artifacts::Answer,
    look,
    objects::{self, Kind, configmap},
    stageset::{stage, stage_from, stageset},
};

/// Installs a kind that only this test has, and tells its name.
pub async fn own_kind(world: &World) -> Kind {
    let kind = Kind::new(
        "late.stageset.test/v1",
        &format!("Thing{:06x}", rand::random_range(0..0x0100_0000_u32)),
    );
    install(world, &kind).await;
    kind
}

async fn install(world: &World, kind: &Kind) {
    let plural = format!("{}s", kind.kind.to_lowercase());
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{}", kind.group()) },
        "spec": {
            "group": kind.group(), "scope": "Namespaced",
            "names": { "kind": kind.kind, "plural": plural, "singular": kind.kind.to_lowercase(), "listKind": format!("{}List", kind.kind) },
            "versions": [{ "name": kind.version(), "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
        },
    });
    // The controller's right to watch it, as an administrator would grant for a producer.
    let rights = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": format!("it-{plural}") },
        "rules": [{ "apiGroups": [kind.group()], "resources": [plural], "verbs": ["get", "list", "watch"] }],
    });
    world.cluster.apply(&rights, "").await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": format!("it-{plural}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("it-{plural}") },
        "subjects": [{ "kind": "ServiceAccount", "name": "controller", "namespace": world.namespace }],
    });
    world.cluster.apply(&binding, "").await;
    world.cluster.apply(&crd, "").await;
    let name = crd["metadata"]["name"].as_str().expect("a name");
    let established = |crd: &serde_json::Value| crd["status"].to_string().contains("\"Established\"");
    world
        .cluster
        .until(&objects::crds(), "", name, "established", established)
        .await;
}

/// Removes a kind and all its objects.
pub async fn remove_own_kind(world: &World, kind: &Kind) {
    let name = format!("{}s.{}", kind.kind.to_lowercase(), kind.group());
    world.cluster.delete(&objects::crds(), "", &name).await;
    world.cluster.until_gone(&objects::crds(), "", &name).await;
}

/// Rules: run 2.1 artifact
#[tokio::test(flavor = "multi_thread")]
async fn a_source_wakes_its_stageset_at_once() {
    let world = World::start("wake").await;
    let shop = stageset("shop")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    shop.until_reason("ArtifactNotFound").await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    shop.until_ready_within(Duration::from_secs(5)).await;
    for value in ["2", "3"] {
        let revision = world.publish("app", &[("map.yaml", &configmap("map", value))]).await;
        let wanted = |s: &serde_json::Value| s.to_string().contains(&revision);
        shop.until_within("at the new revision", Duration::from_secs(5), wanted)
            .await;
    }
}

/// A source in another namespace wakes its consumers like one next door.
///
/// Rules: run B16
#[tokio::test(flavor = "multi_thread")]
async fn a_source_in_another_watched_namespace_wakes_its_stageset() {
    let mut world = World::builder("wake-far").without_controller().start().await;
    let elsewhere = world.another_namespace("b").await;
    let flag = format!("--watch-namespaces={},{elsewhere}", world.namespace);
    world.set_flag("--watch-namespaces", &flag);
    world.start_controller().await;
    let source = json!({ "name": "shared", "namespace": elsewhere });
    let shop = stageset("shop")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage_from("app", source))
        .apply(&world)
        .await;
    shop.until_reason("ResolveFailed").await;
    let object = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "metadata": { "name": "shared" }, "spec": {} });
    world.cluster.apply(&object, &elsewhere).await;
    for value in ["1", "2"] {
        let bytes = Archive::of(&[("map.yaml", &configmap("map", value))]).gzip();
        let digest = archive::sha256(&bytes);
        let url = world
            .artifacts
            .put(&format!("{value}.tar.gz"), Answer::Bytes(bytes.into()));
        let status = crate::support::world::artifact_status(&url, value, &digest, true);
        world
            .cluster
            .patch_status(&objects::external_artifacts(), &elsewhere, "shared", status)
            .await;
        look(Duration::from_secs(10), || async {
            let seen = world.config_value("map").await;
            if seen.as_deref() == Some(value) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
        .await
        .expect("the artifact of the other namespace is applied");
    }
}

/// A source of the same name in a namespace nobody references wakes nobody.
///
/// Rules: run 2.3 index, run B16
#[tokio::test(flavor = "multi_thread")]
async fn a_namesake_in_another_namespace_wakes_nobody() {
    let mut world = World::builder("namesake").without_controller().start().await;
    let elsewhere = world.another_namespace("b").await;
    world.set_flag(
        "--watch-namespaces",
        &format!("--watch-namespaces={},{elsewhere}", world.namespace),
    );
    world.start_controller().await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mark = world.proxy.mark();
    let object = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "metadata": { "name": "app" }, "spec": {} });
    world.cluster.apply(&object, &elsewhere).await;
    let status = crate::support::world::artifact_status("http://127.0.0.1:1/x", "v9", &archive::sha256(b"x"), true);
    world
        .cluster
        .patch_status(&objects::external_artifacts(), &elsewhere, "app", status)
        .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tally = world.proxy.since(mark);
    assert!(
        tally.object_reads().is_empty() && tally.writes().is_empty(),
        "\n{}",
        tally.lines()
    );
}

/// Rules: run 2.1 crd, run 2.4.1, run 2.4.2, run 2.4.4, run B16
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_whose_kind_appears_later_is_watched_without_a_restart() {
    let world = World::start("late-kind").await;
    let kind = Kind::new(
        "late.stageset.test/v1",
        &format!("Late{:06x}", rand::random_range(0..0x0100_0000_u32)),
    );
    let source = json!({ "apiVersion": kind.api_version, "kind": kind.kind, "name": "mine" });
    let shop = stageset("shop")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage_from("app", source))
        .apply(&world)
        .await;
    shop.until_reason("ArtifactNotFound").await;
    let mark = world.proxy.mark();
    install(&world, &kind).await;
    let plural = format!("{}s", kind.kind.to_lowercase());
    let watched = Match::any().verb(Verb::Watch).resource(&plural);
    look(Duration::from_secs(15), || async {
        let watches = world.proxy.since(mark).matching(&watched);
        let good = watches.records().iter().any(|r| r.status == Some(200));
        if good { Ok(()) } else { Err(watches.lines()) }
    })
    .await
    .unwrap_or_else(|seen| panic!("no watch on {kind}: {seen}"));
    world.external_artifact("generated", Some((&kind, "mine"))).await;
    world
        .publish("generated", &[("map.yaml", &configmap("map", "1"))])
        .await;
    shop.until_ready_within(Duration::from_secs(10)).await;
    remove_own_kind(&world, &kind).await;
}

/// Rules: run 25 kind
#[tokio::test(flavor = "multi_thread")]
async fn an_applied_kind_that_appears_later_is_applied() {
    let world = World::start("late-crd").await;
    let kind = Kind::new(
        "late.stageset.test/v1",
        &format!("Applied{:06x}", rand::random_range(0..0x0100_0000_u32)),
    );
    let object = format!(
        "apiVersion: {}\nkind: {}\nmetadata:\n  name: thing\n",
        kind.api_version, kind.kind
    );
    world.publish("app", &[("thing.yaml", &object)]).await;
    let spec = stage("app", "app").set("readyChecks", json!({ "disableWait": true }));
    let shop = stageset("shop").retry_interval("1s").stage(spec).apply(&world).await;
    let ready = shop.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(&kind.kind) && message.contains("late.stageset.test"),
        "{message}"
    );
    install(&world, &kind).await;
    shop.until_ready_within(Duration::from_secs(15)).await;
    shop.delete().await;
    shop.until_gone().await;
    remove_own_kind(&world, &kind).await;
}

/// A source kind that could not be listed when the controller started counts as missing; its first use shows that it
/// is served, and from then on it is watched.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_watch_that_ended_at_the_start_is_begun_again() {
    let mut world = World::builder("revive").without_controller().start().await;
    for verb in [Verb::List, Verb::Watch] {
        world
            .proxy
            .fail(Match::any().verb(verb).resource("buckets"), When::Always, 404);
    }
    world.start_controller().await;
    let refused = look(Duration::from_secs(20), || async {
        let asked = world.proxy.all().matching(&Match::any().resource("buckets")).count()
            + world
                .proxy
                .all()
                .matching(&Match::any().verb(Verb::Watch).resource("buckets"))
                .count();
        if asked > 0 {
            Ok(())
        } else {
            Err("not asked for".to_owned())
        }
    });
    refused.await.expect("buckets are looked for at the start");
    world.proxy.heal();

    // Suspended, so that nobody else writes its status.
    let bucket = json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "Bucket", "metadata": { "name": "app" },
        "spec": { "suspend": true, "interval": "1h", "bucketName": "none", "endpoint": "127.0.0.1:1" },
    });
    world.cluster.apply(&bucket, &world.namespace).await;
    let publish = |value: &'static str| {
        let world = &world;
        async move {
            let bytes = Archive::of(&[("map.yaml", &configmap("map", value))]).gzip();
            let digest = archive::sha256(&bytes);
            let revision = format!("r{value}@{digest}");
            let url = world.artifacts.put(
                &format!("{}/bucket-{value}.tar.gz", world.namespace),
                Answer::Bytes(bytes.into()),
            );
            let mut status = crate::support::world::artifact_status(&url, &revision, &digest, true);
            status["observedGeneration"] = json!(1);
            world
                .cluster
                .patch_status(&objects::buckets(), &world.namespace, "app", status)
                .await;
            revision
        }
    };
    publish("1").await;
    let source = json!({ "kind": "Bucket", "name": "app" });
    let shop = stageset("shop")
        .retry_interval("1h")
        .stage(stage_from("app", source))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let revision = publish("2").await;
    shop.until_rolled_out("app", &revision).await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("2"));
}
