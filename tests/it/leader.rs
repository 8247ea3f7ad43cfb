//! Two replicas, one leader.

use std::time::{Duration, Instant};

use crate::support::{
    Controller, World, look,
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
