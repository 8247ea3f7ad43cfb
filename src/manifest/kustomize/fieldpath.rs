//! Dotted field paths of replacements and vars: looking up one node, and visiting all that match.

use regex::Regex;

use super::selector::regex;
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};

/// What a missing leaf is created as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Create {
    Nothing,
    Scalar,
    Map,
    Seq,
}

/// Splits at dots; `\.` is a literal dot, a part in brackets may contain dots.
pub(crate) fn split(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in path.split('.') {
        match parts.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.pop();
                last.push('.');
                last.push_str(piece);
            }
            _ => parts.push(piece.to_owned()),
        }
    }
    if parts.len() > 1 && parts[0].is_empty() {
        parts.remove(0);
    }
    join_brackets(parts)
}

fn join_brackets(parts: Vec<String>) -> Vec<String> {
    let mut joined = Vec::with_capacity(parts.len());
    let mut parts = parts.into_iter();
    while let Some(mut part) = parts.next() {
        if !part.starts_with('[') || part.ends_with(']') {
            joined.push(part);
            continue;
        }
        for next in parts.by_ref() {
            part.push('.');
            part.push_str(&next);
            if next.ends_with(']') {
                break;
            }
        }
        joined.push(if part.contains('=') {
            part
        } else {
            part.trim_matches(['[', ']']).to_owned()
        });
    }
    joined
}

/// One part of a path.
enum Part<'p> {
    Field(&'p str),
    Index(usize),
    Last,
    Every,
    Element(&'p str, &'p str),
}

impl<'p> Part<'p> {
    fn new(text: &'p str) -> Result<Self, String> {
        if let Ok(index) = text.parse::<i64>() {
            return usize::try_from(index)
                .map(Self::Index)
                .map_err(|_| format!("list index {text} is negative"));
        }
        if text == "*" {
            return Ok(Self::Every);
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            let (name, value) = inner
                .split_once('=')
                .ok_or_else(|| format!("{text:?} is not of the form [name=value]"))?;
            return Ok(Self::Element(name, value));
        }
        Ok(Self::Field(text))
    }
}

/// The one node a path leads to; `None` when something on the way is missing.
pub(crate) fn lookup<'n>(root: &'n Map, path: &[String]) -> Result<Option<&'n Node>, String> {
    let mut parts = path.iter().map(|p| p.trim()).filter(|p| !p.is_empty());
    let Some(first) = parts.next() else { return Ok(None) };
    let Part::Field(first) = Part::new(first)? else {
        return Err(format!("{first:?} needs a list"));
    };
    let mut at = root.get(first);
    for text in parts {
        let Some(node) = at else { return Ok(None) };
        if node.is_null() {
            return Ok(None);
        }
        let part = if text == "-" { Part::Last } else { Part::new(text)? };
        at = step(node, &part)?;
    }
    Ok(at)
}

fn step<'n>(node: &'n Node, part: &Part<'_>) -> Result<Option<&'n Node>, String> {
    if let Part::Field(name) = part {
        return match node {
            Node::Map(map) => Ok(map.get(name)),
            other => Err(format!("{name:?} needs a mapping, found {}", other.kind_name())),
        };
    }
    let Node::Seq(items) = node else {
        return Err(format!("a list is needed, found {}", node.kind_name()));
    };
    Ok(match part {
        Part::Index(index) => items.get(*index),
        Part::Last => items.last(),
        Part::Element("", value) => items
            .iter()
            .find(|i| matches!(i, Node::Scalar(s) if *s.text == **value)),
        Part::Element(name, value) => items.iter().find(|item| {
            item.as_map()
                .is_some_and(|m| matches!(m.get(name), Some(Node::Scalar(s)) if *s.text == **value))
        }),
        Part::Every | Part::Field(_) => return Err("* cannot be used in a source".to_owned()),
    })
}

/// Visits every node that matches a path.
pub(crate) struct Visit<'v> {
    pub create: Create,
    /// Called for each; `true` for nodes inside text that was parsed on the way, whose changes are lost.
    pub set: &'v mut dyn FnMut(&mut Node, bool) -> Result<(), String>,
    pub found: usize,
    parsed: bool,
}

impl<'v> Visit<'v> {
    pub fn new(create: Create, set: &'v mut dyn FnMut(&mut Node, bool) -> Result<(), String>) -> Self {
        Self {
            create,
            set,
            found: 0,
            parsed: false,
        }
    }

    pub fn run(&mut self, node: &mut Node, path: &[String]) -> Result<(), String> {
        let Some((first, rest)) = path.split_first() else {
            self.found += 1;
            return (self.set)(node, self.parsed);
        };
        match Part::new(first) {
            Ok(Part::Index(index)) => self.index(node, index, rest),
            Ok(Part::Every) => {
                let Node::Seq(items) = node else {
                    return Err(format!("* needs a list, found {}", node.kind_name()));
                };
                items.iter_mut().try_for_each(|item| self.run(item, rest))
            }
            Ok(Part::Element(name, expression)) => self.elements(node, name, expression, rest),
            Ok(Part::Field(name)) => self.field(node, name, rest),
            Ok(Part::Last) => self.field(node, "-", rest),
            // A negative number is an ordinary field name here.
            Err(problem) if first.starts_with('[') => Err(problem),
            Err(_) => self.field(node, first, rest),
        }
    }

    fn field(&mut self, node: &mut Node, name: &str, rest: &[String]) -> Result<(), String> {
        if node.is_null() {
            if self.create == Create::Nothing {
                return Ok(());
            }
            *node = Node::map();
        }
        let Node::Map(map) = node else {
            return Err(format!("{name:?} needs a mapping, found {}", node.kind_name()));
        };
        let at = match map.position(name) {
            Some(at) => at,
            None if self.create == Create::Nothing => return Ok(()),
            None => {
                map.push(name.into(), self.made(rest));
                map.len() - 1
            }
        };
        let field = map.at_mut(at);
        match field {
            Node::Scalar(scalar) if !rest.is_empty() && !scalar.is_null() => {
                self.inside_text(&scalar.text.clone(), rest)
            }
            field => self.run(field, rest),
        }
    }

    /// What a missing node is created as, judged by the next part of the path.
    fn made(&self, rest: &[String]) -> Node {
        let leaf = match self.create {
            Create::Map => Node::map(),
            Create::Seq => Node::Seq(Vec::new()),
            Create::Scalar | Create::Nothing => untyped(""),
        };
        match rest.first() {
            None => leaf,
            Some(next) if next.parse::<usize>().is_ok() || (next.starts_with('[') && next.ends_with(']')) => {
                Node::Seq(Vec::new())
            }
            Some(_) => Node::map(),
        }
    }

    /// The reference looks into text on the way, but what it changes there goes nowhere.
    fn inside_text(&mut self, text: &str, rest: &[String]) -> Result<(), String> {
        let Some(mut parsed) = super::replace::parse_text(text) else {
            return Err("the text on the way is no YAML".to_owned());
        };
        let before = std::mem::replace(&mut self.parsed, true);
        let result = self.run(&mut parsed, rest);
        self.parsed = before;
        result
    }

    fn index(&mut self, node: &mut Node, index: usize, rest: &[String]) -> Result<(), String> {
        let made = self.made(rest);
        let create = self.create != Create::Nothing;
        let Node::Seq(items) = node else {
            return Err(format!("list index {index} needs a list, found {}", node.kind_name()));
        };
        if items.len() == index && create {
            items.push(made);
        }
        let len = items.len();
        match items.get_mut(index) {
            Some(item) => self.run(item, rest),
            None => Err(format!("list index {index} is beyond the {len} elements of the list")),
        }
    }

    fn elements(&mut self, node: &mut Node, name: &str, expression: &str, rest: &[String]) -> Result<(), String> {
        let pattern = regex(expression).map_err(|e| e.to_string())?;
        let before = self.found;
        self.matching(node, name, &pattern, rest)?;
        if self.found > before || self.create == Create::Nothing {
            return Ok(());
        }
        let Node::Seq(items) = node else { return Ok(()) };
        items.push(if name.is_empty() {
            untyped(expression)
        } else {
            Node::Map(Map::from_entries(vec![(name.into(), untyped(expression))]))
        });
        self.matching(node, name, &pattern, rest)?;
        // Here the reference would go on creating elements for ever.
        if self.found > before {
            Ok(())
        } else {
            Err(format!(
                "the element created for {expression:?} does not match it; use a plain value with create"
            ))
        }
    }

    fn matching(&mut self, node: &mut Node, name: &str, pattern: &Regex, rest: &[String]) -> Result<(), String> {
        let found = node.kind_name();
        let Node::Seq(items) = node else {
            return Err(format!("a list is needed, found {found}"));
        };
        for item in items {
            if name.is_empty() {
                if pattern.is_match(&written(item)) {
                    self.found += 1;
                    (self.set)(item, self.parsed)?;
                }
                continue;
            }
            let fits = match item {
                Node::Map(map) => map.get(name).is_some_and(|value| pattern.is_match(&written(value))),
                _ => false,
            };
            if fits {
                self.run(item, rest)?;
            }
        }
        Ok(())
    }
}

fn untyped(text: &str) -> Node {
    Node::Scalar(Scalar {
        text: text.into(),
        tag: Tag::Untyped,
        style: Style::Plain,
    })
}

/// A node's text as it would be written, quotes included.
fn written(node: &Node) -> String {
    match node {
        Node::Scalar(scalar) => match scalar.style {
            Style::Single => format!("'{}'", scalar.text.replace('\'', "''")),
            Style::Double => format!("{:?}", &*scalar.text),
            Style::Block | Style::Folded => format!("|-\n  {}", scalar.text.trim_end().replace('\n', "\n  ")),
            Style::Plain => plain(scalar),
        },
        other => match other.to_value() {
            Ok(value) => crate::manifest::yaml::to_string(&value)
                .unwrap_or_default()
                .trim()
                .to_owned(),
            Err(_) => String::new(),
        },
    }
}

fn plain(scalar: &Scalar) -> String {
    use crate::manifest::yaml::scalar::{Dialect, Resolved, resolve};
    if scalar.tag == Tag::Str && !matches!(resolve(&scalar.text, Dialect::Core), Resolved::Str) {
        return format!("{:?}", &*scalar.text);
    }
    scalar.text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_at_dots_outside_brackets() {
        assert_eq!(split("a.b\\.c.[x=y.z].0"), ["a", "b.c", "[x=y.z]", "0"]);
        assert_eq!(
            split("metadata.annotations.[cert-manager.io/inject]"),
            ["metadata", "annotations", "cert-manager.io/inject"]
        );
        assert_eq!(split("a.[name=b].c"), ["a", "[name=b]", "c"]);
    }
}
