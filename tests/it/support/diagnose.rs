//! What a failing test prints.

use serde_json::Value;

use super::{Cluster, FaultProxy, objects};

/// StageSets with their status, events, inventories, the last requests and the end of the log.
pub async fn report(cluster: &Cluster, namespace: &str, log: &str, proxy: &FaultProxy) -> String {
    let mut text = String::new();
    for stageset in cluster.list(&objects::stagesets(), namespace, "").await {
        let status = serde_yaml::to_string(&stageset["status"]).unwrap_or_default();
        text += &format!(
            "--- StageSet {} generation {} deletionTimestamp {}\n{status}",
            stageset["metadata"]["name"], stageset["metadata"]["generation"], stageset["metadata"]["deletionTimestamp"]
        );
    }
    for inventory in cluster.list(&objects::inventories(), namespace, "").await {
        text += &format!(
            "--- StageInventory {}: {}\n",
            inventory["metadata"]["name"], inventory["spec"]["entries"]
        );
    }
    text += "--- Events\n";
    for event in cluster.list(&objects::events(), namespace, "").await {
        if event["regarding"]["kind"] == "StageSet" {
            text += &format!("{}\n", event_line(&event));
        }
    }
    let writes = proxy.all().writes();
    let skip = writes.count().saturating_sub(40);
    let lines = writes.lines();
    let last: Vec<&str> = lines.lines().skip(skip).collect();
    text += &format!(
        "--- Writes of the controller (last {} of {})\n{}\n",
        last.len(),
        writes.count(),
        last.join("\n")
    );
    text + log
}

fn event_line(event: &Value) -> String {
    format!(
        "{} {} {} x{}: {}",
        event["regarding"]["name"].as_str().unwrap_or_default(),
        event["type"].as_str().unwrap_or_default(),
        event["reason"].as_str().unwrap_or_default(),
        event["series"]["count"].as_u64().unwrap_or(1),
        event["note"].as_str().unwrap_or_default()
    )
}
