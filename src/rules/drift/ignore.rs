//! Ignore rules: fields that belong to somebody else (decisions 1.4).

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::managed::{self, Owned};
use super::path::{Path, Step};

/// Longest pattern or selector in a target.
const MAX_PATTERN: usize = 512;
/// Paths that say which object it is; without them there is nothing to send.
const IDENTITY: [&str; 4] = ["apiVersion", "kind", "metadata/name", "metadata/namespace"];

/// Which objects a rule is for, as its author wrote it; what is none or empty matches everything. Group, version, kind,
/// name and namespace are regular expressions for the whole text, as in a kustomize target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IgnoreTarget {
    pub group: Option<String>,
    pub version: Option<String>,
    pub kind: Option<String>,
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub label_selector: Option<String>,
    pub annotation_selector: Option<String>,
}

/// An ignore rule that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IgnoreError {
    #[error("path {0:?} is not a JSON pointer below the root, such as /spec/replicas")]
    NotAPointer(String),
    #[error("path {0:?} cannot be ignored: it says which object it is")]
    Identity(String),
    #[error("target {field} {pattern:?} is not a regular expression")]
    Pattern { field: &'static str, pattern: String },
    #[error("target {field} {selector:?} is not a selector such as app=web,tier in (a,b),!legacy")]
    Selector { field: &'static str, selector: String },
}

/// A rule that is ready to be used.
#[derive(Debug, Clone)]
pub struct IgnoreRule {
    /// Decoded pointers.
    paths: Vec<Vec<String>>,
    /// Patterns for group, version, kind, name and namespace.
    patterns: [Option<Regex>; 5],
    labels: Vec<Requirement>,
    annotations: Vec<Requirement>,
}

impl IgnoreRule {
    /// Reads a rule; without a target it is for every object.
    ///
    /// # Errors
    /// What is wrong with a path or with the target.
    pub fn parse(paths: &[String], target: Option<&IgnoreTarget>) -> Result<Self, IgnoreError> {
        let everything = IgnoreTarget::default();
        let target = target.unwrap_or(&everything);
        let paths = paths.iter().map(|path| parse_pointer(path)).collect::<Result<_, _>>()?;
        Ok(IgnoreRule {
            paths,
            patterns: [
                pattern("group", target.group.as_deref())?,
                pattern("version", target.version.as_deref())?,
                pattern("kind", target.kind.as_deref())?,
                pattern("name", target.name.as_deref())?,
                pattern("namespace", target.namespace.as_deref())?,
            ],
            labels: selector("labelSelector", target.label_selector.as_deref())?,
            annotations: selector("annotationSelector", target.annotation_selector.as_deref())?,
        })
    }

    /// What it is about, as decoded JSON pointers.
    pub fn paths(&self) -> &[Vec<String>] {
        &self.paths
    }

    /// True for an object the rule is for.
    pub fn matches(&self, object: &Value) -> bool {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let api_version = text("/apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = [
            group,
            version,
            text("/kind"),
            text("/metadata/name"),
            text("/metadata/namespace"),
        ];
        let fits = |(pattern, text): (&Option<Regex>, &str)| pattern.as_ref().is_none_or(|one| one.is_match(text));
        let holds =
            |requirements: &[Requirement], map: &str| requirements.iter().all(|one| one.holds(object.pointer(map)));
        self.patterns.iter().zip(found).all(fits)
            && holds(&self.labels, "/metadata/labels")
            && holds(&self.annotations, "/metadata/annotations")
    }
}

fn parse_pointer(text: &str) -> Result<Vec<String>, IgnoreError> {
    let pointer = text.strip_prefix('/').filter(|rest| !rest.is_empty());
    let pointer = pointer.ok_or_else(|| IgnoreError::NotAPointer(text.to_owned()))?;
    let parts: Vec<String> = pointer
        .split('/')
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
        .collect();
    let raw_tildes = pointer.split('~').skip(1).any(|after| !after.starts_with(['0', '1']));
    if raw_tildes {
        return Err(IgnoreError::NotAPointer(text.to_owned()));
    }
    if pointer == "metadata" || IDENTITY.contains(&pointer) {
        return Err(IgnoreError::Identity(text.to_owned()));
    }
    Ok(parts)
}

fn pattern(field: &'static str, text: Option<&str>) -> Result<Option<Regex>, IgnoreError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let built = RegexBuilder::new(&format!("^(?:{text})$")).size_limit(1 << 20).build();
    match built {
        Ok(regex) if text.len() <= MAX_PATTERN => Ok(Some(regex)),
        _ => Err(IgnoreError::Pattern {
            field,
            pattern: text.chars().take(MAX_PATTERN).collect(),
        }),
    }
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirement {
    fn holds(&self, map: Option<&Value>) -> bool {
        let value = |key: &str| map?.get(key)?.as_str();
        match self {
            Requirement::In(key, values) => value(key).is_some_and(|found| values.iter().any(|one| one == found)),
            Requirement::NotIn(key, values) => value(key).is_none_or(|found| values.iter().all(|one| one != found)),
            Requirement::Exists(key) => value(key).is_some(),
            Requirement::Absent(key) => value(key).is_none(),
        }
    }
}

fn selector(field: &'static str, text: Option<&str>) -> Result<Vec<Requirement>, IgnoreError> {
    let text = text.unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let parsed = split_terms(text)
        .into_iter()
        .map(requirement)
        .collect::<Option<Vec<_>>>();
    parsed
        .filter(|_| text.len() <= MAX_PATTERN)
        .ok_or_else(|| IgnoreError::Selector {
            field,
            selector: text.chars().take(MAX_PATTERN).collect(),
        })
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

/// Reads one of `key`, `!key`, `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`.
fn requirement(term: &str) -> Option<Requirement> {
    let term = term.trim();
    if let Some(key) = term.strip_prefix('!') {
        return Some(Requirement::Absent(word(key)?));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some(Requirement::NotIn(word(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some(Requirement::In(word(key)?, vec![value.trim().to_owned()]));
    }
    let Some((key, rest)) = term.split_once(char::is_whitespace) else {
        return Some(Requirement::Exists(word(term)?));
    };
    let (operator, list) = rest.split_once('(')?;
    let list = list.trim_end().strip_suffix(')')?;
    let values = list.split(',').map(|value| value.trim().to_owned()).collect();
    match operator.trim() {
        "in" => Some(Requirement::In(word(key)?, values)),
        "notin" => Some(Requirement::NotIn(word(key)?, values)),
        _ => None,
    }
}

fn word(text: &str) -> Option<String> {
    let text = text.trim();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    (!text.is_empty() && text.chars().all(allowed)).then(|| text.to_owned())
}

/// What is sent for an object under ignore rules, applied as `manager`.
///
/// An object that does not exist is sent whole. For one that exists, an ignored field is left out. Where our own
/// earlier apply is its only owner, leaving it out would make the server delete it; then its live value is sent instead,
/// so that it stays as it is until somebody else writes it, together with `metadata.resourceVersion`, so that a write in
/// between is answered with a conflict and not undone.
pub fn object_to_send(desired: &Value, live: Option<&Value>, rules: &[IgnoreRule], manager: &str) -> Value {
    let mut sent = desired.clone();
    let Some(live) = live else { return sent };
    let pointers = rules
        .iter()
        .filter(|rule| rule.matches(desired))
        .flat_map(|rule| &rule.paths);
    let mut removals = Vec::new();
    for pointer in pointers {
        let Some(path) = locate(desired, pointer) else {
            continue;
        };
        match value_to_keep(live, &path, manager) {
            Some(value) => {
                if let Some(place) = sent.pointer_mut(&path.to_string()) {
                    *place = value.clone();
                    keep_version(&mut sent, live);
                }
            }
            None => removals.push(pointer),
        }
    }
    // Later items of a list go first, so that the indexes of the others hold.
    removals.sort_by_key(|pointer| {
        pointer
            .iter()
            .map(|part| (part.parse::<usize>().ok(), part.as_str()))
            .collect::<Vec<_>>()
    });
    for pointer in removals.into_iter().rev() {
        remove(&mut sent, pointer);
    }
    sent
}

fn keep_version(sent: &mut Value, live: &Value) {
    let version = live.pointer("/metadata/resourceVersion");
    let metadata = sent.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(version), Some(metadata)) = (version, metadata) {
        metadata.insert("resourceVersion".to_owned(), version.clone());
    }
}

/// Follows a pointer in the object that is to be sent; none where it leads nowhere.
fn locate<'a>(desired: &'a Value, pointer: &'a [String]) -> Option<Path<'a>> {
    let mut path = Path::root();
    let mut here = desired;
    for part in pointer {
        match here {
            Value::Object(fields) => {
                here = fields.get(part)?;
                path = path.field(part);
            }
            Value::Array(items) => {
                let index: usize = part.parse().ok()?;
                here = items.get(index)?;
                path = path.item(index, here);
            }
            _ => return None,
        }
    }
    Some(path)
}

/// The live value of a field that only our own apply owns.
fn value_to_keep<'v>(live: &'v Value, path: &Path<'_>, manager: &str) -> Option<&'v Value> {
    let ours = managed::own_fields(live, manager)?;
    if !managed::owns(ours, path) || managed::other_owner(live, manager, path).is_some() {
        return None;
    }
    let mut here = live;
    let mut owned = Owned::Node(ours);
    for step in path.steps() {
        (here, owned) = match step {
            Step::Field(name) => (here.get(*name)?, owned.field(name)),
            Step::Item(index, item) => match owned.node().and_then(|fields| managed::find_item(fields, item)) {
                Some((key, owned)) => (key.find_in(here.as_array()?)?, owned),
                None => (here.get(*index)?, owned),
            },
            Step::Key(_) => return None,
        };
    }
    Some(here)
}

/// Removes a place, and the maps that become empty by it.
fn remove(object: &mut Value, pointer: &[String]) {
    let Some((part, rest)) = pointer.split_first() else {
        return;
    };
    match object {
        Value::Object(fields) if rest.is_empty() => {
            fields.shift_remove(part);
        }
        Value::Object(fields) => {
            let Some(child) = fields.get_mut(part) else { return };
            remove(child, rest);
            if child.as_object().is_some_and(serde_json::Map::is_empty) {
                fields.shift_remove(part);
            }
        }
        Value::Array(items) => {
            let Some(index) = part.parse().ok().filter(|&index: &usize| index < items.len()) else {
                return;
            };
            if rest.is_empty() {
                items.remove(index);
            } else {
                remove(&mut items[index], rest);
            }
        }
        _ => {}
    }
}
