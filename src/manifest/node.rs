//! The compact tree the engine works on. It keeps what a `serde_json::Value` cannot: the text of every
//! scalar and how it was written, which decides types after replacements, annotation values and the
//! difference between `a:` and `a: null`.

use std::sync::Arc;

use serde_json::{Number, Value};

use super::yaml::plain;
use super::yaml::scalar::{self, Resolved};

/// A mapping key. Keys repeat in every object, so one build shares their text.
pub type Key = Arc<str>;

/// What a scalar's type is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// Plain text whose type its own text decides.
    Untyped,
    /// Text.
    Str,
    /// Integer.
    Int,
    /// Floating point.
    Float,
    /// Boolean.
    Bool,
    /// Null; empty text means it was written as nothing at all.
    Null,
    /// Unquoted date, which the reference rewrites in RFC 3339 form.
    Timestamp,
}

/// How a scalar was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// `'text'`.
    Single,
    /// `"text"`.
    Double,
    /// `|` block.
    Block,
    /// `>` block.
    Folded,
}

/// A leaf of the tree.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// The text after escapes.
    pub text: Box<str>,
    /// Its type.
    pub tag: Tag,
    /// Its notation.
    pub style: Style,
}

/// A mapping in the order it was written.
#[derive(Debug, Clone, Default)]
pub struct Map {
    entries: Vec<(Key, Node)>,
}

/// A YAML node.
#[derive(Debug, Clone)]
pub enum Node {
    /// A leaf.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping.
    Map(Map),
}

/// A scalar whose text does not fit its declared type (`v1` copied into an integer field).
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{path}: cannot read {text:?} as {expected}")]
pub struct TypeMismatch {
    /// Where, as dotted path.
    pub path: String,
    /// The text found.
    pub text: String,
    /// The type it should have.
    pub expected: &'static str,
}

impl Scalar {
    /// A string scalar, in quotes where its text would be taken for something else.
    pub fn string(text: impl Into<Box<str>>) -> Self {
        let mut scalar = Self {
            text: text.into(),
            tag: Tag::Str,
            style: Style::Plain,
        };
        scalar.quote_ambiguous();
        scalar
    }

    /// Puts a text in quotes that would be taken for something else, as the reference does where it sets a field. The
    /// quotes stay when a later value takes the text's place.
    pub(crate) fn quote_ambiguous(&mut self) {
        if self.tag == Tag::Str && self.style == Style::Plain && plain::is_ambiguous(&self.text) {
            self.style = Style::Double;
        }
    }

    /// True when the text itself is the value, whatever it looks like. Quotes make a text of what fits its type, as
    /// when a patch puts a number where a quoted text was: the reference then writes the quotes without the type.
    fn is_text(&self) -> bool {
        match self.tag {
            Tag::Str => true,
            _ if self.style == Style::Plain => false,
            Tag::Untyped => true,
            tag => tag == Tag::of(&scalar::resolve(&self.text, scalar::Dialect::Core)),
        }
    }

    /// The same notation with other text whose type the text decides, as the reference sets scalars.
    pub fn set_untyped(&mut self, text: impl Into<Box<str>>) {
        self.text = text.into();
        self.tag = Tag::Untyped;
    }

    /// True for every form of null.
    pub fn is_null(&self) -> bool {
        match self.tag {
            Tag::Null => true,
            Tag::Untyped if self.style != Style::Plain => false,
            Tag::Untyped => matches!(scalar::resolve(&self.text, scalar::Dialect::Core), Resolved::Null),
            _ => false,
        }
    }

    /// The value this scalar stands for.
    ///
    /// # Errors
    /// When the text does not fit the tag; the message lacks the path, which the caller knows.
    pub fn value(&self) -> Result<Value, &'static str> {
        if self.is_text() {
            return Ok(Value::String(plain::rewritten(&self.text, self.style).into_owned()));
        }
        let resolved = scalar::resolve(&self.text, scalar::Dialect::Core);
        let fits = match self.tag {
            Tag::Untyped | Tag::Str => true,
            Tag::Int => matches!(resolved, Resolved::Int(_) | Resolved::UInt(_)),
            Tag::Float => matches!(resolved, Resolved::Float(_) | Resolved::Int(_) | Resolved::UInt(_)),
            Tag::Bool => matches!(resolved, Resolved::Bool(_)),
            Tag::Null => matches!(resolved, Resolved::Null),
            Tag::Timestamp => matches!(resolved, Resolved::Timestamp),
        };
        if !fits {
            return Err(self.tag.name());
        }
        resolved_value(&resolved, &self.text)
    }
}

impl Tag {
    fn of(resolved: &Resolved) -> Self {
        match resolved {
            Resolved::Null => Self::Null,
            Resolved::Bool(_) => Self::Bool,
            Resolved::Int(_) | Resolved::UInt(_) => Self::Int,
            Resolved::Float(_) => Self::Float,
            Resolved::Timestamp => Self::Timestamp,
            Resolved::Str => Self::Str,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Untyped => "a scalar",
            Self::Str => "a string",
            Self::Int => "an integer",
            Self::Float => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
            Self::Timestamp => "a timestamp",
        }
    }
}

/// The JSON value of resolved text. Integral floats below 2^53 become integers, as Go prints them.
pub(super) fn resolved_value(resolved: &Resolved, text: &str) -> Result<Value, &'static str> {
    Ok(match resolved {
        Resolved::Null => Value::Null,
        Resolved::Bool(b) => Value::Bool(*b),
        Resolved::Int(i) => Value::Number((*i).into()),
        Resolved::UInt(u) => Value::Number((*u).into()),
        Resolved::Float(f) => float_value(*f)?,
        Resolved::Timestamp => Value::String(scalar::rfc3339(text).unwrap_or_else(|| text.to_owned())),
        Resolved::Str => Value::String(text.to_owned()),
    })
}

fn float_value(f: f64) -> Result<Value, &'static str> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if f.fract() == 0.0 && f.abs() < EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "integral and below 2^53")]
        return Ok(Value::Number((f as i64).into()));
    }
    Number::from_f64(f).map(Value::Number).ok_or("a finite number")
}

impl Map {
    /// An empty mapping.
    pub fn new() -> Self {
        Self::default()
    }

    /// A mapping of these entries; keys must be distinct.
    pub fn from_entries(entries: Vec<(Key, Node)>) -> Self {
        Self { entries }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|(k, _)| &**k == key).map(|(_, v)| v)
    }

    /// The value of a key, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|(k, _)| &**k == key).map(|(_, v)| v)
    }

    /// Position of a key.
    pub fn position(&self, key: &str) -> Option<usize> {
        self.entries.iter().position(|(k, _)| &**k == key)
    }

    /// The value at a position.
    pub fn at_mut(&mut self, index: usize) -> &mut Node {
        &mut self.entries[index].1
    }

    /// The entry at a position, the value to change.
    pub fn entry_at_mut(&mut self, index: usize) -> (&Key, &mut Node) {
        let (key, node) = &mut self.entries[index];
        (key, node)
    }

    /// True when the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a key, keeping its place when it exists.
    pub fn set(&mut self, key: impl AsRef<str> + Into<Key>, value: Node) {
        match self.get_mut(key.as_ref()) {
            Some(slot) => *slot = value,
            None => self.push(key.into(), value),
        }
    }

    /// Appends an entry whose key is known to be new.
    pub fn push(&mut self, key: Key, value: Node) {
        // Most mappings are small and get one entry or two: doubling would leave half of the memory unused.
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(1 + self.entries.len() / 4);
        }
        self.entries.push((key, value));
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let at = self.position(key)?;
        Some(self.entries.remove(at).1)
    }

    /// The value of a key, inserted when absent.
    pub fn entry_or_insert(&mut self, key: &str, make: impl FnOnce() -> Node) -> &mut Node {
        let at = match self.position(key) {
            Some(at) => at,
            None => {
                self.push(Key::from(key), make());
                self.entries.len() - 1
            }
        };
        &mut self.entries[at].1
    }

    /// Entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Node)> {
        self.entries.iter().map(|(k, v)| (k, v))
    }

    /// Entries in order, values to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Node)> {
        self.entries.iter_mut().map(|(k, v)| (&*k, v))
    }

    /// Keeps the entries the test accepts.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Node) -> bool) {
        self.entries.retain_mut(|(k, v)| keep(k, v));
    }

    /// The entries themselves.
    pub fn into_entries(self) -> Vec<(Key, Node)> {
        self.entries
    }

    /// Sorts entries by key, bytewise.
    pub fn sort(&mut self) {
        self.entries.sort_by(|a, b| a.0.cmp(&b.0));
    }

    /// Text of a string-like scalar under a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Node::text)
    }
}

impl Node {
    /// A string node.
    pub fn string(text: impl Into<Box<str>>) -> Self {
        Self::Scalar(Scalar::string(text))
    }

    /// Sets the text of a scalar, which then decides its type; anything else becomes a plain scalar.
    pub(crate) fn set_untyped(&mut self, text: &str) {
        match self {
            Self::Scalar(scalar) => scalar.set_untyped(text),
            other => {
                *other = Self::Scalar(Scalar {
                    text: text.into(),
                    tag: Tag::Untyped,
                    style: Style::Plain,
                });
            }
        }
    }

    /// A null node written as `null`.
    pub fn null() -> Self {
        Self::Scalar(Scalar {
            text: "null".into(),
            tag: Tag::Null,
            style: Style::Plain,
        })
    }

    /// A mark for "to be removed" while a mapping is rebuilt; never part of a finished tree.
    pub(crate) fn removed() -> Self {
        Self::Scalar(Scalar {
            text: "\0removed".into(),
            tag: Tag::Null,
            style: Style::Block,
        })
    }

    /// True for the mark.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self, Self::Scalar(s) if s.tag == Tag::Null && s.style == Style::Block && &*s.text == "\0removed")
    }

    /// An empty mapping.
    pub fn map() -> Self {
        Self::Map(Map::new())
    }

    /// True for a null scalar of any notation.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Scalar(s) if s.is_null())
    }

    /// True for null, `{}` and `[]`.
    pub fn is_null_or_empty(&self) -> bool {
        match self {
            Self::Scalar(s) => s.is_null(),
            Self::Seq(items) => items.is_empty(),
            Self::Map(map) => map.is_empty(),
        }
    }

    /// The mapping, if it is one.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The mapping, to change it.
    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The list, if it is one.
    pub fn as_seq(&self) -> Option<&[Node]> {
        match self {
            Self::Seq(items) => Some(items),
            _ => None,
        }
    }

    /// The scalar, if it is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match self {
            Self::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The text of a scalar that is not null.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Scalar(s) if !s.is_null() => Some(&s.text),
            _ => None,
        }
    }

    /// The node below a chain of mapping keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.as_map()?.get(key))
    }

    /// What this node is, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Scalar(s) if s.is_null() => "null",
            Self::Scalar(_) => "a scalar",
            Self::Seq(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }

    /// Forgets notations that would change a value when it is written and read again.
    pub(crate) fn settle(&mut self) {
        match self {
            Self::Scalar(scalar) if scalar.tag == Tag::Null => scalar.style = Style::Plain,
            Self::Scalar(scalar) if scalar.style == Style::Folded => scalar.style = Style::Block,
            Self::Scalar(_) => {}
            Self::Seq(items) => items.iter_mut().for_each(Self::settle),
            Self::Map(map) => map.iter_mut().for_each(|(_, value)| value.settle()),
        }
    }

    /// The JSON value, consuming the tree so that memory is given back on the way.
    ///
    /// # Errors
    /// A scalar that does not fit its type.
    pub fn into_value(self) -> Result<Value, TypeMismatch> {
        self.convert(&mut Vec::new())
    }

    /// The JSON value of a copy.
    ///
    /// # Errors
    /// A scalar that does not fit its type.
    pub fn to_value(&self) -> Result<Value, TypeMismatch> {
        self.clone().into_value()
    }

    fn convert(self, path: &mut Vec<Key>) -> Result<Value, TypeMismatch> {
        match self {
            Self::Scalar(s) if s.tag == Tag::Str && s.style != Style::Folded => Ok(Value::String(s.text.into_string())),
            Self::Scalar(s) => s.value().map_err(|expected| TypeMismatch {
                path: path.join("."),
                text: s.text.to_string(),
                expected,
            }),
            Self::Seq(items) => {
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    out.push(item.convert(path)?);
                }
                Ok(Value::Array(out))
            }
            Self::Map(map) => {
                let mut out = serde_json::Map::with_capacity(map.len());
                for (key, value) in map.into_entries() {
                    path.push(key.clone());
                    let value = value.convert(path)?;
                    path.pop();
                    out.insert(key.to_string(), value);
                }
                Ok(Value::Object(out))
            }
        }
    }

    /// The tree of a JSON value; numbers keep their JSON text.
    pub fn from_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::null(),
            Value::Bool(b) => Self::Scalar(Scalar {
                text: if *b { "true".into() } else { "false".into() },
                tag: Tag::Bool,
                style: Style::Plain,
            }),
            Value::Number(n) => Self::Scalar(Scalar {
                text: n.to_string().into(),
                tag: if n.is_f64() { Tag::Float } else { Tag::Int },
                style: Style::Plain,
            }),
            Value::String(s) => Self::Scalar(Scalar {
                text: s.as_str().into(),
                tag: Tag::Str,
                style: plain::style(s),
            }),
            Value::Array(items) => Self::Seq(items.iter().map(Self::from_value).collect()),
            Value::Object(map) => Self::Map(Map {
                entries: map
                    .iter()
                    .map(|(k, v)| (Key::from(k.as_str()), Self::from_value(v)))
                    .collect(),
            }),
        }
    }
}
