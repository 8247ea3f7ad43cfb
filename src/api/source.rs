//! What we read of Flux source objects and of ExternalArtifacts (api 4.1, run 8).
//!
//! Other controllers write these, in versions we do not choose: every part is optional and a part
//! of unexpected shape reads as absent.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::core::{ApiResource, ObjectMeta, TypeMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

/// A GitRepository, OCIRepository, Bucket or ExternalArtifact. Its kind is known at run time only,
/// so an `Api` of it is built with an `ApiResource`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceObject {
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub spec: SourceSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub status: SourceStatus,
}

/// The parts of a source's spec that decide how it may be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceSpec {
    /// On an ExternalArtifact: the object that produced it.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<ProducerRef>,
    /// On a GitRepository or OCIRepository: what it follows.
    #[serde(
        rename = "ref",
        default,
        deserialize_with = "lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub reference: Option<SourceRevisionRef>,
    /// How the source verifies signatures; only its presence matters.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub verify: Option<serde_json::Value>,
    /// Paused by its owner.
    #[serde(default, deserialize_with = "lenient")]
    pub suspend: bool,
}

/// Back-pointer of an ExternalArtifact to its producer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerRef {
    #[serde(default, deserialize_with = "lenient")]
    pub api_version: String,
    #[serde(default, deserialize_with = "lenient")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient")]
    pub namespace: String,
}

impl ProducerRef {
    /// API group of the producer; empty for the core group. The version is never compared.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// What a source follows; `digest` and `commit` are the immutable forms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceRevisionRef {
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// What a source says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    #[serde(default, deserialize_with = "lenient_list", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<SourceCondition>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A published archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Address of the archive.
    #[serde(default, deserialize_with = "lenient")]
    pub url: String,
    /// Revision, opaque to us.
    #[serde(default, deserialize_with = "lenient")]
    pub revision: String,
    /// Digest of the archive, as `<algorithm>:<hex>`.
    #[serde(default, deserialize_with = "lenient")]
    pub digest: String,
    /// Size of the archive in bytes, where the source tells it.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// When the archive was published, as the source wrote it.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<String>,
}

/// A condition of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceCondition {
    #[serde(rename = "type", default, deserialize_with = "lenient")]
    pub condition_type: String,
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: String,
    #[serde(default, deserialize_with = "lenient")]
    pub message: String,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl SourceObject {
    /// The condition of that type.
    pub fn condition(&self, condition_type: &str) -> Option<&SourceCondition> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.condition_type == condition_type)
    }

    /// Whether the source says it is ready. A source without conditions does not.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready")
            .is_some_and(|condition| condition.status == "True")
    }
}

impl Resource for SourceObject {
    type DynamicType = ApiResource;
    type Scope = NamespaceResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Reads a value, or its default where it has another shape.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Reads a list, leaving out items of another shape.
fn lenient_list<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let values: Vec<serde_json::Value> = lenient(deserializer)?;
    Ok(values
        .into_iter()
        .filter_map(|value| serde_json::from_value(value).ok())
        .collect())
}
