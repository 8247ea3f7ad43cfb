//! What starts a pass and what does not; how often one comes by itself.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Archive, Match, Verb, World, archive,
    artifacts::Answer,
    look,
    objects::{self, Kind, configmap},
    stageset::{StageSet, condition_of, stage, stage_from, stageset},
};

/// Waits until nothing is going on, and gives the number of passes that came to an outcome.
async fn settled(world: &World, name: &str) -> f64 {
    world.quiet().await;
    passes(world, name).await
}

async fn passes(world: &World, name: &str) -> f64 {
    StageSet::named(world, name).await.passes().await
}

async fn one_more(world: &World, name: &str, before: f64, why: &str) {
    let seen = look(Duration::from_secs(10), || async {
        let now = passes(world, name).await;
        if now > before {
            Ok(())
        } else {
            Err(format!("{now} passes"))
        }
    })
    .await;
    if let Err(seen) = seen {
        world.fail(&format!("no pass after {why}: {seen}")).await;
    }
}

async fn none_more(world: &World, name: &str, before: f64, why: &str) {
    world
        .stays(why, Duration::from_secs(2), || async {
            let now = passes(world, name).await;
            if now > before {
                Err(format!("{now} passes instead of {before}"))
            } else {
                Ok(())
            }
        })
        .await;
}

/// A StageSet at rest whose timers are far away.
async fn at_rest(world: &World) -> StageSet<'_> {
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let set = stageset("app")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(world)
        .await;
    set.until_ready().await;
    set.until("a finished run", |s| s["run"].is_null()).await;
    set
}

/// Rules: decisions 6 annotations, run B9 wake, run 2.1 stageset
#[tokio::test(flavor = "multi_thread")]
async fn every_annotation_of_ours_wakes_when_set_changed_or_removed() {
    let world = World::start("annotations").await;
    let set = at_rest(&world).await;
    for key in [
        "stages.metio.wtf/update-now",
        "stages.metio.wtf/approved-version",
        "stages.metio.wtf/reconcile-stage",
        "stages.metio.wtf/reset-scope",
        "stages.metio.wtf/budget-override",
        "stages.metio.wtf/promote",
        "stages.metio.wtf/rollback-to",
        "stages.metio.wtf/skip-image-verification",
        "stages.metio.wtf/confirm-prune",
        "stages.metio.wtf/deletion-protection",
    ] {
        for value in [Some("a@1"), Some("a@2"), None] {
            let before = settled(&world, "app").await;
            set.annotate(key, value).await;
            one_more(&world, "app", before, &format!("{key}={value:?}")).await;
        }
    }
}

/// Rules: run 2.2 others, run 2.5 fresh, run 3 step 3
#[tokio::test(flavor = "multi_thread")]
async fn foreign_annotations_labels_and_status_writes_start_no_pass() {
    let world = World::start("no-wake").await;
    let set = at_rest(&world).await;
    let token = set.request().await;
    set.until_handled(&token).await;
    let before = settled(&world, "app").await;
    set.annotate("example.com/note", Some("hello")).await;
    set.annotate("kubectl.kubernetes.io/last-applied-configuration", Some("{}"))
        .await;
    set.annotate("reconcile.fluxcd.io/requestedAt", Some(&token)).await;
    let label = json!({ "metadata": { "labels": { "team": "shop" } } });
    let kind = objects::stagesets();
    world.cluster.patch(&kind, &world.namespace, "app", label).await;
    let status = json!({ "conditions": set.status().await["conditions"].as_array().cloned().into_iter().flatten()
        .chain([json!({ "type": "Audited", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })])
        .collect::<Vec<Value>>() });
    world.cluster.patch_status(&kind, &world.namespace, "app", status).await;
    none_more(&world, "app", before, "no pass").await;
    let before = settled(&world, "app").await;
    set.annotate("reconcile.fluxcd.io/requestedAt", Some("another")).await;
    one_more(&world, "app", before, "a new token").await;
    let conditions = set.status().await;
    assert!(
        condition_of(&conditions, "Audited").is_some(),
        "a condition of somebody else is kept"
    );
}

/// A producer that fails publishes nothing: only its own change can tell.
///
/// Rules: run 2.1 producer, run 2.4.6, run B17, run D14
#[tokio::test(flavor = "multi_thread")]
async fn a_producers_own_change_wakes_those_that_refer_to_it() {
    let world = World::start("producer-wakes").await;
    let snippet = json!({ "apiVersion": "fixture.stageset.test/v1", "kind": "Snippet", "metadata": { "name": "mine" }, "spec": {} });
    world.cluster.apply(&snippet, &world.namespace).await;
    let source = json!({ "apiVersion": "fixture.stageset.test/v1", "kind": "Snippet", "name": "mine" });
    let set = stageset("app")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage_from("app", source))
        .apply(&world)
        .await;
    set.until_reason("ArtifactNotFound").await;
    let before = settled(&world, "app").await;
    let tell = |reason: String| {
        let world = &world;
        async move {
            let condition = json!([{ "type": "Ready", "status": "False", "reason": reason, "message": "no such import",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
            let status = json!({ "conditions": condition });
            let kind = objects::snippets();
            world
                .cluster
                .patch_status(&kind, &world.namespace, "mine", status)
                .await;
        }
    };
    tell("RenderFailed".into()).await;
    one_more(&world, "app", before, "the producer failed").await;
    let before = settled(&world, "app").await;
    for beat in 0..5 {
        tell(format!("Beat{beat}")).await;
    }
    none_more(&world, "app", before, "heartbeats of the producer").await;
}

/// Rules: run 2.4.3
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_may_not_be_watched_is_counted_and_works_all_the_same() {
    let world = World::start("unwatched").await;
    let unwatched = Kind::new("fixture.stageset.test/v1", "Widget");
    world.external_artifact("made", Some((&unwatched, "mine"))).await;
    world.publish("made", &[("m.yaml", &configmap("map", "1"))]).await;
    let source = json!({ "apiVersion": "fixture.stageset.test/v1", "kind": "Widget", "name": "mine" });
    let set = stageset("app")
        .interval("1h")
        .stage(stage_from("app", source))
        .apply(&world)
        .await;
    set.until_ready().await;
    look(Duration::from_secs(10), || async {
        let labels = ["Kind=Widget"];
        let count = world.controller_ref().metrics_text().await;
        let line = count
            .lines()
            .find(|l| l.starts_with("stageset_watch_engagement_failures_total") && l.contains(labels[0]));
        line.map(drop).ok_or(count)
    })
    .await
    .expect("counted");
    let revision = world.publish("made", &[("m.yaml", &configmap("map", "2"))]).await;
    set.until_rolled_out("app", &revision).await;
}

/// Rules: run 2.4.5, run 24 start
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_watch_definitions_everything_else_works() {
    let mut world = World::builder("no-crds").without_controller().start().await;
    for verb in [Verb::List, Verb::Watch] {
        let definitions = Match::any().verb(verb).resource("customresourcedefinitions");
        world.proxy.fail(definitions, crate::support::When::Always, 403);
    }
    world.start_controller().await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("app")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
}

async fn by_hand(world: &World, value: &str) {
    let edit = json!({ "data": { "value": value } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "map", edit)
        .await;
}

async fn corrected(world: &World, patience: Duration) -> Result<(), String> {
    look(patience, || async {
        let value = world.config_value("map").await;
        if value.as_deref() == Some("1") {
            Ok(())
        } else {
            Err(format!("{value:?}"))
        }
    })
    .await
}

/// Rules: run 2.6 effective, run 2.6 steady, run 2.7 success
#[tokio::test(flavor = "multi_thread")]
async fn passes_come_at_the_interval_that_counts() {
    let world = World::builder("intervals").flag("--default-interval=2s").start().await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let unset = |spec: crate::support::stageset::Spec| spec.set("interval", Value::Null);
    for (name, spec, comes) in [
        ("default", unset(stageset("default")), true),
        ("own", stageset("own").interval("1h"), false),
        (
            "drift",
            stageset("drift")
                .interval("1h")
                .set("driftDetectionInterval", json!("2s")),
            true,
        ),
        (
            "longer",
            stageset("longer")
                .interval("2s")
                .set("driftDetectionInterval", json!("1h")),
            true,
        ),
    ] {
        let set = spec.stage(stage("app", "app")).apply(&world).await;
        set.until_ready().await;
        by_hand(&world, name).await;
        let seen = corrected(&world, Duration::from_secs(5)).await;
        assert_eq!(seen.is_ok(), comes, "{name}: {seen:?}");
        set.delete().await;
        set.until_gone().await;
    }
}

/// Publishes an artifact in another namespace.
async fn publish_in(world: &World, namespace: &str, name: &str) {
    let bytes = Archive::of(&[("m.yaml", &configmap("map", "1"))]).gzip();
    let digest = archive::sha256(&bytes);
    let url = world
        .artifacts
        .put(&format!("{name}.tar.gz"), Answer::Bytes(bytes.into()));
    let object = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "metadata": { "name": name }, "spec": {} });
    world.cluster.apply(&object, namespace).await;
    let status = crate::support::world::artifact_status(&url, "v1", &digest, true);
    world
        .cluster
        .patch_status(&objects::external_artifacts(), namespace, name, status)
        .await;
}

/// What no event tells is asked again at the retry interval: here a source of a namespace that is not watched.
///
/// Rules: run 2.7 waiting, run 2.7 resolve, run 8.5 outside, run 2.6 retry
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_watched_is_asked_again() {
    let world = World::start("asked-again").await;
    let there = world.another_namespace("b").await;
    let set = stageset("app")
        .interval("1h")
        .retry_interval("2s")
        .stage(stage_from("app", json!({ "name": "far", "namespace": there })))
        .apply(&world)
        .await;
    set.until_reason("ResolveFailed").await;
    let late = stageset("late")
        .interval("1h")
        .retry_interval("2s")
        .set("dependsOn", json!([{ "name": "dep", "namespace": there }]))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    late.until_reason("DependencyNotReady").await;
    publish_in(&world, &there, "far").await;
    set.until_ready_within(Duration::from_secs(8)).await;
    let dependency = stageset("dep")
        .stage(stage("app", "none"))
        .apply_in(&world, &there)
        .await;
    let ready = json!({ "observedGeneration": dependency.generation, "conditions": [{ "type": "Ready", "status": "True", "reason": "Succeeded",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    world
        .cluster
        .patch_status(&objects::stagesets(), &there, "dep", ready)
        .await;
    late.until_reason("ArtifactNotFound").await;
}

/// Rules: run 12 retries
#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_fails_is_not_repeated_within_its_pass() {
    let world = World::start("one-download").await;
    let url = world.artifacts.put("app.tar.gz", Answer::Status(404));
    world
        .publish_status("app", &url, "v1", &archive::sha256(b"x"), true)
        .await;
    let set = stageset("app")
        .interval("1h")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    assert_eq!(world.artifacts.all_downloads(), 1, "one for the first outcome");
    set.reconcile().await;
    look(Duration::from_secs(10), || async {
        match world.artifacts.all_downloads() {
            1 => Err("1 download".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("the next pass tries again");
}

/// Rules: run 8.4 other
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_cannot_be_read_is_resolve_failed_and_heals() {
    let world = World::start("unreadable").await;
    let there = world.another_namespace("b").await;
    let version = json!({ "kind": "GitRepository", "apiVersion": "source.toolkit.fluxcd.io/v1beta9", "name": "app" });
    let own = stageset("own")
        .retry_interval("1s")
        .stage(stage_from("app", version))
        .apply(&world)
        .await;
    own.until_reason("ResolveFailed").await;
    assert!(own.message().await.contains("stage \"app\""), "{}", own.message().await);
    publish_in(&world, &there, "app").await;
    let reads = Match::any()
        .verb(Verb::Get)
        .resource("externalartifacts")
        .namespace(&there);
    world.proxy.fail(reads.clone(), crate::support::When::Always, 400);
    let far = stageset("far")
        .retry_interval("1s")
        .stage(stage_from("app", json!({ "name": "app", "namespace": there })))
        .apply(&world)
        .await;
    far.until_reason("ResolveFailed").await;
    let refused = world.proxy.all().matching(&reads);
    assert!(!refused.is_empty(), "the read that fails is the cause");
    world.proxy.heal();
    far.until_ready().await;
}
