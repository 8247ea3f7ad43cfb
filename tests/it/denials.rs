//! Denials: those that a grant ends, and those that none will.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, World,
    objects::{self, configmap, service},
    stageset::{stage, stageset},
};

/// A Role of these verbs on ConfigMaps, bound to a ServiceAccount, all of one name.
fn account(name: &str, namespace: &str, verbs: &[&str]) -> String {
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: {name} }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
         metadata: {{ name: {name} }}\nrules: {rules}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: \
         {{ name: {name} }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name} }}\nsubjects: [{{ kind: \
         ServiceAccount, name: {name}, namespace: {namespace} }}]\n"
    )
}

const ALL: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

fn attempts(world: &World, resource: &str) -> usize {
    let patches = Match::writes().verb(Verb::Patch).resource(resource);
    world.proxy.all().matching(&patches).count()
}

/// A quota is answered with 403 too, and no grant ends that: the retry interval counts, and Ready stands still.
///
/// Rules: run 2.7 failure, decisions 5 rbac
#[tokio::test(flavor = "multi_thread")]
async fn a_denial_that_is_no_missing_right_waits_for_the_retry_interval() {
    let world = World::start("quota").await;
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
        "spec": { "hard": { "services": "0" } } });
    world.cluster.apply(&quota, &world.namespace).await;
    let quotas = objects::Kind::new("v1", "ResourceQuota");
    let counted = |q: &Value| q["status"]["hard"]["services"] == "0";
    world
        .cluster
        .until(&quotas, &world.namespace, "none", "counted", counted)
        .await;
    world.publish("app", &[("s.yaml", &service("web", 80))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    assert!(set.message().await.contains("quota"), "{}", set.message().await);
    // The one attempt that a right on its way to all servers would want.
    set.until("a second attempt that failed", |s| {
        s["run"]["attempt"] == 2 && crate::support::stageset::stage_of(s, "app")["phase"] == "Failed"
    })
    .await;
    let before = attempts(&world, "services");
    world
        .stays("at rest", Duration::from_secs(6), || async {
            let ready = set.condition("Ready").await.unwrap_or_default();
            match attempts(&world, "services") {
                now if now > before => Err(format!("{now} requests instead of {before}")),
                _ if ready["status"] != "False" => Err(ready.to_string()),
                _ => Ok(()),
            }
        })
        .await;
    // Asked for, it fails once and goes on resting.
    set.reconcile().await;
    set.until("a third attempt that failed", |s| {
        s["run"]["attempt"] == 3 && crate::support::stageset::stage_of(s, "app")["phase"] == "Failed"
    })
    .await;
    world
        .stays("at rest", Duration::from_secs(3), || async {
            let attempt = set.status().await["run"]["attempt"].clone();
            if attempt == 3 { Ok(()) } else { Err(attempt.to_string()) }
        })
        .await;
    world.cluster.delete(&quotas, &world.namespace, "none").await;
    world.cluster.until_gone(&quotas, &world.namespace, "none").await;
    set.request().await;
    set.until_ready().await;
}

/// An apply that creates is a patch to the authorizer as well: the right to create alone is not enough.
///
/// Rules: decisions 5 rbac, run 25 denied
#[tokio::test(flavor = "multi_thread")]
async fn a_right_to_create_without_one_to_patch_is_not_taken_for_enough() {
    let world = World::start("create-only").await;
    let rights = |verbs: &[&str]| account("half", &world.namespace, verbs);
    let half = rights(&["get", "list", "watch", "create"]);
    world.cluster.apply_yaml(&half, &world.namespace).await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .set("serviceAccountName", json!("half"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    world
        .stays("the first attempt", Duration::from_secs(5), || async {
            let attempt = set.status().await["run"]["attempt"].clone();
            if attempt == 1 { Ok(()) } else { Err(attempt.to_string()) }
        })
        .await;
    world.cluster.apply_yaml(&rights(&ALL), &world.namespace).await;
    set.until_ready_within(Duration::from_secs(40)).await;
}

/// What a failed stage lacked is not remembered over a restart, and comes into force in seconds all the same.
///
/// Rules: decisions 5 rbac
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_was_granted_while_no_controller_ran_is_noticed_in_seconds() {
    let mut world = World::start("granted-away").await;
    let none = account("poor", &world.namespace, &["get"]);
    world.cluster.apply_yaml(&none, &world.namespace).await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let spec = stageset("app")
        .retry_interval("1h")
        .set("serviceAccountName", json!("poor"))
        .stage(stage("app", "app"));
    spec.apply(&world).await.until_reason("StageFailed").await;
    world.controller().kill();
    let all = account("poor", &world.namespace, &ALL);
    world.cluster.apply_yaml(&all, &world.namespace).await;
    world.controller().start_again();
    world.controller().until_ready().await;
    let set = crate::support::stageset::StageSet::named(&world, "app").await;
    set.until_ready_within(Duration::from_secs(50)).await;
}
