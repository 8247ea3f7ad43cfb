//! The harness itself: it must not lie.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Match, Verb, When, World, objects, process};

/// A client that goes through the world's proxy, as the controller does.
async fn client(world: &World, account: &str) -> reqwest::Client {
    let kubeconfig = std::fs::read_to_string(world.kubeconfig_for(account).await).expect("a kubeconfig");
    let kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).expect("JSON");
    let token = kubeconfig["users"][0]["user"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let mut headers = http::HeaderMap::new();
    headers.insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    reqwest::Client::builder()
        .no_proxy()
        .default_headers(headers)
        .build()
        .expect("a client")
}

fn maps(world: &World) -> String {
    format!("{}/api/v1/namespaces/{}/configmaps", world.proxy.url(), world.namespace)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_counts_what_passes_through() {
    let world = World::builder("proxy-count").without_controller().start().await;
    let client = client(&world, "tenant").await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
    let mark = world.proxy.mark();
    let created = client.post(maps(&world)).json(&map).send().await.expect("an answer");
    assert_eq!(created.status(), 201);
    let dry = client
        .post(format!("{}?dryRun=All", maps(&world)))
        .json(&map)
        .send()
        .await
        .expect("an answer");
    assert_eq!(dry.status(), 409, "the server itself answers");
    client
        .get(format!("{}/a", maps(&world)))
        .send()
        .await
        .expect("an answer");
    let tally = world.proxy.since(mark);
    assert_eq!(
        (tally.count(), tally.writes().count(), tally.dry_runs().count()),
        (3, 1, 1),
        "{}",
        tally.lines()
    );
    assert_eq!(
        tally.gets_per_object().into_iter().collect::<Vec<_>>(),
        [(format!("configmaps/{}/a", world.namespace), 1)]
    );
    assert!(
        world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "a")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_fails_delays_and_cuts_as_told() {
    let world = World::builder("proxy-fault").without_controller().start().await;
    let client = client(&world, "tenant").await;
    let get = || client.get(maps(&world)).send();

    world.proxy.fail(Match::any().resource("configmaps"), When::Nth(2), 429);
    assert_eq!(get().await.expect("an answer").status(), 200);
    assert_eq!(get().await.expect("an answer").status(), 429);
    assert_eq!(get().await.expect("an answer").status(), 200);
    world.proxy.heal();

    world
        .proxy
        .delay(Match::any().resource("configmaps"), Duration::from_millis(300));
    let began = Instant::now();
    get().await.expect("an answer");
    assert!(began.elapsed() >= Duration::from_millis(300));
    world.proxy.heal();

    world.proxy.cut(Match::any().resource("configmaps"), When::Always);
    assert!(get().await.is_err(), "the connection is cut");
    world.proxy.heal();

    world.proxy.outage(true);
    assert!(get().await.is_err(), "nobody is there");
    world.proxy.heal();
    assert_eq!(get().await.expect("an answer").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_is_a_write_that_happened() {
    let world = World::builder("proxy-answer").without_controller().start().await;
    let client = client(&world, "tenant").await;
    world.proxy.cut_answer(Match::writes().verb(Verb::Create), When::Nth(1));
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "lost" } });
    assert!(client.post(maps(&world)).json(&map).send().await.is_err());
    assert!(
        world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "lost")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_streamed_and_ends_with_an_outage() {
    let world = World::builder("proxy-watch").without_controller().start().await;
    let client = client(&world, "tenant").await;
    let mut watch = client
        .get(format!("{}?watch=true", maps(&world)))
        .send()
        .await
        .expect("a watch");
    world
        .cluster
        .apply_yaml(&objects::configmap("seen", "1"), &world.namespace)
        .await;
    let mut text = String::new();
    while !text.contains("\"seen\"") {
        let chunk = tokio::time::timeout(Duration::from_secs(5), watch.chunk())
            .await
            .expect("in time")
            .expect("a chunk");
        text += &String::from_utf8_lossy(&chunk.expect("the watch goes on"));
    }
    world.proxy.outage(true);
    let end = tokio::time::timeout(Duration::from_secs(5), async {
        while let Ok(Some(_)) = watch.chunk().await {}
    })
    .await;
    assert!(end.is_ok(), "the watch ends with the outage");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_killed_at_the_write_that_was_named() {
    use crate::support::Moment;
    for (moment, exists) in [(Moment::Before, false), (Moment::After, true)] {
        let world = World::builder("proxy-kill").without_controller().start().await;
        let client = client(&world, "tenant").await;
        let mut victim = std::process::Command::new("sleep").arg("60").spawn().expect("a victim");
        world.proxy.kill_at_write(victim.id(), 2, moment);
        for (name, lives) in [("first", true), ("second", false)] {
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
            let sent = client.post(maps(&world)).json(&map).send().await;
            assert_eq!(sent.is_ok(), lives, "{name} {moment:?}");
        }
        assert!(!victim.wait().expect("a status").success());
        assert_eq!(world.proxy.killed_at().expect("a kill point").verb, Verb::Create);
        assert_eq!(
            world
                .cluster
                .exists(&objects::configmaps(), &world.namespace, "second")
                .await,
            exists,
            "{moment:?}"
        );
        assert_eq!(process::rss_kib(victim.id()), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenant_has_rights_in_its_namespace_alone() {
    let world = World::builder("tenant").without_controller().start().await;
    let client = client(&world, "tenant").await;
    assert_eq!(client.get(maps(&world)).send().await.expect("an answer").status(), 200);
    let elsewhere = format!("{}/api/v1/namespaces/kube-system/configmaps", world.proxy.url());
    assert_eq!(client.get(elsewhere).send().await.expect("an answer").status(), 403);
}
