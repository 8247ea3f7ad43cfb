//! Two replicas, one leader.

use std::time::{Duration, Instant};

use crate::support::{
    Controller, Match, Verb, When, World, look,
    objects::{self, configmap},
    process,
    stageset::{stage, stageset},
};

const LEASE: &str = "stageset-controller.stages.metio.wtf";

async fn holder(world: &World) -> Option<String> {
    let lease = world.cluster.get(&objects::leases(), &world.namespace, LEASE).await?;
    lease["spec"]["holderIdentity"]
        .as_str()
        .filter(|h| !h.is_empty())
        .map(str::to_owned)
}

/// A leading replica and a standby.
async fn pair(name: &str) -> (World, Controller, Controller) {
    let world = World::builder(name)
        .flag("--leader-elect")
        .without_controller()
        .start()
        .await;
    let mut leader = world.replica("a");
    leader.until_ready().await;
    look(Duration::from_secs(30), || async {
        holder(&world).await.ok_or("nobody holds the lease".to_owned())
    })
    .await
    .expect("a leader");
    let mut standby = world.replica("b");
    standby.until_ready().await;
    (world, leader, standby)
}

/// Rules: run 24 leader
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_ready_and_takes_over_when_the_leader_dies() {
    let (world, mut leader, mut standby) = pair("leader").await;
    let before = holder(&world).await.expect("a leader");
    assert!(before.contains('_'), "the holder is <hostname>_<uuid>: {before}");
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    shop.until_event("Succeeded").await;
    assert_eq!(shop.event_count("Succeeded").await, 1, "one of them did the work");

    let told = look(Duration::from_secs(10), || async {
        let events = world.cluster.list(&objects::events(), &world.namespace, "").await;
        let found = events.iter().find(|e| e["reason"] == "LeaderElection").cloned();
        found.ok_or_else(|| format!("{events:?}"))
    })
    .await
    .expect("an event on the lease");
    assert_eq!(told["regarding"]["kind"], "Lease");
    assert_eq!(told["regarding"]["name"], LEASE);
    assert!(told["regarding"]["uid"].is_string(), "{told}");
    assert_eq!(told["type"], "Normal");
    assert_eq!(told["note"], format!("{before} became leader"));

    leader.kill();
    let began = Instant::now();
    let revision = world.publish("app", &[("m.yaml", &configmap("map", "2"))]).await;
    shop.until_rolled_out("app", &revision).await;
    println!("the standby rolled out {:?} after the leader's death", began.elapsed());
    assert_ne!(holder(&world).await.expect("a leader"), before);
    assert!(standby.running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_lost_its_lease_ends_itself() {
    let (world, mut leader, mut standby) = pair("frozen").await;
    let before = holder(&world).await.expect("a leader");
    process::freeze(leader.pid());
    look(Duration::from_secs(40), || async {
        let now = holder(&world).await;
        if now.as_deref() == Some(&before) {
            Err(format!("{now:?} still leads"))
        } else {
            Ok(())
        }
    })
    .await
    .expect("the standby takes over");
    process::thaw(leader.pid());
    let status = leader.until_ended(Duration::from_secs(20)).await;
    assert_eq!(status.and_then(|s| s.code()), Some(1), "{}", leader.tail(20));
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("shop")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    assert!(standby.running());
}

/// A request under way outlives the lease's duration; the standby must not begin beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_end_keeps_the_lease_until_its_steps_have_ended() {
    let (world, mut leader, mut standby) = pair("drain").await;
    let before = holder(&world).await.expect("a leader");
    let slow = Match::writes().resource("configmaps");
    world.proxy.delay(slow.clone(), Duration::from_secs(20));
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    look(Duration::from_secs(30), || async {
        let sent = world.proxy.all().matching(&slow).count();
        if sent == 1 {
            Ok(())
        } else {
            Err(format!("{sent} writes"))
        }
    })
    .await
    .expect("a step is under way");
    process::terminate(leader.pid());
    let began = Instant::now();
    while leader.running() {
        let now = holder(&world).await;
        assert!(
            !leader.running() || now.as_deref() == Some(&before),
            "{now:?} leads while the step of {before} goes on"
        );
        assert!(began.elapsed() < Duration::from_secs(40), "it does not end");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(
        began.elapsed() > Duration::from_secs(15),
        "it ended after {:?}",
        began.elapsed()
    );
    let status = leader.until_ended(Duration::from_secs(1)).await;
    assert_eq!(status.and_then(|s| s.code()), Some(0), "{}", leader.tail(20));
    assert_eq!(
        world.proxy.all().matching(&slow).count(),
        1,
        "the standby did not begin beside it"
    );
    world.proxy.heal();
    // The lease is not handed over but runs out.
    look(Duration::from_secs(40), || async {
        let now = holder(&world).await;
        if now.as_ref() == Some(&before) {
            Err(format!("{now:?}"))
        } else {
            Ok(())
        }
    })
    .await
    .expect("a successor");
    let revision = world.publish("app", &[("m.yaml", &configmap("map", "2"))]).await;
    shop.until_rolled_out("app", &revision).await;
    assert!(standby.running());
}

/// Whoever else writes to the lease, and a renewal that fails or hangs: there is time for another one.
#[tokio::test(flavor = "multi_thread")]
async fn single_failures_cost_no_leadership() {
    let (world, mut leader, _standby) = pair("renewal").await;
    let before = holder(&world).await.expect("a leader");
    let renewal = Match::any().verb(Verb::Update).resource("leases");
    for fault in ["conflict", "error", "hang"] {
        let mark = world.proxy.mark();
        match fault {
            "conflict" => world.proxy.fail(renewal.clone(), When::First(2), 409),
            "error" => world.proxy.fail(renewal.clone(), When::First(2), 500),
            _ => world
                .proxy
                .delay_some(renewal.clone(), When::First(1), Duration::from_secs(35)),
        }
        look(Duration::from_secs(30), || async {
            let renewals = world.proxy.since(mark).matching(&renewal);
            let good = renewals.records().iter().filter(|r| r.status == Some(200)).count();
            if good > 1 { Ok(()) } else { Err(renewals.lines()) }
        })
        .await
        .unwrap_or_else(|seen| panic!("never renewed after a {fault}:\n{seen}"));
        world.proxy.heal();
        assert!(leader.running(), "a {fault} ended the leader\n{}", leader.tail(10));
        assert_eq!(holder(&world).await.as_ref(), Some(&before), "{fault}");
    }
}

/// A holder whose clock is behind ours renews all the same.
///
/// Rules: run 24 leader
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_taken_for_what_another_clock_says() {
    let world = World::builder("skewed")
        .flag("--leader-elect")
        .without_controller()
        .start()
        .await;
    let lease = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": LEASE, "namespace": world.namespace },
        "spec": { "holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    world.cluster.apply(&lease, &world.namespace).await;
    let mut standby = world.replica("a");
    standby.until_ready().await;
    let looks = Match::any().verb(Verb::Get).resource("leases");
    look(Duration::from_secs(30), || async {
        match world.proxy.all().matching(&looks).count() {
            0..3 => Err("it has not looked yet".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("it looks at the lease");
    assert_eq!(holder(&world).await.as_deref(), Some("other"));
    // Unchanged for its whole duration, it is nobody's.
    look(Duration::from_secs(30), || async {
        match holder(&world).await {
            Some(holder) if holder != "other" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("it takes over");
}
