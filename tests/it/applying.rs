//! How objects are sent: in what shape, in what order, with which labels, and what is left out.

use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{
    Archive, Class, Match, Tally, Verb, World,
    objects::{self, Kind, configmap, deployment, multi},
    stageset::{Stage, condition_of, stage, stageset},
};

async fn map(world: &World, name: &str) -> Value {
    world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, name)
        .await
}

/// Waits a moment and fails where the controller writes anything.
async fn at_rest(world: &World, span: Duration) {
    let mark = world.proxy.mark();
    world
        .stays("at rest", span, || async {
            let writes = world.proxy.since(mark).writes();
            if writes.is_empty() { Ok(()) } else { Err(writes.lines()) }
        })
        .await;
}

/// Rules: run D12, run 17.2 applyset
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_is_an_applyset_that_kubectl_understands() {
    let world = World::start("applyset").await;
    let all = multi(&[configmap("map", "1"), deployment("web", "web:1", 1)]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let parent = world
        .cluster
        .must_get(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    let hash = Sha256::digest(format!(
        "shop-app-0.{}.StageInventory.stages.metio.wtf",
        world.namespace
    ));
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash);
    let id = format!("applyset-{encoded}-v1");
    assert_eq!(parent["metadata"]["labels"]["applyset.kubernetes.io/id"], id.as_str());
    let annotations = &parent["metadata"]["annotations"];
    assert_eq!(
        annotations["applyset.kubernetes.io/contains-group-kinds"],
        "ConfigMap,Deployment.apps"
    );
    assert!(
        annotations["applyset.kubernetes.io/tooling"]
            .as_str()
            .is_some_and(|t| t.contains('/')),
        "{annotations}"
    );
    assert_eq!(
        map(&world, "map").await["metadata"]["labels"]["applyset.kubernetes.io/part-of"],
        id.as_str()
    );
    let crd = world
        .cluster
        .must_get(&objects::crds(), "", "stageinventories.stages.metio.wtf")
        .await;
    assert_eq!(
        crd["metadata"]["labels"]["applyset.kubernetes.io/is-parent-type"],
        "true"
    );
}

/// What only a server writes is taken out, what it would fill in makes no drift.
///
/// Rules: run 14.7, run 16.2.2, run 16.3
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_sent_as_a_server_would_store_them() {
    let world = World::start("normal").await;
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: secret, creationTimestamp: null }\ndata: { a: b25l }\nstringData: { b: two }\n";
    let web = deployment("web", "web:1", 1)
        + "status: { replicas: 7 }\n"
        + "---\n"
        + &objects::service("web", 80).replace(
            "  name: web\n",
            "  name: web\n  uid: made-up\n  resourceVersion: \"7\"\n",
        );
    let settings = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [all.yaml]\n";
    let all = multi(&[secret.to_owned(), web]);
    world
        .publish("app", &[("all.yaml", &all), ("kustomization.yaml", settings)])
        .await;
    let set = stageset("app")
        .interval("2s")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_ready().await;
    let live = world
        .cluster
        .must_get(&objects::secrets(), &world.namespace, "secret")
        .await;
    assert_eq!(live["data"], json!({ "a": "b25l", "b": "dHdv" }));
    let service = world
        .cluster
        .must_get(&objects::services(), &world.namespace, "web")
        .await;
    assert_eq!(service["spec"]["ports"][0]["protocol"], "TCP");
    set.until("a finished run", |s| s["run"].is_null()).await;
    // Two passes of 2 s.
    at_rest(&world, Duration::from_secs(5)).await;
    assert_eq!(set.event_count("DriftCorrected").await, 0);
}

/// Rules: run 14.8
#[tokio::test(flavor = "multi_thread")]
async fn helm_hooks_are_applied_with_a_warning_or_left_out() {
    let world = World::start("hooks").await;
    let hook = configmap("hook", "1").replace(
        "  name: hook\n",
        "  name: hook\n  annotations: { helm.sh/hook: pre-install }\n",
    );
    world
        .publish("app", &[("all.yaml", &multi(&[hook, configmap("map", "1")]))])
        .await;
    let with = stageset("with").stage(stage("app", "app")).apply(&world).await;
    with.until_ready().await;
    let event = with.until_event("HelmHookApplied").await;
    assert_eq!(event["type"], "Warning");
    assert!(event["note"].to_string().contains("hook"), "{event}");
    assert_eq!(world.applied(&objects::configmaps(), "with").await, ["hook", "map"]);
    with.delete().await;
    with.until_gone().await;
    let without = stageset("without")
        .stage(stage("app", "app").set("applyHelmHookResources", json!(false)))
        .apply(&world)
        .await;
    without.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "without").await, ["map"]);
    assert_eq!(without.event_count("HelmHookApplied").await, 0);
}

fn relabelled(app: &str) -> String {
    deployment("web", "web:1", 1).replace("app: web", &format!("app: {app}"))
}

async fn uid(world: &World) -> Value {
    let web = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    web["metadata"]["uid"].clone()
}

/// Rolls out a Deployment, then one with another selector, under these settings. Gives whether it was recreated.
async fn recreated(world: &World, name: &str, settings: fn(Stage) -> Stage, annotation: &str) -> bool {
    let annotated = |app: &str| relabelled(app).replace("  name: web\n", &format!("  name: web\n{annotation}"));
    world.publish(name, &[("web.yaml", &annotated("one"))]).await;
    let set = stageset(name)
        .interval("1s")
        .stage(settings(stage("web", name)))
        .apply(world)
        .await;
    set.until_ready().await;
    let before = uid(world).await;
    let revision = world.publish(name, &[("web.yaml", &annotated("two"))]).await;
    set.until("an answer", |s| {
        let failed = condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed");
        let entry = crate::support::stageset::stage_of(s, "web");
        failed || (entry["appliedRevision"] == revision.as_str() && s["run"].is_null())
    })
    .await;
    let after = uid(world).await;
    if after != before {
        let web = world
            .cluster
            .must_get(&objects::deployments(), &world.namespace, "web")
            .await;
        let metadata = &web["metadata"];
        for part in ["labels", "annotations"] {
            let keys = metadata[part].as_object().cloned().unwrap_or_default();
            let markers = keys
                .keys()
                .filter(|k| k.ends_with("/force") || k.ends_with("/keep-existing"))
                .filter(|k| !annotation.contains(k.as_str()));
            assert_eq!(markers.count(), 0, "{metadata}");
        }
        at_rest(world, Duration::from_secs(2)).await;
        assert_eq!(set.event_count("DriftCorrected").await, 0);
    }
    set.delete().await;
    set.until_gone().await;
    after != before
}

/// Who may recreate: `force` where the policy says nothing else, the first rule that matches, the object itself. None of
/// them leaves a mark on the object, and the passes after it write nothing.
///
/// Rules: run 16.5 force, run 16.6 default, run 16.6 precedence, run 16.6 match, run B7
#[tokio::test(flavor = "multi_thread")]
async fn recreation_goes_by_object_then_rule_then_default_and_leaves_no_mark() {
    let world = World::start("recreate").await;
    let force: fn(Stage) -> Stage = |s| s.set("force", json!(true));
    assert!(recreated(&world, "force", force, "").await);
    let force_with_rules: fn(Stage) -> Stage = |s| {
        let rules = json!({ "rules": [{ "target": { "kind": "Service" }, "action": "Fail" }] });
        s.set("force", json!(true)).set("conflictPolicy", rules)
    };
    assert!(
        recreated(&world, "force-rules", force_with_rules, "").await,
        "a policy without a default leaves force alone"
    );
    let explicit: fn(Stage) -> Stage = |s| {
        s.set("force", json!(true))
            .set("conflictPolicy", json!({ "default": "Fail" }))
    };
    assert!(!recreated(&world, "explicit", explicit, "").await);
    let first: fn(Stage) -> Stage = |s| {
        let rules = [("web", "Fail"), ("web", "Recreate")]
            .map(|(name, action)| json!({ "target": { "name": name }, "action": action }));
        s.set("conflictPolicy", json!({ "default": "Recreate", "rules": rules }))
    };
    assert!(
        !recreated(&world, "first", first, "").await,
        "the first rule that matches decides"
    );
    let exact: fn(Stage) -> Stage = |s| {
        let rules = [
            json!({ "target": { "kind": "deployment" }, "action": "Fail" }),
            json!({ "target": { "name": "we*" }, "action": "Fail" }),
        ];
        s.set("conflictPolicy", json!({ "default": "Recreate", "rules": rules }))
    };
    assert!(
        recreated(&world, "exact", exact, "").await,
        "neither case nor patterns match"
    );
    for key in ["stages.metio.wtf/force", "kustomize.toolkit.fluxcd.io/force"] {
        let annotation = format!("  annotations: {{ {key}: enabled }}\n");
        let name = key.split('.').next().unwrap_or_default();
        assert!(recreated(&world, name, |s| s, &annotation).await, "{key}");
    }
}

/// An object that exists is read before it is written. One that no record names is created in one request, which
/// leaves alone what is there.
///
/// Rules: run 16.2.1, run 3 step 4, run 3 step 23, run 22.5, run 2.7 finalizer
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_looks_before_it_writes_and_tells_success_last() {
    let world = World::start("order-of-calls").await;
    let publish = async |value| {
        let maps = multi(&[configmap("a", value), configmap("b", value)]);
        world.publish("app", &[("all.yaml", &maps)]).await
    };
    publish("1").await;
    let set = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let run_ended = async || set.until("a finished run", |s| s["run"].is_null()).await;
    run_ended().await;
    let first = calls_about_it(&world.proxy.all());
    assert!(!first.iter().any(|l| l.starts_with("Get configmaps")), "{first:#?}");
    assert_eq!(
        first.first().map(String::as_str),
        Some("Patch stagesets shop"),
        "the finalizer: {first:#?}"
    );
    assert_eq!(
        first.last().map(String::as_str),
        Some("Patch stagesets shop status"),
        "{first:#?}"
    );
    let mark = world.proxy.mark();
    let revision = publish("2").await;
    set.until_rolled_out("app", &revision).await;
    run_ended().await;
    let second = calls_about_it(&world.proxy.since(mark));
    let at = |line: &str| second.iter().position(|l| l == line);
    for name in ["a", "b"] {
        let (get, patch) = (format!("Get configmaps {name}"), format!("Patch configmaps {name}"));
        assert!(at(&get).is_some() && at(&get) < at(&patch), "{second:#?}");
    }
    assert_eq!(
        second.last().map(String::as_str),
        Some("Patch stagesets shop status"),
        "{second:#?}"
    );
}

/// Requests about a StageSet, its record and its objects, in order; watches and their lists left out.
fn calls_about_it(calls: &Tally) -> Vec<String> {
    calls
        .records()
        .iter()
        .filter(|r| r.call.verb != Verb::Watch && r.call.verb != Verb::List)
        .filter(|r| ["configmaps", "stagesets", "stageinventories"].contains(&r.call.resource.as_str()))
        .map(|r| {
            let call = &r.call;
            format!("{:?} {} {} {}", call.verb, call.resource, call.name, call.subresource)
        })
        .map(|line| line.trim().to_owned())
        .collect()
}

/// Rules: run 14.1 root, run B19 names
#[tokio::test(flavor = "multi_thread")]
async fn the_root_has_many_names_and_dot_files_are_kept() {
    let world = World::start("root").await;
    let settings = "configMapGenerator:\n  - name: generated\n    envs: [.env]\ngeneratorOptions: { disableNameSuffixHash: true }\n";
    let archive = Archive::of(&[("kustomization.yaml", settings), (".env", "value=from-a-dot-file\n")]);
    world.publish_archive("app", &archive).await;
    for (at, path) in ["", ".", "./", "/"].into_iter().enumerate() {
        let set = stageset(&format!("root-{at}"))
            .stage(stage("app", "app").path(path))
            .apply(&world)
            .await;
        set.until_ready().await;
        assert_eq!(
            world.config_value("generated").await.as_deref(),
            Some("from-a-dot-file"),
            "{path:?}"
        );
        set.delete().await;
        set.until_gone().await;
    }
}

/// An object that does not fit its kind's schema is refused by the server with a 500: no reason to wait for a minute.
///
/// Rules: run 25 invalid, run 16.8
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_the_wrong_shape_is_reported_at_once() {
    let world = World::start("shape").await;
    let wrong = configmap("map", "1").replace("data:\n  value: \"1\"", "data: [not, a, map]");
    world.publish("app", &[("m.yaml", &wrong)]).await;
    let began = Instant::now();
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let message = set.message().await;
    assert!(
        message.contains("ConfigMap") && message.contains("/map") && message.contains(".data"),
        "{message}"
    );
    let tries = world.proxy.all().matching(&Match::writes().resource("configmaps"));
    assert_eq!(tries.count(), 1, "\n{}", tries.lines());
}

/// Rules: run B8
#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_encrypted_is_never_applied() {
    let world = World::start("encrypted").await;
    let sops = "sops:\n  mac: ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]\n  version: 3.9.0\n";
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: secret\ndata:\n  key: ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]\n{sops}"
    );
    let custom = format!("{}{sops}", objects::widget("w", 1));
    for (name, manifest) in [("secret", secret), ("custom", custom)] {
        world
            .publish(name, &[("a.yaml", &configmap(name, "1")), ("b.yaml", &manifest)])
            .await;
        let set = stageset(name)
            .retry_interval("1h")
            .stage(stage("app", name))
            .apply(&world)
            .await;
        set.until_reason("StageFailed").await;
        let message = set.message().await;
        assert!(
            message.contains("encrypted") && message.contains("decryption"),
            "{message}"
        );
        assert_eq!(
            world.applied(&objects::configmaps(), name).await,
            Vec::<String>::new(),
            "nothing of the stage is applied"
        );
    }
    assert!(
        !world
            .cluster
            .exists(&objects::secrets(), &world.namespace, "secret")
            .await
    );
    assert!(!world.cluster.exists(&objects::widgets(), &world.namespace, "w").await);
}

/// Rules: run B20 opt-out, run B20 missing
#[tokio::test(flavor = "multi_thread")]
async fn an_object_can_stay_out_of_substitution_and_all_that_is_missing_is_named() {
    let world = World::start("substitute").await;
    let script = |name: &str, key: &str| {
        configmap(name, "${HOME} ${value}").replace(&format!("  name: {name}\n"), &format!("  name: {name}\n  {key}\n"))
    };
    let all = multi(&[
        script("ours", "labels: { stages.metio.wtf/substitute: disabled }"),
        script(
            "flux",
            "annotations: { kustomize.toolkit.fluxcd.io/substitute: disabled }",
        ),
        configmap("plain", "${value}"),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let with = |name: &str, artifact: &str| {
        stageset(name)
            .retry_interval("1h")
            .stage(stage("app", artifact).set("postBuild", json!({ "substitute": { "value": "good" } })))
    };
    with("app", "app").apply(&world).await.until_ready().await;
    for (name, value) in [
        ("ours", "${HOME} ${value}"),
        ("flux", "${HOME} ${value}"),
        ("plain", "good"),
    ] {
        assert_eq!(world.config_value(name).await.as_deref(), Some(value), "{name}");
    }
    world
        .publish("bad", &[("m.yaml", &configmap("bad", "${one} ${two} ${value}"))])
        .await;
    let bad = with("bad", "bad").apply(&world).await;
    bad.until_reason("StageFailed").await;
    let message = bad.message().await;
    assert!(
        message.contains("one") && message.contains("two") && message.contains("bad"),
        "{message}"
    );
}

/// Rules: decisions 1.4
#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_field_is_sent_when_its_object_is_made() {
    let world = World::start("ignore-new").await;
    world
        .publish("web", &[("web.yaml", &deployment("web", "web:1", 2))])
        .await;
    let ignore = json!([{ "paths": ["/spec/replicas"] }]);
    let set = stageset("web")
        .stage(stage("web", "web").set("ignore", ignore))
        .apply(&world)
        .await;
    set.until_ready().await;
    let web = Kind::new("apps/v1", "Deployment");
    let live = world.cluster.must_get(&web, &world.namespace, "web").await;
    assert_eq!(live["spec"]["replicas"], 2, "sent on creation");
    let scale = json!({ "spec": { "replicas": 1 } });
    world.cluster.patch(&web, &world.namespace, "web", scale).await;
    let revision = world
        .publish("web", &[("web.yaml", &deployment("web", "web:2", 3))])
        .await;
    set.until_rolled_out("web", &revision).await;
    let live = world.cluster.must_get(&web, &world.namespace, "web").await;
    assert_eq!(live["spec"]["replicas"], 1, "left to whoever scales it");
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "web:2");
}

/// One StageSet is never at work twice, and `--concurrent` bounds how many are.
///
/// Rules: run 24 key, decisions 1.5
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_one_stageset_never_overlap_and_few_run_at_once() {
    let world = World::builder("overlap").flag("--concurrent=2").start().await;
    world
        .proxy
        .delay(Match::any().resource("configmaps"), Duration::from_millis(150));
    let mut sets = Vec::new();
    for at in 0..6 {
        let name = format!("set-{at}");
        world.publish(&name, &[("m.yaml", &configmap(&name, "1"))]).await;
        sets.push(stageset(&name).stage(stage("app", &name)).apply(&world).await);
    }
    for set in &sets {
        set.until_ready().await;
    }
    let mut revisions = Vec::new();
    for round in 0..4 {
        revisions.clear();
        for set in &sets {
            set.request().await;
            let map = configmap(&set.name, &format!("round {round}"));
            revisions.push(world.publish(&set.name, &[("m.yaml", &map)]).await);
        }
    }
    for (set, revision) in sets.iter().zip(&revisions) {
        set.until_rolled_out("app", revision).await;
    }
    let calls = world.proxy.all();
    let spans: Vec<(&str, Instant, Instant)> = calls
        .records()
        .iter()
        .filter(|r| r.call.resource == "configmaps" && !matches!(r.call.verb, Verb::Watch | Verb::List))
        .filter(|r| !matches!(r.call.class(), Class::Review))
        .filter_map(|r| Some((r.call.name.as_str(), r.started, r.finished?)))
        .collect();
    // Each is created, and later read and written at least once.
    assert!(spans.len() >= 18, "{}", spans.len());
    for (name, began, _) in &spans {
        let open: Vec<&str> = spans
            .iter()
            .filter(|(_, from, to)| from <= began && to > began)
            .map(|(other, _, _)| *other)
            .collect();
        assert_eq!(open.iter().filter(|n| *n == name).count(), 1, "{name} twice at once");
        assert!(open.len() <= 2, "{open:?} at once");
    }
}
