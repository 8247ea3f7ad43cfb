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
            assert_eq!(violation.to_string().matches(&violation.path).count(), 1, "{violation}");
        }
    }
}

#[test]
fn the_real_path_is_named() {
    let spec =
        "stages: [{name: a, sourceRef: {name: x}}, {name: b, sourceRef: {name: x}, force: true, onTimeout: Hold}]";
    let found = unsupported(&set(spec), &Supported::without(&[Feature::Force, Feature::TimeoutHold]));
    assert_eq!(paths(&found), ["spec.stages[1].force", "spec.stages[1].onTimeout"]);
    let told: Vec<String> = found.iter().map(Violation::to_string).collect();
    assert_eq!(
        told,
        [
            "spec.stages[1].force: not supported by this version; leave it out",
            "spec.stages[1].onTimeout: Hold is not supported by this version; leave it out",
        ]
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

/// The description of a field in the definition of StageSet.
fn described(path: &str) -> String {
    let definition = serde_json::to_value(crate::api::crds().swap_remove(0)).unwrap();
    let mut schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for name in path.split('.') {
        let (name, is_list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        schema = &schema["properties"][name];
        if is_list && path.contains(&format!("{name}[].")) {
            schema = &schema["items"];
        }
    }
    schema["description"]
        .as_str()
        .unwrap_or_else(|| panic!("{path}"))
        .to_owned()
}

/// `kubectl explain` must not offer what is refused, nor warn of what works.
///
/// Rules: decisions 1.1
#[test]
fn the_definition_says_which_fields_are_refused() {
    for feature in Feature::ALL {
        let is_missing = !Supported::this_release().has(*feature);
        for (path, value) in feature.fields() {
            let said = described(path);
            let told = match value {
                Some(value) => said.contains(&format!("{value} is not supported by this version.")),
                None => said.ends_with("Not supported by this version."),
            };
            assert_eq!(told, is_missing, "{feature:?}, {path}: {said:?}");
        }
    }
}
