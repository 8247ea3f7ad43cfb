//! Drift that keeps coming back, conflicts that must not cost what is there, and the order of things.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, World, look,
    objects::{self, configmap, deployment, multi, unbound_claim},
    stageset::{condition_of, stage, stageset},
};

/// Somebody who changes a field back each time is named after five rounds, and fought less from then on.
///
/// Rules: decisions 6 loop
#[tokio::test(flavor = "multi_thread")]
async fn drift_that_returns_is_named_and_fought_less_and_less() {
    let world = World::start("loop").await;
    world.publish("app", &[("m.yaml", &configmap("map", "ours"))]).await;
    let set = stageset("app")
        .interval("1h")
        .set("driftDetectionInterval", json!("1s"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_ready().await;
    let theirs = json!({ "data": { "value": "theirs" } });
    let mut rounds = 0;
    while set.event_count("DriftLoop").await == 0 {
        rounds += 1;
        assert!(
            rounds < 12,
            "no loop is told after {rounds} rounds: {:?}",
            set.events().await
        );
        world
            .cluster
            .patch(&objects::configmaps(), &world.namespace, "map", theirs.clone())
            .await;
        let corrected = |map: &Value| map["data"]["value"] == "ours";
        if set.event_count("DriftLoop").await == 0 {
            world
                .cluster
                .until(&objects::configmaps(), &world.namespace, "map", "ours again", corrected)
                .await;
        }
    }
    assert!(rounds >= 5, "told after {rounds} rounds");
    let event = set.until_event("DriftLoop").await;
    let note = event["note"].to_string();
    // A client that gives no name is called so by the server.
    assert!(
        note.contains("/map /data") && note.contains("unknown") && !note.contains("theirs"),
        "{note}"
    );
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "map", theirs)
        .await;
    let mark = world.proxy.mark();
    world
        .stays("backing off", Duration::from_millis(1500), || async { Ok(()) })
        .await;
    let writes = world
        .proxy
        .since(mark)
        .matching(&Match::writes().resource("configmaps"));
    assert!(writes.count() <= 1, "\n{}", writes.lines());
    assert_eq!(set.event_count("DriftLoop").await, 1, "told once");
}

async fn uid(world: &World, kind: &objects::Kind, name: &str) -> Value {
    world.cluster.must_get(kind, &world.namespace, name).await["metadata"]["uid"].clone()
}

/// A policy of the cluster that refuses to create Deployments for the app `unwanted` in one namespace, in force on return.
async fn refuse_creation(world: &World) {
    let name = format!("it-{}", world.namespace);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "resourceRules": [{ "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"] }] },
            "validations": [{ "expression": "object.spec.selector.matchLabels.app != 'unwanted'", "message": "not wanted here" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": world.namespace } } },
        },
    });
    world.cluster.apply(&policy, "").await;
    world.cluster.apply(&binding, "").await;
    let probe = objects::documents(&deployment("unwanted", "web:1", 0)).remove(0);
    let in_force = look(Duration::from_secs(30), || async {
        match world.cluster.try_apply(&probe, &world.namespace).await {
            Err(_) => Ok(()),
            Ok(_) => {
                let kind = objects::deployments();
                world.cluster.delete(&kind, &world.namespace, "unwanted").await;
                Err("it was created".to_owned())
            }
        }
    });
    in_force.await.expect("the policy is in force");
}

/// What is to be recreated is known to be acceptable before the first object is deleted.
///
/// Rules: run B6, run B5
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_cannot_be_cured_costs_no_other_object() {
    let world = World::start("conflicts").await;
    let web =
        |name: &str, app: &str| deployment(name, "web:1", 1).replace(&format!("app: {name}"), &format!("app: {app}"));
    let both = |a: &str, b: &str| multi(&[web("a", a), web("b", b)]);
    world.publish("app", &[("all.yaml", &both("one", "one"))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app").set("conflictPolicy", json!({ "default": "Recreate" })))
        .apply(&world)
        .await;
    set.until_ready().await;
    let uids = async || {
        let kind = objects::deployments();
        [uid(&world, &kind, "a").await, uid(&world, &kind, "b").await]
    };
    let before = uids().await;
    refuse_creation(&world).await;
    // Both have to be recreated, and the second one could not be created; then the second is wrong in itself.
    let mismatched = web("b", "two").replacen("app: two", "app: three", 1);
    for all in [both("two", "unwanted"), multi(&[web("a", "two"), mismatched])] {
        let revision = world.publish("app", &[("all.yaml", &all)]).await;
        set.until("refused at this revision", |s| {
            let entry = crate::support::stageset::stage_of(s, "app");
            entry["attemptedRevision"] == revision.as_str()
                && condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed")
        })
        .await;
        assert_eq!(uids().await, before, "{}", set.message().await);
    }
    let deletes = world
        .proxy
        .all()
        .matching(&Match::writes().verb(Verb::Delete).resource("deployments"));
    assert!(deletes.is_empty(), "\n{}", deletes.lines());
    let revision = world.publish("app", &[("all.yaml", &both("two", "two"))]).await;
    set.until_rolled_out("app", &revision).await;
    let after = uids().await;
    assert!(after[0] != before[0] && after[1] != before[1], "{after:?}");
}

/// A claim is not deleted by a default either, unless a rule that names it says that its data may be lost.
///
/// Rules: run 16.6 data, run B6
#[tokio::test(flavor = "multi_thread")]
async fn neither_default_nor_force_deletes_a_claim_and_consent_does() {
    let world = World::start("claims-kept").await;
    let larger = |class: &str| unbound_claim("data").replace("none-such", class);
    let wait = json!({ "disableWait": true });
    let rule = json!({ "rules": [{ "target": { "kind": "PersistentVolumeClaim", "name": "data" }, "action": "Recreate", "allowDataLoss": true }] });
    for (name, field, value, goes) in [
        ("default", "conflictPolicy", json!({ "default": "Recreate" }), false),
        ("force", "force", json!(true), false),
        ("consent", "conflictPolicy", rule, true),
    ] {
        world.publish(name, &[("claim.yaml", &larger("none-such"))]).await;
        let stage = stage("app", name).set("readyChecks", wait.clone()).set(field, value);
        let set = stageset(name).stage(stage).apply(&world).await;
        set.until_ready().await;
        let before = uid(&world, &objects::claims(), "data").await;
        let revision = world.publish(name, &[("claim.yaml", &larger("another"))]).await;
        set.until("an answer", |s| {
            let entry = crate::support::stageset::stage_of(s, "app");
            condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed")
                || entry["appliedRevision"] == revision.as_str()
        })
        .await;
        if goes {
            assert_ne!(uid(&world, &objects::claims(), "data").await, before, "{name}");
        } else {
            assert_eq!(uid(&world, &objects::claims(), "data").await, before, "{name}");
            assert!(set.message().await.contains("allowDataLoss"), "{}", set.message().await);
        }
        set.delete().await;
        set.until_gone().await;
        world
            .cluster
            .until_gone(&objects::claims(), &world.namespace, "data")
            .await;
    }
}

/// Objects go out in the order in which they need each other, whatever the order of their files, and leave in reverse.
///
/// Rules: run 16.1 order
#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_applied_in_order_and_deleted_in_reverse() {
    let world = World::start("kinds").await;
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: { name: web }\nspec: { defaultBackend: { service: { name: web, \
                   port: { number: 80 } } } }\n";
    let role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: { name: web }\nrules: []\n";
    let binding = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: { name: web }\nroleRef: { apiGroup: \
                   rbac.authorization.k8s.io, kind: Role, name: web }\nsubjects: [{ kind: ServiceAccount, name: web }]\n";
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: web }\n";
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: web }\n";
    let all = multi(&[
        ingress.to_owned(),
        deployment("web", "web:1", 1),
        objects::service("web", 80),
        secret.to_owned(),
        configmap("web", "1"),
        binding.to_owned(),
        role.to_owned(),
        account.to_owned(),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let set = stageset("app").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let order = |verb: Verb| -> Vec<String> {
        let calls = world.proxy.all().matching(&Match::writes().verb(verb).name("web"));
        let mut kinds: Vec<String> = calls.records().iter().map(|r| r.call.resource.clone()).collect();
        kinds.dedup();
        kinds
    };
    let mut wanted = [
        "serviceaccounts",
        "roles",
        "rolebindings",
        "configmaps",
        "secrets",
        "services",
        "deployments",
        "ingresses",
    ];
    assert_eq!(order(Verb::Patch), wanted);
    set.delete().await;
    set.until_gone().await;
    wanted.reverse();
    assert_eq!(order(Verb::Delete), wanted);
}
