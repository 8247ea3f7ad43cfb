use std::collections::BTreeSet;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

pub(super) fn id(text: &str) -> ObjectId {
    ObjectId::parse(text).unwrap()
}

pub(super) fn owner() -> OwnerRef {
    OwnerRef {
        name: "payments".into(),
        namespace: "team".into(),
    }
}

pub(super) fn entries(list: &[&str]) -> Entries {
    list.iter().map(|text| (id(text), "v1".to_owned())).collect()
}

/// Rules: run 17.1 id, run B22
#[rstest]
#[case("payments_web_apps_Deployment", "payments", "web", "apps", "Deployment", "apps/v1")]
#[case("payments_web__Service", "payments", "web", "", "Service", "v1")]
#[case(
    "_letsencrypt_cert-manager.io_ClusterIssuer",
    "",
    "letsencrypt",
    "cert-manager.io",
    "ClusterIssuer",
    "cert-manager.io/v1"
)]
#[case(
    "_system:metrics_rbac.authorization.k8s.io_ClusterRole",
    "",
    "system:metrics",
    "rbac.authorization.k8s.io",
    "ClusterRole",
    "rbac.authorization.k8s.io/v1"
)]
#[case(
    "app_a_b__c_rbac.authorization.k8s.io_Role",
    "app",
    "a_b__c",
    "rbac.authorization.k8s.io",
    "Role",
    "rbac.authorization.k8s.io/v1"
)]
fn ids_are_written_and_read(
    #[case] text: &str,
    #[case] namespace: &str,
    #[case] name: &str,
    #[case] group: &str,
    #[case] kind: &str,
    #[case] v: &str,
) {
    let expected = ObjectId::new(namespace, name, group, kind);
    assert_eq!(expected.written(), text);
    let entry = Entry::parse(text, v).unwrap();
    assert_eq!(entry.id, expected);
    assert_eq!(entry.version, "v1");
    assert_eq!(entry.api_version(), v);
    let object = json!({"apiVersion": v, "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    assert_eq!(Entry::of(&object), Some(entry));
}

/// Rules: run 17.3
#[rstest]
#[case("")]
#[case("a_b_c")]
#[case("payments__apps_Deployment")]
#[case("payments_web_apps_")]
#[case("no-separator")]
fn malformed_ids_are_named(#[case] text: &str) {
    let error = Entry::parse(text, "v1").unwrap_err();
    assert_eq!(error.id, text);
    assert!(error.to_string().contains(&format!("{text:?}")));
}

#[test]
fn entries_of_the_go_implementation_are_read() {
    let plain = Entry::parse("payments_web_apps_Deployment", "v1").unwrap();
    assert_eq!(plain.api_version(), "apps/v1");
    let rbac = "_system__metrics_rbac.authorization.k8s.io_ClusterRole";
    assert_eq!(Entry::parse(rbac, "v1").unwrap().id.name, "system:metrics");
    let ours = Entry::parse(rbac, "rbac.authorization.k8s.io/v1").unwrap();
    assert_eq!(ours.id.name, "system__metrics", "a full version marks a verbatim name");
}

#[test]
fn identities_read_like_kubectl() {
    assert_eq!(
        id("payments_web_apps_Deployment").to_string(),
        "Deployment/payments/web"
    );
    assert_eq!(
        id("_reader_rbac.authorization.k8s.io_ClusterRole").to_string(),
        "ClusterRole/reader"
    );
    assert_eq!(ObjectId::of(&json!({"kind": "Secret", "metadata": {}})), None);
    assert_eq!(ObjectId::of(&json!({"metadata": {"name": "a"}})), None);
}

#[test]
fn union_takes_the_rendered_version() {
    let mut rendered = entries(&["a_new__Secret"]);
    rendered.insert(id("a_old__Secret"), "v2".into());
    let all = union(&entries(&["a_old__Secret", "a_gone__Secret"]), &rendered);
    let listed: Vec<(String, &str)> = all.iter().map(|(id, v)| (id.written(), v.as_str())).collect();
    assert_eq!(
        listed,
        [
            ("a_gone__Secret".to_owned(), "v1"),
            ("a_new__Secret".to_owned(), "v1"),
            ("a_old__Secret".to_owned(), "v2"),
        ]
    );
}

#[test]
fn only_what_is_confirmed_gone_leaves_the_record() {
    let recorded = entries(&["a_kept__S", "a_gone__S", "a_failed__S", "a_back__S"]);
    let rendered = entries(&["a_kept__S", "a_back__S", "a_new__S"]);
    let gone = ["a_gone__S", "a_back__S"].map(id).into_iter().collect();
    let expected = entries(&["a_back__S", "a_failed__S", "a_kept__S", "a_new__S"]);
    assert_eq!(shrink(&recorded, &rendered, &gone), expected);
}

// Names

/// Rules: run B37
#[test]
fn shards_are_named_plainly_and_hashed_on_a_clash() {
    assert_eq!(plain_name("payments", "application", 0), "payments-application-0");
    assert_eq!(
        hashed_name("payments", "application", 0),
        "payments-application-00-1e8127524d"
    );
    assert_eq!(
        choose_name("payments", "application", 12, |_| false),
        "payments-application-12"
    );
    let clash = choose_name("payments", "application", 0, |name| name == "payments-application-0");
    assert_eq!(clash, "payments-application-00-1e8127524d");
    assert_eq!(plain_name("a-b", "c", 0), plain_name("a", "b-c", 0));
    assert_ne!(hashed_name("a-b", "c", 0), hashed_name("a", "b-c", 0));
}

#[test]
fn long_names_are_cut_and_hashed() {
    let long = "s".repeat(200);
    let fits = "t".repeat(253 - 200 - 3);
    assert_eq!(choose_name(&long, &fits, 7, |_| false).len(), 253);
    let over = choose_name(&long, &format!("{fits}t"), 7, |_| false);
    assert_eq!(over.len(), 253);
    assert!(!over.ends_with("-7"), "{over}");
    let hyphens = hashed_name(&"-".repeat(300), "t", 0);
    assert_eq!(hyphens.len(), 11, "a head of hyphens is cut away: {hyphens}");
}

#[test]
fn shard_labels_find_the_shard() {
    let labels = shard_labels("payments", "application", 3);
    let listed: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (*k, v.as_str())).collect();
    assert_eq!(
        listed,
        [
            ("stages.metio.wtf/shard", "3"),
            ("stages.metio.wtf/stage", "application"),
            ("stages.metio.wtf/stage-set", "payments"),
        ]
    );
}

#[test]
fn member_labels_name_owner_stage_and_set() {
    let labels = object_labels(&owner(), "application", "applyset-x-v1");
    let listed: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
    assert_eq!(
        listed,
        [
            ("applyset.kubernetes.io/part-of", "applyset-x-v1"),
            ("stages.metio.wtf/name", "payments"),
            ("stages.metio.wtf/namespace", "team"),
            ("stages.metio.wtf/stage", "application"),
        ]
    );
}

// ApplySet

/// Rules: run 17.2 applyset
#[test]
fn applyset_ids_hash_the_parent() {
    assert_eq!(
        applyset_id("payments-application-0", "payments"),
        "applyset-rpImcJDQunHBweaOlSwPCEy9-_PKMYlPD3GdZcEDpI8-v1"
    );
    assert!(applyset_id("x", "y").len() <= 63, "it must fit a label value");
}

/// Rules: run 17.2 applyset
#[test]
fn the_parent_lists_kinds_and_foreign_namespaces() {
    let members = entries(&[
        "payments_web_apps_Deployment",
        "zoo_web__Service",
        "payments_web__Service",
        "audit_web__Service",
        "_reader_rbac.authorization.k8s.io_ClusterRole",
    ]);
    let metadata = parent_metadata("payments-application-0", "payments", "1.2.3", members.keys());
    assert_eq!(
        metadata.labels[keys::APPLYSET_ID],
        applyset_id("payments-application-0", "payments")
    );
    assert_eq!(
        metadata.annotations[keys::APPLYSET_TOOLING],
        "stageset-controller/v1.2.3"
    );
    assert_eq!(
        metadata.annotations[keys::APPLYSET_GROUP_KINDS],
        "ClusterRole.rbac.authorization.k8s.io,Deployment.apps,Service"
    );
    assert_eq!(metadata.annotations[keys::APPLYSET_NAMESPACES], "audit,zoo");
}

proptest! {
    #[test]
    fn ids_round_trip(namespace in "[a-z0-9-]{0,8}", name in "[a-zA-Z0-9._:-]{1,20}", group in "[a-z.]{0,10}", kind in "[A-Z][A-Za-z0-9]{0,10}", version in "v[0-9]") {
        let entry = Entry { id: ObjectId::new(&namespace, &name, &group, &kind), version };
        let back = Entry::parse(&entry.id.written(), &entry.api_version()).unwrap();
        prop_assert!(back == entry || (group.is_empty() && name.contains("__")), "{:?}", back);
    }

    #[test]
    fn identities_sort_as_they_are_written(left in "[a-c]?_[a-d.]{1,3}_[ab]?_K", right in "[a-c]?_[a-d.]{1,3}_[ab]?_K") {
        prop_assert_eq!(id(&left).cmp(&id(&right)), left.cmp(&right));
    }
}

fn pool() -> Vec<String> {
    (0..12).map(|n| format!("ns_obj{n:02}_apps_Deployment")).collect()
}

pub(super) fn some_entries() -> impl Strategy<Value = Entries> {
    let version = prop::sample::select(vec!["v1", "v2"]);
    prop::collection::btree_map(prop::sample::select(pool()), version, 0..12)
        .prop_map(|map| map.iter().map(|(text, v)| (id(text), (*v).to_owned())).collect())
}

// Prune

fn stored(name: &str, position: i64, list: &[&str]) -> StoredStage {
    StoredStage {
        name: name.into(),
        position,
        entries: entries(list),
        settled: list.len(),
        added: BTreeSet::new(),
    }
}

fn desired(name: &str, list: &[&str]) -> DesiredStage {
    DesiredStage {
        name: name.into(),
        prune: true,
        ids: list.iter().map(|text| id(text)).collect(),
    }
}

fn deletes(plans: &[StagePrune]) -> Vec<String> {
    plans
        .iter()
        .map(|plan| {
            let ids: Vec<String> = plan.delete.iter().map(|entry| entry.id.written()).collect();
            format!(
                "{}{}: {}",
                plan.stage,
                if plan.removed { " (removed)" } else { "" },
                ids.join(" ")
            )
        })
        .collect()
}

#[test]
fn prunes_what_left_a_stage() {
    let plans = prune_set(
        &[stored("app", 0, &["a_old__S", "a_kept__S"])],
        &[desired("app", &["a_kept__S", "a_new__S"])],
    );
    assert_eq!(deletes(&plans.unwrap()), ["app: a_old__S"]);
}

/// Rules: run 19.2 moved
#[test]
fn an_object_that_moves_between_stages_is_not_deleted() {
    let plans = prune_set(
        &[stored("one", 0, &["a_x__S"]), stored("two", 1, &["a_y__S"])],
        &[desired("one", &[]), desired("two", &["a_x__S", "a_y__S"])],
    )
    .unwrap();
    assert_eq!(plans.len(), 1);
    assert_eq!(plans[0].delete, []);
    assert_eq!(plans[0].moved, [(id("a_x__S"), "two".to_owned())]);
}

#[test]
fn a_renamed_stage_hands_its_objects_over() {
    let plans = prune_set(
        &[stored("old", 0, &["a_x__S", "a_gone__S"])],
        &[desired("new", &["a_x__S"])],
    )
    .unwrap();
    assert_eq!(deletes(&plans), ["old (removed): a_gone__S"]);
    assert_eq!(plans[0].moved, [(id("a_x__S"), "new".to_owned())]);
}

/// Rules: run 19.2 removed
#[test]
fn removed_stages_go_last_stage_first() {
    let plans = prune_set(
        &[
            stored("a", 1, &["a_a__S"]),
            stored("first", 0, &["a_f__S"]),
            stored("z", 2, &["a_z__S"]),
            stored("b", 1, &["a_b__S"]),
            stored("empty", 3, &[]),
            stored("kept", 0, &["a_k__S", "a_l__S"]),
        ],
        &[desired("kept", &["a_k__S"])],
    )
    .unwrap();
    assert_eq!(
        deletes(&plans),
        [
            "empty (removed): ",
            "z (removed): a_z__S",
            "a (removed): a_a__S",
            "b (removed): a_b__S",
            "first (removed): a_f__S",
            "kept: a_l__S",
        ]
    );
}

#[test]
fn a_stage_without_prune_forgets() {
    let mut keep = desired("app", &[]);
    keep.prune = false;
    let plans = prune_set(&[stored("app", 0, &["a_x__S"])], &[keep]).unwrap();
    assert_eq!(plans[0].delete, []);
    assert_eq!(plans[0].forgotten, [id("a_x__S")]);
}

/// Rules: run B10
#[test]
fn two_claims_are_an_error_that_names_both_stages() {
    let claims = prune_set(
        &[],
        &[
            desired("one", &["a_x__Secret", "a_y__S"]),
            desired("two", &["a_x__Secret"]),
        ],
    )
    .unwrap_err();
    assert_eq!(claims.len(), 1);
    let text = claims[0].to_string();
    for part in ["Secret/a/x", "\"one\"", "\"two\""] {
        assert!(text.contains(part), "{text}");
    }
}

proptest! {
    /// Every recorded object is either claimed by its stage or in exactly one part of the plan, and nothing that any stage
    /// renders is deleted.
    #[test]
    fn prune_accounts_for_every_recorded_object(records in prop::collection::vec(some_entries(), 1..4), renders in prop::collection::vec(some_entries(), 0..4)) {
        let names = ["a", "b", "c", "d"];
        let stored: Vec<StoredStage> = records.iter().zip(names).enumerate()
            .map(|(position, (entries, name))| StoredStage { name: name.into(), position: position as i64, entries: entries.clone(), settled: entries.len(), added: BTreeSet::new() })
            .collect();
        let mut claimed = BTreeSet::new();
        let desired: Vec<DesiredStage> = renders.iter().zip(names)
            .map(|(entries, name)| {
                let ids = entries.keys().filter(|id| claimed.insert((*id).clone())).cloned().collect();
                DesiredStage { name: name.into(), prune: true, ids }
            })
            .collect();
        let plans = prune_set(&stored, &desired).unwrap();
        for record in &stored {
            let plan = plans.iter().find(|plan| plan.stage == record.name);
            let own = desired.iter().find(|stage| stage.name == record.name);
            prop_assert!(own.is_some() || plan.is_some_and(|plan| plan.removed));
            for id in record.entries.keys() {
                let kept = own.is_some_and(|stage| stage.ids.contains(id));
                let deleted = plan.is_some_and(|plan| plan.delete.iter().any(|entry| entry.id == *id));
                let moved = plan.is_some_and(|plan| plan.moved.iter().any(|(one, _)| one == id));
                prop_assert_eq!(usize::from(kept) + usize::from(deleted) + usize::from(moved), 1);
                prop_assert!(!(deleted && claimed.contains(id)));
            }
        }
    }
}

fn plan(deleting: usize, recorded: usize, removed: bool) -> StagePrune {
    let entry = |n: usize| Entry {
        id: ObjectId::new("a", &format!("x{n}"), "", "S"),
        version: "v1".into(),
    };
    StagePrune {
        stage: "app".into(),
        removed,
        recorded,
        lost: deleting,
        delete: (0..deleting).map(entry).collect(),
        moved: Vec::new(),
        forgotten: Vec::new(),
    }
}

/// Rules: decisions 6 mass
#[rstest]
#[case(20, 39, false, None, true)]
#[case(20, 40, false, None, false)]
#[case(19, 19, false, None, false)]
#[case(21, 40, false, None, true)]
#[case(40, 40, true, None, false)]
#[case(40, 40, false, Some("main@sha1:2"), false)]
#[case(40, 40, false, Some("main@sha1:1"), true)]
fn a_mass_prune_is_held(
    #[case] deleting: usize,
    #[case] recorded: usize,
    #[case] removed: bool,
    #[case] confirmed: Option<&str>,
    #[case] held: bool,
) {
    let guard = PruneGuard::default();
    let result = guard.check(&plan(deleting, recorded, removed), "main@sha1:2", confirmed);
    assert_eq!(result.is_err(), held, "{result:?}");
}

/// A render that renames everything records twice as much; what it lost is measured by what there was.
///
/// Rules: decisions 6 mass
#[test]
fn what_runs_have_added_does_not_count() {
    let many = |prefix: &str| -> BTreeSet<ObjectId> { (0..40).map(|n| id(&format!("a_{prefix}{n}__S"))).collect() };
    let (old, new) = (many("x"), many("wrong-x"));
    let held = |added: &BTreeSet<ObjectId>, settled: usize, wanted: &BTreeSet<ObjectId>| {
        let record = StoredStage {
            name: "app".into(),
            position: 0,
            entries: old.iter().chain(&new).map(|id| (id.clone(), "v1".to_owned())).collect(),
            settled,
            added: added.clone(),
        };
        let wanted = DesiredStage {
            name: "app".into(),
            prune: true,
            ids: wanted.clone(),
        };
        let plans = prune_set(&[record], &[wanted]).unwrap();
        PruneGuard::default()
            .check(&plans[0], "r", None)
            .err()
            .map(|held| (held.lost, held.recorded))
    };
    let nothing = BTreeSet::new();
    assert_eq!(held(&new, 40, &new), Some((40, 40)));
    assert_eq!(held(&nothing, 40, &new), Some((40, 40)), "after a restart too");
    assert_eq!(held(&new, 40, &old), None, "what was added by mistake goes again");
    assert_eq!(held(&nothing, 0, &new), None, "nothing was in place yet");
}

#[test]
fn a_mark_counts_for_its_release_alone() {
    let mark = mark_settled("r1", 7);
    assert_eq!(settled(Some(&mark), "r1", 9), 7);
    assert_eq!(settled(Some(&mark), "r1", 5), 5);
    assert_eq!(settled(Some(&mark), "r2", 9), 9);
    assert_eq!(settled(None, "r1", 9), 9);
    assert_eq!(settled(Some("r1 many"), "r1", 9), 9);
}

/// Rules: run B1
#[test]
fn what_others_recorded_meanwhile_is_kept() {
    let known = entries(&["a_kept__S", "a_pruned__S"]);
    let wanted = entries(&["a_kept__S", "a_new__S"]);
    let stored = entries(&["a_kept__S", "a_pruned__S", "a_unknown__S"]);
    assert_eq!(
        rebase(&stored, &known, &wanted),
        entries(&["a_kept__S", "a_new__S", "a_unknown__S"])
    );
    assert_eq!(rebase(&known, &known, &wanted), wanted);
}

#[test]
fn the_guard_can_be_switched_off_and_names_what_to_do() {
    let off = PruneGuard { share: 1.0, min: 20 };
    assert!(off.check(&plan(40, 40, false), "r", None).is_ok());
    let held = PruneGuard::default()
        .check(&plan(40, 50, false), "main@sha1:2", None)
        .unwrap_err();
    let text = held.to_string();
    for part in ["\"app\"", "40 of its 50", "stages.metio.wtf/confirm-prune: main@sha1:2"] {
        assert!(text.contains(part), "{text}");
    }
}
