//! Versions and the ladder of migrations: rules M1 to M14, V1.

use std::collections::{HashMap, HashSet};

use crate::api::common::non_empty;
use crate::api::{Migration, MigrationsSource, StageSet, StageSetSpec, VersionSpec};
use crate::rules::version;

use super::report::Report;
use super::{actions, jsonpath, names, verbs};

/// Most migrations in a ladder.
const MAX_MIGRATIONS: usize = 200;

pub(super) fn check(report: &mut Report, set: &StageSet) {
    let spec = &set.spec;
    if let Some(version) = &spec.version {
        version_spec(report, spec, version);
    }
    anchors(report, spec);
    if !spec.migrations.is_empty() && spec.migrations_source_ref.is_some() {
        report.invalid(
            "spec.migrationsSourceRef",
            "spec.migrations and spec.migrationsSourceRef exclude each other; keep one of them",
        );
    }
    if spec.version.is_none() {
        let used = [
            ("spec.migrations", !spec.migrations.is_empty()),
            ("spec.migrationsSourceRef", spec.migrations_source_ref.is_some()),
        ];
        for (path, _) in used.into_iter().filter(|(_, used)| *used) {
            report.invalid(
                path,
                format!("{path} needs spec.version, which says what version is deployed"),
            );
        }
    }
    if let Some(source) = &spec.migrations_source_ref {
        sourced(report, set, source);
    }
    ladder(report, spec);
}

fn version_spec(report: &mut Report, spec: &StageSetSpec, version: &VersionSpec) {
    let value = non_empty(&version.value);
    let found = usize::from(value.is_some())
        + usize::from(version.from_object.is_some())
        + usize::from(version.from_artifact.is_some());
    if found != 1 {
        report.invalid(
            "spec.version",
            format!("set exactly one of value, fromObject and fromArtifact, found {found}"),
        );
    }
    report.known("spec.version.approvalMode", version.approval_mode.as_ref());
    if let Some(value) = value
        && let Err(cause) = version::check_version(value)
    {
        report.invalid_version(
            "spec.version.value",
            format!("\"{value}\" is no version: {cause}; write for example 2.1.0"),
        );
    }
    if let Some(from) = &version.from_object {
        if let Some(stage) = non_empty(&from.stage) {
            known_stage(report, spec, "spec.version.fromObject.stage", stage);
        }
        report.optional_syntax(
            "spec.version.fromObject.apiVersion",
            from.api_version.as_ref(),
            names::api_version,
        );
        for (field, text) in [("kind", &from.kind), ("name", &from.name)] {
            report.non_empty(
                &format!("spec.version.fromObject.{field}"),
                text,
                "spec.version.fromObject",
            );
        }
        if let Some(path) = non_empty(&from.field_path)
            && let Err(cause) = jsonpath::check(path)
        {
            report.invalid_version(
                "spec.version.fromObject.fieldPath",
                format!("\"{path}\" is no JSONPath: {cause}"),
            );
        }
    }
    if let Some(from) = &version.from_artifact {
        known_stage(report, spec, "spec.version.fromArtifact.stage", &from.stage);
        artifact_path(report, &from.path);
    }
}

fn known_stage(report: &mut Report, spec: &StageSetSpec, path: &str, name: &str) {
    if !spec.stages.iter().any(|stage| stage.name == name) {
        let stages = spec
            .stages
            .iter()
            .map(|stage| stage.name.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        report.invalid_version(path, format!("there is no stage \"{name}\"; the stages are: {stages}"));
    }
}

fn artifact_path(report: &mut Report, path: &str) {
    let field = "spec.version.fromArtifact.path";
    if !report.non_empty(field, path, "spec.version.fromArtifact") {
        return;
    }
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        report.invalid_version(
            field,
            format!("\"{path}\" leaves the artifact; write a path inside it, for example VERSION"),
        );
    }
}

/// Stage names and anchors form one set of keys, so that a migration's stage is never ambiguous.
fn anchors(report: &mut Report, spec: &StageSetSpec) {
    let mut keys: HashMap<&str, (String, bool)> = HashMap::new();
    for (index, stage) in spec.stages.iter().enumerate() {
        let path = format!("spec.stages[{index}]");
        let anchor = non_empty(&stage.migration_anchor).map(|anchor| (anchor, "migrationAnchor", true));
        let both = std::iter::once((stage.name.as_str(), "name", false)).chain(anchor);
        for (key, field, is_anchor) in both {
            match keys.get(key) {
                // Two stages of the same name are reported as that.
                Some((_, false)) if !is_anchor => {}
                Some((earlier, _)) => report.invalid(
                    format!("{path}.{field}"),
                    format!(
                        "stage \"{}\": the key \"{key}\" is already taken by {earlier}; stage names and migrationAnchors together are unique",
                        stage.name
                    ),
                ),
                None => {
                    keys.insert(key, (format!("{path}.{field}"), is_anchor));
                }
            }
        }
    }
}

fn sourced(report: &mut Report, set: &StageSet, source: &MigrationsSource) {
    let path = "spec.migrationsSourceRef.sourceRef";
    verbs::source_ref(report, path, "spec.migrationsSourceRef", &source.source_ref);
    if let (Some(own), Some(other)) = (&set.metadata.namespace, non_empty(&source.source_ref.namespace))
        && own != other
    {
        report.invalid(
            format!("{path}.namespace"),
            format!(
                "spec.migrationsSourceRef reads from its own namespace only: \"{other}\" is not \"{own}\"; leave it out"
            ),
        );
    }
}

fn ladder(report: &mut Report, spec: &StageSetSpec) {
    let count = spec.migrations.len();
    if count > MAX_MIGRATIONS {
        report.invalid(
            "spec.migrations",
            format!("{count} migrations, at most {MAX_MIGRATIONS}"),
        );
    }
    let anchors: HashSet<&str> = spec
        .stages
        .iter()
        .flat_map(|stage| std::iter::once(stage.name.as_str()).chain(non_empty(&stage.migration_anchor)))
        .collect();
    let mut seen = HashSet::new();
    for (index, migration) in spec.migrations.iter().enumerate() {
        let path = format!("spec.migrations[{index}]");
        if !migration.name.is_empty() && !seen.insert(migration.name.as_str()) {
            let name = &migration.name;
            report.invalid(
                format!("{path}.name"),
                format!("the migration name \"{name}\" is used twice; names are unique in a ladder"),
            );
        }
        one(report, &path, migration);
        if let Some(stage) = non_empty(&migration.stage).filter(|stage| !anchors.contains(stage)) {
            report.invalid(
                format!("{path}.stage"),
                format!(
                    "migration \"{}\": \"{stage}\" is neither a stage name nor a migrationAnchor",
                    migration.name
                ),
            );
        }
        actions::migration(report, &path, migration);
    }
}

fn one(report: &mut Report, path: &str, migration: &Migration) {
    let name_path = format!("{path}.name");
    if report.non_empty(&name_path, &migration.name, &format!("the migration {path}")) {
        report.syntax(&name_path, &migration.name, names::ledger_key);
    }
    let owner = format!("migration \"{}\"", migration.name);
    let to_path = format!("{path}.to");
    if report.non_empty(&to_path, &migration.to, &owner)
        && let Err(cause) = version::check_version(&migration.to)
    {
        report.invalid_version(to_path, format!("{owner}: \"{}\" is no version: {cause}", migration.to));
    }
    let Some(from) = non_empty(&migration.from) else {
        return;
    };
    let from_path = format!("{path}.from");
    if is_plain_version(from) {
        let version = from.trim();
        report.invalid_version(
            from_path,
            format!("{owner}: \"{version}\" would match that one version only; write >={version} or ={version}"),
        );
    } else if let Err(cause) = version::check_constraint(from) {
        report.invalid_version(
            from_path,
            format!("{owner}: \"{from}\" is no version constraint: {cause}"),
        );
    }
}

/// Three numbers, with or without a leading `v`.
fn is_plain_version(text: &str) -> bool {
    let text = text.trim();
    let numbers = text.strip_prefix('v').unwrap_or(text);
    let core = numbers.split(['-', '+']).next().unwrap_or(numbers);
    let parts: Vec<&str> = core.split('.').collect();
    parts.len() == 3
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
}
