//! The shape of kustomization files: field names without regard to case, unknown fields, wrong types.
//!
//! The reference reads them through Go's JSON decoder; this walk gives the same verdicts with a field path in
//! every message, and leaves a value that plain structs can read.

use serde_json::{Map, Value};

/// Shape of a field.
pub(crate) enum Shape {
    Str,
    Bool,
    Int,
    /// Not looked into.
    Any,
    List(&'static Shape),
    MapOf(&'static Shape),
    Object(&'static [(&'static str, &'static Shape)]),
}

use Shape::{Any, Bool, Int, List, MapOf, Object, Str};

const STRINGS: Shape = List(&Str);
const STRING_MAP: Shape = MapOf(&Str);
const FIELD_SPEC: Shape = Object(&[
    ("group", &Str),
    ("version", &Str),
    ("kind", &Str),
    ("path", &Str),
    ("create", &Bool),
]);
pub(crate) const FIELD_SPECS: Shape = List(&FIELD_SPEC);
pub(crate) const SELECTOR: Shape = Object(&[
    ("group", &Str),
    ("version", &Str),
    ("kind", &Str),
    ("name", &Str),
    ("namespace", &Str),
    ("labelSelector", &Str),
    ("annotationSelector", &Str),
]);
const PATCH: Shape = Object(&[
    ("path", &Str),
    ("patch", &Str),
    ("target", &SELECTOR),
    (
        "options",
        &Object(&[("allowNameChange", &Bool), ("allowKindChange", &Bool)]),
    ),
]);
pub(crate) const IMAGE: Shape = Object(&[
    ("name", &Str),
    ("newName", &Str),
    ("tagSuffix", &Str),
    ("newTag", &Str),
    ("digest", &Str),
]);
pub(crate) const REPLICA: Shape = Object(&[("name", &Str), ("count", &Int)]);
const FIELD_OPTIONS: Shape = Object(&[
    ("delimiter", &Str),
    ("index", &Int),
    ("encoding", &Str),
    ("create", &Bool),
]);
const REPLACEMENT_SOURCE: Shape = Object(&[
    ("group", &Str),
    ("version", &Str),
    ("kind", &Str),
    ("name", &Str),
    ("namespace", &Str),
    ("fieldPath", &Str),
    ("options", &FIELD_OPTIONS),
]);
const REPLACEMENT_TARGET: Shape = Object(&[
    ("select", &SELECTOR),
    ("reject", &List(&SELECTOR)),
    ("fieldPaths", &STRINGS),
    ("options", &FIELD_OPTIONS),
]);
pub(crate) const REPLACEMENT: Shape = Object(&[
    ("path", &Str),
    ("source", &REPLACEMENT_SOURCE),
    ("sourceValue", &Str),
    ("targets", &List(&REPLACEMENT_TARGET)),
]);
const GENERATOR_OPTIONS: Shape = Object(&[
    ("labels", &STRING_MAP),
    ("annotations", &STRING_MAP),
    ("disableNameSuffixHash", &Bool),
    ("immutable", &Bool),
]);
const CONFIG_MAP_ARGS: Shape = Object(&[
    ("name", &Str),
    ("namespace", &Str),
    ("behavior", &Str),
    ("literals", &STRINGS),
    ("files", &STRINGS),
    ("envs", &STRINGS),
    ("env", &Str),
    ("options", &GENERATOR_OPTIONS),
]);
const SECRET_ARGS: Shape = Object(&[
    ("name", &Str),
    ("namespace", &Str),
    ("behavior", &Str),
    ("literals", &STRINGS),
    ("files", &STRINGS),
    ("envs", &STRINGS),
    ("env", &Str),
    ("options", &GENERATOR_OPTIONS),
    ("type", &Str),
]);
const LABEL: Shape = Object(&[
    ("pairs", &STRING_MAP),
    ("includeSelectors", &Bool),
    ("includeTemplates", &Bool),
    ("fields", &FIELD_SPECS),
]);
const VAR: Shape = Object(&[
    ("name", &Str),
    (
        "objref",
        &Object(&[
            ("apiVersion", &Str),
            ("group", &Str),
            ("version", &Str),
            ("kind", &Str),
            ("name", &Str),
            ("namespace", &Str),
        ]),
    ),
    ("fieldref", &Object(&[("fieldPath", &Str)])),
]);
const SORT_OPTIONS: Shape = Object(&[
    ("order", &Str),
    (
        "legacySortOptions",
        &Object(&[("orderFirst", &STRINGS), ("orderLast", &STRINGS)]),
    ),
]);
const METADATA: Shape = Object(&[
    ("name", &Str),
    ("namespace", &Str),
    ("labels", &STRING_MAP),
    ("annotations", &STRING_MAP),
]);

/// A kustomization file.
pub(crate) const KUSTOMIZATION: Shape = Object(&[
    ("apiVersion", &Str),
    ("kind", &Str),
    ("metadata", &METADATA),
    ("openapi", &STRING_MAP),
    ("namePrefix", &Str),
    ("nameSuffix", &Str),
    ("namespace", &Str),
    ("commonLabels", &STRING_MAP),
    ("labels", &List(&LABEL)),
    ("commonAnnotations", &STRING_MAP),
    ("patchesStrategicMerge", &STRINGS),
    ("patchesJson6902", &List(&PATCH)),
    ("patches", &List(&PATCH)),
    ("images", &List(&IMAGE)),
    ("imageTags", &List(&IMAGE)),
    ("replacements", &List(&REPLACEMENT)),
    ("replicas", &List(&REPLICA)),
    ("vars", &List(&VAR)),
    ("sortOptions", &SORT_OPTIONS),
    ("resources", &STRINGS),
    ("components", &STRINGS),
    ("crds", &STRINGS),
    ("bases", &STRINGS),
    ("configMapGenerator", &List(&CONFIG_MAP_ARGS)),
    ("secretGenerator", &List(&SECRET_ARGS)),
    ("helmGlobals", &Any),
    ("helmCharts", &List(&Any)),
    ("helmChartInflationGenerator", &List(&Any)),
    ("generatorOptions", &GENERATOR_OPTIONS),
    ("configurations", &STRINGS),
    ("generators", &STRINGS),
    ("transformers", &STRINGS),
    ("validators", &STRINGS),
    ("buildMetadata", &STRINGS),
]);

const PLUGIN_METADATA: Shape = Object(&[("name", &Str), ("namespace", &Str)]);
const VALUE_TARGETS: Shape = List(&Object(&[
    ("selector", &SELECTOR),
    ("fieldPath", &Str),
    ("filePathPosition", &Int),
]));
/// A file of value-add targets.
pub(crate) const VALUE_TARGET_FILE: Shape = Object(&[("targets", &VALUE_TARGETS)]);

/// The configuration of a built-in plugin; `None` for kinds that do not exist.
pub(crate) fn plugin(kind: &str) -> Option<&'static Shape> {
    Some(match kind {
        "ConfigMapGenerator" => &CONFIG_MAP_PLUGIN,
        "SecretGenerator" => &SECRET_PLUGIN,
        "IAMPolicyGenerator" => &IAM_PLUGIN,
        "PatchTransformer" => &PATCH_PLUGIN,
        "NamespaceTransformer"
        | "PrefixTransformer"
        | "SuffixTransformer"
        | "PrefixSuffixTransformer"
        | "LabelTransformer"
        | "AnnotationsTransformer"
        | "ImageTagTransformer"
        | "ReplicaCountTransformer"
        | "PatchStrategicMergeTransformer"
        | "PatchJson6902Transformer"
        | "ReplacementTransformer"
        | "ValueAddTransformer"
        | "HashTransformer" => &TRANSFORMER_PLUGIN,
        _ => return None,
    })
}

const CONFIG_MAP_PLUGIN: Shape = Object(&[
    ("metadata", &PLUGIN_METADATA),
    ("name", &Str),
    ("namespace", &Str),
    ("behavior", &Str),
    ("literals", &STRINGS),
    ("files", &STRINGS),
    ("envs", &STRINGS),
    ("env", &Str),
    ("options", &GENERATOR_OPTIONS),
]);
const SECRET_PLUGIN: Shape = Object(&[
    ("metadata", &PLUGIN_METADATA),
    ("name", &Str),
    ("namespace", &Str),
    ("behavior", &Str),
    ("literals", &STRINGS),
    ("files", &STRINGS),
    ("envs", &STRINGS),
    ("env", &Str),
    ("options", &GENERATOR_OPTIONS),
    ("type", &Str),
]);
const IAM_PLUGIN: Shape = Object(&[
    ("cloud", &Str),
    ("kubernetesService", &PLUGIN_METADATA),
    ("serviceAccount", &Object(&[("name", &Str), ("projectId", &Str)])),
]);
const PATCH_PLUGIN: Shape = PATCH;
const TRANSFORMER_PLUGIN: Shape = Object(&[
    ("metadata", &PLUGIN_METADATA),
    ("fieldSpecs", &FIELD_SPECS),
    ("unsetOnly", &Bool),
    ("setRoleBindingSubjects", &Str),
    ("prefix", &Str),
    ("suffix", &Str),
    ("labels", &STRING_MAP),
    ("annotations", &STRING_MAP),
    ("imageTag", &IMAGE),
    ("replica", &REPLICA),
    ("path", &Str),
    ("target", &SELECTOR),
    ("jsonOp", &Str),
    ("paths", &STRINGS),
    ("patches", &Str),
    ("replacements", &List(&REPLACEMENT)),
    ("value", &Str),
    ("targets", &VALUE_TARGETS),
    ("targetFilePath", &Str),
]);

/// How forgiving the walk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// As kustomize reads every layer.
    Strict,
    /// As Flux reads and rewrites the root: unknown fields are dropped, numbers and booleans become text.
    Lenient,
    /// As plugin configurations are read: unknown fields are dropped.
    IgnoreUnknown,
}

/// A field that cannot be read.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ShapeError {
    /// Not a field of this kind of file.
    #[error("unknown field {0:?}; check the spelling, or remove it")]
    UnknownField(String),
    /// A value of another type.
    #[error("field {field:?} needs {expected}, found {found}{hint}")]
    WrongType {
        /// Path of the field.
        field: String,
        /// What it takes.
        expected: &'static str,
        /// What is there.
        found: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

/// Brings `value` into the given shape: names as spelled in the shape, nulls removed. Fields that were dropped
/// because the reading is lenient are pushed to `dropped`.
///
/// # Errors
/// The first field that does not fit.
pub(crate) fn fit(
    value: Value,
    shape: &Shape,
    strictness: Strictness,
    dropped: &mut Vec<String>,
) -> Result<Value, ShapeError> {
    Walk { strictness, dropped }.fit(value, shape, "")
}

struct Walk<'a> {
    strictness: Strictness,
    dropped: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn fit(&mut self, value: Value, shape: &Shape, path: &str) -> Result<Value, ShapeError> {
        match (shape, value) {
            (Any, value) => Ok(value),
            (Str, value @ Value::String(_)) | (Bool, value @ Value::Bool(_)) => Ok(value),
            (Str, value) => self.text(value, path),
            (Bool, other) => Err(wrong(path, "true or false", &other, "")),
            (Int, Value::Number(n)) if n.is_i64() => Ok(Value::Number(n)),
            (Int, other) => Err(wrong(path, "a whole number", &other, "")),
            (List(item), Value::Array(items)) => {
                let fitted: Result<Vec<Value>, ShapeError> = items
                    .into_iter()
                    .enumerate()
                    .map(|(i, v)| self.item(v, item, &format!("{path}[{i}]")))
                    .collect();
                fitted.map(Value::Array)
            }
            (List(_), other) => Err(wrong(path, "a list", &other, "")),
            (MapOf(item), Value::Object(map)) => {
                let mut fitted = Map::with_capacity(map.len());
                for (key, value) in map {
                    let value = self.item(value, item, &join(path, &key))?;
                    fitted.insert(key, value);
                }
                Ok(Value::Object(fitted))
            }
            (MapOf(_), other) => Err(wrong(path, "a mapping", &other, "")),
            (Object(fields), Value::Object(map)) => self.object(map, fields, path),
            (Object(_), other) => Err(wrong(path, "a mapping", &other, "")),
        }
    }

    /// An element of a list or map: null stands for the empty value.
    fn item(&mut self, value: Value, shape: &Shape, path: &str) -> Result<Value, ShapeError> {
        if !value.is_null() {
            return self.fit(value, shape, path);
        }
        Ok(match shape {
            Str => Value::String(String::new()),
            Bool => Value::Bool(false),
            Int => Value::from(0),
            Any => Value::Null,
            List(_) => Value::Array(Vec::new()),
            MapOf(_) | Object(_) => Value::Object(Map::new()),
        })
    }

    fn object(
        &mut self,
        map: Map<String, Value>,
        fields: &[(&'static str, &'static Shape)],
        path: &str,
    ) -> Result<Value, ShapeError> {
        let mut fitted = Map::with_capacity(map.len());
        for (key, value) in map {
            let field = fields
                .iter()
                .find(|(name, _)| *name == key)
                .or_else(|| fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(&key)));
            let here = join(path, &key);
            let Some((name, shape)) = field else {
                if self.strictness == Strictness::Strict {
                    return Err(ShapeError::UnknownField(here));
                }
                self.dropped.push(here);
                continue;
            };
            if !value.is_null() {
                let value = self.fit(value, shape, &here)?;
                fitted.insert((*name).to_owned(), value);
            }
        }
        Ok(Value::Object(fitted))
    }

    fn text(&self, value: Value, path: &str) -> Result<Value, ShapeError> {
        match (&value, self.strictness) {
            (Value::Bool(b), Strictness::Lenient) => Ok(Value::String(b.to_string())),
            (Value::Number(n), Strictness::Lenient) => Ok(Value::String(match n.as_f64() {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "single precision is what the reference prints"
                )]
                Some(f) if n.is_f64() => (f as f32).to_string(),
                _ => n.to_string(),
            })),
            (Value::Bool(_) | Value::Number(_), _) => Err(wrong(path, "text", &value, "; put it in quotes")),
            _ => Err(wrong(path, "text", &value, "")),
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn wrong(path: &str, expected: &'static str, found: &Value, hint: &'static str) -> ShapeError {
    let found = match found {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    let field = if path.is_empty() {
        "(the whole file)".to_owned()
    } else {
        path.to_owned()
    };
    ShapeError::WrongType {
        field,
        expected,
        found,
        hint,
    }
}
