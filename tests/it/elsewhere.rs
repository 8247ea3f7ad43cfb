//! Another cluster: its kinds are its own, and what it refuses for good does not hold a StageSet here for ever.

use std::time::Duration;

use serde_json::json;

use super::remote::{admin, far, furnish, kubeconfig, maps, publish, remote, secret};
use crate::support::{
    World,
    objects::{self, configmap, multi},
    stageset::{condition_of, stage, stageset},
};

/// A kind counts where the objects go: one that only this cluster serves does not help there, and the other way round.
///
/// Rules: run 11.3 discovery
#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_those_of_the_cluster_that_is_applied_to() {
    let world = World::start("far-kinds").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    let kind = super::triggers::own_kind(&world).await;
    let thing = format!(
        "apiVersion: {}\nkind: {}\nmetadata: {{ name: thing }}\n",
        kind.api_version, kind.kind
    );
    world
        .publish("app", &[("all.yaml", &multi(&[configmap("map", "1"), thing]))])
        .await;
    let wait = json!({ "disableWait": true });
    let here = stageset("here")
        .stage(stage("web", "app").set("readyChecks", wait.clone()))
        .apply(&world)
        .await;
    here.until_ready().await;
    let there = stageset("there")
        .retry_interval("1h")
        .set("kubeConfig", json!({ "secretRef": { "name": "far" } }))
        .stage(stage("web", "app").set("readyChecks", wait))
        .apply(&world)
        .await;
    there
        .until("the kind is missing there", |s| {
            condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains(&kind.kind))
        })
        .await;
    assert!(
        there.message().await.contains("not served"),
        "{}",
        there.message().await
    );
    here.delete().await;
    here.until_gone().await;
    super::triggers::remove_own_kind(&world, &kind).await;
}

/// Credentials that are revoked for good: the StageSet goes, and a warning says what may be left.
///
/// Rules: run 4.2 unauthorized
#[tokio::test(flavor = "multi_thread")]
async fn revoked_credentials_do_not_hold_a_teardown() {
    let world = World::start("far-revoked").await;
    let far = far().await;
    let ns = &world.namespace;
    furnish(&far, ns).await;
    let robot = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: robot }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: \
         ClusterRoleBinding\nmetadata: {{ name: robot-{ns} }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, \
         name: cluster-admin }}\nsubjects: [{{ kind: ServiceAccount, name: robot, namespace: {ns} }}]\n"
    );
    far.apply_yaml(&robot, ns).await;
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let request = http::Request::post(format!("/api/v1/namespaces/{ns}/serviceaccounts/robot/token"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a request");
    let answer: serde_json::Value = far.client.request(request).await.expect("a token");
    let token = answer["status"]["token"].as_str().expect("a token").to_owned();
    secret(&world, "far", "value", &kubeconfig(&far, &token)).await;
    publish(&world, "app", &["a"]).await;
    let app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    far.delete(&objects::service_accounts(), ns, "robot").await;
    // The server remembers a good token for a while.
    crate::support::look(Duration::from_secs(40), || async {
        publish(&world, "app", &["a", &format!("b{}", rand::random::<u16>())]).await;
        app.reconcile().await;
        let message = app.message().await;
        if message.contains("401") { Ok(()) } else { Err(message) }
    })
    .await
    .expect("the token is refused");
    app.delete().await;
    app.until_gone().await;
    let event = app.until_event("TeardownForced").await;
    let note = event["note"].to_string();
    assert!(
        note.contains("unauthorized") && note.contains("/a") && !note.contains(&token),
        "{note}"
    );
    let labels = ["reason=\"unauthorized\""];
    let count = world
        .controller_ref()
        .metric("stageset_teardown_force_drop_total", &labels)
        .await;
    assert_eq!(count, 1.0);
    assert!(maps(&far, ns).await.contains("a"), "it may be left behind, and it is");
}

/// The right to use a cluster is the kubeconfig's, the right to do something there the account's: an administrator's
/// kubeconfig makes no administrator of a tenant, neither there nor here.
///
/// Rules: run 11.3 impersonation, run 11.3 secret, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn an_administrators_kubeconfig_gives_a_tenant_no_more_than_its_account() {
    let world = World::start("far-admin").await;
    let there = world.another_namespace("b").await;
    world.cluster.apply_yaml(&configmap("prey", "safe"), &there).await;
    // The other cluster is this one, reached as its administrator.
    secret(&world, "loop", "config", &admin(&world.cluster)).await;
    let stolen = configmap("prey", "stolen").replacen("metadata:\n", &format!("metadata:\n  namespace: {there}\n"), 1);
    world.publish("app", &[("m.yaml", &stolen)]).await;
    let key = json!({ "secretRef": { "name": "loop", "key": "config" } });
    let app = remote("app", "loop")
        .retry_interval("1h")
        .set("kubeConfig", key)
        .apply(&world)
        .await;
    app.until("denied", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains("forbidden"))
    })
    .await;
    let message = app.message().await;
    assert!(
        message.contains(&format!("system:serviceaccount:{}:tenant", world.namespace)),
        "{message}"
    );
    let prey = world.cluster.must_get(&objects::configmaps(), &there, "prey").await;
    assert_eq!(prey["data"]["value"], "safe");
}

/// A custom resource whose status has not come yet is given a moment; one whose status comes is judged by it.
///
/// Rules: decisions 5 settle
#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_gets_a_moment_for_its_first_status() {
    let world = World::start("settle").await;
    for name in ["silent", "slow"] {
        world.publish(name, &[("w.yaml", &objects::widget(name, 1))]).await;
    }
    let began = std::time::Instant::now();
    let silent = stageset("silent").stage(stage("app", "silent")).apply(&world).await;
    let slow = stageset("slow").stage(stage("app", "slow")).apply(&world).await;
    slow.until_phase("app", "Verifying").await;
    let not_yet = objects::widget_status(1, false, false);
    world
        .cluster
        .patch_status(&objects::widgets(), &world.namespace, "slow", not_yet)
        .await;
    silent.until_ready().await;
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(9) && took < Duration::from_secs(20),
        "{took:?}"
    );
    assert_ne!(
        slow.condition("Ready").await.expect("Ready")["status"],
        "True",
        "its status says that it is not ready"
    );
    world.widget("slow", true).await;
    slow.until_ready_within(Duration::from_secs(10)).await;
}

/// An expression that would never end is cut off: its stage fails in time, and nothing else is held up.
///
/// Rules: run 18.3 cost, run 18.3 error
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_has_a_budget() {
    let world = World::start("budget").await;
    world
        .publish("heavy", &[("w.yaml", &objects::widget("heavy", 1))])
        .await;
    world.publish("light", &[("m.yaml", &configmap("light", "1"))]).await;
    world.widget("heavy", true).await;
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let mut text = "a + b + c + d + e + f + g + h >= 0".to_owned();
    for name in ["h", "g", "f", "e", "d", "c", "b", "a"] {
        text = format!("{digits}.all({name}, {text})");
    }
    let exprs = json!([{ "apiVersion": "fixture.stageset.test/v1", "kind": "Widget", "current": text }]);
    let checks = json!({ "exprs": exprs, "timeout": "4s" });
    let heavy = stageset("heavy")
        .retry_interval("1h")
        .stage(stage("app", "heavy").set("readyChecks", checks))
        .apply(&world)
        .await;
    let light = stageset("light").stage(stage("app", "light")).apply(&world).await;
    light.until_ready_within(Duration::from_secs(15)).await;
    heavy
        .until("refused or out of time", |s| {
            condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed" || c["reason"] == "InvalidSpec")
        })
        .await;
    println!("{}", heavy.message().await);
    assert_ne!(heavy.condition("Ready").await.expect("Ready")["status"], "True");
}

/// One object nobody can read is invalid on its own, also after a restart.
///
/// Rules: decisions 11 malformed
#[tokio::test(flavor = "multi_thread")]
async fn one_malformed_object_troubles_no_other() {
    let mut world = World::start("malformed-one").await;
    for name in ["good", "bad", "later"] {
        publish(&world, name, &[name]).await;
    }
    let bad = stageset("bad").interval("ten minutes").stage(stage("app", "bad"));
    let accepted = world
        .cluster
        .try_apply(&bad.object(&world.namespace), &world.namespace)
        .await
        .is_ok();
    stageset("good")
        .stage(stage("app", "good"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    if accepted {
        let bad = crate::support::StageSet::named(&world, "bad").await;
        let ready = bad.until_reason("InvalidSpec").await;
        assert!(ready["message"].to_string().contains("interval"), "{ready}");
    }
    world.controller().crash_and_restart().await;
    stageset("later")
        .stage(stage("app", "later"))
        .apply(&world)
        .await
        .until_ready()
        .await;
    assert_eq!(world.config_value("bad").await, None);
    assert!(
        accepted,
        "the schema refuses it, so this shows nothing: take the test away"
    );
}
