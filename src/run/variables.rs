//! Variables of a stage: from ConfigMaps and Secrets in list order, then inline values, which win (run 14.6).

use std::collections::BTreeMap;

use base64::Engine;
use serde_json::Value;

use super::outcome::{End, Failure, Remedy, Stop};
use super::pass::{Pass, STUMBLES};
use crate::api::common::non_empty;
use crate::api::{Stage, SubstituteKind, SubstituteReference};
use crate::cluster::watch::WatchKey;
use crate::cluster::{Target, Tenant};
use crate::manifest::substitute;
use crate::rules::redact;

const OPERATION: &str = "resolve postBuild variables";

/// The variables of one stage.
#[derive(Debug, Clone, Default)]
pub(super) struct Variables {
    pub values: BTreeMap<String, String>,
    /// Digest over all of them; empty when there are none.
    pub digest: String,
    /// Those that come from Secrets, as text: no message may tell them.
    pub secrets: Vec<String>,
}

impl Pass<'_> {
    /// Resolves the variables of every stage. One that cannot be resolved yet is asked for again when its stage's turn
    /// comes: an earlier stage may bring the object.
    pub(super) async fn resolve_variables(&mut self) {
        let spec = self.set.spec.clone();
        let mut all = Vec::with_capacity(spec.stages.len());
        for stage in &spec.stages {
            all.push(self.variables_of(stage).await);
        }
        self.variables = all;
    }

    /// What could not be read just now says nothing about what is wanted: no run begins for it, and none is judged by
    /// it. Where it goes on, a release that is in place says so.
    pub(super) fn unread_variables(&mut self) -> Result<Option<End>, Stop> {
        let stumbled =
            |v: &Result<Variables, Failure>| v.as_ref().err().filter(|f| f.remedy == Remedy::Stumble).cloned();
        let found = self
            .variables
            .iter()
            .enumerate()
            .find_map(|(at, v)| Some((at, stumbled(v)?)));
        let Some((at, failure)) = found else {
            return Ok(None);
        };
        let in_place = self.status.run.is_none() && !self.status.last_applied_revisions.is_empty();
        if in_place || self.memory.undecided < STUMBLES {
            for stage in &self.set.spec.stages.clone() {
                self.keep_watching(stage);
            }
            return self.failed_care(at, failure).map(Some);
        }
        Ok(None)
    }

    /// Resolves the variables of one stage.
    ///
    /// # Errors
    /// The reference that cannot be read; never its content.
    pub(super) async fn variables_of(&mut self, stage: &Stage) -> Result<Variables, Failure> {
        let Some(post_build) = &stage.post_build else {
            return Ok(Variables::default());
        };
        let (mut values, mut secrets) = (BTreeMap::new(), Vec::new());
        // Variables live where the StageSet lives; they are part of the build, and read as whoever applies (contract 13.8).
        let spec = &self.set.spec;
        let account = non_empty(&stage.service_account_name).or_else(|| non_empty(&spec.service_account_name));
        let tenant = self.ctx.cluster.acting_for(&self.owner.namespace, account);
        for reference in &post_build.substitute_from {
            self.add(&mut values, &mut secrets, &tenant, reference).await?;
        }
        for (key, value) in &post_build.substitute {
            add(&mut values, "postBuild.substitute", key, value.as_bytes())?;
        }
        let digest = substitute::digest(&values);
        Ok(Variables {
            values,
            digest,
            secrets,
        })
    }

    /// `text` without the value of any Secret.
    pub(super) fn mask(&self, text: &str) -> String {
        let secrets = self.variables.iter().flatten().flat_map(|v| &v.secrets);
        redact::mask(text, secrets.map(String::as_str))
    }

    /// The same for the texts of the stages: controllers repeat in their conditions what they were given.
    pub(super) fn mask_stages(&mut self) {
        let mut stages = std::mem::take(&mut self.status.stages);
        for stage in &mut stages {
            for text in [&mut stage.message, &mut stage.waiting_for] {
                *text = text.take().map(|text| self.mask(&text));
            }
        }
        self.status.stages = stages;
    }

    async fn add(
        &mut self,
        values: &mut BTreeMap<String, String>,
        secrets: &mut Vec<String>,
        tenant: &Tenant,
        reference: &SubstituteReference,
    ) -> Result<(), Failure> {
        let target = Target {
            api_version: "v1".into(),
            kind: reference.kind.as_str().to_owned(),
            namespace: Some(self.owner.namespace.clone()),
            name: reference.name.clone(),
        };
        self.watch_by_name(tenant, &target).await;
        let found = tenant
            .get(&target)
            .await
            .map_err(|e| Failure::of_access(OPERATION, &e, "get", &target))?;
        let Some(object) = found else {
            if reference.optional {
                return Ok(());
            }
            return Err(Failure::retried(
                OPERATION,
                format!("{target} does not exist: create it, or set optional: true on its substituteFrom entry"),
            ));
        };
        let origin = target.to_string();
        for (key, value) in object.get("data").and_then(Value::as_object).into_iter().flatten() {
            let text = value.as_str().unwrap_or_default();
            if reference.kind == SubstituteKind::Secret {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text);
                let bytes =
                    bytes.map_err(|_| Failure::retried(OPERATION, format!("{origin}: key {key} is not base64")))?;
                secrets.extend(String::from_utf8(bytes.clone()));
                add(values, &origin, key, &bytes)?;
            } else {
                add(values, &origin, key, text.as_bytes())?;
            }
        }
        Ok(())
    }
}

impl Pass<'_> {
    /// Watches one object that is only read, so that a change of it wakes the StageSet. Where that may not be watched,
    /// the next pass reads it.
    pub(super) async fn watch_by_name(&mut self, tenant: &Tenant, target: &Target) {
        if let Ok(served) = tenant.served(&target.api_version, &target.kind).await {
            let cluster = tenant.cluster().key();
            let key = WatchKey::by_name(cluster, tenant.identity(), target, served.namespaced);
            self.ctx.hub.watch(&key, &served, tenant, self.owner);
            self.needed.insert(key);
        }
    }
}

fn add(values: &mut BTreeMap<String, String>, origin: &str, key: &str, value: &[u8]) -> Result<(), Failure> {
    substitute::add_variable(values, origin, key, value).map_err(|e| Failure::retried(OPERATION, e.to_string()))
}
