//! One test's world: a namespace, a tenant, an artifact server, a proxy and a controller.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::{
    Archive, ArtifactServer, Cluster, Controller, FaultProxy, Launch, archive,
    artifacts::Answer,
    diagnose, machine,
    objects::{self, Kind},
};

/// Whose credentials the controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A ServiceAccount with the rights of `tests/it/fixtures/rbac.yaml`.
    ServiceAccount,
    /// `system:masters`.
    Admin,
}

/// Settings before the start.
pub struct Builder {
    name: String,
    flags: Vec<String>,
    env: BTreeMap<String, String>,
    identity: Identity,
    controller: bool,
    claim: Claim,
    guarded: bool,
    seed: u64,
}

/// The world of one test.
pub struct World {
    pub cluster: Cluster,
    /// The test's own namespace; the controller watches only this.
    pub namespace: String,
    pub proxy: FaultProxy,
    pub artifacts: ArtifactServer,
    controller: Option<Controller>,
    launch: Launch,
    /// Logs of controllers the test itself holds.
    logs: std::sync::Mutex<Vec<PathBuf>>,
    files: tempfile::TempDir,
    machine: Machine,
}

/// What a world asks of the machine.
#[derive(Clone, Copy)]
enum Claim {
    Shared,
    Alone,
    None,
}

enum Machine {
    None,
    Shared(#[allow(dead_code, reason = "held for its drop")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "held for its drop")] RwLockWriteGuard<'static, ()>),
}

impl World {
    /// A world with a running, ready controller.
    pub async fn start(name: &str) -> Self {
        Self::builder(name).start().await
    }

    /// A world with other settings.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.to_owned(),
            flags: Vec::new(),
            env: BTreeMap::new(),
            identity: Identity::ServiceAccount,
            controller: true,
            claim: Claim::Shared,
            guarded: false,
            seed: 0,
        }
    }

    /// The controller, for tests that kill, restart or measure it.
    pub fn controller(&mut self) -> &mut Controller {
        self.controller
            .as_mut()
            .expect("this world was started without a controller")
    }

    /// Scrapes and logs need no exclusive access.
    pub fn controller_ref(&self) -> &Controller {
        self.controller
            .as_ref()
            .expect("this world was started without a controller")
    }

    /// Starts the controller of a world that was built without one, or another replica.
    pub async fn start_controller(&mut self) {
        let mut controller = Controller::start(self.launch.clone());
        controller.until_ready().await;
        self.controller = Some(controller);
    }

    /// Replaces a flag for the next start of the controller.
    pub fn set_flag(&mut self, prefix: &str, flag: &str) {
        self.launch.flags.retain(|f| !f.starts_with(prefix));
        self.launch.flags.push(flag.to_owned());
    }

    /// A controller the test holds itself, with the same identity and flags; it gets its own log and ports.
    pub fn replica(&self, suffix: &str) -> Controller {
        let launch = Launch {
            name: format!("{}-{suffix}", self.launch.name),
            ..self.launch.clone()
        };
        let controller = Controller::start(launch);
        self.logs
            .lock()
            .expect("the logs")
            .push(controller.log_path().to_owned());
        controller
    }

    /// Ends the controller of this world for good.
    pub fn without_controller(&mut self) {
        self.controller = None;
    }

    /// A kubeconfig for a ServiceAccount of this namespace, through the proxy.
    pub async fn kubeconfig_for(&self, service_account: &str) -> PathBuf {
        let token = token(&self.cluster, &self.namespace, service_account).await;
        self.write_kubeconfig(service_account, &self.proxy.url(), &token)
    }

    fn write_kubeconfig(&self, user: &str, server: &str, token: &str) -> PathBuf {
        let path = self.files.path().join(format!("{user}.kubeconfig"));
        fs::write(&path, kubeconfig(user, server, token)).expect("a kubeconfig file");
        path
    }

    /// Another namespace of this test, with the same tenant; not watched unless a flag says so.
    pub async fn another_namespace(&self, suffix: &str) -> String {
        let namespace = format!("{}-{suffix}", self.namespace);
        furnish(&self.cluster, &namespace).await;
        namespace
    }

    /// A folder that lives as long as the test.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.files.path().join(name);
        fs::create_dir_all(&path).expect("a scratch folder");
        path
    }

    /// Publishes a revision the way a producer does: bytes first, then the object, then its status.
    pub async fn publish(&self, name: &str, files: &[(&str, &str)]) -> String {
        self.publish_archive(name, &Archive::of(files)).await
    }

    /// Publishes an archive; the revision is derived from its content.
    pub async fn publish_archive(&self, name: &str, archive: &Archive) -> String {
        self.publish_bytes(name, archive.gzip()).await
    }

    /// Publishes any bytes under their true digest.
    pub async fn publish_bytes(&self, name: &str, bytes: Vec<u8>) -> String {
        let digest = archive::sha256(&bytes);
        let revision = format!("v1@{digest}");
        let path = format!("{}/{name}/{}.tar.gz", self.namespace, &digest[7..19]);
        let url = self.artifacts.put(&path, Answer::Bytes(bytes.into()));
        self.publish_status(name, &url, &revision, &digest, true).await;
        revision
    }

    /// Publishes whatever a status may claim: any URL, any digest, ready or not.
    pub async fn publish_status(&self, name: &str, url: &str, revision: &str, digest: &str, ready: bool) {
        self.external_artifact(name, None).await;
        let mut status = artifact_status(url, revision, digest, ready);
        let object = self
            .cluster
            .must_get(&objects::external_artifacts(), &self.namespace, name)
            .await;
        status["conditions"][0]["observedGeneration"] = object["metadata"]["generation"].clone();
        self.cluster
            .patch_status(&objects::external_artifacts(), &self.namespace, name, status)
            .await;
    }

    /// A Widget of size 1 that says whether it is ready. Made before it is applied by a StageSet, so that there is no
    /// moment in which it has no status.
    pub async fn widget(&self, name: &str, ready: bool) {
        self.widget_says(name, ready, false).await;
    }

    /// A Widget that has failed for good.
    pub async fn failed_widget(&self, name: &str) {
        self.widget_says(name, false, true).await;
    }

    async fn widget_says(&self, name: &str, ready: bool, stalled: bool) {
        if !self.cluster.exists(&objects::widgets(), &self.namespace, name).await {
            self.cluster
                .apply_yaml(&objects::widget(name, 1), &self.namespace)
                .await;
        }
        let status = objects::widget_status(1, ready, stalled);
        self.cluster
            .patch_status(&objects::widgets(), &self.namespace, name, status)
            .await;
    }

    /// An ExternalArtifact without a status, pointing back at its producer where there is one.
    pub async fn external_artifact(&self, name: &str, producer: Option<(&Kind, &str)>) {
        let spec = producer.map_or_else(
            || json!({}),
            |(kind, of)| json!({ "sourceRef": { "apiVersion": kind.api_version, "kind": kind.kind, "name": of } }),
        );
        let object = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact",
            "metadata": { "name": name, "namespace": self.namespace }, "spec": spec,
        });
        if producer.is_some()
            || !self
                .cluster
                .exists(&objects::external_artifacts(), &self.namespace, name)
                .await
        {
            self.cluster.apply(&object, &self.namespace).await;
        }
    }

    /// Names of objects of a kind in this namespace that carry the owner labels of a StageSet.
    pub async fn applied(&self, kind: &Kind, stageset: &str) -> Vec<String> {
        let selector = format!("stages.metio.wtf/name={stageset}");
        let objects = self.cluster.list(kind, &self.namespace, &selector).await;
        let mut names: Vec<String> = objects
            .iter()
            .filter_map(|o| o["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    /// Data of a ConfigMap's key `value`, where it exists.
    pub async fn config_value(&self, name: &str) -> Option<String> {
        let map = self.cluster.get(&objects::configmaps(), &self.namespace, name).await?;
        map["data"]["value"].as_str().map(str::to_owned)
    }

    /// Everything that helps to understand a failure.
    pub async fn report(&self) -> String {
        let mut log = self.controller.as_ref().map_or_else(String::new, |c| c.tail(40));
        for path in self.logs.lock().expect("the logs").iter() {
            log += &super::controller::tail(path, 40);
        }
        diagnose::report(&self.cluster, &self.namespace, &log, &self.proxy).await
    }

    /// Fails the test with the world's report.
    pub async fn fail(&self, problem: &str) -> ! {
        panic!("{problem}\n{}", self.report().await)
    }

    /// Waits until the controller asks the API server for nothing any more: what a rollout leaves to do is done.
    pub async fn quiet(&self) {
        const QUIET: Duration = Duration::from_millis(800);
        let until = tokio::time::Instant::now() + super::PATIENCE;
        let mut mark = (self.proxy.mark(), tokio::time::Instant::now());
        while mark.1.elapsed() < QUIET {
            if tokio::time::Instant::now() > until {
                self.fail(&format!("never quiet:\n{}", self.proxy.since(mark.0).lines()))
                    .await;
            }
            if !self.proxy.since(mark.0).is_empty() {
                mark = (self.proxy.mark(), tokio::time::Instant::now());
            }
            tokio::time::sleep(super::GLANCE).await;
        }
    }

    /// Holds for this long; the message is what went wrong when it does not.
    pub async fn stays<F, Fut>(&self, what: &str, span: Duration, mut holds: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<(), String>>,
    {
        let until = tokio::time::Instant::now() + span;
        while tokio::time::Instant::now() < until {
            if let Err(seen) = holds().await {
                self.fail(&format!("{what} did not stay so: {seen}")).await;
            }
            tokio::time::sleep(super::GLANCE).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(controller) = &self.controller
        {
            eprintln!("log of the controller: {}", controller.log_path().display());
        }
    }
}

impl Builder {
    /// A flag of the controller.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// An environment variable of the controller.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The controller acts as `system:masters`.
    pub fn with_admin_rights(mut self) -> Self {
        self.identity = Identity::Admin;
        self
    }

    /// No controller yet.
    pub fn without_controller(mut self) -> Self {
        self.controller = false;
        self
    }

    /// No other test runs meanwhile: for measurements.
    pub fn alone(mut self) -> Self {
        self.claim = Claim::Alone;
        self
    }

    /// A second world of a test that has the machine already.
    pub fn companion(mut self) -> Self {
        self.claim = Claim::None;
        self
    }

    /// Loopback stays forbidden, as in production.
    pub fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Seed of the proxy's dice.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    pub async fn start(self) -> World {
        let machine = match self.claim {
            Claim::Alone => Machine::Alone(machine::alone().await),
            Claim::Shared => Machine::Shared(machine::share().await),
            Claim::None => Machine::None,
        };
        let cluster = Cluster::shared().await;
        let namespace = format!("{}-{:06x}", self.name, rand::random_range(0..0x0100_0000_u32));
        furnish(&cluster, &namespace).await;
        let proxy = FaultProxy::start(cluster.server(), cluster.ca_pem(), self.seed).await;
        let artifacts = ArtifactServer::start().await;
        let files = tempfile::tempdir().expect("a temporary folder");
        let token = match self.identity {
            Identity::Admin => cluster.plane.var("TESTENV_ADMIN_TOKEN").to_owned(),
            Identity::ServiceAccount => token(&cluster, &namespace, "controller").await,
        };
        let path = files.path().join("controller.kubeconfig");
        fs::write(&path, kubeconfig("controller", &proxy.url(), &token)).expect("a kubeconfig file");
        let mut env = self.env;
        env.entry("POD_NAMESPACE".to_owned())
            .or_insert_with(|| namespace.clone());
        let mut flags = self.flags;
        if !flags.iter().any(|f| f.starts_with("--watch-namespaces")) {
            flags.push(format!("--watch-namespaces={namespace}"));
        }
        let launch = Launch {
            name: namespace.clone(),
            kubeconfig: path,
            flags,
            env,
            guarded: self.guarded,
        };
        let mut world = World {
            cluster,
            namespace,
            proxy,
            artifacts,
            controller: None,
            launch,
            logs: std::sync::Mutex::default(),
            files,
            machine,
        };
        if self.controller {
            world.start_controller().await;
        }
        world
    }
}

/// A namespace with a controller's and a tenant's ServiceAccount and their rights.
async fn furnish(cluster: &Cluster, namespace: &str) {
    let text = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{ name: {namespace} }}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{ name: controller }}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{ name: tenant }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{ name: it-{namespace} }}
roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stageset-controller-it }}
subjects: [{{ kind: ServiceAccount, name: controller, namespace: {namespace} }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{ name: lease }}
roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stageset-controller-it-lease }}
subjects: [{{ kind: ServiceAccount, name: controller, namespace: {namespace} }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{ name: tenant }}
roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stageset-it-tenant }}
subjects: [{{ kind: ServiceAccount, name: tenant, namespace: {namespace} }}]
"
    );
    cluster.apply_yaml(&text, namespace).await;
    for (account, resource) in [("tenant", "configmaps"), ("controller", "leases")] {
        may_write(cluster, namespace, account, resource).await;
    }
}

/// Waits until the server's authorizer has taken an account's new rights in.
async fn may_write(cluster: &Cluster, namespace: &str, account: &str, resource: &str) {
    let group = if resource == "leases" {
        "coordination.k8s.io"
    } else {
        ""
    };
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": format!("system:serviceaccount:{namespace}:{account}"),
        "resourceAttributes": { "namespace": namespace, "verb": "create", "group": group, "resource": resource },
    }});
    super::look(Duration::from_secs(20), || async {
        let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())
            .expect("a review");
        let answer: Result<Value, _> = cluster.client.request(request).await;
        match answer {
            Ok(answer) if answer["status"]["allowed"] == true => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap_or_else(|seen| panic!("{account} never got its rights: {seen}"));
}

/// A token of a ServiceAccount, good for a day.
async fn token(cluster: &Cluster, namespace: &str, account: &str) -> String {
    let uri = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 86400 } });
    let request = http::Request::post(uri)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a token request");
    let answer: Value = cluster.client.request(request).await.expect("a token");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// A kubeconfig with one user.
pub fn kubeconfig(user: &str, server: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{ "name": "it", "cluster": { "server": server } }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": user } }],
    })
    .to_string()
}

/// The part of a source's status that the contract with consumers is about.
pub fn artifact_status(url: &str, revision: &str, digest: &str, ready: bool) -> Value {
    json!({
        "artifact": { "url": url, "revision": revision, "digest": digest, "path": "it.tar.gz",
                      "lastUpdateTime": "2026-01-01T00:00:00Z" },
        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" }, "reason": if ready { "Succeeded" } else { "Failed" },
                         "message": "published by the test", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 }],
    })
}
