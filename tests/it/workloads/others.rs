//! Others who change the same objects: people with kubectl, autoscalers, helm.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    Match, World, look,
    objects::{self, configmap, deployment, multi},
    process,
    stageset::{StageSet, stage, stageset},
};

/// A Deployment that leaves its number of pods to others.
fn unsized_deployment(name: &str) -> String {
    deployment(name, "web:1", 1).replace("  replicas: 1\n", "")
}

fn autoscaler(least: u32) -> String {
    format!(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{ name: web }}\nspec:\n  \
         scaleTargetRef: {{ apiVersion: apps/v1, kind: Deployment, name: web }}\n  minReplicas: {least}\n  maxReplicas: 5\n"
    )
}

async fn replicas(world: &World) -> Value {
    let live = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    live["spec"]["replicas"].clone()
}

/// The autoscaler looks every 15 s.
async fn until_scaled(world: &World, count: u32) {
    let scaled = look(Duration::from_secs(45), || async {
        let now = replicas(world).await;
        if now == count { Ok(()) } else { Err(now.to_string()) }
    });
    if let Err(now) = scaled.await {
        world.fail(&format!("the autoscaler left it at {now}")).await;
    }
}

/// Passes find nothing to do: the number of pods stays, and nothing is written to the Deployment.
async fn is_not_fought_over(world: &World, web: &StageSet<'_>) {
    let mark = world.proxy.mark();
    for _ in 0..4 {
        web.reconcile().await;
        assert_eq!(replicas(world).await, 3);
    }
    let writes = world
        .proxy
        .since(mark)
        .matching(&Match::writes().resource("deployments"));
    assert!(writes.is_empty(), "\n{}", writes.lines());
    for reason in ["DriftCorrected", "DriftLoop"] {
        assert_eq!(web.event_count(reason).await, 0, "{reason}");
    }
    web.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_is_not_fought_where_the_manifest_names_no_replicas() {
    let world = World::start("hpa").await;
    let release = |image: &str| multi(&[unsized_deployment("web").replace("web:1", image), autoscaler(3)]);
    world.publish("web", &[("web.yaml", &release("web:1"))]).await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    until_scaled(&world, 3).await;
    is_not_fought_over(&world, &web).await;
    // Not even by a new revision, which is applied.
    let revision = world.publish("web", &[("web.yaml", &release("web:2"))]).await;
    web.until_rolled_out("web", &revision).await;
    assert_eq!(replicas(&world).await, 3);
}

/// Rules: decisions 1.4
#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_is_not_fought_where_a_rule_leaves_replicas_to_it() {
    let world = World::start("hpa-ignore").await;
    let release = |image: &str| multi(&[deployment("web", image, 1), autoscaler(3)]);
    world.publish("web", &[("web.yaml", &release("web:1"))]).await;
    let ignore = json!([{ "paths": ["/spec/replicas"], "target": { "kind": "Deployment" } }]);
    let web = stageset("web")
        .set("ignore", ignore)
        .stage(stage("web", "web"))
        .apply(&world)
        .await;
    web.until_ready().await;
    until_scaled(&world, 3).await;
    is_not_fought_over(&world, &web).await;
    let revision = world.publish("web", &[("web.yaml", &release("web:2"))]).await;
    web.until_rolled_out("web", &revision).await;
    assert_eq!(replicas(&world).await, 3);
}

/// Rules: decisions 6 loop
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_others_keep_taking_is_named_once_and_fought_less_and_less() {
    let world = World::start("loop").await;
    world
        .publish("web", &[("web.yaml", &deployment("web", "web:1", 1))])
        .await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    for round in 0..6 {
        let scale = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": { "replicas": 3 } });
        world.cluster.apply(&scale, &world.namespace).await;
        web.reconcile().await;
        if round < 4 {
            assert_eq!(replicas(&world).await, 1, "round {round}: put back");
        }
    }
    let event = web.until_event("DriftLoop").await;
    let note = event["note"].as_str().unwrap_or_default();
    for part in ["Deployment", "/web", "/spec/replicas", "against it;"] {
        assert!(note.contains(part), "{note}");
    }
    assert_eq!(event["type"], "Warning");
    assert_eq!(web.event_count("DriftLoop").await, 1);
    assert_eq!(replicas(&world).await, 3, "no more at every pass");
}

async fn app_map(world: &World) -> Value {
    world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "app")
        .await
}

fn kubectl(world: &World, args: &[&str]) -> String {
    let all: Vec<&str> = ["-n", world.namespace.as_str()].iter().chain(args).copied().collect();
    world.cluster.plane.kubectl(&all).unwrap_or_else(|e| panic!("{e}"))
}

/// A script that stands for a person at an editor.
fn editor(world: &World, expression: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = world.scratch("editor").join("edit");
    std::fs::write(&path, format!("#!/bin/sh\nexec sed -i '{expression}' \"$1\"\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    path
}

/// Rules: run 16.3, run 16.4 kubectl
#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_edited_is_put_back_and_what_others_own_stays() {
    let world = World::start("kubectl").await;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: app }\ndata: { value: first, other: stays }\n";
    world.publish("app", &[("map.yaml", map)]).await;
    let app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;

    let edit = editor(&world, "s/value: first/value: edited/");
    let mut command = world.cluster.plane.tool("kubectl");
    command
        .args(["-n", &world.namespace, "edit", "configmap", "app"])
        .env("KUBE_EDITOR", &edit);
    process::run(&mut command).expect("kubectl edit");
    assert_eq!(app_map(&world).await["data"]["value"], "edited");
    kubectl(
        &world,
        &[
            "annotate",
            "configmap",
            "app",
            "--field-manager=on-call",
            "example.com/ticket=42",
        ],
    );
    kubectl(
        &world,
        &[
            "label",
            "configmap",
            "app",
            "--field-manager=on-call",
            "example.com/team=blue",
        ],
    );
    app.reconcile().await;
    let map = app_map(&world).await;
    assert_eq!(map["data"], json!({ "value": "first", "other": "stays" }));
    assert_eq!(map["metadata"]["annotations"]["example.com/ticket"], "42", "{map}");
    assert_eq!(map["metadata"]["labels"]["example.com/team"], "blue", "{map}");
    let event = app.until_event("DriftCorrected").await;
    assert!(event["note"].to_string().contains("app"), "{event}");

    // A client-side apply, an apply by the server and a patch: each is put back, and no trace of it is left.
    let file = world.scratch("kubectl").join("map.yaml");
    std::fs::write(&file, configmap("app", "applied")).expect("a file");
    let file = file.to_str().expect("a path").to_owned();
    for args in [
        vec!["apply", "-f", &file],
        vec!["apply", "--server-side", "--force-conflicts", "-f", &file],
        vec![
            "patch",
            "configmap",
            "app",
            "--type=merge",
            "-p",
            r#"{"data":{"value":"patched"}}"#,
        ],
    ] {
        kubectl(&world, &args);
        assert_ne!(app_map(&world).await["data"]["value"], "first", "{args:?}");
        app.reconcile().await;
        let map = app_map(&world).await;
        assert_eq!(map["data"], json!({ "value": "first", "other": "stays" }), "{args:?}");
        let managers = map["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let left = managers
            .iter()
            .any(|m| m["manager"].as_str().is_some_and(|m| m.starts_with("kubectl")));
        assert!(!left, "{args:?} left its fields behind: {map}");
        assert!(
            map["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].is_null(),
            "{map}"
        );
        assert_eq!(
            map["metadata"]["annotations"]["example.com/ticket"], "42",
            "{args:?}: {map}"
        );
    }
    app.until_ready().await;
}

/// The helm that comes with the control plane's tools.
fn helm(world: &World, args: &[&str]) -> String {
    let mut command = world.cluster.plane.tool("helm");
    command.args(["-n", world.namespace.as_str()]).args(args);
    process::run(&mut command).unwrap_or_else(|e| panic!("{e}"))
}

/// A chart with one ConfigMap.
fn chart(world: &World) -> String {
    let folder = world.scratch("chart");
    std::fs::create_dir_all(folder.join("templates")).expect("a folder");
    std::fs::write(folder.join("Chart.yaml"), "apiVersion: v2\nname: app\nversion: 1.0.0\n").expect("a file");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: app\n  labels: { app.kubernetes.io/managed-by: Helm }\n\
               data:\n  value: {{ .Values.value | quote }}\n  helm: only\n";
    std::fs::write(folder.join("templates/map.yaml"), map).expect("a file");
    folder.to_str().expect("a path").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_a_helm_release_is_shared_by_field() {
    let world = World::start("helm").await;
    let chart = chart(&world);
    helm(&world, &["install", "rel", &chart, "--set", "value=helm"]);
    let before = super::uid(&world, &objects::configmaps(), "app").await;
    world.publish("app", &[("map.yaml", &configmap("app", "ours"))]).await;
    let app = stageset("app").stage(stage("app", "app")).apply(&world).await;
    app.until_ready().await;
    let map = app_map(&world).await;
    assert_eq!(map["metadata"]["uid"], before.as_str(), "taken over, not replaced");
    assert_eq!(map["data"], json!({ "value": "ours", "helm": "only" }));
    assert_eq!(
        map["metadata"]["annotations"]["meta.helm.sh/release-name"], "rel",
        "{map}"
    );
    assert_eq!(map["metadata"]["labels"]["stages.metio.wtf/name"], "app");

    // An upgrade takes its field; it is put back, and the release's own fields follow the release.
    helm(&world, &["upgrade", "rel", &chart, "--set", "value=upgraded"]);
    assert_eq!(app_map(&world).await["data"]["value"], "upgraded");
    app.reconcile().await;
    let map = app_map(&world).await;
    assert_eq!(map["data"], json!({ "value": "ours", "helm": "only" }));
    app.until_event("DriftCorrected").await;
    assert_eq!(
        map["metadata"]["annotations"]["meta.helm.sh/release-name"], "rel",
        "{map}"
    );

    // The release goes and takes the object along; it comes back as ours alone.
    helm(&world, &["uninstall", "rel"]);
    app.reconcile().await;
    let map = app_map(&world).await;
    assert_eq!(map["data"], json!({ "value": "ours" }));
    assert!(
        map["metadata"]["annotations"]["meta.helm.sh/release-name"].is_null(),
        "{map}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_asked_for_with_kubectl_is_not_undone_but_a_scaling_is() {
    let world = World::start("restart-by-hand").await;
    world
        .publish("web", &[("web.yaml", &deployment("web", "web:1", 1))])
        .await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    kubectl(&world, &["rollout", "restart", "deployment/web"]);
    let restarted =
        |d: &Value| d["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"].is_string();
    for _ in 0..2 {
        web.reconcile().await;
        let live = world
            .cluster
            .must_get(&objects::deployments(), &world.namespace, "web")
            .await;
        assert!(restarted(&live), "{live}");
    }
    assert_eq!(web.event_count("DriftCorrected").await, 0);
    web.until_ready().await;

    kubectl(&world, &["scale", "--replicas=3", "deployment/web"]);
    web.reconcile().await;
    look(Duration::from_secs(10), || async {
        match replicas(&world).await {
            left if left == 1 => Ok(()),
            other => Err(format!("{other} replicas")),
        }
    })
    .await
    .expect("a request puts it back, also where the change is told after it");
    web.until_event("DriftCorrected").await;
}
