//! Records that were tampered with, objects of others, and what messages give away.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    World,
    objects::{self, configmap, multi},
    stageset::{StageSet, condition_of, stage, stageset},
};

/// Lets a tenant of one namespace act in another.
fn guest(of: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: guest }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: stageset-it-tenant }}\nsubjects: [{{ kind: ServiceAccount, name: tenant, \
         namespace: {of} }}]\n"
    )
}

/// Adds entries to the first shard of a stage, as somebody with rights on inventories could.
async fn forge(world: &World, shard: &str, ids: &[String]) {
    let stored = world
        .cluster
        .must_get(&objects::inventories(), &world.namespace, shard)
        .await;
    let mut entries = stored["spec"]["entries"].as_array().cloned().unwrap_or_default();
    entries.extend(ids.iter().map(|id| json!({ "id": id, "v": "v1" })));
    let patch = json!({ "spec": { "entries": entries } });
    world
        .cluster
        .patch(&objects::inventories(), &world.namespace, shard, patch)
        .await;
}

/// An entry in a record deletes nothing by itself: the object has to carry the owner's labels, and the account the right.
///
/// Rules: run 19.3.2, run 17.3, run 19.2 identity
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_record_deletes_nothing_of_others() {
    let world = World::builder("forged").flag("--max-teardown-wait=2s").start().await;
    let there = world.another_namespace("b").await;
    let owned = json!({ "metadata": { "labels": { "stages.metio.wtf/name": "shop", "stages.metio.wtf/namespace": world.namespace } } });
    world.cluster.apply_yaml(&configmap("prey", "1"), &there).await;
    world.cluster.patch(&objects::configmaps(), &there, "prey", owned).await;
    world
        .cluster
        .apply_yaml(&configmap("by-hand", "1"), &world.namespace)
        .await;
    for name in ["shop", "other"] {
        world
            .publish(name, &[("m.yaml", &configmap(&format!("{name}-map"), "1"))])
            .await;
        stageset(name)
            .stage(stage("app", name))
            .apply(&world)
            .await
            .until_ready()
            .await;
    }
    let ns = &world.namespace;
    let ids = [
        format!("{ns}_by-hand__ConfigMap"),
        format!("{ns}_other-map__ConfigMap"),
        format!("{there}_prey__ConfigMap"),
        format!("{ns}_x/../../{there}/configmaps/prey__ConfigMap"),
        format!("x/../{there}_prey__ConfigMap"),
        format!("_{there}__Namespace"),
        "nonsense".to_owned(),
    ];
    forge(&world, "shop-app-0", &ids).await;
    let shop = StageSet::named(&world, "shop").await;
    shop.request().await;
    shop.until("denied by name", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains("forbidden"))
    })
    .await;
    let skipped = world
        .controller_ref()
        .metric("stageset_inventory_skipped_entries_total", &["stageset=\"shop\""])
        .await;
    assert!(skipped >= 1.0, "what cannot be read is counted");
    shop.delete().await;
    shop.until_gone().await;
    for (namespace, name) in [(ns, "by-hand"), (ns, "other-map"), (&there, "prey")] {
        assert!(
            world.cluster.exists(&objects::configmaps(), namespace, name).await,
            "{namespace}/{name} was deleted"
        );
    }
    assert!(!world.cluster.exists(&objects::configmaps(), ns, "shop-map").await);
    let there = world.cluster.must_get(&objects::namespaces(), "", &there).await;
    assert!(there["metadata"]["deletionTimestamp"].is_null());
}

/// A StageSet of another namespace keeps its object, even from a guest who may write there.
///
/// Rules: run B29, run 15 owner
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_takes_no_object_of_a_neighbours_stageset() {
    let mut world = World::builder("guest").without_controller().start().await;
    let there = world.another_namespace("b").await;
    world.set_flag(
        "--watch-namespaces",
        &format!("--watch-namespaces={},{there}", world.namespace),
    );
    world.start_controller().await;
    world.cluster.apply_yaml(&guest(&world.namespace), &there).await;
    world
        .publish("shared", &[("m.yaml", &configmap("map", "theirs"))])
        .await;
    let source = json!({ "name": "shared", "namespace": world.namespace });
    let host = stageset("host").stage(crate::support::stageset::stage_from("app", source));
    host.apply_in(&world, &there).await.until_ready().await;

    let claim = |labels: &str| {
        configmap("map", "stolen").replacen("metadata:\n", &format!("metadata:\n  namespace: {there}\n{labels}"), 1)
    };
    let as_host = format!("  labels: {{ stages.metio.wtf/name: host, stages.metio.wtf/namespace: {there} }}\n");
    let attempts = [
        ("plain", claim(""), json!({})),
        ("as-the-owner", claim(&as_host), json!({})),
        ("by-force", claim(""), json!({ "force": true })),
        (
            "by-policy",
            claim(""),
            json!({ "conflictPolicy": { "default": "Recreate" } }),
        ),
    ];
    for (name, manifest, fields) in attempts {
        world.publish(name, &[("m.yaml", &manifest)]).await;
        let mut stage = stage("app", name);
        for (field, value) in fields.as_object().into_iter().flatten() {
            stage = stage.set(field, value.clone());
        }
        let thief = stageset(name).retry_interval("1h").stage(stage).apply(&world).await;
        thief.until_reason("StageFailed").await;
        let message = thief.message().await;
        assert!(
            message.contains("belongs to StageSet") && message.contains("/host"),
            "{message}"
        );
        thief.delete().await;
        thief.until_gone().await;
    }
    let map = world.cluster.must_get(&objects::configmaps(), &there, "map").await;
    assert_eq!(map["data"]["value"], "theirs");
    assert_eq!(map["metadata"]["labels"]["stages.metio.wtf/name"], "host");
}

/// Conditions, stages and events.
async fn everything_said(set: &StageSet<'_>) -> String {
    let (status, events) = (set.status().await, Value::Array(set.events().await));
    format!("{status}\n{events}")
}

/// What a Secret holds is not told by the errors it causes.
///
/// Rules: run 16.8, run 21.3 failed
#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_tell_what_a_secret_holds() {
    let world = World::start("told").await;
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: { name: vars }\nstringData: { password: hunter2-of-nobody }\n";
    world.cluster.apply_yaml(secret, &world.namespace).await;
    let made = |name: &str| format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n");
    let manifests = [
        (
            "map",
            configmap("map", "1").replace("data:\n  value: \"1\"", "data: ${password}"),
        ),
        (
            "number",
            objects::deployment("web", "web:1", 1).replace("replicas: 1", "replicas: ${password}"),
        ),
        ("base64", format!("{}data:\n  key: ${{password}}!\n", made("base64"))),
        ("not-a-map", format!("{}stringData: ${{password}}\n", made("not-a-map"))),
        (
            "nested",
            format!("{}stringData: {{ a: [hunter2-in-a-list] }}\n", made("nested")),
        ),
        (
            "encoded",
            format!("{}data: {{ a: [aHVudGVyMi1iNjQ=] }}\n", made("encoded")),
        ),
        (
            "image",
            objects::deployment("web", "web:1", 1).replace("image: web:1", "image: [\"${password}\"]"),
        ),
        (
            "name",
            configmap("map", "1").replace("name: map", "name: \"A ${password}\""),
        ),
        (
            "kind",
            configmap("map", "1").replace("kind: ConfigMap", "kind: \"${password}\""),
        ),
        (
            "label",
            configmap("map", "1").replace("  name: map\n", "  name: map\n  labels: { a: \"-${password}-\" }\n"),
        ),
        ("syntax", configmap("map", "${password:${password}")),
        ("missing", configmap("map", "${password}${absent}")),
    ];
    let mut sets = Vec::new();
    for (name, manifest) in &manifests {
        world.publish(name, &[("m.yaml", manifest)]).await;
        let from = json!({ "substituteFrom": [{ "kind": "Secret", "name": "vars" }] });
        sets.push(
            stageset(name)
                .retry_interval("1h")
                .stage(stage("app", name).set("postBuild", from))
                .apply(&world)
                .await,
        );
    }
    let mut told = Vec::new();
    for set in &sets {
        set.until_reason("StageFailed").await;
        set.until_event("StageFailed").await;
        let said = everything_said(set).await;
        println!("{}: {}", set.name, set.message().await);
        if said.contains("hunter2") || said.contains("aHVudGVyMi1iNjQ") {
            told.push(set.name.clone());
        }
    }
    assert!(told.is_empty(), "these tell the password: {told:?}");
    let log = world.controller_ref().tail(5000);
    assert!(!log.contains("hunter2"), "the log tells the password");
}

/// Dependencies of another namespace look alike whatever their state, and the flag keeps them unread.
///
/// Rules: run 7.3 cross, run B18, contract 13.7
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_dependency_tells_nothing_but_whether_it_is_met() {
    let world = World::start("foreign-dependency").await;
    let there = world.another_namespace("b").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let failed = stageset("failed")
        .stage(stage("app", "none"))
        .apply_in(&world, &there)
        .await;
    let status = json!({ "observedGeneration": failed.generation, "version": "1.2.3", "conditions": [{ "type": "Ready", "status": "False",
        "reason": "StageFailed", "message": "hidden", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    world
        .cluster
        .patch_status(&objects::stagesets(), &there, "failed", status)
        .await;
    let mut texts = BTreeSet::new();
    for (name, on) in [
        ("absent", json!({ "name": "absent", "namespace": there })),
        ("failed", json!({ "name": "failed", "namespace": there })),
        (
            "old",
            json!({ "name": "failed", "namespace": there, "minVersion": "9.0.0" }),
        ),
    ] {
        let set = stageset(name)
            .set("dependsOn", json!([on]))
            .stage(stage("app", "app"))
            .apply(&world)
            .await;
        set.until("waiting", |s| {
            condition_of(s, "Ready").is_some_and(|c| c["status"] == "False")
        })
        .await;
        let ready = set.condition("Ready").await.expect("Ready");
        texts.insert(format!(
            "{} {}",
            ready["reason"],
            set.message().await.replace("absent", "failed")
        ));
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    let text = texts.first().expect("one");
    assert!(
        !text.contains("hidden") && !text.contains("1.2.3") && !text.contains("StageFailed"),
        "{text}"
    );
    // It is met as soon as it is ready, without anything said about it.
    let mut good = json!({ "observedGeneration": failed.generation, "conditions": [{ "type": "Ready", "status": "True", "reason": "Succeeded",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    good["version"] = json!("1.2.3");
    world
        .cluster
        .patch_status(&objects::stagesets(), &there, "failed", good)
        .await;
    StageSet::named(&world, "failed").await.until_ready().await;
}

/// Rules: run 7.3 cross, run 8.5 flag, contract 13.7, run 8.5 own
#[tokio::test(flavor = "multi_thread")]
async fn the_flag_keeps_foreign_dependencies_unread() {
    let world = World::builder("foreign-flag")
        .flag("--no-cross-namespace-refs")
        .start()
        .await;
    let there = world.another_namespace("b").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let set = stageset("app")
        .set("dependsOn", json!([{ "name": "db", "namespace": there }]))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_reason("DependencyNotReady").await;
    assert!(
        set.message().await.contains("--no-cross-namespace-refs"),
        "{}",
        set.message().await
    );
    let reads = world.proxy.all().within(&there);
    assert!(reads.is_empty(), "\n{}", reads.lines());
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
    // Its own namespace, spelled out, is none of another.
    let own = stageset("own")
        .set("dependsOn", json!([{ "name": "db", "namespace": world.namespace }]))
        .stage(crate::support::stageset::stage_from(
            "app",
            json!({ "name": "app", "namespace": world.namespace }),
        ))
        .apply(&world)
        .await;
    own.until_reason("DependencyNotReady").await;
    assert!(
        own.message().await.contains("does not exist"),
        "{}",
        own.message().await
    );
    world
        .publish("db", &[("m.yaml", &multi(&[configmap("db", "1")]))])
        .await;
    let db = stageset("db").stage(stage("app", "db")).apply(&world).await;
    db.until_ready().await;
    own.until_ready().await;
}
