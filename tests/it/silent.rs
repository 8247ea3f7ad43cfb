//! Servers that take what they are sent and never answer: who waits for one holds nobody else up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::remote::{admin, far, furnish, maps, names, publish, remote, secret, until_message};
use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, configmap},
    stageset::{StageSet, stage, stageset},
};

/// More StageSets than the controller runs at once.
const MANY: usize = 24;
/// An answer that comes just before it is given up.
const SLOW: Duration = Duration::from_secs(20);
/// What a small StageSet may take beside them; alone it takes well under a second.
const USUAL: Duration = Duration::from_secs(6);

/// A relay to a server, until it falls silent or slow.
struct Relay {
    port: u16,
    silent: Arc<AtomicBool>,
    /// Each piece of an answer comes late by [`SLOW`].
    slow: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    /// What has been sent to the server since it is silent.
    unanswered: Arc<AtomicUsize>,
}

impl Relay {
    async fn to(server: &str) -> Self {
        let address = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let relay = Self {
            port: listener.local_addr().expect("an address").port(),
            silent: Arc::default(),
            slow: Arc::default(),
            connections: Arc::default(),
            unanswered: Arc::default(),
        };
        let (silent, slow, connections) = (relay.silent.clone(), relay.slow.clone(), relay.connections.clone());
        let (asked, told) = (relay.unanswered.clone(), Arc::default());
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                if silent.load(Ordering::SeqCst) {
                    held.push(near);
                    continue;
                }
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = TcpStream::connect(&address).await.expect("the server").into_split();
                let never = Arc::default();
                tokio::spawn(pass_on(near_in, far_out, silent.clone(), never, asked.clone()));
                tokio::spawn(pass_on(
                    far_in,
                    near_out,
                    silent.clone(),
                    slow.clone(),
                    Arc::clone(&told),
                ));
            }
        });
        relay
    }

    async fn black_hole() -> Self {
        let relay = Self::to("").await;
        relay.silent.store(true, Ordering::SeqCst);
        relay
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

/// Passes on what comes, until the relay falls silent; then it only counts that something came.
async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    silent: Arc<AtomicBool>,
    slow: Arc<AtomicBool>,
    lost: Arc<AtomicUsize>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if silent.load(Ordering::SeqCst) {
            lost.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        if slow.load(Ordering::SeqCst) {
            tokio::time::sleep(SLOW).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// A StageSet of this cluster is Ready in about the time it always takes.
async fn a_local_one_is_soon_ready(world: &World) {
    world.publish("local", &[("map.yaml", &configmap("local", "1"))]).await;
    let local = stageset("local").stage(stage("app", "local")).apply(world).await;
    let began = Instant::now();
    local.until_ready_within(USUAL).await;
    println!("a local one was Ready after {:?}", began.elapsed());
}

async fn through(world: &World, far: &crate::support::Cluster, relay: &Relay) {
    let mut config = admin(far);
    config["clusters"][0]["cluster"]["server"] = relay.url().into();
    secret(world, "far", "value", &config).await;
}

/// Rules: decisions 4 silent
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_never_answers_holds_up_nobody_and_is_not_asked_by_each() {
    let world = World::start("black-hole").await;
    let far = far().await;
    let hole = Relay::black_hole().await;
    through(&world, &far, &hole).await;
    publish(&world, "app", &["a"]).await;
    for at in 0..MANY {
        let spec = remote("app", "far");
        let mut object = spec.object(&world.namespace);
        object["metadata"]["name"] = format!("far-{at}").into();
        world.cluster.apply(&object, &world.namespace).await;
    }
    look(Duration::from_secs(20), || async {
        match hole.connections.load(Ordering::SeqCst) {
            0 => Err("nobody has connected".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("it is asked");
    a_local_one_is_soon_ready(&world).await;
    // One of them has waited for all.
    for at in 0..MANY {
        let set = StageSet::named(&world, &format!("far-{at}")).await;
        let message = until_message(&set, "connect to target cluster").await;
        assert!(message.contains("Secret") && message.contains("far"), "{message}");
    }
    let connections = hole.connections.load(Ordering::SeqCst);
    assert!(connections <= 4, "{connections} connections for {MANY} StageSets");
}

/// Rules: decisions 4 silent
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_falls_silent_leaves_slots_to_the_others() {
    let world = World::start("silent").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    let relay = Relay::to(far.server()).await;
    through(&world, &far, &relay).await;
    let mut all = Vec::new();
    for at in 0..MANY {
        let name = format!("app-{at}");
        publish(&world, &name, &[&name]).await;
        all.push(name);
    }
    for name in &all {
        remote(name, "far").apply(&world).await;
    }
    for name in &all {
        StageSet::named(&world, name).await.until_ready().await;
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(maps(&far, &world.namespace).await, names(&all));
    relay.silent.store(true, Ordering::SeqCst);
    for name in &all {
        publish(&world, name, &[name, &format!("{name}-more")]).await;
    }
    look(Duration::from_secs(20), || async {
        match relay.unanswered.load(Ordering::SeqCst) {
            0 => Err("nothing was sent to it".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("steps wait for the silent cluster");
    a_local_one_is_soon_ready(&world).await;
}

/// Neither those that go to a slow cluster nor those that have left it and only prune there hold up the others.
///
/// Rules: decisions 4 silent
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_answers_late_leaves_slots_to_the_others() {
    let world = World::builder("late").flag("--concurrent=2").start().await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    let relay = Relay::to(far.server()).await;
    through(&world, &far, &relay).await;
    let all: Vec<String> = (0..8).map(|at| format!("app-{at}")).collect();
    for name in &all {
        publish(&world, name, &[name]).await;
        remote(name, "far").apply(&world).await;
    }
    for name in &all {
        StageSet::named(&world, name).await.until_ready().await;
    }
    relay.slow.store(true, Ordering::SeqCst);
    let (stay, leave) = all.split_at(4);
    for name in leave {
        let mut set = StageSet::named(&world, name).await;
        set.patch_spec(json!({ "kubeConfig": null })).await;
    }
    // The first is through with this cluster, and at the other.
    look(Duration::from_secs(30), || async {
        for name in leave {
            if world.config_value(name).await.is_some() {
                return Ok(());
            }
        }
        Err("none is applied here".to_owned())
    })
    .await
    .expect("one is applied here");
    for name in stay {
        publish(&world, name, &[name, &format!("{name}-more")]).await;
    }
    a_local_one_is_soon_ready(&world).await;
}

/// A kind that nobody refers to, or a namespace that is not to be had, is not waited for.
///
/// Rules: run 2.4 unlisted
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_listed_holds_up_nothing_else() {
    let mut world = World::builder("unlisted").without_controller().start().await;
    let there = world.another_namespace("b").await;
    let both = format!("--watch-namespaces={there},{}", world.namespace);
    world.set_flag("--watch-namespaces", &both);
    let lists = |resource: &str| Match::any().verb(Verb::List).resource(resource);
    world.proxy.fail(lists("buckets"), When::Always, 403);
    world
        .proxy
        .fail(lists("stageinventories").namespace(&there), When::Always, 403);
    world
        .proxy
        .fail(lists("externalartifacts").namespace(&there), When::Always, 500);
    let controller = world.replica("a");
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(30)).await;
    // What is recorded there is not known, so nothing is done there yet.
    let source = serde_json::json!({ "name": "app", "namespace": world.namespace });
    let other = stageset("other").stage(crate::support::stageset::stage_from("app", source));
    let other = other.apply_in(&world, &there).await;
    let revision = world.publish("app", &[("map.yaml", &configmap("map", "2"))]).await;
    shop.until_rolled_out("app", &revision).await;
    assert!(!world.cluster.exists(&objects::configmaps(), &there, "map").await);
    world.proxy.heal();
    other.until_ready().await;
    drop(controller);
}
