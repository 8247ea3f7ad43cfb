//! Tenants who want more than their account may have: by artifacts, by fields, by names, by forged records, by what
//! messages tell.

mod fields;
mod lent;
mod producers;

use serde_json::{Value, json};

use crate::support::{
    Archive, World,
    objects::{self, Kind, configmap},
    stageset::{Stage, condition_of, stage, stageset},
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
    account: Option<&'static str>,
}

fn attempt(what: &'static str, manifest: String) -> Attempt {
    Attempt {
        what,
        files: vec![("all.yaml", manifest)],
        stage: |stage| stage,
        account: Some("tenant"),
    }
}

fn files(what: &'static str, files: &[(&'static str, &str)]) -> Attempt {
    Attempt {
        what,
        files: files.iter().map(|(path, text)| (*path, (*text).to_owned())).collect(),
        stage: |stage| stage,
        account: Some("tenant"),
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
        let spec = stageset(&name)
            .retry_interval("1h")
            .set("serviceAccountName", json!(attempt.account))
            .stage(stage);
        sets.push(spec.apply(world).await);
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
        account: Some("tenant"),
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
            account: Some("tenant"),
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
        let set = stageset("links")
            .retry_interval("1h")
            .stage(stage("app", "links"))
            .apply(&world)
            .await;
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
