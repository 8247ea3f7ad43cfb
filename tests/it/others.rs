//! What is not the StageSet's own wakes it all the same: listed objects, variables, kubeconfigs; and what cannot be
//! watched is polled, with the missing right named.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, World, look,
    objects::{self, configmap, widget},
    stageset::{stage, stage_of, stageset},
};

/// Long enough that nothing but a wake-up explains what happens.
const NEVER: &str = "1h";

fn watches_of(resource: &str) -> Match {
    Match::any().verb(Verb::Watch).resource(resource)
}

/// A stage waits for an object that it does not own: a watch on that one object tells when it is ready.
/// Rules: decisions 5 named
#[tokio::test(flavor = "multi_thread")]
async fn a_listed_object_of_others_is_watched_by_its_name() {
    let world = World::start("listed").await;
    world.cluster.apply_yaml(&widget("gate", 1), &world.namespace).await;
    world.widget("gate", false).await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let checks = json!([{ "apiVersion": objects::widgets().api_version, "kind": "Widget", "name": "gate" }]);
    let set = stageset("shop")
        .interval(NEVER)
        .retry_interval(NEVER)
        .stage(stage("app", "app").set("readyChecks", json!({ "checks": checks })))
        .apply(&world)
        .await;
    set.until("waiting for the gate", |s| {
        let waits = stage_of(s, "app")["waitingFor"].as_str().unwrap_or_default();
        waits.contains("gate")
    })
    .await;
    look(Duration::from_secs(10), || async {
        match world.proxy.all().matching(&watches_of("widgets")).count() {
            0 => Err("no watch".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("the gate is watched");
    let mark = world.proxy.mark();
    let gets = Match::any().verb(Verb::Get).resource("widgets").name("gate");
    world
        .stays("the gate is not polled", Duration::from_secs(4), || async {
            match world.proxy.since(mark).matching(&gets).count() {
                0 | 1 => Ok(()),
                polls => Err(format!("{polls} reads")),
            }
        })
        .await;
    let began = std::time::Instant::now();
    world.widget("gate", true).await;
    set.until_ready_within(Duration::from_secs(5)).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// What is listed by name is looked after for as long as the release is: what belongs to others, and what is the
/// StageSet's own but left alone.
///
/// Rules: decisions 2 unready, decisions 5 named
#[tokio::test(flavor = "multi_thread")]
async fn a_listed_object_that_breaks_later_is_noticed() {
    let world = World::start("listed-later").await;
    for name in ["theirs", "kept"] {
        world.widget(name, true).await;
        let files = match name {
            "kept" => widget("kept", 1),
            _ => configmap("map", "1"),
        };
        world.publish(name, &[("m.yaml", &files)]).await;
        let checks = json!([{ "apiVersion": objects::widgets().api_version, "kind": "Widget", "name": name }]);
        let keep = json!({ "rules": [{ "target": { "kind": "Widget" }, "action": "KeepExisting" }] });
        let app = stage("app", name)
            .timeout("3s")
            .set("conflictPolicy", keep)
            .set("readyChecks", json!({ "checks": checks }));
        let set = stageset(name)
            .interval(NEVER)
            .retry_interval(NEVER)
            .stage(app)
            .apply(&world)
            .await;
        set.until_ready().await;
        // A pass that compares everything changes nothing about that.
        set.reconcile().await;
        world.widget(name, false).await;
        let told = |s: &Value| {
            let waits = stage_of(s, "app")["waitingFor"].as_str().unwrap_or_default();
            waits.contains(name) && stage_of(s, "app")["phase"] == "Verifying"
        };
        set.until_within(&format!("aware that {name} broke"), Duration::from_secs(10), told)
            .await;
        set.until_reason("StageFailed").await;
        world.widget(name, true).await;
        set.until_ready_within(Duration::from_secs(10)).await;
        set.delete().await;
        set.until_gone().await;
    }
}

fn variable(kind: &str, value: &str) -> Value {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": "vars" }, field: { "value": value } })
}

/// The sources of variables are watched: a change rolls out without waiting for the interval, and one that was missing
/// is taken as soon as it is there.
/// Rules: run 2.3 config
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_variable_rolls_out_at_once() {
    let world = World::start("variables").await;
    for (kind, name) in [("ConfigMap", "map"), ("Secret", "secret")] {
        world.publish("app", &[("m.yaml", &configmap(name, "${value}"))]).await;
        let from = json!([{ "kind": kind, "name": "vars" }]);
        let set = stageset(name)
            .interval(NEVER)
            .retry_interval(NEVER)
            .stage(stage("app", "app").set("postBuild", json!({ "substituteFrom": from })))
            .apply(&world)
            .await;
        let ready = set.until_reason("StageFailed").await;
        let message = ready["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("vars") && message.contains("does not exist"),
            "{message}"
        );
        for value in ["first", "second"] {
            world.cluster.apply(&variable(kind, value), &world.namespace).await;
            let taken = look(Duration::from_secs(5), || async {
                match world.config_value(name).await {
                    Some(found) if found == value => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            if let Err(seen) = taken {
                world.fail(&format!("{kind}: {value} was not taken: {seen}")).await;
            }
            set.until_ready().await;
        }
        set.delete().await;
        set.until_gone().await;
    }
}

/// A tenant that may read but not watch is served by polling; the missing right is told once.
/// Rules: decisions 5 tenant
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_to_watch_is_told_once_and_polled_for() {
    let world = World::start("unwatched").await;
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: blind }\n";
    world.cluster.apply_yaml(account, &world.namespace).await;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "blind" },
        "rules": [{ "apiGroups": ["fixture.stageset.test"], "resources": ["widgets"],
                    "verbs": ["get", "create", "patch", "delete"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "blind" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "blind" },
        "subjects": [{ "kind": "ServiceAccount", "name": "blind", "namespace": world.namespace }] });
    world.cluster.apply(&role, &world.namespace).await;
    world.cluster.apply(&binding, &world.namespace).await;
    world.publish("app", &[("w.yaml", &widget("gate", 1))]).await;
    world.widget("gate", false).await;
    let set = stageset("shop")
        .interval(NEVER)
        .set("serviceAccountName", json!("blind"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    let event = set.until_event("WatchForbidden").await;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(
        note.contains("cannot list resource \"widgets\"")
            && note.ends_with("grant list and watch to ServiceAccount \"blind\""),
        "{note}"
    );
    set.until("saying that it polls", |s| {
        let waits = stage_of(s, "app")["waitingFor"].as_str().unwrap_or_default();
        waits.contains("gate") && waits.contains("cannot list")
    })
    .await;
    world.widget("gate", true).await;
    set.until_ready().await;
    set.request().await;
    set.until_ready().await;
    assert_eq!(set.event_count("WatchForbidden").await, 1);
}
