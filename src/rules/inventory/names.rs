//! Names and labels of shards, labels of members (api 7.1, 7.3, 11).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{OwnerRef, keys};

/// Longest name of an API object (RFC 1123 subdomain).
pub const MAX_NAME_LENGTH: usize = 253;

/// `<stageset>-<stage>-<shard>`.
pub fn plain_name(stage_set: &str, stage: &str, shard: u32) -> String {
    format!("{stage_set}-{stage}-{shard}")
}

/// `<stageset>-<stage>-<NN>-<hash>`: unambiguous, and cut to fit [`MAX_NAME_LENGTH`].
pub fn hashed_name(stage_set: &str, stage: &str, shard: u32) -> String {
    let seed = format!("{}/{stage_set}/{}/{stage}/{shard}", stage_set.len(), stage.len());
    let mut hash = String::new();
    for byte in &Sha256::digest(seed.as_bytes())[..5] {
        let _ = write!(hash, "{byte:02x}");
    }
    let mut head = format!("{stage_set}-{stage}-{shard:02}");
    let room = MAX_NAME_LENGTH - hash.len() - 1;
    if head.len() > room {
        let cut = (0..=room).rev().find(|&at| head.is_char_boundary(at));
        head.truncate(cut.unwrap_or(0));
        head.truncate(head.trim_end_matches('-').len());
    }
    format!("{head}-{hash}")
}

/// The name to write a shard under: the plain one, or the hashed one where the plain one is too long or
/// `taken` says that an object of that name belongs to another StageSet or stage.
pub fn choose_name(stage_set: &str, stage: &str, shard: u32, taken: impl Fn(&str) -> bool) -> String {
    let plain = plain_name(stage_set, stage, shard);
    if plain.len() > MAX_NAME_LENGTH || taken(&plain) {
        hashed_name(stage_set, stage, shard)
    } else {
        plain
    }
}

/// The labels shards are found by.
pub fn shard_labels(stage_set: &str, stage: &str, shard: u32) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (keys::STAGE_SET, stage_set.to_owned()),
        (keys::STAGE, stage.to_owned()),
        (keys::SHARD, shard.to_string()),
    ])
}

/// The labels every object of a stage carries: its owner, its stage and the ApplySet it is part of.
pub fn object_labels(owner: &OwnerRef, stage: &str, applyset_id: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (keys::OWNER_NAME, owner.name.clone()),
        (keys::OWNER_NAMESPACE, owner.namespace.clone()),
        (keys::STAGE, stage.to_owned()),
        (keys::APPLYSET_PART_OF, applyset_id.to_owned()),
    ])
}
