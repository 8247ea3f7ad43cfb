//! What one watch knows: a pure state machine over lists, events and our own writes.
//!
//! Versions of one kind are comparable numbers (KEP-5504). `upto` is the version up to which the watch has told
//! everything. A write of our own above it is one the watch has not told of yet, and is noted; one that is not above it
//! the watch knows better, so nothing has to be remembered of deleted objects.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use super::Owner;
use super::weight::Weight;
use crate::api::names::label;

/// How far a watch can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage {
    /// Every change since the initial list is known.
    Live,
    /// Not listed yet, or interrupted.
    Starting,
    /// The identity may not list or watch the kind; the text is the server's.
    Denied(String),
    /// The server tells of more than there is room for; the text says so.
    Flooded(String),
    /// No watch: the cap is reached.
    None,
}

/// What is known of one object without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// Nothing happened to it since the version given.
    Unchanged,
    /// It changed, was deleted or recreated, or nothing is known.
    Unknown,
}

/// The part of an object's metadata that matters here; the rest is not even read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    pub name: String,
    pub uid: String,
    pub version: u64,
    pub owner: Option<Owner>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    uid: Box<str>,
    version: u64,
    owner: Option<Owner>,
}

/// State of one watch.
#[derive(Debug)]
pub struct Entry {
    objects: HashMap<String, Seen>,
    users: HashSet<Owner>,
    coverage: Coverage,
    upto: u64,
    /// The list under way: its version, and the names it has held so far.
    list: Option<(u64, HashSet<String>)>,
    /// Whether a list was ever complete.
    listed: bool,
    /// A watch of one object, which need not carry our labels: it concerns every user.
    single: bool,
    weight: Weight,
}

impl Seen {
    fn texts(&self, name: &str) -> usize {
        let owner = self.owner.as_ref().map_or(0, |o| o.namespace.len() + o.name.len());
        name.len() + self.uid.len() + owner
    }
}

impl Entry {
    /// Nothing is known yet; `first` is the first user.
    pub fn new(first: Owner, single: bool, weight: Weight) -> Self {
        Self {
            objects: HashMap::new(),
            users: HashSet::from([first]),
            coverage: Coverage::Starting,
            upto: 0,
            list: None,
            listed: false,
            single,
            weight,
        }
    }

    /// Whether the watch takes more memory than it may.
    pub fn is_too_much(&self) -> bool {
        self.weight.is_too_much()
    }

    /// The watch took too much: nothing is known any more, and its users poll; `why` is for people.
    pub fn flooded(&mut self, why: String) -> Vec<Owner> {
        self.objects = HashMap::new();
        self.weight.clear();
        // What it has told is forgotten, so that nothing read from now on counts as gone.
        self.upto = 0;
        self.ends(Coverage::Flooded(why))
    }

    /// How far the watch can be trusted.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Adds a user.
    pub fn join(&mut self, user: &Owner) {
        if !self.users.contains(user) {
            self.users.insert(user.clone());
        }
    }

    /// Removes a user. `true` when nobody is left.
    pub fn leave(&mut self, user: &Owner) -> bool {
        self.users.remove(user);
        self.users.is_empty()
    }

    /// Everybody who relies on the watch.
    pub fn users(&self) -> impl Iterator<Item = &Owner> {
        self.users.iter()
    }

    /// Whether an object is still exactly the one known by uid and version.
    pub fn knows(&self, name: &str, uid: &str, version: u64) -> Knowledge {
        // Version 0 stands for "never seen".
        let same = |seen: &Seen| version != 0 && seen.version == version && &*seen.uid == uid;
        match self.objects.get(name) {
            Some(seen) if self.coverage == Coverage::Live && same(seen) => Knowledge::Unchanged,
            _ => Knowledge::Unknown,
        }
    }

    /// Notes a version the run has just read or written, so that its echo wakes nobody. Whoever noted it is woken where
    /// the watch knows already that the object is gone since; the others that await the same object, as it is news to them.
    pub fn note(&mut self, sighting: Sighting) -> Vec<Owner> {
        let newer = match self.objects.get(&sighting.name) {
            Some(seen) => seen.version < sighting.version,
            None if sighting.version > self.upto => true,
            None => return concerned(&self.users, self.single, [sighting.owner.as_ref()]),
        };
        if !newer || sighting.version <= self.upto {
            return Vec::new();
        }
        let noted = sighting.owner.clone();
        self.put(sighting);
        if self.single {
            let others = self.users.iter().filter(|user| Some(*user) != noted.as_ref());
            return others.cloned().collect();
        }
        Vec::new()
    }

    /// A list as of `version` begins to arrive.
    pub fn list_begins(&mut self, version: u64) -> Vec<Owner> {
        let mut woken = Vec::new();
        if version < self.upto {
            // Versions only grow. Lower ones mean that the cluster was restored from a backup: nothing known holds.
            self.objects.clear();
            self.weight.clear();
            self.upto = 0;
            woken = self.users.iter().cloned().collect();
        }
        self.list = Some((version, HashSet::new()));
        woken
    }

    /// An object of the list.
    pub fn listed(&mut self, sighting: Sighting) -> Vec<Owner> {
        if let Some((_, names)) = &mut self.list {
            names.insert(sighting.name.clone());
        }
        self.saw(sighting)
    }

    /// The list is complete: what it does not hold, and is not newer, is gone.
    pub fn list_ends(&mut self) -> Vec<Owner> {
        let Some((version, names)) = self.list.take() else {
            return Vec::new();
        };
        let mut woken = HashSet::new();
        let single = self.single;
        let users = &self.users;
        let weight = &mut self.weight;
        self.objects.retain(|name, seen| {
            let gone = seen.version <= version && !names.contains(name);
            if gone {
                weight.remove(seen.texts(name));
                woken.extend(concerned(users, single, [seen.owner.as_ref()]));
            }
            !gone
        });
        self.upto = self.upto.max(version);
        woken.extend(self.resumed());
        if !std::mem::replace(&mut self.listed, true) {
            // What they learned before the watch began may be outdated, and its absence from the list tells nobody.
            woken.extend(self.users.iter().cloned());
        }
        woken.into_iter().collect()
    }

    /// An object was added or changed.
    pub fn changed(&mut self, sighting: Sighting) -> Vec<Owner> {
        self.passed(sighting.version);
        self.saw(sighting)
    }

    /// An object was deleted, or lost the label the watch selects by.
    pub fn deleted(&mut self, sighting: &Sighting) -> Vec<Owner> {
        self.passed(sighting.version);
        if self
            .objects
            .get(&sighting.name)
            .is_some_and(|s| s.version > sighting.version)
        {
            // Recreated by ourselves meanwhile.
            return Vec::new();
        }
        let before = self.objects.remove(&sighting.name);
        if let Some(before) = &before {
            self.weight.remove(before.texts(&sighting.name));
        }
        let owners = [sighting.owner.as_ref(), before.as_ref().and_then(|b| b.owner.as_ref())];
        concerned(&self.users, self.single, owners)
    }

    /// Everything up to `version` has been told.
    pub fn passed(&mut self, version: u64) {
        self.upto = self.upto.max(version);
    }

    /// The stream is open again after an interruption, and nothing was lost.
    pub fn resumed(&mut self) -> Vec<Owner> {
        let before = std::mem::replace(&mut self.coverage, Coverage::Live);
        match before {
            // They poll, and need not any more.
            Coverage::Denied(_) | Coverage::Flooded(_) => self.users.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Changes are not told any more, for the time being.
    pub fn interrupted(&mut self, denied: Option<String>) -> Vec<Owner> {
        self.ends(denied.map_or(Coverage::Starting, Coverage::Denied))
    }

    fn ends(&mut self, now: Coverage) -> Vec<Owner> {
        self.list = None;
        let before = std::mem::replace(&mut self.coverage, now);
        // Who waits for news must learn that none will come; a short interruption is made good by the next list.
        let news = matches!(self.coverage, Coverage::Denied(_) | Coverage::Flooded(_)) && self.coverage != before;
        if news {
            self.users.iter().cloned().collect()
        } else {
            Vec::new()
        }
    }

    fn saw(&mut self, sighting: Sighting) -> Vec<Owner> {
        let before = self.objects.get(&sighting.name);
        if before.is_some_and(|s| s.version >= sighting.version) {
            return Vec::new();
        }
        let woken = concerned(
            &self.users,
            self.single,
            [sighting.owner.as_ref(), before.and_then(|b| b.owner.as_ref())],
        );
        self.put(sighting);
        woken
    }

    fn put(&mut self, sighting: Sighting) {
        let seen = Seen {
            uid: sighting.uid.into_boxed_str(),
            version: sighting.version,
            owner: sighting.owner,
        };
        self.weight.add(seen.texts(&sighting.name));
        if let Some(before) = self.objects.get(&sighting.name) {
            self.weight.remove(before.texts(&sighting.name));
        }
        self.objects.insert(sighting.name, seen);
    }
}

/// Whom an object concerns: its owners before and after, as far as they use the watch. A label that names somebody else
/// wakes nobody, or anyone could keep a stranger's StageSet busy.
fn concerned<'a>(
    users: &HashSet<Owner>,
    single: bool,
    owners: impl IntoIterator<Item = Option<&'a Owner>>,
) -> Vec<Owner> {
    if single {
        return users.iter().cloned().collect();
    }
    let mut woken: Vec<Owner> = owners
        .into_iter()
        .flatten()
        .filter(|o| users.contains(*o))
        .cloned()
        .collect();
    woken.dedup();
    woken
}

/// The wire form of [`Sighting`].
#[derive(Debug, Deserialize)]
pub struct Wire {
    #[serde(default)]
    metadata: WireMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<WireLabels>,
}

/// Only our labels are kept; an object may carry any number of others.
#[derive(Debug, Default, Deserialize)]
struct WireLabels {
    #[serde(rename = "stages.metio.wtf/name")]
    name: Option<String>,
    #[serde(rename = "stages.metio.wtf/namespace")]
    namespace: Option<String>,
}

// The names above cannot be constants.
const _: () = assert!(matches!(label::NAME.as_bytes(), b"stages.metio.wtf/name"));
const _: () = assert!(matches!(label::NAMESPACE.as_bytes(), b"stages.metio.wtf/namespace"));

impl Wire {
    /// `metadata.resourceVersion`, 0 where there is none.
    pub fn version(&self) -> u64 {
        parse_version(self.metadata.resource_version.as_deref())
    }

    /// The sighting, where the object has a name and a uid.
    pub fn sighting(self) -> Option<Sighting> {
        let version = self.version();
        let owner = self.metadata.labels.and_then(|l| {
            Some(Owner {
                namespace: l.namespace?,
                name: l.name?,
            })
        });
        Some(Sighting {
            name: self.metadata.name?,
            uid: self.metadata.uid?,
            version,
            owner,
        })
    }
}

/// A resourceVersion as a number. The API server documents them as comparable integers (KEP-5504);
/// anything else counts as never seen.
pub fn parse_version(text: Option<&str>) -> u64 {
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}
