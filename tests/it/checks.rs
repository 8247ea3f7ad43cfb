//! What a stage waits for, how long, and what it leaves alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    World, look,
    objects::{self, configmap, deployment, multi, unbound_claim, widget},
    stageset::{Stage, condition_of, stage, stageset},
};

const WIDGETS: &str = "fixture.stageset.test/v1";

fn checks(stage: Stage, checks: Value) -> Stage {
    stage.set("readyChecks", checks)
}

fn expression(rules: Value) -> Value {
    let mut rules = rules;
    rules["apiVersion"] = json!(WIDGETS);
    rules["kind"] = json!("Widget");
    json!({ "exprs": [rules] })
}

/// Waits for `StageFailed` and gives its message and how long it took.
async fn fails(world: &World, name: &str, stage: Stage) -> (String, Duration) {
    let set = stageset(name).retry_interval("1h").stage(stage).apply(world).await;
    set.until("verifying", |s| {
        crate::support::stageset::stage_of(s, "app")["step"]
            .to_string()
            .contains("Verify")
            || condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed")
    })
    .await;
    let began = Instant::now();
    set.until_reason("StageFailed").await;
    (set.message().await, began.elapsed())
}

/// Rules: run D1, run 18.1 scope
#[tokio::test(flavor = "multi_thread")]
async fn checks_narrow_what_is_waited_for() {
    let world = World::start("narrow").await;
    let both = multi(&[widget("listed", 1), unbound_claim("never")]);
    world.publish("app", &[("all.yaml", &both)]).await;
    world.widget("listed", false).await;
    // Another version of the kind, and no namespace: the StageSet's.
    let listed = json!([
        { "apiVersion": WIDGETS, "kind": "Widget", "name": "listed" },
        { "apiVersion": "v1", "kind": "Namespace", "name": world.namespace, "namespace": "is-ignored" },
    ]);
    let account = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: { name: NAME }\nrules: [{ apiGroups: [\"\"], \
                   resources: [namespaces], verbs: [get, list, watch] }]\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: \
                   ClusterRoleBinding\nmetadata: { name: NAME }\nroleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \
                   NAME }\nsubjects: [{ kind: ServiceAccount, name: tenant, namespace: SPACE }]\n";
    let account = account
        .replace("NAME", &format!("it-namespaces-{}", world.namespace))
        .replace("SPACE", &world.namespace);
    world.cluster.apply_yaml(&account, &world.namespace).await;
    let set = stageset("app")
        .stage(checks(stage("app", "app"), json!({ "checks": listed })))
        .apply(&world)
        .await;
    set.until_phase("app", "Verifying").await;
    set.until("waiting for what is listed", |s| {
        let text = condition_of(s, "Ready")
            .map(|c| c["message"].to_string())
            .unwrap_or_default();
        text.contains("listed") && !text.contains("never")
    })
    .await;
    world.widget("listed", true).await;
    set.until_ready().await;
}

/// Rules: run D2
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_waited_for_where_waiting_is_off() {
    let world = World::start("no-wait").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let set = stageset("app")
        .stage(checks(stage("app", "app"), json!({ "disableWait": true })))
        .apply(&world)
        .await;
    set.until_ready_within(Duration::from_secs(10)).await;
}

/// Rules: run 18.2, run 18.2 message
#[tokio::test(flavor = "multi_thread")]
async fn the_nearest_timeout_counts_and_is_named() {
    let world = World::start("bounds").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let timeout = json!({ "timeout": "2s" });
    let nearest = checks(stage("app", "app").timeout("1h"), timeout);
    let (message, took) = fails(&world, "nearest", nearest).await;
    assert!(
        message.contains("2s") && message.contains("never") && took < Duration::from_secs(10),
        "{message} {took:?}"
    );

    world
        .publish("whole", &[("claim.yaml", &unbound_claim("never-2"))])
        .await;
    let whole = stageset("whole")
        .retry_interval("1h")
        .set("timeout", json!("3s"))
        .stage(checks(stage("app", "whole").timeout("0s"), json!({ "timeout": "0s" })))
        .apply(&world)
        .await;
    whole.until_reason("StageFailed").await;
    let message = whole.message().await;
    assert!(message.contains("3s") && message.contains("never-2"), "{message}");
}

/// Rules: run 18.4 bound, decisions 1.3, decisions 3.4
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_that_holds_keeps_waiting_and_one_that_does_not_fails() {
    let world = World::start("on-timeout").await;
    for name in ["hold", "fail"] {
        world.publish(name, &[("w.yaml", &widget(name, 1))]).await;
        world.widget(name, false).await;
    }
    let hold = stageset("hold")
        .retry_interval("1s")
        .set("onTimeout", json!("Hold"))
        .stage(stage("app", "hold").timeout("2s"))
        .apply(&world)
        .await;
    hold.until_reason("StageProgressing").await;
    let status = hold.status().await;
    let entry = crate::support::stageset::stage_of(&status, "app");
    assert_eq!(entry["phase"], "Verifying", "{entry}");
    assert_eq!(condition_of(&status, "Ready").expect("Ready")["status"], "False");
    let message = hold.message().await;
    assert!(message.contains("hold") && message.contains("2s"), "{message}");
    world
        .stays("holding", Duration::from_secs(3), || async {
            let ready = hold.condition("Ready").await.unwrap_or_default();
            if ready["reason"] == "StageProgressing" {
                Ok(())
            } else {
                Err(ready.to_string())
            }
        })
        .await;
    assert_eq!(hold.status().await["run"]["attempt"], 1, "nothing is tried again");
    world.widget("hold", true).await;
    hold.until_ready_within(Duration::from_secs(10)).await;

    // Something newer takes the place of a held run at once.
    world.widget("again", false).await;
    world.publish("hold", &[("w.yaml", &widget("again", 1))]).await;
    hold.until_reason("StageProgressing").await;
    let began = Instant::now();
    let revision = world.publish("hold", &[("m.yaml", &configmap("good", "1"))]).await;
    hold.until_rolled_out("app", &revision).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    // Unset is a failure, and a stage's own word is nearer than the StageSet's.
    let stage = stage("app", "fail").timeout("2s");
    stageset("fail")
        .stage(stage)
        .apply(&world)
        .await
        .until_reason("StageFailed")
        .await;
}

/// Running Pods of a Deployment as the annotation says.
fn with_pods(name: &str, pods: &str) -> String {
    let annotated = format!("    metadata:\n      annotations: {{ {pods} }}\n      labels:\n");
    deployment(name, "web:1", 1).replace("    metadata:\n      labels:\n", &annotated)
}

/// `Hold` is for what is only slow.
///
/// Rules: run 18.4 bound
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_that_holds_does_not_hold_what_has_failed() {
    let world = World::start("hold-failed").await;
    let late = with_pods("web", "testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 1h");
    let expires = late.replace("  replicas:", "  progressDeadlineSeconds: 2\n  replicas:");
    world.publish("app", &[("web.yaml", &expires)]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .set("onTimeout", json!("Hold"))
        .stage(stage("app", "app").timeout("8s"))
        .apply(&world)
        .await;
    set.until("verifying", |s| {
        crate::support::stageset::stage_of(s, "app")["phase"] == "Verifying"
    })
    .await;
    set.until_within("failed at its bound", Duration::from_secs(20), |s| {
        condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed")
    })
    .await;
    let message = set.message().await;
    assert!(
        message.contains("ProgressDeadlineExceeded") && message.contains("8s"),
        "{message}"
    );
    assert_eq!(set.event_count("StageProgressing").await, 0);
}

/// Rules: run 18.2 message
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_does_not_start_says_what_its_pods_wait_for() {
    let world = World::start("says-pods").await;
    let crashing = with_pods("web", "testenv.metio.wtf/pod: crashloop");
    world.publish("app", &[("web.yaml", &crashing)]).await;
    let (message, _) = fails(&world, "app", stage("app", "app").timeout("8s")).await;
    assert!(
        message.contains("Deployment") && message.contains("CrashLoopBackOff"),
        "{message}"
    );
}

/// Rules: run 27.5, run 18.2 fail-fast
#[tokio::test(flavor = "multi_thread")]
async fn one_failed_object_ends_the_wait_for_all_others() {
    let world = World::start("one-failed").await;
    world
        .publish(
            "app",
            &[("all.yaml", &multi(&[unbound_claim("never"), widget("bad", 1)]))],
        )
        .await;
    world.failed_widget("bad").await;
    let (message, took) = fails(&world, "app", stage("app", "app")).await;
    assert!(
        message.contains("bad") && took < Duration::from_secs(10),
        "{message} {took:?}"
    );
}

/// Rules: run 18.3 failed
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_says_failed_ends_the_wait_at_once() {
    let world = World::start("expr-failed").await;
    world.publish("app", &[("w.yaml", &widget("w", 1))]).await;
    world.widget("w", true).await;
    let rules = expression(
        json!({ "current": "has(status.phase) && status.phase == 'Good'", "failed": "has(status.phase) && status.phase == 'Bad'" }),
    );
    let set = stageset("app")
        .retry_interval("1h")
        .stage(checks(stage("app", "app"), rules))
        .apply(&world)
        .await;
    set.until_phase("app", "Verifying").await;
    let began = Instant::now();
    let bad = json!({ "phase": "Bad" });
    world
        .cluster
        .patch_status(&objects::widgets(), &world.namespace, "w", bad)
        .await;
    set.until_reason("StageFailed").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let good = json!({ "phase": "Good" });
    world
        .cluster
        .patch_status(&objects::widgets(), &world.namespace, "w", good)
        .await;
    set.until_ready_within(Duration::from_secs(10)).await;
}

/// Rules: run 18.3 invalid, run 6 checks, run 6 onTimeout, run 6 stages, run 6 dependsOn
#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_cannot_work_is_refused_by_field() {
    let world = World::start("refused").await;
    world.publish("app", &[("m.yaml", &configmap("map", "1"))]).await;
    let app = || stage("app", "app");
    let expr = |text: &str| checks(app(), expression(json!({ "current": text })));
    let one = |field: &str, value: Value| stageset("bad").stage(app().set(field, value));
    let bad = [
        ("exprs[0]", stageset("bad").stage(expr("status.phase =="))),
        ("exprs[0]", stageset("bad").stage(expr("1 + 1"))),
        ("exprs[0]", stageset("bad").stage(expr("no.such.name"))),
        ("exprs[0]", stageset("bad").stage(checks(app(), expression(json!({}))))),
        (
            "checks[0]",
            one(
                "readyChecks",
                json!({ "checks": [{ "apiVersion": "v1", "kind": "", "name": "x" }] }),
            ),
        ),
        (
            "checks[0]",
            one(
                "readyChecks",
                json!({ "checks": [{ "apiVersion": "v1", "kind": "Pod", "name": "" }] }),
            ),
        ),
        ("onTimeout", one("onTimeout", json!("Wait"))),
        ("stages[1]", stageset("bad").stage(app()).stage(app())),
        (
            "dependsOn[0]",
            stageset("bad").set("dependsOn", json!([{ "name": "" }])).stage(app()),
        ),
        (
            "dependsOn[0]",
            stageset("bad")
                .set("dependsOn", json!([{ "name": "a", "minVersion": "new" }]))
                .stage(app()),
        ),
        ("timeout", one("timeout", json!("soon"))),
    ];
    for (field, spec) in bad {
        match world
            .cluster
            .try_apply(&spec.object(&world.namespace), &world.namespace)
            .await
        {
            Err(kube::Error::Api(status)) => {
                let name = field.split('[').next().unwrap_or_default();
                assert!(status.message.contains(name), "{field}: {}", status.message);
            }
            Err(other) => panic!("{other}"),
            Ok(_) => {
                let set = crate::support::StageSet::named(&world, "bad").await;
                let ready = set.until_reason("InvalidSpec").await;
                assert!(ready["message"].to_string().contains(field), "{field}: {ready}");
                set.delete().await;
                set.until_gone().await;
            }
        }
    }
    assert_eq!(world.config_value("map").await, None);
}

/// One deadline for all of it: an expression gets no second one after the conditions had theirs.
///
/// Rules: run B12 deadline
#[tokio::test(flavor = "multi_thread")]
async fn conditions_and_expressions_share_one_deadline() {
    let world = World::start("one-deadline").await;
    let late = deployment("web", "web:1", 1).replace(
        "    metadata:\n      labels:\n",
        "    metadata:\n      annotations: { testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 4s }\n      labels:\n",
    );
    world
        .publish("app", &[("all.yaml", &multi(&[late, widget("w", 1)]))])
        .await;
    world.widget("w", true).await;
    let mut rules = expression(json!({ "current": "false" }));
    rules["timeout"] = json!("6s");
    let (message, took) = fails(&world, "app", checks(stage("app", "app"), rules)).await;
    assert!(
        message.contains("Widget") && !message.contains("Deployment"),
        "{message}"
    );
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(10),
        "{took:?}"
    );
}

/// Rules: run B12 skipped, run 16.5 reconcile, run 16.6 keep, run B24
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_alone_is_neither_written_nor_waited_for() {
    let world = World::start("left-alone").await;
    for name in ["kept", "disabled", "ignored"] {
        world.cluster.apply_yaml(&unbound_claim(name), &world.namespace).await;
    }
    let with = |name: &str, annotation: &str| {
        unbound_claim(name).replace(
            &format!("  name: {name}\n"),
            &format!("  name: {name}\n  labels: {{ from: render }}\n  annotations: {{ {annotation} }}\n"),
        )
    };
    let all = multi(&[
        with("kept", "a: b"),
        with("disabled", "stages.metio.wtf/reconcile: disabled"),
        with("ignored", "kustomize.toolkit.fluxcd.io/ssa: Ignore"),
        configmap("map", "1"),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let keep = json!({ "rules": [{ "target": { "kind": "PersistentVolumeClaim", "name": "kept" }, "action": "KeepExisting" }] });
    let set = stageset("app")
        .stage(stage("app", "app").timeout("20s").set("conflictPolicy", keep))
        .apply(&world)
        .await;
    set.until_ready_within(Duration::from_secs(15)).await;
    let writes = world.proxy.all().writes();
    for name in ["kept", "disabled", "ignored"] {
        let claim = world.cluster.must_get(&objects::claims(), &world.namespace, name).await;
        assert!(claim["metadata"]["labels"]["from"].is_null(), "{claim}");
        let written = writes.matching(
            &crate::support::Match::any()
                .resource("persistentvolumeclaims")
                .name(name),
        );
        // Whether it is there is asked by a request that only creates.
        let stored = written.records().iter().filter(|r| r.status != Some(409)).count();
        assert_eq!(stored, 0, "{}", written.lines());
    }
    set.delete().await;
    set.until_gone().await;
    for name in ["kept", "disabled", "ignored"] {
        assert!(
            world.cluster.exists(&objects::claims(), &world.namespace, name).await,
            "{name} is not ours"
        );
    }
}

/// A workload becomes ready for an account that may only get, and what is missing is named while it waits.
///
/// Rules: run B12 list, decisions 5 tenant
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_list_gets_its_workload_ready() {
    let world = World::start("no-list").await;
    let rights = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: narrow }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
         metadata: {{ name: narrow }}\nrules: [{{ apiGroups: [apps, \"\"], resources: [deployments, configmaps], verbs: [get, create, patch, \
         delete] }}]\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: narrow }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: Role, name: narrow }}\nsubjects: [{{ kind: ServiceAccount, name: narrow, namespace: {} }}]\n",
        world.namespace
    );
    world.cluster.apply_yaml(&rights, &world.namespace).await;
    let late = deployment("web", "web:1", 1).replace(
        "    metadata:\n      labels:\n",
        "    metadata:\n      annotations: { testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 6s }\n      labels:\n",
    );
    world.publish("app", &[("web.yaml", &late)]).await;
    let set = stageset("app")
        .set("serviceAccountName", json!("narrow"))
        .stage(stage("app", "app").timeout("60s"))
        .apply(&world)
        .await;
    set.until("the missing right in what it waits for", |s| {
        let text = s.to_string();
        text.contains("list") && text.contains("deployments")
    })
    .await;
    set.until_ready_within(Duration::from_secs(45)).await;
}

/// Rules: run 27.2 simple, run 27.2 service, run 27.2 pod
#[tokio::test(flavor = "multi_thread")]
async fn simple_kinds_are_ready_at_once_and_pods_when_they_run() {
    let world = World::start("simple").await;
    let job = "apiVersion: batch/v1\nkind: CronJob\nmetadata: { name: nightly }\nspec:\n  schedule: \"0 3 * * *\"\n  jobTemplate: { spec: { \
               template: { spec: { restartPolicy: Never, containers: [{ name: main, image: \"a:1\" }] } } } }\n";
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: secret }\nstringData: { a: b }\n";
    let balancer = objects::service("web", 80).replace("spec:\n", "spec:\n  type: LoadBalancer\n");
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: { name: pod }\nspec: { containers: [{ name: main, image: \"a:1\" }] }\n";
    let all = multi(&[
        job.to_owned(),
        secret.to_owned(),
        balancer,
        pod.to_owned(),
        configmap("map", "1"),
    ]);
    world.publish("app", &[("all.yaml", &all)]).await;
    let set = stageset("app").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let pod = world.cluster.must_get(&objects::pods(), &world.namespace, "pod").await;
    assert_eq!(pod["status"]["phase"], "Running");
    let web = world
        .cluster
        .must_get(&objects::services(), &world.namespace, "web")
        .await;
    assert!(
        web["status"]["loadBalancer"]["ingress"].is_null(),
        "nobody gives it an address: {web}"
    );
}

/// A wait inside the apply keeps to the stage's bound, and a deletion ends it.
///
/// Rules: run B12 bounded, run B28
#[tokio::test(flavor = "multi_thread")]
async fn an_old_object_that_does_not_go_holds_the_stage_no_longer_than_its_bound() {
    let world = World::start("bounded").await;
    let held =
        deployment("web", "web:1", 1).replace("  name: web\n", "  name: web\n  finalizers: [example.com/hold]\n");
    world.publish("app", &[("web.yaml", &held)]).await;
    let recreate = json!({ "default": "Recreate" });
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app").timeout("4s").set("conflictPolicy", recreate))
        .apply(&world)
        .await;
    set.until_ready().await;
    world
        .publish("app", &[("web.yaml", &held.replace("app: web", "app: other"))])
        .await;
    world
        .cluster
        .until(&objects::deployments(), &world.namespace, "web", "being deleted", |d| {
            !d["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
    let began = Instant::now();
    set.until_reason("StageFailed").await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(set.message().await.contains("web"), "{}", set.message().await);
    let release = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::deployments(), &world.namespace, "web", release)
        .await;
    set.request().await;
    let seen = look(Duration::from_secs(30), || async {
        let web = world
            .cluster
            .get(&objects::deployments(), &world.namespace, "web")
            .await
            .unwrap_or_default();
        if web["spec"]["selector"]["matchLabels"]["app"] == "other" {
            Ok(())
        } else {
            Err(web["metadata"].to_string())
        }
    });
    seen.await.expect("made again once the old one is gone");
    set.until_ready().await;
    let release = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::deployments(), &world.namespace, "web", release)
        .await;
}
