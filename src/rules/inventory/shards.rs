//! Shards: which record holds which entry, and in which order they are written so that a crash between any two
//! writes loses nothing (decisions 6, run 28 B38).

use std::collections::{BTreeMap, BTreeSet};

use super::{Entries, Entry, ObjectId};

/// An entry as it stands in a shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RawEntry {
    pub id: String,
    pub v: String,
}

/// A shard as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shard {
    /// Name of the StageInventory.
    pub name: String,
    /// The shard label; none where it is missing or no number.
    pub index: Option<u32>,
    pub entries: Entries,
    /// Entries that could not be read. They are carried along: what they stand for was never pruned.
    pub malformed: Vec<RawEntry>,
}

impl Shard {
    /// Reads a shard from its name, its shard label and its entries.
    pub fn read(name: &str, label: Option<&str>, raw: impl IntoIterator<Item = (String, String)>) -> Self {
        let (entries, malformed) = read_entries(raw);
        Shard {
            name: name.to_owned(),
            index: label.and_then(|text| text.parse().ok()),
            entries,
            malformed,
        }
    }
}

/// Reads entries (`id`, `v`); the second part is what could not be read.
pub fn read_entries(raw: impl IntoIterator<Item = (String, String)>) -> (Entries, Vec<RawEntry>) {
    let mut entries = Entries::new();
    let mut malformed = Vec::new();
    for (id, v) in raw {
        match Entry::parse(&id, &v) {
            Ok(entry) => {
                entries.insert(entry.id, entry.version);
            }
            Err(_) => malformed.push(RawEntry { id, v }),
        }
    }
    (entries, malformed)
}

/// The stored set of a stage: the union of its shards.
pub fn stored_entries<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Entries {
    let mut all = Entries::new();
    for shard in shards {
        for (id, version) in &shard.entries {
            all.entry(id.clone()).or_insert_with(|| version.clone());
        }
    }
    all
}

/// One write; carried out in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardWrite {
    /// Create or replace the shard's entries and labels.
    Put {
        index: u32,
        name: String,
        entries: Vec<RawEntry>,
    },
    /// Delete a shard that holds nothing any more.
    Delete { name: String },
}

/// Plans the writes that make the shards hold exactly `wanted`, each entry once.
///
/// An entry stays where it is; a new one goes to the first shard with room (`cap` entries; not positive = one).
/// Additions come before removals, so that after any number of these writes every entry that is both stored and
/// wanted is still recorded. Shard 0 always exists. A shard under a name the writer (`name_of`) would not choose is
/// emptied into the others, then deleted. No write means that all is as it should be.
pub fn plan_shards(stored: &[Shard], wanted: &Entries, cap: usize, name_of: impl Fn(u32) -> String) -> Vec<ShardWrite> {
    let mut layout = Layout::of(stored, wanted, cap.max(1), &name_of);
    layout.place(wanted);
    layout.writes(stored)
}

/// A shard in the making.
#[derive(Default)]
struct Slot<'a> {
    name: String,
    before: Option<&'a Shard>,
    after: Entries,
    malformed: Vec<RawEntry>,
    /// Stored entries that leave for another shard; they are dropped last.
    leaving: Entries,
}

struct Layout<'a> {
    slots: BTreeMap<u32, Slot<'a>>,
    homeless: BTreeSet<ObjectId>,
    cap: usize,
    name_of: &'a dyn Fn(u32) -> String,
}

impl<'a> Layout<'a> {
    /// Finds the shards that keep their place and which wanted entries stay in them.
    fn of(stored: &'a [Shard], wanted: &Entries, cap: usize, name_of: &'a dyn Fn(u32) -> String) -> Self {
        let mut layout = Layout {
            slots: BTreeMap::new(),
            homeless: wanted.keys().cloned().collect(),
            cap,
            name_of,
        };
        let by_name: BTreeMap<&str, &Shard> = stored.iter().map(|shard| (shard.name.as_str(), shard)).collect();
        // A shard is known by its name, for its label may be lost: look at every number that may be written.
        let reach = stored.len() + wanted.len() / cap + 1;
        let reach = u32::try_from(reach).unwrap_or(u32::MAX);
        let labels = stored.iter().filter_map(|shard| shard.index);
        let candidates: BTreeSet<u32> = (0..reach).chain(labels).collect();
        for index in candidates {
            if let Some(shard) = by_name.get(name_of(index).as_str()) {
                layout.settle(index, shard, wanted);
            }
        }
        layout.slot(0);
        let homes: BTreeSet<String> = layout.slots.values().map(|slot| slot.name.clone()).collect();
        for stray in stored.iter().filter(|shard| !homes.contains(&shard.name)) {
            layout.slot(0).malformed.extend(stray.malformed.iter().cloned());
        }
        layout
    }

    fn slot(&mut self, index: u32) -> &mut Slot<'a> {
        let name_of = self.name_of;
        self.slots.entry(index).or_insert_with(|| Slot {
            name: name_of(index),
            ..Slot::default()
        })
    }

    /// Keeps of a stored shard what is wanted, has no home yet and fits.
    fn settle(&mut self, index: u32, shard: &'a Shard, wanted: &Entries) {
        let mut slot = Slot {
            name: shard.name.clone(),
            before: Some(shard),
            malformed: shard.malformed.clone(),
            ..Slot::default()
        };
        for (id, version) in &shard.entries {
            let Some(new_version) = wanted.get(id) else {
                continue;
            };
            if slot.after.len() < self.cap && self.homeless.remove(id) {
                slot.after.insert(id.clone(), new_version.clone());
            } else {
                slot.leaving.insert(id.clone(), version.clone());
            }
        }
        self.slots.insert(index, slot);
    }

    /// Gives every entry without a home the first shard with room.
    fn place(&mut self, wanted: &Entries) {
        let mut index = 0;
        for id in std::mem::take(&mut self.homeless) {
            while self.slot(index).after.len() >= self.cap {
                index += 1;
            }
            let version = wanted[&id].clone();
            let slot = self.slot(index);
            slot.leaving.remove(&id);
            slot.after.insert(id, version);
        }
    }

    fn writes(self, stored: &[Shard]) -> Vec<ShardWrite> {
        let mut additions = Vec::new();
        let mut removals = Vec::new();
        let mut deletions = Vec::new();
        for (&index, slot) in &self.slots {
            let gains = slot.gains(index);
            if gains {
                let mut content = slot.leaving.clone();
                content.extend(slot.after.clone());
                additions.push(slot.put(index, &content));
            }
            if index != 0 && slot.after.is_empty() && slot.malformed.is_empty() {
                deletions.push(ShardWrite::Delete {
                    name: slot.name.clone(),
                });
            } else if !slot.leaving.is_empty() || (!gains && slot.loses()) {
                removals.push(slot.put(index, &slot.after));
            }
        }
        let kept: BTreeSet<&str> = self.slots.values().map(|slot| slot.name.as_str()).collect();
        let strays = stored.iter().filter(|shard| !kept.contains(shard.name.as_str()));
        deletions.extend(strays.map(|shard| ShardWrite::Delete {
            name: shard.name.clone(),
        }));
        additions.into_iter().chain(removals).chain(deletions).collect()
    }
}

impl Slot<'_> {
    /// True where the shard must be written before anything is removed: it is new, mislabelled, gets an entry or
    /// another version of one.
    fn gains(&self, index: u32) -> bool {
        let Some(before) = self.before else {
            return index == 0 || !self.after.is_empty();
        };
        before.index != Some(index)
            || self.malformed.len() != before.malformed.len()
            || self
                .after
                .iter()
                .any(|(id, version)| before.entries.get(id) != Some(version))
    }

    fn loses(&self) -> bool {
        self.before
            .is_some_and(|before| before.entries.len() > self.after.len())
    }

    fn put(&self, index: u32, content: &Entries) -> ShardWrite {
        let written = content.iter().map(|(id, version)| {
            let entry = Entry {
                id: id.clone(),
                version: version.clone(),
            };
            RawEntry {
                id: id.written(),
                v: entry.api_version(),
            }
        });
        ShardWrite::Put {
            index,
            name: self.name.clone(),
            entries: written.chain(self.malformed.iter().cloned()).collect(),
        }
    }
}
