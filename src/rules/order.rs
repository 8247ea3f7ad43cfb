//! Order: in which sequence the objects of one stage are applied, and deleted (run 16.1).

use std::cmp::Ordering;

use serde_json::Value;

use super::inventory::ObjectId;

/// The three groups of an apply. All of a wave must be current before the next begins; the last is not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wave {
    /// Namespaces, CustomResourceDefinitions and ClusterRoles: what other objects need to be accepted at all.
    Definitions,
    /// Kinds whose name ends in `Class`.
    Classes,
    /// Everything else.
    Rest,
}

/// Kinds with a place of their own, first to last; any other kind comes between the last of [`EARLY`] and the first
/// of [`LATE`].
const EARLY: [&str; 23] = [
    "CustomResourceDefinition",
    "Namespace",
    "ClusterRole",
    "ClusterClass",
    "RuntimeClass",
    "PriorityClass",
    "StorageClass",
    "VolumeSnapshotClass",
    "IngressClass",
    "GatewayClass",
    "ClusterRoleBinding",
    "ResourceQuota",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "Service",
    "LimitRange",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];

/// Kinds that can refuse other objects come last, so that they do not refuse their own stage.
const LATE: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The admission policies of newer servers can refuse like webhooks, so they share their place.
const LATE_POLICIES: [&str; 4] = [
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// The wave an object is applied in.
pub fn wave(id: &ObjectId) -> Wave {
    match (id.group.as_str(), id.kind.as_str()) {
        ("", "Namespace")
        | ("apiextensions.k8s.io", "CustomResourceDefinition")
        | ("rbac.authorization.k8s.io", "ClusterRole") => Wave::Definitions,
        (_, kind) if kind.ends_with("Class") => Wave::Classes,
        _ => Wave::Rest,
    }
}

fn rank(id: &ObjectId) -> usize {
    let kind = id.kind.as_str();
    if let Some(place) = EARLY.iter().position(|&name| name == kind) {
        return place;
    }
    let admission = id.group == "admissionregistration.k8s.io";
    if admission && LATE_POLICIES.contains(&kind) {
        return EARLY.len() + 1;
    }
    let late = LATE.iter().position(|&name| name == kind);
    late.map_or(EARLY.len(), |place| EARLY.len() + 2 + place)
}

/// Order of application: wave, rank of the kind, then group, kind, namespace, name.
pub fn compare(left: &ObjectId, right: &ObjectId) -> Ordering {
    let key = |id: &ObjectId| (wave(id), rank(id));
    key(left).cmp(&key(right)).then_with(|| {
        let parts = [&left.group, &left.kind, &left.namespace, &left.name];
        parts.cmp(&[&right.group, &right.kind, &right.namespace, &right.name])
    })
}

/// Sorts identities for an apply.
pub fn sort_for_apply(ids: &mut [ObjectId]) {
    ids.sort_by(compare);
}

/// Sorts identities for a delete: the reverse.
pub fn sort_for_delete(ids: &mut [ObjectId]) {
    ids.sort_by(|left, right| compare(right, left));
}

/// Sorts objects for an apply and cuts them into waves; empty waves are left out. Objects with the same identity
/// keep their order, objects without one come last.
pub fn waves(objects: Vec<Value>) -> Vec<(Wave, Vec<Value>)> {
    let mut keyed: Vec<(Option<ObjectId>, Value)> = objects
        .into_iter()
        .map(|object| (ObjectId::of(&object), object))
        .collect();
    keyed.sort_by(|(left, _), (right, _)| match (left, right) {
        (Some(left), Some(right)) => compare(left, right),
        (left, right) => left.is_none().cmp(&right.is_none()),
    });
    let mut waves: Vec<(Wave, Vec<Value>)> = Vec::new();
    for (id, object) in keyed {
        let place = id.as_ref().map_or(Wave::Rest, wave);
        match waves.last_mut() {
            Some((last, members)) if *last == place => members.push(object),
            _ => waves.push((place, vec![object])),
        }
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn id(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
        let object = json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"namespace": namespace, "name": name}});
        ObjectId::of(&object).unwrap()
    }

    fn sample() -> Vec<ObjectId> {
        vec![
            id(
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                "",
                "a.example.com",
            ),
            id("v1", "Namespace", "", "app"),
            id("rbac.authorization.k8s.io/v1", "ClusterRole", "", "reader"),
            id("scheduling.k8s.io/v1", "PriorityClass", "", "high"),
            id("storage.k8s.io/v1", "StorageClass", "", "fast"),
            id("karpenter.k8s.aws/v1", "EC2NodeClass", "", "default"),
            id("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "reader"),
            id("v1", "ServiceAccount", "app", "web"),
            id("v1", "ConfigMap", "app", "a"),
            id("v1", "ConfigMap", "app", "b"),
            id("v1", "ConfigMap", "zoo", "a"),
            id("v1", "Secret", "app", "a"),
            id("v1", "Service", "app", "web"),
            id("apps/v1", "Deployment", "app", "web"),
            id("policy/v1", "PodDisruptionBudget", "app", "web"),
            id("apps/v1", "DaemonSet", "app", "agent"),
            id("example.com/v1", "Widget", "app", "one"),
            id("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", "p"),
            id(
                "admissionregistration.k8s.io/v1",
                "MutatingWebhookConfiguration",
                "",
                "m",
            ),
            id(
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
                "",
                "v",
            ),
        ]
    }

    /// Rules: run 16.1 waves, run 16.1 order
    #[test]
    fn applies_in_the_order_of_dependence() {
        let mut ids: Vec<ObjectId> = sample().into_iter().rev().collect();
        sort_for_apply(&mut ids);
        assert_eq!(ids, sample());
    }

    #[test]
    fn deletes_in_reverse() {
        let mut ids = sample();
        sort_for_delete(&mut ids);
        let reversed: Vec<ObjectId> = sample().into_iter().rev().collect();
        assert_eq!(ids, reversed);
    }

    #[test]
    fn a_kind_of_another_group_does_not_open_the_first_wave() {
        assert_eq!(wave(&id("example.com/v1", "Namespace", "", "x")), Wave::Rest);
        assert_eq!(wave(&id("example.com/v1", "ClusterRole", "", "x")), Wave::Rest);
        assert_eq!(wave(&id("example.com/v1", "TierClass", "n", "x")), Wave::Classes);
        assert_eq!(wave(&id("v1", "Namespace", "", "x")), Wave::Definitions);
    }

    #[test]
    fn cuts_waves_and_keeps_equal_objects_in_order() {
        let object = |kind: &str, mark: i64| {
            json!({"apiVersion": "v1", "kind": kind,
                "metadata": {"name": "x"}, "mark": mark})
        };
        let cut = waves(vec![
            object("Secret", 1),
            object("Namespace", 2),
            object("Secret", 3),
            json!({"kind": "List"}),
        ]);
        let marks: Vec<(Wave, Vec<Option<i64>>)> = cut
            .iter()
            .map(|(wave, list)| (*wave, list.iter().map(|one| one["mark"].as_i64()).collect()))
            .collect();
        assert_eq!(
            marks,
            [
                (Wave::Definitions, vec![Some(2)]),
                (Wave::Rest, vec![Some(1), Some(3), None]),
            ]
        );
    }

    proptest! {
        #[test]
        fn order_does_not_depend_on_the_input(shuffled in Just(sample()).prop_shuffle()) {
            let mut ids = shuffled;
            sort_for_apply(&mut ids);
            prop_assert_eq!(ids, sample());
        }
    }
}
