//! Waiting is state, not a held worker: the stuck do not slow the healthy, and readiness is noticed at once.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, full, look,
    objects::{self, configmap, unbound_claim, widget},
    stageset::{StageSet, condition_of, stage, stage_of, stageset},
};

/// Middle of the sorted measurements.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// From the API server's answer to the apply until Ready is seen True.
async fn time_to_ready(world: &World, name: &str) -> Duration {
    world.publish(name, &[("map.yaml", &configmap(name, "1"))]).await;
    let set = stageset(name).stage(stage("app", name)).apply(world).await;
    let began = Instant::now();
    while condition_of(&set.status().await, "Ready").is_none_or(|c| c["status"] != "True") {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{name} is not ready\n{}",
            world.report().await
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

/// Many StageSets whose one stage never becomes ready, all waiting.
async fn stuck(world: &World, count: usize) {
    stream::iter(0..count)
        .for_each_concurrent(8, |i| async move {
            let name = format!("stuck-{i}");
            world.widget(&name, false).await;
            world.publish(&name, &[("w.yaml", &widget(&name, 1))]).await;
            stageset(&name).stage(stage("never", &name)).apply(world).await;
        })
        .await;
    look(Duration::from_secs(300), || async {
        let all = world.cluster.list(&objects::stagesets(), &world.namespace, "").await;
        let verifying = |s: &&Value| stage_of(&s["status"], "never")["phase"] == "Verifying";
        let waiting = all.iter().filter(verifying).count();
        if waiting == count {
            Ok(())
        } else {
            Err(format!("{waiting} of {count} are verifying"))
        }
    })
    .await
    .expect("every stuck StageSet waits");
}

/// How many StageSets wait, and how much slower a healthy one beside them may be: the figure that is promised is
/// for 1,000, which take minutes to make.
fn fairness() -> (usize, f64) {
    let asked = std::env::var("STAGESET_STUCK_COUNT").ok().and_then(|n| n.parse().ok());
    match asked {
        Some(count) => (count, 1.5),
        None if full() => (1000, 1.5),
        None => (200, 2.0),
    }
}

/// Two controllers at the same time, one of them with many StageSets that wait, asked in turn: what else
/// the machine does hits both alike.
///
/// Rules: decisions 4
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_stuck_stagesets_hold_nothing_up() {
    let (count, slower) = fairness();
    let idle = World::builder("idle").alone().start().await;
    let busy = World::builder("busy").companion().start().await;
    stuck(&busy, count).await;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for i in 0..23 {
        let name = format!("healthy-{i}");
        let (one, other) = (time_to_ready(&idle, &name).await, time_to_ready(&busy, &name).await);
        // The first of each pays for discovery and connections.
        if i > 1 {
            alone.push(one);
            beside.push(other);
        }
    }
    let (alone, beside) = (median(alone), median(beside));
    println!("healthy StageSet to Ready: {alone:?} alone, {beside:?} beside {count} stuck ones");
    assert!(
        beside <= alone.mul_f64(slower),
        "{beside:?} beside {count} stuck StageSets, {alone:?} alone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_noticed_at_once() {
    let world = World::builder("latency").alone().start().await;
    let mut times = Vec::new();
    for i in 0..21 {
        let (gate, after) = (format!("gate-{i}"), format!("after-{i}"));
        world.publish(&gate, &[("w.yaml", &widget(&gate, 1))]).await;
        world.publish(&after, &[("m.yaml", &configmap(&after, "1"))]).await;
        world.widget(&gate, false).await;
        let set = stageset(&gate)
            .stage(stage("one", &gate))
            .stage(stage("two", &after))
            .apply(&world)
            .await;
        set.until_phase("one", "Verifying").await;
        // Beyond the busy first moments of a wait, where a poll could be near by chance.
        tokio::time::sleep(Duration::from_millis(300 + 37 * i)).await;

        let mark = world.proxy.mark();
        world.widget(&gate, true).await;
        set.until_ready().await;
        let wanted = Match::writes().resource("configmaps").name(&after);
        let writes = world.proxy.since(mark).matching(&wanted);
        let first = writes.first().expect("the next stage wrote its object");
        times.push(first.started.duration_since(mark.at));
    }
    let median = median(times.clone());
    println!("object ready to the next stage's object written: median {median:?} of {times:?}");
    assert!(median < Duration::from_millis(200), "median {median:?} of {times:?}");
}

/// From the publication of a good revision until its object is written.
async fn time_to_replace(world: &World, artifact: &str, good: &str) -> Duration {
    let mark = world.proxy.mark();
    world.publish(artifact, &[("map.yaml", &configmap(good, "1"))]).await;
    let wanted = Match::writes().resource("configmaps").name(good);
    let first = look(Duration::from_secs(50), || async {
        world
            .proxy
            .since(mark)
            .matching(&wanted)
            .first()
            .map(|r| r.started)
            .ok_or_else(String::new)
    })
    .await;
    match first {
        Ok(at) => at.duration_since(mark.at),
        Err(_) => world.fail(&format!("{artifact} was never replaced by {good}")).await,
    }
}

/// Rules: run 3.1 s, run 18.2 fail-fast, run 18.4 failed, run 27.1, decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_revision_is_replaced_within_a_second() {
    let world = World::builder("replace-failed").alone().start().await;
    world.publish("app", &[("w.yaml", &widget("bad", 1))]).await;
    world.failed_widget("bad").await;
    let set = stageset("shop")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    let ready = set.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("stage \"app\" verify") && message.contains("bad"),
        "{message}"
    );
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    set.until_ready().await;
    assert!(
        !world.cluster.exists(&objects::widgets(), &world.namespace, "bad").await,
        "the bad object is pruned"
    );
}

/// What the API server cannot answer for is given up for something newer, long before it counts as a failure.
/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_the_server_stumbles_over_is_replaced() {
    let world = World::builder("replace-stumble").alone().start().await;
    let unlucky = Match::any().resource("configmaps").name("unlucky");
    world.proxy.fail(unlucky.clone(), When::Always, 500);
    let manifest = configmap("unlucky", "1");
    world.publish("app", &[("c.yaml", &manifest)]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    look(Duration::from_secs(30), || async {
        match world.proxy.all().matching(&unlucky).count() {
            0..3 => Err("not asked for yet".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("the controller tries");
    set.until("telling what holds it up", |s| {
        let ready = condition_of(s, "Ready").expect("Ready");
        ready["status"] == "Unknown" && ready["message"].to_string().contains("injected 500")
    })
    .await;
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    world.proxy.heal();
    set.until_ready().await;
}

/// A server that takes connections and never answers holds up only those that wait for it, and not even their deletion.
/// Rules: decisions 4
#[tokio::test(flavor = "multi_thread")]
async fn a_source_server_that_hangs_holds_up_nobody_else() {
    let world = World::builder("hangs").flag("--concurrent=2").start().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("its address");
    for number in 0..4 {
        let name = format!("late-{number}");
        let digest = format!("sha256:{number:064x}");
        let url = format!("http://{address}/{name}.tar.gz");
        world
            .publish_status(&name, &url, &format!("v1@{digest}"), &digest, true)
            .await;
        let set = stageset(&name).stage(stage("app", &name)).apply(&world).await;
        set.until_phase("app", "Applying").await;
    }
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let healthy = stageset("healthy").stage(stage("app", "app")).apply(&world).await;
    healthy.until_ready_within(Duration::from_secs(10)).await;
    let late = StageSet::named(&world, "late-0").await;
    late.delete().await;
    late.until_gone().await;
    drop(silent);
}

/// Waits until a pod of `web` is in a crash loop.
async fn until_crash_loop(world: &World) {
    look(Duration::from_secs(30), || async {
        let pods = world.cluster.list(&objects::pods(), &world.namespace, "app=web").await;
        let looping = pods
            .iter()
            .any(|p| p["status"].to_string().contains("CrashLoopBackOff"));
        if looping {
            Ok(())
        } else {
            Err(format!("{} pods", pods.len()))
        }
    })
    .await
    .expect("the pod crashes");
}

/// Rules: run B12 early, decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_looping_revision_is_replaced_within_a_second() {
    let world = World::builder("replace-crash").alone().start().await;
    let annotated = "      annotations: { testenv.metio.wtf/pod: crashloop }\n      labels:\n";
    let crashing = objects::deployment("web", "web:1", 1).replace("      labels:\n", annotated);
    world.publish("app", &[("web.yaml", &crashing)]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    until_crash_loop(&world).await;
    set.until("naming what it waits for", |s| s.to_string().contains("web"))
        .await;
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    set.until_ready().await;
}

/// One object that cannot be read does not hide the pods of the next.
///
/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_is_seen_beside_an_object_that_cannot_be_read() {
    let world = World::start("replace-beside").await;
    let with = |name: &str, pod: &str| {
        let annotated = format!("      annotations: {{ {pod} }}\n      labels:\n");
        objects::deployment(name, "web:1", 1).replace("      labels:\n", &annotated)
    };
    let late = with("a-late", "testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 1h");
    let crashing = with("web", "testenv.metio.wtf/pod: crashloop");
    world
        .publish("app", &[("late.yaml", &late), ("web.yaml", &crashing)])
        .await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    until_crash_loop(&world).await;
    set.until_phase("app", "Verifying").await;
    let read = Match::any().verb(Verb::Get).resource("deployments").name("a-late");
    world.proxy.fail(read, When::Always, 500);
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    world.proxy.heal();
    set.until_ready().await;
}

/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_motion_is_let_finish_and_a_standing_one_is_replaced() {
    let world = World::start("replace-still").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    let status = set.until_phase("app", "Verifying").await;
    let began: Timestamp = stage_of(&status, "app")["stepStartedAt"]
        .as_str()
        .and_then(|t| t.parse().ok())
        .expect("when the wait began");
    // Nothing has changed for less than 30 s: it may still get there.
    time_to_replace(&world, "app", "good").await;
    let waited = Timestamp::now().duration_since(began);
    assert!(
        waited >= SignedDuration::from_secs(30),
        "a fresh wait was cut off after {waited}"
    );
    // The bound of the wait is 15 minutes.
    assert!(
        waited < SignedDuration::from_secs(90),
        "a standing wait was kept for {waited}"
    );
    set.until_ready().await;
}

/// Something newer waits all the while, and what is awaited moves every few seconds: that is not stuck.
///
/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_keeps_moving_is_not_cut_off_by_something_newer() {
    let world = World::start("replace-moving").await;
    world.publish("app", &[("w.yaml", &widget("slow", 1))]).await;
    world.widget("slow", false).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until_phase("app", "Verifying").await;
    let revision = world.publish("app", &[("map.yaml", &configmap("good", "1"))]).await;
    for step in 0..13 {
        let mut status = objects::widget_status(1, false, false);
        status["conditions"][0]["message"] = json!(format!("step {step} of 13"));
        world
            .cluster
            .patch_status(&objects::widgets(), &world.namespace, "slow", status)
            .await;
        world
            .stays("the run in motion", Duration::from_secs(3), || async {
                match world.config_value("good").await {
                    None => Ok(()),
                    Some(_) => Err(format!("it was cut off at step {step}")),
                }
            })
            .await;
    }
    world.widget("slow", true).await;
    set.until_rolled_out("app", &revision).await;
}

/// What is newer and known already does not wait for the retry of a run that fails in front of it.
///
/// Rules: decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_while_something_newer_waits_is_replaced_at_once() {
    let world = World::start("replace-fails").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let set = stageset("shop")
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("6s"))
        .apply(&world)
        .await;
    set.until_phase("app", "Verifying").await;
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(12), "it took {took:?}");
    set.until_ready().await;
}

/// Rules: run B12 early, decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_standing_revision_is_replaced_at_once() {
    let world = World::start("replace-stood").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until_phase("app", "Verifying").await;
    tokio::time::sleep(Duration::from_secs(32)).await;
    let took = time_to_replace(&world, "app", "good").await;
    // Another 30 s where the time before the newer revision did not count.
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    set.until_ready().await;
}

/// Rules: run D3, run 3.1 s, run 18.2, run 18.2 message, run 18.4 bound, run 27.2 claim, decisions 1.3
/// Rules: decisions 2 failed
#[tokio::test(flavor = "multi_thread")]
async fn a_verify_that_runs_out_of_time_fails_and_says_what_it_waited_for() {
    let world = World::start("timeout").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    world.publish("next", &[("map.yaml", &configmap("next", "1"))]).await;
    let spec = stageset("shop")
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("3s"))
        .stage(stage("next", "next"));
    let set = spec.apply(&world).await;
    let ready = set.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("stage \"app\" verify") && message.contains("never") && message.contains("3s"),
        "{message}"
    );
    assert_eq!(set.stage("app").await["phase"], "Failed");
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "next")
            .await,
        "the run halts"
    );
    let status = set.status().await;
    assert_eq!(
        condition_of(&status, "Reconciling").expect("a retry is due")["reason"],
        "ProgressingWithRetry"
    );
}

/// Rules: decisions 3.3
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_stage_recovers_when_its_object_does() {
    let world = World::start("recover").await;
    world.publish("app", &[("w.yaml", &widget("slow", 1))]).await;
    world.widget("slow", false).await;
    let set = stageset("shop")
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("2s"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    world.widget("slow", true).await;
    set.until_ready_within(Duration::from_secs(5)).await;
}

/// Rules: decisions 2 unready
#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_release_that_turns_unready_is_reported_after_its_bound_and_heals() {
    let world = World::start("later").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", true).await;
    let set = stageset("shop")
        .interval("1h")
        .stage(stage("app", "app").timeout("3s"))
        .apply(&world)
        .await;
    set.until_ready().await;

    world.widget("w", false).await;
    let status = set.until_phase("app", "Verifying").await;
    assert_eq!(
        condition_of(&status, "Ready").expect("Ready")["status"],
        "True",
        "the bound has not run out"
    );
    set.until_reason("StageFailed").await;
    world.widget("w", true).await;
    set.until_ready_within(Duration::from_secs(10)).await;
}

/// Rules: run 2.2 generation, run 18.4 deleted, run B12 early, run B28
#[tokio::test(flavor = "multi_thread")]
async fn a_new_generation_and_a_deletion_end_a_wait_at_once() {
    let world = World::start("interrupt").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let mut set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until_phase("app", "Verifying").await;
    set.patch_spec(json!({ "suspend": true })).await;
    let began = Instant::now();
    set.until_reason("Suspended").await;
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "suspending took {:?}",
        began.elapsed()
    );
    set.patch_spec(json!({ "suspend": false })).await;
    set.until_phase("app", "Verifying").await;
    set.delete().await;
    let began = Instant::now();
    set.until_gone().await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "teardown took {:?}",
        began.elapsed()
    );
}

/// An apply that waits for an old object to go is no reason to keep a better revision waiting.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_stands_still_is_replaced_within_a_second() {
    let world = World::start("replace-apply").await;
    let held = configmap("held", "1").replace("name: held\n", "name: held\n  finalizers: [example.com/hold]\n");
    world.cluster.apply_yaml(&held, &world.namespace).await;
    world
        .cluster
        .delete(&objects::configmaps(), &world.namespace, "held")
        .await;
    world.publish("app", &[("map.yaml", &configmap("held", "2"))]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until("waiting for the old one to go", |s| {
        let entry = stage_of(s, "app");
        entry["phase"] == "Applying" && entry["waitingFor"].as_str().is_some_and(|w| w.contains("held"))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    let took = time_to_replace(&world, "app", "good").await;
    assert!(took < Duration::from_secs(2), "it took {took:?}");
    set.until_ready().await;
    let patch = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "held", patch)
        .await;
}

/// While a later stage waits, the earlier ones stay watched: nobody lists them again, and what breaks there is known
/// when the run ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_stage_stays_watched_while_a_later_one_waits() {
    let world = World::start("watched").await;
    world
        .publish(
            "one",
            &[("w.yaml", &widget("early", 1)), ("m.yaml", &configmap("map", "1"))],
        )
        .await;
    world.publish("two", &[("w.yaml", &widget("late", 1))]).await;
    world.widget("early", true).await;
    world.widget("late", false).await;
    let set = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    set.until_phase("two", "Verifying").await;
    world.widget("early", false).await;
    world.widget("late", true).await;
    let told = |s: &Value| {
        s["run"].is_null()
            && stage_of(s, "one")["phase"] == "Verifying"
            && stage_of(s, "one")["waitingFor"]
                .as_str()
                .is_some_and(|w| w.contains("early"))
    };
    set.until_within("aware of what broke in its first stage", Duration::from_secs(10), told)
        .await;
    world.widget("early", true).await;
    set.until_phase("one", "Ready").await;
    let watches = world
        .proxy
        .all()
        .matching(&Match::any().verb(crate::support::Verb::Watch).resource("configmaps"));
    assert_eq!(watches.count(), 1, "\n{}", watches.lines());
}
