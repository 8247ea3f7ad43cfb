//! Admin access to a control plane: any object, by kind and name, as JSON.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use kube::{
    Api, Client, Config,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::{Value, json};

use super::{controlplane::ControlPlane, look, objects::Kind};

/// A control plane as a test sees it. One per test: a client belongs to the runtime it was made in.
pub struct Cluster {
    pub plane: &'static ControlPlane,
    pub client: Client,
    server: String,
    ca_pem: Vec<u8>,
    kinds: Mutex<BTreeMap<Kind, (ApiResource, Scope)>>,
}

impl Cluster {
    /// The shared control plane with this runtime's own client.
    pub async fn shared() -> Self {
        Self::of(ControlPlane::shared().await).await
    }

    /// Any control plane; a dedicated one is leaked into the process, whose end takes it down.
    pub async fn of(plane: &'static ControlPlane) -> Self {
        super::install_crypto();
        let kubeconfig = Kubeconfig::read_from(plane.kubeconfig()).expect("the admin kubeconfig");
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a usable admin kubeconfig");
        config.read_timeout = Some(Duration::from_secs(120));
        let server = config.cluster_url.to_string();
        let ca_pem = config
            .root_cert
            .clone()
            .unwrap_or_default()
            .iter()
            .map(|der| pem(der))
            .collect::<String>();
        let client = Client::try_from(config).expect("an admin client");
        Self {
            plane,
            client,
            server,
            ca_pem: ca_pem.into_bytes(),
            kinds: Mutex::new(BTreeMap::new()),
        }
    }

    /// URL of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// CA of the API server, PEM.
    pub fn ca_pem(&self) -> &[u8] {
        &self.ca_pem
    }

    async fn resolve(&self, kind: &Kind) -> Result<(ApiResource, Scope), kube::Error> {
        if let Some(found) = self.kinds.lock().expect("the kinds").get(kind) {
            return Ok(found.clone());
        }
        let gvk = GroupVersionKind::gvk(kind.group(), kind.version(), &kind.kind);
        let (resource, capabilities) = discovery::pinned_kind(&self.client, &gvk).await?;
        let found = (resource, capabilities.scope);
        self.kinds
            .lock()
            .expect("the kinds")
            .insert(kind.clone(), found.clone());
        Ok(found)
    }

    async fn api(&self, kind: &Kind, namespace: &str) -> Result<Api<DynamicObject>, kube::Error> {
        let (resource, scope) = self.resolve(kind).await?;
        Ok(match scope {
            Scope::Namespaced if !namespace.is_empty() => {
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
            _ => Api::all_with(self.client.clone(), &resource),
        })
    }

    async fn must_api(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        self.api(kind, namespace)
            .await
            .unwrap_or_else(|e| panic!("{kind} is not served: {e}"))
    }

    /// Server-side apply of one object as the test's own field manager.
    pub async fn apply(&self, object: &Value, namespace: &str) -> Value {
        self.try_apply(object, namespace)
            .await
            .unwrap_or_else(|e| panic!("apply {} {}: {e}", Kind::of(object), object["metadata"]["name"]))
    }

    /// Like [`Self::apply`], for objects that the server may refuse.
    pub async fn try_apply(&self, object: &Value, namespace: &str) -> Result<Value, kube::Error> {
        let kind = Kind::of(object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        let name = object["metadata"]["name"]
            .as_str()
            .expect("an object to apply has a name");
        let api = self.api(&kind, namespace).await?;
        let applied = api
            .patch(name, &PatchParams::apply("it").force(), &Patch::Apply(object))
            .await?;
        Ok(serde_json::to_value(applied).expect("an object is JSON"))
    }

    /// Applies every document of a YAML text, in order.
    pub async fn apply_yaml(&self, text: &str, namespace: &str) {
        for object in super::objects::documents(text) {
            self.apply(&object, namespace).await;
        }
    }

    /// The object, where it exists.
    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.must_api(kind, namespace).await.get_opt(name).await;
        let object = object.unwrap_or_else(|e| panic!("get {kind} {namespace}/{name}: {e}"));
        object.map(|o| serde_json::to_value(o).expect("an object is JSON"))
    }

    /// The object; its absence fails the test.
    pub async fn must_get(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        self.get(kind, namespace, name)
            .await
            .unwrap_or_else(|| panic!("{kind} {namespace}/{name} does not exist"))
    }

    pub async fn exists(&self, kind: &Kind, namespace: &str, name: &str) -> bool {
        self.get(kind, namespace, name).await.is_some()
    }

    /// Objects of a kind, all namespaces when `namespace` is empty; `selector` is a label selector.
    pub async fn list(&self, kind: &Kind, namespace: &str, selector: &str) -> Vec<Value> {
        let list = self
            .must_api(kind, namespace)
            .await
            .list(&ListParams::default().labels(selector))
            .await;
        let list = list.unwrap_or_else(|e| panic!("list {kind} in {namespace}: {e}"));
        list.items
            .into_iter()
            .map(|o| serde_json::to_value(o).expect("an object is JSON"))
            .collect()
    }

    /// Merge patch.
    pub async fn patch(&self, kind: &Kind, namespace: &str, name: &str, patch: Value) -> Value {
        let api = self.must_api(kind, namespace).await;
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let patched = patched.unwrap_or_else(|e| panic!("patch {kind} {namespace}/{name}: {e}"));
        serde_json::to_value(patched).expect("an object is JSON")
    }

    /// Merge patch of the status subresource.
    pub async fn patch_status(&self, kind: &Kind, namespace: &str, name: &str, status: Value) -> Value {
        let api = self.must_api(kind, namespace).await;
        let patch = json!({ "status": status });
        let patched = api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let patched = patched.unwrap_or_else(|e| panic!("patch status of {kind} {namespace}/{name}: {e}"));
        serde_json::to_value(patched).expect("an object is JSON")
    }

    /// Sets an annotation; `None` removes it.
    pub async fn annotate(&self, kind: &Kind, namespace: &str, name: &str, key: &str, value: Option<&str>) {
        self.patch(
            kind,
            namespace,
            name,
            json!({ "metadata": { "annotations": { key: value } } }),
        )
        .await;
    }

    /// Deletes in the background; an absent object is fine.
    pub async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        match self
            .must_api(kind, namespace)
            .await
            .delete(name, &DeleteParams::background())
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => panic!("delete {kind} {namespace}/{name}: {e}"),
        }
    }

    /// Waits until the object satisfies the predicate, and gives it.
    pub async fn until(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        what: &str,
        good: impl Fn(&Value) -> bool,
    ) -> Value {
        look(super::PATIENCE, || async {
            let object = self.get(kind, namespace, name).await.ok_or("it does not exist")?;
            if good(&object) {
                Ok(object)
            } else {
                Err(object.to_string())
            }
        })
        .await
        .unwrap_or_else(|seen| panic!("{kind} {namespace}/{name} never was {what}: {seen}"))
    }

    /// Waits until the object is gone.
    pub async fn until_gone(&self, kind: &Kind, namespace: &str, name: &str) {
        look(super::PATIENCE, || async {
            match self.get(kind, namespace, name).await {
                None => Ok(()),
                Some(object) => Err(object["metadata"].to_string()),
            }
        })
        .await
        .unwrap_or_else(|seen| panic!("{kind} {namespace}/{name} is still there: {seen}"));
    }
}

fn pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<String> = text
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}
