//! Transformer configuration from files: `configurations` and `crds`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::{NameReference, Spec, SpecConflict, TransformerConfig, merge_specs};
use super::error::Problem;
use super::file::FieldSpec;
use crate::manifest::yaml::{self, Duplicates, Limits, Loader, Mode};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    name_prefix: Option<Vec<FieldSpec>>,
    name_suffix: Option<Vec<FieldSpec>>,
    namespace: Option<Vec<FieldSpec>>,
    common_labels: Option<Vec<FieldSpec>>,
    labels: Option<Vec<FieldSpec>>,
    template_labels: Option<Vec<FieldSpec>>,
    common_annotations: Option<Vec<FieldSpec>>,
    name_reference: Option<Vec<ReferenceRow>>,
    var_reference: Option<Vec<FieldSpec>>,
    images: Option<Vec<FieldSpec>>,
    replicas: Option<Vec<FieldSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ReferenceRow {
    group: String,
    version: String,
    kind: String,
    field_specs: Option<Vec<FieldSpec>>,
}

/// The first document of a file, as a value.
pub(crate) fn value(bytes: &[u8], file: &str, duplicates: Duplicates) -> Result<Value, Problem> {
    let text = yaml::text(bytes, file)?;
    let mut loader = Loader::with(Mode::Kubectl, duplicates, Limits::default());
    match loader.first(text, file, 1)? {
        Some(node) => Ok(yaml::to_value(node, file)?),
        None => Ok(Value::Null),
    }
}

/// Reads one file of `configurations`, strictly.
pub(crate) fn configuration(bytes: &[u8], file: &str) -> Result<TransformerConfig, Problem> {
    let value = value(bytes, file, Duplicates::Reject)?;
    if value.is_null() {
        return Ok(TransformerConfig::default());
    }
    let read: ConfigFile = serde_path_to_error::deserialize(value).map_err(|e| Problem::Content {
        file: file.to_owned(),
        problem: e.to_string(),
    })?;
    let mut config = TransformerConfig::default();
    for (list, specs) in [
        (&mut config.name_prefix, &read.name_prefix),
        (&mut config.name_suffix, &read.name_suffix),
        (&mut config.namespace, &read.namespace),
        (&mut config.common_labels, &read.common_labels),
        (&mut config.labels, &read.labels),
        (&mut config.template_labels, &read.template_labels),
        (&mut config.common_annotations, &read.common_annotations),
        (&mut config.var_reference, &read.var_reference),
        (&mut config.images, &read.images),
        (&mut config.replicas, &read.replicas),
    ] {
        *list = parsed(specs.as_deref());
    }
    for row in read.name_reference.unwrap_or_default() {
        config.add_name_reference(&NameReference {
            group: row.group.into(),
            version: row.version.into(),
            kind: row.kind.into(),
            referrers: parsed(row.field_specs.as_deref()),
        })?;
    }
    Ok(config)
}

fn parsed(specs: Option<&[FieldSpec]>) -> Vec<Spec> {
    specs.unwrap_or_default().iter().map(Spec::from).collect()
}

/// Reads one file of `crds`: OpenAPI definitions by type name.
pub(crate) fn definitions(bytes: &[u8], file: &str) -> Result<TransformerConfig, Problem> {
    let bad = |problem: &str| Problem::Content {
        file: file.to_owned(),
        problem: problem.to_owned(),
    };
    let Value::Object(types) = value(bytes, file, Duplicates::LastWins)? else {
        return Err(bad("crds needs a mapping of type names to OpenAPI definitions"));
    };
    if !types.values().all(Value::is_object) {
        return Err(bad(
            "not OpenAPI definitions by type name; a CustomResourceDefinition belongs into resources",
        ));
    }
    let mut config = TransformerConfig::default();
    for (name, definition) in &types {
        let properties = properties(definition);
        let typed = ["kind", "apiVersion", "metadata"]
            .iter()
            .all(|p| properties.is_some_and(|m| m.contains_key(*p)));
        if typed {
            let kind = name.rsplit('.').next().unwrap_or(name);
            Definitions {
                types: &types,
                kind,
                config: &mut config,
            }
            .walk(name, &mut Vec::new())?;
        }
    }
    Ok(config)
}

fn properties(definition: &Value) -> Option<&Map<String, Value>> {
    let schema = definition.get("Schema").or_else(|| definition.get("schema"))?;
    schema.get("properties")?.as_object()
}

struct Definitions<'a> {
    types: &'a Map<String, Value>,
    kind: &'a str,
    config: &'a mut TransformerConfig,
}

impl Definitions<'_> {
    fn walk(&mut self, name: &str, path: &mut Vec<String>) -> Result<(), SpecConflict> {
        const DEEPEST: usize = 32;
        let Some(properties) = self.types.get(name).and_then(properties) else {
            return Ok(());
        };
        if path.len() > DEEPEST {
            return Ok(());
        }
        for (property, schema) in properties {
            path.push(property.clone());
            self.property(schema, path)?;
            if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
                self.walk(reference, path)?;
            }
            path.pop();
        }
        Ok(())
    }

    fn property(&mut self, schema: &Value, path: &[String]) -> Result<(), SpecConflict> {
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let spec = |path: &str| Spec::new("", "", self.kind, path, false);
        let here = path.join("/");
        if text("x-kubernetes-annotation").is_some() {
            merge_specs(&mut self.config.common_annotations, &[spec(&here)])?;
        }
        if text("x-kubernetes-label-selector").is_some() {
            merge_specs(&mut self.config.common_labels, &[spec(&here)])?;
        }
        if text("x-kubernetes-identity").is_some() {
            merge_specs(&mut self.config.name_prefix, &[spec(&here)])?;
        }
        let version = text("x-kubernetes-object-ref-api-version");
        if let (Some(version), Some(kind)) = (version, text("x-kubernetes-object-ref-kind")) {
            let key = text("x-kubernetes-object-ref-name-key").unwrap_or("name");
            let referrers = vec![spec(&format!("{here}/{key}"))];
            let row = NameReference {
                group: "".into(),
                version: version.into(),
                kind: kind.into(),
                referrers,
            };
            self.config.add_name_reference(&row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_strict() {
        let text = "nameReference:\n- kind: Secret\n  version: v1\n  fieldSpecs:\n  - {kind: Widget, path: spec/secret}\n\
                    varReference:\n- {path: spec/x}\n";
        let config = configuration(text.as_bytes(), "c.yaml").unwrap();
        assert_eq!(&*config.name_reference[0].referrers[0].path, "spec/secret");
        assert_eq!(config.var_reference.len(), 1);
        assert!(configuration(b"nope: []\n", "c.yaml").is_err());
        assert!(configuration(b"images: []\nimages: []\n", "c.yaml").is_err());
    }

    #[test]
    fn crds_are_definitions_by_type_name() {
        let text = r##"{"github.com/x/v1.Widget": {"Schema": {"properties": {"kind": {}, "apiVersion": {}, "metadata": {},
            "spec": {"$ref": "github.com/x/v1.Spec"}}}},
            "github.com/x/v1.Spec": {"Schema": {"properties": {"secretRef": {
                "x-kubernetes-object-ref-api-version": "v1", "x-kubernetes-object-ref-kind": "Secret"}}}}}"##;
        let config = definitions(text.as_bytes(), "d.json").unwrap();
        assert_eq!(&*config.name_reference[0].referrers[0].path, "spec/secretRef/name");
        assert_eq!(&*config.name_reference[0].referrers[0].kind, "Widget");
        assert!(definitions(b"apiVersion: x\nkind: CustomResourceDefinition\n", "d.yaml").is_err());
    }
}
