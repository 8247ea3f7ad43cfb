//! StageSets without an account: the controller's rights are for its own work, unless it was given all there are.

use serde_json::{Value, json};

use super::{Attempt, Neighbour, all_fail, attempt, in_namespace};
use crate::support::{
    Match, When, World,
    objects::{self, configmap},
    stageset::{Spec, Stage, StageSet, condition_of, stage, stageset},
};

fn without_account(name: &str) -> Spec {
    stageset(name).set("serviceAccountName", Value::Null)
}

/// A StageSet of its owner, who has suspended it.
fn prey(namespace: &str) -> Value {
    without_account("prey")
        .set("suspend", json!(true))
        .stage(stage("app", "app"))
        .object(namespace)
}

fn taken_over(namespace: &str) -> String {
    format!(
        "apiVersion: stages.metio.wtf/v1\nkind: StageSet\nmetadata: {{ name: prey, namespace: {namespace} }}\nspec:\n  suspend: false\n  \
         stages: [{{ name: app, sourceRef: {{ name: stolen }} }}]\n"
    )
}

fn lease(namespace: &str) -> String {
    format!(
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{ name: taken, namespace: {namespace} }}\nspec: {{ holderIdentity: \
         nobody }}\n"
    )
}

fn bind_everything(namespace: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{ name: all-{namespace} }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin }}\nsubjects: [{{ kind: ServiceAccount, name: controller, \
         namespace: {namespace} }}]\n"
    )
}

/// What the controller may write for its own work, it writes for nobody else.
///
/// Rules: run 11.1 none, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_own_work_is_nobodys_tool() {
    let world = World::start("attack-lent").await;
    let neighbour = Neighbour::of(&world).await;
    let (here, there) = (&world.namespace, &neighbour.namespace);
    world.cluster.apply(&prey(there), there).await;
    let before = world.cluster.must_get(&objects::stagesets(), there, "prey").await;
    let event = format!(
        "apiVersion: v1\nkind: Event\nmetadata: {{ name: forged, namespace: {there} }}\ninvolvedObject: {{ kind: Pod, name: x, namespace: \
         {there} }}\nreason: Forged\nmessage: forged\ntype: Warning\n"
    );
    let record = format!(
        "apiVersion: stages.metio.wtf/v1\nkind: StageInventory\nmetadata: {{ name: prey-app-0, namespace: {there} }}\nspec: {{ entries: [] \
         }}\n"
    );
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{ name: anybody, namespace: {here} }}\nrules: [{{ apiGroups: \
         [\"\"], resources: [serviceaccounts], verbs: [impersonate] }}]\n"
    );
    let webhook = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: { name: attack }\nwebhooks: \
                   []\n";
    let looked_for = in_namespace(
        there,
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: prey\n  annotations: { stages.metio.wtf/ssa: ifnotpresent }\n",
    );
    let attempts = [
        attempt("a StageSet of the neighbour", taken_over(there)),
        attempt("a record of the neighbour", record),
        attempt("a Lease", lease(here)),
        attempt("an Event of the neighbour", event),
        attempt("a webhook", webhook.to_owned()),
        attempt("a right of the controller", role),
        attempt("whether there is a Secret", looked_for),
    ];
    let names = [
        format!("StageSet/{there}/prey"),
        format!("StageInventory/{there}/prey-app-0"),
        format!("Lease/{here}/taken"),
        format!("Event/{there}/forged"),
        "ValidatingWebhookConfiguration/attack".to_owned(),
        format!("Role/{here}/anybody"),
        format!("Secret/{there}/prey"),
    ];
    let said = all_fail(&world, &attempts.map(without)).await;
    for (message, name) in said.iter().zip(&names) {
        assert!(
            message.contains(name) && message.contains("set spec.serviceAccountName"),
            "{name}: {message}"
        );
    }
    let after = world.cluster.must_get(&objects::stagesets(), there, "prey").await;
    assert_eq!(after, before, "the neighbour's StageSet was changed");
    for (kind, namespace, name) in [
        (objects::inventories(), there, "prey-app-0"),
        (objects::leases(), here, "taken"),
        (objects::roles(), here, "anybody"),
        (crate::support::objects::Kind::new("v1", "Event"), there, "forged"),
    ] {
        assert!(!world.cluster.exists(&kind, namespace, name).await, "{kind} {name}");
    }
    let reviews = world
        .proxy
        .all()
        .matching(&Match::any().resource("selfsubjectaccessreviews"));
    assert!(
        reviews.records().len() <= 20,
        "one answer serves all:\n{}",
        reviews.lines()
    );
}

/// The same attempt by a StageSet without an account.
fn without(attempt: Attempt) -> Attempt {
    Attempt {
        account: None,
        ..attempt
    }
}

/// What the controller may read, it tells nobody.
///
/// Rules: run 11.1 none, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn a_ready_check_without_an_account_tells_nothing_of_secrets() {
    let world = World::start("attack-oracle").await;
    let mut neighbour = Neighbour::of(&world).await;
    // As kubectl leaves it: the content is in an annotation too.
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: prey, annotations: { applied: hunter2 } }\nstringData: { password: \
                  hunter2 }\n";
    world.cluster.apply_yaml(secret, &world.namespace).await;
    world
        .cluster
        .annotate(
            &objects::secrets(),
            &neighbour.namespace,
            "prey",
            "applied",
            Some("hunter2"),
        )
        .await;
    neighbour.before = neighbour.prey(&world).await;
    world.publish("app", &[("none.yaml", "# nothing\n")]).await;
    let asks = |name: &str, object: Value, rule: Value| {
        let checks: Stage = stage("app", "app")
            .timeout("5s")
            .set("readyChecks", json!({ "checks": [object], "exprs": [rule] }));
        without_account(name).retry_interval("1h").stage(checks)
    };
    let secret =
        |namespace: &str| json!({ "apiVersion": "v1", "kind": "Secret", "name": "prey", "namespace": namespace });
    let begins_with_h =
        json!({ "apiVersion": "v1", "kind": "Secret", "current": "metadata.annotations['applied'].startsWith('h')" });
    let artifact = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "name": "prey",
        "namespace": neighbour.namespace });
    let exists = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "current": "true" });
    for (name, object, rule) in [
        ("there", secret(&neighbour.namespace), &begins_with_h),
        ("here", secret(&world.namespace), &begins_with_h),
        ("source", artifact, &exists),
    ] {
        let set = asks(name, object, rule.clone()).apply(&world).await;
        set.until_reason("StageFailed").await;
        let message = set.message().await;
        assert!(
            message.contains("verify") && message.contains("/prey") && message.contains("set spec.serviceAccountName"),
            "{name}: {message}"
        );
    }
    let read = world
        .proxy
        .all()
        .matching(&Match::any().resource("secrets").name("prey"));
    assert!(read.is_empty(), "\n{}", read.lines());
    neighbour.is_untouched(&world).await;
}

/// Where the controller is given everything, that is meant for the StageSets; and what else it is given, they may use.
///
/// Rules: run 11.1 none, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_may_do_everything_lends_everything() {
    let mut world = World::start("attack-admin").await;
    let there = world.another_namespace("b").await;
    world.cluster.apply(&prey(&there), &there).await;
    let some = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: some }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: stageset-it-tenant }}\nsubjects: [{{ kind: ServiceAccount, name: controller, \
         namespace: {} }}]\n",
        world.namespace
    );
    world.cluster.apply_yaml(&some, &world.namespace).await;
    world.publish("plain", &[("map.yaml", &configmap("map", "1"))]).await;
    let plain = without_account("plain")
        .stage(stage("app", "plain"))
        .apply(&world)
        .await;
    plain.until_ready().await;
    let all = [taken_over(&there), lease(&world.namespace)];
    world.publish("all", &[("all.yaml", &objects::multi(&all))]).await;
    let checks = json!({ "checks": [
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "namespace": there },
    ] });
    let set = without_account("all")
        .retry_interval("1h")
        .stage(stage("app", "all").set("readyChecks", checks))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    assert!(set.message().await.contains("set spec.serviceAccountName"));
    assert_eq!(set.inventory().await.len(), 0, "what is refused is not recorded");
    // A grant heals, without anybody asking.
    world
        .cluster
        .apply_yaml(&bind_everything(&world.namespace), &world.namespace)
        .await;
    set.until_ready().await;
    let prey = world.cluster.must_get(&objects::stagesets(), &there, "prey").await;
    assert_eq!(prey["spec"]["stages"][0]["sourceRef"]["name"], "stolen");
    assert!(
        world
            .cluster
            .exists(&objects::leases(), &world.namespace, "taken")
            .await
    );
    // What it may do cannot be found out for a while: that is no refusal, and nothing is given up.
    world.controller().kill();
    let reviews = Match::any().resource("selfsubjectaccessreviews");
    world.proxy.fail(reviews, When::Always, 500);
    world.controller().start_again();
    let set = StageSet::named(&world, "all").await;
    set.delete().await;
    set.until("a teardown that waits", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains("teardown: "))
    })
    .await;
    world.proxy.heal();
    set.until_gone().await;
    assert!(
        !world
            .cluster
            .exists(&objects::leases(), &world.namespace, "taken")
            .await
    );
    assert_eq!(set.event_count("TeardownForced").await, 0);
}
