//! Field sets (`metadata.managedFields[].fieldsV1`): who owns what, as the API server keeps it.
//!
//! A set is a tree: `f:name` is a field, `k:{...}` an item of a list known by keys, `v:...` an item of a set, `.` the
//! node itself. A node without children is owned as a whole, such as a scalar or an atomic list.

use serde_json::{Map, Value};

use super::path::{Path, Step};

/// How much of a place is in a field set.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owned<'a> {
    No,
    /// This place and everything below it.
    Whole,
    Node(&'a Map<String, Value>),
}

impl<'a> Owned<'a> {
    fn of(node: Option<&'a Value>) -> Self {
        match node.and_then(Value::as_object) {
            None => Owned::No,
            Some(fields) if fields.keys().all(|key| key == ".") => Owned::Whole,
            Some(fields) => Owned::Node(fields),
        }
    }

    pub(super) fn field_of(fields: &'a Map<String, Value>, name: &str) -> Self {
        Owned::of(fields.get(&format!("f:{name}")))
    }

    pub(super) fn field(self, name: &str) -> Self {
        match self {
            Owned::Node(fields) => Owned::field_of(fields, name),
            other => other,
        }
    }

    pub(super) fn node(self) -> Option<&'a Map<String, Value>> {
        match self {
            Owned::Node(fields) => Some(fields),
            _ => None,
        }
    }
}

/// An entry of `managedFields`.
struct Entry<'a> {
    manager: &'a str,
    operation: &'a str,
    subresource: &'a str,
    time: &'a str,
    fields: &'a Map<String, Value>,
}

fn entries(live: &Value) -> impl DoubleEndedIterator<Item = Entry<'_>> {
    let list = live.pointer("/metadata/managedFields").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|entry| {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        Some(Entry {
            manager: text("manager"),
            operation: text("operation"),
            subresource: text("subresource"),
            time: text("time"),
            fields: entry.get("fieldsV1")?.as_object()?,
        })
    })
}

fn is_own(entry: &Entry<'_>, manager: &str) -> bool {
    entry.manager == manager && entry.operation == "Apply" && entry.subresource.is_empty()
}

/// The field set of our own apply.
pub(super) fn own_fields<'a>(live: &'a Value, manager: &str) -> Option<&'a Map<String, Value>> {
    entries(live)
        .find(|entry| is_own(entry, manager))
        .map(|entry| entry.fields)
}

/// The manager, other than our apply, that owns a place; the latest where there are several.
pub(super) fn other_owner(live: &Value, manager: &str, path: &Path<'_>) -> Option<String> {
    entries(live)
        .filter(|entry| !is_own(entry, manager) && owns(entry.fields, path))
        .max_by_key(|entry| entry.time)
        .map(|entry| entry.manager.to_owned())
}

/// True where a field set holds a place or something below it.
pub(super) fn owns(fields: &Map<String, Value>, path: &Path<'_>) -> bool {
    let mut here = Owned::Node(fields);
    for step in path.steps() {
        here = match (here, step) {
            (Owned::No, _) => return false,
            (Owned::Whole, _) => return true,
            (Owned::Node(fields), Step::Field(name)) => Owned::field_of(fields, name),
            (Owned::Node(fields), Step::Key(key)) => Owned::of(fields.get(*key)),
            (Owned::Node(fields), Step::Item(_, item)) => find_item(fields, item).map_or(Owned::No, |(_, owned)| owned),
        };
    }
    !matches!(here, Owned::No)
}

/// True for the field set of a list whose items are known one by one.
pub(super) fn is_keyed(fields: &Map<String, Value>) -> bool {
    fields.keys().any(|key| key.starts_with("k:") || key.starts_with("v:"))
}

/// What an item of a list is known by.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ItemKey {
    /// Values of its key fields.
    Fields(Map<String, Value>),
    /// Its own value.
    Value(Value),
}

impl ItemKey {
    fn parse(key: &str) -> Option<Self> {
        if let Some(fields) = key.strip_prefix("k:") {
            return serde_json::from_str(fields).ok().map(ItemKey::Fields);
        }
        let value = key.strip_prefix("v:")?;
        serde_json::from_str(value).ok().map(ItemKey::Value)
    }

    /// True for the item this key stands for. A key field the item leaves out was defaulted, so it matches.
    fn matches(&self, item: &Value) -> bool {
        match self {
            ItemKey::Value(value) => value == item,
            ItemKey::Fields(fields) => {
                item.is_object()
                    && fields
                        .iter()
                        .all(|(name, value)| item.get(name).is_none_or(|own| own == value))
            }
        }
    }

    pub(super) fn find_in<'v>(&self, list: &'v [Value]) -> Option<&'v Value> {
        list.iter().find(|item| self.matches(item))
    }
}

/// The entry of a list's field set that stands for an item.
pub(super) fn find_item<'a>(fields: &'a Map<String, Value>, item: &Value) -> Option<(ItemKey, Owned<'a>)> {
    fields.iter().find_map(|(key, node)| {
        let key = ItemKey::parse(key).filter(|key| key.matches(item))?;
        Some((key, Owned::of(Some(node))))
    })
}

/// Finds an item of a list that is in no field set, by the key fields its siblings are known by.
pub(super) fn find_sibling<'v>(fields: &Map<String, Value>, item: &Value, list: &'v [Value]) -> Option<&'v Value> {
    let keys = fields.keys().filter_map(|key| ItemKey::parse(key));
    let mut names = keys.filter_map(|key| match key {
        ItemKey::Fields(fields) => Some(fields.into_iter().map(|(name, _)| name).collect::<Vec<_>>()),
        ItemKey::Value(_) => None,
    });
    match names.next() {
        Some(names) => list.iter().find(|live| {
            names
                .iter()
                .all(|name| item.get(name).is_none_or(|own| live.get(name) == Some(own)))
        }),
        None => list.iter().find(|live| *live == item),
    }
}

/// One step down a field set: the path below and what is sent there. None for the node's own mark.
pub(super) fn step<'v, 'p>(
    key: &'p str,
    sent: Option<&'v Value>,
    path: &Path<'p>,
) -> Option<(Path<'p>, Option<&'v Value>)> {
    if let Some(name) = key.strip_prefix("f:") {
        let below = sent.and_then(|sent| sent.get(name)).filter(|value| !value.is_null());
        return Some((path.field(name), below));
    }
    let item = ItemKey::parse(key)?;
    let below = sent.and_then(Value::as_array).and_then(|list| item.find_in(list));
    Some((path.key(key), below))
}
