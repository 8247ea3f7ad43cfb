//! Notices that the cluster was restored from a backup.
//!
//! Versions only grow, but for that. A watch that goes on from a version of before is then silent until the cluster has
//! caught up with it, whatever happens meanwhile; and everything that is known seems newer than what the server says.

use std::time::Duration;

use kube::Api;
use kube::api::ListParams;

use crate::api::StageSet;
use crate::cluster::watch::parse_version;
use crate::cluster::{Error, bounded};
use crate::run::Context;

const EVERY: Duration = Duration::from_secs(10);

/// Ends once the cluster has gone back to an earlier state, and says so: nothing that this process knows holds any more,
/// so it has to start afresh.
pub async fn until_restored(ctx: &Context) -> String {
    let client = ctx.cluster.own_client();
    let api: Api<StageSet> = match ctx.config.watch_namespaces.0.first() {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let mut highest = 0;
    loop {
        // Where there is no answer, the watches complain.
        let seen = version(&api).await.unwrap_or(0);
        // Everything is at stake here: one reading could come from a server that lags behind the others.
        if gone_back(highest, seen).is_some()
            && let Some(why) = gone_back(highest, version(&api).await.unwrap_or(0))
        {
            return why;
        }
        highest = highest.max(seen);
        tokio::time::sleep(EVERY).await;
    }
}

/// The version of the whole cluster, which every list carries; 0 where it is none that can be compared.
async fn version(api: &Api<StageSet>) -> Result<u64, Error> {
    let what = || "list StageSet".to_owned();
    let newest = ListParams::default().limit(1);
    let list = bounded(what(), api.list_metadata(&newest))
        .await?
        .map_err(|e| Error::from_kube(what(), e))?;
    Ok(parse_version(list.metadata.resource_version.as_deref()))
}

fn gone_back(highest: u64, version: u64) -> Option<String> {
    (version != 0 && version < highest).then(|| {
        format!(
            "the cluster's resourceVersion went back from {highest} to {version}, as after a restore from a backup: \
             ending, so that the next start reads everything anew"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_version_is_a_step_back() {
        for (highest, version) in [(0, 7), (7, 7), (7, 8), (7, 0)] {
            assert_eq!(gone_back(highest, version), None, "{highest} {version}");
        }
        let why = gone_back(70, 7).unwrap();
        assert!(why.contains("from 70 to 7,"), "{why}");
    }
}
