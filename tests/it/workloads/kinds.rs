//! The kinds every cluster has, and what a controller of the cluster does to them.

use std::time::Duration;

use serde_json::{Value, json};

use super::uid;
use crate::support::{
    Match, World, look,
    objects::{self, configmap, deployment, multi, widget},
    stageset::{stage, stageset},
};

fn selecting(app: &str) -> String {
    deployment("web", "web:1", 1).replace("app: web", &format!("app: {app}"))
}

/// Rules: run 16.6 default, run 16.5 force, run 16.7
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_selector_is_recreated_by_force_and_by_the_objects_own_word() {
    let annotated = "name: web\n  annotations: { stages.metio.wtf/force: enabled }\nspec";
    let asking = |app: &str| selecting(app).replace("name: web\nspec", annotated);
    let force = stage("web", "web").set("force", json!(true));
    let default = stage("web", "web").set("conflictPolicy", json!({ "default": "Recreate" }));
    let cases = [
        ("force", force, [selecting("one"), selecting("two")]),
        ("default", default, [selecting("one"), selecting("two")]),
        ("asking", stage("web", "web"), [asking("one"), asking("two")]),
    ];
    for (name, stage, [first, second]) in cases {
        let world = World::start(&format!("selector-{name}")).await;
        world.publish("web", &[("web.yaml", &first)]).await;
        let web = stageset("web").stage(stage).apply(&world).await;
        web.until_ready().await;
        let before = uid(&world, &objects::deployments(), "web").await;
        let revision = world.publish("web", &[("web.yaml", &second)]).await;
        web.until_rolled_out("web", &revision).await;
        let live = world
            .cluster
            .must_get(&objects::deployments(), &world.namespace, "web")
            .await;
        assert_ne!(live["metadata"]["uid"], before.as_str(), "{name}");
        assert_eq!(live["spec"]["selector"]["matchLabels"]["app"], "two", "{name}");
        let old = look(Duration::from_secs(30), || async {
            let left = world
                .cluster
                .list(&objects::replica_sets(), &world.namespace, "app=one")
                .await;
            if left.is_empty() { Ok(()) } else { Err(left.len()) }.map_err(|n| format!("{n} old ReplicaSets"))
        });
        old.await.unwrap_or_else(|left| panic!("{name}: {left}"));
    }
}

/// Rules: run 16.6 keep
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_selector_is_left_alone_where_that_was_asked_and_the_rest_goes_on() {
    let world = World::start("selector-keep").await;
    world.publish("web", &[("web.yaml", &selecting("one"))]).await;
    let rules = json!({ "rules": [{ "target": { "kind": "Deployment", "name": "web" }, "action": "KeepExisting" }] });
    let web = stageset("web")
        .stage(stage("web", "web").set("conflictPolicy", rules))
        .apply(&world)
        .await;
    web.until_ready().await;
    let before = uid(&world, &objects::deployments(), "web").await;
    let both = multi(&[selecting("two"), configmap("beside", "2")]);
    let revision = world.publish("web", &[("web.yaml", &both)]).await;
    web.until_rolled_out("web", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    assert_eq!(live["metadata"]["uid"], before.as_str());
    assert_eq!(live["spec"]["selector"]["matchLabels"]["app"], "one");
    assert_eq!(world.config_value("beside").await.as_deref(), Some("2"));
    // Left alone, but not forgotten: it was ours before and goes with the StageSet.
    web.delete().await;
    web.until_gone().await;
    assert!(
        !world
            .cluster
            .exists(&objects::deployments(), &world.namespace, "web")
            .await
    );
}

fn daemons(image: &str, pod: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{ name: agent }}\nspec:\n  \
         selector: {{ matchLabels: {{ app: agent }} }}\n  updateStrategy: {{ rollingUpdate: {{ maxUnavailable: 100% }} }}\n  \
         template:\n    metadata:\n      labels: {{ app: agent }}\n      \
         annotations: {{ testenv.metio.wtf/pod: '{pod}', testenv.metio.wtf/delay: 1s }}\n    \
         spec: {{ containers: [{{ name: main, image: '{image}' }}] }}\n"
    )
}

/// Rules: run 27.2 daemonset
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_set_is_ready_once_every_node_runs_the_new_one() {
    let world = World::start("daemons").await;
    world
        .publish("agent", &[("agent.yaml", &daemons("agent:1", "late"))])
        .await;
    world.publish("next", &[("map.yaml", &configmap("next", "1"))]).await;
    let agent = stageset("agent")
        .stage(stage("agent", "agent"))
        .stage(stage("next", "next"))
        .apply(&world)
        .await;
    let status = agent.until_phase("agent", "Verifying").await;
    assert!(
        status.to_string().contains("DaemonSet"),
        "the status names what it waits for: {status}"
    );
    assert_eq!(world.config_value("next").await, None);
    agent.until_ready().await;
    let nodes = world
        .cluster
        .list(&objects::Kind::new("v1", "Node"), "", "")
        .await
        .len();
    let live = world
        .cluster
        .must_get(&objects::daemon_sets(), &world.namespace, "agent")
        .await;
    assert_eq!(live["status"]["numberReady"], nodes);

    let revision = world
        .publish("agent", &[("agent.yaml", &daemons("agent:2", "late"))])
        .await;
    agent.until_rolled_out("agent", &revision).await;
    let pods = world
        .cluster
        .list(&objects::pods(), &world.namespace, "app=agent")
        .await;
    let old = pods
        .iter()
        .filter(|p| p["spec"]["containers"][0]["image"] == "agent:1" && p["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(old.count(), 0, "Ready before the last node was through");

    world
        .publish("agent", &[("agent.yaml", &daemons("agent:3", "pending"))])
        .await;
    agent
        .until("waiting for the broken agents", |s| {
            crate::support::stageset::stage_of(s, "agent")["waitingFor"]
                .as_str()
                .is_some_and(|w| w.contains("DaemonSet") && w.contains("agent"))
        })
        .await;
}

fn job(image: &str, extra: &str, pod: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{ name: migrate }}\nspec:\n{extra}  template:\n    \
         metadata: {{ annotations: {{ testenv.metio.wtf/pod: '{pod}' }} }}\n    spec:\n      restartPolicy: Never\n      \
         containers: [{{ name: main, image: '{image}' }}]\n"
    )
}

/// Rules: run 27.2 job, run B12 jobs, run 27.4
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_waited_for_and_not_run_again() {
    let mut world = World::start("job").await;
    world.publish("db", &[("job.yaml", &job("m:1", "", "running"))]).await;
    world.publish("next", &[("map.yaml", &configmap("next", "1"))]).await;
    stageset("db")
        .stage(stage("db", "db"))
        .stage(stage("next", "next"))
        .apply(&world)
        .await;
    let db = crate::support::StageSet::named(&world, "db").await;
    db.until_phase("db", "Verifying").await;
    let pods = look(Duration::from_secs(30), || async {
        let pods = world.cluster.list(&objects::pods(), &world.namespace, "").await;
        let running = pods.iter().any(|p| p["status"]["phase"] == "Running");
        if running {
            Ok(pods)
        } else {
            Err(format!("{} pods", pods.len()))
        }
    });
    let pods = pods.await.expect("the Job runs");
    assert_eq!(world.config_value("next").await, None, "a running Job is not ready");
    let pod = pods[0]["metadata"]["name"].as_str().expect("a name");
    world
        .cluster
        .annotate(&objects::pods(), &world.namespace, pod, "testenv.metio.wtf/pod", None)
        .await;
    db.until_ready().await;
    let before = uid(&world, &objects::jobs(), "migrate").await;

    db.reconcile().await;
    drop(db);
    world.controller().crash_and_restart().await;
    let db = crate::support::StageSet::named(&world, "db").await;
    db.reconcile().await;
    // Another stage goes on; the Job's does not begin anew.
    let revision = world.publish("next", &[("map.yaml", &configmap("next", "2"))]).await;
    db.until_rolled_out("next", &revision).await;
    assert_eq!(uid(&world, &objects::jobs(), "migrate").await, before);
    assert_eq!(
        world.cluster.list(&objects::pods(), &world.namespace, "").await.len(),
        1
    );
    let writes = world.proxy.all().matching(&Match::writes().resource("jobs"));
    assert_eq!(writes.count(), 1, "\n{}", writes.lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_job_fails_the_stage_or_runs_anew_as_the_rule_says() {
    let world = World::start("job-changed").await;
    world.publish("db", &[("job.yaml", &job("m:1", "", ""))]).await;
    let db = stageset("db").stage(stage("db", "db")).apply(&world).await;
    db.until_ready().await;
    let before = uid(&world, &objects::jobs(), "migrate").await;
    let revision = world.publish("db", &[("job.yaml", &job("m:2", "", ""))]).await;
    let ready = db.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Job") && message.contains("migrate") && message.contains("conflictPolicy"),
        "{message}"
    );
    assert_eq!(uid(&world, &objects::jobs(), "migrate").await, before);

    let rules = json!({ "rules": [{ "target": { "apiVersion": "batch/v1", "kind": "Job" }, "action": "Recreate" }] });
    let db = stageset("db")
        .stage(stage("db", "db").set("conflictPolicy", rules))
        .apply(&world)
        .await;
    db.until_rolled_out("db", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::jobs(), &world.namespace, "migrate")
        .await;
    assert_ne!(live["metadata"]["uid"], before.as_str());
    assert_eq!(live["status"]["succeeded"], 1, "Ready only once the new one is through");
}

/// Rules: run 18.2 fail-fast, decisions 11 job
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_fails_its_stage_at_once() {
    let world = World::start("job-fails").await;
    world
        .publish("db", &[("job.yaml", &job("m:1", "  backoffLimit: 0\n", "fail"))])
        .await;
    let db = stageset("db")
        .retry_interval("1h")
        .stage(stage("db", "db"))
        .apply(&world)
        .await;
    let ready = db.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("stage \"db\" verify") && message.contains("Job") && message.contains("migrate"),
        "{message}"
    );
}

/// Rules: run 27.4
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cleans_up_after_itself_counts_as_done() {
    let mut world = World::start("job-ttl").await;
    let both = multi(&[job("m:1", "  ttlSecondsAfterFinished: 0\n", ""), widget("gate", 1)]);
    world.publish("db", &[("job.yaml", &both)]).await;
    world.widget("gate", false).await;
    let db = stageset("db").stage(stage("db", "db")).apply(&world).await;
    db.until_phase("db", "Verifying").await;
    world
        .cluster
        .until_gone(&objects::jobs(), &world.namespace, "migrate")
        .await;
    world.widget("gate", true).await;
    db.until_ready().await;
    // Neither a pass, nor a restart, nor a new revision of something else runs it again.
    db.reconcile().await;
    drop(db);
    world.controller().crash_and_restart().await;
    let db = crate::support::StageSet::named(&world, "db").await;
    db.reconcile().await;
    let more = both.clone() + "---\n" + &configmap("beside", "1");
    let revision = world.publish("db", &[("job.yaml", &more)]).await;
    db.until_rolled_out("db", &revision).await;
    let writes = world.proxy.all().matching(&Match::writes().resource("jobs"));
    assert_eq!(writes.count(), 1, "it ran once:\n{}", writes.lines());
}

fn service(cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{ name: web }}\nspec:\n  {cluster_ip}\n  selector: {{ app: web }}\n  \
         ports: [{{ port: 80 }}]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_keeps_its_address_and_a_changed_one_is_a_conflict() {
    let world = World::start("service").await;
    world.publish("web", &[("svc.yaml", &service("type: ClusterIP"))]).await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    let address = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let live = world
        .cluster
        .must_get(&objects::services(), &world.namespace, "web")
        .await;
    let before = address(&live);
    let ports = service("type: ClusterIP").replace("port: 80", "port: 81");
    let revision = world.publish("web", &[("svc.yaml", &ports)]).await;
    web.until_rolled_out("web", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::services(), &world.namespace, "web")
        .await;
    assert_eq!(address(&live), before, "an address the server gave is nobody's drift");

    let revision = world.publish("web", &[("svc.yaml", &service("clusterIP: None"))]).await;
    let ready = web.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Service") && message.contains("spec.clusterIP") && message.contains("conflictPolicy"),
        "{message}"
    );
    let web = stageset("web")
        .stage(stage("web", "web").set("force", json!(true)))
        .apply(&world)
        .await;
    web.until_rolled_out("web", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::services(), &world.namespace, "web")
        .await;
    assert_eq!(address(&live), "None");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_ready_at_once_and_follows_its_source() {
    let world = World::start("budget").await;
    let budget = |least: u32| {
        format!(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{ name: web }}\nspec:\n  minAvailable: {least}\n  \
             selector: {{ matchLabels: {{ app: web }} }}\n"
        )
    };
    let release = |least: u32| multi(&[deployment("web", "web:1", 2), budget(least)]);
    world.publish("web", &[("web.yaml", &release(1))]).await;
    let web = stageset("web").stage(stage("web", "web")).apply(&world).await;
    web.until_ready().await;
    let revision = world.publish("web", &[("web.yaml", &release(2))]).await;
    web.until_rolled_out("web", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::budgets(), &world.namespace, "web")
        .await;
    assert_eq!(live["spec"]["minAvailable"], 2);
    web.delete().await;
    web.until_gone().await;
    assert!(!world.cluster.exists(&objects::budgets(), &world.namespace, "web").await);
}
