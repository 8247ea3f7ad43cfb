//! Fields of a StageSet that are meant to lead elsewhere: names, accounts, references, checks.

use serde_json::{Value, json};

use super::{Neighbour, only_the_tenant_acts};
use crate::support::{
    Match, World,
    objects::{self, configmap},
    stageset::{StageSet, condition_of, stage, stageset},
};

/// Names in a spec are names: they lead out of no path and into no header.
///
/// Rules: run 3 step 7, contract 13.7, contract 13.8, run D9
#[tokio::test(flavor = "multi_thread")]
async fn names_in_a_spec_lead_nowhere_else() {
    let world = World::start("attack-names").await;
    let neighbour = Neighbour::of(&world).await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let climb = format!("../../{}/secrets/prey", neighbour.namespace);
    let from = json!({ "substituteFrom": [{ "kind": "Secret", "name": climb }] });
    let neighbours = format!("{}:tenant", neighbour.namespace);
    let account = "serviceAccountName";
    // What, the field, its value, and whether it is one of the stage.
    let attempts: [(&str, &str, Value, bool); 11] = [
        ("an account of another namespace", account, json!(neighbours), false),
        (
            "an account that climbs",
            account,
            json!("../../kube-system/serviceaccounts/default"),
            false,
        ),
        ("a user instead of an account", account, json!("system:admin"), false),
        (
            "a header within an account",
            account,
            json!("tenant\r\nImpersonate-Group: system:masters"),
            false,
        ),
        (
            "a stage's account of another namespace",
            account,
            json!("kube-system:default"),
            true,
        ),
        ("variables of another namespace", "postBuild", from, true),
        (
            "a kubeconfig of another namespace",
            "kubeConfig",
            json!({ "secretRef": { "name": climb } }),
            false,
        ),
        (
            "a key that climbs",
            "kubeConfig",
            json!({ "secretRef": { "name": "far", "key": "../prey" } }),
            false,
        ),
        (
            "a dependency that climbs",
            "dependsOn",
            json!([{ "name": "../stagesets/x" }]),
            false,
        ),
        (
            "a dependency in a namespace that climbs",
            "dependsOn",
            json!([{ "name": "x", "namespace": "../b" }]),
            false,
        ),
        (
            "a kubeconfig by provider",
            "kubeConfig",
            json!({ "configMapRef": { "name": "cloud" } }),
            false,
        ),
    ];
    for (at, (what, field, value, of_stage)) in attempts.into_iter().enumerate() {
        let (spec, stage) = (stageset(&format!("attempt-{at}")), stage("app", "app"));
        let spec = if of_stage {
            spec.stage(stage.set(field, value))
        } else {
            spec.set(field, value).stage(stage)
        };
        match world
            .cluster
            .try_apply(&spec.object(&world.namespace), &world.namespace)
            .await
        {
            Err(kube::Error::Api(status)) => println!("{what}: refused by the server: {}", status.message),
            Err(other) => panic!("{what}: {other}"),
            Ok(_) => {
                let set = StageSet::named(&world, &format!("attempt-{at}")).await;
                set.until(&format!("refused: {what}"), |s| {
                    condition_of(s, "Ready").is_some_and(|c| c["reason"] == "InvalidSpec")
                })
                .await;
                println!("{what}: {}", set.message().await);
            }
        }
    }
    neighbour.is_untouched(&world).await;
    let users: std::collections::BTreeSet<String> = world
        .proxy
        .all()
        .records()
        .iter()
        .map(|r| r.call.user.clone())
        .collect();
    assert_eq!(
        users.into_iter().collect::<Vec<_>>(),
        [String::new()],
        "nobody was impersonated"
    );
}

/// A source reference that climbs is no reference to another namespace.
///
/// Rules: contract 13.7
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_climbs_is_not_found() {
    let world = World::builder("attack-source")
        .flag("--no-cross-namespace-refs")
        .start()
        .await;
    let neighbour = Neighbour::of(&world).await;
    let climbs = [
        json!({ "name": format!("../../{}/externalartifacts/prey", neighbour.namespace) }),
        json!({ "name": "prey", "namespace": format!("x/../{}", neighbour.namespace) }),
        json!({ "name": "prey", "kind": "Secret", "apiVersion": "v1" }),
    ];
    for (at, source) in climbs.into_iter().enumerate() {
        let spec = stageset(&format!("climb-{at}")).stage(crate::support::stageset::stage_from("app", source));
        let Ok(_) = world
            .cluster
            .try_apply(&spec.object(&world.namespace), &world.namespace)
            .await
        else {
            continue;
        };
        let set = StageSet::named(&world, &format!("climb-{at}")).await;
        set.until("refused", |s| {
            let reasons = ["InvalidSpec", "ResolveFailed", "ArtifactNotFound"];
            condition_of(s, "Ready").is_some_and(|c| reasons.iter().any(|r| c["reason"] == *r))
        })
        .await;
    }
    neighbour.is_untouched(&world).await;
    let secrets = world.proxy.all().matching(&Match::any().resource("secrets"));
    assert!(secrets.is_empty(), "\n{}", secrets.lines());
}

/// An account is one of the StageSet's own namespace, whatever accounts of that name may do elsewhere; and without an
/// account the controller's own rights are not enough.
///
/// Rules: run 11.2, run 11.1 none, run 3.1 d, contract 14.1
#[tokio::test(flavor = "multi_thread")]
async fn a_mighty_namesake_helps_nobody_and_neither_does_no_account() {
    let world = World::start("attack-account").await;
    let neighbour = Neighbour::of(&world).await;
    let boss = |namespace: &str| {
        format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: boss }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: \
             ClusterRoleBinding\nmetadata: {{ name: boss-{namespace} }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: \
             ClusterRole, name: cluster-admin }}\nsubjects: [{{ kind: ServiceAccount, name: boss, namespace: {namespace} }}]\n"
        )
    };
    world
        .cluster
        .apply_yaml(&boss(&neighbour.namespace), &neighbour.namespace)
        .await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let named = stageset("named")
        .retry_interval("1h")
        .set("serviceAccountName", json!("boss"))
        .stage(stage("app", "app"));
    let per_stage = stageset("per-stage")
        .retry_interval("1h")
        .stage(stage("app", "app").set("serviceAccountName", json!("boss")));
    let none = stageset("none")
        .retry_interval("1h")
        .set("serviceAccountName", Value::Null)
        .stage(stage("app", "app"));
    let own = format!("system:serviceaccount:{}:boss", world.namespace);
    let controller = format!("system:serviceaccount:{}:controller", world.namespace);
    for (spec, user) in [(named, &own), (per_stage, &own), (none, &controller)] {
        let set = spec.apply(&world).await;
        set.until_reason("StageFailed").await;
        let message = set.message().await;
        assert!(message.contains("forbidden") && message.contains(user), "{message}");
        set.delete().await;
        set.until_gone().await;
    }
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "map")
            .await
    );
    neighbour.is_untouched(&world).await;
}

/// Variables are read with the account's rights: what it may not read fails the stage, even where it is optional, and
/// there is no way to name another namespace.
///
/// Rules: run 14.6 forbidden, run 11.1 local
#[tokio::test(flavor = "multi_thread")]
async fn variables_the_account_may_not_read_are_not_read() {
    let world = World::start("attack-variables").await;
    let neighbour = Neighbour::of(&world).await;
    let weak = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: weak }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
         metadata: {{ name: weak }}\nrules: [{{ apiGroups: [\"\"], resources: [configmaps], verbs: [\"*\"] }}]\n---\napiVersion: \
         rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: weak }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, \
         kind: Role, name: weak }}\nsubjects: [{{ kind: ServiceAccount, name: weak, namespace: {} }}]\n---\napiVersion: v1\nkind: \
         Secret\nmetadata: {{ name: own }}\nstringData: {{ password: hunter2-at-home }}\n",
        world.namespace
    );
    world.cluster.apply_yaml(&weak, &world.namespace).await;
    world
        .publish("app", &[("map.yaml", &configmap("map", "${password:-none}"))])
        .await;
    let reads = |name: &str, from: Value| {
        let stage = stage("app", "app").set("postBuild", json!({ "substituteFrom": [from] }));
        stageset(name)
            .retry_interval("1h")
            .set("serviceAccountName", json!("weak"))
            .stage(stage)
    };
    let optional = reads("optional", json!({ "kind": "Secret", "name": "own", "optional": true }))
        .apply(&world)
        .await;
    optional.until_reason("StageFailed").await;
    let message = optional.message().await;
    assert!(
        message.contains("resolve postBuild variables")
            && message.contains("forbidden")
            && !message.contains("hunter2"),
        "{message}"
    );
    assert_eq!(world.config_value("map").await, None);
    // An account that only the stage names is the one that reads too: the controller may read any Secret.
    let stage_alone = stage("app", "app").set("serviceAccountName", json!("weak")).set(
        "postBuild",
        json!({ "substituteFrom": [{ "kind": "Secret", "name": "own" }] }),
    );
    let by_stage = stageset("by-stage")
        .retry_interval("1h")
        .set("serviceAccountName", Value::Null)
        .stage(stage_alone)
        .apply(&world)
        .await;
    by_stage.until_reason("StageFailed").await;
    let message = by_stage.message().await;
    assert!(
        message.contains("resolve postBuild variables") && message.contains(":weak") && message.contains("forbidden"),
        "{message}"
    );
    assert_eq!(world.config_value("map").await, None);
    // A namespace is no field of a reference: it is the StageSet's own, and the tenant's.
    let mut from = json!({ "kind": "Secret", "name": "prey", "optional": true });
    from["namespace"] = json!(neighbour.namespace);
    let stage = stage("app", "app").set("postBuild", json!({ "substituteFrom": [from] }));
    let elsewhere = stageset("elsewhere").stage(stage);
    if world
        .cluster
        .try_apply(&elsewhere.object(&world.namespace), &world.namespace)
        .await
        .is_ok()
    {
        StageSet::named(&world, "elsewhere").await.until_ready().await;
        assert_eq!(world.config_value("map").await.as_deref(), Some("none"));
    }
    only_the_tenant_acts(&world);
    neighbour.is_untouched(&world).await;
}

/// A ready check is a read, and a read is the account's.
///
/// Rules: run 11.1 tenant
#[tokio::test(flavor = "multi_thread")]
async fn a_ready_check_reads_nothing_beyond_its_account() {
    let world = World::start("attack-check").await;
    let neighbour = Neighbour::of(&world).await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let check = json!([{ "apiVersion": "v1", "kind": "Secret", "name": "prey", "namespace": neighbour.namespace }]);
    let stage = stage("app", "app")
        .timeout("3s")
        .set("readyChecks", json!({ "checks": check }));
    let set = stageset("check").retry_interval("1h").stage(stage).apply(&world).await;
    set.until_reason("StageFailed").await;
    let message = set.message().await;
    assert!(
        message.contains("forbidden") && !message.contains("hunter2"),
        "{message}"
    );
    neighbour.is_untouched(&world).await;
}
