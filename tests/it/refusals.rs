//! What is refused while resolving and fetching: the exact reason, a message that helps, nothing applied.

use serde_json::{Value, json};

use crate::support::{
    Archive, Match, World, archive,
    artifacts::Answer,
    objects::{self, configmap},
    stageset::{Spec, StageSet, condition_of, stage, stage_from, stageset},
};

const RUNBOOKS: &str = "--runbook-base-url=https://runbooks.example";

async fn world(name: &str) -> World {
    World::builder(name).flag(RUNBOOKS).start().await
}

/// Applies the StageSet, waits for the reason, and checks message, suffix, event and that nothing was applied.
async fn refused<'w>(world: &'w World, spec: Spec, reason: &str, says: &[&str]) -> StageSet<'w> {
    let stageset = spec.apply(world).await;
    check(world, &stageset, reason, says).await;
    stageset
}

async fn check(world: &World, stageset: &StageSet<'_>, reason: &str, says: &[&str]) {
    let ready = stageset.until_reason(reason).await;
    assert_eq!(ready["status"], "False", "{ready}");
    let message = ready["message"].as_str().unwrap_or_default();
    for part in says {
        assert!(message.contains(part), "the message lacks {part:?}: {message}");
    }
    let suffix = format!("(runbook: https://runbooks.example/{}/)", reason.to_lowercase());
    assert!(message.ends_with(&suffix), "no runbook link at the end: {message}");
    let event = stageset.until_event(reason).await;
    // Waiting for a source is no error: as a warning it would reach people as one.
    let waits = matches!(reason, "SourceNotReady" | "ArtifactNotFound");
    assert_eq!(event["type"], if waits { "Normal" } else { "Warning" });
    assert!(
        !event["note"].as_str().unwrap_or_default().contains("runbook"),
        "an event carries no link: {event}"
    );
    nothing_applied(world, &stageset.name).await;
}

async fn nothing_applied(world: &World, stageset: &str) {
    assert_eq!(
        world.applied(&objects::configmaps(), stageset).await,
        Vec::<String>::new()
    );
    let writes = world.proxy.all().matching(&Match::writes().resource("configmaps"));
    assert!(writes.is_empty(), "something was applied:\n{}", writes.lines());
}

/// A StageSet `shop` with the one stage `app` from the ExternalArtifact `app`.
fn shop() -> Spec {
    stageset("shop").stage(stage("app", "app"))
}

/// Publishes bytes as artifact `app` and expects the stage to fail in the fetch.
async fn fetch_refused(world: &World, bytes: Vec<u8>, says: &[&str]) {
    world.publish_bytes("app", bytes).await;
    let mut all = vec!["stage \"app\"", "\"app\""];
    all.extend_from_slice(says);
    refused(world, shop(), "StageFailed", &all).await;
}

/// Rules: run 8.4 missing, run 8.4 prefix, run 21.2 suffix, run D13
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_artifact_is_artifact_not_found_and_heals() {
    let world = world("missing").await;
    let stageset = refused(
        &world,
        shop(),
        "ArtifactNotFound",
        &["stage \"app\"", "ExternalArtifact", "app"],
    )
    .await;
    let ready = stageset.condition("Reconciling").await.expect("it will be tried again");
    assert_eq!(ready["status"], "True");
    world.publish("app", &[("map.yaml", &configmap("late", "1"))]).await;
    stageset.until_ready().await;
}

/// Rules: run 8.2.3, run 8.4 missing
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_without_an_artifact_is_artifact_not_found() {
    let world = world("no-pointer").await;
    world
        .external_artifact("other", Some((&objects::snippets(), "another")))
        .await;
    let source = json!({ "apiVersion": "fixture.stageset.test/v1", "kind": "Snippet", "name": "mine" });
    let says = ["stage \"app\"", "Snippet", "mine", &world.namespace];
    refused(
        &world,
        stageset("shop").stage(stage_from("app", source)),
        "ArtifactNotFound",
        &says,
    )
    .await;
}

/// Rules: run 8.2.3, run 8.4 ambiguous
#[tokio::test(flavor = "multi_thread")]
async fn two_artifacts_of_one_producer_are_ambiguous() {
    let world = world("ambiguous").await;
    world
        .external_artifact("one", Some((&objects::snippets(), "mine")))
        .await;
    world
        .external_artifact("two", Some((&objects::snippets(), "mine")))
        .await;
    let source = json!({ "apiVersion": "fixture.stageset.test/v1", "kind": "Snippet", "name": "mine" });
    let says = ["one", "two", "Snippet", "mine"];
    refused(
        &world,
        stageset("shop").stage(stage_from("app", source)),
        "ResolveFailed",
        &says,
    )
    .await;
}

/// Rules: run 8.3 ready, run 8.4 not-ready
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_not_ready_is_waited_for() {
    let world = world("not-ready").await;
    let digest = archive::sha256(b"x");
    world
        .publish_status("app", &world.artifacts.url("x"), "v1", &digest, false)
        .await;
    let stageset = refused(&world, shop(), "SourceNotReady", &["app", "published by the test"]).await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    stageset.until_ready().await;
}

/// Rules: run 8.3 ready
#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_a_status_is_not_ready() {
    let world = world("no-status").await;
    world.external_artifact("app", None).await;
    refused(&world, shop(), "SourceNotReady", &["app"]).await;
}

/// Rules: run B35
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_lags_behind_its_spec_is_not_ready() {
    let world = world("lagging").await;
    world.publish("app", &[("map.yaml", &configmap("old", "1"))]).await;
    // Its producer was told something new and has not published since.
    world
        .external_artifact("app", Some((&objects::snippets(), "mine")))
        .await;
    let stageset = refused(&world, shop(), "SourceNotReady", &["app", "generation"]).await;
    world.publish("app", &[("map.yaml", &configmap("new", "1"))]).await;
    stageset.until_ready().await;
}

/// Rules: run 8.3 artifact
#[tokio::test(flavor = "multi_thread")]
async fn a_ready_source_that_has_published_nothing_is_not_ready() {
    let world = world("no-artifact").await;
    world.external_artifact("app", None).await;
    let mut status = crate::support::world::artifact_status("http://x/", "v1", "sha256:00", true);
    status.as_object_mut().expect("a status").remove("artifact");
    world
        .cluster
        .patch_status(&objects::external_artifacts(), &world.namespace, "app", status)
        .await;
    refused(&world, shop(), "SourceNotReady", &["app", "status.artifact"]).await;
}

/// Rules: run 8.4 denied, run D4
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_served_is_resolve_failed() {
    let world = world("not-served").await;
    let source = json!({ "apiVersion": "source.toolkit.fluxcd.io/v7", "kind": "GitRepository", "name": "app" });
    let says = ["GitRepository", "source.toolkit.fluxcd.io/v7"];
    refused(
        &world,
        stageset("shop").stage(stage_from("app", source)),
        "ResolveFailed",
        &says,
    )
    .await;
}

/// Rules: run 3 step 7, run 6 producer, run 8.2.1, decisions 2 terminal
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_without_an_api_version_is_invalid() {
    let world = world("no-version").await;
    let source = json!({ "kind": "Snippet", "name": "mine" });
    let spec = stageset("shop").stage(stage_from("app", source));
    let stageset = refused(&world, spec, "InvalidSpec", &["apiVersion"]).await;
    let stalled = stageset.condition("Stalled").await.expect("no retry can help");
    assert_eq!(
        (stalled["status"].as_str(), stalled["reason"].as_str()),
        (Some("True"), Some("InvalidSpec"))
    );
    assert!(stageset.condition("Reconciling").await.is_none());
    assert_eq!(stageset.status().await["observedGeneration"], stageset.generation);
}

/// Rules: run 8.5 flag, run D17, contract 13.7
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_namespace_is_refused_without_saying_why() {
    let world = World::builder("cross-no")
        .flag(RUNBOOKS)
        .flag("--no-cross-namespace-refs")
        .start()
        .await;
    let elsewhere = world.another_namespace("b").await;
    let source = json!({ "name": "secret-name", "namespace": elsewhere });
    let says = ["cross-namespace ExternalArtifact \"secret-name\" is not reachable"];
    refused(
        &world,
        stageset("shop").stage(stage_from("app", source)),
        "ResolveFailed",
        &says,
    )
    .await;
    let reads = world.proxy.all().within(&elsewhere);
    assert!(reads.is_empty(), "it was looked at all the same:\n{}", reads.lines());
}

/// Messages of conditions, stages and events.
async fn everything_said(stageset: &StageSet<'_>) -> String {
    let status = stageset.status().await;
    let texts = |list: &Value, field: &str| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().map(|item| item[field].to_string()).collect()
    };
    let events = Value::Array(stageset.events().await);
    [
        texts(&status["conditions"], "message"),
        texts(&status["stages"], "message"),
        texts(&events, "note"),
    ]
    .concat()
    .join("\n")
}

/// Rules: run 8.5 redaction, run B18, run D17, decisions 7 foreign
#[tokio::test(flavor = "multi_thread")]
async fn every_cause_in_a_foreign_namespace_reads_the_same() {
    let world = world("cross-same").await;
    let elsewhere = world.another_namespace("b").await;
    let artifact = |name: &str| {
        json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact",
        "metadata": { "name": name, "namespace": elsewhere }, "spec": {} })
    };
    let publish = async |name: &str, status: Value| {
        world.cluster.apply(&artifact(name), &elsewhere).await;
        world
            .cluster
            .patch_status(&objects::external_artifacts(), &elsewhere, name, status)
            .await;
    };
    let status = crate::support::world::artifact_status;
    let bytes = Archive::of(&[("map.yaml", &configmap("map", "1"))]).gzip();
    let hidden = world.artifacts.put("hidden-path.tar.gz", Answer::Bytes(bytes.into()));
    publish("not-ready", status(&hidden, "v1", &archive::sha256(b"x"), false)).await;
    publish("wrong-digest", status(&hidden, "v1", &archive::sha256(b"x"), true)).await;
    publish(
        "unreachable",
        status("http://127.0.0.1:1/hidden", "v1", &archive::sha256(b"x"), true),
    )
    .await;

    let mut messages = Vec::new();
    for name in ["absent", "not-ready", "wrong-digest", "unreachable"] {
        let source = json!({ "name": name, "namespace": elsewhere });
        let stageset = stageset(name).stage(stage_from("app", source)).apply(&world).await;
        let ready = stageset.until_reason("ResolveFailed").await;
        let said = everything_said(&stageset).await;
        assert!(
            !said.contains("hidden") && !said.contains("sha256:"),
            "{name} tells about the artifact: {said}"
        );
        messages.push(ready["message"].as_str().unwrap_or_default().replace(name, "NAME"));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "messages differ by cause: {messages:#?}");
    nothing_applied(&world, "absent").await;
}

/// Rules: run 8.5 outside, contract 13.7
#[tokio::test(flavor = "multi_thread")]
async fn a_cross_namespace_source_is_used_where_it_is_allowed() {
    let world = world("cross-yes").await;
    let elsewhere = world.another_namespace("b").await;
    let bytes = Archive::of(&[("map.yaml", &configmap("foreign", "1"))]).gzip();
    let digest = archive::sha256(&bytes);
    let url = world.artifacts.put("foreign.tar.gz", Answer::Bytes(bytes.into()));
    let object = json!({ "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact",
                         "metadata": { "name": "shared", "namespace": elsewhere }, "spec": {} });
    world.cluster.apply(&object, &elsewhere).await;
    let status = crate::support::world::artifact_status(&url, "v1", &digest, true);
    world
        .cluster
        .patch_status(&objects::external_artifacts(), &elsewhere, "shared", status)
        .await;
    let source = json!({ "name": "shared", "namespace": elsewhere });
    let status = stageset("shop")
        .stage(stage_from("app", source))
        .apply(&world)
        .await
        .until_ready()
        .await;
    assert_eq!(status["lastAppliedRevisions"][format!("{elsewhere}/shared")], "v1");
}

/// Rules: run 3.1 h, run 9 digest, run 12 digest, run 21.3 failed
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_digest_is_refused() {
    let world = world("digest").await;
    let bytes = Archive::of(&[("map.yaml", &configmap("map", "1"))]).gzip();
    let url = world.artifacts.put("app.tar.gz", Answer::Bytes(bytes.clone().into()));
    let wrong = archive::sha256(b"something else");
    world.publish_status("app", &url, "v1", &wrong, true).await;
    let says = [
        "stage \"app\"",
        "fetch artifact",
        "\"app\"",
        &wrong,
        &archive::sha256(&bytes),
    ];
    let stageset = refused(&world, shop(), "StageFailed", &says).await;
    let entry = stageset.stage("app").await;
    assert_eq!(entry["phase"], "Failed", "{entry}");
    assert!(
        entry["message"]
            .as_str()
            .unwrap_or_default()
            .starts_with("fetch artifact: "),
        "{entry}"
    );
    assert!(entry["appliedRevision"].is_null(), "nothing was applied: {entry}");
}

/// Rules: run 12 digest
#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_digest_is_refused() {
    for digest in ["md5:d41d8cd98f00b204e9800998ecf8427e", "sha256:beef", "sha256:zz"] {
        let world = world("digest-form").await;
        world
            .publish_status("app", &world.artifacts.url("app.tar.gz"), "v1", digest, true)
            .await;
        refused(&world, shop(), "StageFailed", &["fetch artifact", "\"app\"", digest]).await;
        assert_eq!(world.artifacts.all_downloads(), 0, "it was downloaded all the same");
    }
}

/// Rules: run 12 body
#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_download_is_refused() {
    let world = world("oversized").await;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take((64 * 1024 * 1024 + 8) / 8)
    .flatten()
    .collect();
    fetch_refused(&world, noise, &["fetch artifact", "67108864"]).await;
}

/// Rules: run 12 entry
#[tokio::test(flavor = "multi_thread")]
async fn a_bomb_is_refused() {
    let world = world("bomb").await;
    fetch_refused(&world, Archive::bomb(600), &["fetch artifact"]).await;
    let rss = world.controller_ref().rss_kib();
    assert!(rss < 256 * 1024, "the controller grew to {rss} KiB");
}

/// Rules: run 12 extracted
#[tokio::test(flavor = "multi_thread")]
async fn more_files_than_the_cap_are_refused() {
    let world = world("heavy").await;
    let block = vec![b'#'; 13 * 1024 * 1024];
    let archive = (0..5).fold(Archive::new(), |a, i| a.bytes(&format!("{i}.yaml"), &block));
    fetch_refused(&world, archive.gzip(), &["fetch artifact", "67108864"]).await;
}

/// Rules: run 12 duplicates, run B19 names, decisions 7 archives
#[tokio::test(flavor = "multi_thread")]
async fn names_and_links_that_leave_the_archive_are_refused() {
    let map = configmap("map", "1");
    let base = || Archive::of(&[("map.yaml", &map)]);
    let bad = [
        ("a parent", base().file("../evil.yaml", &map), "../evil.yaml"),
        ("a deeper parent", base().file("a/../../evil.yaml", &map), "evil.yaml"),
        ("an absolute path", base().file("/etc/evil.yaml", &map), "evil.yaml"),
        (
            "a link to an absolute path",
            base().symlink("link.yaml", "/etc/passwd"),
            "link.yaml",
        ),
        (
            "a link to a parent",
            base().symlink("deep/link.yaml", "../../evil"),
            "link.yaml",
        ),
        (
            "a hard link to a parent",
            base().hardlink("link.yaml", "../evil"),
            "link.yaml",
        ),
        ("the same file twice", base().file("./map.yaml", &map), "map.yaml"),
    ];
    for (what, archive, culprit) in bad {
        println!("{what}");
        let world = world("traversal").await;
        fetch_refused(&world, archive.gzip(), &["fetch artifact", culprit]).await;
    }
}

/// Rules: run 12 entries
#[tokio::test(flavor = "multi_thread")]
async fn links_that_stay_inside_and_special_files_are_skipped() {
    let world = world("inside").await;
    let archive = Archive::of(&[("map.yaml", &configmap("map", "1"))])
        .symlink("again.yaml", "map.yaml")
        .device("dev.yaml");
    world.publish_archive("app", &archive).await;
    shop().apply(&world).await.until_ready().await;
    assert_eq!(world.applied(&objects::configmaps(), "shop").await, ["map"]);
}

/// Rules: run 12 format
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_archive_is_refused() {
    let world = world("no-archive").await;
    fetch_refused(&world, b"kind: ConfigMap\n".to_vec(), &["fetch artifact", "gzip"]).await;
}

/// Rules: run 12 status, run 12 terminal, decisions 2 failed
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_is_down_is_tried_again() {
    let world = world("down").await;
    let bytes = Archive::of(&[("map.yaml", &configmap("map", "1"))]).gzip();
    let digest = archive::sha256(&bytes);
    let url = world.artifacts.put("app.tar.gz", Answer::Status(503));
    world.publish_status("app", &url, "v1", &digest, true).await;
    let stageset = refused(&world, shop(), "StageFailed", &["fetch artifact", "503"]).await;
    assert!(
        stageset.condition("Stalled").await.is_none(),
        "a server that is down comes back"
    );
    world.artifacts.put("app.tar.gz", Answer::Bytes(bytes.into()));
    stageset.until_ready().await;
}

/// Rules: run 12 url, run 12 terminal
#[tokio::test(flavor = "multi_thread")]
async fn loopback_and_link_local_are_refused_in_production() {
    let digest = archive::sha256(b"x");
    let port = 1;
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "0x7f.1",
        "2130706433",
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    ] {
        println!("{host}");
        let world = World::builder("guard").flag(RUNBOOKS).guarded().start().await;
        world
            .publish_status("app", &format!("http://{host}:{port}/app.tar.gz"), "v1", &digest, true)
            .await;
        let stageset = refused(
            &world,
            shop(),
            "StageFailed",
            &["stage \"app\" fetch artifact", "\"app\""],
        )
        .await;
        let stalled = stageset.condition("Stalled").await;
        assert!(
            stalled.is_some(),
            "no retry can help against {host}: {}",
            stageset.status().await
        );
    }
}

/// Rules: run 12 dial
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_link_local_is_refused_even_where_loopback_is_open() {
    let world = world("redirect").await;
    let url = world.artifacts.put(
        "app.tar.gz",
        Answer::Redirect("http://169.254.169.254/latest/meta-data".to_owned()),
    );
    world
        .publish_status("app", &url, "v1", &archive::sha256(b"x"), true)
        .await;
    refused(&world, shop(), "StageFailed", &["fetch artifact", "169.254.169.254"]).await;
}

/// Rules: run 12 url
#[tokio::test(flavor = "multi_thread")]
async fn other_schemes_are_refused() {
    let world = world("scheme").await;
    world
        .publish_status("app", "file:///etc/passwd", "v1", &archive::sha256(b"x"), true)
        .await;
    refused(&world, shop(), "StageFailed", &["fetch artifact", "file"]).await;
}

/// Rules: run 12 proxy
#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_the_environment_are_ignored() {
    let world = World::builder("env-proxy")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1")
        .start()
        .await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    shop().apply(&world).await.until_ready().await;
}

/// Rules: run 3.1 k, run 14.1 empty
#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_without_manifests_never_means_prune_everything() {
    let world = world("empty").await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let stageset = shop().apply(&world).await;
    stageset.until_ready().await;
    for archive in [Archive::new(), Archive::of(&[("README.md", "nothing here")])] {
        world.publish_archive("app", &archive).await;
        let ready = stageset.until_reason("StageFailed").await;
        let message = ready["message"].as_str().unwrap_or_default();
        assert!(message.contains("stage \"app\" build"), "{message}");
        assert_eq!(
            world.config_value("map").await.as_deref(),
            Some("1"),
            "the old object is left alone"
        );
        world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
        stageset.until_ready().await;
    }
}

/// Rules: run 14.1 path, run 14.1 missing
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_a_directory_of_the_artifact_is_refused() {
    for (path, says) in [
        ("./absent", "absent"),
        ("../outside", "outside"),
        ("map.yaml", "map.yaml"),
    ] {
        let world = world("path").await;
        world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
        let spec = stageset("shop").stage(stage("app", "app").path(path));
        refused(&world, spec, "StageFailed", &["stage \"app\" build", says]).await;
    }
}

/// Rules: run 6 kubeconfig, decisions 1.1
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_kube_config_never_means_the_local_cluster() {
    let world = world("kubeconfig").await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let spec = shop().set("kubeConfig", json!({}));
    match world
        .cluster
        .try_apply(&spec.object(&world.namespace), &world.namespace)
        .await
    {
        Err(kube::Error::Api(status)) => assert!(status.message.contains("kubeConfig"), "{status:?}"),
        Err(other) => panic!("{other}"),
        Ok(_) => {
            refused(&world, spec, "InvalidSpec", &["kubeConfig"]).await;
        }
    }
    nothing_applied(&world, "shop").await;
}

/// Rules: run 3 step 9, run 9 all-first
#[tokio::test(flavor = "multi_thread")]
async fn one_unresolvable_stage_stops_the_run_before_anything_is_applied() {
    let world = world("all-first").await;
    world.publish("present", &[("map.yaml", &configmap("map", "1"))]).await;
    let spec = stageset("shop")
        .stage(stage("first", "present"))
        .stage(stage("second", "absent"));
    let stageset = refused(&world, spec, "ArtifactNotFound", &["stage \"second\"", "absent"]).await;
    let status = stageset.status().await;
    assert!(
        condition_of(&status, "Ready").is_some() && status["lastAppliedRevisions"].is_null(),
        "{status}"
    );
}
