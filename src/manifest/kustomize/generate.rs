//! ConfigMap and Secret generators, and the hash their names end in.

use std::collections::HashSet;

use base64::Engine as _;
use serde_json::{Map as JsonMap, Value};
use sha2::{Digest as _, Sha256};

use super::error::Problem;
use super::file::{Generator, GeneratorOptions};
use super::gojson;
use super::resource::{Behavior, Resource};
use crate::manifest::node::{Key, Map, Node, Scalar, Style, Tag};

/// Which object a generator makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

/// Reads a file a generator names.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&'static str, &str) -> Result<bytes::Bytes, Problem>;

/// Global options fill in what the entry's own leave open.
pub(crate) fn merged_options(own: &GeneratorOptions, global: &GeneratorOptions) -> GeneratorOptions {
    let mut merged = own.clone();
    for (mine, theirs) in [
        (&mut merged.labels, &global.labels),
        (&mut merged.annotations, &global.annotations),
    ] {
        for (key, value) in theirs {
            mine.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    merged.disable_name_suffix_hash |= global.disable_name_suffix_hash;
    merged.immutable |= global.immutable;
    merged
}

/// The generated resource.
pub(crate) fn generate(kind: Kind, args: &Generator, read: ReadFile<'_>) -> Result<Resource, Problem> {
    let field = match kind {
        Kind::ConfigMap => "configMapGenerator",
        Kind::Secret => "secretGenerator",
    };
    let bad = |problem: String| Problem::Generator {
        field,
        name: args.name.clone(),
        problem,
    };
    if args.name.is_empty() {
        return Err(bad("name is missing".to_owned()));
    }
    let mut root = Map::new();
    root.set("apiVersion", Node::string("v1"));
    root.set(
        "kind",
        Node::string(if kind == Kind::Secret { "Secret" } else { "ConfigMap" }),
    );
    root.set("metadata", Node::Map(metadata(args)));
    let pairs = pairs(args, field, read, &bad)?;
    match kind {
        Kind::ConfigMap => config_map_data(&mut root, pairs),
        Kind::Secret => {
            let secret_type = if args.r#type.is_empty() { "Opaque" } else { &args.r#type };
            root.set("type", Node::string(secret_type));
            let data = pairs
                .into_iter()
                .map(|(k, v)| (Key::from(k), text(base64_lines(&v))))
                .collect();
            root.set("data", Node::Map(Map::from_entries(data)));
        }
    }
    if args.options.immutable {
        root.set(
            "immutable",
            Node::Scalar(Scalar {
                text: "true".into(),
                tag: Tag::Bool,
                style: Style::Plain,
            }),
        );
    }
    let mut resource = Resource::new(root);
    resource.generated = true;
    resource.needs_hash = !args.options.disable_name_suffix_hash;
    resource.behavior = match args.behavior.as_str() {
        "merge" => Behavior::Merge,
        "replace" => Behavior::Replace,
        _ => Behavior::Create,
    };
    Ok(resource)
}

fn metadata(args: &Generator) -> Map {
    let mut metadata = Map::new();
    metadata.set("name", Node::string(args.name.as_str()));
    if !args.namespace.is_empty() {
        metadata.set("namespace", Node::string(args.namespace.as_str()));
    }
    for (name, entries) in [
        ("labels", &args.options.labels),
        ("annotations", &args.options.annotations),
    ] {
        if !entries.is_empty() {
            let entries = entries
                .iter()
                .map(|(k, v)| (Key::from(k.as_str()), Node::string(v.as_str())))
                .collect();
            metadata.set(name, Node::Map(Map::from_entries(entries)));
        }
    }
    metadata
}

fn text(text: impl Into<Box<str>>) -> Node {
    Node::string(text)
}

fn config_map_data(root: &mut Map, pairs: Vec<(String, Vec<u8>)>) {
    let mut data = Vec::new();
    let mut binary = Vec::new();
    for (key, value) in pairs {
        match String::from_utf8(value) {
            Ok(value) => data.push((Key::from(key), text(value))),
            Err(e) => binary.push((Key::from(key), text(base64_lines(e.as_bytes())))),
        }
    }
    for (field, entries) in [("data", data), ("binaryData", binary)] {
        if !entries.is_empty() {
            root.set(field, Node::Map(Map::from_entries(entries)));
        }
    }
}

/// Base64 in lines of 70 characters, each ended by a newline, when there is more than one line.
fn base64_lines(bytes: &[u8]) -> String {
    const LINE: usize = 70;
    let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
    if encoded.len() < LINE {
        return encoded;
    }
    let mut lines = String::with_capacity(encoded.len() + encoded.len() / LINE + 1);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        lines.push_str(line);
        lines.push('\n');
        rest = after;
    }
    lines
}

fn pairs(
    args: &Generator,
    field: &'static str,
    read: ReadFile<'_>,
    bad: &dyn Fn(String) -> Problem,
) -> Result<Vec<(String, Vec<u8>)>, Problem> {
    let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
    for path in &args.envs {
        let content = read(field, path)?;
        env_pairs(&content, path, &mut pairs).map_err(bad)?;
    }
    for literal in &args.literals {
        match literal.split_once('=') {
            Some((key, value)) if !key.is_empty() => pairs.push((key.to_owned(), unquoted(value).into())),
            _ => return Err(bad(format!("literal {literal:?} is not of the form key=value"))),
        }
    }
    for source in &args.files {
        let (key, path) = file_source(source).map_err(bad)?;
        pairs.push((key.to_owned(), read(field, path)?.to_vec()));
    }
    let mut seen = HashSet::with_capacity(pairs.len());
    for (key, _) in &pairs {
        if !seen.insert(key) {
            return Err(bad(format!("key {key:?} is given twice")));
        }
    }
    Ok(pairs)
}

fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

fn file_source(source: &str) -> Result<(&str, &str), String> {
    match source.split_once('=') {
        None => Ok((
            source.rsplit('/').find(|part| !part.is_empty()).unwrap_or(source),
            source,
        )),
        Some((key, path)) if key.is_empty() || path.is_empty() || path.contains('=') => {
            Err(format!("file source {source:?} is neither a path nor key=path"))
        }
        Some((key, path)) => Ok((key, path)),
    }
}

fn env_pairs(content: &[u8], path: &str, pairs: &mut Vec<(String, Vec<u8>)>) -> Result<(), String> {
    const LONGEST: usize = 64 * 1024;
    for (index, line) in content.split(|b| *b == b'\n').enumerate() {
        let number = index + 1;
        if line.len() >= LONGEST {
            return Err(format!("line {number} of {path:?} is longer than 64 KiB"));
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| format!("line {number} of {path:?} is not UTF-8"))?;
        let line = if index == 0 {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        } else {
            line
        };
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        if !key.is_empty() {
            pairs.push((key.to_owned(), value.into()));
        }
    }
    Ok(())
}

/// Adds a generated resource by its behavior.
pub(crate) fn absorb(resources: &mut Vec<Resource>, mut new: Resource) -> Result<(), Problem> {
    let id = new.id();
    let matching: Vec<usize> = (0..resources.len())
        .filter(|&i| resources[i].any_id().any(|o| o == id))
        .collect();
    match (matching.as_slice(), new.behavior) {
        ([], Behavior::Create) => resources.push(new),
        ([], _) => return Err(Problem::NothingToMerge { id: id.to_string() }),
        ([_], Behavior::Create) => return Err(Problem::GeneratedTwice { id: id.to_string() }),
        ([at], behavior) => {
            take_over(&mut new, &resources[*at], behavior == Behavior::Merge);
            resources[*at] = new;
        }
        _ => return Err(Problem::PatchAmbiguous { id: id.to_string() }),
    }
    Ok(())
}

/// What a merging or replacing resource takes from the one it meets.
fn take_over(new: &mut Resource, old: &Resource, merge: bool) {
    for field in ["labels", "annotations"] {
        let merged = merged_text(&old.meta_map(field), &new.meta_map(field));
        let metadata = new.metadata_mut();
        metadata.remove(field);
        if !merged.is_empty() {
            metadata.set(field, Node::Map(merged));
        }
    }
    let (name, namespace) = (old.name().to_owned(), old.namespace().to_owned());
    new.set_name(&name);
    new.set_namespace(&namespace);
    new.previous.clone_from(&old.previous);
    new.prefixes.clone_from(&old.prefixes);
    new.suffixes.clone_from(&old.suffixes);
    new.needs_hash &= old.needs_hash;
    new.generated = old.generated;
    new.vars.clone_from(&old.vars);
    if !merge {
        if let (Some(new), Some(old)) = (&mut new.origin, &old.origin) {
            new.transformations.clone_from(&old.transformations);
        }
        return;
    }
    new.origin.clone_from(&old.origin);
    for field in ["data", "binaryData"] {
        let merged = merged_text(&entries(&old.root, field), &entries(&new.root, field));
        new.root.remove(field);
        if !merged.is_empty() {
            new.root.set(field, Node::Map(merged));
        }
    }
}

fn entries<'m>(root: &'m Map, field: &str) -> Vec<(&'m str, &'m str)> {
    let Some(Node::Map(map)) = root.get(field) else {
        return Vec::new();
    };
    map.iter().map(|(k, v)| (&**k, v.text().unwrap_or(""))).collect()
}

/// Both, the second winning, in key order.
fn merged_text(old: &[(&str, &str)], new: &[(&str, &str)]) -> Map {
    let merged: std::collections::BTreeMap<&str, &str> = old.iter().chain(new).copied().collect();
    Map::from_entries(merged.into_iter().map(|(k, v)| (Key::from(k), text(v))).collect())
}

/// Ends the names of generated resources in the hash of their content.
pub(crate) fn add_hashes(resources: &mut [Resource]) -> Result<(), Problem> {
    for resource in resources.iter_mut().filter(|r| r.needs_hash) {
        let hash = hash(resource)?;
        resource.record_id();
        let name = format!("{}-{hash}", resource.name());
        resource.set_name(&name);
    }
    Ok(())
}

/// Ten characters of the SHA-256 of what makes the content, letters replaced so that no word appears.
fn hash(resource: &Resource) -> Result<String, Problem> {
    let value_of = |field: &str| -> Result<Value, Problem> {
        match resource.root.get(field) {
            None => Ok(Value::String(String::new())),
            Some(Node::Scalar(scalar)) => Ok(Value::String(scalar.text.to_string())),
            Some(node) => node.to_value().map_err(|source| Problem::Value {
                id: resource.id().to_string(),
                source,
            }),
        }
    };
    let kind = resource.kind();
    let mut object = JsonMap::new();
    let extra = match kind {
        "ConfigMap" => "binaryData",
        "Secret" => "stringData",
        _ => "",
    };
    if extra.is_empty() {
        object.insert("object".to_owned(), value_of("data")?);
    } else {
        object.insert("kind".to_owned(), kind.into());
        object.insert("name".to_owned(), "".into());
        object.insert("data".to_owned(), value_of("data")?);
        if kind == "Secret" {
            object.insert("type".to_owned(), value_of("type")?);
        }
        let value = value_of(extra)?;
        if value.is_object() {
            object.insert(extra.to_owned(), value);
        }
    }
    let digest = Sha256::digest(gojson::compact(&Value::Object(object)).as_bytes());
    let mut hex = String::with_capacity(10);
    for byte in digest.iter().take(5) {
        for nibble in [byte >> 4, byte & 15] {
            hex.push(match nibble {
                0 => 'g',
                1 => 'h',
                3 => 'k',
                10 => 'm',
                14 => 't',
                n @ 0..=9 => char::from(b'0' + n),
                n => char::from(b'a' + n - 10),
            });
        }
    }
    Ok(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(kind: Kind, literals: &[&str], files: &[(&str, &[u8])]) -> Resource {
        let args = Generator {
            name: "n".into(),
            literals: literals.iter().map(|l| (*l).to_owned()).collect(),
            files: files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            ..Generator::default()
        };
        let read = |_: &'static str, path: &str| {
            let found = files.iter().find(|(name, _)| *name == path);
            Ok(bytes::Bytes::copy_from_slice(found.unwrap().1))
        };
        generate(kind, &args, &read).unwrap()
    }

    fn name(mut resource: Resource) -> String {
        add_hashes(std::slice::from_mut(&mut resource)).unwrap();
        resource.name().to_owned()
    }

    /// Taken from runs of kustomize.
    #[test]
    fn hashes_are_those_of_the_reference() {
        assert_eq!(name(generated(Kind::ConfigMap, &["a=b"], &[])), "n-4h2mbtbbt6");
        assert_eq!(name(generated(Kind::ConfigMap, &["k=v"], &[])), "n-bdg947hgcc");
        assert_eq!(name(generated(Kind::ConfigMap, &[], &[])), "n-6ct58987ht");
        assert_eq!(name(generated(Kind::Secret, &["k=v"], &[])), "n-ftgtgc4t9f");
        assert_eq!(name(generated(Kind::Secret, &[], &[])), "n-46f8b28mk5");
        let binary = generated(Kind::ConfigMap, &["k=<b>&\u{2028}é"], &[("b.bin", &[0xff, 0xfe, 0])]);
        assert_eq!(name(binary), "n-f58m6c4hf5");
        let long: Vec<u8> = std::iter::once(0xff).chain(std::iter::repeat_n(b'a', 100)).collect();
        let lines = generated(Kind::ConfigMap, &[], &[("a.txt", b"x\r\ny"), ("l.bin", &long)]);
        assert_eq!(name(lines), "n-tggm5fbc76");
    }

    #[test]
    fn env_files_are_read_line_by_line() {
        let mut pairs = Vec::new();
        let text = "\u{feff}A=1\r\n  # no\n\n B = 2 \nC\nD='x'\n".as_bytes();
        env_pairs(text, "e", &mut pairs).unwrap();
        let found: Vec<(&str, &str)> = pairs
            .iter()
            .map(|(k, v)| (k.as_str(), std::str::from_utf8(v).unwrap()))
            .collect();
        assert_eq!(found, [("A", "1"), ("B ", " 2 "), ("C", ""), ("D", "'x'")]);
        assert!(env_pairs(b"\xff=1", "e", &mut pairs).is_err());
        assert!(env_pairs(&[b'x'; 70_000], "e", &mut pairs).is_err());
    }

    #[test]
    fn literals_lose_one_pair_of_quotes() {
        assert_eq!(unquoted("'a'"), "a");
        assert_eq!(unquoted("\"\"a\"\""), "\"a\"");
        assert_eq!(unquoted("'"), "'");
        assert_eq!(unquoted("'a\""), "'a\"");
        assert!(file_source("a=b=c").is_err() && file_source("=b").is_err() && file_source("a=").is_err());
        assert_eq!(file_source("x/y.txt").unwrap(), ("y.txt", "x/y.txt"));
    }
}
