//! Whose rights a stage has, what becomes of them, and what is counted about it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, World, look,
    objects::{self, configmap, multi, widget},
    stageset::{stage, stageset},
};

/// An account that may do anything with ConfigMaps of the namespace.
fn account(name: &str, namespace: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: {name} }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: \
         RoleBinding\nmetadata: {{ name: {name} }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \
         stageset-it-tenant }}\nsubjects: [{{ kind: ServiceAccount, name: {name}, namespace: {namespace} }}]\n"
    )
}

fn users(world: &World, verb: Verb, name: &str) -> Vec<String> {
    let calls = world
        .proxy
        .all()
        .matching(&Match::writes().verb(verb).resource("configmaps").name(name));
    let mut users: Vec<String> = calls.records().iter().map(|r| r.call.user.clone()).collect();
    users.dedup();
    users
}

/// Rules: run 3.1 d, run 4.1.4, run 19.2 identity, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn each_stage_acts_as_its_own_account_in_all_it_does() {
    let world = World::start("own-account").await;
    for name in ["one", "two"] {
        world
            .cluster
            .apply_yaml(&account(name, &world.namespace), &world.namespace)
            .await;
        let maps = ["a", "b"].map(|suffix| configmap(&format!("{name}-{suffix}"), "1"));
        world.publish(name, &[("m.yaml", &multi(&maps))]).await;
    }
    let set = stageset("shop")
        .stage(stage("one", "one").set("serviceAccountName", json!("one")))
        .stage(stage("two", "two").set("serviceAccountName", json!("two")))
        .apply(&world)
        .await;
    set.until_ready().await;
    let mut last = String::new();
    for name in ["one", "two"] {
        last = world
            .publish(name, &[("m.yaml", &configmap(&format!("{name}-a"), "2"))])
            .await;
    }
    set.until_rolled_out("two", &last).await;
    set.delete().await;
    set.until_gone().await;
    for name in ["one", "two"] {
        let user = vec![format!("system:serviceaccount:{}:{name}", world.namespace)];
        for (verb, object) in [(Verb::Patch, "a"), (Verb::Delete, "b"), (Verb::Delete, "a")] {
            assert_eq!(
                users(&world, verb, &format!("{name}-{object}")),
                user,
                "{verb:?} {name}-{object}"
            );
        }
    }
}

/// Sources, records and status are the controller's own; everything else is the tenant's.
///
/// Rules: run 11.1 sources, run 11.1 tenant, contract 14.1
#[tokio::test(flavor = "multi_thread")]
async fn the_controller_itself_touches_its_bookkeeping_alone() {
    let world = World::start("bookkeeping").await;
    let variables = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: variables }\ndata: { value: good }\n";
    world.cluster.apply_yaml(variables, &world.namespace).await;
    world
        .publish(
            "app",
            &[("m.yaml", &multi(&[configmap("map", "${value}"), widget("w", 1)]))],
        )
        .await;
    world.widget("w", true).await;
    let from = json!({ "substituteFrom": [{ "kind": "ConfigMap", "name": "variables" }] });
    let set = stageset("shop")
        .stage(stage("app", "app").set("postBuild", from))
        .apply(&world)
        .await;
    set.until_ready().await;
    set.delete().await;
    set.until_gone().await;
    let tenant = format!("system:serviceaccount:{}:tenant", world.namespace);
    let calls = world.proxy.all();
    for record in calls.records() {
        let call = &record.call;
        let own = ["stagesets", "stageinventories", "events", "customresourcedefinitions"]
            .contains(&call.resource.as_str())
            || call.group == "source.toolkit.fluxcd.io"
            || call.verb == Verb::NonResource
            || (call.resource == "namespaces" && call.name == "kube-system" && call.verb == Verb::Get)
            // What rights it has, at its start and where it is asked to act without an account.
            || (call.resource == "selfsubjectaccessreviews" && call.user.is_empty());
        assert_eq!(call.user.is_empty(), own, "{}", call.line());
        assert!(own || call.user == tenant, "{}", call.line());
        assert!(
            record.status.is_none_or(|s| s != 403),
            "the rights are enough: {}",
            call.line()
        );
    }
    // What it may not do at all, whoever asks.
    for (group, resource, verb) in [
        ("", "configmaps", "create"),
        ("", "secrets", "list"),
        ("", "secrets", "update"),
        ("apps", "deployments", "patch"),
        ("apps", "deployments", "delete"),
        ("", "pods", "list"),
        ("rbac.authorization.k8s.io", "roles", "create"),
        ("", "users", "impersonate"),
        ("", "groups", "impersonate"),
    ] {
        let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": format!("system:serviceaccount:{}:controller", world.namespace),
            "resourceAttributes": { "group": group, "resource": resource, "verb": verb, "namespace": world.namespace } } });
        let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        let answer: Value = world.cluster.client.request(request).await.expect("an answer");
        assert_ne!(answer["status"]["allowed"], true, "{verb} {resource}");
    }
}

/// A namespace that is deleted goes, with its StageSets and their accounts in whatever order.
///
/// Rules: run B13 account
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_deleted_is_not_held_up() {
    let mut world = World::builder("gone-namespace").without_controller().start().await;
    let there = world.another_namespace("b").await;
    world.set_flag(
        "--watch-namespaces",
        &format!("--watch-namespaces={},{there}", world.namespace),
    );
    world.start_controller().await;
    let names: Vec<String> = (0..5).map(|i| format!("map-{i}")).collect();
    let maps: Vec<String> = names.iter().map(|n| configmap(n, "1")).collect();
    world.publish("app", &[("m.yaml", &multi(&maps))]).await;
    let source = || json!({ "name": "app", "namespace": world.namespace });
    let set = stageset("shop").stage(crate::support::stageset::stage_from("app", source()));
    set.apply_in(&world, &there).await.until_ready().await;
    // The account goes first, as it may in a namespace on its way out.
    world
        .cluster
        .delete(&objects::service_accounts(), &there, "tenant")
        .await;
    world.cluster.delete(&objects::namespaces(), "", &there).await;
    world.cluster.until_gone(&objects::namespaces(), "", &there).await;
}

async fn metric(world: &World, name: &str, stage: &str) -> Option<f64> {
    let text = world.controller_ref().metrics_text().await;
    let wanted = format!("stage=\"{stage}\"");
    text.lines()
        .find(|l| l.starts_with(&format!("{name}{{")) && l.contains(&wanted))
        .and_then(|l| l.rsplit(' ').next()?.parse().ok())
}

async fn until_metric(world: &World, name: &str, stage: &str, value: Option<f64>) {
    look(Duration::from_secs(10), || async {
        let seen = metric(world, name, stage).await;
        if seen == value {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await
    .unwrap_or_else(|seen| panic!("{name} of {stage} is {seen} instead of {value:?}"));
}

/// Rules: run 3.1 v, run 21.3 gauge, run 4.1.5
#[tokio::test(flavor = "multi_thread")]
async fn stages_are_counted_and_their_series_go_with_them() {
    let world = World::start("series").await;
    world.publish("one", &[("m.yaml", &configmap("map", "1"))]).await;
    world.publish("two", &[("w.yaml", &widget("gate", 1))]).await;
    world.widget("gate", false).await;
    let set = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    set.until_phase("two", "Verifying").await;
    until_metric(&world, "stageset_stage_ready", "one", Some(1.0)).await;
    until_metric(&world, "stageset_stage_ready", "two", Some(0.0)).await;
    until_metric(&world, "stageset_stage_applied_total", "one", Some(1.0)).await;
    world.widget("gate", true).await;
    set.until_ready().await;
    until_metric(&world, "stageset_stage_ready", "two", Some(1.0)).await;
    let revision = world.publish("one", &[("m.yaml", &configmap("map", "2"))]).await;
    set.until_rolled_out("one", &revision).await;
    until_metric(&world, "stageset_stage_applied_total", "one", Some(2.0)).await;
    set.delete().await;
    set.until_gone().await;
    for name in ["stageset_stage_ready", "stageset_stage_applied_total"] {
        until_metric(&world, name, "one", None).await;
        until_metric(&world, name, "two", None).await;
    }
    let labels = ["name=\"shop\""];
    assert_eq!(
        world.controller_ref().metric("stageset_reconcile_total", &labels).await,
        0.0
    );
}

/// Rules: run 3 step 1, run 4.1.1
#[tokio::test(flavor = "multi_thread")]
async fn what_came_and_went_unseen_leaves_nothing_to_do() {
    let mut world = World::builder("unseen").without_controller().start().await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    stageset("shop").stage(stage("app", "app")).apply(&world).await;
    world
        .cluster
        .delete(&objects::stagesets(), &world.namespace, "shop")
        .await;
    world
        .cluster
        .until_gone(&objects::stagesets(), &world.namespace, "shop")
        .await;
    // One that goes between two looks of the controller is no error either.
    world.start_controller().await;
    let short = stageset("short").stage(stage("app", "app")).apply(&world).await;
    short.delete().await;
    short.until_gone().await;
    let names = world.proxy.all().writes().matching(&Match::any().name("shop"));
    assert!(names.is_empty(), "\n{}", names.lines());
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
}

/// Rules: run 6 unchanged, run 5
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_spec_can_be_suspended_and_deleted() {
    let world = World::start("invalid-asleep").await;
    let producer = json!({ "kind": "Snippet", "name": "no-version" });
    let mut set = stageset("bad")
        .stage(crate::support::stageset::stage_from("app", producer))
        .apply(&world)
        .await;
    set.until_reason("InvalidSpec").await;
    set.suspend(true).await;
    set.until_reason("Suspended").await;
    set.delete().await;
    set.until_gone().await;
}

/// A wait whose inputs have changed is of no use: the stage begins again.
///
/// Rules: decisions 3.2
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_variables_changed_starts_its_stage_again() {
    let world = World::start("inputs").await;
    let variables = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: variables }}\ndata: {{ value: {value} }}\n")
    };
    world.cluster.apply_yaml(&variables("old"), &world.namespace).await;
    world
        .publish(
            "app",
            &[("m.yaml", &multi(&[configmap("map", "${value}"), widget("gate", 1)]))],
        )
        .await;
    world.widget("gate", false).await;
    let from = json!({ "substituteFrom": [{ "kind": "ConfigMap", "name": "variables" }] });
    let set = stageset("shop")
        .stage(stage("app", "app").set("postBuild", from))
        .apply(&world)
        .await;
    set.until_phase("app", "Verifying").await;
    assert_eq!(world.config_value("map").await.as_deref(), Some("old"));
    let began = set.stage("app").await["stepStartedAt"].clone();
    world.cluster.apply_yaml(&variables("new"), &world.namespace).await;
    set.request().await;
    look(Duration::from_secs(15), || async {
        let value = world.config_value("map").await;
        if value.as_deref() == Some("new") {
            Ok(())
        } else {
            Err(format!("{value:?}"))
        }
    })
    .await
    .expect("applied anew");
    set.until("the clock starts anew", |s| {
        let entry = crate::support::stageset::stage_of(s, "app");
        entry["phase"] == "Verifying" && entry["stepStartedAt"] != began
    })
    .await;
    world.widget("gate", true).await;
    set.until_ready().await;
}
