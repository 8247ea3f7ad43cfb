//! Parser events to nodes: tags, anchors, merge keys, bounds.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag as YamlTag};

use super::scalar::{self, Dialect, Resolved};
use super::{Duplicates, Error, Loader, Mode, Problem};
use crate::manifest::node::{Key, Map, Node, Scalar, Style, Tag};

const CORE: &str = "tag:yaml.org,2002:";
/// Above this size a set finds duplicates; below, a scan is faster.
const SCAN: usize = 16;

pub(super) struct Composer<'l, 'i> {
    loader: &'l mut Loader,
    parser: Parser<'i, StrInput<'i>>,
    file: &'i str,
    first_line: usize,
    line: usize,
    nodes: usize,
    /// Flow collections that are open.
    flow: usize,
    anchors: HashMap<usize, Anchor>,
}

/// A finished anchored node and what a copy of it costs.
struct Anchor {
    node: Option<Node>,
    nodes: usize,
    bytes: usize,
}

/// A mapping key as read.
enum KeyText {
    Plain(Key),
    Merge,
}

impl<'l, 'i> Composer<'l, 'i> {
    pub(super) fn new(loader: &'l mut Loader, text: &'i str, file: &'i str, first_line: usize) -> Self {
        let depth = loader.limits.depth;
        let options = granit_parser::options! {
            emit_comments: false,
            block_scalar_eof_without_line_feed: true,
            block_nesting_limit: depth,
            flow_nesting_limit: depth,
        };
        Self {
            loader,
            parser: Parser::new_from_str_with_options(text, options),
            file,
            first_line,
            line: first_line,
            nodes: 0,
            flow: 0,
            anchors: HashMap::new(),
        }
    }

    /// The next document, `None` at the end of the stream.
    pub(super) fn next_document(&mut self) -> Result<Option<Node>, Error> {
        loop {
            match self.next()? {
                None | Some((Event::StreamEnd, _)) => return Ok(None),
                Some((Event::DocumentStart(..), _)) => {
                    self.anchors.clear();
                    self.nodes = 0;
                    let (event, span) = self.must()?;
                    return self.node(event, span, 0).map(Some);
                }
                Some(_) => {}
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Event<'i>, Span)>, Error> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok((event, span))) => {
                self.line = self.first_line + span.start.line().saturating_sub(1);
                Ok(Some((event, span)))
            }
            Some(Err(e)) => {
                self.line = self.first_line + e.marker().line().saturating_sub(1);
                Err(self.error(Problem::Syntax(e.kind().to_string())))
            }
        }
    }

    fn must(&mut self) -> Result<(Event<'i>, Span), Error> {
        match self.next()? {
            Some(found) => Ok(found),
            None => Err(self.error(Problem::Syntax("the document ends early".to_owned()))),
        }
    }

    fn error(&self, problem: Problem) -> Error {
        Error {
            file: self.file.to_owned(),
            line: self.line,
            problem,
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), Error> {
        self.nodes += nodes;
        let limit = self.loader.limits.nodes;
        if self.nodes > limit {
            return Err(self.error(Problem::TooManyNodes(limit)));
        }
        self.loader.nodes_left = self.loader.nodes_left.saturating_sub(nodes);
        if self.loader.is_exhausted() {
            return Err(self.error(Problem::TooManyInAll(self.loader.limits.all_nodes)));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'i>, span: Span, depth: usize) -> Result<Node, Error> {
        self.count(1)?;
        let before = self.nodes;
        let (anchor, node) = match event {
            Event::Alias(id) => return self.alias(id),
            Event::Scalar(text, style, anchor, tag) => {
                let text = as_written(text, style, &span);
                (anchor, Node::Scalar(self.scalar(text, style, tag.as_deref())?))
            }
            Event::SequenceStart(style, anchor, _) => {
                let flow = self.open(anchor, depth, style)?;
                let items = self.sequence(depth + 1)?;
                self.flow -= flow;
                (anchor, Node::Seq(items))
            }
            Event::MappingStart(style, anchor, _) => {
                let flow = self.open(anchor, depth, style)?;
                let map = self.mapping(depth + 1)?;
                self.flow -= flow;
                (anchor, Node::Map(map))
            }
            _ => return Err(self.error(Problem::Syntax(format!("unexpected {:?}", span.start)))),
        };
        if anchor != 0 {
            let kept = Anchor {
                bytes: text_bytes(&node),
                nodes: self.nodes - before + 1,
                node: Some(node.clone()),
            };
            self.anchors.insert(anchor, kept);
        }
        Ok(node)
    }

    /// Enters a collection; what it adds to the count of flow collections.
    fn open(&mut self, anchor: usize, depth: usize, style: StructureStyle) -> Result<usize, Error> {
        let limit = self.loader.limits.depth;
        if depth >= limit {
            return Err(self.error(Problem::TooDeep(limit)));
        }
        if anchor != 0 {
            self.anchors.insert(
                anchor,
                Anchor {
                    node: None,
                    nodes: 0,
                    bytes: 0,
                },
            );
        }
        let flow = usize::from(matches!(style, StructureStyle::Flow));
        self.flow += flow;
        Ok(flow)
    }

    fn alias(&mut self, id: usize) -> Result<Node, Error> {
        let Some(anchor) = self.anchors.get(&id) else {
            return Err(self.error(Problem::Syntax("unknown alias".to_owned())));
        };
        let Some(node) = &anchor.node else {
            return Err(self.error(Problem::RecursiveAlias));
        };
        let (nodes, bytes) = (anchor.nodes, anchor.bytes);
        if nodes > self.loader.alias_nodes_left {
            return Err(self.error(Problem::TooManyNodes(self.loader.limits.nodes)));
        }
        if bytes > self.loader.alias_bytes_left {
            return Err(self.error(Problem::AliasesTooLarge(self.loader.limits.alias_bytes)));
        }
        let node = node.clone();
        self.loader.alias_nodes_left -= nodes;
        self.loader.alias_bytes_left -= bytes;
        self.count(nodes)?;
        Ok(node)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Node>, Error> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.must()?;
            if matches!(event, Event::SequenceEnd) {
                items.shrink_to_fit();
                return Ok(items);
            }
            items.push(self.node(event, span, depth)?);
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Map, Error> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut seen: Option<HashSet<Key>> = None;
        let mut merged: Vec<Map> = Vec::new();
        let mut merges = 0;
        loop {
            let (event, _) = self.must()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key = self.key(event)?;
            let (event, span) = self.must()?;
            let value = self.node(event, span, depth)?;
            match key {
                KeyText::Merge => {
                    merges += 1;
                    if merges > 1 && self.loader.mode == Mode::Kustomize {
                        return Err(self.error(Problem::DuplicateKey("<<".to_owned())));
                    }
                    merged.extend(self.merge_sources(value)?);
                }
                KeyText::Plain(key) => self.insert(&mut entries, &mut seen, key, value)?,
            }
        }
        let mut map = Map::from_entries(entries);
        if !merged.is_empty() {
            merge_into(&mut map, merged);
        }
        let mut entries = map.into_entries();
        entries.shrink_to_fit();
        Ok(Map::from_entries(entries))
    }

    fn insert(
        &mut self,
        entries: &mut Vec<(Key, Node)>,
        seen: &mut Option<HashSet<Key>>,
        key: Key,
        value: Node,
    ) -> Result<(), Error> {
        if entries.len() == SCAN && seen.is_none() {
            *seen = Some(entries.iter().map(|(k, _)| k.clone()).collect());
        }
        let repeated = match seen {
            Some(seen) => !seen.insert(key.clone()),
            None => entries.iter().any(|(k, _)| *k == key),
        };
        if !repeated {
            entries.push((key, value));
            return Ok(());
        }
        if self.loader.duplicates == Duplicates::Reject {
            return Err(self.error(Problem::DuplicateKey(key.to_string())));
        }
        if let Some(slot) = entries.iter_mut().find(|(k, _)| *k == key) {
            slot.1 = value;
        }
        Ok(())
    }

    fn merge_sources(&self, value: Node) -> Result<Vec<Map>, Error> {
        match value {
            Node::Map(map) => Ok(vec![map]),
            Node::Seq(items) => items
                .into_iter()
                .map(|item| match item {
                    Node::Map(map) => Ok(map),
                    _ => Err(self.error(Problem::Merge)),
                })
                .collect(),
            Node::Scalar(_) => Err(self.error(Problem::Merge)),
        }
    }

    fn key(&mut self, event: Event<'i>) -> Result<KeyText, Error> {
        self.count(1)?;
        let scalar = match event {
            Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<" => {
                return Ok(KeyText::Merge);
            }
            Event::Scalar(text, style, anchor, tag) => {
                if tag.as_deref().is_some_and(|t| is_core(t, "merge")) {
                    return Ok(KeyText::Merge);
                }
                let scalar = self.scalar(text, style, tag.as_deref())?;
                if anchor != 0 {
                    let bytes = scalar.text.len();
                    self.anchors.insert(
                        anchor,
                        Anchor {
                            node: Some(Node::Scalar(scalar.clone())),
                            nodes: 1,
                            bytes,
                        },
                    );
                }
                scalar
            }
            Event::Alias(id) => match self.alias(id)? {
                Node::Scalar(scalar) => scalar,
                _ => return Err(self.error(Problem::ComplexKey)),
            },
            _ => return Err(self.error(Problem::ComplexKey)),
        };
        let strict = self.loader.mode == Mode::Kustomize && self.loader.duplicates == Duplicates::Reject;
        if scalar.tag == Tag::Str || (scalar.tag == Tag::Timestamp && !strict) {
            return Ok(KeyText::Plain(self.loader.key(&scalar.text)));
        }
        if strict {
            return Err(self.error(Problem::KeyNotText(scalar.text.to_string())));
        }
        match scalar.value() {
            Ok(serde_json::Value::Null) | Err(_) => Err(self.error(Problem::KeyNotText(scalar.text.to_string()))),
            Ok(value) => Ok(KeyText::Plain(self.loader.key(&value.to_string()))),
        }
    }

    fn scalar(&self, text: Cow<'i, str>, style: ScalarStyle, tag: Option<&YamlTag>) -> Result<Scalar, Error> {
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted => Style::Single,
            ScalarStyle::DoubleQuoted => Style::Double,
            ScalarStyle::Literal => Style::Block,
            // Only kustomize writes a block again and reads that.
            ScalarStyle::Folded if self.loader.mode == Mode::Kubectl => Style::Block,
            ScalarStyle::Folded => Style::Folded,
        };
        // go-yaml v3 takes a lone exclamation mark for no tag.
        let tag =
            tag.filter(|tag| self.loader.mode == Mode::Kubectl || !(tag.handle().is_empty() && tag.suffix() == "!"));
        let Some(tag) = tag else {
            if style != Style::Plain {
                return Ok(Scalar {
                    text: text.into(),
                    tag: Tag::Str,
                    style,
                });
            }
            return self.plain(text);
        };
        self.tagged(text, style, tag)
    }

    fn plain(&self, text: Cow<'i, str>) -> Result<Scalar, Error> {
        let dialect = match self.loader.mode {
            Mode::Kustomize => Dialect::Core,
            Mode::Kubectl => Dialect::Yaml11,
        };
        let style = Style::Plain;
        let tag = match scalar::resolve(&text, dialect) {
            Resolved::Null if text.is_empty() && self.flow > 0 && self.loader.mode == Mode::Kustomize => {
                // The reference cannot write nothing between braces and writes quotes, a text to the next reader.
                return Ok(Scalar {
                    text: "".into(),
                    tag: Tag::Null,
                    style: Style::Single,
                });
            }
            Resolved::Null => Tag::Null,
            Resolved::Bool(value) => {
                // The words of YAML 1.1 are written out, so that later readers need no dialect.
                let text = match (self.loader.mode, value) {
                    (Mode::Kustomize, _) => text.into(),
                    (Mode::Kubectl, true) => "true".into(),
                    (Mode::Kubectl, false) => "false".into(),
                };
                return Ok(Scalar {
                    text,
                    tag: Tag::Bool,
                    style,
                });
            }
            Resolved::Int(_) | Resolved::UInt(_) => Tag::Int,
            Resolved::Float(f) if f.is_finite() => Tag::Float,
            Resolved::Float(_) => {
                return Err(self.error(Problem::Tag {
                    text: text.into_owned(),
                    expected: "a number JSON can hold; quote it",
                }));
            }
            Resolved::Timestamp => Tag::Timestamp,
            Resolved::Str => Tag::Str,
        };
        Ok(Scalar {
            text: text.into(),
            tag,
            style,
        })
    }

    fn tagged(&self, text: Cow<'i, str>, style: Style, tag: &YamlTag) -> Result<Scalar, Error> {
        if is_core(tag, "binary") {
            let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
            let bytes = base64::engine::general_purpose::STANDARD.decode(compact).map_err(|_| {
                self.error(Problem::Tag {
                    text: text.to_string(),
                    expected: "base64 (!!binary)",
                })
            })?;
            return Ok(Scalar {
                text: String::from_utf8_lossy(&bytes).into(),
                tag: Tag::Str,
                style,
            });
        }
        let kind = match tag.core_suffix() {
            Some("int") => Tag::Int,
            Some("float") => Tag::Float,
            Some("bool") => Tag::Bool,
            Some("null") => Tag::Null,
            _ if is_core(tag, "timestamp") && self.loader.mode == Mode::Kustomize => Tag::Timestamp,
            _ => {
                return Ok(Scalar {
                    text: text.into(),
                    tag: Tag::Str,
                    style,
                });
            }
        };
        let text = match (kind, self.loader.mode) {
            (Tag::Bool, Mode::Kubectl) => match scalar::resolve(&text, Dialect::Yaml11) {
                Resolved::Bool(true) => "true".into(),
                Resolved::Bool(false) => "false".into(),
                _ => text,
            },
            _ => text,
        };
        // Quotes would make a text of it again, had it no type of its own.
        let scalar = Scalar {
            text: text.into(),
            tag: kind,
            style: Style::Plain,
        };
        match scalar.value() {
            Ok(_) => Ok(scalar),
            Err(expected) => Err(self.error(Problem::Tag {
                text: scalar.text.into(),
                expected,
            })),
        }
    }
}

/// The parser gives `~` for a value that is not there; only the span tells it from a written one.
fn as_written<'i>(text: Cow<'i, str>, style: ScalarStyle, span: &Span) -> Cow<'i, str> {
    if style == ScalarStyle::Plain && text == "~" && span.start.index() == span.end.index() {
        return Cow::Borrowed("");
    }
    text
}

fn is_core(tag: &YamlTag, name: &str) -> bool {
    tag.suffix_in_namespace(CORE).is_some_and(|suffix| suffix == name)
}

/// Adds what is missing from the merged mappings; earlier ones win.
fn merge_into(map: &mut Map, sources: Vec<Map>) {
    let mut seen: HashSet<Key> = map.iter().map(|(k, _)| k.clone()).collect();
    for source in sources {
        for (key, value) in source.into_entries() {
            if seen.insert(key.clone()) {
                map.push(key, value);
            }
        }
    }
}

fn text_bytes(node: &Node) -> usize {
    match node {
        Node::Scalar(s) => s.text.len(),
        Node::Seq(items) => items.iter().map(text_bytes).sum(),
        Node::Map(map) => map.iter().map(|(k, v)| k.len() + text_bytes(v)).sum(),
    }
}
