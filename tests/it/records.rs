//! Records that were lost, that hold too much, or that belong to a namesake.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    Match, Moment, Verb, When, World, look,
    objects::{self, configmap},
    stageset::{StageSet, stage, stageset},
};

async fn publish(world: &World, names: &[&str]) -> String {
    let files: Vec<(String, String)> = names.iter().map(|n| (format!("{n}.yaml"), configmap(n, "1"))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    world.publish("app", &files).await
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

async fn until_recorded(shop: &StageSet<'_>, names: &[&str]) {
    let recorded = look(Duration::from_secs(20), || async {
        let recorded = shop.recorded_configmaps("app").await;
        if recorded == set(names) {
            Ok(())
        } else {
            Err(format!("{recorded:?}"))
        }
    });
    if let Err(seen) = recorded.await {
        panic!("the record never was {names:?}: {seen}");
    }
}

/// An object of this stage by its labels, which the source does not have.
async fn stray(world: &World, name: &str) {
    let mut object = objects::documents(&configmap(name, "stray")).remove(0);
    object["metadata"]["labels"] = json!({
        "stages.metio.wtf/name": "shop", "stages.metio.wtf/namespace": world.namespace, "stages.metio.wtf/stage": "app",
    });
    world.cluster.apply(&object, &world.namespace).await;
}

async fn is_there(world: &World, name: &str) -> bool {
    world
        .cluster
        .exists(&objects::configmaps(), &world.namespace, name)
        .await
}

/// Run 26: what was rebuilt is told, nothing is pruned in that pass, and the next one prunes what only labels knew.
///
/// Rules: run 26.1, run 26.2, run 26.4, run 26.5, run 26.6, run B36
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_is_rebuilt_from_labels_told_and_pruned_by_the_next_pass() {
    let world = World::start("rebuilt").await;
    publish(&world, &["a"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    stray(&world, "stray").await;
    world
        .cluster
        .delete(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    let event = shop.until_event("InventoryReconstructed").await;
    assert_eq!(event["type"], "Warning");
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("app") && note.contains("pruning waits"), "{note}");
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "stray")
        .await;
    until_recorded(&shop, &["a"]).await;
    assert!(is_there(&world, "a").await);
    let writes = world.proxy.all().writes();
    let at = |wanted: Match| writes.matching(&wanted).records().last().map(|r| r.index);
    let rebuilt = at(Match::writes().verb(Verb::Create).resource("stageinventories"));
    let pruned = at(Match::writes().verb(Verb::Delete).resource("configmaps").name("stray"));
    assert!(rebuilt.is_some() && rebuilt < pruned, "\n{}", writes.lines());
    shop.until_ready().await;
    assert_eq!(shop.event_count("InventoryReconstructed").await, 1);
}

/// After a restart the record is all that is known. What it holds beyond the render is neither awaited nor put back,
/// and is still pruned.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_record_holds_beyond_the_render_is_pruned_after_a_restart() {
    let mut world = World::start("beyond").await;
    publish(&world, &["a"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    stray(&world, "stray").await;
    let no_delete = Match::writes().verb(Verb::Delete).resource("configmaps").name("stray");
    world.proxy.fail(no_delete, When::Always, 403);
    world
        .cluster
        .delete(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    until_recorded(&shop, &["a", "stray"]).await;
    drop(shop);
    world.controller().kill();
    world.proxy.heal();
    world.controller().start_again();
    world.controller().until_ready().await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "stray")
        .await;
    let shop = StageSet::named(&world, "shop").await;
    until_recorded(&shop, &["a"]).await;
    shop.until_ready().await;
    assert_eq!(shop.event_count("DriftCorrected").await, 0, "nothing was put back");
}

/// A crash right after a record has shrunk does not look like a loss: the status said so before.
///
/// Rules: run B36, run B38
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_shrinks_is_announced_before_it_is_written() {
    let mut world = World::start("shrink").await;
    publish(&world, &["a", "b", "c"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    // One object leaves undisturbed; that tells which write is the one to be killed at.
    let mark = world.proxy.mark();
    let revision = publish(&world, &["a", "b"]).await;
    shop.until_rolled_out("app", &revision).await;
    until_recorded(&shop, &["a", "b"]).await;
    drop(shop);
    let writes = world.proxy.since(mark).writes();
    let lines: Vec<&str> = writes.records().iter().map(|r| r.call.resource.as_str()).collect();
    let shrunk = lines
        .iter()
        .position(|r| *r == "stageinventories")
        .expect("the record shrinks");
    let deleted = lines
        .iter()
        .position(|r| *r == "configmaps")
        .expect("an object is pruned");
    let between = &writes.records()[deleted + 1..shrunk];
    assert!(
        between
            .iter()
            .any(|r| r.call.resource == "stagesets" && r.call.subresource == "status"),
        "announced between the delete and the write of the record:\n{}",
        writes.lines()
    );

    let pid = world.controller().pid();
    world.proxy.kill_at_write(pid, shrunk as u64 + 1, Moment::After);
    let revision = publish(&world, &["a"]).await;
    let killed = look(Duration::from_secs(30), || async {
        world.proxy.killed_at().ok_or_else(|| "still running".to_owned())
    });
    let killed = killed.await.expect("killed");
    assert_eq!(killed.resource, "stageinventories");
    world.controller().reap();
    world.controller().start_again();
    world.controller().until_ready().await;
    let shop = StageSet::named(&world, "shop").await;
    shop.until_rolled_out("app", &revision).await;
    until_recorded(&shop, &["a"]).await;
    assert_eq!(shop.event_count("InventoryReconstructed").await, 0);
}

/// Somebody took the finalizer away and left the records: the next StageSet of that name takes them over.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_namesake_get_the_new_owner() {
    let mut world = World::start("namesake").await;
    publish(&world, &["a", "b"]).await;
    let spec = stageset("shop").stage(stage("app", "app"));
    spec.apply(&world).await.until_ready().await;
    world.controller().kill();
    let nothing = json!({ "metadata": { "finalizers": null } });
    world
        .cluster
        .patch(&objects::stagesets(), &world.namespace, "shop", nothing)
        .await;
    // By hand: the garbage collector, asked to orphan, deletes what it has not come to know yet.
    let ownerless = json!({ "metadata": { "ownerReferences": null } });
    world
        .cluster
        .patch(&objects::inventories(), &world.namespace, "shop-app-0", ownerless)
        .await;
    world
        .cluster
        .delete(&objects::stagesets(), &world.namespace, "shop")
        .await;
    world
        .cluster
        .until_gone(&objects::stagesets(), &world.namespace, "shop")
        .await;

    // The same objects: nothing of the record itself has to change.
    spec.apply(&world).await;
    world.controller().start_again();
    world.controller().until_ready().await;
    let shop = StageSet::named(&world, "shop").await;
    shop.until_ready().await;
    let uid = shop.get().await["metadata"]["uid"].clone();
    let owned = |w: &Value| w["metadata"]["ownerReferences"][0]["uid"] == uid;
    world
        .cluster
        .until(&objects::inventories(), &world.namespace, "shop-app-0", "owned", owned)
        .await;
    until_recorded(&shop, &["a", "b"]).await;
    let revision = publish(&world, &["a"]).await;
    shop.until_rolled_out("app", &revision).await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "b")
        .await;
    until_recorded(&shop, &["a"]).await;
    shop.delete().await;
    shop.until_gone().await;
    world
        .cluster
        .until_gone(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    assert!(!is_there(&world, "a").await);
}

/// A write that got no answer is carried out after all, when its object has been pruned already: nothing stays behind.
///
/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_carried_out_late_leaves_no_orphan() {
    let world = World::start("late-write").await;
    let late = |verb| Match::writes().verb(verb).resource("configmaps").name("late");
    let longer_than_we_wait = Duration::from_secs(45);
    world
        .proxy
        .delay_some(late(Verb::Patch), When::Nth(1), longer_than_we_wait);
    publish(&world, &["a", "late"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready_within(Duration::from_secs(90)).await;
    let revision = publish(&world, &["a"]).await;
    shop.until_rolled_out("app", &revision).await;
    look(Duration::from_secs(120), || async {
        match world.proxy.all().matching(&late(Verb::Delete)).count() {
            0 | 1 => Err("deleted once: it has not come back yet, or it stays".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .expect("it is deleted again");
    look(Duration::from_secs(120), || async {
        let recorded = shop.recorded_configmaps("app").await;
        if recorded.len() == 1 {
            Ok(())
        } else {
            Err(format!("{recorded:?}"))
        }
    })
    .await
    .expect("in the end it is forgotten");
    let exists = world
        .cluster
        .exists(&objects::configmaps(), &world.namespace, "late")
        .await;
    assert!(!exists);
}

/// What was recorded behind the controller's back, by another leader or from a backup, is kept when it writes: it finds
/// out by the conflict.
///
/// Rules: run B1
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_the_controller_had_not_seen_are_not_dropped() {
    let world = World::start("unseen").await;
    publish(&world, &["a"]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    stray(&world, "stray").await;
    let blind = |verb| Match::any().verb(verb).resource("stageinventories");
    world.proxy.fail(blind(Verb::Watch), When::Always, 500);
    world.proxy.fail(blind(Verb::List), When::Always, 500);
    let mark = world.proxy.mark();
    world.proxy.drop_connections();
    look(Duration::from_secs(20), || async {
        let tried = world.proxy.since(mark);
        match tried.matching(&blind(Verb::Watch)).count() + tried.matching(&blind(Verb::List)).count() {
            0 => Err(tried.lines()),
            _ => Ok(()),
        }
    })
    .await
    .expect("the inventories are not watched any more");
    let (kind, ns) = (objects::inventories(), &world.namespace);
    let shard = world.cluster.must_get(&kind, ns, "shop-app-0").await;
    let mut entries = shard["spec"]["entries"].clone();
    let unseen = json!({ "id": format!("{ns}_stray__ConfigMap"), "v": "v1" });
    entries.as_array_mut().expect("entries").push(unseen);
    let patch = json!({ "spec": { "entries": entries } });
    world.cluster.patch(&kind, ns, "shop-app-0", patch).await;

    let revision = publish(&world, &["a", "b"]).await;
    shop.until_rolled_out("app", &revision).await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "stray")
        .await;
    world.proxy.heal();
    until_recorded(&shop, &["a", "b"]).await;
}

/// A StageSet from a backup that has neither its status nor its inventory finds what it had by the labels; a new one is
/// told nothing.
///
/// Rules: run B36, run 26.4
#[tokio::test(flavor = "multi_thread")]
async fn a_stageset_without_status_and_inventory_finds_its_objects() {
    let world = World::start("from-backup").await;
    publish(&world, &["a"]).await;
    for name in ["a", "stray"] {
        stray(&world, name).await;
    }
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    let event = shop.until_event("InventoryReconstructed").await;
    assert!(event["note"].to_string().contains("pruning waits"), "{event}");
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "stray")
        .await;
    shop.until_ready().await;
    until_recorded(&shop, &["a"]).await;

    world.publish("fresh", &[("new.yaml", &configmap("new", "1"))]).await;
    let fresh = stageset("fresh").stage(stage("app", "fresh")).apply(&world).await;
    fresh.until_ready().await;
    assert_eq!(fresh.event_count("InventoryReconstructed").await, 0);
}

/// Rules: run 26.3
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_cannot_be_listed_while_a_record_is_rebuilt_is_told() {
    let world = World::start("unlisted").await;
    let (map, service) = (configmap("a", "1"), objects::service("web", 80));
    world.publish("app", &[("a.yaml", &map), ("web.yaml", &service)]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    stray(&world, "stray").await;
    let list = Match::any().verb(Verb::List).resource("services");
    world.proxy.fail(list, When::Always, 403);
    world
        .cluster
        .delete(&objects::inventories(), &world.namespace, "shop-app-0")
        .await;
    let event = shop.until_event("InventoryReconstructed").await;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains("app (incomplete: Service cannot be listed)"), "{note}");
    // What could be listed is found all the same.
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "stray")
        .await;
    world.proxy.heal();
}
