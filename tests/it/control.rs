//! What a person does to a StageSet: suspend, resume, ask for a pass, and read it with ordinary tools.

use std::{process::Command, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    World, look,
    objects::{self, configmap, unbound_claim, widget},
    process,
    stageset::{condition_of, stage, stage_of, stageset},
};

/// Rules: run 2.5 requestedAt, run 2.7 suspended, run 3 step 5, run 5, decisions 2 suspended
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_stageset_is_left_alone_until_it_is_resumed() {
    let world = World::start("suspend").await;
    let first = world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let mut shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_applied("app", &first).await;
    shop.until_ready().await;
    let observed = shop.status().await["observedGeneration"].clone();
    shop.suspend(true).await;
    let ready = shop.until_reason("Suspended").await;
    assert_eq!(ready["status"], "False");
    assert!(
        !ready["message"].as_str().unwrap_or_default().contains("runbook"),
        "{ready}"
    );

    let mark = world.proxy.mark();
    let second = world.publish("app", &[("map.yaml", &configmap("map", "2"))]).await;
    let token = shop.request().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = shop.status().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("1"));
    assert_eq!(
        status["observedGeneration"], observed,
        "as Flux: a suspended generation is not observed"
    );
    assert_ne!(
        status["lastHandledReconcileAt"],
        token.as_str(),
        "a request is not acknowledged"
    );
    assert!(
        condition_of(&status, "Reconciling").is_none() && condition_of(&status, "Stalled").is_none(),
        "{status}"
    );
    let writes = world.proxy.since(mark).writes();
    assert!(writes.is_empty(), "\n{}", writes.lines());

    shop.suspend(false).await;
    shop.until_rolled_out("app", &second).await;
    shop.until_handled(&token).await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("2"));
}

/// Rules: run 2.2 requestedAt, run 2.5 requestedAt, run 3 step 6
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_acknowledged_whatever_the_outcome() {
    let world = World::start("request").await;
    let shop = stageset("shop")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    shop.until_reason("ArtifactNotFound").await;
    shop.reconcile().await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    shop.until_ready().await;
    shop.reconcile().await;
    shop.until_event("Succeeded").await;
    assert_eq!(
        shop.event_count("Succeeded").await,
        1,
        "asking again is no transition: {:?}",
        shop.events().await
    );
}

/// Rules: run 2.2 generation
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_is_rolled_out() {
    let world = World::start("spec").await;
    world
        .publish(
            "app",
            &[
                ("one/map.yaml", &configmap("one", "1")),
                ("two/map.yaml", &configmap("two", "1")),
            ],
        )
        .await;
    let mut shop = stageset("shop")
        .stage(stage("app", "app").path("one"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    shop.patch_spec(json!({ "stages": [{ "name": "app", "sourceRef": { "name": "app" }, "path": "two" }] }))
        .await;
    let status = shop.until_ready().await;
    assert_eq!(status["observedGeneration"], shop.generation);
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["two"]);
}

/// What the kstatus library reads: generation, `Reconciling`, `Stalled`, `Ready`, in its order.
fn kstatus(object: &Value) -> &'static str {
    let status = &object["status"];
    let is = |kind: &str, wanted: &str| condition_of(status, kind).is_some_and(|c| c["status"] == wanted);
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let observed = &status["observedGeneration"];
    if !observed.is_null() && *observed != object["metadata"]["generation"] {
        return "InProgress";
    }
    if is("Reconciling", "True") {
        return "InProgress";
    }
    if is("Stalled", "True") {
        return "Failed";
    }
    match condition_of(status, "Ready") {
        Some(ready) if ready["status"] == "True" => "Current",
        Some(_) => "InProgress",
        None => "Current",
    }
}

/// Rules: decisions 2 kstatus, decisions 2 terminal
#[tokio::test(flavor = "multi_thread")]
async fn kstatus_reads_a_stageset_as_in_progress_current_and_failed() {
    let world = World::start("kstatus").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", false).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_phase("app", "Verifying").await;
    assert_eq!(kstatus(&shop.get().await), "InProgress");
    world.widget("w", true).await;
    shop.until_ready().await;
    assert_eq!(kstatus(&shop.get().await), "Current");

    let source = json!({ "kind": "Snippet", "name": "no-version" });
    let bad = stageset("bad")
        .stage(crate::support::stageset::stage_from("app", source))
        .apply(&world)
        .await;
    bad.until_reason("InvalidSpec").await;
    assert_eq!(kstatus(&bad.get().await), "Failed");

    let retried = stageset("retried").stage(stage("app", "absent")).apply(&world).await;
    retried.until_reason("ArtifactNotFound").await;
    assert_eq!(kstatus(&retried.get().await), "InProgress", "it is tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_waits_for_ready_and_shows_the_columns() {
    let world = World::start("kubectl").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", false).await;
    stageset("shop").stage(stage("app", "app")).apply(&world).await;
    let plane = world.cluster.plane;
    let mut wait: Command = plane.tool("kubectl");
    wait.args([
        "-n",
        &world.namespace,
        "wait",
        "stageset/shop",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
    let waiting = tokio::task::spawn_blocking(move || process::run(&mut wait));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "nothing is ready yet");
    world.widget("w", true).await;
    waiting.await.expect("the waiting thread").expect("kubectl wait");

    let table = plane
        .kubectl(&["-n", &world.namespace, "get", "stageset", "shop"])
        .expect("a table");
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("NAME")
            && lines[0].contains("READY")
            && lines[0].contains("STATUS")
            && lines[0].contains("AGE"),
        "{table}"
    );
    assert!(lines[1].starts_with("shop") && lines[1].contains("True"), "{table}");
    let explained = plane
        .kubectl(&["explain", "stageset.spec.stages.sourceRef"])
        .expect("an explanation");
    assert!(
        explained.contains("DESCRIPTION") && !explained.contains("<empty>"),
        "{explained}"
    );
}

/// Rules: run B25, decisions 2 unfinished
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_while_it_happens() {
    let world = World::start("progress").await;
    world.publish("one", &[("map.yaml", &configmap("map", "1"))]).await;
    world.publish("two", &[("claim.yaml", &unbound_claim("never"))]).await;
    world.publish("three", &[("map.yaml", &configmap("late", "1"))]).await;
    let spec = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .stage(stage("three", "three"));
    let shop = spec.apply(&world).await;
    let status = shop.until_phase("two", "Verifying").await;
    assert_eq!(stage_of(&status, "one")["phase"], "Ready");
    assert!(
        matches!(stage_of(&status, "three")["phase"].as_str(), None | Some("Pending")),
        "{status}"
    );
    let waiting = look(Duration::from_secs(10), || async {
        let message = shop.message().await;
        if message.contains("two") && message.contains("never") {
            Ok(message)
        } else {
            Err(message)
        }
    });
    let message = waiting
        .await
        .expect("the message names the stage and what it waits for");
    println!("{message}");
    let run = shop.status().await["run"].clone();
    assert_eq!(run["generation"], shop.generation);
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(3), "{run}");
}
