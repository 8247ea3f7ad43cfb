//! What is tried again and when, what one failure costs the rest, and layouts that are easy to miss.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Archive, ControlPlane, Match, Verb, When, World, archive,
    artifacts::Answer,
    objects::{self, configmap, multi, unbound_claim},
    stageset::{condition_of, stage, stage_from, stage_of, stageset},
};

/// What no retry can mend is not tried at the retry interval, and comes back at the interval all the same.
///
/// Rules: run B11, run 12 terminal, decisions 2 terminal
#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_is_looked_at_again_at_the_interval() {
    let world = World::start("final").await;
    let good = Archive::of(&[("m.yaml", &configmap("map", "1"))]).gzip();
    let digest = archive::sha256(&good);
    let bad = Archive::of(&[("m.yaml", &configmap("map", "2"))]).gzip();
    let url = world.artifacts.put("app.tar.gz", Answer::Bytes(bad.into()));
    world.publish_status("app", &url, "v1", &digest, true).await;
    let set = stageset("app")
        .interval("5s")
        .retry_interval("500ms")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until("a final failure", |s| {
        condition_of(s, "Stalled").is_some_and(|c| c["status"] == "True" && c["reason"] == "StageFailed")
    })
    .await;
    let before = world.artifacts.all_downloads();
    world
        .stays("not tried at the retry interval", Duration::from_secs(3), || async {
            let now = world.artifacts.all_downloads();
            if now > before {
                Err(format!("{now} downloads"))
            } else {
                Ok(())
            }
        })
        .await;
    // The producer has put the right bytes in place, and no event tells.
    world.artifacts.put("app.tar.gz", Answer::Bytes(good.into()));
    set.until_ready_within(Duration::from_secs(12)).await;
    assert!(set.condition("Stalled").await.is_none());
}

/// Rules: decisions 3.3, run 2.7 failure
#[tokio::test(flavor = "multi_thread")]
async fn each_retry_is_a_new_attempt_with_a_new_clock() {
    let world = World::start("attempts").await;
    world.publish("app", &[("claim.yaml", &unbound_claim("never"))]).await;
    let set = stageset("app")
        .retry_interval("1s")
        .stage(stage("app", "app").timeout("2s"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    let status = set
        .until("a second attempt", |s| s["run"]["attempt"].as_i64() >= Some(2))
        .await;
    let first = status["run"]["startedAt"].clone();
    let clock = |s: &Value| {
        stage_of(s, "app")["stepStartedAt"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let second = clock(&status);
    let status = set
        .until("a later attempt in its verify", |s| {
            s["run"]["attempt"].as_i64() >= Some(3) && stage_of(s, "app")["phase"] == "Verifying"
        })
        .await;
    assert!(clock(&status) > second, "the clock starts anew: {status}");
    assert_eq!(status["run"]["startedAt"], first, "it is the same run");
    assert_eq!(set.event_count("StageFailed").await, 1, "the same failure is told once");
}

/// What a run has made itself is no older than the run: the next attempt waits for it as the first one did.
///
/// Rules: run 16.5 ssa, run 16.6 keep, decisions 3.3
#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_made_and_may_not_touch_again_is_waited_for_in_every_attempt() {
    let world = World::start("own-kept").await;
    let once = unbound_claim("once").replace(
        "  name: once\n",
        "  name: once\n  annotations: { stages.metio.wtf/ssa: IfNotPresent }\n",
    );
    let keep = json!({ "default": "KeepExisting" });
    for (name, manifest, policy) in [("once", once, json!({})), ("kept", unbound_claim("kept"), keep)] {
        world.publish(name, &[("claim.yaml", &manifest)]).await;
        let set = stageset(name)
            .retry_interval("1s")
            .stage(stage("app", name).timeout("2s").set("conflictPolicy", policy))
            .apply(&world)
            .await;
        let status = set
            .until("a third attempt that waits", |s| {
                s["run"]["attempt"].as_i64() >= Some(3) && stage_of(s, "app")["waitingFor"].to_string().contains(name)
            })
            .await;
        let ready = condition_of(&status, "Ready").expect("Ready");
        assert_ne!(ready["status"], "True", "{ready}");
        set.delete().await;
        set.until_gone().await;
    }
}

/// A trouble of another kind that came later and is over leaves nothing behind: what failed is told again.
///
/// Rules: decisions 2 failed
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_says_why_again_once_a_later_trouble_is_over() {
    let mut world = World::builder("later-trouble").without_controller().start().await;
    let there = world.another_namespace("b").await;
    let flag = format!("--watch-namespaces={},{there}", world.namespace);
    world.set_flag("--watch-namespaces", &flag);
    world.start_controller().await;
    let bytes = Archive::of(&[("claim.yaml", &unbound_claim("never"))]).gzip();
    let status = crate::support::world::artifact_status(
        &world.artifacts.put("far.tar.gz", Answer::Bytes(bytes.clone().into())),
        "v1",
        &archive::sha256(&bytes),
        true,
    );
    let artifacts = objects::external_artifacts();
    let object = json!({ "apiVersion": artifacts.api_version, "kind": "ExternalArtifact", "metadata": { "name": "far" }, "spec": {} });
    let publish = async || {
        world.cluster.apply(&object, &there).await;
        world
            .cluster
            .patch_status(&artifacts, &there, "far", status.clone())
            .await;
    };
    publish().await;
    let source = json!({ "name": "far", "namespace": there });
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage_from("app", source).timeout("2s"))
        .apply(&world)
        .await;
    set.until_reason("StageFailed").await;
    let before = set.message().await;
    world.cluster.delete(&artifacts, &there, "far").await;
    set.until_reason("ResolveFailed").await;
    publish().await;
    set.until_reason("StageFailed").await;
    assert_eq!(set.message().await, before);
    assert_eq!(set.status().await["run"]["attempt"], 1, "it rests");
}

/// Rules: run 19.3.4, run B14
#[tokio::test(flavor = "multi_thread")]
async fn one_failed_delete_stops_no_other() {
    let world = World::start("deletes").await;
    let maps = |names: &[&str]| multi(&names.iter().map(|n| configmap(n, "1")).collect::<Vec<_>>());
    world.publish("app", &[("m.yaml", &maps(&["a", "b", "c", "d"]))]).await;
    let set = stageset("app")
        .retry_interval("1h")
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    set.until_ready().await;
    for name in ["b", "c"] {
        let delete = Match::writes().verb(Verb::Delete).resource("configmaps").name(name);
        world.proxy.fail(delete, When::Always, 422);
    }
    world.publish("app", &[("m.yaml", &maps(&["a"]))]).await;
    set.until("the failed deletes named", |s| {
        condition_of(s, "Ready").is_some_and(|c| c["status"] != "True" && c["message"].to_string().contains("1 more"))
    })
    .await;
    world
        .cluster
        .until_gone(&objects::configmaps(), &world.namespace, "d")
        .await;
    let recorded = set.recorded_configmaps("app").await;
    assert_eq!(
        recorded.into_iter().collect::<Vec<_>>(),
        ["a", "b", "c"],
        "what is still there is still known"
    );
    world.proxy.heal();
    set.request().await;
    set.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "app").await, ["a"]);
}

/// Rules: run 4.1.2, run 4.1.3
#[tokio::test(flavor = "multi_thread")]
async fn every_shard_and_every_removed_stage_takes_part_in_the_teardown() {
    let world = World::builder("all-shards")
        .flag("--inventory-shard-cap=2")
        .start()
        .await;
    let maps = |stage: &str| {
        multi(
            &(0..5)
                .map(|i| configmap(&format!("{stage}-{i}"), "1"))
                .collect::<Vec<_>>(),
        )
    };
    for name in ["one", "two"] {
        world.publish(name, &[("m.yaml", &maps(name))]).await;
    }
    let mut set = stageset("shop")
        .stage(stage("one", "one"))
        .stage(stage("two", "two"))
        .apply(&world)
        .await;
    set.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await.len(), 10);
    // Taken out of the spec while nothing acts upon it.
    let one = json!([{ "name": "one", "sourceRef": { "name": "one" } }]);
    set.patch_spec(json!({ "suspend": true, "stages": one })).await;
    set.until_reason("Suspended").await;
    let mark = world.proxy.mark();
    set.delete().await;
    set.until_gone().await;
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        Vec::<String>::new()
    );
    let deletes = world
        .proxy
        .since(mark)
        .matching(&Match::writes().verb(Verb::Delete).resource("configmaps"));
    let stages: Vec<&str> = deletes
        .records()
        .iter()
        .filter_map(|r| r.call.name.split('-').next())
        .collect();
    assert_eq!(stages.len(), 10, "\n{}", deletes.lines());
    assert!(
        stages[..5].iter().all(|s| *s == "two") && stages[5..].iter().all(|s| *s == "one"),
        "{stages:?}"
    );
}

/// Rules: run 16.5 ssa, run B24
#[tokio::test(flavor = "multi_thread")]
async fn merge_leaves_the_fields_of_others_and_their_managers() {
    let world = World::start("merge").await;
    let plane = ControlPlane::shared().await;
    for name in ["merged", "taken"] {
        let file = world.scratch("kubectl").join(format!("{name}.yaml"));
        let old = configmap(name, "old").replace("\ndata:\n", "\ndata:\n  left: behind\n");
        std::fs::write(&file, old).expect("a file");
        plane
            .kubectl(&["-n", &world.namespace, "apply", "-f", file.to_str().expect("a path")])
            .expect("kubectl apply");
    }
    let merged = configmap("merged", "new").replace(
        "  name: merged\n",
        "  name: merged\n  annotations: { stages.metio.wtf/ssa: Merge }\n",
    );
    world
        .publish("app", &[("m.yaml", &multi(&[merged, configmap("taken", "new")]))])
        .await;
    let set = stageset("app").stage(stage("app", "app")).apply(&world).await;
    set.until_ready().await;
    let data = async |name: &str| {
        let map = world
            .cluster
            .must_get(&objects::configmaps(), &world.namespace, name)
            .await;
        map["data"].clone()
    };
    assert_eq!(data("merged").await, json!({ "value": "new", "left": "behind" }));
    assert_eq!(data("taken").await, json!({ "value": "new" }));
}

/// A folder whose only file is named `Kustomization`, and JSON in folders of folders.
///
/// Rules: run B20 layout, run 14.2.1, run 14.2.3
#[tokio::test(flavor = "multi_thread")]
async fn a_kustomization_without_suffix_and_nested_json_are_found() {
    let world = World::start("layout").await;
    let json_map = |name: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"value":"json"}}}}"#)
    };
    let settings = "configMapGenerator: [{ name: generated, literals: [\"value=1\"] }]\ngeneratorOptions: { disableNameSuffixHash: true }\n";
    world
        .publish(
            "app",
            &[
                ("alone/Kustomization", settings),
                ("nested/a/b/map.json", &json_map("deep")),
                ("nested/a/map.json", &json_map("less-deep")),
            ],
        )
        .await;
    for (path, names) in [("alone", vec!["generated"]), ("nested", vec!["deep", "less-deep"])] {
        let set = stageset(path).stage(stage("app", "app").path(path)).apply(&world).await;
        set.until_ready().await;
        assert_eq!(world.applied(&objects::configmaps(), path).await, names);
    }
}
