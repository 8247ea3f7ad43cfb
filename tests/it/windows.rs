//! Update windows: what they hold, what they let through, and when they are looked at again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, ToSpan as _, tz::TimeZone};
use serde_json::{Value, json};

use crate::support::{
    World, look,
    objects::{self, configmap, widget},
    stageset::{Spec, StageSet, condition_of, stage, stage_of, stageset},
};

fn deny(from: Timestamp, to: Timestamp) -> Value {
    json!({ "type": "Deny", "from": from.to_string(), "to": to.to_string() })
}

/// Seconds from now, whole: the format of windows has no fractions.
fn soon(seconds: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).expect("a time")
}

/// Closed for all the time a test may take.
fn closed() -> Value {
    deny(soon(-3600), soon(365 * 86_400))
}

fn app(windows: Value) -> Spec {
    stageset("app").set("updateWindows", windows).stage(stage("app", "app"))
}

/// Publishes a value of the one ConfigMap.
async fn publish(world: &World, value: &str) -> String {
    world.publish("app", &[("map.yaml", &configmap("app", value))]).await
}

/// A StageSet that is deployed at `one` and then told of windows.
async fn deployed<'w>(world: &'w World, spec: Spec, windows: Value) -> StageSet<'w> {
    publish(world, "one").await;
    let mut app = spec.apply(world).await;
    app.until_ready().await;
    app.patch_spec(json!({ "updateWindows": windows })).await;
    let generation = app.generation;
    app.until("the windows in force", |s| s["observedGeneration"] == generation)
        .await;
    app
}

/// Lets a window that holds something end soon; gives when. The hold is there before, so that a slow machine cannot miss
/// it.
async fn shorten(app: &mut StageSet<'_>) -> Timestamp {
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    let ends = soon(10);
    app.patch_spec(json!({ "updateWindows": [deny(soon(-60), ends)] }))
        .await;
    ends
}

async fn until_value(world: &World, value: &str, patience: Duration) {
    let seen = look(patience, || async {
        let seen = world.config_value("app").await;
        if seen.as_deref() == Some(value) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    if let Err(seen) = seen {
        world.fail(&format!("not {value:?} but {seen}")).await;
    }
}

/// Rules: run 2.7 window, run 10.2, run 10.5.5, gates 2.3.1, gates 2.4.6
#[tokio::test(flavor = "multi_thread")]
async fn a_held_update_is_let_through_when_the_window_opens() {
    let world = World::start("opens").await;
    let spec = stageset("app").retry_interval("1h").stage(stage("app", "app"));
    let mut app = deployed(&world, spec, json!([closed()])).await;
    let second = publish(&world, "two").await;
    let ends = shorten(&mut app).await;
    let opens = |s: &Value| -> Option<Timestamp> { s["pendingUpdate"]["nextWindowOpens"].as_str()?.parse().ok() };
    let status = app.until("held until it opens", |s| opens(s) == Some(ends)).await;
    let ready = condition_of(&status, "Ready").expect("Ready");
    assert!(ready["message"].to_string().contains(&ends.to_string()), "{ready}");
    assert_eq!(world.config_value("app").await.as_deref(), Some("one"));
    app.until_rolled_out("app", &second).await;
    let early = Timestamp::now().duration_since(ends);
    assert!(early > SignedDuration::ZERO, "{early} before it opened");
    assert!(early < SignedDuration::from_mins(5), "only {early} after it opened");
    assert!(app.status().await["pendingUpdate"].is_null());
    assert_eq!(app.event_count("UpdateDeferred").await, 1, "{:?}", app.events().await);
    let labels = ["name=\"app\""];
    assert_eq!(
        world
            .controller_ref()
            .metric("stageset_update_deferred_total", &labels)
            .await,
        1.0
    );
}

/// Rules: run 10.5 scope
#[tokio::test(flavor = "multi_thread")]
async fn the_scope_all_leaves_even_drift_alone() {
    let world = World::start("scope-all").await;
    publish(&world, "one").await;
    let mut app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    app.patch_spec(json!({ "updateWindows": [closed()], "windowScope": "All" }))
        .await;
    app.until("held without a revision", |s| {
        !s["pendingUpdate"].is_null() && s["pendingUpdate"]["revisions"].is_null()
    })
    .await;
    let edit = json!({ "data": { "value": "by hand" } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "app", edit)
        .await;
    app.reconcile().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("by hand"));
    let ready = app.condition("Ready").await.expect("Ready");
    assert_eq!(ready["status"], "True", "what is deployed stays Ready: {ready}");
    app.patch_spec(json!({ "windowScope": "Updates" })).await;
    until_value(&world, "one", Duration::from_secs(30)).await;
}

/// A changed spec is no new revision: it goes out while a window is closed.
///
/// Rules: run 10.4, run 10.5.4
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_spec_goes_through_a_closed_window_and_an_old_revision_clears_the_hold() {
    let world = World::start("window-spec").await;
    let patched = |value: &str| {
        let patch = format!("- {{ op: replace, path: /data/value, value: {value} }}\n");
        json!([{ "name": "app", "sourceRef": { "name": "app" },
                 "patches": [{ "target": { "kind": "ConfigMap" }, "patch": patch }] }])
    };
    let mut app = deployed(&world, stageset("app").stage(stage("app", "app")), json!([closed()])).await;
    app.patch_spec(json!({ "stages": patched("patched") })).await;
    until_value(&world, "patched", Duration::from_secs(30)).await;
    publish(&world, "two").await;
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    publish(&world, "one").await;
    app.until("no longer held", |s| s["pendingUpdate"].is_null()).await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("patched"));
}

/// Rules: run B9 started
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_has_started_is_finished_in_a_closed_window() {
    let world = World::start("started").await;
    world.publish("one", &[("w.yaml", &widget("gate", 1))]).await;
    world.publish("two", &[("m.yaml", &configmap("after", "1"))]).await;
    world.widget("gate", false).await;
    // The stage has to be applied by then, which takes a second.
    let closes = soon(15);
    let spec = stageset("shop")
        .set("updateWindows", json!([deny(closes, soon(86_400))]))
        .stage(stage("one", "one"))
        .stage(stage("two", "two"));
    let shop = spec.apply(&world).await;
    shop.until_phase("one", "Verifying").await;
    assert!(Timestamp::now() < closes, "the machine was too slow to begin in time");
    look(Duration::from_secs(20), || async {
        if Timestamp::now() > closes {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await
    .expect("the window closes");
    world.widget("gate", true).await;
    shop.until_ready_within(Duration::from_secs(10)).await;
    let revision = world.publish("two", &[("m.yaml", &configmap("after", "2"))]).await;
    let status = shop
        .until("the next one is held", |s| !s["pendingUpdate"]["revisions"].is_null())
        .await;
    assert!(status["pendingUpdate"].to_string().contains(&revision), "{status}");
}

/// Rules: run B9 failure
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_does_not_hide_a_release_in_trouble() {
    let world = World::start("hold-failed").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", true).await;
    let mut app = stageset("app")
        .stage(stage("app", "app").timeout("2s"))
        .apply(&world)
        .await;
    app.until_ready().await;
    app.patch_spec(json!({ "updateWindows": [closed()] })).await;
    app.until_ready().await;
    world.widget("w", false).await;
    app.until_reason("StageFailed").await;
    world.publish("app", &[("w.yaml", &widget("w", 2))]).await;
    let status = app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    let ready = condition_of(&status, "Ready").expect("Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("StageFailed")),
        "{ready}"
    );
    world.widget("w", true).await;
    app.until("Ready and held", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["status"] == "True") && !s["pendingUpdate"].is_null()
    })
    .await;
}

/// The opening of a window is a wake for a run that failed, although its retry is far away.
///
/// Rules: run B9 wake, gates 2.4.6
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_gives_way_when_the_window_opens() {
    let world = World::start("failed-opens").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    let spec = stageset("app").retry_interval("1h");
    let mut app = spec.stage(stage("app", "app").timeout("2s")).apply(&world).await;
    app.until_reason("StageFailed").await;
    app.patch_spec(json!({ "updateWindows": [closed()] })).await;
    let fixed = publish(&world, "fixed").await;
    let ends = shorten(&mut app).await;
    app.until_rolled_out("app", &fixed).await;
    assert!(Timestamp::now() > ends);
}

/// A stage that is added in a closed window lets nothing newer through into the others.
///
/// Rules: run B9 started
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_added_in_a_closed_window_lets_no_update_through() {
    let world = World::start("added-stage").await;
    publish(&world, "one").await;
    world.publish("more", &[("map.yaml", &configmap("more", "one"))]).await;
    world.publish("bad", &[("w.yaml", &widget("w", 1))]).await;
    let bad = stage("bad", "bad").timeout("2s");
    let spec = stageset("app").stage(stage("app", "app")).stage(bad);
    let mut app = spec.apply(&world).await;
    app.until_reason("StageFailed").await;
    app.patch_spec(json!({ "updateWindows": [closed()] })).await;
    publish(&world, "two").await;
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    let of = |name: &str| json!({ "name": name, "sourceRef": { "name": name }, "timeout": "2s" });
    app.patch_spec(json!({ "stages": [of("app"), of("more"), of("bad")] }))
        .await;
    world
        .stays("what was deployed", Duration::from_secs(6), async || {
            let values = (world.config_value("app").await, world.config_value("more").await);
            match values {
                (Some(app), None) if app == "one" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let status = app.status().await;
    let waiting = &status["pendingUpdate"]["revisions"];
    assert!(waiting.as_object().is_some_and(|r| r.len() == 3), "{status}");
}

/// A rollout that a closed window stops half way, because a stage was added, is not called deployed.
///
/// Rules: run B9 started
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_held_half_way_is_not_ready() {
    let world = World::start("half-way").await;
    publish(&world, "one").await;
    world.publish("w", &[("w.yaml", &widget("w", 1))]).await;
    world.publish("more", &[("map.yaml", &configmap("more", "one"))]).await;
    world.widget("w", true).await;
    let spec = stageset("app").stage(stage("app", "app")).stage(stage("w", "w"));
    let mut app = spec.apply(&world).await;
    app.until_ready().await;
    world.widget("w", false).await;
    world.publish("w", &[("w.yaml", &widget("w", 2))]).await;
    app.until("a run at w", |s| {
        !s["run"].is_null() && stage_of(s, "w")["step"] == "Verify"
    })
    .await;
    let of = |name: &str| json!({ "name": name, "sourceRef": { "name": name } });
    app.patch_spec(json!({ "updateWindows": [closed()], "stages": [of("app"), of("w"), of("more")] }))
        .await;
    let status = app
        .until("held", |s| {
            s["pendingUpdate"]["revisions"]
                .as_object()
                .is_some_and(|r| r.len() == 3)
        })
        .await;
    let ready = condition_of(&status, "Ready").expect("Ready");
    assert_ne!(ready["status"], "True", "{ready}");
}

/// A message that is carried on from pass to pass has one link to its runbook.
///
/// Rules: run 10.5 scope, contract 7.6
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_over_a_failed_release_says_the_same_in_every_pass() {
    let world = World::builder("hold-runbook")
        .flag("--runbook-base-url=https://runbooks.example")
        .start()
        .await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", true).await;
    let spec = stageset("app").stage(stage("app", "app").timeout("2s"));
    let mut app = spec.apply(&world).await;
    app.until_ready().await;
    world.widget("w", false).await;
    app.until_reason("StageFailed").await;
    app.patch_spec(json!({ "updateWindows": [closed()], "windowScope": "All" }))
        .await;
    for _ in 0..3 {
        app.reconcile().await;
    }
    let message = app.message().await;
    assert_eq!(message.matches("runbook:").count(), 1, "{message}");
}

/// Rules: gates 2 dependents, run 7.3 pending
#[tokio::test(flavor = "multi_thread")]
async fn dependents_wait_for_a_held_update() {
    let world = World::start("window-dependents").await;
    let mut app = deployed(&world, stageset("app").stage(stage("app", "app")), json!([closed()])).await;
    publish(&world, "two").await;
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    world.publish("next", &[("m.yaml", &configmap("next", "1"))]).await;
    let next = stageset("next")
        .retry_interval("1h")
        .set("dependsOn", json!([{ "name": "app" }]))
        .stage(stage("next", "next"))
        .apply(&world)
        .await;
    next.until_reason("DependencyNotReady").await;
    assert!(
        next.message().await.contains("update window"),
        "{}",
        next.message().await
    );
    app.patch_spec(json!({ "updateWindows": null })).await;
    next.until_ready_within(Duration::from_secs(20)).await;
}

/// Rules: gates 2 deletion
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_wait_for_a_window() {
    let world = World::start("window-delete").await;
    for scope in ["Updates", "All"] {
        publish(&world, "one").await;
        let mut app = stageset("app").stage(stage("app", "app")).apply(&world).await;
        app.until_ready().await;
        app.patch_spec(json!({ "updateWindows": [closed()], "windowScope": scope }))
            .await;
        app.delete().await;
        app.until_gone().await;
        assert_eq!(world.config_value("app").await, None, "{scope}");
    }
}

/// Rules: run 3 step 10
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_missing_is_told_before_a_closed_window() {
    let world = World::start("window-source").await;
    let app = app(json!([closed()])).apply(&world).await;
    app.until_reason("ArtifactNotFound").await;
    let revision = publish(&world, "one").await;
    app.until_reason("UpdateDeferred").await;
    let attempted = app.status().await["lastAttemptedRevisions"].to_string();
    assert!(attempted.contains(&revision), "{attempted}");
}

/// A token counts once: what comes after it is held again.
///
/// Rules: run 2.5 fresh, gates 2.4.1
#[tokio::test(flavor = "multi_thread")]
async fn an_override_that_was_used_holds_no_window_open() {
    let world = World::start("window-token").await;
    let app = deployed(&world, stageset("app").stage(stage("app", "app")), json!([closed()])).await;
    let second = publish(&world, "two").await;
    app.until("held", |s| !s["pendingUpdate"]["revisions"].is_null()).await;
    for token in ["", "now"] {
        app.annotate("stages.metio.wtf/update-now", Some(token)).await;
    }
    app.until_rolled_out("app", &second).await;
    let third = publish(&world, "three").await;
    app.until("held again", |s| s["pendingUpdate"].to_string().contains(&third))
        .await;
    app.reconcile().await;
    assert_eq!(world.config_value("app").await.as_deref(), Some("two"));
    app.annotate("stages.metio.wtf/update-now", Some("again")).await;
    app.until_rolled_out("app", &third).await;
}

/// Rules: run 10.1, run 10.1 cron, run 10.3, gates 2.1, gates 2.3.2, gates 2.3.3
#[tokio::test(flavor = "multi_thread")]
async fn a_calendar_in_a_zone_opens_and_a_denial_wins() {
    let world = World::start("calendar").await;
    let always = json!({ "type": "Allow", "schedule": "* * * * *", "duration": "2m" });
    publish(&world, "one").await;
    app(json!([always])).apply(&world).await.until_ready().await;
    StageSet::named(&world, "app").await.delete().await;
    StageSet::named(&world, "app").await.until_gone().await;

    let mut app = app(json!([always, closed()])).apply(&world).await;
    app.until_reason("UpdateDeferred").await;
    // The first of the month after next, at noon on an island 14 hours ahead of UTC; then the denial is over, too.
    let zone = TimeZone::get("Pacific/Kiritimati").expect("a zone");
    let month = Timestamp::now()
        .to_zoned(zone.clone())
        .saturating_add(2.months())
        .first_of_month()
        .expect("a day");
    let opens = month.date().at(12, 0, 0, 0).to_zoned(zone).expect("a time").timestamp();
    let yearly = json!({ "type": "Allow", "schedule": format!("0 12 1 {} ?", month.month()), "duration": "1h", "timeZone": "Pacific/Kiritimati" });
    let denied = deny(soon(-60), soon(86_400));
    app.patch_spec(json!({ "updateWindows": [yearly, denied] })).await;
    let wanted = opens.to_string();
    app.until(&format!("held until {wanted}"), |s| {
        s["pendingUpdate"]["nextWindowOpens"] == wanted.as_str()
    })
    .await;
    assert_eq!(world.config_value("app").await, None);
    app.patch_spec(json!({ "updateWindows": [always] })).await;
    app.until_ready().await;
}

/// Rules: run 6 windows, run 10.5.3, run B34, gates 2.2, gates 2.4.3, run D6, run 2.7 invalid
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_window_is_refused_and_never_open() {
    let world = World::start("malformed").await;
    publish(&world, "one").await;
    let recurring =
        |schedule: &str, duration: &str| json!({ "type": "Allow", "schedule": schedule, "duration": duration });
    let with = |mut window: Value, field: &str, value: Value| {
        window[field] = value;
        window
    };
    let bad = [
        json!({ "type": "Allow" }),
        json!({ "type": "Allow", "schedule": "* * * * *" }),
        json!({ "type": "Allow", "duration": "1h" }),
        json!({ "type": "Allow", "from": soon(0).to_string() }),
        deny(soon(10), soon(5)),
        with(deny(soon(0), soon(5)), "schedule", json!("* * * * *")),
        recurring("* * * * *", "0s"),
        recurring("0 0 31 2 *", "2562047h"),
        recurring("* * * *", "1h"),
        recurring("60 * * * *", "1h"),
        recurring("* * * * 7", "1h"),
        recurring("@every 1h", "1h"),
        with(
            recurring("TZ=Europe/Berlin * * * * *", "1h"),
            "timeZone",
            json!("Asia/Tokyo"),
        ),
        with(
            recurring("CRON_TZ=Asia/Tokyo * * * * *", "1h"),
            "timeZone",
            json!("Europe/Berlin"),
        ),
        with(recurring("* * * * *", "1h"), "timeZone", json!("Mars/Olympus")),
    ];
    let mut sets = Vec::new();
    for (at, window) in bad.iter().enumerate() {
        let spec = stageset(&format!("bad-{at}"))
            .retry_interval("1s")
            .set("updateWindows", json!([window]))
            .stage(stage("app", "app"));
        if world
            .cluster
            .try_apply(&spec.object(&world.namespace), &world.namespace)
            .await
            .is_ok()
        {
            sets.push((StageSet::named(&world, &format!("bad-{at}")).await, window));
        }
    }
    assert!(sets.len() > 5, "the controller is asked at all");
    for (set, window) in &sets {
        let ready = set.until_reason("InvalidSpec").await;
        assert!(
            ready["message"].to_string().contains("updateWindows"),
            "{window}: {ready}"
        );
        set.until("stalled", |s| {
            condition_of(s, "Stalled").is_some_and(|c| c["status"] == "True")
        })
        .await;
    }
    assert_eq!(
        world.config_value("app").await,
        None,
        "a window that cannot be read is never open"
    );
    // Nothing is tried again by a timer.
    let mark = world.proxy.mark();
    world
        .stays("at rest", Duration::from_secs(3), || async {
            let calls = world.proxy.since(mark);
            if calls.is_empty() { Ok(()) } else { Err(calls.lines()) }
        })
        .await;
    let (set, _) = &mut sets[0];
    set.patch_spec(json!({ "updateWindows": null })).await;
    set.until_ready().await;
}
