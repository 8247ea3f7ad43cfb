use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::Owner;
use super::entry::{Coverage, Entry, Knowledge, Sighting, Wire};
use super::weight::{Scale, Weight};

fn owner(name: &str) -> Owner {
    Owner {
        namespace: "ns".into(),
        name: name.into(),
    }
}

fn seen(name: &str, version: u64, of: Option<&str>) -> Sighting {
    Sighting {
        name: name.into(),
        uid: format!("uid-{name}"),
        version,
        owner: of.map(owner),
    }
}

fn fresh(single: bool) -> Entry {
    Entry::new(owner("a"), single, Weight::default())
}

fn live(objects: &[Sighting], version: u64) -> Entry {
    let mut entry = fresh(false);
    entry.list_begins(version);
    for object in objects {
        entry.listed(object.clone());
    }
    entry.list_ends();
    entry
}

#[test]
fn nothing_is_vouched_for_before_the_list_is_complete() {
    let mut entry = fresh(false);
    entry.list_begins(10);
    entry.listed(seen("x", 5, Some("a")));
    assert_eq!(entry.coverage(), &Coverage::Starting);
    assert_eq!(entry.knows("x", "uid-x", 5), Knowledge::Unknown);
    entry.list_ends();
    assert_eq!(entry.knows("x", "uid-x", 5), Knowledge::Unchanged);
}

#[test]
fn an_object_that_the_list_does_not_hold_is_not_vouched_for() {
    let entry = live(&[], 10);
    assert_eq!(entry.knows("x", "uid-x", 5), Knowledge::Unknown);
    assert_eq!(entry.knows("x", "", 0), Knowledge::Unknown);
}

#[test]
fn the_echo_of_our_own_write_wakes_nobody_and_a_later_change_does() {
    let mut entry = live(&[], 10);
    entry.note(seen("x", 11, Some("a")));
    assert_eq!(entry.knows("x", "uid-x", 11), Knowledge::Unchanged);
    assert_eq!(entry.changed(seen("x", 11, Some("a"))), []);
    assert_eq!(entry.changed(seen("x", 12, Some("a"))), [owner("a")]);
    assert_eq!(entry.knows("x", "uid-x", 11), Knowledge::Unknown);
}

#[test]
fn a_note_that_comes_after_the_deletion_does_not_revive_the_object() {
    let mut entry = live(&[seen("x", 5, Some("a"))], 10);
    // Read at 11, deleted at 12, and the news of it is faster than the note.
    assert_eq!(entry.deleted(&seen("x", 12, Some("a"))), [owner("a")]);
    assert_eq!(entry.note(seen("x", 11, Some("a"))), [owner("a")]);
    assert_eq!(entry.knows("x", "uid-x", 11), Knowledge::Unknown);
}

#[test]
fn a_deletion_that_comes_after_the_recreation_is_old_news() {
    let mut entry = live(&[seen("x", 5, Some("a"))], 10);
    entry.note(seen("x", 13, Some("a")));
    assert_eq!(entry.deleted(&seen("x", 12, Some("a"))), []);
    assert_eq!(entry.knows("x", "uid-x", 13), Knowledge::Unchanged);
}

#[test]
fn a_list_older_than_our_write_does_not_take_it_for_gone() {
    let mut entry = fresh(false);
    entry.note(seen("x", 20, Some("a")));
    entry.list_begins(15);
    assert_eq!(entry.list_ends(), [owner("a")], "the first list");
    assert_eq!(entry.knows("x", "uid-x", 20), Knowledge::Unchanged);
    entry.interrupted(None);
    entry.list_begins(25);
    assert_eq!(entry.list_ends(), [owner("a")]);
    assert_eq!(entry.knows("x", "uid-x", 20), Knowledge::Unknown);
}

#[test]
fn a_cluster_restored_from_a_backup_is_learned_anew() {
    let mut entry = live(&[seen("x", 90, Some("a"))], 100);
    entry.interrupted(None);
    assert_eq!(entry.list_begins(40), [owner("a")]);
    entry.listed(seen("x", 30, Some("a")));
    entry.list_ends();
    assert_eq!(entry.knows("x", "uid-x", 90), Knowledge::Unknown);
    assert_eq!(entry.knows("x", "uid-x", 30), Knowledge::Unchanged);
}

#[test]
fn a_recreated_object_is_another_one() {
    let mut entry = live(&[seen("x", 5, Some("a"))], 10);
    let mut again = seen("x", 5, Some("a"));
    again.uid = "other".into();
    assert_eq!(entry.knows("x", &again.uid, 5), Knowledge::Unknown);
    entry.deleted(&seen("x", 11, Some("a")));
    again.version = 12;
    assert_eq!(entry.changed(again), [owner("a")]);
    assert_eq!(entry.knows("x", "uid-x", 12), Knowledge::Unknown);
}

#[test]
fn a_label_that_names_a_stranger_wakes_only_users() {
    let mut entry = live(&[seen("x", 5, Some("a"))], 10);
    assert_eq!(entry.changed(seen("x", 11, Some("victim"))), [owner("a")]);
    assert_eq!(entry.changed(seen("x", 12, Some("victim"))), []);
    assert_eq!(entry.changed(seen("y", 13, None)), []);
}

/// Rules: decisions 7 memory
#[test]
fn a_flooded_watch_forgets_what_it_was_told_and_takes_nothing_for_gone() {
    let scale = Scale::default();
    let mut entry = Entry::new(owner("a"), false, Weight::on(&scale));
    entry.list_begins(10);
    entry.list_ends();
    let mut version = 10;
    while !entry.is_too_much() {
        version += 1;
        entry.changed(seen(&format!("{version}-{}", "x".repeat(4000)), version, Some("a")));
    }
    assert_eq!(entry.flooded("too much".into()), [owner("a")]);
    assert_eq!(entry.coverage(), &Coverage::Flooded("too much".into()));
    assert!(!entry.is_too_much());
    assert_eq!(entry.note(seen("x", 11, Some("a"))), [], "read meanwhile, and not gone");
}

/// What one of them has read is news to the others.
#[test]
fn a_note_on_one_object_wakes_the_others_that_await_it() {
    let mut entry = fresh(true);
    entry.join(&owner("b"));
    entry.list_begins(10);
    entry.listed(seen("x", 5, None));
    entry.list_ends();
    assert_eq!(entry.note(seen("x", 11, Some("a"))), [owner("b")]);
    assert_eq!(entry.note(seen("x", 11, Some("b"))), [], "it knows too now");
    assert_eq!(entry.changed(seen("x", 11, None)), []);
}

#[test]
fn a_watch_of_one_object_concerns_all_its_users() {
    let mut entry = fresh(true);
    entry.join(&owner("b"));
    entry.list_begins(10);
    entry.list_ends();
    let mut woken = entry.changed(seen("x", 11, None));
    woken.sort();
    assert_eq!(woken, [owner("a"), owner("b")]);
}

#[test]
fn a_denial_is_told_once_and_so_is_its_end() {
    let mut entry = live(&[], 10);
    assert_eq!(entry.interrupted(Some("no".into())), [owner("a")]);
    assert_eq!(entry.interrupted(Some("no".into())), []);
    assert_eq!(entry.coverage(), &Coverage::Denied("no".into()));
    assert_eq!(entry.resumed(), [owner("a")]);
    assert_eq!(entry.resumed(), []);
    assert_eq!(entry.interrupted(None), []);
    assert_eq!(entry.coverage(), &Coverage::Starting);
}

#[test]
fn an_interruption_in_the_middle_of_a_list_ends_it() {
    let mut entry = live(&[seen("x", 5, Some("a"))], 10);
    entry.interrupted(None);
    entry.list_begins(20);
    entry.interrupted(None);
    assert_eq!(entry.list_ends(), []);
    assert_eq!(entry.coverage(), &Coverage::Starting);
}

#[test]
fn only_our_labels_are_read() {
    let text = r#"{"kind":"PartialObjectMetadata","metadata":{"name":"x","uid":"u","resourceVersion":"7","managedFields":[{"a":1}],
        "labels":{"stages.metio.wtf/name":"a","stages.metio.wtf/namespace":"ns","other":"x"}}}"#;
    let wire: Wire = serde_json::from_str(text).expect("an object");
    let expected = Sighting {
        uid: "u".into(),
        ..seen("x", 7, Some("a"))
    };
    assert_eq!(wire.sighting(), Some(expected));
    let bare: Wire = serde_json::from_str(r#"{"metadata":{"resourceVersion":"12"}}"#).expect("a bookmark");
    assert_eq!((bare.version(), bare.sighting()), (12, None));
}

/// What may happen between a cluster, a watch on it, and two StageSets with two objects each.
#[derive(Debug, Clone)]
enum Op {
    /// Somebody else writes an object; with or without its label.
    Foreign(usize, bool),
    Delete(usize),
    /// Its StageSet writes an object, and notes it; the flag delays the note until the next look.
    Apply(usize, bool),
    /// The watch tells so many events.
    Tell(usize),
    Bookmark,
    Interrupt,
    Resume,
    Relist,
    /// A StageSet reads its objects.
    Look(usize),
}

fn op_without_watch() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4_usize, any::<bool>()).prop_map(|(n, l)| Op::Foreign(n, l)),
        (0..4_usize).prop_map(Op::Delete),
        (0..4_usize, any::<bool>()).prop_map(|(n, d)| Op::Apply(n, d)),
        (0..2_usize).prop_map(Op::Look),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4_usize, any::<bool>()).prop_map(|(n, l)| Op::Foreign(n, l)),
        (0..4_usize).prop_map(Op::Delete),
        (0..4_usize, any::<bool>()).prop_map(|(n, d)| Op::Apply(n, d)),
        (1..5_usize).prop_map(Op::Tell),
        Just(Op::Bookmark),
        Just(Op::Interrupt),
        Just(Op::Resume),
        Just(Op::Relist),
        (0..2_usize).prop_map(Op::Look),
    ]
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Live {
    uid: String,
    version: u64,
    labelled: bool,
}

/// An event of the log: what a watch with our selector is told.
#[derive(Debug, Clone)]
enum Told {
    Changed(Sighting),
    Deleted(Sighting),
    /// Of no concern to the selector.
    Nothing(u64),
}

struct World {
    version: u64,
    objects: BTreeMap<usize, Live>,
    log: Vec<Told>,
    /// Events told so far.
    told: usize,
    entry: Entry,
    up: bool,
    known: BTreeMap<usize, Option<Live>>,
    late: Vec<Sighting>,
    woken: BTreeSet<String>,
}

fn name(n: usize) -> String {
    format!("o{n}")
}

fn of(n: usize) -> &'static str {
    if n < 2 { "a" } else { "b" }
}

impl World {
    fn new(before: &[Op], stale: usize) -> Self {
        let mut entry = fresh(false);
        entry.join(&owner("b"));
        let mut world = World {
            version: 100,
            objects: BTreeMap::new(),
            log: Vec::new(),
            told: 0,
            entry,
            up: false,
            known: BTreeMap::new(),
            late: Vec::new(),
            woken: BTreeSet::new(),
        };
        // The first list shows the cluster as it was some events ago.
        let mut history = vec![(world.version, world.objects.clone(), 0)];
        for op in before {
            world.step(op);
            history.push((world.version, world.objects.clone(), world.log.len()));
        }
        let (version, objects, told) = history[history.len() - 1 - stale.min(history.len() - 1)].clone();
        world.list(version, &objects);
        world.told = told;
        world
    }

    fn wake(&mut self, owners: Vec<Owner>) {
        self.woken.extend(owners.into_iter().map(|o| o.name));
    }

    fn sighting(&self, n: usize) -> Sighting {
        let live = &self.objects[&n];
        Sighting {
            name: name(n),
            uid: live.uid.clone(),
            version: live.version,
            owner: live.labelled.then(|| owner(of(n))),
        }
    }

    fn put(&mut self, n: usize, labelled: bool) {
        self.version += 1;
        let before = self.objects.get(&n).cloned();
        let uid = before
            .as_ref()
            .map_or_else(|| format!("u{}", self.version), |b| b.uid.clone());
        let version = self.version;
        self.objects.insert(n, Live { uid, version, labelled });
        let now = self.sighting(n);
        let left = before.is_some_and(|b| b.labelled) && !labelled;
        self.log.push(match (labelled, left) {
            (true, _) => Told::Changed(now),
            (false, true) => Told::Deleted(Sighting {
                owner: Some(owner(of(n))),
                ..now
            }),
            (false, false) => Told::Nothing(version),
        });
    }

    fn list(&mut self, version: u64, objects: &BTreeMap<usize, Live>) {
        let mut woken = self.entry.list_begins(version);
        for (n, live) in objects.iter().filter(|(_, l)| l.labelled) {
            woken.extend(self.entry.listed(Sighting {
                name: name(*n),
                uid: live.uid.clone(),
                version: live.version,
                owner: Some(owner(of(*n))),
            }));
        }
        woken.extend(self.entry.list_ends());
        self.wake(woken);
        self.up = true;
    }

    fn tell(&mut self) -> bool {
        let Some(event) = self.log.get(self.told).filter(|_| self.up).cloned() else {
            return false;
        };
        self.told += 1;
        let woken = match event {
            Told::Changed(s) => self.entry.changed(s),
            Told::Deleted(s) => self.entry.deleted(&s),
            Told::Nothing(version) => {
                self.entry.passed(version);
                Vec::new()
            }
        };
        self.wake(woken);
        true
    }

    fn look(&mut self, who: usize) {
        self.woken.remove(of(who * 2));
        for late in std::mem::take(&mut self.late) {
            let woken = self.entry.note(late);
            self.wake(woken);
        }
        for n in [who * 2, who * 2 + 1] {
            let live = self.objects.get(&n).cloned();
            if live.as_ref().is_some_and(|l| l.labelled) {
                let woken = self.entry.note(self.sighting(n));
                self.wake(woken);
            }
            self.known.insert(n, live);
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Foreign(n, labelled) => self.put(n, labelled),
            Op::Delete(n) => {
                if let Some(gone) = self.objects.remove(&n) {
                    self.version += 1;
                    self.log.push(if gone.labelled {
                        Told::Deleted(Sighting {
                            name: name(n),
                            uid: gone.uid,
                            version: self.version,
                            owner: Some(owner(of(n))),
                        })
                    } else {
                        Told::Nothing(self.version)
                    });
                }
            }
            Op::Apply(n, delayed) => {
                self.put(n, true);
                let sighting = self.sighting(n);
                self.known.insert(n, self.objects.get(&n).cloned());
                if delayed {
                    self.late.push(sighting);
                } else {
                    let woken = self.entry.note(sighting);
                    self.wake(woken);
                }
            }
            Op::Tell(events) => {
                for _ in 0..events {
                    self.tell();
                }
            }
            // A bookmark never overtakes an event.
            Op::Bookmark if self.up && self.told == self.log.len() => self.entry.passed(self.version),
            Op::Bookmark => {}
            Op::Interrupt => {
                self.up = false;
                let woken = self.entry.interrupted(None);
                self.wake(woken);
            }
            Op::Resume if !self.up => {
                self.up = true;
                let woken = self.entry.resumed();
                self.wake(woken);
            }
            Op::Resume => {}
            Op::Relist => {
                let objects = self.objects.clone();
                self.list(self.version, &objects);
                self.told = self.log.len();
            }
            Op::Look(who) => self.look(who),
        }
    }

    /// Nothing is called unchanged whose change has been told.
    fn assert_honest(&self) {
        let mut latest: HashMap<String, Option<(String, u64)>> = HashMap::new();
        for told in &self.log[..self.told] {
            match told {
                Told::Changed(s) => latest.insert(s.name.clone(), Some((s.uid.clone(), s.version))),
                Told::Deleted(s) => latest.insert(s.name.clone(), None),
                Told::Nothing(_) => None,
            };
        }
        for (n, known) in &self.known {
            let Some(Live { uid, version, .. }) = known else {
                continue;
            };
            if self.entry.knows(&name(*n), uid, *version) == Knowledge::Unknown {
                continue;
            }
            assert!(self.up, "an interrupted watch vouches for {n}");
            match latest.get(&name(*n)) {
                Some(Some((u, v))) => assert!(
                    v < version || (v == version && u == uid),
                    "{n} changed: {known:?} < {v}"
                ),
                // Deleted, and known since: then it was created again, which has not been told.
                Some(None) | None => assert!(
                    *version > self.told_version(),
                    "{n} is gone, and still vouched for at {version}"
                ),
            }
        }
    }

    fn told_version(&self) -> u64 {
        match self.told.checked_sub(1).map(|at| &self.log[at]) {
            None => 100,
            Some(Told::Changed(s) | Told::Deleted(s)) => s.version,
            Some(Told::Nothing(version)) => *version,
        }
    }

    /// Once everything has been told, whoever knows less than there is has been woken.
    fn assert_nobody_sleeps(&mut self) {
        self.step(&Op::Resume);
        while self.tell() {}
        for late in std::mem::take(&mut self.late) {
            let woken = self.entry.note(late);
            self.wake(woken);
        }
        for n in 0..4 {
            let Some(known) = self.known.get(&n) else { continue };
            let live = self.objects.get(&n);
            // Without its label it is none of the watch's; each pass reads it.
            if live.is_some_and(|l| !l.labelled) || known.as_ref().is_some_and(|k| !k.labelled) {
                continue;
            }
            assert!(
                known.as_ref() == live || self.woken.contains(of(n)),
                "{n}: {known:?} is {live:?} and {} sleeps",
                of(n)
            );
        }
        self.assert_honest();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(500),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_change_is_hidden_and_no_wake_is_lost(
        before in prop::collection::vec(op_without_watch(), 0..12),
        stale in 0..6_usize,
        ops in prop::collection::vec(op(), 0..40),
    ) {
        let mut world = World::new(&before, stale);
        world.assert_honest();
        for op in &ops {
            world.step(op);
            world.assert_honest();
        }
        world.assert_nobody_sleeps();
    }

    #[test]
    fn what_has_settled_costs_no_request(
        before in prop::collection::vec(op(), 0..30),
    ) {
        let mut world = World::new(&[], 0);
        for op in &before {
            world.step(op);
        }
        world.step(&Op::Resume);
        while world.tell() {}
        world.look(0);
        world.look(1);
        for (n, live) in world.objects.iter().filter(|(_, l)| l.labelled) {
            prop_assert_eq!(world.entry.knows(&name(*n), &live.uid, live.version), Knowledge::Unchanged);
        }
    }
}
