//! What has to be in place before a run begins: the dependencies (run 7).

use std::sync::Arc;

use super::outcome::{End, Stop, Wake};
use super::pass::{Pass, jittered};
use super::{pin, status};
use crate::api::common::non_empty;
use crate::api::{Dependency, Reason, SourceReference, StageSet};
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Identity};
use crate::rules::condition::{READY, Situation};
use crate::rules::dependency::{self, Found};
use crate::rules::inventory::OwnerRef;
use crate::rules::spec::Supported;
use crate::source::{Reference, SourceKey};

impl Pass<'_> {
    /// Ends the pass where a dependency is not satisfied. Asked before a run, or a new attempt of one, begins: a run
    /// under way is not held any more.
    pub(super) async fn dependencies(&mut self) -> Result<Option<End>, Stop> {
        let set = self.set.clone();
        if set.spec.depends_on.is_empty() {
            return Ok(None);
        }
        let start = owner_ref(self.owner);
        if let Some(path) = dependency::cycle(&start, |of| self.edges(of)) {
            let path: Vec<String> = path.iter().map(|o| self.shown(o)).collect();
            return Ok(Some(End {
                situation: Situation::Terminal {
                    reason: Reason::Stalled,
                    message: format!(
                        "spec.dependsOn forms a cycle: {}; remove one of these",
                        path.join(" -> ")
                    ),
                },
                wake: Wake::In(jittered(self.cadence().interval)),
            }));
        }
        for dependency in &set.spec.depends_on {
            if let Err(message) = self.dependency(dependency).await? {
                return Ok(Some(End {
                    situation: Situation::Held {
                        reason: Reason::DependencyNotReady,
                        message,
                        retrying: true,
                        deployed: false,
                    },
                    wake: Wake::In(jittered(self.cadence().retry)),
                }));
            }
        }
        Ok(None)
    }

    /// A StageSet on a circle. One of another namespace that this one does not name itself stays unnamed: it is nobody's
    /// business here (decisions 7).
    fn shown(&self, other: &OwnerRef) -> String {
        let named = self.edges(&owner_ref(self.owner)).contains(other);
        if named || other.namespace == self.owner.namespace {
            format!("{}/{}", other.namespace, other.name)
        } else {
            "a StageSet of another namespace".to_owned()
        }
    }

    fn edges(&self, of: &OwnerRef) -> Vec<OwnerRef> {
        let owner = Owner {
            namespace: of.namespace.clone(),
            name: of.name.clone(),
        };
        let set = self.ctx.sets.get(&owner);
        let dependencies = set.iter().flat_map(|s| &s.spec.depends_on);
        dependencies
            .map(|d| OwnerRef {
                name: d.name.clone(),
                namespace: non_empty(&d.namespace).unwrap_or(&of.namespace).to_owned(),
            })
            .collect()
    }

    async fn dependency(&self, dependency: &Dependency) -> Result<Result<(), String>, Stop> {
        let name = OwnerRef {
            name: dependency.name.clone(),
            namespace: non_empty(&dependency.namespace)
                .unwrap_or(&self.owner.namespace)
                .to_owned(),
        };
        let shown = format!("{}/{}", name.namespace, name.name);
        let foreign = name.namespace != self.owner.namespace;
        if foreign && self.ctx.config.no_cross_namespace_refs {
            return Ok(Err(format!(
                "dependsOn names StageSet {shown} of another namespace, which --no-cross-namespace-refs rejects"
            )));
        }
        let judged = match self.find(&name).await {
            Ok(found) => self.judge(&name, found, dependency).await?,
            Err(error) if error.is_forbidden() => {
                tracing::warn!(dependency = shown, %error, "a dependency may not be read");
                Err(format!(
                    "StageSet {shown} cannot be read ({error}): let the controller get stagesets in namespace {}",
                    name.namespace
                ))
            }
            Err(error) => return Err(Stop::Undecided(error)),
        };
        // Another namespace's state is nobody's business here (decisions 7).
        Ok(judged.map_err(|why| {
            if foreign {
                format!("cross-namespace StageSet \"{shown}\" is not reachable or not ready")
            } else {
                why
            }
        }))
    }

    async fn judge(
        &self,
        name: &OwnerRef,
        found: Option<Arc<StageSet>>,
        dependency: &Dependency,
    ) -> Result<Result<(), String>, Stop> {
        let facts = found.as_deref().map(facts);
        let wanted = non_empty(&dependency.min_version);
        let judged = dependency::satisfied(name, facts.as_ref(), wanted, &Supported::this_release());
        match (judged, found) {
            (Ok(()), Some(found)) => self.in_step(name, &found).await,
            (judged, _) => Ok(judged),
        }
    }

    /// Whether a dependency has applied what the sources that both read offer now: it comes first with every revision,
    /// although both are told of a new one at the same moment.
    async fn in_step(&self, name: &OwnerRef, found: &StageSet) -> Result<Result<(), String>, Stop> {
        let key = |source: &SourceReference, namespace: &str| Reference::from(source).key(namespace);
        let applied = found.status.iter().flat_map(|status| &status.stages);
        for stage in &found.spec.stages {
            let shared: SourceKey = key(&stage.source_ref, &name.namespace);
            let ours = self.set.spec.stages.iter().map(|ours| &ours.source_ref);
            let Some(ours) = ours.into_iter().find(|ours| key(ours, &self.owner.namespace) == shared) else {
                continue;
            };
            // One that does not resolve is told when it is its turn.
            let Ok(offered) = pin::offered(self.ctx, &self.owner.namespace, ours).await? else {
                continue;
            };
            let entry = applied.clone().find(|entry| entry.name == stage.name);
            if !entry.is_some_and(|entry| pin::is_applied(entry, &offered)) {
                return Ok(Err(dependency::behind(
                    name,
                    &stage.name,
                    &offered.object().to_string(),
                    &offered.revision,
                )));
            }
        }
        Ok(Ok(()))
    }

    async fn find(&self, name: &OwnerRef) -> Result<Option<Arc<StageSet>>, Error> {
        let owner = Owner {
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        };
        if let Some(set) = self.ctx.sets.get(&owner) {
            return Ok(Some(set));
        }
        if self.ctx.config.watch_namespaces.contains(&owner.namespace) {
            return Ok(None);
        }
        let tenant = self.ctx.cluster.tenant(Identity::Controller);
        let object = tenant.get(&status::target(&owner)).await?;
        Ok(object.and_then(|o| serde_json::from_value(o).ok()).map(Arc::new))
    }
}

fn owner_ref(owner: &Owner) -> OwnerRef {
    OwnerRef {
        name: owner.name.clone(),
        namespace: owner.namespace.clone(),
    }
}

fn facts(set: &StageSet) -> Found {
    let status = set.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.type_ == READY);
    Found {
        ready: ready.is_some_and(|c| c.status == "True"),
        current: status.observed_generation == set.metadata.generation,
        why: ready.map_or_else(
            || "no Ready condition yet".to_owned(),
            |c| format!("{}: {}", c.reason, c.message),
        ),
        holds_update: status.pending_update.is_some_and(|p| !p.revisions.is_empty()),
        version: status.version,
    }
}
