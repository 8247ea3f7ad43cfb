//! Admission configurations: they come last, and what they refuse is told with their name.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
};

use base64::Engine as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};

use super::grant;
use crate::support::{
    Match, Verb, World,
    objects::{Kind, configmap, deployment, multi},
    stageset::{stage, stageset},
};

/// A webhook on loopback that refuses everything it is asked, with the API server's own certificate.
struct Refusing {
    url: String,
    ca: String,
}

impl Refusing {
    fn start(world: &World, word: &'static str) -> Self {
        let pki = std::path::Path::new(world.cluster.plane.var("TESTENV_DATA")).join("pki");
        let chain = CertificateDer::pem_file_iter(pki.join("apiserver.crt"))
            .expect("a certificate")
            .collect::<Result<Vec<_>, _>>()
            .expect("a chain");
        let key = PrivateKeyDer::from_pem_file(pki.join("apiserver.key")).expect("a key");
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a server's settings");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = config.clone();
                std::thread::spawn(move || serve(stream, config, word));
            }
        });
        let ca = std::fs::read(world.cluster.plane.var("TESTENV_CA_FILE")).expect("the CA");
        Self {
            url: format!("https://127.0.0.1:{port}/"),
            ca: base64::engine::general_purpose::STANDARD.encode(ca),
        }
    }

    /// YAML of a configuration for the ConfigMaps of one namespace.
    fn configuration(&self, world: &World, kind: &str) -> String {
        let name = format!("it-{}", world.namespace);
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name },
            "webhooks": [{
                "name": "no.stageset.test", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                "clientConfig": { "url": self.url, "caBundle": self.ca },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": world.namespace } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"] }],
            }],
        })
        .to_string()
    }
}

/// Answers the reviews of one connection.
fn serve(stream: TcpStream, config: Arc<rustls::ServerConfig>, word: &str) {
    let Ok(connection) = rustls::ServerConnection::new(config) else {
        return;
    };
    let mut stream = BufReader::new(rustls::StreamOwned::new(connection, stream));
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).is_err() || line.is_empty() {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": { "uid": review["request"]["uid"], "allowed": false, "status": { "code": 403, "message": word } },
        })
        .to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        let sent = stream.get_mut().write_all(format!("{head}{answer}").as_bytes());
        if sent.is_err() || stream.get_mut().flush().is_err() {
            return;
        }
    }
}

/// The tenant may write admission configurations.
async fn may_configure(world: &World) {
    let rules = json!([{ "apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"] }]);
    grant(world, rules).await;
}

/// Rules: run 16.1 order, run 16.8
#[tokio::test(flavor = "multi_thread")]
async fn admission_configurations_are_applied_last_and_in_force_from_then_on() {
    for (kind, resource) in [
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ] {
        let world = World::start("webhook").await;
        may_configure(&world).await;
        let webhook = Refusing::start(&world, "not on a Sunday");
        // Whatever the order in the source: were it applied first, it would refuse the ConfigMap of its own release.
        let release = |value: &str| {
            multi(&[
                webhook.configuration(&world, kind) + "\n",
                deployment("web", "web:1", 1),
                configmap("own", value),
            ])
        };
        world.publish("app", &[("all.yaml", &release("1"))]).await;
        let app = stageset("app")
            .retry_interval("1h")
            .stage(stage("app", "app"))
            .apply(&world)
            .await;
        app.until_ready().await;
        let writes = world.proxy.all().matching(&Match::writes().verb(Verb::Patch));
        let applied: Vec<&str> = writes
            .records()
            .iter()
            .filter(|r| r.call.apply && ["configmaps", "deployments", resource].contains(&r.call.resource.as_str()))
            .map(|r| r.call.resource.as_str())
            .collect();
        assert_eq!(applied, ["configmaps", "deployments", resource], "\n{}", writes.lines());

        let revision = world.publish("app", &[("all.yaml", &release("2"))]).await;
        let ready = app.until_reason("StageFailed").await;
        let message = ready["message"].as_str().unwrap_or_default();
        for part in [
            "stage \"app\" apply",
            "ConfigMap",
            "own",
            "no.stageset.test",
            "not on a Sunday",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(world.config_value("own").await.as_deref(), Some("1"));

        // Once it is out of the way, the next attempt goes through.
        let configuration = Kind::new("admissionregistration.k8s.io/v1", kind);
        let name = format!("it-{}", world.namespace);
        world.cluster.delete(&configuration, "", &name).await;
        app.reconcile().await;
        app.until_rolled_out("app", &revision).await;
        app.delete().await;
        app.until_gone().await;
        assert!(
            !world.cluster.exists(&configuration, "", &name).await,
            "it goes with its StageSet"
        );
    }
}
