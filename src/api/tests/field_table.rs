//! The definitions against the table of the published schema: every difference is listed here with
//! its reason, and every listed difference must exist.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::crd::crds;

const TABLE: &str = include_str!("../testdata/crd-fields.tsv");

const COLUMNS: [&str; 10] = [
    "type",
    "required",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minItems",
    "listType",
    "listMapKeys",
];

struct Deviation {
    kind: &'static str,
    path: &'static str,
    /// `added` for a row the table does not have, else the column that differs.
    what: &'static str,
    reason: &'static str,
}

const fn deviation(kind: &'static str, path: &'static str, what: &'static str, reason: &'static str) -> Deviation {
    Deviation {
        kind,
        path,
        what,
        reason,
    }
}

const NO_SPEC: &str = "an object without spec has no meaning, and would prune all that was recorded";
const KEYED: &str = "two entries of the same key would contradict each other";
const LABEL_VALUE: &str = "the name becomes a label value, which holds 63 characters";
const RUN_STATE: &str = "state of a run that is resumed after a restart";
const IGNORE: &str = "fields of live objects that are left to others";
const TARGET: &str = "pruning uses the identity and the cluster that were applied to";

const DEVIATIONS: &[Deviation] = &[
    deviation("StageSet", "spec", "required", NO_SPEC),
    deviation("StageInventory", "spec", "required", NO_SPEC),
    deviation("StageLedger", "spec", "required", NO_SPEC),
    deviation("StageSet", "metadata.name", "added", LABEL_VALUE),
    deviation("StageSet", "status.conditions", "listType", KEYED),
    deviation("StageSet", "status.conditions", "listMapKeys", KEYED),
    deviation("StageSet", "status.stages", "listType", KEYED),
    deviation("StageSet", "status.stages", "listMapKeys", KEYED),
    deviation("StageLedger", "status.completedActions", "listType", KEYED),
    deviation("StageLedger", "status.completedActions", "listMapKeys", KEYED),
    deviation(
        "StageSet",
        "spec.stages[].conflictPolicy.default",
        "default",
        "a stored default cannot be told from an authored value and would disarm force",
    ),
    deviation("StageSet", "spec.ignore", "added", IGNORE),
    deviation("StageSet", "spec.stages[].ignore", "added", IGNORE),
    deviation("StageSet", "status.run", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].appliedDigest", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].appliedURL", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].attemptedDigest", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].attemptedRevision", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].inputsDigest", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].step", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].stepStartedAt", "added", RUN_STATE),
    deviation("StageSet", "status.stages[].waitingFor", "added", RUN_STATE),
    deviation(
        "StageLedger",
        "status.summary",
        "added",
        "a printer column shows the first of several values only, so the column reads one text",
    ),
    deviation("StageInventory", "spec.serviceAccountName", "added", TARGET),
    deviation("StageInventory", "spec.target", "added", TARGET),
];

type Row = BTreeMap<&'static str, String>;
type Rows = BTreeMap<(String, String), Row>;

fn table_rows() -> Rows {
    let mut lines = TABLE.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    assert_eq!(header[2..], COLUMNS);
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            assert_eq!(cells.len(), header.len(), "{line}");
            let row = COLUMNS
                .iter()
                .zip(&cells[2..])
                .map(|(column, cell)| (*column, (*cell).to_owned()))
                .collect();
            ((cells[0].to_owned(), cells[1].to_owned()), row)
        })
        .collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Number(number) => number.as_f64().unwrap().to_string(),
        other => other.to_string(),
    }
}

fn row(schema: &Value, required: bool) -> Row {
    let keyword = |column: &'static str| match column {
        "required" => if required { "yes" } else { "no" }.to_owned(),
        "listType" => cell(&schema["x-kubernetes-list-type"]),
        "listMapKeys" => cell(&schema["x-kubernetes-list-map-keys"]),
        same => cell(&schema[same]),
    };
    COLUMNS.iter().map(|column| (*column, keyword(column))).collect()
}

fn collect(kind: &str, path: &str, schema: &Value, rows: &mut Rows) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let add = |path: String, schema: &Value, required: bool, rows: &mut Rows| {
        rows.insert((kind.to_owned(), path.clone()), row(schema, required));
        collect(kind, &path, schema, rows);
    };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        add(path, property, required.contains(&name.as_str()), rows);
    }
    if let Some(items) = schema.get("items") {
        add(format!("{path}[]"), items, false, rows);
    }
    if let Some(values) = schema.get("additionalProperties") {
        add(format!("{path}{{}}"), values, false, rows);
    }
}

fn generated_rows() -> Rows {
    let mut rows = Rows::new();
    for crd in crds() {
        let value = serde_json::to_value(&crd).unwrap();
        let root = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        collect(&crd.spec.names.kind, "", root, &mut rows);
    }
    rows
}

fn parent(path: &str) -> Option<String> {
    let cut = path.strip_suffix("[]").or_else(|| path.strip_suffix("{}"));
    cut.or_else(|| path.rsplit_once('.').map(|(parent, _)| parent))
        .map(str::to_owned)
}

/// Every difference, as (kind, path, what). Of an added tree only its top.
fn differences(table: &Rows, generated: &Rows) -> BTreeSet<(String, String, String)> {
    let mut found = BTreeSet::new();
    let standard = |path: &str| ["apiVersion", "kind", "metadata"].contains(&path);
    for ((kind, path), expected) in table {
        let Some(actual) = generated.get(&(kind.clone(), path.clone())) else {
            if !standard(path) {
                found.insert((kind.clone(), path.clone(), "missing".to_owned()));
            }
            continue;
        };
        for column in COLUMNS.iter().filter(|column| expected[*column] != actual[*column]) {
            found.insert((kind.clone(), path.clone(), (*column).to_owned()));
        }
    }
    for (kind, path) in generated.keys().filter(|key| !table.contains_key(*key)) {
        let is_top = parent(path).is_none_or(|parent| table.contains_key(&(kind.clone(), parent)));
        if is_top && !standard(path) {
            found.insert((kind.clone(), path.clone(), "added".to_owned()));
        }
    }
    found
}

#[test]
fn definitions_follow_the_table_but_for_the_listed_deviations() {
    let found = differences(&table_rows(), &generated_rows());
    let listed: BTreeSet<_> = DEVIATIONS
        .iter()
        .map(|d| (d.kind.to_owned(), d.path.to_owned(), d.what.to_owned()))
        .collect();
    assert_eq!(listed.len(), DEVIATIONS.len(), "a deviation is listed twice");
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "differences that are not listed as deviations: {unlisted:#?}"
    );
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "deviations that do not exist any more: {gone:#?}");
    assert!(
        DEVIATIONS.iter().all(|d| d.reason.len() > 20),
        "every deviation states its reason"
    );
}

#[test]
fn the_comparison_sees_every_kind_of_difference() {
    let table = table_rows();
    assert_eq!(table.len(), 757 + 9 + 29);
    let mut generated = table.clone();
    assert!(differences(&table, &generated).is_empty());
    let key = |path: &str| ("StageSet".to_owned(), path.to_owned());
    generated.remove(&key("spec.suspend"));
    generated
        .get_mut(&key("spec.onTimeout"))
        .unwrap()
        .insert("enum", "Hold".to_owned());
    let extra = generated[&key("spec.interval")].clone();
    generated.insert(key("spec.extra"), extra.clone());
    generated.insert(key("spec.extra.deeper"), extra);
    let found: Vec<_> = differences(&table, &generated)
        .into_iter()
        .map(|(_, path, what)| (path, what))
        .collect();
    let expected = [
        ("spec.extra", "added"),
        ("spec.onTimeout", "enum"),
        ("spec.suspend", "missing"),
    ];
    assert_eq!(found, expected.map(|(path, what)| (path.to_owned(), what.to_owned())));
}
