//! Kinds as people use them: what a controller of the cluster makes of an object, and what becomes of it when it changes.

mod admission;
pub mod custom;
mod kinds;
mod others;
mod stateful;

use serde_json::{Value, json};

use crate::support::{World, objects::Kind};

/// The live object's identity.
async fn uid(world: &World, kind: &Kind, name: &str) -> String {
    let object = world.cluster.must_get(kind, &world.namespace, name).await;
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Rights of the tenant beyond its namespace, as rules of a ClusterRole.
async fn grant(world: &World, rules: Value) {
    let name = format!("it-{}-tenant", world.namespace);
    let objects = [
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": world.namespace }],
        }),
    ];
    for object in &objects {
        world.cluster.apply(object, "").await;
    }
}
