//! Which lists a strategic merge merges, and by which keys.
//!
//! The table is extracted from the OpenAPI document (Kubernetes 1.21.2) that kustomize 5.8.1 embeds, by
//! `hack/diff/schema`; a test fails when the two differ.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

/// The checked-in table.
pub const TABLE: &str = include_str!("schema.txt");

/// A place in the schema.
pub type NodeId = u32;

type Text = Cow<'static, str>;

#[derive(Debug, Clone, Default)]
struct Entry {
    /// Sorted by name.
    fields: Vec<(Text, NodeId)>,
    others: Option<NodeId>,
    element: Option<NodeId>,
    keys: Option<Arc<[Box<str>]>>,
}

/// Types by apiVersion and kind, and what is below them. Nodes that lead to no merged list are left out.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// apiVersion and kind, sorted.
    kinds: Vec<((Text, Text), NodeId)>,
    nodes: Vec<Entry>,
}

impl Schema {
    /// The built-in schema.
    pub fn builtin() -> Arc<Self> {
        static BUILTIN: OnceLock<Arc<Schema>> = OnceLock::new();
        Arc::clone(BUILTIN.get_or_init(|| Arc::new(Self::parse(TABLE))))
    }

    fn parse(table: &'static str) -> Self {
        let mut schema = Self::default();
        for line in table.lines() {
            let words: Vec<&'static str> = line.split(' ').collect();
            match words[..] {
                ["K", api_version, kind, id] => {
                    if let Ok(id) = id.parse() {
                        schema.kinds.push(((api_version.into(), kind.into()), id));
                    }
                }
                ["N", _, ref fields @ ..] => schema.nodes.push(mapping(fields)),
                ["L", _, element, keys] => schema.nodes.push(list(element, keys)),
                _ => {}
            }
        }
        schema.kinds.sort();
        schema.kinds.shrink_to_fit();
        schema.nodes.shrink_to_fit();
        schema
    }

    /// The place of a type.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<NodeId> {
        let found = self
            .kinds
            .binary_search_by(|((a, k), _)| (&**a, &**k).cmp(&(api_version, kind)));
        found.ok().map(|at| self.kinds[at].1)
    }

    /// The place of a field.
    pub fn field(&self, node: NodeId, name: &str) -> Option<NodeId> {
        let entry = self.nodes.get(node as usize)?;
        let found = entry.fields.binary_search_by(|(field, _)| (**field).cmp(name));
        found.ok().map(|at| entry.fields[at].1).or(entry.others)
    }

    /// The place of a list's elements.
    pub fn element(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.get(node as usize)?.element
    }

    /// The keys of a merged list, empty for lists of primitives; `None` for lists replaced as a whole.
    pub fn merge_keys(&self, node: NodeId) -> Option<Arc<[Box<str>]>> {
        self.nodes.get(node as usize)?.keys.clone()
    }

    /// This schema with the types of an OpenAPI v2 document added; those win.
    pub fn extended(&self, document: &Value) -> Self {
        let mut schema = self.clone();
        let Some(Value::Object(definitions)) = document.get("definitions") else {
            return schema;
        };
        let builtins = !schema.nodes.is_empty();
        let mut import = Import {
            definitions,
            known: HashMap::new(),
            builtins,
            schema: &mut schema,
        };
        for (name, definition) in definitions {
            let Some(Value::Array(kinds)) = definition.get("x-kubernetes-group-version-kind") else {
                continue;
            };
            for gvk in kinds {
                let part = |key| gvk.get(key).and_then(Value::as_str).unwrap_or_default();
                let api_version = match part("group") {
                    "" => part("version").to_owned(),
                    group => format!("{group}/{}", part("version")),
                };
                let id = import.named(name);
                import.schema.set_kind(api_version, part("kind").to_owned(), id);
            }
        }
        schema
    }
}

impl Schema {
    fn set_kind(&mut self, api_version: String, kind: String, id: NodeId) {
        let key = (Text::from(api_version), Text::from(kind));
        match self.kinds.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => self.kinds[at].1 = id,
            Err(at) => self.kinds.insert(at, (key, id)),
        }
    }
}

/// The node of a built-in definition, for documents that refer to it.
fn builtin_definition(name: &str) -> Option<NodeId> {
    TABLE.lines().find_map(|line| {
        line.strip_prefix("D ")?
            .strip_prefix(name)?
            .strip_prefix(' ')?
            .parse()
            .ok()
    })
}

fn mapping(fields: &[&'static str]) -> Entry {
    let mut entry = Entry::default();
    for field in fields {
        if let Some((name, id)) = field.split_once('=')
            && let Ok(id) = id.parse()
        {
            if name == "*" {
                entry.others = Some(id);
            } else {
                entry.fields.push((name.into(), id));
            }
        }
    }
    entry.fields.sort();
    entry.fields.shrink_to_fit();
    entry
}

fn list(element: &str, keys: &str) -> Entry {
    let keys: Option<Arc<[Box<str>]>> = match keys {
        "." => None,
        "-" => Some(Arc::new([])),
        names => Some(names.split(',').map(Box::from).collect()),
    };
    Entry {
        element: element.parse().ok(),
        keys,
        ..Entry::default()
    }
}

/// Reads definitions on demand; a name is registered before its content, so that recursion ends.
struct Import<'a> {
    definitions: &'a serde_json::Map<String, Value>,
    known: HashMap<String, NodeId>,
    /// The schema has the built-in nodes.
    builtins: bool,
    schema: &'a mut Schema,
}

impl Import<'_> {
    fn named(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.known.get(name) {
            return *id;
        }
        let Some(definition) = self.definitions.get(name) else {
            return self
                .builtins
                .then(|| builtin_definition(name))
                .flatten()
                .unwrap_or_else(|| self.add());
        };
        let id = self.add();
        self.known.insert(name.to_owned(), id);
        self.fill(id, definition);
        id
    }

    fn add(&mut self) -> NodeId {
        self.schema.nodes.push(Entry::default());
        u32::try_from(self.schema.nodes.len() - 1).unwrap_or(u32::MAX)
    }

    fn resolve(&mut self, definition: &Value) -> NodeId {
        if let Some(name) = definition.get("$ref").and_then(Value::as_str) {
            return self.named(name.trim_start_matches("#/definitions/"));
        }
        let id = self.add();
        self.fill(id, definition);
        id
    }

    fn fill(&mut self, id: NodeId, definition: &Value) {
        let mut entry = Entry::default();
        if definition.get("type").and_then(Value::as_str) == Some("array") {
            entry.element = definition.get("items").map(|items| self.resolve(items));
            let strategy = definition
                .get("x-kubernetes-patch-strategy")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if strategy.split(',').any(|part| part == "merge") {
                entry.keys = Some(merge_keys(definition));
            }
        }
        if let Some(Value::Object(properties)) = definition.get("properties") {
            for (name, property) in properties {
                let field = self.resolve(property);
                entry.fields.push((name.clone().into(), field));
            }
            entry.fields.sort();
        }
        if let Some(others @ Value::Object(_)) = definition.get("additionalProperties") {
            entry.others = Some(self.resolve(others));
        }
        self.schema.nodes[id as usize] = entry;
    }
}

fn merge_keys(definition: &Value) -> Arc<[Box<str>]> {
    if let Some(Value::Array(keys)) = definition.get("x-kubernetes-list-map-keys") {
        return keys.iter().filter_map(Value::as_str).map(Box::from).collect();
    }
    match definition.get("x-kubernetes-patch-merge-key").and_then(Value::as_str) {
        Some(key) => Arc::new([Box::from(key)]),
        None => Arc::new([]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(schema: &Schema, api_version: &str, kind: &str, path: &[&str]) -> Option<Vec<String>> {
        let mut node = schema.kind(api_version, kind)?;
        for step in path {
            node = if *step == "[]" {
                schema.element(node)?
            } else {
                schema.field(node, step)?
            };
        }
        Some(schema.merge_keys(node)?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_table_has_the_known_merge_lists() {
        let schema = Schema::builtin();
        let containers = ["spec", "template", "spec", "containers"];
        assert_eq!(keys(&schema, "apps/v1", "Deployment", &containers).unwrap(), ["name"]);
        let ports = ["spec", "template", "spec", "containers", "[]", "ports"];
        assert_eq!(
            keys(&schema, "apps/v1", "Deployment", &ports).unwrap(),
            ["containerPort", "protocol"]
        );
        assert_eq!(
            keys(&schema, "v1", "Service", &["spec", "ports"]).unwrap(),
            ["port", "protocol"]
        );
        assert_eq!(
            keys(&schema, "v1", "ConfigMap", &["metadata", "finalizers"]).unwrap(),
            Vec::<String>::new()
        );
        let tolerations = ["spec", "template", "spec", "tolerations"];
        assert_eq!(keys(&schema, "apps/v1", "Deployment", &tolerations), None);
        assert_eq!(keys(&schema, "example.com/v1", "Widget", &[]), None);
        let nested = [
            "spec",
            "jobTemplate",
            "spec",
            "template",
            "spec",
            "initContainers",
            "[]",
            "env",
        ];
        assert_eq!(keys(&schema, "batch/v1beta1", "CronJob", &nested).unwrap(), ["name"]);
    }

    #[test]
    fn documents_add_types() {
        let document = serde_json::json!({"definitions": {"w.v1.Widget": {
            "properties": {"spec": {"properties": {"parts": {"type": "array", "items": {"type": "object"},
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "id"}}}},
            "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Widget"}]}}});
        let schema = Schema::builtin().extended(&document);
        assert_eq!(
            keys(&schema, "example.com/v1", "Widget", &["spec", "parts"]).unwrap(),
            ["id"]
        );
        assert!(keys(&schema, "v1", "Service", &["spec", "ports"]).is_some());
    }
}
