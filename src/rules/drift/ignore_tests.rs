use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::ignore::*;

const OURS: &str = "stageset-controller";

fn rule(paths: &[&str], target: Option<IgnoreTarget>) -> Result<IgnoreRule, IgnoreError> {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    IgnoreRule::parse(&paths, target.as_ref())
}

fn web() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "app", "labels": {"app": "web", "tier": "a"}, "annotations": {"note": "x"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "app", "image": "i:1"}, {"name": "side", "image": "s:1"}]}}}})
}

/// The live object, with `owners` as `(manager, operation, field set)`.
fn live(owners: &[(&str, &str, Value)]) -> Value {
    let mut live = web();
    live["spec"]["replicas"] = json!(7);
    live["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "side", "image": "s:9"}, {"name": "app", "image": "i:9"}]);
    live["metadata"]["resourceVersion"] = json!("42");
    let entries = owners.iter().map(|(manager, operation, fields)| {
        json!({"manager": manager, "operation": operation, "time": "2026-01-01T00:00:00Z", "fieldsV1": fields})
    });
    live["metadata"]["managedFields"] = entries.collect();
    live
}

fn replicas() -> Value {
    json!({"f:spec": {"f:replicas": {}}})
}

fn target(set: impl FnOnce(&mut IgnoreTarget)) -> IgnoreTarget {
    let mut target = IgnoreTarget::default();
    set(&mut target);
    target
}

#[rstest]
#[case(target(|t| t.kind = Some("Deployment".into())), true)]
#[case(target(|t| t.kind = Some("Deploy".into())), false)]
#[case(target(|t| t.kind = Some("Deploy.*|Job".into())), true)]
#[case(target(|t| t.group = Some("apps".into())), true)]
#[case(target(|t| t.group = Some("batch".into())), false)]
#[case(target(|t| t.version = Some("v1".into())), true)]
#[case(target(|t| t.version = Some("v2".into())), false)]
#[case(target(|t| t.name = Some("we.".into())), true)]
#[case(target(|t| t.name = Some("e".into())), false)]
#[case(target(|t| t.namespace = Some("app".into())), true)]
#[case(target(|t| t.namespace = Some("".into())), true)]
#[case(target(|t| t.label_selector = Some("app=web".into())), true)]
#[case(target(|t| t.label_selector = Some("app==web, tier in (a, b)".into())), true)]
#[case(target(|t| t.label_selector = Some("tier notin (a,b)".into())), false)]
#[case(target(|t| t.label_selector = Some("missing notin (a,b),app".into())), true)]
#[case(target(|t| t.label_selector = Some("app!=web".into())), false)]
#[case(target(|t| t.label_selector = Some("!legacy".into())), true)]
#[case(target(|t| t.label_selector = Some("!app".into())), false)]
#[case(target(|t| t.annotation_selector = Some("note=x".into())), true)]
#[case(target(|t| t.annotation_selector = Some("note=y".into())), false)]
#[case(target(|t| { t.kind = Some("Deployment".into()); t.name = Some("other".into()) }), false)]
fn targets(#[case] target: IgnoreTarget, #[case] matches: bool) {
    assert_eq!(
        rule(&["/spec/replicas"], Some(target)).unwrap().matches(&web()),
        matches
    );
}

#[test]
fn without_a_target_every_object_matches() {
    assert!(rule(&["/spec/replicas"], None).unwrap().matches(&web()));
    assert!(rule(&["/spec/replicas"], None).unwrap().matches(&json!({})));
}

#[rstest]
#[case("")]
#[case("/")]
#[case("spec/replicas")]
#[case("/spec/~2")]
#[case("/apiVersion")]
#[case("/kind")]
#[case("/metadata")]
#[case("/metadata/name")]
#[case("/metadata/namespace")]
fn a_path_must_be_a_pointer_to_something_that_can_be_left_out(#[case] path: &str) {
    let error = rule(&[path], None).unwrap_err().to_string();
    assert!(error.contains(&format!("{path:?}")), "{error}");
}

#[rstest]
#[case(target(|t| t.kind = Some("(".into())), "kind")]
#[case(target(|t| t.name = Some("a".repeat(600))), "name")]
#[case(target(|t| t.name = Some("(((a{100}){100}){100}){100}".into())), "name")]
#[case(target(|t| t.label_selector = Some("a in b".into())), "labelSelector")]
#[case(target(|t| t.label_selector = Some("a=b,,c".into())), "labelSelector")]
#[case(target(|t| t.annotation_selector = Some("a like (b)".into())), "annotationSelector")]
fn a_malformed_target_is_refused(#[case] target: IgnoreTarget, #[case] field: &str) {
    let error = rule(&["/spec"], Some(target)).unwrap_err().to_string();
    assert!(error.contains(field), "{error}");
}

/// Rules: decisions 1.4
#[test]
fn an_object_that_does_not_exist_is_sent_whole() {
    let rules = [rule(&["/spec/replicas"], None).unwrap()];
    assert_eq!(object_to_send(&web(), None, &rules, OURS), web());
}

#[test]
fn a_field_that_somebody_else_owns_is_left_out() {
    let rules = [rule(
        &["/spec/replicas", "/spec/absent/deep", "/metadata/annotations/note"],
        None,
    )
    .unwrap()];
    let hpa = live(&[(OURS, "Apply", json!({})), ("hpa", "Update", replicas())]);
    let shared = live(&[(OURS, "Apply", replicas()), ("hpa", "Update", replicas())]);
    let nobody = live(&[]);
    for live in [hpa, shared, nobody] {
        let sent = object_to_send(&web(), Some(&live), &rules, OURS);
        let mut expected = web();
        expected["spec"].as_object_mut().unwrap().remove("replicas");
        expected["metadata"].as_object_mut().unwrap().remove("annotations");
        assert_eq!(sent, expected);
    }
}

#[test]
fn a_field_that_only_we_own_keeps_its_live_value() {
    let rules = [rule(&["/spec/replicas"], None).unwrap()];
    let live = live(&[
        (OURS, "Apply", replicas()),
        ("other", "Update", json!({"f:metadata": {}})),
    ]);
    let sent = object_to_send(&web(), Some(&live), &rules, OURS);
    let mut expected = web();
    expected["spec"]["replicas"] = json!(7);
    expected["metadata"]["resourceVersion"] = json!("42");
    assert_eq!(sent, expected);
}

#[test]
fn items_of_a_list_are_followed_by_their_key() {
    let rules = [rule(&["/spec/template/spec/containers/0/image"], None).unwrap()];
    let fields = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {
        "k:{\"name\":\"app\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}});
    let sent = object_to_send(&web(), Some(&live(&[(OURS, "Apply", fields.clone())])), &rules, OURS);
    assert_eq!(sent["spec"]["template"]["spec"]["containers"][0]["image"], "i:9");
    let taken = live(&[(OURS, "Apply", json!({})), ("kubectl", "Update", fields)]);
    let sent = object_to_send(&web(), Some(&taken), &rules, OURS);
    assert_eq!(
        sent["spec"]["template"]["spec"]["containers"][0],
        json!({"name": "app"})
    );
}

#[test]
fn several_items_are_removed_by_their_own_index() {
    let list =
        json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, "items": (0..12).collect::<Vec<i32>>()});
    let rules = [rule(&["/items/2", "/items/10", "/items/0", "/items/99", "/items/x"], None).unwrap()];
    let sent = object_to_send(&list, Some(&json!({})), &rules, OURS);
    assert_eq!(sent["items"], json!([1, 3, 4, 5, 6, 7, 8, 9, 11]));
}

#[test]
fn escaped_keys_are_decoded() {
    let object = json!({"metadata": {"name": "x", "annotations": {"a/b": "1", "c~d": "2", "keep": "3"}}});
    let rules = [rule(&["/metadata/annotations/a~1b", "/metadata/annotations/c~0d"], None).unwrap()];
    let sent = object_to_send(&object, Some(&json!({})), &rules, OURS);
    assert_eq!(sent["metadata"]["annotations"], json!({"keep": "3"}));
}

#[test]
fn rules_for_other_objects_change_nothing() {
    let other = target(|t| t.kind = Some("StatefulSet".into()));
    let rules = [rule(&["/spec/replicas"], Some(other)).unwrap()];
    assert_eq!(object_to_send(&web(), Some(&live(&[])), &rules, OURS), web());
}

proptest! {
    /// What is sent never holds an ignored field, unless with its live value; the rest is untouched.
    ///
    /// Rules: decisions 1.4
    #[test]
    fn ignored_fields_are_never_imposed(owned in any::<bool>(), shared in any::<bool>(), value in 0_i64..5) {
        let mut desired = web();
        desired["spec"]["replicas"] = json!(value);
        let mut owners = Vec::new();
        if owned { owners.push((OURS, "Apply", replicas())); }
        if shared { owners.push(("hpa", "Update", replicas())); }
        let live = live(&owners);
        let rules = [rule(&["/spec/replicas"], None).unwrap()];
        let sent = object_to_send(&desired, Some(&live), &rules, OURS);
        match sent["spec"].get("replicas") {
            Some(kept) => {
                prop_assert!(owned && !shared);
                prop_assert_eq!(kept, &live["spec"]["replicas"]);
            }
            None => prop_assert!(!owned || shared),
        }
        prop_assert_eq!(&sent["spec"]["template"], &desired["spec"]["template"]);
    }

    #[test]
    fn any_rule_is_read_or_refused(path in "[/~a-z01]{0,12}", pattern in ".{0,20}", selector in "[a-z=!,() ]{0,20}") {
        let odd = target(|t| { t.name = Some(pattern); t.label_selector = Some(selector) });
        if let Ok(rule) = rule(&[&path], Some(odd)) {
            let _ = object_to_send(&web(), Some(&live(&[])), &[rule], OURS);
        }
    }
}
