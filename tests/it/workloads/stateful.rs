//! What holds data: StatefulSets whose claim templates change, and claims.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::uid;
use crate::support::{
    World,
    objects::{self, Kind},
    stageset::{Stage, StageSet, stage, stageset},
};

/// YAML of a StatefulSet with two pods and a claim for each; the claims go with the set that owns them.
fn database(app: &str, size: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{ name: db }}\nspec:\n  replicas: 2\n  serviceName: db\n  \
         persistentVolumeClaimRetentionPolicy: {{ whenDeleted: Delete }}\n  \
         selector: {{ matchLabels: {{ app: {app} }} }}\n  template:\n    metadata: {{ labels: {{ app: {app} }} }}\n    \
         spec:\n      containers:\n        - name: main\n          image: db:1\n          \
         volumeMounts: [{{ name: data, mountPath: /data }}]\n  volumeClaimTemplates:\n    - metadata: {{ name: data }}\n      \
         spec:\n        storageClassName: kwok-volume\n        accessModes: [ReadWriteOnce]\n        \
         resources: {{ requests: {{ storage: {size} }} }}\n"
    )
}

fn recreating(kind: &str) -> Stage {
    let rules = json!({ "rules": [{ "target": { "kind": kind }, "action": "Recreate" }] });
    stage("db", "db").set("conflictPolicy", rules)
}

/// UIDs by name.
async fn uids(world: &World, kind: &Kind) -> BTreeMap<String, Value> {
    let all = world.cluster.list(kind, &world.namespace, "").await;
    all.iter()
        .map(|o| {
            (
                o["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                o["metadata"]["uid"].clone(),
            )
        })
        .collect()
}

async fn deployed<'w>(world: &'w World, stage: Stage) -> StageSet<'w> {
    world.publish("db", &[("db.yaml", &database("db", "1Mi"))]).await;
    let shop = stageset("shop").stage(stage).apply(world).await;
    shop.until_ready().await;
    assert_eq!(uids(world, &objects::pods()).await.len(), 2);
    assert_eq!(uids(world, &objects::claims()).await.len(), 2);
    shop
}

/// Rules: run 16.7, run B6, run 27.2 statefulset
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_claim_template_recreates_the_set_around_its_running_pods() {
    let world = World::start("sts-claims").await;
    let shop = deployed(&world, recreating("StatefulSet")).await;
    let (set, pods, claims) = (
        uid(&world, &objects::stateful_sets(), "db").await,
        uids(&world, &objects::pods()).await,
        uids(&world, &objects::claims()).await,
    );

    let revision = world.publish("db", &[("db.yaml", &database("db", "2Mi"))]).await;
    shop.until_rolled_out("db", &revision).await;
    let new = world
        .cluster
        .must_get(&objects::stateful_sets(), &world.namespace, "db")
        .await;
    assert_ne!(new["metadata"]["uid"], set.as_str(), "the set is a new one");
    assert_eq!(
        new["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"],
        "2Mi"
    );
    assert_eq!(uids(&world, &objects::pods()).await, pods, "no pod was restarted");
    assert_eq!(uids(&world, &objects::claims()).await, claims, "no claim was lost");
    for pod in pods.keys() {
        let adopted = |p: &Value| p["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"];
        world
            .cluster
            .until(&objects::pods(), &world.namespace, pod, "adopted", adopted)
            .await;
    }
    assert_eq!(shop.event_count("DriftCorrected").await, 0, "a rollout is no drift");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_selector_replaces_the_pods_that_would_be_in_the_way() {
    let world = World::start("sts-selector").await;
    let shop = deployed(&world, recreating("StatefulSet")).await;
    let pods = uids(&world, &objects::pods()).await;
    let revision = world.publish("db", &[("db.yaml", &database("other", "1Mi"))]).await;
    shop.until_rolled_out("db", &revision).await;
    let now = uids(&world, &objects::pods()).await;
    assert_eq!(now.len(), 2);
    assert!(now.values().all(|uid| !pods.values().any(|old| old == uid)), "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_claim_template_fails_or_is_left_alone_where_nothing_else_was_said() {
    let world = World::start("sts-policies").await;
    let shop = deployed(&world, stage("db", "db")).await;
    let set = uid(&world, &objects::stateful_sets(), "db").await;
    let revision = world.publish("db", &[("db.yaml", &database("db", "2Mi"))]).await;
    let ready = shop.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("StatefulSet") && message.contains("/db") && message.contains("conflictPolicy"),
        "{message}"
    );
    let keep = json!({ "default": "KeepExisting" });
    let shop = stageset("shop")
        .stage(stage("db", "db").set("conflictPolicy", keep))
        .apply(&world)
        .await;
    shop.until_rolled_out("db", &revision).await;
    assert_eq!(uid(&world, &objects::stateful_sets(), "db").await, set);
}

fn claim(class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: data }}\nspec:\n  storageClassName: {class}\n  \
         accessModes: [ReadWriteOnce]\n  resources: {{ requests: {{ storage: 1Mi }} }}\n"
    )
}

/// A bound claim is applied again with another class, which no claim can change to. `kwok-volume` binds at once.
async fn reclassed<'w>(world: &'w World, stage: Stage) -> (StageSet<'w>, String, String) {
    world.publish("db", &[("claim.yaml", &claim("kwok-volume"))]).await;
    let shop = stageset("shop").stage(stage).apply(world).await;
    shop.until_ready().await;
    let bound = |c: &Value| c["status"]["phase"] == "Bound";
    let live = world
        .cluster
        .until(&objects::claims(), &world.namespace, "data", "bound", bound)
        .await;
    let before = live["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let revision = world.publish("db", &[("claim.yaml", &claim("other"))]).await;
    (shop, before, revision)
}

/// Rules: run 16.6 data
#[tokio::test(flavor = "multi_thread")]
async fn force_never_destroys_a_claim() {
    for (name, stage) in [
        ("pvc-force", stage("db", "db").set("force", json!(true))),
        (
            "pvc-default",
            stage("db", "db").set("conflictPolicy", json!({ "default": "Recreate" })),
        ),
    ] {
        let world = World::start(name).await;
        let (shop, before, _) = reclassed(&world, stage).await;
        let ready = shop.until_reason("StageFailed").await;
        let message = ready["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("PersistentVolumeClaim") && message.contains("allowDataLoss"),
            "{message}"
        );
        let live = world
            .cluster
            .must_get(&objects::claims(), &world.namespace, "data")
            .await;
        assert_eq!(live["metadata"]["uid"], before.as_str());
        assert!(live["metadata"]["deletionTimestamp"].is_null(), "{live}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_recreated_where_the_loss_was_accepted() {
    let world = World::start("pvc-loss").await;
    let rules = json!({ "rules": [{
        "target": { "kind": "PersistentVolumeClaim", "name": "data" }, "action": "Recreate", "allowDataLoss": true,
    }] });
    let stage = stage("db", "db")
        .set("conflictPolicy", rules)
        .set("readyChecks", json!({ "disableWait": true }));
    let (shop, before, revision) = reclassed(&world, stage).await;
    shop.until_rolled_out("db", &revision).await;
    let live = world
        .cluster
        .must_get(&objects::claims(), &world.namespace, "data")
        .await;
    assert_ne!(live["metadata"]["uid"], before.as_str());
    assert_eq!(live["spec"]["storageClassName"], "other");
}
