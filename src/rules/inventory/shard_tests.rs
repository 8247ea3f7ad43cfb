use std::collections::BTreeSet;

use proptest::prelude::*;

use super::tests::{entries, id, some_entries};
use super::*;

fn name_of(index: u32) -> String {
    plain_name("set", "stage", index)
}

fn shard(index: u32, list: &[&str]) -> Shard {
    Shard {
        name: name_of(index),
        index: Some(index),
        entries: entries(list),
        malformed: Vec::new(),
    }
}

fn apply_write(shards: &mut Vec<Shard>, write: &ShardWrite) {
    match write {
        ShardWrite::Put { index, name, entries } => {
            let raw = entries.iter().map(|entry| (entry.id.clone(), entry.v.clone()));
            let put = Shard::read(name, Some(&index.to_string()), raw);
            shards.retain(|one| one.name != *name);
            shards.push(put);
        }
        ShardWrite::Delete { name } => shards.retain(|one| one.name != *name),
    }
}

fn summary(writes: &[ShardWrite]) -> Vec<String> {
    let line = |write: &ShardWrite| match write {
        ShardWrite::Put { name, entries, .. } => {
            let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
            format!("put {name}: {}", ids.join(" "))
        }
        ShardWrite::Delete { name } => format!("delete {name}"),
    };
    writes.iter().map(line).collect()
}

#[test]
fn an_empty_stage_has_one_empty_shard() {
    let writes = plan_shards(&[], &Entries::new(), 5, name_of);
    assert_eq!(summary(&writes), ["put set-stage-0: "]);
    assert_eq!(plan_shards(&[shard(0, &[])], &Entries::new(), 5, name_of), []);
}

#[test]
fn entries_are_sorted_and_cut_at_the_cap() {
    let wanted = entries(&["a_c__S", "a_a__S", "b_a__S", "a_b__S", "_z__S"]);
    let writes = plan_shards(&[], &wanted, 2, name_of);
    assert_eq!(
        summary(&writes),
        [
            "put set-stage-0: _z__S a_a__S",
            "put set-stage-1: a_b__S a_c__S",
            "put set-stage-2: b_a__S",
        ]
    );
}

#[test]
fn a_new_entry_moves_nothing() {
    let stored = [shard(0, &["a_b__S", "a_c__S"]), shard(1, &["a_d__S"])];
    let wanted = entries(&["a_a__S", "a_b__S", "a_c__S", "a_d__S"]);
    let writes = plan_shards(&stored, &wanted, 2, name_of);
    assert_eq!(summary(&writes), ["put set-stage-1: a_a__S a_d__S"]);
}

#[test]
fn a_new_version_is_written() {
    let stored = [shard(0, &["a_b__S"])];
    let mut wanted = entries(&["a_b__S"]);
    wanted.insert(id("a_b__S"), "v2".into());
    let writes = plan_shards(&stored, &wanted, 2, name_of);
    assert_eq!(summary(&writes), ["put set-stage-0: a_b__S"]);
}

/// Rules: run 17.2 shards
#[test]
fn emptied_shards_are_deleted_last() {
    let stored = [shard(0, &["a_a__S"]), shard(1, &["a_b__S"])];
    let writes = plan_shards(&stored, &entries(&["a_c__S"]), 2, name_of);
    assert_eq!(summary(&writes), ["put set-stage-0: a_c__S", "delete set-stage-1"]);
}

#[test]
fn a_lower_cap_moves_entries_without_losing_them_in_between() {
    let stored = [shard(0, &["a_a__S", "a_b__S", "a_c__S"])];
    let wanted = entries(&["a_a__S", "a_b__S", "a_c__S"]);
    let writes = plan_shards(&stored, &wanted, 2, name_of);
    assert_eq!(
        summary(&writes),
        ["put set-stage-1: a_c__S", "put set-stage-0: a_a__S a_b__S"]
    );
}

#[test]
fn a_shard_under_another_name_is_replaced_and_then_deleted() {
    let mut old = shard(0, &["a_a__S"]);
    old.name = hashed_name("set", "stage", 0);
    old.malformed = vec![RawEntry {
        id: "odd".into(),
        v: "v1".into(),
    }];
    let mut nameless = shard(1, &["a_b__S"]);
    nameless.index = None;
    let writes = plan_shards(&[old.clone(), nameless], &entries(&["a_a__S", "a_b__S"]), 5, name_of);
    assert_eq!(
        summary(&writes),
        [
            "put set-stage-0: a_a__S odd".to_owned(),
            "put set-stage-1: a_b__S".to_owned(),
            format!("delete {}", old.name),
        ]
    );
}

#[test]
fn an_unlabelled_shard_is_known_by_its_name() {
    let mut unlabelled = shard(1, &["a_c__S"]);
    unlabelled.index = None;
    let wanted = entries(&["a_a__S", "a_b__S", "a_c__S"]);
    let writes = plan_shards(&[unlabelled], &wanted, 1, name_of);
    assert_eq!(
        summary(&writes),
        [
            "put set-stage-0: a_a__S",
            "put set-stage-1: a_c__S",
            "put set-stage-2: a_b__S"
        ]
    );
}

/// Rules: run 17.3
#[test]
fn what_could_not_be_read_is_kept() {
    let raw = [
        ("broken".to_owned(), "v1".to_owned()),
        ("a_a__S".to_owned(), "v1".to_owned()),
    ];
    let stored = [Shard::read("set-stage-0", Some("0"), raw)];
    assert_eq!(stored[0].malformed.len(), 1);
    let writes = plan_shards(&stored, &entries(&["a_b__S"]), 5, name_of);
    assert_eq!(summary(&writes), ["put set-stage-0: a_b__S broken"]);
}

/// Shards as a crash, an older writer or a restore may leave them: duplicates, gaps, foreign names, bad labels.
fn some_shards() -> impl Strategy<Value = Vec<Shard>> {
    let one = (
        0_u32..5,
        prop::bool::weighted(0.3),
        prop::option::weighted(0.8, 0_u32..6),
        some_entries(),
        0_usize..2,
    );
    prop::collection::vec(one, 0..5).prop_map(|list| {
        let mut shards: Vec<Shard> = Vec::new();
        for (number, hashed, label, entries, malformed) in list {
            let name = if hashed {
                hashed_name("set", "stage", number)
            } else {
                name_of(number)
            };
            let malformed = vec![
                RawEntry {
                    id: format!("bad{number}{hashed}"),
                    v: "v1".into()
                };
                malformed
            ];
            if shards.iter().all(|shard| shard.name != name) {
                shards.push(Shard {
                    name,
                    index: label,
                    entries,
                    malformed,
                });
            }
        }
        shards
    })
}

proptest! {
    /// After the plan every wanted entry is in exactly one shard, in its version, none other is, and the plan is done.
    #[test]
    fn shards_end_up_holding_each_entry_once(stored in some_shards(), wanted in some_entries(), cap in 0_usize..5) {
        let mut shards = stored.clone();
        for write in plan_shards(&stored, &wanted, cap, name_of) {
            apply_write(&mut shards, &write);
        }
        let all: Vec<(&ObjectId, &String)> = shards.iter().flat_map(|shard| &shard.entries).collect();
        prop_assert_eq!(all.len(), wanted.len());
        prop_assert_eq!(stored_entries(&shards), wanted.clone());
        for shard in &shards {
            prop_assert!(shard.entries.len() <= cap.max(1));
            prop_assert_eq!(&shard.name, &name_of(shard.index.unwrap()));
        }
        prop_assert!(shards.iter().any(|shard| shard.index == Some(0)));
        let kept: BTreeSet<&str> = shards.iter().flat_map(|s| &s.malformed).map(|raw| raw.id.as_str()).collect();
        let had: BTreeSet<&str> = stored.iter().flat_map(|s| &s.malformed).map(|raw| raw.id.as_str()).collect();
        prop_assert_eq!(kept, had);
        prop_assert_eq!(plan_shards(&shards, &wanted, cap, name_of), []);
    }

    /// A crash after any number of writes loses nothing that is stored and wanted, nor anything unreadable.
    ///
    /// Rules: run B38
    #[test]
    fn no_prefix_of_the_writes_loses_an_entry(stored in some_shards(), wanted in some_entries(), cap in 1_usize..5) {
        let mut shards = stored.clone();
        let before = stored_entries(&stored);
        let malformed = |shards: &[Shard]| -> BTreeSet<RawEntry> {
            shards.iter().flat_map(|shard| shard.malformed.clone()).collect()
        };
        for write in plan_shards(&stored, &wanted, cap, name_of) {
            apply_write(&mut shards, &write);
            let now = stored_entries(&shards);
            for id in before.keys().filter(|id| wanted.contains_key(*id)) {
                prop_assert!(now.contains_key(id), "{} is lost", id);
            }
            prop_assert_eq!(malformed(&shards), malformed(&stored));
        }
    }

    /// A plan that starts over from any crash point reaches the same end.
    #[test]
    fn a_crash_anywhere_converges(stored in some_shards(), wanted in some_entries(), cap in 1_usize..5, stop in 0_usize..8) {
        let mut shards = stored.clone();
        for write in plan_shards(&stored, &wanted, cap, name_of).iter().take(stop) {
            apply_write(&mut shards, write);
        }
        for write in plan_shards(&shards.clone(), &wanted, cap, name_of) {
            apply_write(&mut shards, &write);
        }
        prop_assert_eq!(stored_entries(&shards), wanted.clone());
        prop_assert_eq!(shards.iter().map(|shard| shard.entries.len()).sum::<usize>(), wanted.len());
    }

    /// Entries that stay wanted and fit keep their shard.
    #[test]
    fn assignment_is_stable(first in some_entries(), second in some_entries(), cap in 1_usize..5) {
        let mut shards = Vec::new();
        for write in plan_shards(&[], &first, cap, name_of) {
            apply_write(&mut shards, &write);
        }
        let home = |shards: &[Shard], id: &ObjectId| {
            shards.iter().find(|shard| shard.entries.contains_key(id)).map(|shard| shard.name.clone())
        };
        let before = shards.clone();
        for write in plan_shards(&before, &second, cap, name_of) {
            apply_write(&mut shards, &write);
        }
        for id in first.keys().filter(|id| second.contains_key(*id)) {
            prop_assert_eq!(home(&before, id), home(&shards, id));
        }
    }

    /// Passes that crash anywhere, with prunes that fail anywhere: an object that exists is always recorded.
    ///
    /// Rules: run B1
    #[test]
    fn no_object_is_ever_orphaned(
        renders in prop::collection::vec(some_entries(), 1..5),
        stops in prop::collection::vec((0_usize..6, 0_usize..6, 0_usize..6), 5),
        cap in 1_usize..5,
    ) {
        let mut shards: Vec<Shard> = Vec::new();
        let mut cluster: BTreeSet<ObjectId> = BTreeSet::new();
        for (rendered, (record, prune, forget)) in renders.iter().zip(stops) {
            let stored = stored_entries(&shards);
            let writes = plan_shards(&shards.clone(), &union(&stored, rendered), cap, name_of);
            let planned = writes.len();
            writes.iter().take(record).for_each(|write| apply_write(&mut shards, write));
            prop_assert!(cluster.iter().all(|id| stored_entries(&shards).contains_key(id)));
            if record < planned {
                continue;
            }
            cluster.extend(rendered.keys().cloned());
            let leaving: Vec<ObjectId> = cluster.iter().filter(|id| !rendered.contains_key(*id)).cloned().collect();
            let gone: BTreeSet<ObjectId> = leaving.into_iter().take(prune).collect();
            cluster.retain(|id| !gone.contains(id));
            let kept = shrink(&stored_entries(&shards), rendered, &gone);
            let writes = plan_shards(&shards.clone(), &kept, cap, name_of);
            writes.iter().take(forget).for_each(|write| apply_write(&mut shards, write));
            prop_assert!(cluster.iter().all(|id| stored_entries(&shards).contains_key(id)));
        }
    }
}
