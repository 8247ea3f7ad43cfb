//! Merging lists whose elements are known by keys, and lists of primitives.

use super::merge::{Merge, MergeError, Patch};
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
    Lists {
        walk,
        target,
        patch,
        element,
        keys,
        deleted: 0,
    }
    .merge()
}

struct Lists<'w, 's> {
    walk: &'w mut Merge<'s>,
    target: Vec<Node>,
    patch: Side,
    element: Option<NodeId>,
    keys: &'w [Box<str>],
    /// Elements of the target the patch deletes.
    deleted: usize,
}

impl Lists<'_, '_> {
    fn merge(mut self) -> Result<Vec<Node>, MergeError> {
        let mut tuples: Vec<Texts> = Vec::new();
        if let Side::List(patch) = &self.patch {
            self.collect(patch, &mut tuples)?;
        }
        self.collect(&self.target, &mut tuples)?;
        if tuples.is_empty() {
            return Ok(self.target);
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
        let before = self.target.len();
        let mut new = Vec::with_capacity(before);
        for tuple in &tuples {
            let values: Texts = active.iter().map(|&k| tuple[k].clone()).collect();
            self.one(&keys, &values, &mut new)?;
        }
        append(&mut new, self.target, &keys, &self.walk.here())?;
        if new.len() + self.deleted < before {
            let here = self.walk.here();
            self.walk.lost.push(here);
        }
        Ok(new)
    }

    fn collect(&self, list: &[Node], tuples: &mut Vec<Texts>) -> Result<(), MergeError> {
        for node in list {
            let map = match node {
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
    fn one(&mut self, keys: &[Box<str>], values: &[Box<str>], new: &mut Vec<Node>) -> Result<(), MergeError> {
        let at = pick(&self.target, keys, values);
        let patch = match &self.patch {
            Side::Absent => Patch::Absent,
            Side::Same => Patch::Same,
            Side::List(list) => match pick(list, keys, values) {
                Some(at) => Patch::Node(list[at].clone()),
                None => Patch::Absent,
            },
        };
        let directive = match (&patch, at) {
            (Patch::Node(Node::Map(map)), _) => map.text("$patch"),
            (Patch::Same, Some(at)) => self.target[at].as_map().and_then(|map| map.text("$patch")),
            _ => None,
        };
        if directive == Some("delete") {
            // A deletion that finds nothing by all its keys leaves the element, without the directive.
            if let (Patch::Same, Some(Node::Map(map))) = (&patch, at.map(|at| &mut self.target[at])) {
                map.remove("$patch");
            }
            self.deleted += usize::from(at.is_some());
            put(&mut self.target, keys, values, None);
            return Ok(());
        }
        // The reference changes the target's element in place, except where a directive swaps it for the patch's.
        let swapped = directive == Some("replace") && matches!(patch, Patch::Node(_));
        let old = match at {
            Some(at) if swapped => Some(self.target[at].clone()),
            Some(at) => Some(std::mem::replace(&mut self.target[at], Node::null())),
            None => None,
        };
        let patch = if at.is_none() && matches!(patch, Patch::Same) {
            Patch::Absent
        } else {
            patch
        };
        let merged = self.walk.walk(old, patch, self.element)?;
        let Some(mut merged) = merged.filter(|node| !node.is_null() && !is_empty_map(node)) else {
            put(&mut self.target, keys, values, None);
            return Ok(());
        };
        if let Node::Map(map) = &mut merged {
            for (key, value) in keys.iter().zip(values) {
                if !map.contains(key) && !value.is_empty() {
                    map.set(&**key, untyped(value));
                }
            }
        }
        match at {
            Some(at) if !swapped => {
                let stand_in = stand_in(&merged, keys).unwrap_or_else(|| merged.clone());
                self.target[at] = merged;
                put(new, keys, values, Some(stand_in));
            }
            _ => put(new, keys, values, Some(merged)),
        }
        Ok(())
    }
}

/// The keys of an element, enough to hold its place until the element itself is put there; `None` when it lacks
/// one, so that it might not find its place again.
fn stand_in(element: &Node, keys: &[Box<str>]) -> Option<Node> {
    let map = element.as_map()?;
    let entries: Option<Vec<_>> = keys
        .iter()
        .map(|key| match map.get(key) {
            Some(Node::Scalar(scalar)) if !scalar.text.is_empty() => {
                Some((key.as_ref().into(), Node::Scalar(scalar.clone())))
            }
            _ => None,
        })
        .collect();
    entries.map(|entries| Node::Map(Map::from_entries(entries)))
}

/// Puts the target's elements behind what is in the new list, replacing those of the same keys.
fn append(new: &mut Vec<Node>, target: Vec<Node>, keys: &[Box<str>], path: &str) -> Result<(), MergeError> {
    for node in target {
        let mut values: Texts = Vec::with_capacity(keys.len());
        for key in keys {
            let field = match &node {
                Node::Map(map) => map.get(key),
                other if other.is_null() => None,
                _ => return Err(MergeError::Element { path: path.to_owned() }),
            };
            match field {
                Some(Node::Scalar(scalar)) => values.push(scalar.text.clone()),
                Some(_) => values.push("".into()),
                None => new.push(node.clone()),
            }
        }
        if keys.len() > 1 {
            put(new, keys, &values, None);
        }
        put(new, keys, &values, Some(node));
    }
    Ok(())
}

/// Replaces the elements that match by `element`, or removes them; appends it when nothing matched.
pub(crate) fn put(list: &mut Vec<Node>, keys: &[Box<str>], values: &[Box<str>], element: Option<Node>) {
    let by_mapping = values.first().is_some_and(|v| !v.is_empty());
    let mut matched = false;
    list.retain_mut(|node| {
        if node.is_null() || is_empty_map(node) {
            return false;
        }
        let Node::Map(map) = &*node else {
            return by_mapping || !values.is_empty();
        };
        if !matches(map, keys, values) {
            return !values.is_empty();
        }
        matched = true;
        match &element {
            Some(element) => {
                *node = element.clone();
                true
            }
            None => false,
        }
    });
    if !matched && let Some(element) = element {
        list.push(element);
    }
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

/// Index of the first element whose fields equal the values that are not empty, or all where all are empty.
fn pick(list: &[Node], keys: &[Box<str>], values: &[Box<str>]) -> Option<usize> {
    let filled: Vec<(&Box<str>, &Box<str>)> = keys.iter().zip(values).filter(|(_, v)| !v.is_empty()).collect();
    let wanted = if filled.is_empty() {
        keys.iter().zip(values).collect()
    } else {
        filled
    };
    list.iter().position(|node| {
        node.as_map().is_some_and(|map| {
            wanted.iter().all(|(key, value)| match map.get(key) {
                Some(Node::Scalar(scalar)) => scalar.text == **value,
                Some(_) => value.is_empty(),
                None => false,
            })
        })
    })
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
