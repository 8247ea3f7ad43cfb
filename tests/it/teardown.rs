//! Deletion: stages go in reverse order, and what cannot be reached does not hold a StageSet for ever.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, configmap, unbound_claim, widget},
    stageset::{StageSet, stage, stageset},
};

async fn three<'w>(world: &'w World) -> StageSet<'w> {
    let mut spec = stageset("shop");
    for name in ["database", "backend", "frontend"] {
        world.publish(name, &[("map.yaml", &configmap(name, "1"))]).await;
        spec = spec.stage(stage(name, name));
    }
    let shop = spec.apply(world).await;
    shop.until_ready().await;
    shop
}

/// Rules: run 4.1.3, run 4.1.6, run 3 step 2, run 11.1 tenant, run 19.2 identity
#[tokio::test(flavor = "multi_thread")]
async fn stages_are_torn_down_in_reverse_order() {
    let world = World::start("teardown").await;
    let shop = three(&world).await;
    let mark = world.proxy.mark();
    shop.delete().await;
    shop.until_gone().await;
    let deletes = world
        .proxy
        .since(mark)
        .matching(&Match::writes().verb(Verb::Delete).resource("configmaps"));
    let order: Vec<&str> = deletes.records().iter().map(|r| r.call.name.as_str()).collect();
    assert_eq!(order, ["frontend", "backend", "database"]);
    let tenant = format!("system:serviceaccount:{}:tenant", world.namespace);
    assert!(
        deletes.records().iter().all(|r| r.call.user == tenant),
        "\n{}",
        deletes.lines()
    );
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        Vec::<String>::new()
    );
    // The shards go by garbage collection.
    let shards = world.cluster.list(&objects::inventories(), &world.namespace, "").await;
    for shard in shards {
        let name = shard["metadata"]["name"].as_str().unwrap_or_default();
        world
            .cluster
            .until_gone(&objects::inventories(), &world.namespace, name)
            .await;
    }
}

/// The operator of an earlier stage stays until the objects of a later stage are really gone.
///
/// Rules: run B13 wait
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_waits_until_the_objects_of_the_later_one_are_gone() {
    let world = World::start("finalizers").await;
    world
        .publish("operator", &[("map.yaml", &configmap("operator", "1"))])
        .await;
    let held = configmap("held", "1").replace("name: held\n", "name: held\n  finalizers: [example.com/hold]\n");
    world.publish("resources", &[("map.yaml", &held)]).await;
    let spec = stageset("shop")
        .stage(stage("operator", "operator"))
        .stage(stage("resources", "resources"));
    let shop = spec.apply(&world).await;
    shop.until_ready().await;
    shop.delete().await;
    world
        .cluster
        .until(&objects::configmaps(), &world.namespace, "held", "being deleted", |m| {
            !m["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
    world
        .stays("the operator", Duration::from_secs(2), || async {
            if world
                .cluster
                .exists(&objects::configmaps(), &world.namespace, "operator")
                .await
            {
                Ok(())
            } else {
                Err("it is gone".to_owned())
            }
        })
        .await;
    let patch = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "held", patch)
        .await;
    shop.until_gone().await;
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "operator")
            .await
    );
}

/// Rules: run 4.1 suspended, run 5
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_stageset_is_torn_down_too() {
    let world = World::start("suspended").await;
    let mut shop = three(&world).await;
    shop.suspend(true).await;
    shop.until_reason("Suspended").await;
    shop.delete().await;
    shop.until_gone().await;
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        Vec::<String>::new()
    );
}

/// Rules: run 2.7 deleted, run 18.4 deleted, run B28
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_under_way_is_torn_down_at_once() {
    let world = World::start("midway").await;
    world.publish("one", &[("map.yaml", &configmap("map", "1"))]).await;
    world.publish("two", &[("claim.yaml", &unbound_claim("never"))]).await;
    let shop = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    shop.until_phase("two", "Verifying").await;
    let began = Instant::now();
    shop.delete().await;
    shop.until_gone().await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        began.elapsed()
    );
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_that_never_applied_anything_is_simply_gone() {
    let world = World::start("never").await;
    let shop = stageset("shop").stage(stage("app", "absent")).apply(&world).await;
    shop.until_reason("ArtifactNotFound").await;
    shop.delete().await;
    shop.until_gone().await;
}

/// A kind that is no longer served has no objects left.
///
/// Rules: run B13 kind, run 4.2 permanent
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_kind_that_is_gone_are_gone() {
    let world = World::start("kind-gone").await;
    let kind = super::triggers::own_kind(&world).await;
    let object = widget("thing", 1)
        .replace("fixture.stageset.test/v1", &kind.api_version)
        .replace("kind: Widget", &format!("kind: {}", kind.kind));
    world
        .publish("app", &[("thing.yaml", &object), ("map.yaml", &configmap("map", "1"))])
        .await;
    let shop = stageset("shop")
        .stage(stage("app", "app").set("readyChecks", json!({ "disableWait": true })))
        .apply(&world)
        .await;
    shop.until_ready().await;
    super::triggers::remove_own_kind(&world, &kind).await;
    shop.delete().await;
    shop.until_gone().await;
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
}

/// A kind that lives on under another version has its objects.
///
/// Rules: run B13 kind
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_version_that_is_gone_are_found_under_another() {
    let world = World::start("version-gone").await;
    let kind = super::triggers::own_kind(&world).await;
    let plural = format!("{}s", kind.kind.to_lowercase());
    let crd = format!("{plural}.{}", kind.group());
    let version = |name: &str, served: bool| {
        json!({ "name": name, "served": served, "storage": name == "v1", "subresources": { "status": {} },
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } })
    };
    let serve = async |beta: bool| {
        let versions = json!({ "spec": { "versions": [version("v1", true), version("v1beta1", beta)] } });
        world.cluster.patch(&objects::crds(), "", &crd, versions).await;
        look(Duration::from_secs(20), || async {
            let request = http::Request::get(format!("/apis/{}/v1beta1/{plural}", kind.group())).body(Vec::new());
            let served = world
                .cluster
                .client
                .request_text(request.expect("a request"))
                .await
                .is_ok();
            let request = http::Request::get("/apis")
                .header(
                    "accept",
                    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                )
                .body(Vec::new());
            let told = world.cluster.client.request_text(request.expect("a request")).await;
            let told = told.expect("discovery");
            let group = told
                .split(&format!("\"name\":\"{}\"", kind.group()))
                .nth(1)
                .unwrap_or_default();
            let group = group.split("\"metadata\"").next().unwrap_or_default();
            let told = group
                .split("\"version\":\"v1beta1\"")
                .skip(1)
                .any(|v| v.contains(&plural));
            if served == beta && told == beta {
                Ok(())
            } else {
                Err(format!("{served} {told}"))
            }
        })
        .await
        .expect("the version is in force");
    };
    serve(true).await;
    let thing = format!(
        "apiVersion: {}/v1beta1\nkind: {}\nmetadata: {{ name: thing }}\n",
        kind.group(),
        kind.kind
    );
    world.publish("app", &[("thing.yaml", &thing)]).await;
    let spec = stage("app", "app").set("readyChecks", json!({ "disableWait": true }));
    let shop = stageset("shop").stage(spec).apply(&world).await;
    shop.until_ready().await;
    serve(false).await;
    shop.delete().await;
    shop.until_gone().await;
    assert!(
        !world.cluster.exists(&kind, &world.namespace, "thing").await,
        "it runs on"
    );
    super::triggers::remove_own_kind(&world, &kind).await;
}

/// A write that got no answer is carried out after the teardown has seen its object gone: it is waited for.
///
/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_may_still_be_carried_out_holds_the_teardown() {
    let world = World::start("late-teardown").await;
    let late = |verb| Match::writes().verb(verb).resource("configmaps").name("late");
    let longer_than_we_wait = Duration::from_secs(45);
    world
        .proxy
        .delay_some(late(Verb::Patch), When::Nth(1), longer_than_we_wait);
    world.publish("app", &[("map.yaml", &configmap("late", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(90)).await;
    let patches = || world.proxy.all().matching(&late(Verb::Patch));
    assert!(
        patches().records().iter().any(|r| r.finished.is_none()),
        "the first write is still to be carried out:\n{}",
        patches().lines()
    );
    shop.delete().await;
    look(Duration::from_secs(150), || async {
        let exists = world
            .cluster
            .exists(&objects::stagesets(), &world.namespace, "shop")
            .await;
        if exists { Err("it exists".to_owned()) } else { Ok(()) }
    })
    .await
    .expect("it goes in the end");
    assert!(
        patches().records().iter().all(|r| r.finished.is_some()),
        "\n{}",
        patches().lines()
    );
    let exists = world
        .cluster
        .exists(&objects::configmaps(), &world.namespace, "late")
        .await;
    assert!(!exists, "nothing stays behind");
}

/// Rules: run 4.2 retry
#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_that_fails_is_repeated_and_says_so() {
    let world = World::start("repeat").await;
    let shop = three(&world).await;
    world.proxy.fail(
        Match::writes()
            .verb(Verb::Delete)
            .resource("configmaps")
            .name("backend"),
        When::First(3),
        500,
    );
    shop.delete().await;
    shop.until_gone().await;
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        Vec::<String>::new()
    );
}

/// Rules: run 4.2 timed-out
#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_that_cannot_end_is_given_up_after_its_bound_with_a_warning() {
    let world = World::builder("forced").flag("--max-teardown-wait=3s").start().await;
    let shop = three(&world).await;
    world.proxy.fail(
        Match::writes()
            .verb(Verb::Delete)
            .resource("configmaps")
            .name("backend"),
        When::Always,
        500,
    );
    shop.delete().await;
    shop.until_gone().await;
    let event = shop.until_event("TeardownForced").await;
    assert_eq!(event["type"], "Warning");
    let note = event["note"].as_str().unwrap_or_default();
    let left = note.split("may be left behind").nth(1).unwrap_or_default();
    assert!(left.contains("backend"), "{note}");
    for gone in ["frontend", "database"] {
        assert!(!left.contains(gone), "what is gone is not left behind: {note}");
    }
    let labels = ["name=\"shop\"", "reason=\"timed_out\""];
    let count = world
        .controller_ref()
        .metric("stageset_teardown_force_drop_total", &labels)
        .await;
    assert_eq!(count, 1.0);
    assert!(
        world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "backend")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_deleted_stageset_is_applied_again() {
    let world = World::start("dead").await;
    let shop = three(&world).await;
    shop.delete().await;
    shop.until_gone().await;
    world
        .publish("backend", &[("map.yaml", &configmap("backend", "2"))])
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "backend")
            .await
    );
}

/// B13: what may not be deleted holds nothing else back, and is told.
///
/// Rules: run B13 forbidden, run 19.3.4
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_may_not_be_deleted_is_named_and_the_rest_goes() {
    let world = World::start("denied").await;
    let shop = three(&world).await;
    let backend = Match::writes()
        .verb(Verb::Delete)
        .resource("configmaps")
        .name("backend");
    world.proxy.fail(backend, When::Always, 403);
    shop.delete().await;
    shop.until_gone().await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["backend"]);
    let event = shop.until_event("TeardownForced").await;
    assert_eq!(event["type"], "Warning");
    assert!(
        event["note"].as_str().unwrap_or_default().contains("backend"),
        "{event}"
    );
    let labels = ["name=\"shop\"", "reason=\"permanent\""];
    let forced = world
        .controller_ref()
        .metric("stageset_teardown_force_drop_total", &labels)
        .await;
    assert!((forced - 1.0).abs() < f64::EPSILON, "{forced}");
}

/// A step that was under way when its StageSet went must not bring it back: not into the cache, not into the metrics.
#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_that_goes_in_the_middle_of_a_step_leaves_no_ghost() {
    let world = World::start("ghost").await;
    let shop = three(&world).await;
    let series = || async {
        let text = world.controller_ref().metrics_text().await;
        text.lines()
            .filter(|l| l.contains("name=\"shop\""))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(!series().await.is_empty(), "a StageSet has series");
    for round in 0..5 {
        let slow = Match::writes().resource("configmaps").verb(Verb::Patch);
        world.proxy.delay(slow.clone(), Duration::from_millis(400));
        let mark = world.proxy.mark();
        let value = format!("{round}-again");
        world
            .publish("database", &[("map.yaml", &configmap("database", &value))])
            .await;
        look(Duration::from_secs(20), || async {
            let sent = world.proxy.since(mark).matching(&slow);
            if sent.is_empty() {
                Err("nothing is applied".to_owned())
            } else {
                Ok(())
            }
        })
        .await
        .expect("a step is under way");
        // Without its finalizer it is gone at once, whatever the step does.
        if round % 2 == 0 {
            let nothing = json!({ "metadata": { "finalizers": null } });
            world
                .cluster
                .patch(&objects::stagesets(), &world.namespace, "shop", nothing)
                .await;
        }
        shop.delete().await;
        world.proxy.heal();
        shop.until_gone().await;
        // The step ends by finding out; then nothing may be left.
        look(Duration::from_secs(10), || async {
            let answered =
                |r: &crate::support::proxy::Record| r.finished.is_some_and(|at| at.elapsed().as_millis() > 300);
            let steps = world.proxy.since(mark).matching(&slow);
            if steps.records().iter().all(answered) {
                Ok(())
            } else {
                Err(steps.lines())
            }
        })
        .await
        .expect("the step under way ends");
        look(Duration::from_secs(10), || async {
            let left = series().await;
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await
        .unwrap_or_else(|left| panic!("round {round}: the series stay:\n{left}"));
        world
            .stays("no series", Duration::from_millis(800), || async {
                let left = series().await;
                if left.is_empty() { Ok(()) } else { Err(left) }
            })
            .await;
        three(&world).await;
    }
}
