//! The floor under a rollout: a client that only sends the writes the controller needs for it (finalizer,
//! inventory, two status writes, four applies, an Event), without reading, rendering or waiting. Run by
//! `hack/bench/run`, which compares the controller with it.
//!
//! Usage: `bench-bare NAMESPACE COUNT`. The StageSets `s1` to `sCOUNT` are there already.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// StageSets at once, as `--concurrent` of the controller.
const CONCURRENT: usize = 16;
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const SETS: &str = "/apis/stages.metio.wtf/v1/namespaces";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [namespace, count] = arguments.as_slice() else {
        eprintln!("usage: bench-bare NAMESPACE COUNT");
        return ExitCode::from(2);
    };
    match run(namespace, count.parse().unwrap_or(0)).await {
        Ok(took) => {
            println!("{:.3}", took.as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-bare: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(namespace: &str, count: usize) -> Result<Duration> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = Client::try_default().await?;
    let began = Instant::now();
    futures::stream::iter((1..=count).map(Ok))
        .try_for_each_concurrent(CONCURRENT, |number| {
            let one = One {
                client: client.clone(),
                namespace: namespace.to_owned(),
                name: format!("s{number}"),
            };
            async move { one.roll_out().await }
        })
        .await?;
    Ok(began.elapsed())
}

/// One StageSet's writes.
struct One {
    client: Client,
    namespace: String,
    name: String,
}

impl One {
    async fn roll_out(&self) -> Result<()> {
        let set = format!("{SETS}/{}/stagesets/{}", self.namespace, self.name);
        let finalizer = json!({"metadata": {"finalizers": ["stages.metio.wtf/finalizer"]}});
        self.write("PATCH", &set, MERGE, false, &finalizer).await?;
        let status = format!("{set}/status");
        self.write("PATCH", &status, MERGE, false, &self.status("Unknown"))
            .await?;
        let inventories = format!("{SETS}/{}/stageinventories", self.namespace);
        self.write("POST", &inventories, "application/json", false, &self.inventory())
            .await?;
        futures::stream::iter(self.objects())
            .map(|(path, object)| async move { self.write("PATCH", &path, APPLY, true, &object).await })
            .buffer_unordered(4)
            .try_collect::<Vec<_>>()
            .await?;
        self.write("PATCH", &status, MERGE, false, &self.status("True")).await?;
        let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        self.write("POST", &events, "application/json", false, &self.event())
            .await
    }

    async fn write(&self, method: &str, path: &str, content: &str, as_tenant: bool, body: &Value) -> Result<()> {
        let query = if content == APPLY {
            "?fieldManager=bare&force=true"
        } else {
            "?fieldManager=bare"
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{path}{query}"))
            .header("Content-Type", content);
        if as_tenant {
            let user = format!("system:serviceaccount:{}:tenant", self.namespace);
            request = request.header("Impersonate-User", user);
        }
        let _: Value = self.client.request(request.body(serde_json::to_vec(body)?)?).await?;
        Ok(())
    }

    fn objects(&self) -> [(String, Value); 4] {
        let core = format!("/api/v1/namespaces/{}", self.namespace);
        let of = |kind: &str, resource: &str, name: String, rest: Value| {
            let labels = json!({"stages.metio.wtf/name": self.name, "stages.metio.wtf/namespace": self.namespace,
                "applyset.kubernetes.io/part-of": "applyset-0123456789abcdef0123456789abcdef0123456789-v1"});
            let mut object = json!({"apiVersion": "v1", "kind": kind,
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels}});
            if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
                object.extend(rest);
            }
            (format!("{core}/{resource}/{name}"), object)
        };
        let data = json!({"data": {"value": self.name}});
        let service = json!({"spec": {"selector": {"app": self.name}, "ports": [{"port": 80}]}});
        [
            of("ConfigMap", "configmaps", format!("a-{}", self.name), data.clone()),
            of("ConfigMap", "configmaps", format!("b-{}", self.name), data),
            of("ServiceAccount", "serviceaccounts", self.name.clone(), json!({})),
            of("Service", "services", self.name.clone(), service),
        ]
    }

    fn status(&self, ready: &str) -> Value {
        let condition = json!({"type": "Ready", "status": ready, "reason": "Progressing", "observedGeneration": 1,
            "message": "stage \"app\" (1/1): applying", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({"status": {"observedGeneration": 1, "conditions": [condition],
            "stages": [{"name": "app", "phase": "Applying", "step": "Apply", "entriesCount": 4, "shards": 1}]}})
    }

    fn inventory(&self) -> Value {
        let ids = [
            "a-{}__ConfigMap",
            "b-{}__ConfigMap",
            "{}__ServiceAccount",
            "{}__Service",
        ];
        let id = |pattern: &str| format!("{}_{}", self.namespace, pattern.replace("{}", &self.name));
        let entries: Vec<Value> = ids.iter().map(|p| json!({"id": id(p), "v": "v1"})).collect();
        json!({"apiVersion": "stages.metio.wtf/v1", "kind": "StageInventory",
            "metadata": {"name": format!("{}-app-0", self.name), "namespace": self.namespace},
            "spec": {"stagePosition": 0, "serviceAccountName": "tenant", "entries": entries}})
    }

    fn event(&self) -> Value {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": format!("{}.bare", self.name), "namespace": self.namespace},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "ReconciliationSucceeded",
            "action": "ReconciliationSucceeded", "note": "all stages are ready", "reportingController": "bare",
            "reportingInstance": "bare",
            "regarding": {"apiVersion": "stages.metio.wtf/v1", "kind": "StageSet", "namespace": self.namespace,
                "name": self.name}})
    }
}
