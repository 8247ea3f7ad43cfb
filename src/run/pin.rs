//! Resolving every stage's source, and pinning what was resolved (run 8, 9).

use std::sync::Arc;

use serde_json::Value;

use super::context::Context;
use super::outcome::Stop;
use crate::api::{PinnedArtifact, RunStatus, SourceReference, StageSet, StageStatus};
use crate::cluster;
use crate::source::{self, Artifact, Lookup, ReadFailure, Reference, Scope};

/// A stage whose source does not resolve.
#[derive(Debug)]
pub struct Unresolved {
    pub stage: String,
    pub error: source::Error,
}

/// The artifacts of all stages, in stage order, or the first that cannot be resolved.
///
/// # Errors
/// A request that may succeed when tried again.
pub async fn resolve(ctx: &Arc<Context>, set: &StageSet) -> Result<Result<Vec<Artifact>, Unresolved>, Stop> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let mut artifacts = Vec::with_capacity(set.spec.stages.len());
    for stage in &set.spec.stages {
        match offered(ctx, namespace, &stage.source_ref).await? {
            Ok(artifact) => artifacts.push(artifact),
            Err(error) => {
                return Ok(Err(Unresolved {
                    stage: stage.name.clone(),
                    error,
                }));
            }
        }
    }
    Ok(Ok(artifacts))
}

/// What a source offers to a StageSet of `namespace` now.
///
/// # Errors
/// A request that may succeed when tried again.
pub async fn offered(
    ctx: &Arc<Context>,
    namespace: &str,
    source: &SourceReference,
) -> Result<Result<Artifact, source::Error>, Stop> {
    let scope = Scope {
        namespace,
        no_cross_namespace_refs: ctx.config.no_cross_namespace_refs,
    };
    let reference = Reference::from(source);
    let target = match source::resolve::plan(&reference, scope) {
        Ok(target) => target,
        Err(error) => return Ok(Err(error)),
    };
    engage_producer(ctx, &reference, target.lookup());
    let found = read(ctx, target.lookup()).await?;
    Ok(match &found {
        Ok(objects) => {
            let objects: Vec<&Value> = objects.iter().map(|o| &**o).collect();
            target.judge(Ok(&objects))
        }
        Err(failure) => target.judge(Err(failure.clone())),
    })
}

/// A producer that fails publishes nothing; only a watch on the producer itself can tell (run 2.4).
fn engage_producer(ctx: &Arc<Context>, reference: &Reference, lookup: &Lookup) {
    if let (Lookup::ExternalArtifacts { producer, .. }, Some(api_version)) = (lookup, &reference.api_version) {
        ctx.sources.engage_producers(api_version, &producer.kind);
    }
}

async fn read(ctx: &Arc<Context>, lookup: &Lookup) -> Result<Result<Vec<Arc<Value>>, ReadFailure>, Stop> {
    let found = match lookup {
        Lookup::Object {
            api_version,
            kind,
            namespace,
            name,
        } => {
            let key = source::SourceKey {
                group: api_version.split_once('/').map_or("", |(g, _)| g).to_owned(),
                kind: kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
            };
            ctx.sources
                .get(&key, api_version)
                .await
                .map(|o| o.into_iter().collect())
        }
        Lookup::ExternalArtifacts { producer, .. } => ctx.sources.artifacts_of(producer).await,
    };
    match found {
        Ok(objects) => Ok(Ok(objects)),
        Err(e) if e.is_forbidden() => Ok(Err(ReadFailure::Forbidden(e.to_string()))),
        Err(cluster::Error::UnknownKind { .. }) => Ok(Err(ReadFailure::NotServed)),
        Err(e) if e.is_transient() => Err(Stop::Undecided(e)),
        Err(e) => Ok(Err(ReadFailure::Other(e.to_string()))),
    }
}

/// The record of a pinned artifact.
pub fn record(stage: &str, artifact: &Artifact) -> PinnedArtifact {
    PinnedArtifact {
        stage: stage.to_owned(),
        kind: artifact.kind.clone(),
        namespace: artifact.namespace.clone(),
        name: artifact.name.clone(),
        revision: artifact.revision.clone(),
        digest: artifact.digest.clone(),
        url: artifact.url.clone(),
    }
}

/// The artifact a run has pinned for a stage.
pub fn recorded(run: &RunStatus, stage: &str) -> Option<Artifact> {
    let pinned = run.artifacts.iter().find(|a| a.stage == stage)?;
    Some(Artifact {
        kind: pinned.kind.clone(),
        namespace: pinned.namespace.clone(),
        name: pinned.name.clone(),
        revision: pinned.revision.clone(),
        digest: pinned.digest.clone(),
        url: pinned.url.clone(),
        size: None,
        last_update: None,
    })
}

/// Whether an artifact is what a stage applied last.
pub fn is_applied(stage: &StageStatus, artifact: &Artifact) -> bool {
    stage.applied_digest.as_deref() == Some(&artifact.digest)
        && stage.applied_revision.as_deref().unwrap_or_default() == artifact.revision
}

/// Whether two artifacts are the same content of the same source.
pub fn same(a: &Artifact, b: &Artifact) -> bool {
    a.kind == b.kind && a.key() == b.key() && a.revision == b.revision && a.digest == b.digest
}
