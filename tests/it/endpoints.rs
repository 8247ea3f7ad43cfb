//! The process as an operator meets it: probes, metrics, exit codes.

use std::{process::Command, time::Duration};

use serde_json::json;

use crate::support::{
    Controller, Launch, Match, Verb, When, World, look,
    objects::configmap,
    process,
    stageset::{stage, stageset},
};

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_are_served() {
    let world = World::start("probes").await;
    let controller = world.controller_ref();
    assert_eq!(
        controller.get("healthz").await.expect("an answer"),
        (200, "ok".to_owned())
    );
    assert_eq!(
        controller.get("readyz").await.expect("an answer"),
        (200, "ok".to_owned())
    );
    assert_eq!(controller.get("nothing").await.expect("an answer").0, 404);

    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let labels = [
        format!("namespace=\"{}\"", world.namespace),
        "name=\"shop\"".to_owned(),
        "reason=\"Succeeded\"".to_owned(),
    ];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    look(Duration::from_secs(10), || async {
        let count = controller.metric("stageset_reconcile_total", &labels).await;
        if count >= 1.0 {
            Ok(())
        } else {
            Err(controller.metrics_text().await)
        }
    })
    .await
    .expect("the pass is counted");
    let text = controller.metrics_text().await;
    for series in [
        "workqueue_depth",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "controller_runtime_terminal_reconcile_errors_total",
        "process_resident_memory_bytes",
    ] {
        assert!(text.contains(series), "no {series} in\n{text}");
    }
    let patched = [
        "code=\"200\"",
        "method=\"PATCH\"",
        &format!("host=\"{}\"", host(&world)),
    ];
    assert!(
        controller.metric("rest_client_requests_total", &patched).await > 1.0,
        "no {patched:?} in\n{text}"
    );

    // One that no retry can help.
    let bad = stageset("bad").stage(stage("app", "app")).stage(stage("app", "app"));
    bad.apply(&world).await.until_reason("InvalidSpec").await;
    look(Duration::from_secs(10), || async {
        let series = "controller_runtime_terminal_reconcile_errors_total";
        let count = controller.metric(series, &["controller=\"stageset\""]).await;
        if count >= 1.0 { Ok(()) } else { Err(count) }.map_err(|count| count.to_string())
    })
    .await
    .expect("the terminal outcome is counted");
}

fn host(world: &World) -> String {
    world.proxy.url().trim_start_matches("http://").to_owned()
}

/// Rules: run 24 start
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_an_api_server_is_alive_but_not_ready_and_heals() {
    let world = World::builder("no-server").without_controller().start().await;
    world.proxy.outage(true);
    let mut controller = world.replica("a");
    look(Duration::from_secs(20), || async {
        match controller.get("healthz").await {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("alive");
    assert_ne!(controller.get("readyz").await.expect("an answer").0, 200);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(controller.running(), "{}", controller.tail(20));
    world.proxy.heal();
    controller.until_ready().await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("shop")
        .stage(stage("app", "app"))
        .apply(&world)
        .await
        .until_ready()
        .await;
}

/// Rules: run 24 shutdown
#[tokio::test(flavor = "multi_thread")]
async fn a_polite_end_is_quick_and_clean() {
    let mut world = World::start("sigterm").await;
    world
        .publish(
            "app",
            &[("claim.yaml", &crate::support::objects::unbound_claim("never"))],
        )
        .await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_phase("app", "Verifying").await;
    let began = std::time::Instant::now();
    let status = world.controller().stop().await;
    assert_eq!(status.code(), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        began.elapsed()
    );
}

/// The place in the queue is given up, too: what only waits for it need not begin.
///
/// Rules: run 24 shutdown
#[tokio::test(flavor = "multi_thread")]
async fn what_only_queues_when_the_end_is_asked_for_does_not_begin() {
    let mut world = World::builder("sigterm-queue").flag("--concurrent=1").start().await;
    let slow = Match::writes().resource("configmaps");
    world.proxy.delay(slow.clone(), Duration::from_secs(15));
    for name in ["first", "second"] {
        world.publish(name, &[("m.yaml", &configmap(name, "1"))]).await;
    }
    let sent = || world.proxy.all().matching(&slow).count();
    stageset("first").stage(stage("app", "first")).apply(&world).await;
    look(Duration::from_secs(30), || async {
        if sent() == 1 {
            Ok(())
        } else {
            Err("no write".to_owned())
        }
    })
    .await
    .expect("a step is under way");
    stageset("second").stage(stage("app", "second")).apply(&world).await;
    look(Duration::from_secs(12), || async {
        match world.controller_ref().metric("workqueue_depth", &[]).await {
            0.0 => Err(()),
            _ => Ok(()),
        }
        .map_err(|()| "nothing queues".to_owned())
    })
    .await
    .expect("the other one queues");
    assert_eq!(world.controller().stop().await.code(), Some(0));
    assert_eq!(world.proxy.all().matching(&slow).count(), 1);
}

/// A restored cluster has lower versions: watches that go on from those of before stay silent, and what is known looks
/// newer than what the server says.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_was_restored_is_read_anew_by_a_fresh_start() {
    let mut world = World::start("restored").await;
    world
        .proxy
        .old_list(Match::any().verb(Verb::List).resource("stagesets"));
    let status = world.controller().until_ended(Duration::from_secs(40)).await;
    let log = world.controller_ref().log();
    assert_eq!(status.and_then(|s| s.code()), Some(1), "{log}");
    assert!(log.contains("as after a restore from a backup"), "{log}");
    world.proxy.heal();
    world.controller().start_again();
    world.controller().until_ready().await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
}

/// Writes that keep being refused as outdated are not repeated without a pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_cannot_be_written_is_tried_at_leisure() {
    let world = World::start("overtaken").await;
    let status = Match::writes().resource("stagesets").subresource("status");
    world.proxy.fail(status.clone(), When::Always, 409);
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    look(Duration::from_secs(30), || async {
        match world.proxy.all().matching(&status).count() {
            0 => Err("it has not written".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("a try");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = world.proxy.all().matching(&status).count();
    assert!((2..15).contains(&tries), "{tries} tries in five seconds");
    world.proxy.heal();
    shop.until_ready().await;
}

/// Work goes on without a kind of source that cannot be listed, and readiness says the truth (decisions 11).
#[tokio::test(flavor = "multi_thread")]
async fn a_source_kind_that_cannot_be_listed_is_not_ready_and_named() {
    let world = World::builder("unlisted").without_controller().start().await;
    let list = Match::any().verb(Verb::List).resource("gitrepositories");
    world.proxy.fail(list, When::Always, 403);
    let mut controller = world.replica("a");
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(40)).await;
    let what = "[-]GitRepository failed: not listed yet";
    world
        .stays("not ready", Duration::from_secs(7), || async {
            match controller.get("readyz").await {
                Ok((500, body)) if body.contains(what) && !body.contains("Bucket") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    world.proxy.heal();
    controller.until_ready().await;
}

/// Rules: run 24 start
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_heals() {
    let world = World::builder("prerequisites").without_controller().start().await;
    let namespace = &world.namespace;
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "new", "namespace": namespace } });
    world.cluster.apply(&account, namespace).await;
    let mut controller = Controller::start(Launch {
        name: "prerequisites".into(),
        kubeconfig: world.kubeconfig_for("new").await,
        flags: vec![format!("--watch-namespaces={namespace}")],
        ..Launch::default()
    });
    let complaint = |resource: &str, verb: &str| {
        format!(
            "\"resource\":\"{resource}.stages.metio.wtf\",\"reason\":\"the verb {verb} is not permitted in the namespace {namespace}: "
        )
    };
    let wanted =
        ["stagesets", "stageinventories"].map(|resource| ["list", "watch"].map(|verb| complaint(resource, verb)));
    let said = look(Duration::from_secs(20), || async {
        let log = controller.log();
        match wanted.iter().flatten().find(|text| !log.contains(*text)) {
            None => Ok(()),
            Some(text) => Err(format!("no {text} in\n{log}")),
        }
    });
    said.await.unwrap_or_else(|seen| panic!("{seen}"));
    assert!(controller.running());
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "new", "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stageset-controller-it" },
        "subjects": [{ "kind": "ServiceAccount", "name": "new", "namespace": namespace }],
    });
    world.cluster.apply(&binding, namespace).await;
    controller.until_ready().await;
    look(Duration::from_secs(45), || async {
        let log = controller.log();
        if log.contains("everything the controller needs of the cluster is there now") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await
    .unwrap_or_else(|log| panic!("{log}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_only_an_interruption() {
    let world = World::start("reconnect").await;
    for value in ["1", "2", "3"] {
        world.proxy.drop_connections();
        let revision = world.publish("app", &[("m.yaml", &configmap("map", value))]).await;
        let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
        shop.until_rolled_out("app", &revision).await;
    }
}

fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_stageset-controller"))
}

#[test]
fn wrong_flags_are_refused_before_any_contact_with_a_server() {
    for args in [
        vec!["--no-such-flag"],
        vec!["--default-interval=0s"],
        vec!["--inventory-shard-cap=0"],
        vec!["--log-level=loud"],
        vec!["--events-addr=nowhere"],
    ] {
        let output = binary()
            .args(&args)
            .env("KUBECONFIG", "/nonexistent")
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let name = args[0].split('=').next().unwrap_or_default();
        assert!(
            said.contains(name.trim_start_matches('-')) || said.contains("interval") || said.contains("level"),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn a_missing_kubeconfig_ends_with_one() {
    let output = binary()
        .env("KUBECONFIG", "/nonexistent")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("/nonexistent"), "{said}");
}

#[test]
fn help_names_every_flag_of_this_harness() {
    let text = process::run(binary().arg("--help")).expect("help");
    for flag in [
        "--watch-namespaces",
        "--leader-elect",
        "--events-addr",
        "--insecure-allow-loopback",
        "--concurrent",
        "--max-teardown-wait",
    ] {
        assert!(text.contains(flag), "no {flag} in\n{text}");
    }
}
