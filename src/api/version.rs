//! Versions and migrations (api 5.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::Action;
use super::common::SourceReference;

/// Where the version being deployed is declared. Exactly one of value, fromObject and fromArtifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionSpec {
    /// Permits a version below the deployed one. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub allow_downgrade: bool,
    /// Which version changes wait for the annotation stages.metio.wtf/approved-version: Never (the
    /// default), OnMigrations, or Always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<ApprovalMode>,
    /// Reads the version from a file in a stage's artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_artifact: Option<VersionFromArtifact>,
    /// Reads the version from a rendered object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_object: Option<VersionFromObject>,
    /// Refuses to cross a major version upward without a migration. Defaults to false.
    #[serde(default, skip_serializing_if = "super::common::is_false")]
    pub require_migration_coverage: bool,
    /// The version itself, for example 2.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

wire_enum! {
    /// Which version transitions are held for approval.
    ApprovalMode {
        Never = "Never",
        OnMigrations = "OnMigrations",
        Always = "Always",
    }
}

/// A version in a file of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionFromArtifact {
    /// Path of the file inside the artifact, for example VERSION.
    pub path: String,
    /// Stage whose artifact holds the file.
    pub stage: String,
}

/// A version in a rendered object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionFromObject {
    /// API version of the object; narrows an ambiguous match. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// JSONPath that yields the version and nothing else, for example {.data.version}. Defaults to
    /// the label app.kubernetes.io/version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Stage whose rendered objects are searched. Defaults to the first stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

/// Actions that run once when the deployed version crosses a boundary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// Actions for crossing the boundary upward, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// Actions for crossing the boundary downward, in order. Without them the boundary cannot be
    /// crossed downward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<Action>,
    /// Constraint the deployed version must meet, for example 1.x. Defaults to any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Name of the migration, unique in the ladder.
    pub name: String,
    /// Stage before which the migration runs: a migrationAnchor or a stage name. Defaults to the
    /// first stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Version boundary, for example 2.0.0. The migration runs when the version was below it and
    /// becomes equal or higher.
    pub to: String,
}

/// A ladder of migrations kept in an artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationsSource {
    /// File or directory inside the artifact. Defaults to its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Artifact that holds the ladder, in the namespace of the StageSet.
    pub source_ref: SourceReference,
}
