use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::rules::inventory::ObjectId;

const OURS: &str = "stageset-controller";

/// Objects applied to a kube-apiserver v1.37.2 as `stageset-controller`, read after somebody changed them, and the
/// server's answer to a dry run of the same apply.
const CASES: &str = include_str!("cases.json");

struct Case {
    name: String,
    desired: Value,
    live: Value,
    planned: Value,
}

fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(CASES).unwrap();
    let list = file["cases"].as_array().unwrap();
    list.iter()
        .map(|case| {
            let kind = case["kind"].as_str().unwrap();
            Case {
                name: case["name"].as_str().unwrap().to_owned(),
                desired: file["desired"][kind].clone(),
                live: case["live"].clone(),
                planned: case.get("planned").unwrap_or(&file["planned"][kind]).clone(),
            }
        })
        .collect()
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

fn lines(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

/// Rules: run 16.3
#[test]
fn the_server_would_change_something_exactly_where_we_see_a_difference() {
    let cases = cases();
    assert!(cases.len() > 50, "{}", cases.len());
    for case in cases {
        let seen = compare(&case.desired, &case.live, OURS);
        let planned = differences(&case.live, &case.planned, OURS);
        assert_eq!(
            seen.is_empty(),
            planned.is_empty(),
            "{}: {:?} against {:?}",
            case.name,
            lines(&seen),
            lines(&planned)
        );
        assert_eq!(
            case.name.starts_with("nothing"),
            seen.is_empty() && case.name.starts_with("nothing")
        );
    }
}

const CONTAINER: &str = "/spec/template/spec/containers";

#[rstest]
#[case("scale", &["/spec/replicas was changed by kubectl-edit"])]
#[case("scale by apply", &["/spec/replicas was changed by hpa"])]
#[case("same value by apply", &[])]
#[case("image", &["{c}/0/image was changed by kubectl-set"])]
#[case("cpu limit", &["{c}/0/resources/limits/cpu was changed by vpa"])]
#[case("args", &["{c}/0/args was changed by kubectl-edit"])]
#[case("add arg", &["{c}/0/args was changed by kubectl-edit"])]
#[case("remove env", &["{c}/0/env/0 was removed"])]
#[case("remove container", &["{c}/1 was removed"])]
#[case("add sidecar", &[])]
#[case("extra annotation", &[])]
#[case("host network", &["/spec/template/spec/hostNetwork was changed by kubectl-edit"])]
#[case("dropped field", &["/spec/minReadySeconds is no longer wanted"])]
#[case("remove label", &["/metadata/labels/app was removed"])]
#[case("toleration", &["/spec/template/spec/tolerations was changed by kubectl-edit"])]
#[case("cm data", &["/data/a was changed by kubectl-edit"])]
#[case("cm data removed", &["/data/a was removed"])]
#[case("cm data added", &[])]
#[case("cm empty filled", &["/data/b was changed by kubectl-edit"])]
#[case("svc port added", &[])]
#[case("svc selector", &["/spec/selector was taken over by kubectl-edit"])]
#[case("secret", &["/data was changed by kubectl-edit"])]
#[case("netpol add", &["/spec/ingress was taken over by kubectl-edit"])]
#[case("role", &["/rules was changed by kubectl-edit"])]
#[case("quota", &["/spec/hard/cpu was changed by kubectl-edit"])]
#[case("quota same", &[])]
#[case("widget set", &["/spec/tags/0 was removed"])]
#[case("widget set add", &[])]
#[case("widget list deep add", &["/spec/list was taken over by kubectl-edit"])]
#[case("widget cpu", &["/spec/cpu was changed by kubectl-edit"])]
#[case("widget flag removed", &["/spec/flag was removed"])]
#[case("widget default changed", &[])]
fn a_change_is_found_and_traced_to_its_manager(#[case] name: &str, #[case] expected: &[&str]) {
    let case = case(name);
    let expected: Vec<String> = expected.iter().map(|line| line.replace("{c}", CONTAINER)).collect();
    assert_eq!(lines(&compare(&case.desired, &case.live, OURS)), expected);
}

#[rstest]
#[case("scale", &["/spec/replicas was changed by kubectl-edit"])]
#[case("host network", &["/spec/template/spec/hostNetwork was added by kubectl-edit"])]
#[case("remove env", &["{c}/0/env was changed"])]
#[case("cm data removed", &["/data/a was removed"])]
#[case("netpol add", &["/spec/ingress/0/from/0/namespaceSelector was added by kubectl-edit"])]
#[case("svc selector", &["/spec/selector/x was added by kubectl-edit"])]
#[case("widget list", &["/spec/list/0/a was changed by kubectl-edit"])]
#[case("quota same", &[])]
fn a_dry_run_tells_what_would_change(#[case] name: &str, #[case] expected: &[&str]) {
    let case = case(name);
    let expected: Vec<String> = expected.iter().map(|line| line.replace("{c}", CONTAINER)).collect();
    assert_eq!(lines(&differences(&case.live, &case.planned, OURS)), expected);
}

#[test]
fn another_desired_value_is_a_difference_without_any_foreign_hand() {
    let Case { mut desired, live, .. } = case("nothing Deployment");
    desired["spec"]["replicas"] = json!(4);
    desired["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:9");
    desired["metadata"]["labels"].as_object_mut().unwrap().remove("app");
    let found = lines(&compare(&desired, &live, OURS));
    for expected in [
        "/spec/replicas was changed",
        "/spec/template/spec/containers/0/image was changed",
        "/metadata/labels/app is no longer wanted",
    ] {
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn a_removed_list_item_and_a_removed_section_are_surplus() {
    let Case { mut desired, live, .. } = case("nothing Deployment");
    desired["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .remove(1);
    desired["spec"].as_object_mut().unwrap().remove("replicas");
    desired["metadata"].as_object_mut().unwrap().remove("labels");
    let found = compare(&desired, &live, OURS);
    assert!(
        found.iter().all(|change| change.kind == ChangeKind::Surplus),
        "{found:?}"
    );
    let paths: Vec<&str> = found.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/spec/replicas",
            "/spec/template/spec/containers/k:{\"name\":\"side\"}",
            "/metadata/labels",
        ]
    );
}

#[test]
fn an_object_that_somebody_else_created_is_not_ours_though_equal() {
    let Case { desired, mut live, .. } = case("nothing ConfigMap");
    live["metadata"]["managedFields"][0]["manager"] = json!("kubectl-create");
    let found = compare(&desired, &live, OURS);
    assert!(!found.is_empty());
    for change in found {
        assert_eq!(change.kind, ChangeKind::NotOwned);
        assert_eq!(change.manager.as_deref(), Some("kubectl-create"));
    }
}

#[test]
fn another_operation_or_subresource_of_our_name_is_not_our_apply() {
    for (field, value) in [("operation", "Update"), ("subresource", "status")] {
        let Case { desired, mut live, .. } = case("nothing ConfigMap");
        live["metadata"]["managedFields"][0][field] = json!(value);
        assert!(!compare(&desired, &live, OURS).is_empty(), "{field}");
    }
}

#[test]
fn the_latest_owner_is_named() {
    let Case { desired, mut live, .. } = case("scale");
    let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
    let mut later = entries
        .iter()
        .find(|entry| entry["manager"] == "kubectl-edit")
        .unwrap()
        .clone();
    later["manager"] = json!("later");
    later["time"] = json!("2099-01-01T00:00:00Z");
    entries.insert(0, later);
    assert_eq!(
        lines(&compare(&desired, &live, OURS)),
        ["/spec/replicas was changed by later"]
    );
}

#[test]
fn values_are_never_told() {
    let Case {
        mut desired,
        live,
        planned,
        ..
    } = case("secret");
    desired["data"]["p"] = json!("c2VjcmV0");
    let told = format!(
        "{:?}{:?}",
        compare(&desired, &live, OURS),
        differences(&live, &planned, OURS)
    );
    for value in ["c2VjcmV0", "cGFzcw==", "eA=="] {
        assert!(!told.contains(value), "{told}");
    }
}

/// Rules: run 16.3
#[test]
fn repeated_metrics_of_an_autoscaler_are_one() {
    let metric = json!({"type": "Resource", "resource": {"name": "cpu"}});
    let scaler = |metrics: Value| json!({"kind": "HorizontalPodAutoscaler", "spec": {"metrics": metrics}});
    let once = scaler(json!([metric]));
    assert_eq!(differences(&once, &scaler(json!([metric, metric])), OURS), []);
    let other = json!({"type": "Pods"});
    assert_eq!(differences(&once, &scaler(json!([metric, other])), OURS).len(), 1);
}

/// Rules: run 16.3
#[test]
fn status_and_server_metadata_do_not_count() {
    let live = json!({"metadata": {"resourceVersion": "1", "generation": 1, "finalizers": ["x"]}, "status": {"a": 1}});
    let planned = json!({"metadata": {"resourceVersion": "2", "generation": 2}, "status": {"a": 2}});
    assert_eq!(differences(&live, &planned, OURS), []);
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(
        lines(&differences(&live, &labelled, OURS)),
        ["/metadata/labels was removed"]
    );
    let with_null = json!({"spec": {"a": null}});
    assert_eq!(differences(&with_null, &json!({"spec": {}}), OURS), []);
}

/// Rules: run 16.3
#[rstest]
#[case("1", "1000m", true)]
#[case("0.5", "500m", true)]
#[case("1024Mi", "1Gi", true)]
#[case("1.5Gi", "1536Mi", true)]
#[case("1e3", "1k", true)]
#[case("1E3", "1000", true)]
#[case("1E", "1e18", true)]
#[case("0", "0m", true)]
#[case("+1", "1", true)]
#[case("-1", "-1000m", true)]
#[case(".5", "0.5", true)]
#[case("5.", "5", true)]
#[case("100n", "0.0000001", true)]
#[case("0.1n", "1n", true)]
#[case("1", "2", false)]
#[case("1M", "1Mi", false)]
#[case("1", "-1", false)]
#[case("", "0", false)]
#[case(".", "0", false)]
#[case("1.2.3", "1.2.3", false)]
#[case("1Xi", "1Xi", false)]
#[case("1e", "1", false)]
#[case("1e999999999", "1e999999999", false)]
#[case("99999999999999999999999999999999999999999Ei", "1", false)]
fn quantities_compare_by_value(#[case] left: &str, #[case] right: &str, #[case] same: bool) {
    assert_eq!(same_quantity(left, right), same);
    assert_eq!(same_quantity(right, left), same);
}

#[rstest]
#[case("Pod", &["spec", "containers", "resources", "limits", "cpu"], true)]
#[case("ResourceQuota", &["spec", "hard", "requests.storage"], true)]
#[case("Pod", &["spec", "volumes", "emptyDir", "sizeLimit"], true)]
#[case("HorizontalPodAutoscaler", &["spec", "metrics", "target", "value"], true)]
#[case("Pod", &["spec", "containers", "env", "value"], false)]
#[case("ConfigMap", &["data", "limits", "cpu"], false)]
#[case("Pod", &["metadata", "annotations", "sizeLimit"], false)]
#[case("Deployment", &["spec", "replicas"], false)]
fn quantities_are_known_by_their_place(#[case] kind: &str, #[case] fields: &[&str], #[case] expected: bool) {
    let path = fields.iter().fold(Path::root(), |path, field| path.field(field));
    assert_eq!(path.holds_quantity(kind), expected, "{path}");
}

#[test]
fn paths_are_json_pointers() {
    let item = json!({});
    let path = Path::root().field("metadata").field("annotations").field("a.b/c~d");
    assert_eq!(path.to_string(), "/metadata/annotations/a.b~1c~0d");
    let object = json!({"spec": {"list": [{"x": 1}]}});
    let path = Path::root().field("spec").field("list").item(0, &item).field("x");
    assert_eq!(path.find(&object), Some(&json!(1)));
    assert_eq!(object.pointer(&path.to_string()), Some(&json!(1)));
}

// Loops

fn change(path: &str, manager: Option<&str>) -> Change {
    Change {
        path: path.into(),
        kind: ChangeKind::Changed,
        manager: manager.map(str::to_owned),
    }
}

fn web() -> ObjectId {
    ObjectId::new("app", "web", "apps", "Deployment")
}

/// Rules: decisions 6 loop
#[test]
fn the_fifth_correction_in_a_row_is_a_loop_and_told_once() {
    let mut loops = DriftLoops::default();
    let corrected = [change("/spec/replicas", Some("hpa"))];
    for pass in 1..=8 {
        let found = loops.observe(&web(), &corrected);
        assert_eq!(found.len(), usize::from(pass == 5), "pass {pass}");
        if let Some(found) = found.first() {
            let text = found.to_string();
            for part in ["Deployment/app/web", "/spec/replicas", "5 times", "hpa", "ignore"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}

#[test]
fn another_manager_or_a_clean_pass_begins_anew() {
    let mut loops = DriftLoops::default();
    let by = |manager| [change("/spec/replicas", Some(manager))];
    for _ in 0..4 {
        assert_eq!(loops.observe(&web(), &by("hpa")), []);
    }
    assert_eq!(loops.observe(&web(), &by("kubectl")), []);
    for _ in 0..3 {
        assert_eq!(loops.observe(&web(), &by("kubectl")), []);
    }
    assert_eq!(loops.observe(&web(), &[]), []);
    assert_eq!(loops, DriftLoops::default(), "a clean pass leaves nothing behind");
    for _ in 0..4 {
        assert_eq!(loops.observe(&web(), &by("kubectl")), []);
    }
    assert_eq!(loops.observe(&web(), &by("kubectl")).len(), 1);
}

#[test]
fn fields_and_objects_are_counted_apart() {
    let mut loops = DriftLoops::default();
    let other = ObjectId::new("app", "other", "apps", "Deployment");
    for _ in 0..4 {
        loops.observe(&web(), &[change("/a", Some("x")), change("/b", None)]);
        loops.observe(&other, &[change("/a", Some("x"))]);
    }
    let found = loops.observe(&web(), &[change("/b", None)]);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].path.as_str(), found[0].manager.as_str()),
        ("/b", "an unknown manager")
    );
    assert_eq!(
        loops.observe(&web(), &[change("/a", Some("x")), change("/b", None)]),
        []
    );
    assert_eq!(loops.observe(&other, &[change("/a", Some("x"))]).len(), 1);
}

/// Rules: decisions 6 loop
#[test]
fn corrections_in_a_loop_back_off_up_to_the_interval() {
    let mut loops = DriftLoops::default();
    let interval = Duration::from_secs(60);
    let mut waits = Vec::new();
    for _ in 0..9 {
        loops.observe(&web(), &[change("/spec/replicas", Some("hpa"))]);
        waits.push(loops.wait(&web(), interval).as_secs());
    }
    assert_eq!(waits, [0, 0, 0, 0, 10, 20, 40, 60, 60]);
    loops.forget(&web());
    assert_eq!(loops.wait(&web(), interval), Duration::ZERO);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        prop::sample::select(vec!["", "a", "1", "1000m"]).prop_map(Value::from),
    ];
    let key = prop::sample::select(vec!["a", "b", "name", "limits", "f:a", "."]);
    leaf.prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(key.clone(), inner, 0..3).prop_map(|map| map
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<Value>()),
        ]
    })
}

proptest! {
    /// An object does not differ from itself, and whatever is seen in one direction is seen in the other.
    #[test]
    fn differences_are_symmetric(left in any_json(), right in any_json()) {
        let object = |spec: &Value| json!({"kind": "Widget", "spec": spec});
        prop_assert_eq!(differences(&object(&left), &object(&left), OURS), []);
        let there = differences(&object(&left), &object(&right), OURS).len();
        let back = differences(&object(&right), &object(&left), OURS).len();
        prop_assert_eq!(there, back);
    }

    /// No field set, however odd, makes a comparison panic.
    #[test]
    fn any_field_set_is_read(desired in any_json(), live in any_json(), fields in any_json(), key in "[fkv]:.{0,12}") {
        let object = |spec: &Value| json!({"kind": "Widget", "spec": spec});
        let mut live = object(&live);
        let mut set = json!({"f:spec": fields});
        set[key.as_str()] = fields;
        live["metadata"] = json!({"managedFields": [{"manager": OURS, "operation": "Apply", "fieldsV1": set}]});
        let _ = compare(&object(&desired), &live, OURS);
    }
}
