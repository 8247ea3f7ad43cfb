//! Merging lists whose elements are known by keys, and lists of primitives.

use super::merge::{Loss, Merge, MergeError, Patch};
use super::schema::NodeId;
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};

/// The patch's side of a list.
pub(crate) enum Side {
    Absent,
    List(Vec<Node>),
    /// The target's list is the patch's own.
    Same,
}

type Texts = Vec<Box<str>>;
/// Elements of one list; merging takes time with the square of it.
const LONGEST: usize = 4096;

/// Merges a list; new elements of the patch come first.
pub(crate) fn merge(
    walk: &mut Merge<'_>,
    target: Vec<Node>,
    patch: Side,
    element: Option<NodeId>,
    keys: &[Box<str>],
) -> Result<Vec<Node>, MergeError> {
    if keys.is_empty() {
        return primitives(walk, target, patch);
    }
    if target.len() > LONGEST || matches!(&patch, Side::List(list) if list.len() > LONGEST) {
        return Err(MergeError::TooLong {
            path: walk.here(),
            limit: LONGEST,
        });
    }
    let mut lists = Lists {
        walk,
        nodes: target,
        target: Vec::new(),
        patch: None,
        element,
        keys,
        deleted: 0,
        became: Vec::new(),
    };
    lists.target = (0..lists.nodes.len()).collect();
    match patch {
        Side::Absent => lists.patch = Some(Vec::new()),
        Side::Same => {}
        Side::List(patch) => {
            lists.patch = Some((lists.nodes.len()..lists.nodes.len() + patch.len()).collect());
            lists.nodes.extend(patch);
        }
    }
    lists.merge()
}

/// The reference has one element in several lists at a time, and what changes it shows in all of them. So the lists
/// hold numbers of nodes.
struct Lists<'w, 's> {
    walk: &'w mut Merge<'s>,
    nodes: Vec<Node>,
    target: Vec<usize>,
    /// `None` when the target's list is the patch's own.
    patch: Option<Vec<usize>>,
    element: Option<NodeId>,
    keys: &'w [Box<str>],
    /// Elements of the target the patch deletes.
    deleted: usize,
    /// Elements of the patch that took part: what they became, `None` for a deletion.
    became: Vec<(usize, Option<usize>)>,
}

impl Lists<'_, '_> {
    fn merge(mut self) -> Result<Vec<Node>, MergeError> {
        let mut tuples: Vec<Texts> = Vec::new();
        for list in self.patch.iter().chain([&self.target]) {
            self.collect(list, &mut tuples)?;
        }
        if tuples.is_empty() {
            return Ok(take(self.nodes, &self.target));
        }
        if self.keys.len() > 1 {
            unite(&mut tuples);
        }
        let active: Vec<usize> = (0..self.keys.len())
            .filter(|&k| tuples.iter().any(|t| !t[k].is_empty()))
            .collect();
        let active = if active.is_empty() {
            (0..self.keys.len()).collect()
        } else {
            active
        };
        let keys: Texts = active.iter().map(|&k| self.keys[k].clone()).collect();
        let deletions = self.deletions(&keys);
        let before = self.target.len();
        let mut new = Vec::with_capacity(before);
        for tuple in &tuples {
            let values: Texts = active.iter().map(|&k| tuple[k].clone()).collect();
            self.one(&keys, &values, &mut new)?;
        }
        self.append(&mut new, &keys)?;
        if new.len() + self.deleted < before {
            let path = self.walk.here();
            self.walk.lost.push(Loss::Elements { path });
        }
        if self.ineffective(&new, &keys, &deletions) {
            let (path, keys) = (self.walk.here(), self.keys.join(" and "));
            self.walk.lost.push(Loss::Entry { path, keys });
        }
        Ok(take(self.nodes, &new))
    }

    fn collect(&self, list: &[usize], tuples: &mut Vec<Texts>) -> Result<(), MergeError> {
        for &at in list {
            let map = match &self.nodes[at] {
                Node::Map(map) => Some(map),
                other if other.is_null() => None,
                _ => return Err(MergeError::Element { path: self.walk.here() }),
            };
            let tuple: Texts = self
                .keys
                .iter()
                .map(|key| map.map_or("", |m| key_text(m, key)).into())
                .collect();
            if !tuples.contains(&tuple) {
                tuples.push(tuple);
            }
        }
        Ok(())
    }

    /// Merges the elements of one tuple and puts the result into the new list.
    fn one(&mut self, keys: &[Box<str>], values: &[Box<str>], new: &mut Vec<usize>) -> Result<(), MergeError> {
        let target = self.pick(&self.target, keys, values);
        let patch = match &self.patch {
            Some(patch) => self.pick(patch, keys, values),
            None => target,
        };
        let directive = patch.and_then(|at| self.nodes[at].as_map()?.text("$patch"));
        if directive == Some("delete") {
            // A deletion that finds nothing by all its keys leaves the element, without the directive.
            if let Some(Node::Map(map)) = patch.map(|at| &mut self.nodes[at]) {
                map.remove("$patch");
            }
            self.deleted += usize::from(target.is_some());
            if let (Some(patch), true) = (patch, target.is_some()) {
                self.became.push((patch, None));
            }
            put(&mut self.target, &self.nodes, keys, values, None);
            return Ok(());
        }
        let (replaces, directed) = (directive == Some("replace"), directive.is_some());
        let (at, old, side) = match (target, patch) {
            (None, None) => {
                put(&mut self.target, &self.nodes, keys, values, None);
                return Ok(());
            }
            (Some(at), None) => (at, Some(self.out(at)), Patch::Absent),
            (Some(at), Some(same)) if at == same => (at, Some(self.out(at)), Patch::Same),
            // The patch's element takes the place, in the new list alone.
            (Some(target), Some(at)) if replaces => (at, Some(self.nodes[target].clone()), Patch::Node(self.out(at))),
            (None, Some(at)) => (at, None, Patch::Node(self.out(at))),
            (Some(at), Some(patch)) => {
                let side = self.nodes[patch].clone();
                if let (true, Node::Map(map)) = (directed, &mut self.nodes[patch]) {
                    map.remove("$patch");
                }
                (at, Some(self.out(at)), Patch::Node(side))
            }
        };
        let merged = self.walk.walk(old, side, self.element)?;
        let Some(mut merged) = merged.filter(|node| !node.is_null() && !is_empty_map(node)) else {
            put(&mut self.target, &self.nodes, keys, values, None);
            return Ok(());
        };
        if let Node::Map(map) = &mut merged {
            for (key, value) in keys.iter().zip(values) {
                if !map.contains(key) && !value.is_empty() {
                    map.set(&**key, untyped(value));
                }
            }
        }
        self.nodes[at] = merged;
        if let Some(patch) = patch {
            self.became.push((patch, Some(at)));
        }
        put(new, &self.nodes, keys, values, Some(at));
        Ok(())
    }

    /// Takes a node to change it.
    fn out(&mut self, at: usize) -> Node {
        std::mem::replace(&mut self.nodes[at], Node::null())
    }

    /// Elements of the patch that ask for a deletion, and what keys they give.
    fn deletions(&self, keys: &[Box<str>]) -> Vec<(usize, Texts)> {
        let patch = self.patch.iter().flatten().copied();
        let asking = patch.filter_map(|at| Some((at, self.nodes[at].as_map()?)));
        asking
            .filter(|(_, map)| map.text("$patch") == Some("delete"))
            .map(|(at, map)| (at, keys.iter().map(|key| key_text(map, key).into()).collect()))
            .collect()
    }

    /// True when some element of the patch does not show in the result.
    fn ineffective(&self, new: &[usize], keys: &[Box<str>], deletions: &[(usize, Texts)]) -> bool {
        self.patch.iter().flatten().any(|at| {
            if self.nodes[*at].as_map().is_none_or(Map::is_empty) {
                return false;
            }
            match self.became.iter().find(|(patch, _)| patch == at) {
                Some((_, Some(element))) => !new.contains(element),
                Some((_, None)) => false,
                None => deletions
                    .iter()
                    .find(|(patch, _)| patch == at)
                    .is_none_or(|(_, values)| {
                        values.iter().any(|v| !v.is_empty()) && self.pick(&self.target, keys, values).is_some()
                    }),
            }
        })
    }

    /// The first element whose fields equal the values that are not empty, or all where all are empty.
    fn pick(&self, list: &[usize], keys: &[Box<str>], values: &[Box<str>]) -> Option<usize> {
        let all = values.iter().all(|value| value.is_empty());
        list.iter().copied().find(|&at| {
            self.nodes[at].as_map().is_some_and(|map| {
                keys.iter().zip(values).all(|(key, value)| {
                    (value.is_empty() && !all)
                        || match map.get(key) {
                            Some(Node::Scalar(scalar)) => scalar.text == *value,
                            Some(_) => value.is_empty(),
                            None => false,
                        }
                })
            })
        })
    }

    /// Puts the target's elements behind what is in the new list, replacing those of the same keys.
    fn append(&self, new: &mut Vec<usize>, keys: &[Box<str>]) -> Result<(), MergeError> {
        for &at in &self.target {
            let mut values: Texts = Vec::with_capacity(keys.len());
            for key in keys {
                let field = match &self.nodes[at] {
                    Node::Map(map) => map.get(key),
                    other if other.is_null() => None,
                    _ => return Err(MergeError::Element { path: self.walk.here() }),
                };
                match field {
                    Some(Node::Scalar(scalar)) => values.push(scalar.text.clone()),
                    Some(_) => values.push("".into()),
                    None => new.push(at),
                }
            }
            if keys.len() > 1 {
                put(new, &self.nodes, keys, &values, None);
            }
            put(new, &self.nodes, keys, &values, Some(at));
        }
        Ok(())
    }
}

/// The nodes a list names; one that it names twice is copied.
fn take(nodes: Vec<Node>, list: &[usize]) -> Vec<Node> {
    let mut uses = vec![0_usize; nodes.len()];
    list.iter().for_each(|&at| uses[at] += 1);
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    list.iter()
        .filter_map(|&at| {
            uses[at] -= 1;
            if uses[at] == 0 {
                nodes[at].take()
            } else {
                nodes[at].clone()
            }
        })
        .collect()
}

/// Replaces the elements that match by `element`, or removes them; appends it when nothing matched.
fn put(list: &mut Vec<usize>, nodes: &[Node], keys: &[Box<str>], values: &[Box<str>], element: Option<usize>) {
    let mut matched = false;
    list.retain_mut(|at| match fate(&nodes[*at], keys, values) {
        Fate::Stays => true,
        Fate::Goes => false,
        Fate::Matches => {
            matched = true;
            if let Some(element) = element {
                *at = element;
            }
            element.is_some()
        }
    });
    if !matched && let Some(element) = element {
        list.push(element);
    }
}

/// Removes the elements that match.
pub(crate) fn remove(list: &mut Vec<Node>, key: &str, value: &str) {
    let (keys, values) = ([key.into()], [value.into()]);
    list.retain(|node| matches!(fate(node, &keys, &values), Fate::Stays));
}

enum Fate {
    Stays,
    Goes,
    Matches,
}

fn fate(node: &Node, keys: &[Box<str>], values: &[Box<str>]) -> Fate {
    let stays = match node {
        node if node.is_null() || is_empty_map(node) => false,
        Node::Map(map) if matches(map, keys, values) => return Fate::Matches,
        _ => !values.is_empty(),
    };
    if stays { Fate::Stays } else { Fate::Goes }
}

/// True when every key is there and has the text wanted, an empty one asking only for presence.
fn matches(map: &Map, keys: &[Box<str>], values: &[Box<str>]) -> bool {
    let mut last = false;
    for (i, key) in keys.iter().enumerate() {
        if let Some(value) = values.get(i) {
            last = match map.get(key) {
                None => false,
                Some(_) if value.is_empty() => true,
                Some(Node::Scalar(scalar)) => scalar.text == *value,
                Some(_) => false,
            };
        }
        if !last {
            return false;
        }
    }
    true
}

/// Elements that agree in some key and differ in none become the same tuple.
fn unite(tuples: &mut [Texts]) {
    for i in 0..tuples.len() {
        let first = tuples[i].clone();
        for j in 0..tuples.len() {
            if let Some(union) = union(&first, &tuples[j]) {
                tuples[i] = union.clone();
                tuples[j] = union;
            }
        }
    }
}

fn union(a: &[Box<str>], b: &[Box<str>]) -> Option<Texts> {
    let mut common = false;
    let mut union = Vec::with_capacity(a.len());
    for (x, y) in a.iter().zip(b) {
        if x == y {
            common = true;
        } else if !x.is_empty() && !y.is_empty() {
            return None;
        }
        union.push(if x.is_empty() { y.clone() } else { x.clone() });
    }
    common.then_some(union)
}

fn key_text<'m>(map: &'m Map, key: &str) -> &'m str {
    map.text(key).unwrap_or("")
}

fn is_empty_map(node: &Node) -> bool {
    matches!(node, Node::Map(map) if map.is_empty())
}

fn untyped(text: &str) -> Node {
    Node::Scalar(Scalar {
        text: text.into(),
        tag: Tag::Untyped,
        style: Style::Plain,
    })
}

/// The patch's values, then the target's others.
fn primitives(walk: &Merge<'_>, target: Vec<Node>, patch: Side) -> Result<Vec<Node>, MergeError> {
    let patch = match patch {
        Side::List(patch) => patch,
        Side::Absent | Side::Same => Vec::new(),
    };
    let mut seen = std::collections::HashSet::new();
    let mut merged = Vec::with_capacity(target.len() + patch.len());
    for node in patch.into_iter().chain(target) {
        match node {
            node if node.is_null() => {}
            Node::Scalar(scalar) => {
                if seen.insert(scalar.text.trim().to_owned()) {
                    merged.push(Node::Scalar(scalar));
                }
            }
            Node::Map(map) if map.is_empty() => {}
            _ => return Err(MergeError::Element { path: walk.here() }),
        }
    }
    Ok(merged)
}
