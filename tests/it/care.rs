//! What becomes of a stage's objects while its run waits, rests or is held: they are looked after all the same.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, configmap, multi, unbound_claim, widget},
    stageset::{StageSet, condition_of, stage, stage_of, stageset},
};

async fn edit(world: &World, name: &str) {
    let theirs = json!({ "data": { "value": "theirs" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, name, theirs)
        .await;
}

async fn until_value(world: &World, name: &str, value: &str) {
    let seen = look(Duration::from_secs(12), || async {
        match world.config_value(name).await {
            Some(now) if now == value => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    if let Err(seen) = seen {
        world.fail(&format!("{name} never was {value}: {seen}")).await;
    }
}

/// Two stages, the second of which never gets ready.
async fn blocked<'w>(world: &'w World, name: &str, on_timeout: Value) -> StageSet<'w> {
    let first = multi(&[
        configmap(&format!("{name}-map"), "ours"),
        widget(&format!("{name}-w"), 1),
    ]);
    world.widget(&format!("{name}-w"), true).await;
    world.publish(&format!("{name}-one"), &[("m.yaml", &first)]).await;
    let second = unbound_claim(&format!("{name}-never"));
    world.publish(&format!("{name}-two"), &[("c.yaml", &second)]).await;
    stageset(name)
        .retry_interval("1h")
        .set("driftDetectionInterval", json!("2s"))
        .set("onTimeout", on_timeout)
        .stage(stage("one", &format!("{name}-one")))
        .stage(stage("two", &format!("{name}-two")).timeout("2s"))
        .apply(world)
        .await
}

/// Rules: run 20 correct, run 20 report
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_is_through_is_looked_after_while_a_later_one_fails_or_is_held() {
    let world = World::start("through").await;
    for (name, policy, reason) in [
        ("failed", Value::Null, "StageFailed"),
        ("held", json!("Hold"), "StageProgressing"),
    ] {
        let set = blocked(&world, name, policy).await;
        set.until_reason(reason).await;
        let map = format!("{name}-map");
        edit(&world, &map).await;
        until_value(&world, &map, "ours").await;
        world
            .cluster
            .delete(&objects::configmaps(), &world.namespace, &map)
            .await;
        until_value(&world, &map, "ours").await;
        set.until_event("DriftCorrected").await;
        // What breaks is told, and what stands is not touched by it.
        world.widget(&format!("{name}-w"), false).await;
        let told = |s: &Value| stage_of(s, "one")["message"].to_string().contains(&format!("{name}-w"));
        let status = set.until("the broken object is named", told).await;
        assert_eq!(condition_of(&status, "Ready").expect("Ready")["reason"], reason);
        assert_eq!(stage_of(&status, "one")["phase"], "Ready");
        world.widget(&format!("{name}-w"), true).await;
        set.until("it is well again", |s| stage_of(s, "one")["message"].is_null())
            .await;
        assert_eq!(set.status().await["run"]["attempt"], 1);
    }
}

fn maps<const N: usize>(names: [&str; N]) -> String {
    multi(&names.map(|name| configmap(name, "ours")))
}

/// A stage of three ConfigMaps that is in place.
async fn three_maps<'w>(world: &'w World) -> StageSet<'w> {
    world.publish("app", &[("m.yaml", &maps(["a", "b", "c"]))]).await;
    let app = stageset("app").retry_interval("1h").stage(stage("app", "app"));
    let app = app.apply(world).await;
    app.until_ready().await;
    app
}

/// Rules: run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_the_stages_that_are_through_and_a_held_prune() {
    let world = World::builder("through-held").flag("--prune-guard-min=2").start().await;
    let set = three_maps(&world).await;
    world.publish("app", &[("m.yaml", &maps(["a"]))]).await;
    set.until_reason("PruneHeld").await;
    edit(&world, "a").await;
    set.request().await;
    until_value(&world, "a", "ours").await;
    set.until_reason("PruneHeld").await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await, ["a", "b", "c"]);
}

/// What a run would prune is held while something newer is known already, which wants nothing pruned.
///
/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_held_prune_gives_way_to_something_newer_that_was_known_before() {
    let world = World::builder("held-newer").flag("--prune-guard-min=2").start().await;
    let set = three_maps(&world).await;
    world.widget("gate", false).await;
    world
        .publish("app", &[("m.yaml", &maps(["a"])), ("w.yaml", &widget("gate", 1))])
        .await;
    set.until_phase("app", "Verifying").await;
    let newest = maps(["a", "b", "c", "d"]);
    let revision = world
        .publish("app", &[("m.yaml", &newest), ("w.yaml", &widget("gate", 1))])
        .await;
    set.until("aware of the newest", |s| {
        s["lastAttemptedRevisions"].to_string().contains(&revision)
    })
    .await;
    world.widget("gate", true).await;
    set.until_within("rolled out at once", Duration::from_secs(15), |s| {
        stage_of(s, "app")["appliedRevision"] == revision.as_str() && s["run"].is_null()
    })
    .await;
}

/// A run that was through with all its stages and is at the first again still looks after the second.
///
/// Rules: run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_behind_an_unfinished_one_is_looked_after() {
    let world = World::builder("behind").flag("--prune-guard-min=2").start().await;
    let (good, never) = (configmap("first", "ours"), unbound_claim("never"));
    world
        .publish("one", &[("good/m.yaml", &good), ("bad/c.yaml", &never)])
        .await;
    world.publish("two", &[("m.yaml", &maps(["a", "b", "second"]))]).await;
    let mut set = stageset("app")
        .set("driftDetectionInterval", json!("2s"))
        .retry_interval("1h")
        .stage(stage("one", "one").path("good"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    set.until_ready().await;
    world.publish("two", &[("m.yaml", &maps(["second"]))]).await;
    set.until_reason("PruneHeld").await;
    let stages = json!([
        { "name": "one", "sourceRef": { "name": "one" }, "path": "bad" },
        { "name": "two", "sourceRef": { "name": "two" } },
    ]);
    set.patch_spec(json!({ "stages": stages })).await;
    set.until_phase("one", "Verifying").await;
    edit(&world, "second").await;
    until_value(&world, "second", "ours").await;
    assert_eq!(set.stage("one").await["phase"], "Verifying");
}

/// Rules: run 18.4 bound
#[tokio::test(flavor = "multi_thread")]
async fn a_held_verify_makes_anew_what_is_deleted_and_begins_again_on_request() {
    let world = World::start("held-anew").await;
    world.publish("app", &[("c.yaml", &unbound_claim("stuck"))]).await;
    let set = stageset("app")
        .set("onTimeout", json!("Hold"))
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("2s"))
        .apply(&world)
        .await;
    set.until_reason("StageProgressing").await;
    let claims = objects::claims();
    let uid = |claim: &Value| claim["metadata"]["uid"].to_string();
    let before = uid(&world.cluster.must_get(&claims, &world.namespace, "stuck").await);
    world.cluster.delete(&claims, &world.namespace, "stuck").await;
    let anew = look(Duration::from_secs(15), || async {
        match world.cluster.get(&claims, &world.namespace, "stuck").await {
            Some(claim) if uid(&claim) != before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    if let Err(seen) = anew {
        world.fail(&format!("it is not made anew: {seen}")).await;
    }
    set.until_reason("StageProgressing").await;
    set.until("held in a second attempt", |s| s["run"]["attempt"] == 2)
        .await;
    set.until_reason("StageProgressing").await;
    set.request().await;
    set.until("a third attempt", |s| s["run"]["attempt"] == 3).await;
}

/// While an old object goes slowly, nothing is listed and read over and over; that it is gone is noticed at once.
///
/// Rules: decisions 5 unchanged, run B12 bounded
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_waits_repeats_nothing() {
    let world = World::start("apply-waits").await;
    let maps: Vec<String> = (0..12).map(|i| configmap(&format!("map-{i}"), "1")).collect();
    let all = |claim: &str| multi(&[maps.clone(), vec![claim.to_owned()]].concat());
    let wait = json!({ "disableWait": true });
    let claim = unbound_claim("slow");
    world.publish("app", &[("all.yaml", &all(&claim))]).await;
    let set = stageset("app")
        .stage(stage("app", "app").set("readyChecks", wait))
        .apply(&world)
        .await;
    set.until_ready().await;
    let claims = objects::claims();
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/slow"] } });
    world.cluster.patch(&claims, &world.namespace, "slow", finalizer).await;
    world.cluster.delete(&claims, &world.namespace, "slow").await;
    let labelled = claim.replace("  name: slow\n", "  name: slow\n  labels: { revision: two }\n");
    let revision = world.publish("app", &[("all.yaml", &all(&labelled))]).await;
    let waiting = |s: &Value| {
        stage_of(s, "app")["waitingFor"]
            .to_string()
            .contains("until the old one is gone")
    };
    set.until("an apply that waits", waiting).await;
    let mark = world.proxy.mark();
    world
        .stays("waiting", Duration::from_secs(8), || async {
            let status = set.status().await;
            if waiting(&status) {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
    let since = world.proxy.since(mark);
    for resource in ["configmaps", "persistentvolumeclaims"] {
        for verb in [Verb::List, Verb::Watch] {
            let repeated = since.matching(&Match::any().verb(verb).resource(resource));
            assert!(repeated.count() <= 1, "\n{}", repeated.lines());
        }
    }
    let reads = since.matching(&Match::any().verb(Verb::Get).resource("configmaps"));
    assert!(reads.is_empty(), "\n{}", reads.lines());
    let reads = since.matching(&Match::any().verb(Verb::Get).resource("persistentvolumeclaims"));
    assert!(reads.count() <= 5, "\n{}", reads.lines());
    let none = json!({ "metadata": { "finalizers": null } });
    world.cluster.patch(&claims, &world.namespace, "slow", none).await;
    set.until_within("applied at once", Duration::from_secs(3), |s| {
        stage_of(s, "app")["appliedRevision"] == revision.as_str()
    })
    .await;
}

/// What was edited and only looked at is put back by a run that leaves it as it is.
///
/// Rules: run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn a_run_puts_back_what_changed_before_it() {
    let world = World::start("noted").await;
    let both = |second: &str| multi(&[configmap("first", "ours"), configmap("second", second)]);
    world.publish("app", &[("m.yaml", &both("1"))]).await;
    let set = stageset("app").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let mark = world.proxy.mark();
    edit(&world, "first").await;
    let noted = look(Duration::from_secs(10), || async {
        let reads = world
            .proxy
            .since(mark)
            .matching(&Match::any().verb(Verb::Get).resource("configmaps").name("first"));
        if reads.is_empty() { Err(String::new()) } else { Ok(()) }
    });
    noted.await.expect("a look at what was edited");
    let revision = world.publish("app", &[("m.yaml", &both("2"))]).await;
    set.until_rolled_out("app", &revision).await;
    assert_eq!(world.config_value("first").await.as_deref(), Some("ours"));
}

/// Rules: run B12 skipped, decisions 5 restart
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_alone_is_not_waited_for_after_a_restart_either() {
    let mut world = World::start("left-restart").await;
    for name in ["kept", "once", "disabled"] {
        world.cluster.apply_yaml(&unbound_claim(name), &world.namespace).await;
    }
    let off = Some("disabled");
    let key = "stages.metio.wtf/reconcile";
    let claims = objects::claims();
    world
        .cluster
        .annotate(&claims, &world.namespace, "disabled", key, off)
        .await;
    let with = |name: &str, mode: &str| {
        let annotations = format!("  name: {name}\n  annotations: {{ stages.metio.wtf/ssa: {mode} }}\n");
        unbound_claim(name).replace(&format!("  name: {name}\n"), &annotations)
    };
    let all = multi(&[
        unbound_claim("kept"),
        unbound_claim("disabled"),
        with("once", "IfNotPresent"),
        with("absent", "Ignore"),
        widget("gate", 1),
    ]);
    world.widget("gate", false).await;
    world.publish("app", &[("all.yaml", &all)]).await;
    let keep = json!({ "rules": [{ "target": { "kind": "PersistentVolumeClaim", "name": "kept" }, "action": "KeepExisting" }] });
    let set = stageset("app")
        .stage(stage("app", "app").set("conflictPolicy", keep))
        .apply(&world)
        .await;
    let gate = |s: &Value| {
        stage_of(s, "app")["waitingFor"]
            .as_str()
            .is_some_and(|w| w.contains("gate") && !w.contains("Claim"))
    };
    set.until("a verify of the gate alone", gate).await;
    drop(set);
    world.controller().crash_and_restart().await;
    world.widget("gate", true).await;
    let set = StageSet::named(&world, "app").await;
    set.until_ready_within(Duration::from_secs(15)).await;
    drop(set);
    // And once more with the release in place.
    world.controller().crash_and_restart().await;
    let set = StageSet::named(&world, "app").await;
    set.reconcile().await;
    let ready = |s: &Value| stage_of(s, "app")["phase"] == "Ready" && stage_of(s, "app")["waitingFor"].is_null();
    set.until("nothing is waited for", ready).await;
}

/// A moment in which the API server does not answer says nothing about what is wanted.
///
/// Rules: decisions 2 success
#[tokio::test(flavor = "multi_thread")]
async fn variables_that_cannot_be_read_just_now_begin_no_run() {
    let world = World::start("brown-out").await;
    world
        .cluster
        .apply_yaml(&configmap("variables", "good"), &world.namespace)
        .await;
    world.publish("app", &[("m.yaml", &configmap("map", "${value}"))]).await;
    let from = json!({ "substituteFrom": [{ "kind": "ConfigMap", "name": "variables" }] });
    let set = stageset("app")
        .stage(stage("app", "app").set("postBuild", from))
        .apply(&world)
        .await;
    set.until_ready().await;
    let reads = Match::any().verb(Verb::Get).resource("configmaps").name("variables");
    world.proxy.fail(reads.clone(), When::Always, 503);
    let mark = world.proxy.mark();
    let token = set.request().await;
    let tried = look(Duration::from_secs(20), || async {
        let status = set.status().await;
        let ready = condition_of(&status, "Ready").cloned().unwrap_or_default();
        assert!(status["run"].is_null() && ready["status"] == "True", "{status}");
        match world.proxy.since(mark).matching(&reads).count() {
            3.. => Ok(()),
            few => Err(few.to_string()),
        }
    });
    tried.await.expect("it is tried again");
    world.proxy.heal();
    set.until_handled(&token).await;
    let writes = Match::writes().verb(Verb::Patch).resource("configmaps");
    let writes = world.proxy.since(mark).matching(&writes);
    assert!(writes.is_empty(), "\n{}", writes.lines());
}

/// What drifted in a field that cannot be changed back is deleted, and made anew as soon as it is gone.
///
/// Rules: run 20 correct
#[tokio::test(flavor = "multi_thread")]
async fn drift_that_costs_an_object_is_mended_when_the_object_is_gone() {
    let world = World::start("slow-drift").await;
    let sealed = |value: &str| format!("{}immutable: true\n", configmap("sealed", value));
    world.publish("app", &[("m.yaml", &sealed("ours"))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app").set("conflictPolicy", json!({ "default": "Recreate" })))
        .apply(&world)
        .await;
    set.until_ready().await;
    let maps = objects::configmaps();
    world.cluster.delete(&maps, &world.namespace, "sealed").await;
    world.cluster.until_gone(&maps, &world.namespace, "sealed").await;
    world.cluster.apply_yaml(&sealed("theirs"), &world.namespace).await;
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/slow"] } });
    world.cluster.patch(&maps, &world.namespace, "sealed", finalizer).await;
    set.request().await;
    let leaving = |map: &Value| !map["metadata"]["deletionTimestamp"].is_null();
    world
        .cluster
        .until(&maps, &world.namespace, "sealed", "on its way out", leaving)
        .await;
    let token = set.request().await;
    set.until_handled(&token).await;
    // Long enough that the request is not what makes it anew.
    world
        .stays("leaving", Duration::from_secs(7), || async {
            let map = world.cluster.must_get(&maps, &world.namespace, "sealed").await;
            if leaving(&map) { Ok(()) } else { Err(map.to_string()) }
        })
        .await;
    let none = json!({ "metadata": { "finalizers": null } });
    world.cluster.patch(&maps, &world.namespace, "sealed", none).await;
    until_value(&world, "sealed", "ours").await;
}

/// An object that asks by itself to be left alone is looked after again when it does not ask any more.
///
/// Rules: run 16.5 reconcile
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_let_go_for_a_while_is_put_back_afterwards() {
    let world = World::start("let-go").await;
    world.publish("app", &[("m.yaml", &configmap("map", "ours"))]).await;
    let set = stageset("app").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let maps = objects::configmaps();
    let key = "stages.metio.wtf/reconcile";
    world
        .cluster
        .annotate(&maps, &world.namespace, "map", key, Some("disabled"))
        .await;
    edit(&world, "map").await;
    set.reconcile().await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("theirs"));
    world.cluster.annotate(&maps, &world.namespace, "map", key, None).await;
    set.reconcile().await;
    until_value(&world, "map", "ours").await;
}
