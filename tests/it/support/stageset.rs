//! StageSets as a test writes and reads them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};

use super::{PATIENCE, World, look, objects};

/// A StageSet under construction.
#[derive(Clone, Debug)]
pub struct Spec {
    name: String,
    annotations: BTreeMap<String, String>,
    spec: Value,
}

/// A stage under construction.
#[derive(Clone, Debug)]
pub struct Stage(Value);

/// Begins a StageSet: the tenant's identity, an interval long enough not to disturb a test.
pub fn stageset(name: &str) -> Spec {
    let spec = json!({ "interval": "1h", "retryInterval": "2s", "serviceAccountName": "tenant", "stages": [] });
    Spec {
        name: name.to_owned(),
        annotations: BTreeMap::new(),
        spec,
    }
}

/// A stage that takes an ExternalArtifact of this name.
pub fn stage(name: &str, artifact: &str) -> Stage {
    Stage(json!({ "name": name, "sourceRef": { "name": artifact } }))
}

/// A stage from a source of any kind.
pub fn stage_from(name: &str, source: Value) -> Stage {
    Stage(json!({ "name": name, "sourceRef": source }))
}

impl Stage {
    /// Sets any field of the stage.
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.0[field] = value;
        self
    }

    pub fn path(self, path: &str) -> Self {
        self.set("path", json!(path))
    }

    /// Bound of the verify phase.
    pub fn timeout(self, timeout: &str) -> Self {
        self.set("timeout", json!(timeout))
    }

    pub fn prune(self, prune: bool) -> Self {
        self.set("prune", json!(prune))
    }
}

impl Spec {
    pub fn stage(mut self, stage: Stage) -> Self {
        self.spec["stages"]
            .as_array_mut()
            .expect("stages are a list")
            .push(stage.0);
        self
    }

    /// Sets any field of the spec; `null` takes it away.
    pub fn set(mut self, field: &str, value: Value) -> Self {
        if value.is_null() {
            self.spec.as_object_mut().expect("a spec is an object").remove(field);
        } else {
            self.spec[field] = value;
        }
        self
    }

    pub fn interval(self, interval: &str) -> Self {
        self.set("interval", json!(interval))
    }

    pub fn retry_interval(self, interval: &str) -> Self {
        self.set("retryInterval", json!(interval))
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The object as it is sent.
    pub fn object(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": "stages.metio.wtf/v1", "kind": "StageSet",
            "metadata": { "name": self.name, "namespace": namespace, "annotations": self.annotations },
            "spec": self.spec,
        })
    }

    /// Applies it in the world's namespace.
    pub async fn apply<'w>(&self, world: &'w World) -> StageSet<'w> {
        self.apply_in(world, &world.namespace).await
    }

    /// Applies it in any namespace.
    pub async fn apply_in<'w>(&self, world: &'w World, namespace: &str) -> StageSet<'w> {
        let applied = world.cluster.apply(&self.object(namespace), namespace).await;
        StageSet {
            world,
            namespace: namespace.to_owned(),
            name: self.name.clone(),
            generation: applied["metadata"]["generation"].as_i64().unwrap_or(1),
        }
    }
}

/// A StageSet on the cluster.
pub struct StageSet<'w> {
    world: &'w World,
    pub namespace: String,
    pub name: String,
    /// Generation after the last apply through this handle.
    pub generation: i64,
}

impl<'w> StageSet<'w> {
    /// A StageSet that exists already.
    pub async fn named(world: &'w World, name: &str) -> Self {
        let object = world
            .cluster
            .must_get(&objects::stagesets(), &world.namespace, name)
            .await;
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        Self {
            world,
            namespace: world.namespace.clone(),
            name: name.to_owned(),
            generation,
        }
    }

    /// The object as it is now.
    pub async fn get(&self) -> Value {
        self.world
            .cluster
            .must_get(&objects::stagesets(), &self.namespace, &self.name)
            .await
    }

    /// Its status, an empty object where there is none.
    pub async fn status(&self) -> Value {
        let object = self.get().await;
        if object["status"].is_null() {
            json!({})
        } else {
            object["status"].clone()
        }
    }

    /// Status entry of a stage.
    pub async fn stage(&self, name: &str) -> Value {
        stage_of(&self.status().await, name).clone()
    }

    /// The condition of a type, where it is set.
    pub async fn condition(&self, kind: &str) -> Option<Value> {
        condition_of(&self.status().await, kind).cloned()
    }

    /// Message of `Ready`.
    pub async fn message(&self) -> String {
        let ready = self.condition("Ready").await.unwrap_or_default();
        ready["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits for `Ready` True at the handle's generation; gives the status.
    pub async fn until_ready(&self) -> Value {
        self.until_ready_within(PATIENCE).await
    }

    pub async fn until_ready_within(&self, patience: Duration) -> Value {
        let good = |status: &Value| {
            let ready = condition_of(status, "Ready").is_some_and(|c| c["status"] == "True");
            ready && status["observedGeneration"].as_i64() >= Some(self.generation)
        };
        self.until_within("Ready", patience, good).await
    }

    /// Waits for `Ready` with this reason, whatever its status; gives the condition.
    pub async fn until_reason(&self, reason: &str) -> Value {
        let good = |status: &Value| condition_of(status, "Ready").is_some_and(|c| c["reason"] == reason);
        let status = self.until(&format!("Ready with reason {reason}"), good).await;
        condition_of(&status, "Ready").cloned().unwrap_or_default()
    }

    /// Waits until a stage is applied at a revision.
    pub async fn until_applied(&self, stage: &str, revision: &str) -> Value {
        self.until(&format!("stage {stage} at {revision}"), |s| {
            stage_of(s, stage)["appliedRevision"] == revision
        })
        .await
    }

    /// Waits until every stage is `Ready` at the pinned revisions and Ready is True, after a new revision.
    pub async fn until_rolled_out(&self, stage: &str, revision: &str) -> Value {
        self.until(&format!("Ready with stage {stage} at {revision}"), |status| {
            condition_of(status, "Ready").is_some_and(|c| c["status"] == "True")
                && stage_of(status, stage)["appliedRevision"] == revision
                && stage_of(status, stage)["phase"] == "Ready"
        })
        .await
    }

    /// Waits until a stage is in a phase.
    pub async fn until_phase(&self, stage: &str, phase: &str) -> Value {
        self.until(&format!("stage {stage} in phase {phase}"), |s| {
            stage_of(s, stage)["phase"] == phase
        })
        .await
    }

    /// Waits until the status satisfies the predicate.
    pub async fn until(&self, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        self.until_within(what, PATIENCE, good).await
    }

    pub async fn until_within(&self, what: &str, patience: Duration, good: impl Fn(&Value) -> bool) -> Value {
        let seen = look(patience, || async {
            let status = self.status().await;
            if good(&status) {
                Ok(status)
            } else {
                Err(summary(&status))
            }
        })
        .await;
        match seen {
            Ok(status) => status,
            Err(seen) => {
                self.world
                    .fail(&format!("StageSet {} never was: {what}; it is {seen}", self.name))
                    .await
            }
        }
    }

    /// Asks for a reconcile; gives the token.
    pub async fn request(&self) -> String {
        let token = uuid::Uuid::new_v4().to_string();
        self.annotate("reconcile.fluxcd.io/requestedAt", Some(&token)).await;
        token
    }

    /// Asks for a reconcile and waits until it was acknowledged.
    pub async fn reconcile(&self) -> Value {
        let token = self.request().await;
        self.until_handled(&token).await
    }

    pub async fn until_handled(&self, token: &str) -> Value {
        self.until(&format!("request {token} handled"), |s| {
            s["lastHandledReconcileAt"] == token
        })
        .await
    }

    pub async fn annotate(&self, key: &str, value: Option<&str>) {
        self.world
            .cluster
            .annotate(&objects::stagesets(), &self.namespace, &self.name, key, value)
            .await;
    }

    /// Merge patch of the spec; later waits are for the new generation.
    pub async fn patch_spec(&mut self, patch: Value) {
        let patch = json!({ "spec": patch });
        let patched = self
            .world
            .cluster
            .patch(&objects::stagesets(), &self.namespace, &self.name, patch)
            .await;
        self.generation = patched["metadata"]["generation"].as_i64().unwrap_or(self.generation);
    }

    pub async fn suspend(&mut self, suspend: bool) {
        self.patch_spec(json!({ "suspend": suspend })).await;
    }

    /// Passes that came to an outcome so far.
    pub async fn passes(&self) -> f64 {
        let label = format!("name=\"{}\"", self.name);
        self.world
            .controller_ref()
            .metric("stageset_reconcile_total", &[label.as_str()])
            .await
    }

    /// Waits until so many passes have come to an outcome.
    pub async fn until_passes(&self, count: f64) {
        let seen = look(PATIENCE, || async {
            let passes = self.passes().await;
            if passes >= count { Ok(()) } else { Err(passes) }.map_err(|passes| format!("{passes}"))
        })
        .await;
        if let Err(seen) = seen {
            self.world
                .fail(&format!("{} came to {seen} outcomes, not {count}", self.name))
                .await;
        }
    }

    /// Deletes it; see [`Self::until_gone`].
    pub async fn delete(&self) {
        self.world
            .cluster
            .delete(&objects::stagesets(), &self.namespace, &self.name)
            .await;
    }

    pub async fn until_gone(&self) {
        let gone = look(PATIENCE, || async {
            let exists = self
                .world
                .cluster
                .exists(&objects::stagesets(), &self.namespace, &self.name)
                .await;
            if exists { Err(()) } else { Ok(()) }.map_err(|()| "it exists".to_owned())
        })
        .await;
        if gone.is_err() {
            self.world.fail(&format!("StageSet {} is not gone", self.name)).await;
        }
    }

    /// Recorded ids by stage, over all shards.
    pub async fn inventory(&self) -> BTreeMap<String, BTreeSet<String>> {
        let selector = format!("stages.metio.wtf/stage-set={}", self.name);
        let mut stages = BTreeMap::new();
        for shard in self
            .world
            .cluster
            .list(&objects::inventories(), &self.namespace, &selector)
            .await
        {
            let stage = shard["metadata"]["labels"]["stages.metio.wtf/stage"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let ids: &mut BTreeSet<String> = stages.entry(stage).or_default();
            let entries = shard["spec"]["entries"].as_array().cloned().unwrap_or_default();
            ids.extend(entries.iter().filter_map(|e| e["id"].as_str().map(str::to_owned)));
        }
        stages
    }

    /// Names of objects of the core kind ConfigMap recorded for a stage, without namespace.
    pub async fn recorded_configmaps(&self, stage: &str) -> BTreeSet<String> {
        let prefix = format!("{}_", self.namespace);
        let inventory = self.inventory().await;
        let ids = inventory.get(stage).cloned().unwrap_or_default();
        ids.iter()
            .filter_map(|id| id.strip_prefix(&prefix)?.strip_suffix("__ConfigMap").map(str::to_owned))
            .collect()
    }

    /// Events about it: all of them, oldest first.
    pub async fn events(&self) -> Vec<Value> {
        let events = self.world.cluster.list(&objects::events(), &self.namespace, "").await;
        events
            .into_iter()
            .filter(|e| e["regarding"]["kind"] == "StageSet" && e["regarding"]["name"] == self.name.as_str())
            .collect()
    }

    /// How often an event of this reason happened, repeats in a series included.
    pub async fn event_count(&self, reason: &str) -> u64 {
        let events = self.events().await;
        events
            .iter()
            .filter(|e| e["reason"] == reason)
            .map(|e| e["series"]["count"].as_u64().unwrap_or(1))
            .sum()
    }

    /// Waits for an event of this reason.
    pub async fn until_event(&self, reason: &str) -> Value {
        let seen = look(PATIENCE, || async {
            let events = self.events().await;
            let reasons: Vec<String> = events.iter().map(|e| e["reason"].to_string()).collect();
            events
                .into_iter()
                .find(|e| e["reason"] == reason)
                .ok_or_else(|| reasons.join(", "))
        })
        .await;
        match seen {
            Ok(event) => event,
            Err(seen) => {
                self.world
                    .fail(&format!("no event {reason} about {}; there are {seen}", self.name))
                    .await
            }
        }
    }
}

/// The condition of a type in a status.
pub fn condition_of<'s>(status: &'s Value, kind: &str) -> Option<&'s Value> {
    status["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

/// The entry of a stage in a status; null where there is none.
pub fn stage_of<'s>(status: &'s Value, name: &str) -> &'s Value {
    status["stages"]
        .as_array()
        .and_then(|all| all.iter().find(|s| s["name"] == name))
        .unwrap_or(&Value::Null)
}

/// Conditions and phases on one line.
fn summary(status: &Value) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let conditions: Vec<String> = conditions
        .iter()
        .map(|c| format!("{}={}/{}: {}", c["type"], c["status"], c["reason"], c["message"]).replace('"', ""))
        .collect();
    let stages = status["stages"].as_array().cloned().unwrap_or_default();
    let stages: Vec<String> = stages
        .iter()
        .map(|s| format!("{} {} {}", s["name"], s["phase"], s["appliedRevision"]).replace('"', ""))
        .collect();
    format!(
        "observedGeneration {} [{}] stages [{}]",
        status["observedGeneration"],
        conditions.join("; "),
        stages.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_builds_up() {
        let object = stageset("shop")
            .stage(stage("db", "db-artifact").path("./x"))
            .set("suspend", json!(true))
            .object("ns");
        assert_eq!(object["spec"]["stages"][0]["sourceRef"]["name"], "db-artifact");
        assert_eq!(object["spec"]["stages"][0]["path"], "./x");
        assert_eq!(object["metadata"]["namespace"], "ns");
        assert!(object["spec"]["suspend"].as_bool().unwrap());
    }
}
