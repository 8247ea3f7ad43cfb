use super::*;

const VERSION: &str = "version: {value: 2.0.0}";

fn ladder(migrations: &str) -> String {
    format!("{VERSION}\nmigrations: [{migrations}]")
}

fn one(fields: &str) -> String {
    ladder(&format!("{{name: m, to: 2.0.0, {fields}}}"))
}

/// Rules: run 6 migrations
#[test]
fn what_belongs_together() {
    let source = "migrationsSourceRef: {sourceRef: {name: ladder}}";
    refused(
        "M1",
        &format!("{}\n{source}", one("")),
        "spec.migrationsSourceRef",
        &["spec.migrations", "spec.migrationsSourceRef"],
    );
    refused(
        "M2",
        "migrations: [{name: m, to: 2.0.0}]",
        "spec.migrations",
        &["spec.version"],
    );
    refused("M2", source, "spec.migrationsSourceRef", &["spec.version"]);
    let foreign = format!("{VERSION}\nmigrationsSourceRef: {{sourceRef: {{name: l, namespace: other}}}}");
    refused(
        "M3",
        &foreign,
        "spec.migrationsSourceRef.sourceRef.namespace",
        &["own namespace", "\"other\""],
    );
    accepted(&format!(
        "{VERSION}\nmigrationsSourceRef: {{sourceRef: {{name: l, namespace: apps}}}}"
    ));
    let producer = format!("{VERSION}\nmigrationsSourceRef: {{sourceRef: {{name: l, kind: Ladder}}}}");
    refused(
        "15.11",
        &producer,
        "spec.migrationsSourceRef.sourceRef.apiVersion",
        &["Ladder", "apiVersion"],
    );
}

#[test]
fn anchors_are_unique_with_and_without_a_ladder() {
    let stages = |first: &str, second: &str| {
        format!("stages: [{{name: a, sourceRef: {{name: x}}{first}}}, {{name: b, sourceRef: {{name: x}}{second}}}]")
    };
    let cases = [
        (
            stages(", migrationAnchor: db", ", migrationAnchor: db"),
            "spec.stages[1].migrationAnchor",
            "spec.stages[0].migrationAnchor",
        ),
        (
            stages("", ", migrationAnchor: a"),
            "spec.stages[1].migrationAnchor",
            "spec.stages[0].name",
        ),
        (
            stages(", migrationAnchor: b", ""),
            "spec.stages[1].name",
            "spec.stages[0].migrationAnchor",
        ),
        (
            stages(", migrationAnchor: a", ""),
            "spec.stages[0].migrationAnchor",
            "spec.stages[0].name",
        ),
    ];
    for (spec, path, earlier) in cases {
        refused("M4", &spec, path, &["already taken", earlier]);
        refused("M4", &format!("{}\n{spec}", one("")), path, &["already taken", earlier]);
    }
}

#[test]
fn sizes() {
    let many: Vec<String> = (0..201).map(|i| format!("{{name: m{i}, to: 2.0.{i}}}")).collect();
    refused("M5", &ladder(&many.join(", ")), "spec.migrations", &["201", "200"]);
    accepted(&ladder(&many[..200].join(", ")));
    let actions: Vec<String> = (0..101)
        .map(|i| format!("{{name: a{i}, wait: {{duration: 1s}}}}"))
        .collect();
    for list in ["actions", "down"] {
        let spec = one(&format!("{list}: [{}]", actions.join(", ")));
        refused(
            "M8",
            &spec,
            &format!("spec.migrations[0].{list}"),
            &["migration \"m\"", list, "101", "100"],
        );
    }
}

#[test]
fn boundaries() {
    refused(
        "M6",
        &ladder("{name: '', to: 2.0.0}"),
        "spec.migrations[0].name",
        &["non-empty name"],
    );
    refused(
        "M6",
        &ladder("{name: m, to: ''}"),
        "spec.migrations[0].to",
        &["migration \"m\"", "non-empty to"],
    );
    let version = Reason::InvalidVersion;
    refused_as(
        version,
        "M6",
        &ladder("{name: m, to: latest}"),
        "spec.migrations[0].to",
        &["migration \"m\"", "\"latest\""],
    );
    refused_as(
        version,
        "M7",
        &one("from: 'not a version'"),
        "spec.migrations[0].from",
        &["\"not a version\""],
    );
    for bare in ["1.2.3", "v1.2.3"] {
        let wanted = [format!(">={bare}"), format!("={bare}")];
        let fragments: Vec<&str> = wanted.iter().map(String::as_str).collect();
        refused_as(
            version,
            "M7",
            &one(&format!("from: {bare}")),
            "spec.migrations[0].from",
            &fragments,
        );
    }
    for good in ["'>=1.2.3'", "'=1.2.3'", "'>=1.0.0, <2.0.0'", "^1.2", "'1.*'"] {
        accepted(&one(&format!("from: {good}")));
    }
    accepted(&ladder("{name: m, to: v2.0.0}"));
}

#[test]
fn actions_of_migrations() {
    let wait = "wait: {duration: 1s}";
    for list in ["actions", "down"] {
        let path = |field: &str| format!("spec.migrations[0].{list}[0]{field}");
        let owner = format!("migration \"m\", {list} action \"a\"");
        let action = |fields: &str| one(&format!("{list}: [{{name: a, {fields}}}]"));
        refused("M9", &action(""), &path(""), &[&owner, "found 0"]);
        refused(
            "M10",
            &one(&format!("{list}: [{{name: '', {wait}}}]")),
            &path(".name"),
            &["migration \"m\"", list],
        );
        let twice = one(&format!("{list}: [{{name: a, {wait}}}, {{name: a, {wait}}}]"));
        refused(
            "M10",
            &twice,
            &format!("spec.migrations[0].{list}[1].name"),
            &["\"a\"", list],
        );
        refused(
            "M11",
            &action(&format!("scope: Revision, {wait}")),
            &path(".scope"),
            &[&owner, "scope"],
        );
        let anchor = "completionAnchor: {apiVersion: v1, kind: A, name: a}";
        refused(
            "M11",
            &action(&format!("{anchor}, {wait}")),
            &path(".completionAnchor"),
            &[&owner, "completionAnchor"],
        );
        for retries in [-1, 11] {
            let spec = action(&format!("retries: {retries}, {wait}"));
            refused(
                "M12",
                &spec,
                &path(".retries"),
                &[&owner, &retries.to_string(), "0 to 10"],
            );
        }
        refused(
            "15.17",
            &one(&format!("{list}: [{{name: down/x, {wait}}}]")),
            &path(".name"),
            &["down/x"],
        );
    }
    accepted(&one(&format!(
        "actions: [{{name: a, {wait}}}], down: [{{name: a, {wait}}}]"
    )));
}

#[test]
fn names_and_anchors_of_migrations() {
    refused(
        "M13",
        &ladder("{name: m, to: 2.0.0}, {name: m, to: 3.0.0}"),
        "spec.migrations[1].name",
        &["\"m\"", "twice"],
    );
    refused(
        "M14",
        &one("stage: db"),
        "spec.migrations[0].stage",
        &["migration \"m\"", "\"db\""],
    );
    accepted(&one("stage: web"));
    accepted(&format!("{}\n{}", one("stage: db"), stage("migrationAnchor: db")));
    refused(
        "15.17",
        &ladder("{name: a@b, to: 2.0.0}"),
        "spec.migrations[0].name",
        &["@ or /"],
    );
}

#[test]
fn version_sources() {
    refused(
        "V1",
        "version: {}",
        "spec.version",
        &["value, fromObject and fromArtifact", "found 0"],
    );
    refused("V1", "version: {value: ''}", "spec.version", &["found 0"]);
    refused(
        "V1",
        "version: {value: 1.0.0, fromArtifact: {stage: web, path: V}}",
        "spec.version",
        &["found 2"],
    );
    refused(
        "enum",
        "version: {value: 1.0.0, approvalMode: Sometimes}",
        "spec.version.approvalMode",
        &["Never, OnMigrations, Always"],
    );
    let version = Reason::InvalidVersion;
    refused_as(
        version,
        "15.12",
        "version: {value: latest}",
        "spec.version.value",
        &["\"latest\""],
    );
    accepted("version: {value: ' v1.2 '}");
    let object = |fields: &str| format!("version: {{fromObject: {{kind: A, name: a, {fields}}}}}");
    refused_as(
        version,
        "15.12",
        &object("stage: db"),
        "spec.version.fromObject.stage",
        &["\"db\"", "web"],
    );
    refused_as(
        version,
        "15.10",
        &object("fieldPath: data.version"),
        "spec.version.fromObject.fieldPath",
        &["braces"],
    );
    accepted(&object("stage: web, fieldPath: '{.data.version}'"));
    let artifact = |stage: &str, path: &str| format!("version: {{fromArtifact: {{stage: {stage}, path: {path}}}}}");
    refused_as(
        version,
        "15.12",
        &artifact("db", "VERSION"),
        "spec.version.fromArtifact.stage",
        &["\"db\""],
    );
    for bad in ["../VERSION", "/VERSION", "a/../../b"] {
        refused_as(
            version,
            "15.12",
            &artifact("web", bad),
            "spec.version.fromArtifact.path",
            &[bad],
        );
    }
    accepted(&artifact("web", "./a/VERSION"));
}
