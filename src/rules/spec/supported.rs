//! Features that have fields but no implementation yet. Using one is refused by name: a field that
//! was accepted and did nothing would be worse than none (decisions 1).

use serde_json::Value;

use crate::api::{Reason, StageSet};

use super::Violation;

macro_rules! features {
    ($( #[doc = $says:literal] $feature:ident: [$($path:expr),+ $(,)?] )+) => {
        /// A part of the API that a release may lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Feature {
            $( #[doc = $says] $feature, )+
        }

        impl Feature {
            /// Every feature.
            pub const ALL: &'static [Feature] = &[$(Self::$feature),+];

            /// What the feature is, for people.
            pub fn says(self) -> &'static str {
                match self {
                    $( Self::$feature => $says.trim_ascii(), )+
                }
            }

            /// The fields whose presence uses the feature.
            fn uses(self) -> &'static [Use] {
                match self {
                    $( Self::$feature => const { &[$($path),+] }, )+
                }
            }
        }
    };
}

impl Feature {
    /// The fields whose presence uses the feature, with the value where only one of them does. `[]` stands for every item
    /// of a list.
    pub fn fields(self) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
        self.uses().iter().map(|used| (used.path, used.value))
    }
}

/// A field whose presence, or whose value, uses a feature. `[]` stands for every item of a list.
struct Use {
    path: &'static str,
    value: Option<&'static str>,
}

const fn field(path: &'static str) -> Use {
    Use { path, value: None }
}

const fn value(path: &'static str, value: &'static str) -> Use {
    Use {
        path,
        value: Some(value),
    }
}

features! {
    /// Identities of tenants.
    ServiceAccounts: [field("spec.serviceAccountName"), field("spec.stages[].serviceAccountName")]
    /// Clusters other than the local one.
    RemoteClusters: [field("spec.kubeConfig.secretRef")]
    /// Clusters reached by workload identity.
    CloudClusters: [field("spec.kubeConfig.configMapRef")]
    /// StageSets that wait for others.
    Dependencies: [field("spec.dependsOn")]
    /// Dependencies on a version.
    DependencyVersions: [field("spec.dependsOn[].minVersion")]
    /// Update windows.
    UpdateWindows: [field("spec.updateWindows"), field("spec.windowScope")]
    /// Drift correction between intervals.
    DriftDetection: [field("spec.driftDetectionInterval")]
    /// Fields left to others.
    Ignore: [field("spec.ignore"), field("spec.stages[].ignore")]
    /// Kustomize patches of a stage.
    Patches: [field("spec.stages[].patches")]
    /// Variables.
    PostBuild: [field("spec.stages[].postBuild")]
    /// Rules for objects that cannot be updated in place.
    ConflictPolicy: [field("spec.stages[].conflictPolicy")]
    /// Re-creation of objects that cannot be updated in place.
    Force: [field("spec.stages[].force")]
    /// Own sets of objects to wait for.
    ReadyChecks: [
        field("spec.stages[].readyChecks.checks"),
        field("spec.stages[].readyChecks.disableWait"),
        field("spec.stages[].readyChecks.timeout"),
    ]
    /// Readiness by expressions.
    ReadyExpressions: [field("spec.stages[].readyChecks.exprs")]
    /// Objects with Helm hook annotations.
    HelmHooks: [field("spec.stages[].applyHelmHookResources")]
    /// Waiting on after a timeout.
    TimeoutHold: [value("spec.onTimeout", "Hold"), value("spec.stages[].onTimeout", "Hold")]
    /// Rollback, and what leads to it.
    Rollback: [
        field("spec.rollbackOnFailure"),
        field("spec.onRollback"),
        value("spec.onTimeout", "Rollback"),
        value("spec.stages[].onTimeout", "Rollback"),
    ]
    /// Actions of stages.
    Actions: [field("spec.stages[].actions")]
    /// Versions.
    Versions: [field("spec.version")]
    /// Migrations in the spec.
    Migrations: [field("spec.migrations"), field("spec.stages[].migrationAnchor")]
    /// Migrations from an artifact.
    SourcedMigrations: [field("spec.migrationsSourceRef")]
    /// SOPS.
    Decryption: [field("spec.decryption")]
    /// Error budgets.
    ErrorBudgets: [field("spec.errorBudget"), field("spec.stages[].errorBudget")]
    /// Promotion gates.
    Promotion: [field("spec.stages[].promotion")]
}

/// The features this release does not have. An entry goes when its feature comes.
const MISSING: &[Feature] = &[
    Feature::CloudClusters,
    Feature::Rollback,
    Feature::Actions,
    Feature::Versions,
    Feature::Migrations,
    Feature::SourcedMigrations,
    Feature::Decryption,
    Feature::ErrorBudgets,
    Feature::Promotion,
];

/// The features a release has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supported {
    missing: Vec<Feature>,
}

impl Supported {
    /// The features of this release.
    pub fn this_release() -> Self {
        Self {
            missing: MISSING.to_vec(),
        }
    }

    /// Every feature, as for a check of the rules alone.
    pub fn everything() -> Self {
        Self { missing: Vec::new() }
    }

    /// Every feature but these.
    pub fn without(missing: &[Feature]) -> Self {
        Self {
            missing: missing.to_vec(),
        }
    }

    /// Whether the feature is there.
    pub fn has(&self, feature: Feature) -> bool {
        !self.missing.contains(&feature)
    }
}

impl Default for Supported {
    fn default() -> Self {
        Self::this_release()
    }
}

/// Every use of a feature that is not there.
pub fn unsupported(set: &StageSet, supported: &Supported) -> Vec<Violation> {
    let object = serde_json::json!({ "spec": set.spec });
    let missing = Feature::ALL.iter().filter(|feature| !supported.has(**feature));
    missing
        .flat_map(|feature| feature.uses())
        .flat_map(|used| violations(&object, used))
        .collect()
}

fn violations(object: &Value, used: &Use) -> Vec<Violation> {
    let mut found = Vec::new();
    find(object, used.path, String::new(), &mut found);
    let matching = found
        .into_iter()
        .filter(|(_, actual)| used.value.is_none_or(|value| *actual == value));
    matching
        .map(|(path, actual)| {
            // The path stands before the message wherever it is shown.
            let message = match used.value {
                Some(_) => format!(
                    "{} is not supported by this version; leave it out",
                    actual.as_str().unwrap_or_default()
                ),
                None => "not supported by this version; leave it out".to_owned(),
            };
            Violation {
                path,
                reason: Reason::InvalidSpec,
                message,
            }
        })
        .collect()
}

/// Collects the fields a pattern stands for, each with its real path and value.
fn find<'a>(value: &'a Value, pattern: &str, path: String, found: &mut Vec<(String, &'a Value)>) {
    if pattern.is_empty() {
        found.push((path, value));
        return;
    }
    if let Some(rest) = pattern.strip_prefix("[]") {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            find(item, rest, format!("{path}[{index}]"), found);
        }
        return;
    }
    let pattern = pattern.strip_prefix('.').unwrap_or(pattern);
    let (name, rest) = pattern.split_at(pattern.find(['.', '[']).unwrap_or(pattern.len()));
    if let Some(property) = value.get(name) {
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        find(property, rest, path, found);
    }
}
