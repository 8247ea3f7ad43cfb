//! Writing the status: what changed and nothing else, guarded by the resourceVersion (run 21).

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::context::{Context, Memory};
use super::outcome::Stop;
use crate::api::names::{API_VERSION, FIELD_MANAGER};
use crate::api::{StageSet, StageSetStatus};
use crate::cluster::watch::Owner;
use crate::cluster::{Error, Identity, Target};

/// The address of a StageSet.
pub fn target(owner: &Owner) -> Target {
    Target {
        api_version: API_VERSION.into(),
        kind: "StageSet".into(),
        namespace: Some(owner.namespace.clone()),
        name: owner.name.clone(),
    }
}

/// Writes `status` where it differs from what `set` carries; no request where it does not. Returns the
/// StageSet as it is then.
///
/// # Errors
/// [`Stop::Changed`] when somebody else wrote meanwhile; nothing was written then.
pub async fn write(
    ctx: &Context,
    owner: &Owner,
    set: &Arc<StageSet>,
    status: &StageSetStatus,
    memory: &mut Memory,
) -> Result<Arc<StageSet>, Stop> {
    let before = to_value(&set.status.clone().unwrap_or_default())?;
    let Some(patch) = merge_diff(&before, &to_value(status)?) else {
        return Ok(set.clone());
    };
    let body = json!({
        "metadata": {"resourceVersion": set.metadata.resource_version, "uid": set.metadata.uid},
        "status": patch,
    });
    memory.wrote_at = Some(Instant::now());
    patch_set(ctx, owner, Some("status"), &body).await
}

/// Merge-patches the StageSet and takes the answer into the cache.
///
/// # Errors
/// [`Stop::Changed`] on a conflict, [`Stop::Gone`] when it does not exist any more.
pub async fn patch_set(
    ctx: &Context,
    owner: &Owner,
    subresource: Option<&str>,
    body: &Value,
) -> Result<Arc<StageSet>, Stop> {
    let tenant = ctx.cluster.tenant(Identity::Controller);
    match tenant.merge(&target(owner), subresource, body, FIELD_MANAGER).await {
        Ok(object) => observe(ctx, owner, object),
        Err(e) if e.is_conflict() => {
            refresh(ctx, owner).await?;
            Err(Stop::Changed)
        }
        Err(e) if e.is_not_found() => Err(Stop::Gone),
        Err(e) => Err(Stop::Undecided(e)),
    }
}

/// Reads the StageSet from the server: the cache was found to be behind.
async fn refresh(ctx: &Context, owner: &Owner) -> Result<(), Stop> {
    let tenant = ctx.cluster.tenant(Identity::Controller);
    match tenant.get(&target(owner)).await? {
        Some(object) => observe(ctx, owner, object).map(|_| ()),
        // The watch reports it too, and cleans up.
        None => Err(Stop::Gone),
    }
}

fn observe(ctx: &Context, owner: &Owner, object: Value) -> Result<Arc<StageSet>, Stop> {
    let mut set: StageSet = serde_json::from_value(object).map_err(|source| Error::Decode {
        what: format!("read back {owner}"),
        source,
    })?;
    let finalizers = set.metadata.finalizers.as_ref();
    if set.metadata.deletion_timestamp.is_some() && finalizers.is_none_or(Vec::is_empty) {
        // The watch may have reported its end already: it must not come back into the cache.
        return Err(Stop::Gone);
    }
    crate::cache::trim(&mut set);
    let change = ctx.sets.observe(set);
    ctx.hub.wake_all(&change.dependents);
    ctx.sets.get(owner).ok_or(Stop::Gone)
}

fn to_value(status: &StageSetStatus) -> Result<Value, Stop> {
    serde_json::to_value(status).map_err(|source| {
        Stop::Undecided(Error::Decode {
            what: "write the status as JSON".into(),
            source,
        })
    })
}

/// The JSON merge patch (RFC 7386) that turns `before` into `after`; `None` when they are equal.
pub fn merge_diff(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(previous) => {
                if let Some(change) = merge_diff(previous, value) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json_tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-d]", json_tree(), 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn the_patch_turns_one_into_the_other(before in object(), after in object()) {
            let mut patched = before.clone();
            match merge_diff(&before, &after) {
                Some(patch) => json_patch::merge(&mut patched, &patch),
                None => prop_assert_eq!(&before, &after),
            }
            prop_assert_eq!(patched, after);
        }
    }
}
