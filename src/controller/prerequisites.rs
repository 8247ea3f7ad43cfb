//! Says what the controller needs of the cluster and does not find there (contract 1.5). It holds nothing up: the watches
//! try again and again, and begin by themselves once it is there.

use std::sync::Arc;
use std::time::Duration;

use crate::api::names::API_VERSION;
use crate::cluster::{Error, Identity, Target, Tenant};
use crate::run::Context;

const EVERY: Duration = Duration::from_secs(30);
/// The kinds that are watched from the start, and cannot be done without.
const NEEDED: [(&str, &str); 2] = [("StageSet", "stagesets"), ("StageInventory", "stageinventories")];
const VERBS: [&str; 2] = ["list", "watch"];

/// Something that is missing.
struct Problem {
    resource: String,
    reason: String,
}

/// Looks until everything is there.
pub async fn watch_over(ctx: Arc<Context>) {
    let namespaces: Vec<Option<String>> = match ctx.config.watch_namespaces.0.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let tenant = ctx.cluster.tenant(Identity::Controller);
    let mut complained = false;
    loop {
        // A definition that was removed, or came, since the last look counts.
        ctx.cluster.kinds().invalidate();
        let mut problems = Vec::new();
        for (kind, plural) in NEEDED {
            let reasons = lacking(&tenant, kind, &namespaces).await;
            problems.extend(reasons.into_iter().map(|reason| Problem {
                resource: format!("{plural}.{}", crate::api::names::GROUP),
                reason,
            }));
        }
        if problems.is_empty() {
            if complained {
                tracing::info!("everything the controller needs of the cluster is there now");
            }
            return;
        }
        complained = true;
        for Problem { resource, reason } in problems {
            tracing::warn!(
                resource,
                reason,
                "the controller cannot work as long as this is missing"
            );
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn lacking(tenant: &Tenant, kind: &str, namespaces: &[Option<String>]) -> Vec<String> {
    match tenant.served(API_VERSION, kind).await {
        Ok(_) => {}
        Err(Error::UnknownKind { .. }) => {
            let how = "the CRD is missing: apply what `stageset-controller crds` prints";
            return vec![how.to_owned()];
        }
        Err(error) => return vec![error.to_string()],
    }
    let mut reasons = Vec::new();
    for namespace in namespaces {
        for verb in VERBS {
            let target = Target {
                api_version: API_VERSION.into(),
                kind: kind.into(),
                namespace: namespace.clone(),
                name: String::new(),
            };
            reasons.extend(denied(tenant, verb, &target).await);
        }
    }
    reasons
}

async fn denied(tenant: &Tenant, verb: &str, target: &Target) -> Option<String> {
    let place = match &target.namespace {
        Some(namespace) => format!("in the namespace {namespace}"),
        None => "in all namespaces".to_owned(),
    };
    match tenant.may(verb, target).await {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "the verb {verb} is not permitted {place}: grant it to the controller's ServiceAccount"
        )),
        // A server without that API has rights of another kind.
        Err(error) if error.is_not_found() => None,
        Err(error) => Some(format!("the review of the verb {verb} {place} failed: {error}")),
    }
}
