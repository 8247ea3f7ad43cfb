//! Kinds that come with the release itself: definitions and their resources, and an operator's own idea of ready.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use super::grant;
use crate::support::{
    Match, Verb, World,
    objects::{Kind, configmap, multi},
    stageset::{StageSet, stage, stage_of, stageset},
};

/// A kind of this test alone.
fn own_kind(word: &str) -> Kind {
    let random = rand::random_range(0..0x0100_0000_u32);
    Kind::new("workloads.stageset.test/v1", &format!("{word}{random:06x}"))
}

pub fn plural(kind: &Kind) -> String {
    format!("{}s", kind.kind.to_lowercase())
}

/// YAML of its definition, with a status subresource or without.
pub fn definition(kind: &Kind, status: bool) -> String {
    let singular = kind.kind.to_lowercase();
    let subresources = if status { "{ status: {} }" } else { "{}" };
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{ name: {plural}.{group} }}\nspec:\n  \
         group: {group}\n  scope: Namespaced\n  names: {{ kind: {name}, plural: {plural}, singular: {singular} }}\n  \
         versions:\n    - name: {version}\n      served: true\n      storage: true\n      subresources: {subresources}\n      \
         schema: {{ openAPIV3Schema: {{ type: object, x-kubernetes-preserve-unknown-fields: true }} }}\n",
        plural = plural(kind),
        group = kind.group(),
        name = kind.kind,
        version = kind.version(),
    )
}

pub fn resource(kind: &Kind, name: &str, size: u32) -> String {
    format!(
        "apiVersion: {}\nkind: {}\nmetadata: {{ name: {name} }}\nspec: {{ size: {size} }}\n",
        kind.api_version, kind.kind
    )
}

/// The tenant may install definitions.
pub async fn may_define(world: &World) {
    let rules =
        json!([{ "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["*"] }]);
    grant(world, rules).await;
}

async fn tidy(world: &World, set: &StageSet<'_>, kind: &Kind) {
    set.delete().await;
    set.until_gone().await;
    let name = format!("{}.{}", plural(kind), kind.group());
    assert!(
        !world.cluster.exists(&crate::support::objects::crds(), "", &name).await,
        "the definition goes with the StageSet"
    );
}

/// Rules: run 16.1 waves, run 27.2 crd
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_and_its_resource_fit_into_one_stage() {
    let world = World::start("crd-one").await;
    may_define(&world).await;
    let kind = own_kind("Gear");
    let all = multi(&[
        resource(&kind, "first", 1),
        configmap("beside", "1"),
        definition(&kind, false),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_ready_within(Duration::from_secs(20)).await;
    let live = world.cluster.must_get(&kind, &world.namespace, "first").await;
    assert_eq!(live["spec"]["size"], 1);
    let writes = world.proxy.all().matching(&Match::writes().verb(Verb::Patch));
    let order: Vec<&str> = writes
        .records()
        .iter()
        .map(|r| r.call.resource.as_str())
        .filter(|r| *r == "customresourcedefinitions" || *r == plural(&kind))
        .collect();
    assert_eq!(
        order,
        ["customresourcedefinitions", &plural(&kind)],
        "the resource is sent once, after its definition is in force\n{}",
        writes.lines()
    );
    assert_eq!(app.event_count("StageFailed").await, 0);
    tidy(&world, &app, &kind).await;
}

/// What cert-manager's injector puts in place of an author's stand-in stays there.
///
/// Rules: run 14.7 bundle
#[tokio::test(flavor = "multi_thread")]
async fn a_stand_in_for_a_conversion_bundle_is_left_to_whoever_injects_the_real_one() {
    let world = World::start("crd-bundle").await;
    may_define(&world).await;
    let kind = own_kind("Lid");
    let webhook = "  conversion:\n    strategy: Webhook\n    webhook:\n      conversionReviewVersions: [v1]\n      clientConfig:\n        \
                   service: { name: none, namespace: none }\n        caBundle: Cg==\n";
    let brings = format!("{}{webhook}", definition(&kind, false));
    world.publish("app", &[("crd.yaml", &brings)]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_ready().await;
    let (crds, name) = (
        crate::support::objects::crds(),
        format!("{}.{}", plural(&kind), kind.group()),
    );
    let bundle = base64::engine::general_purpose::STANDARD.encode(world.cluster.ca_pem());
    let injected = json!({ "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": bundle } } } } });
    world.cluster.patch(&crds, "", &name, injected).await;
    app.reconcile().await;
    let labelled = brings.replace("metadata: { name:", "metadata: { labels: { revision: two }, name:");
    let revision = world.publish("app", &[("crd.yaml", &labelled)]).await;
    app.until_rolled_out("app", &revision).await;
    let live = world.cluster.must_get(&crds, "", &name).await;
    assert_eq!(live["metadata"]["labels"]["revision"], "two");
    let found = &live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"];
    assert_eq!(*found, bundle, "{live}");
    tidy(&world, &app, &kind).await;
}

/// Rules: run 27.2 crd
#[tokio::test(flavor = "multi_thread")]
async fn a_definition_and_its_resource_roll_out_in_two_stages() {
    let world = World::start("crd-two").await;
    may_define(&world).await;
    let kind = own_kind("Cog");
    world.publish("crds", &[("crd.yaml", &definition(&kind, true))]).await;
    world
        .publish("app", &[("cog.yaml", &resource(&kind, "first", 1))])
        .await;
    let app = stageset("app")
        .retry_interval("1h")
        .stage(stage("crds", "crds"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    app.until_phase("app", "Verifying").await;
    let ready = json!({ "observedGeneration": 1, "conditions": [
        { "type": "Ready", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    world
        .cluster
        .patch_status(&kind, &world.namespace, "first", ready)
        .await;
    app.until_ready_within(Duration::from_secs(20)).await;
    assert_eq!(app.event_count("StageFailed").await, 0);

    // A second version of the resource; the definition is left as it is.
    let mark = world.proxy.mark();
    let revision = world
        .publish("app", &[("cog.yaml", &resource(&kind, "first", 2))])
        .await;
    app.until_phase("app", "Verifying").await;
    let again = json!({ "observedGeneration": 2 });
    world
        .cluster
        .patch_status(&kind, &world.namespace, "first", again)
        .await;
    app.until_rolled_out("app", &revision).await;
    let definitions = world
        .proxy
        .since(mark)
        .matching(&Match::writes().resource("customresourcedefinitions"));
    assert!(definitions.is_empty(), "\n{}", definitions.lines());
    tidy(&world, &app, &kind).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_the_server_does_not_accept_is_named() {
    let world = World::start("crd-bad").await;
    may_define(&world).await;
    let kind = own_kind("Cam");
    let broken = definition(&kind, false).replace("type: object, x-", "type: objekt, x-");
    let all = multi(&[broken, resource(&kind, "first", 1)]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let app = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    let ready = app.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("CustomResourceDefinition") && message.contains(&plural(&kind)),
        "{message}"
    );
}

/// What the operator of a progressive delivery writes; only the words that its resource is judged by.
fn rollout_status(generation: i64, phase: &str, current: bool) -> Value {
    json!({ "observedGeneration": generation.to_string(), "phase": phase, "currentPodHash": if current { "new" } else { "old" }, "stableRS": "new" })
}

fn rollout(image: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {{ name: web }}\nspec:\n  replicas: 2\n  \
         selector: {{ matchLabels: {{ app: web }} }}\n  strategy: {{ canary: {{ steps: [{{ setWeight: 20 }}, {{ pause: {{}} }}] }} }}\n  \
         template:\n    metadata: {{ labels: {{ app: web }} }}\n    spec: {{ containers: [{{ name: main, image: '{image}' }}] }}\n"
    )
}

/// Rules: run 18.3 current, run 18.3 failed, run B12 exprs
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_argo_is_judged_by_expressions() {
    let world = World::start("argo").await;
    let kind = Kind::new("argoproj.io/v1alpha1", "Rollout");
    let says = |status: Value| {
        let (world, kind) = (&world, &kind);
        async move { world.cluster.patch_status(kind, &world.namespace, "web", status).await }
    };
    let exprs = json!([{
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        "current": "status.observedGeneration == string(metadata.generation) && status.phase == 'Healthy' && status.currentPodHash == status.stableRS",
        "failed": "status.phase == 'Degraded'",
        "inProgress": "status.phase in ['Progressing', 'Paused']",
    }]);
    world.publish("web", &[("web.yaml", &rollout("web:1"))]).await;
    world.publish("next", &[("map.yaml", &configmap("next", "1"))]).await;
    let web = stageset("web")
        .retry_interval("1h")
        .stage(stage("web", "web").set("readyChecks", json!({ "exprs": exprs })))
        .stage(stage("next", "next"))
        .apply(&world)
        .await;
    web.until_phase("web", "Verifying").await;
    says(rollout_status(1, "Progressing", false)).await;
    let named = |s: &Value| {
        stage_of(s, "web")["waitingFor"]
            .as_str()
            .is_some_and(|w| w.contains("Rollout") && w.contains("web"))
    };
    web.until("waiting for the Rollout", named).await;
    // The phase alone is not enough: another pod hash than the stable one means that it has not finished.
    says(rollout_status(1, "Healthy", false)).await;
    world
        .stays("the next stage waits", Duration::from_millis(700), || async {
            world.config_value("next").await.map_or(Ok(()), Err)
        })
        .await;
    says(rollout_status(1, "Healthy", true)).await;
    web.until_ready_within(Duration::from_secs(10)).await;

    let revision = world.publish("web", &[("web.yaml", &rollout("web:2"))]).await;
    web.until("verifying the new one", |s| {
        stage_of(s, "web")["phase"] == "Verifying" && stage_of(s, "web")["appliedRevision"] == revision
    })
    .await;
    // What it says of the old generation does not count for the new one.
    says(rollout_status(2, "Degraded", false)).await;
    let ready = web.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("stage \"web\" verify") && message.contains("Rollout"),
        "{message}"
    );
    // A promoted Rollout heals the stage by itself.
    says(rollout_status(2, "Healthy", true)).await;
    web.until_rolled_out("web", &revision).await;
}
