//! Shapes shared by several kinds.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// API group of the three Flux source kinds that are read directly.
pub const FLUX_SOURCE_GROUP: &str = "source.toolkit.fluxcd.io";

/// Kind a source reference means when it names none.
pub const DEFAULT_SOURCE_KIND: &str = "ExternalArtifact";

/// A span of time in Go duration syntax, kept as written. `rules::duration` reads and prints it; a
/// malformed one decodes like any other and is refused by the spec rules (api 3.1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Duration(pub String);

impl Duration {
    /// The text as authored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Duration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Display for Duration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An RFC 3339 instant authored by a person, kept as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, extend("format" = "date-time"))]
pub struct Timestamp(pub String);

impl Timestamp {
    /// The instant, or the reason why the text is none.
    ///
    /// # Errors
    /// The text is not RFC 3339.
    pub fn parse(&self) -> Result<jiff::Timestamp, jiff::Error> {
        self.0.parse()
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Points at the artifact to deploy: a Flux source, an ExternalArtifact, or any object that
/// produces one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// API version of the referent. Defaults to source.toolkit.fluxcd.io/v1 for the Flux kinds; any
    /// other kind is a producer, found by its API group, and must name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind of the referent. GitRepository, OCIRepository, Bucket and ExternalArtifact (the
    /// default) are read directly. Any other kind is a producer: the one ExternalArtifact whose
    /// spec.sourceRef points back at it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the referent.
    pub name: String,
    /// Namespace of the referent. Defaults to the namespace of the StageSet; another one is refused
    /// while the controller forbids cross-namespace references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SourceReference {
    /// Kind of the referent, with the default filled in.
    pub fn kind(&self) -> &str {
        non_empty(&self.kind).unwrap_or(DEFAULT_SOURCE_KIND)
    }

    /// API group named by `apiVersion`; `None` where it is unset.
    pub fn group(&self) -> Option<&str> {
        non_empty(&self.api_version).map(|v| v.split_once('/').map_or("", |(group, _)| group))
    }

    /// Namespace of the referent, given that of the referring object.
    pub fn namespace_or<'a>(&'a self, own: &'a str) -> &'a str {
        non_empty(&self.namespace).unwrap_or(own)
    }

    /// Whether the referent is a producer, to be resolved through the artifact that points back at
    /// it, and not read directly (api 4.1).
    pub fn is_producer(&self) -> bool {
        match self.kind() {
            DEFAULT_SOURCE_KIND => false,
            "GitRepository" | "OCIRepository" | "Bucket" => {
                self.group().is_some_and(|group| group != FLUX_SOURCE_GROUP)
            }
            _ => true,
        }
    }
}

/// Points at one object on the target cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API version of the object, for example apps/v1. Left out, only kinds of the core group are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object. Defaults to the namespace of the StageSet; ignored for
    /// cluster-scoped kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Points at one key of a Secret in the namespace of the StageSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Key inside the Secret. For kubeConfig it defaults to value; elsewhere it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Name of the Secret.
    pub name: String,
}

/// Points at an object in the namespace of the StageSet by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Name of the object.
    pub name: String,
}

/// Selects objects by label. All parts must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Requirements on labels; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelSelectorRequirement>,
    /// Labels and the exact values they must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

impl LabelSelector {
    /// Whether the selector states nothing, and so would select everything.
    pub fn is_empty(&self) -> bool {
        self.match_expressions.is_empty() && self.match_labels.is_empty()
    }
}

/// One requirement on a label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelectorRequirement {
    /// Key of the label.
    pub key: String,
    /// How the label relates to the values: In, NotIn, Exists or DoesNotExist.
    pub operator: String,
    /// Values for In and NotIn; must be empty for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// The string inside, unless it is absent or empty: Go clients write empty strings for fields that
/// were left out.
pub fn non_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// Reads an integer, cut to the range of `i32`: the schema's `int32` format is advice that an API
/// server does not enforce, and one huge number must not break the decoding of a list.
pub(crate) fn saturating_i32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let number = Option::<serde_json::Number>::deserialize(deserializer)?;
    Ok(number.map(|n| match n.as_i64() {
        Some(n) => n.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
        None => n.as_f64().unwrap_or(f64::MAX) as i32,
    }))
}

/// Schema of a list of Kubernetes conditions, keyed by type (KEP-1623).
pub(crate) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "When the status of the condition last changed.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "What is going on and what to do about it, for a person.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the object the condition was decided for.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "One word for the state, for programs. Every reason of Ready has a runbook page.",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Whether the condition holds: True, False or Unknown.",
                },
                "type": {
                    "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "Name of the condition, for example Ready.",
                },
            },
        },
    })
}
