use super::*;

const SOURCE: &str = "source: {prometheus: {address: 'http://p:9090', query: up}}";

fn budget(fields: &str) -> String {
    format!("errorBudget: {{{fields}}}")
}

fn promotion(fields: &str) -> String {
    stage(&format!("promotion: {{{fields}}}"))
}

const GATE: &str = "spec.stages[0].promotion";

#[test]
fn metric_sources() {
    let source = |fields: &str| budget(&format!("freezeThreshold: '0', source: {{{fields}}}"));
    let path = "spec.errorBudget.source";
    refused("G1", &source(""), path, &["prometheus and webhook", "found 0"]);
    let webhook = "webhook: {url: 'http://a', jsonPath: '{.a}'}";
    let prometheus = "prometheus: {address: 'http://a', query: up}";
    refused("G1", &source(&format!("{webhook}, {prometheus}")), path, &["found 2"]);
    let p = format!("{path}.prometheus");
    refused(
        "G2",
        &source("prometheus: {address: '', query: up}"),
        &format!("{p}.address"),
        &["no URL"],
    );
    refused(
        "G2",
        &source("prometheus: {address: 'http://a', query: ''}"),
        &format!("{p}.query"),
        &["non-empty query"],
    );
    refused(
        "G2",
        &source("prometheus: {address: 'http://a', query: up, secretRef: {name: ''}}"),
        &format!("{p}.secretRef.name"),
        &["non-empty name"],
    );
    let w = format!("{path}.webhook");
    refused(
        "G3",
        &source("webhook: {url: '', jsonPath: '{.a}'}"),
        &format!("{w}.url"),
        &["no URL"],
    );
    refused(
        "G3",
        &source("webhook: {url: 'http://a', jsonPath: ''}"),
        &format!("{w}.jsonPath"),
        &["non-empty jsonPath"],
    );
    refused(
        "15.10",
        &source("webhook: {url: 'http://a', jsonPath: '{.a'}"),
        &format!("{w}.jsonPath"),
        &["\"{.a\"", "not closed"],
    );
    refused(
        "G3",
        &source("webhook: {url: 'http://a', jsonPath: '{.a}', secretRef: {name: ''}}"),
        &format!("{w}.secretRef.name"),
        &[],
    );
    accepted(&source(webhook));
}

/// Rules: run 6 gates
#[test]
fn error_budgets() {
    let thresholds = |fields: &str| budget(&format!("{SOURCE}, {fields}"));
    let freeze = "spec.errorBudget.freezeThreshold";
    for bad in ["low", "", "NaN", "inf", "-Infinity", "0x1p-2", " 1", "1e999"] {
        refused(
            "G4",
            &thresholds(&format!("freezeThreshold: '{bad}'")),
            freeze,
            &["decimal number"],
        );
    }
    let resume = "spec.errorBudget.resumeThreshold";
    refused(
        "G5",
        &thresholds("freezeThreshold: '0', resumeThreshold: high"),
        resume,
        &["\"high\""],
    );
    refused(
        "G6",
        &thresholds("freezeThreshold: '0.5', resumeThreshold: '0.4'"),
        resume,
        &["0.5", "0.4"],
    );
    refused(
        "G7",
        &thresholds("freezeThreshold: '0', onSourceError: Panic"),
        "spec.errorBudget.onSourceError",
        &["\"Panic\"", "Allow, Hold"],
    );
    refused(
        "duration",
        &thresholds("freezeThreshold: '0', interval: 1x"),
        "spec.errorBudget.interval",
        &["\"1x\""],
    );
    accepted(&thresholds("freezeThreshold: '-.5', resumeThreshold: '1e-1'"));
    let on_stage = stage(&format!("errorBudget: {{{SOURCE}, freezeThreshold: x}}"));
    refused(
        "G4",
        &on_stage,
        "spec.stages[0].errorBudget.freezeThreshold",
        &["\"x\""],
    );
}

#[test]
fn fast_track() {
    let fast = |rest: &str, fields: &str| promotion(&format!("fastTrack: {{{SOURCE}, {fields}}}{rest}"));
    let path = format!("{GATE}.fastTrack");
    for soak in ["", ", soak: 0s", ", soak: -1m"] {
        refused(
            "P1",
            &fast(soak, "max: '1'"),
            &path,
            &["stage \"web\"", "positive soak"],
        );
    }
    refused(
        "duration",
        &fast(", soak: x", "max: '1'"),
        &format!("{GATE}.soak"),
        &["\"x\""],
    );
    refused(
        "P2",
        &promotion("soak: 1m, fastTrack: {source: {}, max: '1'}"),
        &format!("{path}.source"),
        &["found 0"],
    );
    refused(
        "P3",
        &fast(", soak: 1m", "max: low"),
        &format!("{path}.max"),
        &["\"low\""],
    );
    refused(
        "duration",
        &fast(", soak: 1m", "max: '1', after: x"),
        &format!("{path}.after"),
        &["\"x\""],
    );
    accepted(&fast(", soak: 1m", "max: '1', after: 10s"));
}

#[test]
fn gates_over_pods() {
    for (gate, extra) in [("restartGate", ""), ("eventGate", ", reasons: [BackOff]")] {
        let path = format!("{GATE}.{gate}");
        let good = format!("name: c, selector: {{matchLabels: {{a: b}}}}{extra}");
        let gated = |fields: &str| promotion(&format!("{gate}: {{{fields}}}"));
        let check = |fields: &str| gated(&format!("checks: [{{{fields}{extra}}}]"));
        accepted(&gated(&format!("checks: [{{{good}}}]")));
        refused(
            "P4",
            &gated(&format!("onFailure: Panic, checks: [{{{good}}}]")),
            &format!("{path}.onFailure"),
            &["\"Panic\"", "Hold, Rollback"],
        );
        refused(
            "P5",
            &gated("checks: []"),
            &format!("{path}.checks"),
            &["stage \"web\"", "at least one check"],
        );
        let selector = "selector: {matchLabels: {a: b}}";
        refused(
            "P6",
            &check(&format!("name: '', {selector}")),
            &format!("{path}.checks[0].name"),
            &["stage \"web\""],
        );
        refused(
            "P7",
            &gated(&format!("checks: [{{{good}}}, {{{good}}}]")),
            &format!("{path}.checks[1].name"),
            &["\"c\"", "twice"],
        );
        refused(
            "P10",
            &check(&format!("name: c, {selector}, onFailure: Panic")),
            &format!("{path}.checks[0].onFailure"),
            &["\"Panic\"", "Hold, Rollback"],
        );
    }
}

#[test]
fn selectors_of_gates() {
    for (gate, extra) in [("restartGate", ""), ("eventGate", ", reasons: [BackOff]")] {
        let path = format!("{GATE}.{gate}");
        let check = |fields: &str| promotion(&format!("{gate}: {{checks: [{{{fields}{extra}}}]}}"));
        let at = format!("{path}.checks[0].selector");
        for (expression, cause) in [
            ("key: a, operator: Like, values: [b]", "\"Like\""),
            ("key: a, operator: In", "needs values"),
            ("key: a, operator: Exists, values: [b]", "takes no values"),
            ("key: 'a b', operator: Exists", "\"a b\""),
            ("key: a, operator: In, values: ['b c']", "\"b c\""),
        ] {
            let spec = check(&format!("name: c, selector: {{matchExpressions: [{{{expression}}}]}}"));
            refused(
                "P8",
                &spec,
                &format!("{at}.matchExpressions[0]"),
                &["stage \"web\"", "\"c\"", cause],
            );
        }
        refused(
            "P8",
            &check("name: c, selector: {matchLabels: {a/b/c: d}}"),
            &format!("{at}.matchLabels"),
            &["\"a/b/c\""],
        );
        refused(
            "P9",
            &check("name: c, selector: {}"),
            &at,
            &["stage \"web\"", "\"c\"", "empty selector"],
        );
    }
}

#[test]
fn event_checks() {
    let events = |fields: &str| {
        promotion(&format!(
            "eventGate: {{checks: [{{name: c, selector: {{matchLabels: {{a: b}}}}, {fields}}}]}}"
        ))
    };
    refused(
        "P12",
        &events("reasons: []"),
        &format!("{GATE}.eventGate.checks[0].reasons"),
        &["stage \"web\"", "\"c\""],
    );
    refused(
        "minimum",
        &events("reasons: [A], maxEvents: -1"),
        &format!("{GATE}.eventGate.checks[0].maxEvents"),
        &["-1"],
    );
}

#[test]
fn analyses() {
    let path = format!("{GATE}.analysis");
    let analysis = |fields: &str| promotion(&format!("analysis: {{{fields}}}"));
    let good = format!("{{name: c, {SOURCE}, threshold: {{max: '1'}}}}");
    accepted(&analysis(&format!(
        "checks: [{good}], failureLimit: 3, onFailure: Rollback, onSourceError: Allow"
    )));
    refused(
        "P13",
        &analysis("checks: []"),
        &format!("{path}.checks"),
        &["stage \"web\""],
    );
    refused(
        "P14",
        &analysis(&format!("checks: [{{name: '', {SOURCE}, threshold: {{max: '1'}}}}]")),
        &format!("{path}.checks[0].name"),
        &["stage \"web\""],
    );
    refused(
        "P15",
        &analysis(&format!("checks: [{good}, {good}]")),
        &format!("{path}.checks[1].name"),
        &["\"c\""],
    );
    refused(
        "P16",
        &analysis("checks: [{name: c, source: {}, threshold: {max: '1'}}]"),
        &format!("{path}.checks[0].source"),
        &["found 0"],
    );
    let threshold = |fields: &str| analysis(&format!("checks: [{{name: c, {SOURCE}, threshold: {{{fields}}}}}]"));
    let at = format!("{path}.checks[0].threshold");
    refused("P17", &threshold(""), &at, &["min, max"]);
    refused("P17", &threshold("min: low"), &format!("{at}.min"), &["\"low\""]);
    refused("15.16", &threshold("max: NaN"), &format!("{at}.max"), &["\"NaN\""]);
    refused("15.16", &threshold("min: '2', max: '1'"), &at, &["min 2", "max 1"]);
    refused(
        "P18",
        &analysis(&format!("checks: [{good}], onFailure: Panic")),
        &format!("{path}.onFailure"),
        &["Hold, Rollback"],
    );
    refused(
        "P19",
        &analysis(&format!("checks: [{good}], onSourceError: Panic")),
        &format!("{path}.onSourceError"),
        &["Hold, Allow"],
    );
    refused(
        "minimum",
        &analysis(&format!("checks: [{good}], failureLimit: -1")),
        &format!("{path}.failureLimit"),
        &["-1"],
    );
    refused(
        "duration",
        &analysis(&format!("checks: [{good}], interval: x")),
        &format!("{path}.interval"),
        &["\"x\""],
    );
}
