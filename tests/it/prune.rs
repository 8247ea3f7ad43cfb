//! What leaves the render leaves the cluster, and nothing else does.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    Match, Verb, When, World, look,
    objects::{self, Kind, configmap, multi},
    stageset::{StageSet, condition_of, stage, stage_of, stageset},
};

/// Files of ConfigMaps with these names.
fn maps(names: &[&str]) -> Vec<(String, String)> {
    names
        .iter()
        .map(|name| (format!("{name}.yaml"), configmap(name, "1")))
        .collect()
}

async fn publish(world: &World, artifact: &str, names: &[&str]) -> String {
    let files = maps(names);
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    // A file without objects keeps a stage renderable when its last object leaves.
    let mut all = vec![("kustomization.yaml", KEEP)];
    if names.is_empty() {
        return world.publish(artifact, &all).await;
    }
    all.clear();
    world.publish(artifact, &[files, all].concat()).await
}

const KEEP: &str = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: []\n";

async fn uid(world: &World, name: &str) -> Value {
    world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, name)
        .await["metadata"]["uid"]
        .clone()
}

async fn is_there(world: &World, name: &str) -> bool {
    world
        .cluster
        .exists(&objects::configmaps(), &world.namespace, name)
        .await
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// Stages `one` and `two` from artifacts of the same names, rolled out.
async fn two_stages<'w>(world: &'w World, one: &[&str], two: &[&str]) -> StageSet<'w> {
    publish(world, "one", one).await;
    publish(world, "two", two).await;
    let shop = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(world)
        .await;
    shop.until_ready().await;
    shop
}

/// Rules: run 3 step 18, run 3 step 22, run B25
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_left_the_render_is_deleted() {
    let world = World::start("prune").await;
    let shop = two_stages(&world, &["a", "b", "c"], &["d"]).await;
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a", "b", "c"]));
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["a", "d"]);
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a"]));
    assert_eq!(shop.stage("one").await["entriesCount"], 1);
}

/// Rules: run 19.1, run 3 step 22
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_before_every_stage_is_ready() {
    let world = World::start("prune-last").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    let mark = world.proxy.mark();
    publish(&world, "two", &["d", "e"]).await;
    let revision = publish(&world, "one", &["a", "new"]).await;
    shop.until_rolled_out("one", &revision).await;
    let writes = world
        .proxy
        .since(mark)
        .matching(&Match::writes().resource("configmaps"));
    let order: Vec<String> = writes
        .records()
        .iter()
        .map(|r| format!("{:?} {}", r.call.verb, r.call.name))
        .collect();
    let at = |line: &str| {
        order
            .iter()
            .position(|l| l == line)
            .unwrap_or_else(|| panic!("no {line} in {order:?}"))
    };
    assert!(at("Delete b") > at("Patch e"), "{order:?}");
}

/// Rules: run 19.2 moved
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_moves_between_stages_is_never_deleted() {
    let world = World::start("move").await;
    let shop = two_stages(&world, &["a", "moves"], &["d"]).await;
    let before = uid(&world, "moves").await;
    publish(&world, "two", &["d", "moves"]).await;
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    shop.until("the object counted in the second stage", |s| {
        stage_of(s, "two")["entriesCount"] == 2
    })
    .await;
    assert_eq!(shop.recorded_configmaps("two").await, set(&["d", "moves"]));
    let back = publish(&world, "one", &["a", "extra"]).await;
    shop.until_rolled_out("one", &back).await;
    assert_eq!(uid(&world, "moves").await, before);
    assert_eq!(shop.recorded_configmaps("two").await, set(&["d", "moves"]));
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a", "extra"]));
    let map = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "moves")
        .await;
    assert_eq!(map["metadata"]["labels"]["stages.metio.wtf/stage"], "two");
}

/// Rules: run 19.2 removed
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_stage_is_torn_down_and_a_renamed_one_keeps_its_objects() {
    let world = World::start("stages").await;
    let mut shop = two_stages(&world, &["a"], &["d"]).await;
    let before = uid(&world, "a").await;
    shop.patch_spec(json!({ "stages": [{ "name": "uno", "sourceRef": { "name": "one" } }] }))
        .await;
    shop.until_ready().await;
    assert_eq!(uid(&world, "a").await, before, "a renamed stage hands its objects over");
    assert!(!is_there(&world, "d").await, "a removed stage is torn down");
    let inventory = shop.inventory().await;
    assert_eq!(
        inventory.keys().map(String::as_str).collect::<Vec<_>>(),
        ["uno"],
        "shards of gone stages are gone"
    );
}

/// Rules: run 4.1.4, run 19.2 prune-off
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_does_not_prune_leaves_its_objects() {
    let world = World::start("keep").await;
    publish(&world, "one", &["a", "b"]).await;
    let shop = stageset("shop")
        .stage(stage("one", "one").prune(false))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    assert!(is_there(&world, "b").await);
    shop.delete().await;
    shop.until_gone().await;
    assert!(
        is_there(&world, "a").await && is_there(&world, "b").await,
        "deletion leaves them too"
    );
}

/// Rules: run 16.5 prune, run 19.3.2, run 19.3.3
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_protected_or_adopted_by_others_stay() {
    let world = World::start("foreign").await;
    let shop = two_stages(&world, &["a", "protected", "adopted", "plain"], &["d"]).await;
    let annotation = json!({ "metadata": { "annotations": { "stages.metio.wtf/prune": "Disabled" } } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "protected", annotation)
        .await;
    let label = json!({ "metadata": { "labels": { "stages.metio.wtf/name": "another" } } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "adopted", label)
        .await;
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    assert!(!is_there(&world, "plain").await);
    assert!(is_there(&world, "protected").await && is_there(&world, "adopted").await);
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a"]));
}

/// Rules: run 19.3.1
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_gone_already_is_no_problem() {
    let world = World::start("gone").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    world
        .cluster
        .delete(&objects::configmaps(), &world.namespace, "b")
        .await;
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a"]));
}

/// The objects of a stage are known until they are deleted, whatever happens in between.
///
/// Rules: run B1, run 19.1, run 3 step 19
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_a_later_stage_orphans_nothing() {
    let world = World::start("orphan").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    let broken = configmap("d", "1").replace("data:\n  value: \"1\"", "data: [not, a, map]");
    world.publish("two", &[("d.yaml", &broken)]).await;
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_applied("one", &revision).await;
    shop.until_reason("StageFailed").await;
    assert!(is_there(&world, "b").await, "nothing is pruned by a failed run");
    assert!(shop.recorded_configmaps("one").await.contains("b"), "it is still known");
    let good = publish(&world, "two", &["d", "e"]).await;
    shop.until_rolled_out("two", &good).await;
    assert!(!is_there(&world, "b").await, "it is pruned once the run gets through");
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a"]));
}

/// What an apply that failed half-way has created is known.
///
/// Rules: run B2, run 3.1 o, run 16.2.3, run 25 invalid
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_apply_is_recorded() {
    let world = World::start("half").await;
    let broken = configmap("z", "1").replace("data:\n  value: \"1\"", "data: [not, a, map]");
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: { name: invalid }\nspec: { template: { spec: { containers: [] } } }\n";
    for bad in [broken.as_str(), job] {
        world
            .publish("app", &[("a.yaml", &configmap("a", "1")), ("z.yaml", bad)])
            .await;
        let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
        let begun = Instant::now();
        let ready = shop.until_reason("StageFailed").await;
        let message = ready["message"].as_str().unwrap_or_default();
        assert!(message.contains("stage \"app\" apply"), "{message}");
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "an object the server will never take is no stumble of the server: {:?}",
            begun.elapsed()
        );
        assert!(
            shop.recorded_configmaps("app").await.contains("a"),
            "{:?}",
            shop.inventory().await
        );
        shop.delete().await;
        shop.until_gone().await;
        assert!(
            !is_there(&world, "a").await,
            "teardown knows what the failed apply created"
        );
    }
}

/// The record is written before the object, and shrunk only after the delete.
///
/// Rules: run B1, decisions 6 before
#[tokio::test(flavor = "multi_thread")]
async fn the_record_comes_before_the_object_and_goes_after_it() {
    let world = World::start("write-ahead").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    let lines = |tally: crate::support::proxy::Tally| -> Vec<String> {
        let relevant =
            |r: &&crate::support::proxy::Record| matches!(r.call.resource.as_str(), "configmaps" | "stageinventories");
        tally
            .writes()
            .records()
            .iter()
            .filter(relevant)
            .map(|r| format!("{:?} {} {}", r.call.verb, r.call.resource, r.call.name))
            .collect()
    };
    let first = lines(world.proxy.all());
    let at = |lines: &[String], part: &str| {
        lines
            .iter()
            .position(|l| l.contains(part))
            .unwrap_or_else(|| panic!("no {part} in {lines:#?}"))
    };
    assert!(
        at(&first, "stageinventories shop-one-0") < at(&first, "Patch configmaps a"),
        "{first:#?}"
    );
    assert!(
        at(&first, "stageinventories shop-two-0") < at(&first, "Patch configmaps d"),
        "{first:#?}"
    );

    let mark = world.proxy.mark();
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    let second = lines(world.proxy.since(mark));
    let deleted = at(&second, "Delete configmaps b");
    let shrunk = second
        .iter()
        .rposition(|l| l.contains("stageinventories shop-one-0"))
        .expect("the record shrinks");
    assert!(deleted < shrunk, "{second:#?}");
}

/// Rules: run 3.1 r, decisions 6 before
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_inventory_write_stops_the_stage_before_anything_is_applied() {
    let world = World::start("no-record").await;
    world
        .proxy
        .fail(Match::writes().resource("stageinventories"), When::Always, 500);
    publish(&world, "app", &["a"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    let ready = shop.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(message.contains("record inventory"), "{message}");
    assert!(!is_there(&world, "a").await);
    world.proxy.heal();
    shop.until_ready().await;
}

/// A delete that fails shows in the condition, and is tried again.
///
/// Rules: run B14
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_delete_is_reported_and_repeated() {
    let world = World::start("no-delete").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    world.proxy.fail(
        Match::writes().verb(Verb::Delete).resource("configmaps"),
        When::Always,
        500,
    );
    publish(&world, "one", &["a"]).await;
    shop.until("not Ready, naming the object", |s| {
        condition_of(s, "Ready").is_some_and(|c| {
            c["status"] != "True"
                && c["message"].to_string().contains("ConfigMap")
                && c["message"].to_string().contains("/b")
        })
    })
    .await;
    assert!(
        shop.recorded_configmaps("one").await.contains("b"),
        "an unconfirmed delete stays recorded"
    );
    world.proxy.heal();
    shop.until_ready().await;
    assert!(!is_there(&world, "b").await);
}

/// The second claim is found before its stage is applied.
///
/// Rules: run B10, run 3 step 21
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_two_stages_is_refused_before_it_is_fought_over() {
    let world = World::start("claims").await;
    publish(&world, "one", &["a", "both"]).await;
    publish(&world, "two", &["both", "d"]).await;
    let shop = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    let ready = shop.until_reason("InvalidSpec").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("both") && message.contains("one") && message.contains("two"),
        "{message}"
    );
    assert!(!is_there(&world, "d").await, "the second stage is not applied");
}

/// Two StageSets do not take an object from each other in turn.
///
/// Rules: run B29, run 19.3.2
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_stageset_is_not_taken_over() {
    let world = World::start("neighbours").await;
    publish(&world, "one", &["shared"]).await;
    let first = stageset("first").stage(stage("app", "one")).apply(&world).await;
    first.until_ready().await;
    publish(&world, "two", &["shared", "other"]).await;
    let second = stageset("second").stage(stage("app", "two")).apply(&world).await;
    let ready = second.until_reason("StageFailed").await;
    let message = ready["message"].as_str().unwrap_or_default();
    assert!(message.contains("shared") && message.contains("first"), "{message}");
    let map = world
        .cluster
        .must_get(&objects::configmaps(), &world.namespace, "shared")
        .await;
    assert_eq!(map["metadata"]["labels"]["stages.metio.wtf/name"], "first");
    second.delete().await;
    second.until_gone().await;
    assert!(
        is_there(&world, "shared").await,
        "the loser's teardown leaves the owner's object"
    );
}

/// Names with `_` and `:` are recorded in full, and ambiguous inventory names do not clash.
///
/// Rules: run B22, run B37
#[tokio::test(flavor = "multi_thread")]
async fn unusual_names_are_recorded_and_pruned() {
    let world = World::start("names").await;
    let role = |name: &str| {
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: {name:?}\nrules: []\n")
    };
    let roles: Kind = objects::roles();
    world
        .publish(
            "app",
            &[(
                "r.yaml",
                &multi(&[role("system:a_b"), role("under_score_Kind"), role("stays")]),
            )],
        )
        .await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let revision = world.publish("app", &[("r.yaml", &role("stays"))]).await;
    shop.until_rolled_out("app", &revision).await;
    assert_eq!(world.applied(&roles, "shop").await, ["stays"]);

    publish(&world, "x", &["x"]).await;
    publish(&world, "y", &["y"]).await;
    let left = stageset("a-b").stage(stage("c", "x")).apply(&world).await;
    left.until_ready().await;
    let right = stageset("a").stage(stage("b-c", "y")).apply(&world).await;
    right.until_ready().await;
    assert_eq!(left.recorded_configmaps("c").await, set(&["x"]));
    assert_eq!(right.recorded_configmaps("b-c").await, set(&["y"]));
}

/// Rules: run 17.2 shards
#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_is_split_at_its_cap_and_shrinks_again() {
    let world = World::builder("shards").flag("--inventory-shard-cap=2").start().await;
    publish(&world, "app", &["a", "b", "c", "d", "e"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let shards = |count: usize| {
        let world = &world;
        async move {
            let all = world.cluster.list(&objects::inventories(), &world.namespace, "").await;
            assert_eq!(all.len(), count);
            assert!(
                all.iter()
                    .all(|s| s["spec"]["entries"].as_array().map_or(0, Vec::len) <= 2),
                "{all:?}"
            );
        }
    };
    shards(3).await;
    assert_eq!(shop.recorded_configmaps("app").await, set(&["a", "b", "c", "d", "e"]));
    assert_eq!(shop.stage("app").await["shards"], 3);
    let revision = publish(&world, "app", &["e"]).await;
    shop.until_rolled_out("app", &revision).await;
    assert_eq!(shop.recorded_configmaps("app").await, set(&["e"]));
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["e"]);
    // Entries stay in the shard they are in; shard 0 is the ApplySet's parent and stays too.
    look(Duration::from_secs(5), || async {
        let all = world.cluster.list(&objects::inventories(), &world.namespace, "").await;
        let names: Vec<&str> = all.iter().filter_map(|s| s["metadata"]["name"].as_str()).collect();
        if names.len() <= 2 && names.contains(&"shop-app-0") {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await
    .expect("shards that are no longer needed are gone");
}

/// Rules: run 14.1 zero
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_may_render_nothing_at_all() {
    let world = World::start("nothing").await;
    let shop = two_stages(&world, &["a"], &["d"]).await;
    let revision = publish(&world, "two", &[]).await;
    shop.until_rolled_out("two", &revision).await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["a"]);
    assert_eq!(shop.recorded_configmaps("two").await, set(&[]));
}

/// A conflict at the delete does not mean that somebody else has the object now.
///
/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_meets_a_conflict_is_repeated() {
    let world = World::start("prune-conflict").await;
    let shop = two_stages(&world, &["a", "b"], &["d"]).await;
    let delete = Match::writes().verb(Verb::Delete).resource("configmaps").name("b");
    world.proxy.fail(delete, When::First(2), 409);
    let revision = publish(&world, "one", &["a"]).await;
    shop.until_rolled_out("one", &revision).await;
    assert!(!is_there(&world, "b").await, "nothing stays behind unrecorded");
    assert_eq!(shop.recorded_configmaps("one").await, set(&["a"]));
}

/// A wrong prefix records twice as many objects: what there was before counts, also after a restart.
///
/// Rules: decisions 6 mass
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_a_run_has_added_do_not_dilute_the_guard() {
    let mut world = World::start("dilute").await;
    let names = |prefix: &str| -> Vec<String> { (0..24).map(|n| format!("{prefix}{n}")).collect() };
    let publish_all = async |world: &World, names: &[String]| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        publish(world, "app", &names).await
    };
    publish_all(&world, &names("m")).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    let held = async |world: &World, shop: &StageSet<'_>, revision: &str| {
        let held = |s: &Value| {
            condition_of(s, "Ready")
                .is_some_and(|c| c["reason"] == "PruneHeld" && c["message"].to_string().contains(revision))
        };
        shop.until("held", held).await;
        assert!(
            shop.message().await.contains("24 of its 24"),
            "{}",
            shop.message().await
        );
        assert!(is_there(world, "m0").await);
    };
    let wrong = publish_all(&world, &names("wrong-m")).await;
    held(&world, &shop, &wrong).await;
    // What was added by mistake goes without a question.
    let right = publish_all(&world, &[names("m"), vec!["one-more".to_owned()]].concat()).await;
    shop.until_rolled_out("app", &right).await;
    let right = publish_all(&world, &names("m")).await;
    shop.until_rolled_out("app", &right).await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await.len(), 24);

    // The next revision has the mistake too, and then a restart comes.
    publish_all(&world, &names("wrong-m")).await;
    shop.until_reason("PruneHeld").await;
    let also = publish_all(&world, &[names("wrong-m"), vec!["one-more".to_owned()]].concat()).await;
    held(&world, &shop, &also).await;
    drop(shop);
    world.controller().kill();
    world.controller().start_again();
    world.controller().until_ready().await;
    let shop = StageSet::named(&world, "shop").await;
    shop.reconcile().await;
    held(&world, &shop, &also).await;
    shop.annotate("stages.metio.wtf/confirm-prune", Some(&also)).await;
    shop.until_rolled_out("app", &also).await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await.len(), 25);
}

/// A delete that failed is repeated as the account that applied the object, although another applies the rest by now.
///
/// Rules: run 19.2 identity, run B1
#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_before_is_kept_until_its_objects_are_gone() {
    let world = World::builder("account-before")
        .flag("--inventory-shard-cap=2")
        .start()
        .await;
    let ns = &world.namespace;
    let other = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{ name: other }}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n\
         metadata: {{ name: other }}\nrules: [{{ apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, watch, create, patch] }}]\n\
         ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: other }}\nroleRef: {{ apiGroup: \
         rbac.authorization.k8s.io, kind: Role, name: other }}\nsubjects: [{{ kind: ServiceAccount, name: other, namespace: {ns} }}]\n"
    );
    world.cluster.apply_yaml(&other, ns).await;
    publish(&world, "app", &["a", "b", "c", "d", "e"]).await;
    let mut shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    shop.suspend(true).await;
    shop.until_reason("Suspended").await;
    let delete = Match::writes().verb(Verb::Delete).resource("configmaps").name("d");
    world.proxy.fail(delete.clone(), When::First(2), 500);
    publish(&world, "app", &["a", "c"]).await;
    shop.patch_spec(json!({ "suspend": false, "serviceAccountName": "other" }))
        .await;
    shop.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["a", "c"]);
    let tenant = format!("system:serviceaccount:{ns}:tenant");
    let deletes = world.proxy.all().matching(&delete);
    assert!(deletes.count() >= 3, "\n{}", deletes.lines());
    assert!(
        deletes.records().iter().all(|r| r.call.user == tenant),
        "\n{}",
        deletes.lines()
    );
    for shard in world.cluster.list(&objects::inventories(), ns, "").await {
        assert_eq!(shard["spec"]["serviceAccountName"], "other", "{shard}");
    }
}
