use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::tests::{id, owner};
use super::*;

fn live(extra_labels: Value, annotations: Value) -> Value {
    let mut labels = json!({"stages.metio.wtf/name": "payments", "stages.metio.wtf/namespace": "team"});
    for (key, value) in extra_labels.as_object().unwrap() {
        labels[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "namespace": "a", "uid": "u1",
        "resourceVersion": "7", "labels": labels, "annotations": annotations}})
}

/// Rules: run B6
#[test]
fn an_owned_object_is_deleted_with_preconditions() {
    let expected = Preconditions {
        uid: Some("u1".into()),
        resource_version: Some("7".into()),
    };
    assert_eq!(
        may_delete(&live(json!({}), json!({})), &owner()),
        Deletion::Delete(expected)
    );
}

/// Rules: run 19.3.2
#[rstest]
#[case(json!({"stages.metio.wtf/name": "other"}))]
#[case(json!({"stages.metio.wtf/namespace": "other"}))]
#[case(json!({"stages.metio.wtf/name": null}))]
fn somebody_elses_object_is_left_alone(#[case] labels: Value) {
    let decision = may_delete(&live(labels, json!({})), &owner());
    assert!(matches!(decision, Deletion::Skip(Skip::NotOurs { .. })), "{decision:?}");
}

/// Rules: run 19.3.3
#[rstest]
#[case("stages.metio.wtf/prune", "disabled", true)]
#[case("stages.metio.wtf/prune", "Disabled", true)]
#[case("stages.metio.wtf/prune", "enabled", false)]
#[case("kustomize.toolkit.fluxcd.io/prune", "disabled", true)]
#[case("stages.metio.wtf/reconcile", "disabled", true)]
#[case("kustomize.toolkit.fluxcd.io/reconcile", "DISABLED", true)]
#[case("example.com/prune", "disabled", false)]
fn opt_outs_keep_an_object(#[case] key: &'static str, #[case] value: &str, #[case] kept: bool) {
    for object in [
        live(json!({key: value}), json!({})),
        live(json!({}), json!({key: value})),
    ] {
        let decision = may_delete(&object, &owner());
        let expected = Deletion::Skip(Skip::OptedOut {
            key,
            value: value.into(),
        });
        assert_eq!(decision == expected, kept, "{decision:?}");
    }
}

#[test]
fn a_terminating_object_needs_no_second_delete() {
    let mut leaving = live(json!({}), json!({}));
    leaving["metadata"]["deletionTimestamp"] = "2026-06-15T09:00:00Z".into();
    assert_eq!(may_delete(&leaving, &owner()), Deletion::Skip(Skip::Terminating));
}

#[test]
fn a_namespace_stays_while_it_holds_others() {
    let empty = NamespaceFacts {
        name: "app".into(),
        ..NamespaceFacts::default()
    };
    assert_eq!(may_delete_namespace(&empty), Ok(()));
    let home = NamespaceFacts {
        holds_stage_set: true,
        ..empty.clone()
    };
    assert!(
        may_delete_namespace(&home)
            .unwrap_err()
            .to_string()
            .contains("namespace app")
    );
    let held = NamespaceFacts {
        staying: vec![id("app_db_apps_StatefulSet"), id("app_b__Secret")],
        ..empty.clone()
    };
    let text = may_delete_namespace(&held).unwrap_err().to_string();
    assert!(text.contains("StatefulSet/app/db"), "{text}");
    let unread = NamespaceFacts {
        unread: vec!["Secret".into(), "Widget.example.com".into()],
        ..empty
    };
    let text = may_delete_namespace(&unread).unwrap_err().to_string();
    assert!(text.contains("Secret, Widget.example.com"), "{text}");
}

/// Rules: run 19.3 namespace
#[test]
fn a_namespace_is_held_by_what_is_not_deleted_as_well() {
    let object = |api_version: &str, kind: &str, name: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "app"}});
    let namespaced = |group: &str, kind: &str| (group, kind) == ("apps", "ReplicaSet");
    let (owner, mut ids) = (owner(), BTreeSet::new());
    let holds =
        |object: &Value, ids: &BTreeSet<ObjectId>| Leaving { owner: &owner, ids }.is_held_by(object, namespaced);
    assert!(holds(&object("v1", "Secret", "theirs"), &ids));
    assert!(holds(&object("v1", "ServiceAccount", "builder"), &ids));
    assert!(holds(&live(json!({"stages.metio.wtf/name": "other"}), json!({})), &ids));
    assert!(!holds(&object("v1", "ServiceAccount", "default"), &ids));
    assert!(!holds(&object("v1", "ConfigMap", "kube-root-ca.crt"), &ids));
    assert!(!holds(&object("events.k8s.io/v1", "Event", "e"), &ids));

    let ours = live(json!({}), json!({}));
    assert!(holds(&ours, &ids), "ours, but not to be deleted");
    ids.insert(ObjectId::of(&ours).unwrap());
    assert!(!holds(&ours, &ids));
    let protected = live(json!({}), json!({"stages.metio.wtf/prune": "disabled"}));
    assert!(holds(&protected, &ids), "recorded as leaving, but it stays");
    let mut leaving = object("v1", "Secret", "theirs");
    leaving["metadata"]["deletionTimestamp"] = "2026-06-15T09:00:00Z".into();
    assert!(!holds(&leaving, &ids));

    let mut derived = object("v1", "Pod", "web-1");
    derived["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}]);
    assert!(!holds(&derived, &ids));
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
    derived["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(node);
    assert!(holds(&derived, &ids), "the node does not go with the namespace");
    ids.insert(ObjectId::new("", "n", "", "Node"));
    assert!(!holds(&derived, &ids));
}
