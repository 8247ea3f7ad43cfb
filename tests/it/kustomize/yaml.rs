//! Reading and writing YAML against Go's libraries, on tables of texts and values.

use serde::Deserialize;
use serde_json::{Value, json};
use stageset::manifest::yaml::{self, Mode};

use super::oracle;

const MODES: [Mode; 2] = [Mode::Kustomize, Mode::Kubectl];

#[derive(Deserialize)]
struct Row {
    name: String,
    text: String,
    /// Why both differ on purpose.
    #[serde(default)]
    differs: Option<String>,
}

#[derive(Deserialize)]
struct Values {
    texts: Vec<String>,
    objects: Vec<Value>,
}

fn rows() -> Vec<Row> {
    include_str!("yaml-texts.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

/// Every text of the table alone and as a key, and the objects of the table.
fn values() -> Vec<Value> {
    let table: Values = serde_json::from_str(include_str!("yaml-values.json")).unwrap();
    let texts = table.texts.iter();
    let alone = texts
        .clone()
        .flat_map(|text| [json!({"a": text}), json!({"a": [text, {"b": text}]})]);
    let keys = texts.map(|text| json!({"a": {text: 1}}));
    alone.chain(keys).chain(table.objects.iter().cloned()).collect()
}

/// The first document as ours reads it; null when there is none.
fn ours(text: &str, mode: Mode) -> Result<Value, String> {
    let documents = yaml::load(text.as_bytes(), "f", mode).map_err(|e| e.to_string())?;
    Ok(documents.into_iter().next().unwrap_or_default())
}

/// Equal as data: numbers count by value, and nothing is an empty mapping to kustomize.
fn equal(theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn texts_are_read_as_go_reads_them() {
    let mut wrong = Vec::new();
    for row in rows() {
        for mode in MODES {
            let (theirs, ours) = (oracle::read(&row.text, mode), ours(&row.text, mode));
            let same = match (&theirs, &ours) {
                (Ok(theirs), Ok(ours)) => equal(theirs, ours),
                (Err(_), Err(_)) => true,
                _ => false,
            };
            if !same && row.differs.is_none() {
                wrong.push(format!("{} {mode:?}: reference {theirs:?}, ours {ours:?}", row.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} texts:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn differences_on_purpose_still_are_differences() {
    for row in rows().into_iter().filter(|row| row.differs.is_some()) {
        let differ = MODES
            .into_iter()
            .any(|mode| match (oracle::read(&row.text, mode), ours(&row.text, mode)) {
                (Ok(theirs), Ok(ours)) => !equal(&theirs, &ours),
                (theirs, ours) => theirs.is_ok() != ours.is_ok(),
            });
        assert!(differ, "{} is read alike now: {:?}", row.name, row.differs);
    }
}

#[test]
fn go_reads_what_is_written() {
    for value in values() {
        let text = yaml::to_string(&value).unwrap();
        for mode in MODES {
            let theirs = oracle::read(&text, mode);
            let same = theirs.as_ref().is_ok_and(|theirs| equal(theirs, &value));
            assert!(same, "{mode:?}: of {value} written as\n{text}Go makes {theirs:?}");
        }
    }
}

/// Go takes these characters for line breaks, as YAML 1.1 has it; to us they are characters like others.
fn has_old_break(value: &Value) -> bool {
    value.to_string().contains(['\u{85}', '\u{2028}', '\u{2029}'])
}

#[test]
fn what_go_writes_is_read() {
    for value in values().into_iter().filter(|value| !has_old_break(value)) {
        for by in ["kustomize", "kyaml"] {
            // The tree of kustomize cannot hold control characters.
            let Ok(text) = oracle::write(&value, by) else {
                continue;
            };
            for mode in MODES {
                let (theirs, ours) = (oracle::read(&text, mode), ours(&text, mode));
                let same = match (&theirs, &ours) {
                    (Ok(theirs), Ok(ours)) => equal(theirs, ours),
                    (theirs, ours) => theirs.is_err() && ours.is_err(),
                };
                assert!(
                    same,
                    "{by} writes {value} as\n{text}{mode:?}: reference {theirs:?}, ours {ours:?}"
                );
            }
        }
    }
}
