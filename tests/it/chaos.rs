//! Everything at once: errors of every sort at random, requests that never end, and then no API server at all.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{
    Controller, Match, When, World, full, look,
    objects::{self, configmap, deployment, multi, service},
    seed,
    stageset::{StageSet, condition_of, stage, stage_of, stageset},
};

const SETS: usize = 6;
/// What every step may take while requests fail, hang and time out.
const PATIENCE: Duration = Duration::from_secs(240);
const LEASE: &str = "stageset-controller.stages.metio.wtf";

/// Two stages: a Deployment with two ConfigMaps, and a Service with one. From the second revision on, one ConfigMap
/// has left and another has moved to the other stage.
async fn publish(world: &World, set: usize, version: u32) -> String {
    let (web, map) = (format!("web-{set}"), |name: &str| {
        configmap(&format!("{name}-{set}"), &version.to_string())
    });
    let mut one = vec![deployment(&web, &format!("web:{version}"), 1), map("a")];
    let mut two = vec![service(&web, 80), map("c")];
    if version == 1 {
        one.extend([map("leaves"), map("moves")]);
    } else {
        two.push(map("moves"));
    }
    let files = [("one/all.yaml", multi(&one)), ("two/all.yaml", multi(&two))];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    world.publish(&format!("app-{set}"), &files).await
}

async fn all_roll_out<'w>(sets: &[StageSet<'w>], revisions: &[String]) {
    for (set, revision) in sets.iter().zip(revisions) {
        let good = |s: &Value| {
            let ready = condition_of(s, "Ready").is_some_and(|c| c["status"] == "True");
            let at = |name: &str| {
                stage_of(s, name)["appliedRevision"] == revision.as_str() && stage_of(s, name)["phase"] == "Ready"
            };
            ready && s["run"].is_null() && at("one") && at("two")
        };
        set.until_within(&format!("rolled out at {revision}"), PATIENCE, good)
            .await;
    }
}

async fn publish_all(world: &World, version: u32) -> Vec<String> {
    let mut revisions = Vec::new();
    for set in 0..SETS {
        revisions.push(publish(world, set, version).await);
    }
    revisions
}

async fn uids(world: &World) -> Vec<Value> {
    let mut uids = Vec::new();
    for set in 0..SETS {
        for (kind, name) in [(objects::configmaps(), "moves"), (objects::deployments(), "web")] {
            let object = world
                .cluster
                .must_get(&kind, &world.namespace, &format!("{name}-{set}"))
                .await;
            uids.push(object["metadata"]["uid"].clone());
        }
    }
    uids
}

/// Restarts a controller that has ended, as a cluster does; never returns.
async fn supervise(controller: &mut Controller, restarts: &AtomicU32) -> ! {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if !controller.running() {
            controller.reap();
            restarts.fetch_add(1, Ordering::SeqCst);
            controller.start_again();
        }
    }
}

/// One request in twenty answered with each of these errors, and some that outlive the client's patience.
fn trouble(world: &World) {
    for code in [429, 500] {
        world.proxy.fail(Match::any(), When::Chance(0.05), code);
    }
    world.proxy.fail(Match::writes(), When::Chance(0.05), 409);
    let timeouts = if full() { 0.05 } else { 0.01 };
    world
        .proxy
        .delay_some(Match::any(), When::Chance(timeouts), Duration::from_secs(35));
}

/// Three revisions under fire; the API server goes away in the middle of the third, and changes go on meanwhile.
async fn rollouts(world: &World) {
    let first = publish_all(world, 1).await;
    trouble(world);
    let mut sets = Vec::new();
    for set in 0..SETS {
        let app = format!("app-{set}");
        let spec = stageset(&format!("set-{set}"))
            .retry_interval("1s")
            .stage(stage("one", &app).path("./one"))
            .stage(stage("two", &app).path("./two"));
        sets.push(spec.apply(world).await);
    }
    all_roll_out(&sets, &first).await;
    let before = uids(world).await;
    let second = publish_all(world, 2).await;
    all_roll_out(&sets, &second).await;

    outage(world).await;
    let fourth = publish_all(world, 4).await;
    world.proxy.heal();
    trouble(world);
    all_roll_out(&sets, &fourth).await;
    world.proxy.heal();
    assert_eq!(uids(world).await, before, "nothing that stays was deleted on the way");
    for (set, handle) in sets.iter().enumerate() {
        end_state(world, set, handle).await;
    }
    calm(world).await;

    for set in &sets {
        set.delete().await;
    }
    for set in &sets {
        set.until_gone().await;
    }
    for kind in [objects::configmaps(), objects::deployments(), objects::services()] {
        let left = world
            .cluster
            .list(&kind, &world.namespace, "stages.metio.wtf/name")
            .await;
        assert!(left.is_empty(), "orphans: {left:?}");
    }
}

/// No answers, then no connections, each for half of the time: a revision is under way when it begins, and its objects
/// are changed by others meanwhile.
async fn outage(world: &World) {
    let length = Duration::from_secs(if full() { 60 } else { 24 });
    let mark = world.proxy.mark();
    publish_all(world, 3).await;
    let begun = look(PATIENCE, || async {
        let writes = world
            .proxy
            .since(mark)
            .matching(&Match::writes().resource("configmaps"));
        if writes.is_empty() {
            Err("nothing is applied".to_owned())
        } else {
            Ok(())
        }
    });
    begun.await.expect("the third revision is under way");
    world.proxy.hang(true);
    for set in 0..SETS {
        let by_hand = json!({ "data": { "value": "by hand" } });
        let name = format!("a-{set}");
        world
            .cluster
            .patch(&objects::configmaps(), &world.namespace, &name, by_hand)
            .await;
    }
    // The length of the outage is what is tested: the lease runs out in it.
    tokio::time::sleep(length / 2).await;
    world.proxy.outage(true);
    tokio::time::sleep(length / 2).await;
}

async fn end_state(world: &World, set: usize, handle: &StageSet<'_>) {
    let name = |map: &str| format!("{map}-{set}");
    // A request that hung may be carried out late, over something newer: that is looked at once it is ruled out.
    let converged = look(PATIENCE, || async {
        let maps = world.applied(&objects::configmaps(), &handle.name).await;
        let mut values = BTreeSet::new();
        for map in ["a", "c", "moves"] {
            values.insert(world.config_value(&name(map)).await.unwrap_or_default());
        }
        let recorded = [
            handle.recorded_configmaps("one").await,
            handle.recorded_configmaps("two").await,
        ];
        let good = maps == ["a", "c", "moves"].map(name)
            && values == BTreeSet::from(["4".to_owned()])
            && recorded == [BTreeSet::from([name("a")]), BTreeSet::from([name("c"), name("moves")])];
        if good {
            Ok(())
        } else {
            Err(format!("{maps:?} {values:?} {recorded:?}"))
        }
    });
    if let Err(seen) = converged.await {
        world.fail(&format!("{} did not converge: {seen}", handle.name)).await;
    }
    let events: u64 = handle
        .events()
        .await
        .iter()
        .map(|e| e["series"]["count"].as_u64().unwrap_or(1))
        .sum();
    // Four rollouts, and a failure told here and there.
    assert!(events <= 20, "{events} events about {}: a storm", handle.name);
}

/// Once all is well, nothing is written any more, and the lease has a holder that renews it.
async fn calm(world: &World) {
    let quiet = look(PATIENCE, || async {
        let mark = world.proxy.mark();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let tally = world.proxy.since(mark);
        let noise = format!("{}{}", tally.writes().lines(), tally.events().lines());
        if noise.is_empty() { Ok(()) } else { Err(noise) }
    });
    quiet.await.expect("quiet after the storm");
    let renewed = |lease: Option<Value>| lease.map(|l| l["spec"]["renewTime"].to_string());
    let lease = || async { renewed(world.cluster.get(&objects::leases(), &world.namespace, LEASE).await) };
    let before = lease().await;
    look(Duration::from_secs(20), || async {
        let now = lease().await;
        if now == before { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .await
    .expect("the lease is renewed");
}

/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn errors_timeouts_and_an_outage_in_the_middle_leave_no_trace() {
    let world = World::builder("chaos")
        .flag("--leader-elect")
        .seed(seed())
        .without_controller()
        .start()
        .await;
    let mut controller = world.replica("a");
    controller.until_ready().await;
    let restarts = AtomicU32::new(0);
    tokio::select! {
        () = rollouts(&world) => {}
        never = supervise(&mut controller, &restarts) => never,
    }
    let events = world.proxy.all().events().count();
    println!(
        "{} requests, {} of them for events; {} restarts",
        world.proxy.all().count(),
        events,
        restarts.load(Ordering::SeqCst)
    );
    // Each event may be sent again a few times while one request in ten fails.
    assert!(events <= SETS * 40, "{events} requests for events");
}
