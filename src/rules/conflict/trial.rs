//! A trial creation: before an object is deleted to be created again, a dry run must show that it can be created.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Kinds whose name is part of their meaning, so that a copy under another name is refused for that alone.
const NAMED_BY_MEANING: [(&str, &str); 4] = [
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("", "Node"),
    ("storage.k8s.io", "CSINode"),
];

/// The object to create with `dryRun=All`: a copy under a throw-away name, without what only one object can have at a
/// time (a Service's addresses and node ports). None where the kind allows no other name (run 28 B5).
pub fn trial_object(rendered: &Value) -> Option<Value> {
    let api_version = rendered.get("apiVersion").and_then(Value::as_str)?;
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let kind = rendered.get("kind").and_then(Value::as_str)?;
    if NAMED_BY_MEANING.contains(&(group, kind)) {
        return None;
    }
    let mut copy = rendered.clone();
    let metadata = copy.get_mut("metadata")?.as_object_mut()?;
    let name = metadata.get("name")?.as_str()?;
    let trial = trial_name(name);
    for field in ["uid", "resourceVersion", "managedFields"] {
        metadata.remove(field);
    }
    metadata.insert("name".to_owned(), trial.into());
    if (group, kind) == ("", "Service")
        && let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut)
    {
        release_addresses(spec);
    }
    Some(copy)
}

/// A short name that every kind accepts and that differs per object.
fn trial_name(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let hash: String = digest[..5].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("stageset-trial-{hash}")
}

fn release_addresses(spec: &mut Map<String, Value>) {
    let headless = spec.get("clusterIP").and_then(Value::as_str) == Some("None");
    if !headless {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    spec.remove("healthCheckNodePort");
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
}
