use super::*;

/// Rules: run 6 decryption
#[test]
fn decryption() {
    refused(
        "D1",
        "decryption: {provider: vault}",
        "spec.decryption.provider",
        &["\"vault\"", "sops"],
    );
    refused(
        "D2",
        "decryption: {provider: sops, secretRef: {name: ''}}",
        "spec.decryption.secretRef.name",
        &["spec.decryption.secretRef"],
    );
    accepted("decryption: {provider: sops}");
}

/// Rules: run 6 kubeconfig
#[test]
fn target_clusters() {
    let both = ["spec.kubeConfig.secretRef", "spec.kubeConfig.configMapRef"];
    refused(
        "K1",
        "kubeConfig: {secretRef: {name: a}, configMapRef: {name: b}}",
        "spec.kubeConfig",
        &both,
    );
    refused("K2", "kubeConfig: {}", "spec.kubeConfig", &both);
    refused(
        "K3",
        "kubeConfig: {secretRef: {name: ''}}",
        "spec.kubeConfig.secretRef.name",
        &["spec.kubeConfig.secretRef"],
    );
    refused(
        "K3",
        "kubeConfig: {configMapRef: {name: ''}}",
        "spec.kubeConfig.configMapRef.name",
        &[],
    );
    refused(
        "key",
        "kubeConfig: {secretRef: {name: a, key: 'a/b'}}",
        "spec.kubeConfig.secretRef.key",
        &["\"a/b\""],
    );
    accepted("kubeConfig: {secretRef: {name: a, key: ''}}");
}

/// Rules: contract 13.8
#[test]
fn service_accounts() {
    for bad in ["a:b", "system:serviceaccount", "A", "a/b"] {
        refused(
            "identity",
            &format!("serviceAccountName: '{bad}'"),
            "spec.serviceAccountName",
            &[bad],
        );
        refused(
            "identity",
            &stage(&format!("serviceAccountName: '{bad}'")),
            "spec.stages[0].serviceAccountName",
            &[bad],
        );
    }
    accepted("serviceAccountName: ''");
}

/// Rules: run 6 dependsOn
#[test]
fn dependencies() {
    refused(
        "O1",
        "dependsOn: [{name: a}, {name: ''}]",
        "spec.dependsOn[1].name",
        &["spec.dependsOn[1]"],
    );
    refused(
        "O2",
        "dependsOn: [{name: a, minVersion: latest}]",
        "spec.dependsOn[0].minVersion",
        &["\"a\"", "\"latest\""],
    );
    refused(
        "15.15",
        "dependsOn: [{name: shop}]",
        "spec.dependsOn[0]",
        &["\"shop\"", "itself"],
    );
    refused(
        "15.15",
        "dependsOn: [{name: shop, namespace: apps}]",
        "spec.dependsOn[0]",
        &["itself"],
    );
    accepted("dependsOn: [{name: shop, namespace: other}, {name: a, minVersion: v1.2}]");
}

/// Rules: run 6 windows, run 10.1, gates 2.2
#[test]
fn window_forms() {
    let path = "spec.updateWindows[0]";
    let window = |fields: &str| format!("updateWindows: [{{type: Allow, {fields}}}]");
    let forms = ["schedule and duration", "from and to"];
    let (from, to) = ("from: '2026-12-20T00:00:00Z'", "to: '2026-12-27T00:00:00+01:00'");
    refused(
        "W1",
        &window(&format!("schedule: '0 0 * * *', duration: 1h, {from}, {to}")),
        path,
        &forms,
    );
    refused("W2", &window(""), path, &forms);
    refused("W3", &window(from), path, &["no to", "from and to"]);
    refused("W3", &window(to), path, &["no from", "from and to"]);
    refused(
        "W4",
        &window("from: '2026-12-20T00:00:00Z', to: '2026-12-20T00:00:00Z'"),
        &format!("{path}.to"),
        &["from", "after"],
    );
    refused(
        "time",
        &window(&format!("from: tomorrow, {to}")),
        &format!("{path}.from"),
        &["\"tomorrow\"", "RFC 3339"],
    );
    accepted(&window(&format!("{from}, {to}")));
    refused(
        "W5",
        &window("schedule: '0 0 * * *'"),
        path,
        &["schedule", "no duration"],
    );
    refused("W5", &window("duration: 1h"), path, &["duration", "no schedule"]);
    refused(
        "enum",
        "updateWindows: [{type: Maybe, schedule: '0 0 * * *', duration: 1h}]",
        &format!("{path}.type"),
        &["Allow, Deny"],
    );
    refused("enum", "windowScope: Most", "spec.windowScope", &["Updates, All"]);
}

/// Rules: run 6 windows, gates 2.2, run B34
#[test]
fn recurring_windows() {
    let path = "spec.updateWindows[0]";
    let window = |fields: &str| format!("updateWindows: [{{type: Deny, {fields}}}]");
    let recurring = |zone: &str| window(&format!("schedule: '0 22 * * 1-5', duration: 2h, timeZone: {zone}"));
    for zone in ["Mars/Olympus", "Local", "local", "../etc"] {
        refused(
            "W6",
            &recurring(zone),
            &format!("{path}.timeZone"),
            &[zone, "time zone"],
        );
    }
    for zone in ["''", "UTC", "Europe/Berlin", "Asia/Kathmandu"] {
        accepted(&recurring(zone));
    }
    refused(
        "W7",
        &window("schedule: 'at noon', duration: 2h"),
        &format!("{path}.schedule"),
        &["\"at noon\"", "no schedule"],
    );
    for length in ["0s", "-1h"] {
        refused(
            "W8",
            &window(&format!("schedule: '0 0 * * *', duration: {length}")),
            &format!("{path}.duration"),
            &[length, "not positive"],
        );
    }
    accepted(&window("schedule: '0 0 * * *', duration: 8784h"));
    for length in ["8784h1ns", "2562047h"] {
        refused(
            "W8",
            &window(&format!("schedule: '0 0 * * *', duration: {length}")),
            &format!("{path}.duration"),
            &[length, "8784h", "from and to"],
        );
    }
    refused(
        "W8",
        &window("schedule: '0 0 * * *', duration: long"),
        &format!("{path}.duration"),
        &["\"long\""],
    );
}

/// Rules: run 6 windows
#[test]
fn windows_are_counted() {
    let one = "{type: Deny, schedule: '0 22 * * *', duration: 2h}";
    let windows = |count: usize| format!("updateWindows: [{}]", vec![one; count].join(", "));
    accepted(&windows(100));
    refused("W9", &windows(101), "spec.updateWindows", &["101", "100"]);
}
