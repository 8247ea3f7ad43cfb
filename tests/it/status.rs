//! The status tells the truth, whatever went wrong, and nothing that was known is forgotten.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, configmap, unbound_claim},
    stageset::{condition_of, stage, stage_of, stageset},
};

/// A manifest the API server refuses.
fn refused(name: &str) -> String {
    configmap(name, "1").replace("data:\n  value: \"1\"", "data: [not, a, map]")
}

/// A failed stage keeps what was really applied, and shows what was attempted beside it.
///
/// Rules: run B3, run B4
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_stage_keeps_its_applied_revision_and_counts() {
    let world = World::start("truth").await;
    let good = world
        .publish(
            "app",
            &[("a.yaml", &configmap("a", "1")), ("b.yaml", &configmap("b", "1"))],
        )
        .await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let bad = world.publish("app", &[("a.yaml", &refused("a"))]).await;
    shop.until_reason("StageFailed").await;
    let status = shop.status().await;
    let entry = stage_of(&status, "app");
    assert_eq!(entry["phase"], "Failed");
    assert_eq!(entry["appliedRevision"], good.as_str(), "{entry}");
    assert_eq!(entry["attemptedRevision"], bad.as_str(), "{entry}");
    assert_eq!(entry["shards"], 1, "{entry}");
    assert!(entry["entriesCount"].as_i64() >= Some(2), "{entry}");
    let key = format!("{}/app", world.namespace);
    assert_eq!(status["lastAppliedRevisions"][&key], good.as_str());
    assert_eq!(status["lastAttemptedRevisions"][&key], bad.as_str());
}

/// Stages that were not reached keep their entries.
///
/// Rules: run 21.3
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_leaves_the_entries_of_other_stages_alone() {
    let world = World::start("entries").await;
    for name in ["one", "two", "three"] {
        world.publish(name, &[("m.yaml", &configmap(name, "1"))]).await;
    }
    let spec = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .stage(stage("three", "three"));
    let shop = spec.apply(&world).await;
    let before = shop.until_ready().await;
    world.publish("two", &[("m.yaml", &refused("two"))]).await;
    shop.until_reason("StageFailed").await;
    let after = shop.status().await;
    for name in ["one", "three"] {
        for field in ["appliedRevision", "entriesCount", "shards"] {
            assert_eq!(
                stage_of(&after, name)[field],
                stage_of(&before, name)[field],
                "{name} {field}"
            );
        }
    }
}

/// An object may repeat what it was given: the status and the events do not.
///
/// Rules: run 16.8
#[tokio::test(flavor = "multi_thread")]
async fn what_a_secret_holds_stays_out_of_the_status_and_the_events() {
    let world = World::start("told-secret").await;
    let secret = "hunter-2<&>of-two";
    let variables = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "vars" }, "stringData": { "value": secret } });
    world.cluster.apply(&variables, &world.namespace).await;
    let says = async |ready: bool| {
        let mut status = objects::widget_status(1, ready, false);
        for condition in status["conditions"].as_array_mut().expect("conditions") {
            condition["message"] = json!(format!("cannot log in with {secret}"));
        }
        world
            .cluster
            .patch_status(&objects::widgets(), &world.namespace, "w", status)
            .await;
    };
    world.widget("w", false).await;
    says(false).await;
    world.publish("app", &[("w.yaml", &objects::widget("w", 1))]).await;
    let from = json!({ "substituteFrom": [{ "kind": "Secret", "name": "vars" }] });
    let shop = stageset("shop")
        .set("onTimeout", json!("Hold"))
        .stage(stage("app", "app").timeout("3s").set("postBuild", from))
        .apply(&world)
        .await;
    let masked = |s: &Value| {
        assert!(!s.to_string().contains("hunter-2"), "{s}");
        stage_of(s, "app")["waitingFor"].to_string().contains("log in with ***")
    };
    shop.until("waiting, without the secret", masked).await;
    let held = shop.until_event("StageProgressing").await;
    let note = held["note"].as_str().unwrap_or_default();
    assert!(note.contains("log in with ***"), "{note}");
    shop.until("held, without the secret", masked).await;
    says(true).await;
    shop.until_ready().await;
    says(false).await;
    shop.until("broken, without the secret", masked).await;
}

/// A changed spec at the same revision is a rollout, not drift.
///
/// Rules: run B30, run 20 rollout
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_is_no_drift() {
    let world = World::start("no-drift").await;
    let files = [
        ("one/m.yaml", configmap("map", "1")),
        ("two/m.yaml", configmap("map", "2")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    world.publish("app", &files).await;
    let mut shop = stageset("shop")
        .stage(stage("app", "app").path("one"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    shop.patch_spec(json!({ "stages": [{ "name": "app", "sourceRef": { "name": "app" }, "path": "two" }] }))
        .await;
    shop.until_ready().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("2"));
    assert_eq!(shop.event_count("DriftCorrected").await, 0);
}

/// Every outcome is counted, also those that end a pass early.
///
/// Rules: run B30, run 21.2 counter
#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_is_counted() {
    let world = World::start("counted").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("good")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    stageset("missing")
        .stage(stage("app", "absent"))
        .apply(&world)
        .await
        .until_reason("ArtifactNotFound")
        .await;
    let asleep = stageset("asleep")
        .set("suspend", json!(true))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    asleep.until_reason("Suspended").await;
    let producer = json!({ "kind": "Snippet", "name": "no-version" });
    let invalid = stageset("invalid")
        .stage(crate::support::stageset::stage_from("app", producer))
        .apply(&world)
        .await;
    invalid.until_reason("InvalidSpec").await;
    let outcomes = [
        ("good", "Succeeded"),
        ("missing", "ArtifactNotFound"),
        ("asleep", "Suspended"),
        ("invalid", "InvalidSpec"),
    ];
    for (name, reason) in outcomes {
        let labels = [format!("name=\"{name}\""), format!("reason=\"{reason}\"")];
        look(Duration::from_secs(5), || async {
            let count = world
                .controller_ref()
                .metric("stageset_reconcile_total", &[labels[0].as_str(), labels[1].as_str()])
                .await;
            if count >= 1.0 {
                Ok(())
            } else {
                Err("not counted".to_owned())
            }
        })
        .await
        .unwrap_or_else(|seen| panic!("{name} {reason}: {seen}"));
    }
}

/// A name longer than a label value may be.
///
/// Rules: run B21
#[tokio::test(flavor = "multi_thread")]
async fn a_long_name_works_or_is_refused_but_never_half_applied() {
    let world = World::start("long").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let name = "a".repeat(70);
    let spec = stageset(&name).stage(stage("app", "app"));
    match world
        .cluster
        .try_apply(&spec.object(&world.namespace), &world.namespace)
        .await
    {
        Err(refusal) => assert!(refusal.to_string().contains("63"), "{refusal}"),
        Ok(_) => {
            let set = spec.apply(&world).await;
            let good = |s: &Value| {
                condition_of(s, "Ready").is_some_and(|c| c["status"] == "True" || c["reason"] == "InvalidSpec")
            };
            set.until("rolled out, or refused", good).await;
        }
    }
}

/// An inventory that somebody deleted is made anew, and nothing is deleted on the strength of what is missing.
///
/// Rules: run 2.1 inventory, run 26.1, run 26.6
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_inventory_is_made_anew() {
    let world = World::start("lost-record").await;
    world
        .publish(
            "app",
            &[("a.yaml", &configmap("a", "1")), ("b.yaml", &configmap("b", "1"))],
        )
        .await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    world
        .cluster
        .delete(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    look(Duration::from_secs(15), || async {
        let recorded = shop.recorded_configmaps("app").await;
        if recorded.len() == 2 {
            Ok(())
        } else {
            Err(format!("{recorded:?}"))
        }
    })
    .await
    .expect("the inventory heals by itself");
    let revision = world.publish("app", &[("a.yaml", &configmap("a", "2"))]).await;
    shop.until_rolled_out("app", &revision).await;
    shop.reconcile().await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "b")
        .await;
}

/// A field of a later release is refused by name, and nothing is applied past it.
///
/// Rules: decisions 1.1
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_does_not_exist_yet_is_refused_by_name() {
    let world = World::start("later-field").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let budget = json!({ "freezeThreshold": "0.1", "source": { "webhook": { "url": "https://example.com", "jsonPath": "$.left" } } });
    let shop = stageset("shop")
        .set("errorBudget", budget)
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    let ready = shop.until_reason("InvalidSpec").await;
    assert!(
        ready["message"].as_str().unwrap_or_default().contains("errorBudget"),
        "{ready}"
    );
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await,
        "a pruned gate is an open gate"
    );
}

/// Progress texts are at most one status write a second, however much moves.
///
/// Rules: decisions 3.5
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_does_not_flood_the_status() {
    let world = World::start("flood").await;
    world
        .publish(
            "app",
            &[
                ("c.yaml", &unbound_claim("never")),
                ("w.yaml", &objects::widget("busy", 1)),
            ],
        )
        .await;
    world.widget("busy", false).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_phase("app", "Verifying").await;
    let mark = world.proxy.mark();
    for i in 0..40 {
        let status = json!({ "progress": i });
        world
            .cluster
            .patch_status(&objects::widgets(), &world.namespace, "busy", status)
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let writes = world.proxy.since(mark).writes();
    let seconds = mark.at.elapsed().as_secs() as usize + 1;
    assert!(
        writes.count() <= seconds,
        "{} writes in {seconds} s:\n{}",
        writes.count(),
        writes.lines()
    );
}

/// What went wrong once is not said of a release that is in place.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_is_over_leaves_no_message() {
    let world = World::start("cleared").await;
    world.publish("one", &[("m.yaml", &configmap("map", "1"))]).await;
    world.publish("two", &[("w.yaml", &objects::widget("w", 1))]).await;
    world.failed_widget("w").await;
    let shop = stageset("shop")
        .retry_interval("1h")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    shop.until_reason("StageFailed").await;
    let said = shop.stage("two").await["message"].clone();
    assert!(said.as_str().is_some_and(|m| m.contains('w')), "{said}");
    world.widget("w", true).await;
    let clean = |s: &serde_json::Value| {
        ["one", "two"].iter().all(|name| {
            let entry = stage_of(s, name);
            entry["phase"] == "Ready" && entry["message"].is_null() && entry["waitingFor"].is_null()
        })
    };
    shop.until_ready().await;
    shop.until("without a word of the past", clean).await;

    // The same for a release that turned unready for a while.
    world.failed_widget("w").await;
    shop.until("told", |s| !stage_of(s, "two")["waitingFor"].is_null())
        .await;
    world.widget("w", true).await;
    shop.until_ready().await;
    shop.until("without a word of the past", clean).await;
}

/// The same for what only the clean-up, or the care for what is deployed, could not do.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_or_a_look_that_failed_leaves_no_message() {
    let world = World::start("cleared-care").await;
    let both = [("a.yaml", configmap("a", "1")), ("b.yaml", configmap("b", "1"))];
    let both: Vec<(&str, &str)> = both.iter().map(|(path, text)| (*path, text.as_str())).collect();
    world.publish("app", &both).await;
    let shop = stageset("shop")
        .retry_interval("1s")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let said = |s: &Value| !stage_of(s, "app")["message"].is_null();
    let clean = |s: &Value| {
        let ready = condition_of(s, "Ready").is_some_and(|c| c["status"] == "True");
        let entry = stage_of(s, "app");
        ready && entry["phase"] == "Ready" && entry["message"].is_null() && entry["waitingFor"].is_null()
    };
    let no_delete = Match::writes().verb(Verb::Delete).resource("configmaps");
    world.proxy.fail(no_delete, When::Always, 403);
    world.publish("app", &both[..1]).await;
    shop.until("what could not be pruned", said).await;
    world.proxy.heal();
    shop.until("without a word of the prune", clean).await;

    let by_hand = json!({ "data": { "value": "by hand" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "a", by_hand)
        .await;
    let no_get = Match::any().verb(Verb::Get).resource("configmaps");
    world.proxy.fail(no_get, When::Always, 403);
    shop.request().await;
    shop.until("what could not be looked at", said).await;
    world.proxy.heal();
    shop.until("without a word of the look", clean).await;
    assert_eq!(world.config_value("a").await.as_deref(), Some("1"));
}
