//! Drift: does a live object still say what we sent, and if not, who changed it?
//!
//! [`compare`] answers from one read: a field that somebody else wrote is no longer in the field set that the API
//! server keeps for our apply, so ownership and value are looked at together. It errs on the side of "differs": the
//! caller then asks the server with a dry run, and [`differences`] says what that would change. Only fields we send
//! count; what the server or others add beside them does not.

mod ignore;
mod loops;
mod managed;
mod path;
mod quantity;

use std::fmt;

use serde_json::{Map, Value};

use managed::Owned;
use path::Path;

pub use ignore::{IgnoreError, IgnoreRule, IgnoreTarget, object_to_send};
pub use loops::{DriftLoop, DriftLoops, LOOP_PASSES};
pub use quantity::same_quantity;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// JSON pointer into the object that is sent, `/spec/replicas`; it can be used in an ignore rule. Never a value.
    pub path: String,
    pub kind: ChangeKind,
    /// The field manager that wrote it last, where the server knows.
    pub manager: Option<String>,
}

/// How a field differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The live value is another one.
    Changed,
    /// We send it, and it is not there.
    Missing,
    /// It is there as we send it, but no longer ours.
    NotOwned,
    /// It is ours, and we do not send it any more.
    Surplus,
    /// It is there, and an apply would take it away.
    Added,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ChangeKind::Changed => "was changed",
            ChangeKind::Missing => "was removed",
            ChangeKind::NotOwned => "was taken over",
            ChangeKind::Surplus => "is no longer wanted",
            ChangeKind::Added => "was added",
        };
        write!(f, "{} {what}", self.path)?;
        match &self.manager {
            Some(manager) => write!(f, " by {manager}"),
            None => Ok(()),
        }
    }
}

/// Fields of `metadata` that an author can want; the server keeps the others.
const WANTED_METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// Compares what we send with the live object as read (with `metadata.managedFields`), in which we apply as `manager`.
/// Empty means: nothing to do.
pub fn compare(desired: &Value, live: &Value, manager: &str) -> Vec<Change> {
    // An entry that lost its last field is gone from the object.
    let nothing = Map::new();
    let ours = managed::own_fields(live, manager).unwrap_or(&nothing);
    let mut comparison = Comparison {
        desired,
        live,
        manager,
        changes: Vec::new(),
    };
    for (path, desired, live, owned) in comparison.parts(ours) {
        comparison.value(&path, desired, live, owned);
        if let Owned::Node(fields) = owned {
            comparison.surplus(&path, Some(desired), fields);
        }
    }
    comparison.lost_parts(ours);
    comparison.changes
}

struct Comparison<'a> {
    desired: &'a Value,
    live: &'a Value,
    manager: &'a str,
    changes: Vec<Change>,
}

/// A part of an object that is compared: its path, both sides and our field set.
type Part<'a> = (Path<'a>, &'a Value, Option<&'a Value>, Owned<'a>);

impl<'a> Comparison<'a> {
    /// The top-level fields but identity and status, and the wanted parts of `metadata`.
    fn parts(&self, ours: &'a Map<String, Value>) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        let (desired, live) = (self.desired, self.live);
        for (key, value) in desired.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
                parts.push((
                    Path::root().field(key),
                    value,
                    live.get(key),
                    Owned::field_of(ours, key),
                ));
            }
        }
        let metadata = Owned::field_of(ours, "metadata");
        for key in WANTED_METADATA {
            if let Some(value) = desired.get("metadata").and_then(|metadata| metadata.get(key)) {
                let live = live.get("metadata").and_then(|metadata| metadata.get(key));
                parts.push((
                    Path::root().field("metadata").field(key),
                    value,
                    live,
                    metadata.field(key),
                ));
            }
        }
        parts
    }

    /// What is ours at the top and is not sent any more.
    fn lost_parts(&mut self, ours: &Map<String, Value>) {
        for (parent, fields) in [
            (Path::root(), Some(ours)),
            (Path::root().field("metadata"), Owned::field_of(ours, "metadata").node()),
        ] {
            let sent = parent.find(self.desired);
            let names = fields
                .into_iter()
                .flatten()
                .filter_map(|(key, _)| key.strip_prefix("f:"));
            for name in names.filter(|&name| name != "metadata" && name != "status") {
                if sent.and_then(|sent| sent.get(name)).is_none() {
                    self.report(&parent.field(name), ChangeKind::Surplus);
                }
            }
        }
    }

    fn report(&mut self, path: &Path<'_>, kind: ChangeKind) {
        let manager = match kind {
            ChangeKind::Surplus => None,
            _ => managed::other_owner(self.live, self.manager, path),
        };
        self.changes.push(Change {
            path: path.to_string(),
            kind,
            manager,
        });
    }

    fn value(&mut self, path: &Path<'a>, desired: &'a Value, live: Option<&'a Value>, owned: Owned<'a>) {
        let live = live.filter(|value| !value.is_null());
        if desired.is_null() {
            return;
        }
        let Some(live) = live else {
            // A server leaves zero values of optional fields out, but keeps them in our field set.
            if matches!(owned, Owned::No) || !is_zero(desired) {
                self.report(path, ChangeKind::Missing);
            }
            return;
        };
        if matches!(owned, Owned::No) {
            let same = is_covered(desired, live, path, self.desired);
            let kind = if same {
                ChangeKind::NotOwned
            } else {
                ChangeKind::Changed
            };
            return self.report(path, kind);
        }
        match (desired, live) {
            (Value::Object(desired), Value::Object(live)) => {
                for (key, value) in desired {
                    self.value(&path.field(key), value, live.get(key), owned.field(key));
                }
            }
            (Value::Array(desired), Value::Array(live)) => self.list(path, desired, live, owned),
            _ if same_scalar(desired, live, path, self.desired) => {}
            _ => self.report(path, ChangeKind::Changed),
        }
    }

    fn list(&mut self, path: &Path<'a>, desired: &'a [Value], live: &'a [Value], owned: Owned<'a>) {
        let Some(fields) = owned.node().filter(|fields| managed::is_keyed(fields)) else {
            return self.atomic_list(path, desired, live);
        };
        for (index, item) in desired.iter().enumerate() {
            let path = path.item(index, item);
            match managed::find_item(fields, item) {
                Some((key, owned)) => self.value(&path, item, key.find_in(live), owned),
                None => {
                    let live = managed::find_sibling(fields, item, live);
                    self.value(&path, item, live, Owned::No);
                }
            }
        }
    }

    fn atomic_list(&mut self, path: &Path<'a>, desired: &'a [Value], live: &'a [Value]) {
        if desired.len() != live.len() {
            return self.report(path, ChangeKind::Changed);
        }
        for (index, (item, live)) in desired.iter().zip(live).enumerate() {
            self.value(&path.item(index, item), item, Some(live), Owned::Whole);
        }
    }

    /// Reports what is in our field set and not in what we send.
    fn surplus(&mut self, path: &Path<'_>, desired: Option<&Value>, fields: &Map<String, Value>) {
        for (key, child) in fields {
            let (path, sent) = match managed::step(key, desired, path) {
                Some(found) => found,
                None => continue,
            };
            match (sent, child.as_object()) {
                (None, _) => self.report(&path, ChangeKind::Surplus),
                (Some(sent), Some(child)) => self.surplus(&path, Some(sent), child),
                (Some(_), None) => {}
            }
        }
    }
}

/// True where everything of `desired` is in `live`.
fn is_covered(desired: &Value, live: &Value, path: &Path<'_>, object: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(key, value)| {
            let path = path.field(key);
            match live.get(key) {
                Some(live) => is_covered(value, live, &path, object),
                None => is_zero(value),
            }
        }),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len()
                && desired
                    .iter()
                    .zip(live)
                    .enumerate()
                    .all(|(index, (item, live))| is_covered(item, live, &path.item(index, item), object))
        }
        _ => same_scalar(desired, live, path, object),
    }
}

/// What a dry run would change: the live object against the server's answer. Compares labels, annotations and all but
/// `metadata` and `status`; null and absent are the same (an empty map is not: it can mean "everything" in a selector),
/// quantities are compared by value (run 16.3).
pub fn differences(live: &Value, planned: &Value, manager: &str) -> Vec<Change> {
    let mut difference = Difference {
        live,
        manager,
        changes: Vec::new(),
    };
    let empty = Map::new();
    let live_fields = live.as_object().unwrap_or(&empty);
    let planned_fields = planned.as_object().unwrap_or(&empty);
    let keys = live_fields
        .keys()
        .chain(planned_fields.keys().filter(|key| !live_fields.contains_key(*key)));
    for key in keys.filter(|key| !matches!(key.as_str(), "metadata" | "status")) {
        difference.walk(&Path::root().field(key), live.get(key), planned.get(key));
    }
    for key in ["labels", "annotations"] {
        let path = Path::root().field("metadata").field(key);
        difference.walk(&path, path.find(live), path.find(planned));
    }
    difference.changes
}

struct Difference<'a> {
    live: &'a Value,
    manager: &'a str,
    changes: Vec<Change>,
}

impl<'a> Difference<'a> {
    fn report(&mut self, path: &Path<'_>, kind: ChangeKind) {
        self.changes.push(Change {
            path: path.to_string(),
            kind,
            manager: managed::other_owner(self.live, self.manager, path),
        });
    }

    fn walk(&mut self, path: &Path<'a>, live: Option<&'a Value>, planned: Option<&'a Value>) {
        let present = |value: Option<&'a Value>| value.filter(|value| !value.is_null());
        match (present(live), present(planned)) {
            (None, None) => {}
            (None, Some(_)) => self.report(path, ChangeKind::Missing),
            (Some(_), None) => self.report(path, ChangeKind::Added),
            (Some(Value::Object(live)), Some(Value::Object(planned))) => {
                for (key, value) in live {
                    self.walk(&path.field(key), Some(value), planned.get(key));
                }
                for (key, value) in planned.iter().filter(|(key, _)| !live.contains_key(*key)) {
                    self.walk(&path.field(key), None, Some(value));
                }
            }
            (Some(Value::Array(live)), Some(Value::Array(planned))) => self.lists(path, live, planned),
            (Some(live), Some(planned)) if same_scalar(live, planned, path, self.live) => {}
            _ => self.report(path, ChangeKind::Changed),
        }
    }

    fn lists(&mut self, path: &Path<'a>, live: &'a [Value], planned: &'a [Value]) {
        // Old API servers answer a dry run of an autoscaler with its metrics twice.
        let metrics = self.live.get("kind").and_then(Value::as_str) == Some("HorizontalPodAutoscaler")
            && path.to_string() == "/spec/metrics";
        let planned: Vec<&Value> = if metrics {
            without_repeats(planned)
        } else {
            planned.iter().collect()
        };
        let live: Vec<&Value> = if metrics {
            without_repeats(live)
        } else {
            live.iter().collect()
        };
        if live.len() != planned.len() {
            return self.report(path, ChangeKind::Changed);
        }
        for (index, (live, planned)) in live.into_iter().zip(planned).enumerate() {
            self.walk(&path.item(index, planned), Some(live), Some(planned));
        }
    }
}

fn without_repeats(list: &[Value]) -> Vec<&Value> {
    let mut kept: Vec<&Value> = Vec::new();
    for item in list {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// Empty, or a scalar that a typed server may leave out when it writes the object back.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
    }
}

/// Equality of scalars: numbers by value, quantities by value where the field is one.
fn same_scalar(left: &Value, right: &Value, path: &Path<'_>, object: &Value) -> bool {
    if left == right {
        return true;
    }
    if let (Value::Number(left), Value::Number(right)) = (left, right) {
        return left.as_f64() == right.as_f64() && !(left.is_i64() && right.is_i64());
    }
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    path.holds_quantity(kind) && quantity::same_value(left, right)
}

#[cfg(test)]
mod ignore_tests;
#[cfg(test)]
mod tests;
