use super::*;
use crate::rules::spec::{Feature, Supported, check, unsupported};

const EVERYTHING: &str = include_str!("../testdata/everything.yaml");

/// Rules: decisions 1.1
#[test]
fn every_feature_is_recognised_by_its_fields() {
    let everything = set(EVERYTHING);
    for feature in Feature::ALL {
        // What excludes a feature in one object is in a second one.
        let sets = [everything.clone(), set(include_str!("../testdata/alternatives.yaml"))];
        let only = Supported::without(&[*feature]);
        let found: Vec<Violation> = sets.iter().flat_map(|set| unsupported(set, &only)).collect();
        assert!(!found.is_empty(), "{feature:?} is used by no example");
        for violation in found {
            assert_eq!(violation.reason, Reason::InvalidSpec);
            assert!(
                violation.message.contains("not supported by this version"),
                "{violation}"
            );
            assert!(violation.message.contains(&violation.path), "{violation}");
        }
    }
}

#[test]
fn the_real_path_is_named() {
    let spec =
        "stages: [{name: a, sourceRef: {name: x}}, {name: b, sourceRef: {name: x}, force: true, onTimeout: Hold}]";
    let found = unsupported(&set(spec), &Supported::without(&[Feature::Force, Feature::TimeoutHold]));
    assert_eq!(paths(&found), ["spec.stages[1].force", "spec.stages[1].onTimeout"]);
    assert!(
        found[1]
            .message
            .starts_with("spec.stages[1].onTimeout: Hold is not supported"),
        "{}",
        found[1]
    );
}

#[test]
fn what_is_absent_or_false_uses_nothing() {
    let spec = stage("force: false, patches: [], ignore: []");
    assert!(unsupported(&set(&spec), &Supported::without(Feature::ALL)).is_empty());
    let plain = "{interval: 5m, retryInterval: 1m, timeout: 2m, suspend: true, stages: [{name: a, sourceRef: {name: x}, path: ./a, prune: false, timeout: 1m}]}";
    assert!(unsupported(&set(plain), &Supported::without(Feature::ALL)).is_empty());
}

#[test]
fn a_supported_feature_is_no_violation() {
    assert!(unsupported(&set(EVERYTHING), &Supported::everything()).is_empty());
    let supported = Supported::without(&[Feature::Promotion]);
    assert!(supported.has(Feature::Patches) && !supported.has(Feature::Promotion));
    assert_eq!(Supported::default(), Supported::this_release());
}

#[test]
fn a_check_reports_both_kinds() {
    let broken = set("{errorBudget: {freezeThreshold: x, source: {prometheus: {address: 'http://a', query: up}}}}");
    let found = check(&broken, &Supported::without(&[Feature::ErrorBudgets]));
    assert_eq!(paths(&found), ["spec.errorBudget", "spec.errorBudget.freezeThreshold"]);
}
