//! What a prune cannot delete: it holds up nothing else, is told where it belongs, and does not hold a StageSet for ever.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::remote::{admin, cluster_id, far, furnish, maps, names, publish, remote, secret, until_message};
use crate::support::{
    Archive, Cluster, Match, StageSet, Verb, When, World, archive,
    artifacts::Answer,
    objects::{self, configmap},
    stageset::{condition_of, stage, stage_of, stageset},
};

const CONFIRM: &str = "stages.metio.wtf/confirm-prune";

/// Rules: run 19.3.4, run B14
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_deleted_holds_up_no_other_stage_and_is_told_at_its_own() {
    let world = World::start("prune-all").await;
    for (artifact, objects) in [("one", ["a", "b"]), ("two", ["d", "e"]), ("three", ["g", "h"])] {
        publish(&world, artifact, &objects).await;
    }
    let stages = |of: &[&str]| -> Vec<Value> {
        let stages = of.iter().map(|s| json!({ "name": s, "sourceRef": { "name": s } }));
        stages.collect()
    };
    let mut shop = stageset("shop")
        .set("stages", json!(stages(&["one", "two", "three"])))
        .apply(&world)
        .await;
    shop.until_ready().await;
    shop.suspend(true).await;
    shop.until_reason("Suspended").await;
    for name in ["b", "h"] {
        let delete = Match::writes().verb(Verb::Delete).resource("configmaps").name(name);
        world.proxy.fail(delete, When::Always, 403);
    }
    publish(&world, "one", &["a"]).await;
    publish(&world, "two", &["d"]).await;
    shop.patch_spec(json!({ "suspend": false, "stages": stages(&["one", "two"]) }))
        .await;
    let status = shop
        .until("not ready, with both stages", |s| {
            let ready = condition_of(s, "Ready").map(|c| c["message"].to_string());
            ready.is_some_and(|m| m.contains("stage \\\"three\\\" prune: ") && m.contains("stage \\\"one\\\" prune: "))
        })
        .await;
    let message = condition_of(&status, "Ready").map(|c| c["message"].to_string());
    let message = message.unwrap_or_default();
    assert!(!message.contains("\\\"two\\\""), "{message}");
    let told = stage_of(&status, "one")["message"].as_str().unwrap_or_default();
    assert!(told.starts_with("prune: ") && told.contains("/b"), "{status}");
    assert_eq!(stage_of(&status, "two")["message"], Value::Null, "nothing left of it");
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        ["a", "b", "d", "h"]
    );
    world.proxy.heal();
    shop.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["a", "d"]);
    assert_eq!(shop.stage("one").await["message"], Value::Null);
    let stages: Vec<String> = shop.inventory().await.into_keys().collect();
    assert_eq!(stages, ["one", "two"]);
}

/// A cluster that never comes back is forgotten once somebody says so, and what may be left there is told.
///
/// Rules: decisions 6 target, run 4.2 retry
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_gone_for_good_is_forgotten_once_that_is_confirmed() {
    let world = World::start("far-forget").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a", "b"]).await;
    let mut app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    let id = cluster_id(&far).await;
    app.suspend(true).await;
    app.until_reason("Suspended").await;
    world.cluster.delete(&objects::secrets(), &world.namespace, "far").await;
    app.patch_spec(json!({ "suspend": false, "kubeConfig": null })).await;
    let message = until_message(&app, "does not exist").await;
    for part in [
        "stage \"web\" connect to target cluster: ".to_owned(),
        "2 objects".to_owned(),
        format!("{CONFIRM} to {id} "),
    ] {
        assert!(message.contains(&part), "{message} does not say {part}");
    }
    // What is left on this cluster goes meanwhile.
    publish(&world, "app", &["a"]).await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "b")
        .await;
    app.annotate(CONFIRM, Some("another")).await;
    until_message(&app, "does not exist").await;
    app.annotate(CONFIRM, Some(&id)).await;
    app.until_ready().await;
    let stages: Vec<String> = app.inventory().await.into_keys().collect();
    assert_eq!(stages, ["web"]);
    let note = app.until_event("TeardownForced").await["note"].to_string();
    for part in [id, format!("ConfigMap/{}/a", world.namespace), "left behind".to_owned()] {
        assert!(note.contains(&part), "{note} does not say {part}");
    }
    assert_eq!(maps(&far, &world.namespace).await, names(&["a", "b"]));
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["a"]));
}

/// Where a record was set aside, people read of the stage they know.
///
/// Rules: decisions 6 target
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_set_aside_is_told_by_the_name_of_its_stage() {
    let world = World::start("far-aside").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let mut app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    app.suspend(true).await;
    app.until_reason("Suspended").await;
    secret(&world, "far", "value", &admin(&world.cluster)).await;
    app.patch_spec(json!({ "suspend": false, "kubeConfig": null })).await;
    app.until_reason("PruneHeld").await;
    let message = app.message().await;
    assert!(message.starts_with("stage \"web\": "), "{message}");
    let here = cluster_id(&world.cluster).await;
    app.annotate(CONFIRM, Some(&here)).await;
    app.until_ready().await;
    assert_eq!(
        maps(&world.cluster, &world.namespace).await,
        names(&["a"]),
        "it is wanted"
    );
}

/// A source without revisions: a prune is confirmed with the digest, which the message names.
///
/// Rules: decisions 6 mass
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_a_source_without_revisions_can_be_confirmed() {
    let world = World::start("no-revision").await;
    let publish = async |prefix: &str| {
        let all: Vec<String> = (0..24).map(|n| configmap(&format!("{prefix}{n}"), "1")).collect();
        let bytes = Archive::of(&[("all.yaml", &objects::multi(&all))]).gzip();
        let digest = archive::sha256(&bytes);
        let path = format!("{}/{prefix}.tar.gz", world.namespace);
        let url = world.artifacts.put(&path, Answer::Bytes(bytes.into()));
        world.publish_status("app", &url, "", &digest, true).await;
        digest
    };
    publish("old").await;
    let app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    let digest = publish("new").await;
    app.until_reason("PruneHeld").await;
    let message = app.message().await;
    assert!(message.contains(&format!("{CONFIRM}: {digest}")), "{message}");
    app.annotate(CONFIRM, Some("")).await;
    app.reconcile().await;
    assert!(world.config_value("old0").await.is_some(), "nothing confirms nothing");
    app.annotate(CONFIRM, Some(&digest)).await;
    app.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await.len(), 24);
}

/// The Secret leads to another cluster and nothing else has changed: a run brings everything there, and records it there.
///
/// Rules: decisions 6 target, decisions 6 before
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_behind_the_reference_gets_a_run_of_its_own() {
    let mut world = World::start("far-swapped").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "target", "value", &admin(&far)).await;
    publish(&world, "app", &["a", "b"]).await;
    let app = remote("app", "target").apply(&world).await;
    app.until_ready().await;
    drop(app);
    let here = Cluster::shared().await;
    for (cluster, restart) in [(&here, false), (&far, true)] {
        let id = cluster_id(cluster).await;
        if restart {
            world.controller().kill();
        }
        secret(&world, "target", "value", &admin(cluster)).await;
        if restart {
            world.controller().start_again();
            world.controller().until_ready().await;
        }
        let app = StageSet::named(&world, "app").await;
        let recorded = crate::support::look(crate::support::PATIENCE, || async {
            let selector = "stages.metio.wtf/stage-set=app";
            let shards = world
                .cluster
                .list(&objects::inventories(), &world.namespace, selector)
                .await;
            let ids: BTreeSet<String> = shards
                .iter()
                .map(|s| s["spec"]["target"]["clusterID"].to_string())
                .collect();
            if ids == BTreeSet::from([json!(id).to_string()]) {
                Ok(())
            } else {
                Err(format!("{ids:?}"))
            }
        })
        .await;
        if let Err(seen) = recorded {
            world.fail(&format!("{id} is not recorded: {seen}")).await;
        }
        app.until_ready().await;
        assert_eq!(maps(cluster, &world.namespace).await, names(&["a", "b"]));
        assert_eq!(app.event_count("DriftCorrected").await, 0, "a release is no drift");
    }
    let app = StageSet::named(&world, "app").await;
    app.delete().await;
    app.until_gone().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&[]), "torn down there");
}

/// The same in the middle of a run: a stage that is through on the one cluster is not through on the other.
///
/// Rules: decisions 6 target
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_in_the_middle_of_a_run_gets_the_stages_that_were_through_too() {
    let world = World::start("far-midway").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "target", "value", &admin(&world.cluster)).await;
    publish(&world, "app", &["a"]).await;
    let late = objects::deployment("late", "img", 1).replace(
        "    metadata:\n      labels:\n",
        "    metadata:\n      annotations: { testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 1h }\n      labels:\n",
    );
    world.publish("late", &[("late.yaml", &late)]).await;
    let app = remote("app", "target").stage(stage("late", "late")).apply(&world).await;
    app.until_phase("late", "Verifying").await;
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["a"]));
    secret(&world, "target", "value", &admin(&far)).await;
    far.until(&objects::configmaps(), &world.namespace, "a", "applied there", |_| true)
        .await;
    far.until(
        &objects::deployments(),
        &world.namespace,
        "late",
        "applied there",
        |_| true,
    )
    .await;
    app.until_phase("late", "Verifying").await;
    assert_eq!(app.event_count("DriftCorrected").await, 0, "a release is no drift");
}

/// Leaves things as if an older version had rendered `old` where this one renders `new`. The controller is not there
/// meanwhile.
async fn by_an_older_version(world: &World) {
    let ns = &world.namespace;
    let mut old = world.cluster.must_get(&objects::configmaps(), ns, "new").await;
    old["metadata"] = json!({ "name": "old", "namespace": ns, "labels": old["metadata"]["labels"] });
    world.cluster.apply(&old, ns).await;
    world.cluster.delete(&objects::configmaps(), ns, "new").await;
    let entries = json!([{ "id": format!("{ns}_old__ConfigMap"), "v": "v1" }]);
    let patch = json!({ "spec": { "entries": entries } });
    world
        .cluster
        .patch(&objects::inventories(), ns, "shop-app-0", patch)
        .await;
}

/// Another version of the controller may render other objects of the same inputs, such as another suffix of a name. They
/// are applied before those of before go, be it in a release that is in place or in a run.
///
/// Rules: run 19.1, run B1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_rendered_but_was_never_recorded_is_applied_before_anything_is_pruned() {
    for run in [false, true] {
        let mut world = World::start("renderer").await;
        publish(&world, "app", &["new"]).await;
        world.publish("next", &[("w.yaml", &objects::widget("w", 1))]).await;
        world.widget("w", !run).await;
        let shop = stageset("shop")
            .stage(stage("app", "app"))
            .stage(stage("next", "next"))
            .apply(&world)
            .await;
        if run {
            shop.until_phase("next", "Verifying").await;
        } else {
            shop.until_ready().await;
            shop.until("a finished run", |s| s["run"].is_null()).await;
        }
        drop(shop);
        world.controller().kill();
        by_an_older_version(&world).await;
        let mark = world.proxy.mark();
        world.controller().start_again();
        world.controller().until_ready().await;
        let shop = StageSet::named(&world, "shop").await;
        if run {
            world.widget("w", true).await;
        } else {
            shop.request().await;
        }
        let maps = objects::configmaps();
        world.cluster.until_gone(&maps, &world.namespace, "old").await;
        shop.until_ready().await;
        assert_eq!(world.applied(&maps, "shop").await, ["new"]);
        assert_eq!(shop.recorded_configmaps("app").await, names(&["new"]));
        let writes = world.proxy.since(mark).writes();
        let at = |wanted: Match| writes.matching(&wanted).first().map(|r| r.index);
        let made = at(Match::writes().verb(Verb::Patch).resource("configmaps").name("new"));
        let pruned = at(Match::writes().verb(Verb::Delete).resource("configmaps").name("old"));
        assert!(made.is_some() && made < pruned, "\n{}", writes.lines());
    }
}
