//! Files to resources: splitting into documents, expanding lists, checking what an object needs.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::error::{ObjectProblem, Problem};
use super::resource::Resource;
use crate::manifest::node::{Map, Node};
use crate::manifest::yaml::{self, Loader};

/// The resources of a file's text.
pub(crate) fn resources(loader: &mut Loader, text: &str, file: &str) -> Result<Vec<Resource>, Problem> {
    Ok(objects(loader, text, file)?.into_iter().map(Resource::new).collect())
}

/// The objects of a file's text.
pub(crate) fn objects(loader: &mut Loader, text: &str, file: &str) -> Result<Vec<Map>, Problem> {
    let text = if text.contains("\r\n") {
        Cow::Owned(text.replace("\r\n", "\n"))
    } else {
        Cow::Borrowed(text)
    };
    let chunks = split(&text, file)?;
    let single = chunks.len() == 1;
    let mut found = Vec::new();
    for (index, (line, chunk)) in chunks.into_iter().enumerate() {
        let Some(node) = loader.first(chunk, file, line)? else {
            continue;
        };
        if node.is_null() {
            continue;
        }
        let document = index + 1;
        let bad = |problem| Problem::NotAnObject {
            file: file.to_owned(),
            document,
            problem,
        };
        match node {
            Node::Map(map) if single && is_wrapper(&map) => {
                for item in unwrap_items(map).map_err(bad)? {
                    found.extend(checked(item).map_err(bad)?);
                }
            }
            other => {
                found.extend(checked(other).map_err(bad)?);
            }
        }
    }
    inline_lists(found, file)
}

/// Splits at lines that begin with `---`; each part comes with the line it begins at, from 1.
fn split<'t>(text: &'t str, file: &str) -> Result<Vec<(usize, &'t str)>, Problem> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut first_line = 1;
    let mut from = 0;
    while let Some(found) = text[from..].find("\n---") {
        let at = from + found;
        let Some(end) = text[at + 1..].find('\n').map(|n| at + 1 + n) else {
            break;
        };
        let after = text[at + 4..end].trim();
        let line = first_line + count_lines(&text[start..=at]);
        if !after.is_empty() && !after.starts_with('#') {
            let error = yaml::Error {
                file: file.to_owned(),
                line,
                problem: yaml::Problem::Separator,
            };
            return Err(error.into());
        }
        // The newline before the separator belongs to the document: block scalars keep it.
        parts.push((first_line, &text[start..=at]));
        start = end + 1;
        first_line = line + 1;
        // A separator right after this one needs the newline that ended it; the reference misses it too.
        from = start;
    }
    parts.push((first_line, &text[start..]));
    Ok(parts)
}

fn count_lines(text: &str) -> usize {
    text.bytes().filter(|b| *b == b'\n').count()
}

fn is_wrapper(map: &Map) -> bool {
    matches!(kind_of(map), "List" | "ResourceList") && (map.contains("items") || map.contains("functionConfig"))
}

fn kind_of(map: &Map) -> &str {
    match map.get("kind") {
        Some(Node::Scalar(s)) => &s.text,
        _ => "",
    }
}

fn unwrap_items(mut map: Map) -> Result<Vec<Node>, ObjectProblem> {
    match map.remove("items") {
        None => Ok(Vec::new()),
        Some(Node::Seq(items)) => Ok(items),
        Some(node) if node.is_null() => Ok(Vec::new()),
        Some(_) => Err(ObjectProblem::Items {
            kind: kind_of(&map).to_owned(),
        }),
    }
}

/// The object, `None` when the document is an empty mapping or list.
fn checked(node: Node) -> Result<Option<Map>, ObjectProblem> {
    if node.is_null_or_empty() {
        return Ok(None);
    }
    let map = match node {
        Node::Map(map) => map,
        other => return Err(ObjectProblem::NotAMapping(other.kind_name())),
    };
    complete(&map)?;
    Ok(Some(map))
}

/// Checks that an object has what every object needs.
pub(crate) fn complete(map: &Map) -> Result<(), ObjectProblem> {
    let filled = |key: &str| map.get(key).is_some_and(|n| !n.is_null_or_empty());
    if !filled("apiVersion") && !filled("kind") && !filled("metadata") {
        return Err(ObjectProblem::NoMetadata);
    }
    let kind = map.text("kind").unwrap_or("");
    if kind.is_empty() {
        return Err(ObjectProblem::NoKind);
    }
    let name = map
        .get("metadata")
        .and_then(Node::as_map)
        .and_then(|m| m.text("name"))
        .unwrap_or("");
    if name.is_empty() && !kind.ends_with("List") {
        return Err(ObjectProblem::NoName { kind: kind.to_owned() });
    }
    Ok(())
}

/// Replaces lists by their items; the items of a list go behind what is left of the file.
fn inline_lists(objects: Vec<Map>, file: &str) -> Result<Vec<Map>, Problem> {
    if !objects
        .iter()
        .any(|map| kind_of(map).ends_with("List") && map.contains("items"))
    {
        return Ok(objects);
    }
    let mut queue: VecDeque<Map> = objects.into();
    let mut result = Vec::with_capacity(queue.len());
    while let Some(map) = queue.pop_front() {
        if !kind_of(&map).ends_with("List") || !map.contains("items") {
            result.push(map);
            continue;
        }
        let document = result.len() + 1;
        let bad = |problem| Problem::NotAnObject {
            file: file.to_owned(),
            document,
            problem,
        };
        for mut item in unwrap_items(map).map_err(bad)? {
            // The reference carries items over as JSON, which decides the text of numbers.
            item.settle();
            let value = yaml::to_value(item, file)?;
            match Node::from_value(&value) {
                Node::Map(map) if is_wrapper(&map) => {
                    for inner in unwrap_items(map).map_err(bad)? {
                        queue.extend(checked(inner).map_err(bad)?);
                    }
                }
                node => queue.extend(checked(node).map_err(bad)?),
            }
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::yaml::Mode;

    fn names(text: &str) -> Result<Vec<String>, Problem> {
        let found = resources(&mut Loader::new(Mode::Kustomize), text, "f.yaml")?;
        Ok(found.iter().map(|r| r.name().to_owned()).collect())
    }

    #[test]
    fn splits_documents_and_counts_lines() {
        let parts = split("a: 1\n--- # one\nb: 2\n---\nc: 3\n", "f").unwrap();
        assert_eq!(parts, vec![(1, "a: 1\n"), (3, "b: 2\n"), (5, "c: 3\n")]);
        assert!(split("a: 1\n--- x\nb: 2\n", "f").is_err());
    }

    #[test]
    fn expands_lists_behind_the_rest() {
        let list = "apiVersion: v1\nkind: ConfigMapList\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n\
                    ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n";
        assert_eq!(names(list).unwrap(), ["b", "a"]);
        let single = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n";
        assert_eq!(names(single).unwrap(), ["a"]);
        assert_eq!(
            names("apiVersion: v1\nkind: List\nitems: []\n").unwrap(),
            Vec::<String>::new()
        );
        assert_eq!(
            names("apiVersion: x/v1\nkind: AllowList\nmetadata: {name: a}\n").unwrap(),
            ["a"]
        );
    }

    #[test]
    fn refuses_what_is_no_object() {
        for text in [
            "- a\n",
            "a: b\n",
            "kind: ConfigMap\n",
            "apiVersion: v1\nmetadata: {name: x}\n",
            "apiVersion: v1\nkind: Job\nmetadata: {generateName: x-}\n",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 1, a: 2}\n",
        ] {
            assert!(names(text).is_err(), "{text}");
        }
        assert_eq!(names("# nothing\n---\n\n--- # still\n").unwrap(), Vec::<String>::new());
    }
}
