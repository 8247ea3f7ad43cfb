//! The definitions as a whole: fresh on disk, and within what an API server accepts (api 2, 13).

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::api::crd::{crds, render};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crds")
}

fn definition(kind: &str) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .expect("a definition of the kind");
    serde_json::to_value(crd).unwrap()
}

fn root(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

#[test]
fn files_are_fresh() {
    let rendered = render().unwrap();
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::create_dir_all(directory()).unwrap();
        for (file, text) in &rendered {
            std::fs::write(directory().join(file), text).unwrap();
        }
    }
    for (file, text) in &rendered {
        let stored = std::fs::read_to_string(directory().join(file)).unwrap_or_default();
        assert!(
            stored == *text,
            "crds/{file} is stale: run `UPDATE_CRDS=1 cargo test --lib files_are_fresh`"
        );
    }
    let mut stored: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: Vec<String> = rendered.into_iter().map(|(file, _)| file).collect();
    stored.sort();
    expected.sort();
    assert_eq!(stored, expected, "crds/ holds a file that is not generated");
}

#[test]
fn files_read_back_as_the_same_definitions() {
    for ((file, text), crd) in render().unwrap().iter().zip(crds()) {
        let read: CustomResourceDefinition = serde_yaml::from_str(text).unwrap();
        assert_eq!(read, crd, "{file}");
        // A YAML 1.1 reader, which kubectl's is, takes these words for booleans unless quoted.
        for word in ["True", "False", "yes", "no", "on", "off", "y", "n"] {
            assert!(!text.contains(&format!("- {word}\n")), "{file}: {word} is not quoted");
        }
    }
}

#[test]
fn names_and_scope() {
    let expected = [
        ("stagesets", "stageset", "StageSet", "StageSetList", json!(null), true),
        (
            "stageinventories",
            "stageinventory",
            "StageInventory",
            "StageInventoryList",
            json!(null),
            false,
        ),
        (
            "stageledgers",
            "stageledger",
            "StageLedger",
            "StageLedgerList",
            json!(["sledger"]),
            true,
        ),
    ];
    for (plural, singular, kind, list_kind, short_names, has_status) in expected {
        let crd = definition(kind);
        assert_eq!(crd["metadata"]["name"], format!("{plural}.stages.metio.wtf"));
        assert_eq!(crd["spec"]["group"], "stages.metio.wtf");
        assert_eq!(crd["spec"]["scope"], "Namespaced");
        let names = &crd["spec"]["names"];
        assert_eq!(names["plural"], plural);
        assert_eq!(names["singular"], singular);
        assert_eq!(names["listKind"].as_str().unwrap_or(list_kind), list_kind);
        let given = names
            .get("shortNames")
            .cloned()
            .filter(|n| n != &json!([]))
            .unwrap_or(json!(null));
        assert_eq!(given, short_names, "{kind}");
        assert!(
            names.get("categories").is_none_or(|c| c == &json!([])),
            "{kind} has categories"
        );
        let versions = crd["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1);
        assert_eq!(versions[0]["name"], "v1");
        assert_eq!(
            (&versions[0]["served"], &versions[0]["storage"]),
            (&json!(true), &json!(true))
        );
        let subresources = versions[0].get("subresources").cloned().unwrap_or(json!({}));
        assert_eq!(
            subresources,
            if has_status { json!({"status": {}}) } else { json!({}) },
            "{kind}"
        );
        assert_eq!(root(&crd)["required"], json!(["spec"]), "{kind}");
    }
}

#[test]
fn columns() {
    let columns = |kind: &str| -> Vec<(String, String, i64, String)> {
        let crd = definition(kind);
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
            .as_array()
            .unwrap()
            .clone();
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        columns
            .iter()
            .map(|c| {
                (
                    text(&c["name"]),
                    text(&c["type"]),
                    c["priority"].as_i64().unwrap_or(0),
                    text(&c["jsonPath"]),
                )
            })
            .collect()
    };
    let expected = |rows: &[(&str, &str, i64, &str)]| -> Vec<(String, String, i64, String)> {
        rows.iter()
            .map(|(n, t, p, j)| ((*n).into(), (*t).into(), *p, (*j).into()))
            .collect()
    };
    assert_eq!(
        columns("StageSet"),
        expected(&[
            ("Ready", "string", 0, r#".status.conditions[?(@.type=="Ready")].status"#),
            (
                "Reason",
                "string",
                0,
                r#".status.conditions[?(@.type=="Ready")].reason"#
            ),
            (
                "Status",
                "string",
                0,
                r#".status.conditions[?(@.type=="Ready")].message"#
            ),
            ("Age", "date", 0, ".metadata.creationTimestamp"),
        ])
    );
    assert_eq!(
        columns("StageInventory"),
        expected(&[
            ("Stage", "string", 0, r".metadata.labels.stages\.metio\.wtf/stage"),
            ("Age", "date", 0, ".metadata.creationTimestamp"),
        ])
    );
    assert_eq!(
        columns("StageLedger"),
        expected(&[
            ("Completed", "string", 1, ".status.summary"),
            ("Age", "date", 0, ".metadata.creationTimestamp"),
        ])
    );
}

/// Rules: run 17.2 applyset
#[test]
fn inventories_may_be_applyset_parents() {
    let label = |kind: &str| definition(kind)["metadata"]["labels"]["applyset.kubernetes.io/is-parent-type"].clone();
    assert_eq!(label("StageInventory"), "true");
    assert_eq!(label("StageSet"), Value::Null);
    assert_eq!(label("StageLedger"), Value::Null);
}

/// Rules: run B21
#[test]
fn names_that_become_label_values_are_bounded() {
    let crd = definition("StageSet");
    assert_eq!(
        root(&crd)["properties"]["metadata"]["properties"]["name"]["maxLength"],
        63
    );
    let stage = &root(&crd)["properties"]["spec"]["properties"]["stages"]["items"];
    assert_eq!(stage["properties"]["name"]["maxLength"], 63);
}

/// Rules: run 6 kubeconfig, decisions 1.1
#[test]
fn kube_config_needs_exactly_one_reference() {
    let crd = definition("StageSet");
    let rules = root(&crd)["properties"]["spec"]["properties"]["kubeConfig"]["x-kubernetes-validations"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(rules.len(), 2);
    for rule in rules {
        let message = rule["message"].as_str().unwrap();
        assert!(message.contains("spec.kubeConfig.secretRef") && message.contains("spec.kubeConfig.configMapRef"));
    }
}

/// Calls `visit` with every schema of a kind and its path.
fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        walk(property, &path, visit);
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), visit);
    }
    if let Some(values) = schema.get("additionalProperties") {
        walk(values, &format!("{path}{{}}"), visit);
    }
}

fn for_each_schema(mut visit: impl FnMut(&str, &str, &Value)) {
    for kind in ["StageSet", "StageInventory", "StageLedger"] {
        walk(root(&definition(kind)), "", &mut |path, schema| {
            visit(kind, path, schema)
        });
    }
}

#[test]
fn schemas_use_only_what_a_structural_schema_may() {
    const ALLOWED: [&str; 20] = [
        "type",
        "format",
        "description",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
        "title",
        "example",
    ];
    for_each_schema(|kind, path, schema| {
        let schema = schema
            .as_object()
            .unwrap_or_else(|| panic!("{kind} {path}: a schema must be an object"));
        for keyword in schema.keys() {
            assert!(ALLOWED.contains(&keyword.as_str()), "{kind} {path}: keyword {keyword}");
        }
        assert!(schema["type"].is_string(), "{kind} {path}: no type");
        assert_ne!(schema.get("additionalProperties"), Some(&json!(false)), "{kind} {path}");
    });
}

#[test]
fn every_field_is_explained() {
    let mut count = 0;
    for_each_schema(|kind, path, schema| {
        if path.ends_with("[]") || path.ends_with("{}") || path.starts_with("metadata") || path == "status" {
            return;
        }
        count += 1;
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(
            text.len() >= 5 && text.ends_with('.'),
            "{kind} {path}: description {text:?}"
        );
        assert!(
            !text.contains('`') && !text.contains('\n'),
            "{kind} {path}: plain text only: {text:?}"
        );
    });
    assert!(count > 500, "{count}");
}

#[test]
fn formats() {
    let dates = [
        "from",
        "to",
        "nextWindowOpens",
        "since",
        "soakUntil",
        "time",
        "completedAt",
        "lastTransitionTime",
        "startedAt",
        "stepStartedAt",
    ];
    let wide = ["observedGeneration", "entriesCount", "generation"];
    for_each_schema(|kind, path, schema| {
        let leaf = path.rsplit('.').next().unwrap_or(path);
        let is_migration_boundary = path.contains("igrations[]");
        let expected = match schema["type"].as_str() {
            Some("integer") if wide.contains(&leaf) => Some("int64"),
            Some("integer") => Some("int32"),
            Some("string") if dates.contains(&leaf) && !is_migration_boundary => Some("date-time"),
            _ => None,
        };
        assert_eq!(schema["format"].as_str(), expected, "{kind} {path}");
    });
}

#[test]
fn selectors_are_atomic() {
    let mut selectors = 0;
    for_each_schema(|kind, path, schema| {
        let is_selector = path.ends_with(".selector");
        assert_eq!(
            schema["x-kubernetes-map-type"].as_str(),
            is_selector.then_some("atomic"),
            "{kind} {path}"
        );
        selectors += usize::from(is_selector);
    });
    assert_eq!(selectors, 8, "six patch targets and two promotion gates");
}

#[test]
fn lists_that_are_maps_require_their_keys() {
    for_each_schema(|kind, path, schema| {
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let required = schema["items"]["required"].as_array().cloned().unwrap_or_default();
            assert!(required.contains(key), "{kind} {path}: {key} is not required");
        }
    });
}

#[test]
fn condition_lengths() {
    for_each_schema(|kind, path, schema| {
        let Some(field) = path.strip_prefix("status.conditions[].") else {
            return;
        };
        let bounds = (schema["minLength"].as_u64(), schema["maxLength"].as_u64());
        let expected = match field {
            "reason" => (Some(1), Some(1024)),
            "message" => (None, Some(32768)),
            "type" => (None, Some(316)),
            _ => (None, None),
        };
        assert_eq!(bounds, expected, "{kind} {path}");
    });
}

#[test]
fn a_definition_fits_into_the_annotation_of_a_client_side_apply() {
    for crd in crds() {
        let size = serde_json::to_string(&crd).unwrap().len();
        assert!(size < 262_144, "{}: {size} bytes", crd.spec.names.kind);
    }
}
