//! Replacements: copying a value of one resource into fields of others.

use super::budget::{self, Allowance};
use super::error::Problem;
use super::fieldpath::{Create, Visit, lookup, split};
use super::file::{FieldOptions, Replacement, ReplacementSource, ReplacementTarget, Selector};
use super::gojson;
use super::resource::Resource;
use super::selector::Matcher;
use crate::manifest::node::{Map, Node, Scalar, Style, Tag};
use crate::manifest::yaml::{self, Duplicates, Limits, Loader, Mode};

/// Runs replacements in order; each sees what the earlier ones did.
pub(crate) fn run(
    resources: &mut [Resource],
    replacements: &[Replacement],
    warnings: &mut Vec<String>,
    allowance: &Allowance,
) -> Result<(), Problem> {
    for (index, replacement) in replacements.iter().enumerate() {
        let bad = |problem: String| Problem::Replacement {
            index: index + 1,
            problem,
        };
        let Some(targets) = &replacement.targets else {
            return Err(bad("targets are missing".to_owned()));
        };
        let value = match (&replacement.source, &replacement.source_value) {
            (None, None) => return Err(bad("source is missing".to_owned())),
            (Some(_), Some(_)) => return Err(bad("source and sourceValue exclude each other".to_owned())),
            (None, Some(text)) => Node::Scalar(Scalar {
                text: text.as_str().into(),
                tag: Tag::Untyped,
                style: Style::Plain,
            }),
            (Some(source), None) => source_value(resources, source).map_err(bad)?,
        };
        for target in targets {
            let copier = Copier {
                value: &value,
                weight: budget::of_node(&value),
                allowance,
            };
            apply(resources, &copier, target, index, warnings)?;
        }
    }
    Ok(())
}

fn source_value(resources: &[Resource], source: &ReplacementSource) -> Result<Node, String> {
    let selected = |resource: &&Resource| {
        resource.any_id().any(|id| {
            let wanted = if source.namespace.is_empty() {
                ""
            } else {
                &*source.namespace
            };
            (source.name.is_empty() || source.name == id.name)
                && (wanted.is_empty() || wanted == id.effective_namespace())
                && id.gvk.is_selected_by(&source.group, &source.version, &source.kind)
        })
    };
    let mut found = resources.iter().filter(selected);
    let described = describe(source);
    let Some(resource) = found.next() else {
        return Err(format!("no resource matches the source {described}"));
    };
    if found.next().is_some() {
        return Err(format!(
            "several resources match the source {described}; add kind, name or namespace"
        ));
    }
    let path = if source.field_path.is_empty() {
        "metadata.name"
    } else {
        &source.field_path
    };
    let node = lookup(&resource.root, &split(path)).map_err(|e| format!("source field {path:?}: {e}"))?;
    let Some(node) = node.filter(|n| !n.is_null_or_empty()) else {
        return Err(format!(
            "source field {path:?} of {} is missing or empty",
            resource.id()
        ));
    };
    match &source.options {
        Some(options) if !options.delimiter.is_empty() => part_of(node, options),
        _ => Ok(node.clone()),
    }
}

fn describe(source: &ReplacementSource) -> String {
    let parts = [
        ("group", &source.group),
        ("version", &source.version),
        ("kind", &source.kind),
        ("name", &source.name),
        ("namespace", &source.namespace),
    ];
    let given: Vec<String> = parts
        .iter()
        .filter(|(_, v)| !v.is_empty())
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    format!("({})", given.join(", "))
}

fn part_of(node: &Node, options: &FieldOptions) -> Result<Node, String> {
    let Node::Scalar(scalar) = node else {
        return Err("delimiter needs a scalar source".to_owned());
    };
    let part = usize::try_from(options.index)
        .ok()
        .and_then(|i| scalar.text.split(&options.delimiter).nth(i));
    match part {
        Some(part) => Ok(Node::Scalar(Scalar {
            text: part.into(),
            ..scalar.clone()
        })),
        None => Err(format!(
            "index {} is beyond the parts of {:?}",
            options.index, scalar.text
        )),
    }
}

/// What is copied, and how much of it may be.
struct Copier<'a> {
    value: &'a Node,
    weight: usize,
    allowance: &'a Allowance,
}

fn apply(
    resources: &mut [Resource],
    copier: &Copier<'_>,
    target: &ReplacementTarget,
    index: usize,
    warnings: &mut Vec<String>,
) -> Result<(), Problem> {
    let bad = |problem: String| Problem::Replacement {
        index: index + 1,
        problem,
    };
    let Some(select) = &target.select else {
        return Err(bad("a target without select".to_owned()));
    };
    let select = Matcher::new(select)?;
    let mut rejects = Vec::new();
    for reject in &target.reject {
        rejects.push((has_metadata(reject), has_id(reject), Matcher::new(reject)?));
    }
    let default = ["metadata.name".to_owned()];
    let paths = if target.field_paths.is_empty() {
        &default[..]
    } else {
        &target.field_paths
    };
    let options = target.options.clone().unwrap_or_default();
    for resource in resources {
        let rejected = rejects.iter().any(|(metadata, id, matcher)| {
            (*metadata && matcher.matches_metadata(resource)) || (*id && matcher.matches_any_id(resource))
        });
        if rejected || !select.matches_metadata(resource) || !select.matches_any_id(resource) {
            continue;
        }
        for path in paths {
            copy(resource, copier, path, &options, warnings)
                .map_err(|problem| bad(format!("target {}: field {path:?}: {problem}", resource.id())))?;
        }
    }
    Ok(())
}

fn has_metadata(selector: &Selector) -> bool {
    !selector.label_selector.is_empty() || !selector.annotation_selector.is_empty()
}

fn has_id(selector: &Selector) -> bool {
    [
        &selector.group,
        &selector.version,
        &selector.kind,
        &selector.name,
        &selector.namespace,
    ]
    .iter()
    .any(|part| !part.is_empty())
}

fn copy(
    resource: &mut Resource,
    copier: &Copier<'_>,
    path: &str,
    options: &FieldOptions,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let parts = split(path);
    let value = copier.value;
    let create = match value {
        _ if !options.create => Create::Nothing,
        Node::Scalar(_) => Create::Scalar,
        Node::Map(_) => Create::Map,
        Node::Seq(_) => Create::Seq,
    };
    if inside_text(&mut resource.root, copier, &parts, create).is_some() {
        return Ok(());
    }
    let mut lost = false;
    let mut set = |node: &mut Node, parsed: bool| {
        lost |= parsed;
        set_value(node, copier, options)
    };
    let mut visit = Visit::new(create, &mut set);
    let mut root = Node::Map(std::mem::take(&mut resource.root));
    let result = visit.run(&mut root, &parts);
    let found = visit.found;
    if let Node::Map(map) = root {
        resource.root = map;
    }
    result?;
    if found == 0 {
        return Err("there is no such field; add options.create to make it".to_owned());
    }
    if lost {
        warnings.push(format!(
            "{}: replacing {path:?} inside text has no effect, as in kustomize",
            resource.id()
        ));
    }
    Ok(())
}

fn set_value(node: &mut Node, copier: &Copier<'_>, options: &FieldOptions) -> Result<(), String> {
    let take = |weight| copier.allowance.take(weight).map_err(|e| e.to_string());
    take(copier.weight)?;
    let mut value = copier.value.clone();
    if !options.delimiter.is_empty() {
        let Node::Scalar(target) = &*node else {
            return Err("delimiter needs a scalar target".to_owned());
        };
        let text = value.text().unwrap_or("").to_owned();
        let joined = spliced(&target.text, &text, options);
        take(budget::of_text(&joined))?;
        match &mut value {
            Node::Scalar(scalar) => scalar.text = joined.into(),
            other => *other = Node::Scalar(Scalar::string(joined)),
        }
    }
    assign(node, value);
    Ok(())
}

/// A scalar keeps its type and notation and takes the text; anything else is replaced.
fn assign(node: &mut Node, value: Node) {
    match (node, value) {
        (Node::Scalar(target), Node::Scalar(value)) => target.text = value.text,
        (Node::Scalar(target), _) => target.text = "".into(),
        (node, value) => *node = value,
    }
}

fn spliced(target: &str, value: &str, options: &FieldOptions) -> String {
    let mut parts: Vec<&str> = target.split(&options.delimiter).collect();
    match usize::try_from(options.index) {
        Err(_) => parts.insert(0, value),
        Ok(at) if at < parts.len() => parts[at] = value,
        Ok(_) => parts.push(value),
    }
    parts.join(&options.delimiter)
}

/// The document in a text, by the rules of resource files, repeated keys allowed.
pub(crate) fn parse_text(text: &str) -> Option<Node> {
    let mut loader = Loader::with(Mode::Kustomize, Duplicates::LastWins, Limits::default());
    loader.first(text, "text", 1).ok().flatten()
}

/// Sets a value inside a text field that holds YAML or JSON; `None` when the path does not lead into one.
fn inside_text(root: &mut Map, copier: &Copier<'_>, parts: &[String], create: Create) -> Option<()> {
    for end in 1..parts.len() {
        let Ok(Some(Node::Scalar(scalar))) = lookup(root, &parts[..end]) else {
            continue;
        };
        let text = scalar.text.to_string();
        let Some(mut parsed) = parse_text(&text) else { continue };
        if text.trim().is_empty() {
            return None;
        }
        let mut set = |node: &mut Node, _: bool| {
            copier.allowance.take(copier.weight).map_err(|e| e.to_string())?;
            assign(node, copier.value.clone());
            Ok(())
        };
        let mut visit = Visit::new(create, &mut set);
        visit.run(&mut parsed, &parts[end..]).ok()?;
        if visit.found == 0 {
            return None;
        }
        let written = write_text(parsed, &text)?;
        copier.allowance.take(budget::of_text(&written)).ok()?;
        let mut put = |node: &mut Node, _: bool| {
            if let Node::Scalar(scalar) = node {
                scalar.text = written.as_str().into();
            }
            Ok(())
        };
        let target = root.get_mut(parts.first()?)?;
        return put_at(target, &parts[1..end], &mut put);
    }
    None
}

fn put_at(node: &mut Node, path: &[String], set: &mut dyn FnMut(&mut Node, bool) -> Result<(), String>) -> Option<()> {
    let Some((first, rest)) = path.split_first() else {
        return set(node, false).ok();
    };
    let next = match node {
        Node::Map(map) => map.get_mut(first)?,
        Node::Seq(items) => {
            let at = match first.parse::<usize>() {
                Ok(index) => index,
                Err(_) if first == "-" => items.len().checked_sub(1)?,
                Err(_) => {
                    let (name, value) = first.trim_matches(['[', ']']).split_once('=')?;
                    items.iter().position(|item| match item {
                        Node::Map(map) => matches!(map.get(name), Some(Node::Scalar(s)) if *s.text == *value),
                        Node::Scalar(s) => name.is_empty() && *s.text == *value,
                        Node::Seq(_) => false,
                    })?
                }
            };
            items.get_mut(at)?
        }
        Node::Scalar(_) => return None,
    };
    put_at(next, rest, set)
}

/// JSON stays JSON, pretty if it was; everything else becomes YAML.
fn write_text(node: Node, old: &str) -> Option<String> {
    let value = node.into_value().ok()?;
    if old.trim_start().starts_with(['{', '[']) {
        let pretty = old.contains('\n') && old.contains("  ");
        return Some(if pretty {
            gojson::pretty(&value)
        } else {
            gojson::compact(&value)
        });
    }
    yaml::to_string(&value).ok().map(|text| text.trim().to_owned())
}
