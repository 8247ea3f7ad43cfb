//! Clusters reached by a kubeconfig in a Secret: applied to as told, never confused with the local one, and of no use to
//! an attacker.

use std::{collections::BTreeSet, time::Duration};

use base64::Engine;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

use crate::support::{
    Cluster, ControlPlane, Match, Verb, World, look,
    objects::{self, configmap},
    stageset::{Spec, StageSet, stage, stageset},
};

/// A second control plane, shared by the tests of this module; `ControlPlane::dedicated` takes it down in the end.
pub(super) async fn far() -> Cluster {
    static FAR: OnceCell<&'static ControlPlane> = OnceCell::const_new();
    let plane = FAR
        .get_or_init(|| async { &*Box::leak(Box::new(ControlPlane::dedicated("remote").await)) })
        .await;
    Cluster::of(plane).await
}

/// A kubeconfig for `server`, with its authority and a token.
pub(super) fn kubeconfig(cluster: &Cluster, token: &str) -> Value {
    let ca = base64::engine::general_purpose::STANDARD.encode(cluster.ca_pem());
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "main",
        "contexts": [{ "name": "main", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": { "server": cluster.server(), "certificate-authority-data": ca } }],
        "users": [{ "name": "u", "user": { "token": token } }],
    })
}

pub(super) fn admin(cluster: &Cluster) -> Value {
    kubeconfig(cluster, cluster.plane.var("TESTENV_ADMIN_TOKEN"))
}

pub(super) async fn secret(world: &World, name: &str, key: &str, kubeconfig: &Value) {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": world.namespace },
        "stringData": { key: kubeconfig.to_string() },
    });
    world.cluster.apply(&object, &world.namespace).await;
}

/// The namespace on another cluster, with a tenant of its own there.
pub(super) async fn furnish(cluster: &Cluster, namespace: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {namespace} }}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: \
         {{ name: tenant }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: tenant }}\nroleRef: \
         {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin }}\nsubjects: [{{ kind: ServiceAccount, name: \
         tenant, namespace: {namespace} }}]\n"
    );
    cluster.apply_yaml(&text, namespace).await;
}

pub(super) fn remote(name: &str, secret: &str) -> Spec {
    stageset(name)
        .set("kubeConfig", json!({ "secretRef": { "name": secret } }))
        .stage(stage("web", name))
}

pub(super) async fn maps(cluster: &Cluster, namespace: &str) -> BTreeSet<String> {
    let found = cluster
        .list(&objects::configmaps(), namespace, "stages.metio.wtf/name")
        .await;
    found
        .iter()
        .filter_map(|m| m["metadata"]["name"].as_str().map(str::to_owned))
        .collect()
}

pub(super) fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|n| (*n).to_owned()).collect()
}

pub(super) async fn publish(world: &World, artifact: &str, of: &[&str]) -> String {
    let files: Vec<(String, String)> = of.iter().map(|n| (format!("{n}.yaml"), configmap(n, "1"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    world.publish(artifact, &files).await
}

/// Waits until Ready is False with a message that holds `part`; gives the message.
pub(super) async fn until_message(set: &StageSet<'_>, part: &str) -> String {
    set.until(&format!("not ready: {part}"), |status| {
        let ready = crate::support::stageset::condition_of(status, "Ready");
        ready.is_some_and(|c| c["status"] == "False" && c["message"].as_str().is_some_and(|m| m.contains(part)))
    })
    .await;
    set.message().await
}

pub(super) async fn cluster_id(cluster: &Cluster) -> String {
    let system = cluster.must_get(&objects::namespaces(), "", "kube-system").await;
    system["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Rules: run 11.3 secret, run 11.3 inventory, run D8, decisions 6 target
#[tokio::test(flavor = "multi_thread")]
async fn objects_go_to_the_cluster_of_the_kubeconfig_and_leave_it_again() {
    let world = World::start("remote").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a", "b"]).await;
    let app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a", "b"]));
    assert_eq!(
        maps(&world.cluster, &world.namespace).await,
        names(&[]),
        "nothing is applied locally"
    );
    let shards = world
        .cluster
        .list(
            &objects::inventories(),
            &world.namespace,
            "stages.metio.wtf/stage-set=app",
        )
        .await;
    assert_eq!(shards[0]["spec"]["target"]["clusterID"], cluster_id(&far).await);
    assert_eq!(shards[0]["spec"]["target"]["kubeConfig"]["secretRef"]["name"], "far");
    let revision = publish(&world, "app", &["b"]).await;
    app.until_rolled_out("web", &revision).await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["b"]), "pruned there");
    app.delete().await;
    app.until_gone().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&[]), "torn down there");
}

/// The watch on the other cluster tells: nothing is polled.
///
/// Rules: run 20 correct, run 27.2 deployment
#[tokio::test(flavor = "multi_thread")]
async fn drift_and_readiness_are_noticed_there() {
    let world = World::start("remote-watch").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    let text = objects::deployment("web", "img", 1);
    let late = text.replace(
        "    metadata:\n      labels:\n",
        "    metadata:\n      annotations: { testenv.metio.wtf/pod: late, testenv.metio.wtf/delay: 3s }\n      labels:\n",
    );
    assert_ne!(text, late);
    world.publish("app", &[("web.yaml", &late)]).await;
    let app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    let live = far.must_get(&objects::deployments(), &world.namespace, "web").await;
    assert_eq!(live["status"]["availableReplicas"], 1);
    let available = live["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|c| c["type"] == "Available");
    let available: jiff::Timestamp = available
        .and_then(|c| c["lastTransitionTime"].as_str()?.parse().ok())
        .expect("available");
    let status = app.status().await;
    let ready = crate::support::stageset::condition_of(&status, "Ready")
        .and_then(|c| c["lastTransitionTime"].as_str()?.parse().ok());
    let ready: jiff::Timestamp = ready.expect("ready");
    // The net under the watches is 30 s wide.
    assert!(
        ready.duration_since(available) < jiff::SignedDuration::from_secs(5),
        "{available} {ready}"
    );
    far.delete(&objects::deployments(), &world.namespace, "web").await;
    app.request().await;
    far.until(&objects::deployments(), &world.namespace, "web", "there again", |d| {
        d["metadata"]["deletionTimestamp"].is_null()
    })
    .await;
}

/// The identity on the other cluster is the account there, on top of the kubeconfig's own.
///
/// Rules: run 11.3 impersonation
#[tokio::test(flavor = "multi_thread")]
async fn the_account_is_impersonated_there() {
    let world = World::start("remote-account").await;
    let far = far().await;
    // The namespace is there, but the account may do nothing.
    far.apply_yaml(
        &format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {} }}\n",
            world.namespace
        ),
        "",
    )
    .await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let app = remote("app", "far").apply(&world).await;
    let message = until_message(&app, "forbidden").await;
    let account = format!("system:serviceaccount:{}:tenant", world.namespace);
    assert!(message.contains(&account), "{message}");
    furnish(&far, &world.namespace).await;
    app.until_ready().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a"]));
}

/// Who may not read the Secret cannot use it either.
///
/// Rules: contract 17.36
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_the_account_may_not_read_is_not_used() {
    let world = World::start("remote-unread").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    world
        .cluster
        .apply_yaml(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: weak }\n",
            &world.namespace,
        )
        .await;
    publish(&world, "app", &["a"]).await;
    let mark = world.proxy.mark();
    let app = remote("app", "far")
        .set("serviceAccountName", json!("weak"))
        .apply(&world)
        .await;
    let message = until_message(&app, "may not read Secret").await;
    assert!(
        message.contains("connect to target cluster") && message.contains("/weak "),
        "{message}"
    );
    let read = world
        .proxy
        .since(mark)
        .matching(&Match::any().verb(Verb::Get).resource("secrets"));
    assert!(read.is_empty(), "the Secret was read all the same:\n{}", read.lines());
    assert_eq!(maps(&far, &world.namespace).await, names(&[]));
    // A stage's own account is held to the same.
    let other = stageset("other")
        .set("serviceAccountName", Value::Null)
        .set("kubeConfig", json!({ "secretRef": { "name": "far" } }))
        .stage(stage("web", "app").set("serviceAccountName", json!("weak")))
        .apply(&world)
        .await;
    until_message(&other, "may not read Secret").await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "far", "namespace": world.namespace },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["far"], "verbs": ["get"] }],
    });
    world.cluster.apply(&role, &world.namespace).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "far", "namespace": world.namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "far" },
        "subjects": [{ "kind": "ServiceAccount", "name": "weak", "namespace": world.namespace }],
    });
    world.cluster.apply(&binding, &world.namespace).await;
    until_message(&app, "cannot").await;
}

/// Rules: run 3 step 12, run 11.3 missing
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named_and_the_local_cluster_is_never_a_substitute() {
    let world = World::start("remote-missing").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    publish(&world, "app", &["a"]).await;
    let app = remote("app", "far").apply(&world).await;
    let message = until_message(&app, "does not exist").await;
    assert!(
        message.contains(&format!("Secret {}/far", world.namespace)),
        "{message}"
    );
    secret(&world, "far", "other", &admin(&far)).await;
    until_message(&app, "is missing or empty").await;
    secret(&world, "far", "value", &json!("hunter2")).await;
    let message = until_message(&app, "not a kubeconfig").await;
    assert!(!message.contains("hunter2"), "{message}");
    secret(&world, "far", "value", &kubeconfig(&far, "hunter2")).await;
    let message = until_message(&app, "401").await;
    assert!(!message.contains("hunter2"), "{message}");
    assert_eq!(
        maps(&world.cluster, &world.namespace).await,
        names(&[]),
        "applied locally"
    );
    secret(&world, "far", "value", &admin(&far)).await;
    app.until_ready().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a"]));
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&[]));
}

/// What a kubeconfig may try inside the controller, each with the field its refusal has to name.
fn attacks(far: &Cluster, listener: &str) -> Vec<(&'static str, Value)> {
    let user = |field: &str, value: Value| {
        let mut config = admin(far);
        config["users"][0]["user"][field] = value;
        config
    };
    let server = |field: &str, value: Value| {
        let mut config = admin(far);
        config["clusters"][0]["cluster"][field] = value;
        config
    };
    let exec = json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": ["/tmp/stageset-it-pwned"] });
    vec![
        ("users[0].user.exec", user("exec", exec)),
        (
            "users[0].user.auth-provider",
            user(
                "auth-provider",
                json!({ "name": "gcp", "config": { "cmd-path": "/bin/touch" } }),
            ),
        ),
        ("users[0].user.tokenFile", user("tokenFile", json!("/etc/hostname"))),
        (
            "users[0].user.client-certificate",
            user("client-certificate", json!("/etc/hostname")),
        ),
        ("users[0].user.client-key", user("client-key", json!("/etc/hostname"))),
        (
            "clusters[0].cluster.certificate-authority",
            server("certificate-authority", json!("/etc/hostname")),
        ),
        (
            "clusters[0].cluster.insecure-skip-tls-verify",
            server("insecure-skip-tls-verify", json!(true)),
        ),
        (
            "clusters[0].cluster.proxy-url",
            server("proxy-url", json!(format!("http://{listener}"))),
        ),
        ("users[0].user.as", user("as", json!("system:admin"))),
        ("users[0].user.as-groups", user("as-groups", json!(["system:masters"]))),
        ("users[0].user.as-uid", user("as-uid", json!("0"))),
        (
            "users[0].user.as-user-extra",
            user("as-user-extra", json!({ "a": ["b"] })),
        ),
        (
            "users[0].user.token",
            user("token", json!("x\r\nImpersonate-User: system:admin")),
        ),
        (
            "clusters[0].cluster.server",
            server("server", json!("https://169.254.169.254")),
        ),
        (
            "clusters[0].cluster.server",
            server("server", json!("https://[fe80::1]:6443")),
        ),
        (
            "clusters[0].cluster.server",
            server("server", json!("https://2852039166")),
        ),
        (
            "clusters[0].cluster.server",
            server("server", json!("http://198.51.100.1")),
        ),
    ]
}

/// Rules: run 11.3 self-contained, run B15, decisions 7 servers, contract 17.35
#[tokio::test(flavor = "multi_thread")]
async fn hostile_kubeconfigs_get_nowhere() {
    let world = World::start("remote-attack").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    publish(&world, "app", &["a"]).await;
    let attacks = attacks(&far, &address);
    for (at, (_, config)) in attacks.iter().enumerate() {
        secret(&world, &format!("s{at}"), "value", config).await;
        let spec = stageset(&format!("app{at}"))
            .set("kubeConfig", json!({ "secretRef": { "name": format!("s{at}") } }))
            .stage(stage("web", "app"));
        spec.apply(&world).await;
    }
    let token = far.plane.var("TESTENV_ADMIN_TOKEN");
    for (at, (field, _)) in attacks.iter().enumerate() {
        let set = StageSet::named(&world, &format!("app{at}")).await;
        let message = until_message(&set, field).await;
        assert!(
            message.contains(&format!("Secret {}/s{at}", world.namespace)),
            "{message}"
        );
        for value in [token, "system:admin", "169.254", "pwned", "/etc/hostname", &address] {
            assert!(!message.contains(value), "{message} tells {value}");
        }
    }
    assert!(
        !std::path::Path::new("/tmp/stageset-it-pwned").exists(),
        "a program was run"
    );
    let connected = tokio::time::timeout(Duration::from_millis(200), listener.accept()).await;
    assert!(connected.is_err(), "the proxy was used");
    assert_eq!(maps(&far, &world.namespace).await, names(&[]));
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&[]));
}

/// As in production, loopback is refused: also behind a name that resolves to it.
///
/// Rules: decisions 7 servers
#[tokio::test(flavor = "multi_thread")]
async fn loopback_is_refused_where_nobody_asked_for_it() {
    let world = World::builder("remote-guard")
        .guarded()
        .without_controller()
        .start()
        .await;
    let far = far().await;
    let local = stageset::cluster::Cluster::connect(client_config(&world).await).expect("a client");
    let clusters = stageset::cluster::Clusters::new(local, false);
    for (server, part) in [
        (far.server().to_owned(), "loopback"),
        ("https://localhost:6443".to_owned(), "own machine"),
    ] {
        let mut config = admin(&far);
        config["clusters"][0]["cluster"]["server"] = json!(server);
        secret(&world, "far", "value", &config).await;
        let reference: stageset::api::KubeConfig =
            serde_json::from_value(json!({ "secretRef": { "name": "far" } })).expect("a reference");
        let Err(error) = clusters.target(&world.namespace, &reference, None).await else {
            panic!("{server} was contacted")
        };
        assert!(error.to_string().contains(part), "{error}");
        assert!(!error.to_string().contains("6443"), "{error}");
    }
}

async fn client_config(world: &World) -> kube::Config {
    let kubeconfig =
        kube::config::Kubeconfig::read_from(world.cluster.plane.kubeconfig()).expect("the admin kubeconfig");
    kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
        .await
        .expect("a configuration")
}

/// A name that leads to a safe address when it is checked and to another when it is dialled.
///
/// Rules: run 12 dial, decisions 7 servers
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_judged_by_the_address_that_is_dialled() {
    struct Rebinding(std::sync::atomic::AtomicUsize);
    impl stageset::outbound::Resolve for Rebinding {
        fn resolve(&self, _: String) -> futures::future::BoxFuture<'static, std::io::Result<Vec<std::net::IpAddr>>> {
            let first = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            let answer = if first { "127.0.0.1" } else { "169.254.169.254" };
            Box::pin(std::future::ready(Ok(vec![answer.parse().expect("an address")])))
        }
    }
    let world = World::builder("remote-rebind").without_controller().start().await;
    let far = far().await;
    let local = stageset::cluster::Cluster::connect(client_config(&world).await).expect("a client");
    let clusters = stageset::cluster::Clusters::with_resolver(local, true, std::sync::Arc::new(Rebinding(0.into())));
    let mut config = admin(&far);
    let port = far
        .server()
        .rsplit_once(':')
        .map(|(_, port)| port.trim_end_matches('/').to_owned())
        .expect("a port");
    config["clusters"][0]["cluster"]["server"] = json!(format!("https://rebind.example.com:{port}"));
    config["clusters"][0]["cluster"]["tls-server-name"] = json!("localhost");
    secret(&world, "far", "value", &config).await;
    let reference: stageset::api::KubeConfig =
        serde_json::from_value(json!({ "secretRef": { "name": "far" } })).expect("a reference");
    let target = clusters
        .target(&world.namespace, &reference, None)
        .await
        .expect("the first address is fine");
    // Ten at once need more than the one connection that is open.
    let namespace = stageset::cluster::Target {
        api_version: "v1".into(),
        kind: "Namespace".into(),
        namespace: None,
        name: "default".into(),
    };
    let tenant = target.tenant(stageset::cluster::Identity::Controller);
    let answers = futures::future::join_all((0..10).map(|_| tenant.get(&namespace))).await;
    let refused: Vec<String> = answers
        .into_iter()
        .filter_map(Result::err)
        .map(|e| e.to_string())
        .collect();
    assert!(!refused.is_empty(), "no further connection was needed");
    assert!(refused.iter().all(|e| e.contains("link-local")), "{refused:?}");
}

/// A cluster that was replaced behind its reference is not pruned unasked.
///
/// Rules: decisions 6 target
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_behind_the_reference_is_not_pruned_unasked() {
    let world = World::start("remote-swap").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "target", "value", &admin(&far)).await;
    publish(&world, "app", &["a", "b"]).await;
    let mut app = remote("app", "target").apply(&world).await;
    app.until_ready().await;
    app.suspend(true).await;
    // The other cluster has an object of the same name and owner, as after a restored backup.
    let twin = configmap("b", "1").replace(
        "  name: b\n",
        &format!(
            "  name: b\n  labels: {{ stages.metio.wtf/name: app, stages.metio.wtf/namespace: {}, stages.metio.wtf/stage: web }}\n",
            world.namespace
        ),
    );
    world.cluster.apply_yaml(&twin, &world.namespace).await;
    secret(&world, "target", "value", &admin(&world.cluster)).await;
    let revision = publish(&world, "app", &["a"]).await;
    app.suspend(false).await;
    app.until_reason("PruneHeld").await;
    let message = app.message().await;
    for part in [
        cluster_id(&far).await,
        cluster_id(&world.cluster).await,
        "Secret target".to_owned(),
        revision.clone(),
    ] {
        assert!(message.contains(&part), "{message} does not name {part}");
    }
    assert_eq!(
        maps(&world.cluster, &world.namespace).await,
        names(&["a", "b"]),
        "applied, not pruned"
    );
    app.annotate("stages.metio.wtf/confirm-prune", Some(&revision)).await;
    app.until_rolled_out("web", &revision).await;
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["a"]));
    assert_eq!(
        maps(&far, &world.namespace).await,
        names(&["a", "b"]),
        "the cluster that is gone is left alone"
    );
}

/// A StageSet that moves to another cluster leaves nothing behind on the first, once it is in place on the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_moves_from_cluster_to_cluster() {
    let world = World::start("remote-move").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let mut app = stageset("app").stage(stage("web", "app")).apply(&world).await;
    app.until_ready().await;
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["a"]));
    app.patch_spec(json!({ "kubeConfig": { "secretRef": { "name": "far" } } }))
        .await;
    app.until_ready().await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a"]));
    assert_eq!(
        maps(&world.cluster, &world.namespace).await,
        names(&[]),
        "left behind locally"
    );
    let stages: Vec<String> = app.inventory().await.into_keys().collect();
    assert_eq!(stages, ["web"]);
    app.patch_spec(json!({ "kubeConfig": null })).await;
    app.until_ready().await;
    assert_eq!(maps(&world.cluster, &world.namespace).await, names(&["a"]));
    assert_eq!(
        maps(&far, &world.namespace).await,
        names(&[]),
        "left behind on the other cluster"
    );
}

/// A rotated Secret is taken without a restart, and its old credentials are not used any more.
///
/// Rules: run 11.3 cache, run B15
#[tokio::test(flavor = "multi_thread")]
async fn rotated_credentials_are_taken_at_once() {
    let world = World::start("remote-rotate").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    secret(&world, "far", "value", &kubeconfig(&far, "revoked")).await;
    until_message(&app, "401").await;
    secret(&world, "far", "value", &admin(&far)).await;
    app.until_ready().await;
}

/// The teardown does not take the local cluster for the one that cannot be reached, and says what it waits for.
///
/// Rules: run 4.2 retry
#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_waits_for_its_cluster() {
    let world = World::start("remote-teardown").await;
    let far = far().await;
    furnish(&far, &world.namespace).await;
    secret(&world, "far", "value", &admin(&far)).await;
    publish(&world, "app", &["a"]).await;
    let app = remote("app", "far").apply(&world).await;
    app.until_ready().await;
    world.cluster.delete(&objects::secrets(), &world.namespace, "far").await;
    app.delete().await;
    until_message(&app, "does not exist").await;
    assert_eq!(maps(&far, &world.namespace).await, names(&["a"]));
    secret(&world, "far", "value", &admin(&far)).await;
    app.until_gone().await;
    let gone = look(Duration::from_secs(5), || async {
        let left = maps(&far, &world.namespace).await;
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    gone.await.expect("torn down there");
}
