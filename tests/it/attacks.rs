//! Tenants who want more than their account may have: by artifacts, by fields, by names, by forged records, by what
//! messages tell.

use serde_json::{Value, json};

use crate::support::{
    Archive, Match, World,
    objects::{self, Kind, configmap},
    stageset::{Spec, Stage, StageSet, condition_of, stage, stageset},
};

/// The neighbour's namespace, with what an attacker would like to have.
struct Neighbour {
    namespace: String,
    before: Vec<Value>,
}

const PREY: [(&str, &str); 2] = [("v1", "ConfigMap"), ("v1", "Secret")];

impl Neighbour {
    async fn of(world: &World) -> Self {
        let namespace = world.another_namespace("b").await;
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: { name: prey }\nstringData: { password: hunter2-of-the-neighbour }\n";
        world.cluster.apply_yaml(&configmap("prey", "safe"), &namespace).await;
        world.cluster.apply_yaml(secret, &namespace).await;
        let mut neighbour = Self {
            namespace,
            before: Vec::new(),
        };
        neighbour.before = neighbour.prey(world).await;
        neighbour
    }

    async fn prey(&self, world: &World) -> Vec<Value> {
        let mut all = Vec::new();
        for (version, kind) in PREY {
            all.push(
                world
                    .cluster
                    .must_get(&Kind::new(version, kind), &self.namespace, "prey")
                    .await,
            );
        }
        all
    }

    /// Nothing of it was read, written or joined by anything else.
    async fn is_untouched(&self, world: &World) {
        assert_eq!(self.prey(world).await, self.before, "the prey was changed");
        for kind in [objects::configmaps(), objects::secrets(), objects::roles()] {
            let taken = world
                .cluster
                .list(&kind, &self.namespace, "stages.metio.wtf/name")
                .await;
            assert!(taken.is_empty(), "{taken:?}");
        }
        let calls = world.proxy.all();
        let through: Vec<String> = calls
            .records()
            .iter()
            .filter(|r| r.call.path.contains(&self.namespace) && r.status.is_some_and(|s| s < 300))
            .map(|r| r.call.line())
            .collect();
        assert!(through.is_empty(), "requests that got through: {through:#?}");
    }
}

/// Whatever is applied, pruned or waited for is asked for as the tenant.
fn only_the_tenant_acts(world: &World) {
    let tenant = format!("system:serviceaccount:{}:", world.namespace);
    let calls = world.proxy.all();
    for record in calls.records() {
        let workload = ["configmaps", "secrets", "roles", "rolebindings", "clusterrolebindings"]
            .contains(&record.call.resource.as_str());
        assert!(
            !workload || record.call.user.starts_with(&tenant),
            "{}",
            record.call.line()
        );
    }
}

/// One attempt: what an artifact holds and how its stage looks.
struct Attempt {
    what: &'static str,
    files: Vec<(&'static str, String)>,
    stage: fn(Stage) -> Stage,
}

fn attempt(what: &'static str, manifest: String) -> Attempt {
    Attempt {
        what,
        files: vec![("all.yaml", manifest)],
        stage: |stage| stage,
    }
}

fn files(what: &'static str, files: &[(&'static str, &str)]) -> Attempt {
    Attempt {
        what,
        files: files.iter().map(|(path, text)| (*path, (*text).to_owned())).collect(),
        stage: |stage| stage,
    }
}

/// Runs all attempts at once; each has to end as `StageFailed`. Gives what was said, in order.
async fn all_fail(world: &World, attempts: &[Attempt]) -> Vec<String> {
    let mut sets = Vec::new();
    for (at, attempt) in attempts.iter().enumerate() {
        let name = format!("attempt-{at}");
        let files: Vec<(&str, &str)> = attempt.files.iter().map(|(p, t)| (*p, t.as_str())).collect();
        world.publish(&name, &files).await;
        let stage = (attempt.stage)(stage("app", &name));
        sets.push(stageset(&name).stage(stage).apply(world).await);
    }
    let mut said = Vec::new();
    for (set, attempt) in sets.iter().zip(attempts) {
        set.until(&format!("refused: {}", attempt.what), |s| {
            condition_of(s, "Ready").is_some_and(|c| c["reason"] == "StageFailed")
        })
        .await;
        said.push(set.message().await);
        println!("{}: {}", attempt.what, set.message().await);
    }
    said
}

fn in_namespace(namespace: &str, manifest: &str) -> String {
    manifest.replacen("metadata:\n", &format!("metadata:\n  namespace: {namespace}\n"), 1)
}

/// Whatever an artifact holds, it is applied with the rights of the account and no more.
///
/// Rules: run 14.5, run 11.1 tenant, run 25 denied, contract 13.8
#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_reaches_nothing_beyond_its_account() {
    let world = World::start("attack-artifact").await;
    let neighbour = Neighbour::of(&world).await;
    let there = &neighbour.namespace;
    let stolen = in_namespace(there, &configmap("prey", "stolen"));
    let binding = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: attack-{there}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin }}\nsubjects: [{{ kind: ServiceAccount, name: tenant, \
         namespace: {} }}]\n",
        world.namespace
    );
    let role = binding
        .replace("ClusterRoleBinding", "RoleBinding")
        .replace("metadata:\n", &format!("metadata:\n  namespace: {there}\n"));
    let labelled = stolen.replacen(
        "metadata:\n",
        &format!("metadata:\n  labels: {{ stages.metio.wtf/name: prey, stages.metio.wtf/namespace: {there} }}\n"),
        1,
    );
    let traversal = |field: &str| {
        configmap("x", "stolen").replacen(
            "  name: x\n",
            &format!("  name: x\n  {field}: \"x/../../../namespaces/{there}/configmaps/prey\"\n"),
            1,
        )
    };
    let traversed = traversal("name").replacen("  name: x\n", "", 1);
    let query = configmap("x", "stolen").replacen("name: x", "name: \"x?fieldManager=other&dryRun=All\"", 1);
    let kustomization = format!("namespace: {there}\nresources: [map.yaml]\n");
    let mut attempts = vec![
        attempt("an object in another namespace", stolen.clone()),
        attempt(
            "a new object in another namespace",
            in_namespace(there, &configmap("new", "stolen")),
        ),
        attempt(
            "a Secret of another namespace",
            in_namespace(
                there,
                "apiVersion: v1\nkind: Secret\nmetadata:\n  name: prey\ndata: {}\n",
            ),
        ),
        attempt(
            "an object of kube-system",
            in_namespace("kube-system", &configmap("attack", "stolen")),
        ),
        attempt("a binding to cluster-admin", binding),
        attempt("a binding in another namespace", role),
        attempt(
            "a namespace",
            format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {there}\n  labels: {{ taken: over }}\n"),
        ),
        attempt(
            "a list with an object of another namespace",
            format!(
                "apiVersion: v1\nkind: List\nitems:\n  - {{ apiVersion: v1, kind: ConfigMap, metadata: {{ name: prey, namespace: {there} }} }}\n"
            ),
        ),
        attempt("an object that says whose it is", labelled),
        attempt("a namespace that climbs", traversal("namespace")),
        attempt("a name that climbs", traversed),
        attempt("a name with a query", query),
        files(
            "a kustomization for another namespace",
            &[
                ("kustomization.yaml", &kustomization),
                ("map.yaml", &configmap("prey", "stolen")),
            ],
        ),
    ];
    attempts.push(Attempt {
        stage: |stage| {
            stage.set(
                "postBuild",
                json!({ "substitute": { "there": THERE.get().cloned().unwrap_or_default() } }),
            )
        },
        ..attempt(
            "a namespace by substitution",
            in_namespace("${there}", &configmap("prey", "stolen")),
        )
    });
    attempts.push(Attempt {
        stage: |stage| {
            let patch = format!(
                "- {{ op: add, path: /metadata/namespace, value: {} }}\n",
                THERE.get().cloned().unwrap_or_default()
            );
            stage.set(
                "patches",
                json!([{ "target": { "kind": "ConfigMap" }, "patch": patch }]),
            )
        },
        ..attempt("a namespace by patch", configmap("prey", "stolen"))
    });
    attempts.push(Attempt {
        stage: |stage| {
            stage
                .set("force", json!(true))
                .set("conflictPolicy", json!({ "default": "Recreate" }))
        },
        ..attempt("an object of another namespace by force", stolen)
    });
    THERE.set(there.clone()).expect("one test sets it");
    let said = all_fail(&world, &attempts).await;
    let denied = said.iter().filter(|m| m.contains("forbidden")).count();
    assert!(denied >= 13, "{denied} of {} were denied", said.len());
    let paths = said
        .iter()
        .filter(|m| m.contains("no object can have this name"))
        .count();
    assert_eq!(paths, 2, "names that are paths never reach the server");
    only_the_tenant_acts(&world);
    neighbour.is_untouched(&world).await;
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), "kube-system", "attack")
            .await
    );
}

static THERE: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// A build reads the artifact and nothing else: no file of the controller, no address, no program.
///
/// Rules: run 14.4, decisions 7 archives
#[tokio::test(flavor = "multi_thread")]
async fn a_build_reaches_nothing_beyond_its_artifact() {
    let world = World::start("attack-build").await;
    let map = configmap("map", "1");
    let exec = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: program\n  annotations:\n    config.kubernetes.io/function: |\n      \
                exec: { path: /bin/touch, args: [/tmp/stageset-it-built] }\n";
    let kustomization = |text: &str| -> Vec<(&'static str, String)> {
        vec![
            ("kustomization.yaml", text.to_owned()),
            ("map.yaml", configmap("map", "1")),
        ]
    };
    let own = |what: &'static str, text: &str| Attempt {
        what,
        files: kustomization(text),
        stage: |stage| stage,
    };
    let remote = format!("resources: [\"{}/secret.yaml\"]\n", world.artifacts.url("remote"));
    let attempts = vec![
        own(
            "a generator over the controller's files",
            "configMapGenerator: [{ name: a, files: [/etc/hostname] }]\n",
        ),
        own(
            "a generator that climbs",
            "configMapGenerator: [{ name: a, files: [../../../../../../etc/hostname] }]\n",
        ),
        own(
            "an env file that climbs",
            "configMapGenerator: [{ name: a, envs: [../../../../proc/self/environ] }]\n",
        ),
        own("a resource that climbs", "resources: [../../../../../etc/hostname]\n"),
        own(
            "a patch that climbs",
            "resources: [map.yaml]\npatches: [{ path: ../../../../etc/hostname }]\n",
        ),
        own("a remote resource", &remote),
        own(
            "a remote base",
            "resources: [\"https://169.254.169.254/latest/meta-data?ref=main\"]\n",
        ),
        own("a git base", "resources: [\"git@example.com:attack/base.git\"]\n"),
        own(
            "a helm chart",
            "helmCharts: [{ name: attack, repo: \"https://example.com\" }]\n",
        ),
        Attempt {
            what: "a program as a generator",
            files: vec![
                ("kustomization.yaml", "generators: [exec.yaml]\n".to_owned()),
                ("exec.yaml", exec.to_owned()),
            ],
            stage: |stage| stage,
        },
        Attempt {
            stage: |stage| stage.path("../../../../etc"),
            ..files("a path that climbs", &[("map.yaml", &map)])
        },
        files("a document that grows", &[("map.yaml", &bomb())]),
    ];
    let said = all_fail(&world, &attempts).await;
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_else(|_| "no such file".to_owned());
    for message in &said {
        assert!(message.contains("stage \"app\" build"), "{message}");
        assert!(host.trim().is_empty() || !message.contains(host.trim()), "{message}");
    }
    assert!(
        !std::path::Path::new("/tmp/stageset-it-built").exists(),
        "a program was run"
    );
    assert_eq!(
        world.applied(&objects::configmaps(), "attempt-0").await,
        Vec::<String>::new()
    );
    let links = [
        ("/var/run/secrets/kubernetes.io/serviceaccount/token", "token.yaml"),
        ("../../../proc/self/environ", "environ.yaml"),
    ];
    for (target, name) in links {
        world
            .publish_archive("links", &Archive::of(&[("map.yaml", &map)]).symlink(name, target))
            .await;
        let set = stageset("links").stage(stage("app", "links")).apply(&world).await;
        set.until_reason("StageFailed").await;
        let message = set.message().await;
        assert!(
            message.contains("fetch artifact") && message.contains(name),
            "{message}"
        );
        set.delete().await;
        set.until_gone().await;
    }
}

/// YAML whose aliases multiply.
fn bomb() -> String {
    let mut text = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: map }\ndata:\n  a0: &a0 \"lol\"\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        text += &format!("  a{level}: &a{level} [{}]\n", vec![alias; 10].join(", "));
    }
    text
}

/// Names in a spec are names: they lead out of no path and into no header.
///
/// Rules: run 3 step 7, contract 13.7, contract 13.8, run D9
#[tokio::test(flavor = "multi_thread")]
async fn names_in_a_spec_lead_nowhere_else() {
    let world = World::start("attack-names").await;
    let neighbour = Neighbour::of(&world).await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let climb = format!("../../{}/secrets/prey", neighbour.namespace);
    let from = |name: &str| json!({ "substituteFrom": [{ "kind": "Secret", "name": name }] });
    let account = |name: &str| -> Box<dyn Fn(Spec) -> Spec> {
        let name = json!(name);
        Box::new(move |spec| spec.set("serviceAccountName", name.clone()).stage(stage("app", "app")))
    };
    let on_stage = |field: &'static str, value: Value| -> Box<dyn Fn(Spec) -> Spec> {
        Box::new(move |spec| spec.stage(stage("app", "app").set(field, value.clone())))
    };
    let on_spec = |field: &'static str, value: Value| -> Box<dyn Fn(Spec) -> Spec> {
        Box::new(move |spec| spec.set(field, value.clone()).stage(stage("app", "app")))
    };
    let attempts: Vec<(&str, Box<dyn Fn(Spec) -> Spec>)> = vec![
        (
            "an account of another namespace",
            account(&format!("{}:tenant", neighbour.namespace)),
        ),
        (
            "an account that climbs",
            account("../../kube-system/serviceaccounts/default"),
        ),
        ("a user instead of an account", account("system:admin")),
        (
            "a header within an account",
            account("tenant\r\nImpersonate-Group: system:masters"),
        ),
        (
            "a stage's account of another namespace",
            on_stage("serviceAccountName", json!("kube-system:default")),
        ),
        ("variables of another namespace", on_stage("postBuild", from(&climb))),
        (
            "a kubeconfig of another namespace",
            on_spec("kubeConfig", json!({ "secretRef": { "name": climb } })),
        ),
        (
            "a key that climbs",
            on_spec(
                "kubeConfig",
                json!({ "secretRef": { "name": "far", "key": "../prey" } }),
            ),
        ),
        (
            "a dependency that climbs",
            on_spec("dependsOn", json!([{ "name": "../stagesets/x" }])),
        ),
        (
            "a dependency in a namespace that climbs",
            on_spec("dependsOn", json!([{ "name": "x", "namespace": "../b" }])),
        ),
        (
            "a kubeconfig by provider",
            on_spec("kubeConfig", json!({ "configMapRef": { "name": "cloud" } })),
        ),
    ];
    for (at, (what, build)) in attempts.iter().enumerate() {
        let spec = build(stageset(&format!("attempt-{at}")));
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
        .set("serviceAccountName", json!("boss"))
        .stage(stage("app", "app"));
    let per_stage = stageset("per-stage").stage(stage("app", "app").set("serviceAccountName", json!("boss")));
    let none = stageset("none")
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
        stageset(name).set("serviceAccountName", json!("weak")).stage(stage)
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
/// Rules: run 11.1 tenant, run B12 list
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
