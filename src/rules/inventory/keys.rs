//! Labels and annotations on inventories and managed objects (api 7.3, 7.6, 11).

/// Label of a shard: the StageSet it belongs to.
pub const STAGE_SET: &str = "stages.metio.wtf/stage-set";
/// Label of a shard and of every applied object: the stage.
pub const STAGE: &str = "stages.metio.wtf/stage";
/// Label of a shard: its number, decimal, from 0.
pub const SHARD: &str = "stages.metio.wtf/shard";
/// Annotation of a shard: since which release, and how many of the entries were in place then.
pub const SETTLED: &str = "stages.metio.wtf/settled";
/// Owner label of every applied object: the StageSet's name.
pub const OWNER_NAME: &str = "stages.metio.wtf/name";
/// Owner label of every applied object: the StageSet's namespace.
pub const OWNER_NAMESPACE: &str = "stages.metio.wtf/namespace";

/// `disabled` on a live object: never pruned, never torn down.
pub const PRUNE: &str = "stages.metio.wtf/prune";
/// `disabled` on an object: neither applied nor pruned.
pub const RECONCILE: &str = "stages.metio.wtf/reconcile";
/// Any non-empty value on a rendered object: recreate it on an immutable-field conflict.
pub const FORCE: &str = "stages.metio.wtf/force";
/// Flux's spelling of [`PRUNE`].
pub const FLUX_PRUNE: &str = "kustomize.toolkit.fluxcd.io/prune";
/// Flux's spelling of [`RECONCILE`].
pub const FLUX_RECONCILE: &str = "kustomize.toolkit.fluxcd.io/reconcile";
/// Flux's spelling of [`FORCE`]; only the value `enabled` counts.
pub const FLUX_FORCE: &str = "kustomize.toolkit.fluxcd.io/force";

/// Label of an ApplySet parent: its id (KEP-3659).
pub const APPLYSET_ID: &str = "applyset.kubernetes.io/id";
/// Label of an ApplySet member: the parent's id.
pub const APPLYSET_PART_OF: &str = "applyset.kubernetes.io/part-of";
/// Annotation of an ApplySet parent: the tool that keeps it.
pub const APPLYSET_TOOLING: &str = "applyset.kubernetes.io/tooling";
/// Annotation of an ApplySet parent: group-kinds of its members.
pub const APPLYSET_GROUP_KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// Annotation of an ApplySet parent: namespaces of its members beside its own.
pub const APPLYSET_NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
