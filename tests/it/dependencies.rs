//! `dependsOn`: what has to be true of a dependency, and what wakes its dependents.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World,
    objects::{self, configmap, widget},
    stageset::{Spec, StageSet, condition_of, stage, stage_of, stageset},
};

fn on(name: &str, dependencies: Value) -> Spec {
    stageset(name)
        .interval("1h")
        .retry_interval("1h")
        .set("dependsOn", dependencies)
        .stage(stage("app", name))
}

async fn publish(world: &World, name: &str) {
    world.publish(name, &[("m.yaml", &configmap(name, "1"))]).await;
}

async fn until_message(set: &StageSet<'_>, part: &str) -> String {
    set.until(&format!("saying {part:?}"), |s| {
        condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains(part))
    })
    .await;
    set.message().await
}

/// Dependencies come before sources: what a dependency brings may be the producer.
///
/// Rules: run 3 step 8, decisions 2 waiting
#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_is_looked_at_before_the_source() {
    let world = World::start("dep-first").await;
    let app = on("app", json!([{ "name": "db" }])).apply(&world).await;
    let ready = app.until_reason("DependencyNotReady").await;
    assert_eq!(ready["status"], "False");
    let status = app.status().await;
    assert_eq!(status["observedGeneration"], app.generation);
    assert_eq!(
        condition_of(&status, "Reconciling").expect("it is asked again")["reason"],
        "ProgressingWithRetry"
    );
    assert!(
        condition_of(&status, "Stalled").is_none() && status["lastAttemptedRevisions"].is_null(),
        "{status}"
    );
    publish(&world, "db").await;
    stageset("db")
        .stage(stage("app", "db"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    app.until_reason("ArtifactNotFound").await;
}

/// Rules: run 7.3 suspended, run 2.1 dependency, run 7.3 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_dependency_blocks_until_it_is_resumed() {
    let world = World::start("dep-suspended").await;
    for name in ["db", "app"] {
        publish(&world, name).await;
    }
    let mut db = stageset("db").stage(stage("app", "db")).apply(&world).await;
    db.until_ready().await;
    db.suspend(true).await;
    db.until_reason("Suspended").await;
    let app = on("app", json!([{ "name": "db" }])).apply(&world).await;
    app.until_reason("DependencyNotReady").await;
    let said = app.message().await;
    assert!(said.contains("/db"), "{said}");
    db.suspend(false).await;
    app.until_ready_within(Duration::from_secs(10)).await;
}

/// Rules: run 7.3 version, run 2.1 dependency
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_too_old_is_named_with_the_one_that_is_needed() {
    let world = World::start("dep-version").await;
    for name in ["db", "app"] {
        publish(&world, name).await;
    }
    let db = stageset("db").stage(stage("app", "db")).apply(&world).await;
    db.until_ready().await;
    let app = on("app", json!([{ "name": "db", "minVersion": "v2.1" }]))
        .apply(&world)
        .await;
    app.until_reason("DependencyNotReady").await;
    let message = until_message(&app, "(none)").await;
    assert!(
        message.contains("2.1") && message.contains("does not record versions"),
        "{message}"
    );
    for (version, enough) in [("2.0.9", false), ("2.1.0", true)] {
        world
            .cluster
            .patch_status(
                &objects::stagesets(),
                &world.namespace,
                "db",
                json!({ "version": version }),
            )
            .await;
        if enough {
            app.until_ready_within(Duration::from_secs(10)).await;
        } else {
            until_message(&app, version).await;
        }
    }
}

/// Rules: run 7.2, run 2.7 stalled
#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_that_is_broken_goes_on_by_itself() {
    let world = World::start("dep-cycle").await;
    for name in ["a", "b", "c"] {
        publish(&world, name).await;
    }
    let a = on("a", json!([{ "name": "b" }])).apply(&world).await;
    let b = on("b", json!([{ "name": "c" }])).apply(&world).await;
    let mut c = on("c", json!([{ "name": "a" }])).apply(&world).await;
    c.until_reason("Stalled").await;
    for set in [&a, &b] {
        set.request().await;
        set.until_reason("Stalled").await;
        let message = set.message().await;
        assert!(["/a", "/b", "/c"].iter().all(|n| message.contains(n)), "{message}");
    }
    c.patch_spec(json!({ "dependsOn": null })).await;
    for set in [&c, &b, &a] {
        set.until_ready_within(Duration::from_secs(15)).await;
    }
}

/// Who lies on a circle behind a StageSet of another namespace is not told.
///
/// Rules: run 7.2
#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_through_other_namespaces_names_only_who_is_named_already() {
    let mut world = World::builder("dep-cycle-far").without_controller().start().await;
    let far = world.another_namespace("far").await;
    let both = format!("--watch-namespaces={},{far}", world.namespace);
    world.set_flag("--watch-namespaces", &both);
    world.start_controller().await;
    let on_far = |name: &str| json!([{ "name": name, "namespace": far }]);
    on("hidden", json!([{ "name": "a", "namespace": world.namespace }]))
        .apply_in(&world, &far)
        .await;
    on("b", json!([{ "name": "hidden" }])).apply_in(&world, &far).await;
    let a = on("a", on_far("b")).apply(&world).await;
    a.until_reason("Stalled").await;
    let message = a.message().await;
    assert!(
        message.contains(&format!("{far}/b")) && !message.contains("hidden"),
        "{message}"
    );
}

/// A dependency counts for the run that follows a failed one too.
///
/// Rules: run 7.3 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_followed_by_none_before_its_dependencies_are_ready() {
    let world = World::start("dep-failed").await;
    publish(&world, "db").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    let spec = stageset("app").retry_interval("1s");
    let mut app = spec.stage(stage("app", "app").timeout("1s")).apply(&world).await;
    app.until_reason("StageFailed").await;
    app.patch_spec(json!({ "dependsOn": [{ "name": "db" }] })).await;
    app.until_reason("DependencyNotReady").await;
    publish(&world, "app").await;
    world
        .stays("not applied", Duration::from_secs(4), async || {
            match world.config_value("app").await {
                None => Ok(()),
                there => Err(format!("{there:?}")),
            }
        })
        .await;
    stageset("db")
        .stage(stage("app", "db"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    app.until_ready_within(Duration::from_secs(15)).await;
}

/// An attempt that was asked for while a dependency was not ready begins when it is.
///
/// Rules: run 7.3 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_meets_a_closed_gate_is_not_lost() {
    let world = World::start("dep-owed").await;
    for name in ["db", "app"] {
        publish(&world, name).await;
    }
    world.publish("bad", &[("w.yaml", &widget("w", 1))]).await;
    let mut db = stageset("db").stage(stage("app", "db")).apply(&world).await;
    db.until_ready().await;
    let spec = on("app", json!([{ "name": "db" }]));
    let app = spec.stage(stage("bad", "bad").timeout("2s")).apply(&world).await;
    app.until_reason("StageFailed").await;
    let attempt = app.status().await["run"]["attempt"].as_i64();
    db.suspend(true).await;
    db.until_reason("Suspended").await;
    app.request().await;
    app.until_reason("DependencyNotReady").await;
    db.suspend(false).await;
    app.until("another attempt", |s| s["run"]["attempt"].as_i64() > attempt)
        .await;
}

/// The heartbeat of a dependency is no news to its dependents.
///
/// Rules: run B17
#[tokio::test(flavor = "multi_thread")]
async fn a_status_write_of_a_dependency_starts_no_pass_of_its_dependents() {
    let world = World::start("dep-heartbeat").await;
    for name in ["db", "app"] {
        publish(&world, name).await;
    }
    let db = stageset("db").stage(stage("app", "db")).apply(&world).await;
    db.until_ready().await;
    let app = on("app", json!([{ "name": "db" }])).apply(&world).await;
    app.until_ready().await;
    app.until("a finished run", |s| s["run"].is_null()).await;
    let count = || async {
        let labels = ["name=\"app\""];
        world.controller_ref().metric("stageset_reconcile_total", &labels).await
    };
    world
        .stays("settling", Duration::from_millis(700), || async { Ok(()) })
        .await;
    let before = count().await;
    db.reconcile().await;
    db.reconcile().await;
    world
        .stays("no pass of the dependent", Duration::from_secs(2), || async {
            let now = count().await;
            if now > before {
                Err(format!("{now} passes instead of {before}"))
            } else {
                Ok(())
            }
        })
        .await;
}

/// Both are told of a new revision at the same moment, and until the dependency has begun with it, its status says that
/// all is well.
///
/// Rules: run 7.3 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_is_first_with_every_revision_of_a_source_that_both_read() {
    let world = World::start("dep-shared").await;
    let publish = async |value: &str| {
        let (db, app) = (configmap("db", value), configmap("app", value));
        world.publish("all", &[("db/m.yaml", &db), ("app/m.yaml", &app)]).await
    };
    publish("one").await;
    let of = |name: &str, dependencies: Value| {
        let spec = stageset(name).interval("1h").retry_interval("1h");
        spec.set("dependsOn", dependencies)
            .stage(stage(name, "all").path(&format!("./{name}")))
    };
    let db = of("db", json!([])).apply(&world).await;
    let app = of("app", json!([{ "name": "db" }])).apply(&world).await;
    for set in [&db, &app] {
        set.until_ready().await;
    }
    // The dependency is slow to say that it is not ready any more.
    let slow = Match::any().verb(Verb::Patch).resource("stagesets").name("db");
    world.proxy.delay(slow, Duration::from_secs(3));
    let second = publish("two").await;
    let told = app.until_reason("DependencyNotReady").await;
    assert!(told["message"].to_string().contains("db"), "{told}");
    crate::support::look(Duration::from_secs(40), || async {
        match world.config_value("app").await {
            Some(value) if value == "two" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("the dependent goes on");
    let status = db.status().await;
    let stage = stage_of(&status, "db");
    assert_eq!(
        (&stage["appliedRevision"], &stage["phase"]),
        (&json!(second), &json!("Ready")),
        "{status}"
    );
    app.until_rolled_out("app", &second).await;
}

/// Rules: run 7.3 missing
#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_that_may_not_be_read_is_told_without_its_state() {
    let world = World::start("dep-denied").await;
    let far = world.another_namespace("far").await;
    publish(&world, "app").await;
    let mut app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    let get = Match::any().verb(Verb::Get).resource("stagesets").namespace(&far);
    world.proxy.fail(get, When::Always, 403);
    app.patch_spec(json!({ "dependsOn": [{ "name": "db", "namespace": far }] }))
        .await;
    app.until_reason("DependencyNotReady").await;
    let message = app.message().await;
    assert!(
        message.contains(&format!("{far}/db")) && !message.contains("403"),
        "{message}"
    );
    // It is asked again, and goes on where it is there.
    ready_in(&world, &far).await;
    world.proxy.heal();
    app.until_ready().await;
}

/// A StageSet `db` of a namespace that this controller does not watch, ready for whoever looks.
async fn ready_in(world: &World, far: &str) {
    let db = stageset("db").stage(stage("db", "db")).apply_in(world, far).await;
    let ready = json!({
        "observedGeneration": db.generation,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "Succeeded", "message": "deployed",
                         "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": db.generation }],
    });
    world
        .cluster
        .patch_status(&objects::stagesets(), far, "db", ready)
        .await;
}
