//! The process as an operator meets it: probes, metrics, exit codes.

use std::{process::Command, time::Duration};

use crate::support::{
    World, look,
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
