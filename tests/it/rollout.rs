//! The main job: stages roll out in order from every kind of source and every manifest format.

use serde_json::json;

use crate::support::{
    Archive, Match, Verb, World, archive,
    artifacts::Answer,
    objects::{self, configmap, deployment, multi, service, widget},
    sources::{self, GitRepo},
    stageset::{condition_of, stage, stage_from, stage_of, stageset},
};

/// Three artifacts with one ConfigMap each.
async fn three(world: &World, suffix: &str) -> Vec<String> {
    let mut revisions = Vec::new();
    for name in ["database", "backend", "frontend"] {
        revisions.push(
            world
                .publish(name, &[("map.yaml", &configmap(name, &format!("{name}-{suffix}")))])
                .await,
        );
    }
    revisions
}

/// Rules: run 3 step 19, run 3.1 l, run 11.1 tenant, run 11.2, run 15 owner, run 16.4 manager, run 22.1, run D7, run 2.3 defaults, run 7.1
#[tokio::test(flavor = "multi_thread")]
async fn three_stages_roll_out_in_order() {
    let world = World::start("rollout").await;
    let revisions = three(&world, "1").await;
    let shop = stageset("shop")
        .stage(stage("database", "database"))
        .stage(stage("backend", "backend"))
        .stage(stage("frontend", "frontend"))
        .apply(&world)
        .await;
    let status = shop.until_ready().await;

    let applied = world
        .proxy
        .all()
        .matching(&Match::writes().resource("configmaps").verb(Verb::Patch));
    let order: Vec<&str> = applied.records().iter().map(|r| r.call.name.as_str()).collect();
    assert_eq!(order, ["database", "backend", "frontend"], "\n{}", applied.lines());
    let tenant = format!("system:serviceaccount:{}:tenant", world.namespace);
    assert!(
        applied.records().iter().all(|r| r.call.user == tenant && r.call.apply),
        "\n{}",
        applied.lines()
    );

    for (name, revision) in ["database", "backend", "frontend"].iter().zip(&revisions) {
        let entry = stage_of(&status, name);
        assert_eq!(entry["phase"], "Ready");
        assert_eq!(entry["appliedRevision"], revision.as_str());
        assert_eq!(entry["entriesCount"], 1);
        assert_eq!(
            status["lastAppliedRevisions"][format!("{}/{name}", world.namespace)],
            revision.as_str()
        );
        assert_eq!(
            status["lastAttemptedRevisions"][format!("{}/{name}", world.namespace)],
            revision.as_str()
        );
        let map = world
            .cluster
            .must_get(&objects::configmaps(), &world.namespace, name)
            .await;
        assert_eq!(map["data"]["value"], format!("{name}-1"));
        let labels = &map["metadata"]["labels"];
        assert_eq!(labels["stages.metio.wtf/name"], "shop");
        assert_eq!(labels["stages.metio.wtf/namespace"], world.namespace.as_str());
        assert_eq!(labels["stages.metio.wtf/stage"], *name);
        let managers = map["metadata"]["managedFields"].as_array().expect("managed fields");
        assert!(
            managers
                .iter()
                .any(|m| m["manager"] == "stageset-controller" && m["operation"] == "Apply"),
            "{managers:?}"
        );
    }
}

/// Rules: run 21.2 suffix, run 21.2 events, run 22.5, decisions 2 success
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_rollout_leaves_a_status_tools_can_read() {
    let world = World::builder("status")
        .flag("--runbook-base-url=https://runbooks.example/")
        .start()
        .await;
    three(&world, "1").await;
    let shop = stageset("shop")
        .stage(stage("a", "database"))
        .stage(stage("b", "backend"))
        .apply(&world)
        .await;
    let status = shop.until_ready().await;

    let ready = condition_of(&status, "Ready").expect("a Ready condition");
    assert_eq!(ready["reason"], "Succeeded");
    assert_eq!(ready["observedGeneration"], shop.generation);
    assert!(
        !ready["message"].as_str().unwrap_or_default().contains("runbook"),
        "{ready}"
    );
    assert!(condition_of(&status, "Reconciling").is_none(), "{status}");
    assert!(condition_of(&status, "Stalled").is_none(), "{status}");
    assert_eq!(status["observedGeneration"], shop.generation);
    assert!(status["run"].is_null(), "no run is under way: {}", status["run"]);

    let object = shop.get().await;
    assert_eq!(object["metadata"]["finalizers"], json!(["stages.metio.wtf/finalizer"]));
    let event = shop.until_event("Succeeded").await;
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["reportingController"], "stageset-controller");
    assert_eq!(shop.event_count("Succeeded").await, 1, "{:?}", shop.events().await);
}

/// Rules: run 15 inventory, run 17.1 name, run 17.1 owner, run 17.1 position, run 17.1 id, run D10, run D11
#[tokio::test(flavor = "multi_thread")]
async fn the_inventory_has_the_published_format() {
    let world = World::start("inventory").await;
    let text = multi(&[deployment("web", "web:1", 1), service("web", 80)]);
    world.publish("app", &[("app.yaml", &text)]).await;
    let shop = stageset("shop").stage(stage("application", "app")).apply(&world).await;
    let status = shop.until_ready().await;
    assert_eq!(stage_of(&status, "application")["entriesCount"], 2);
    assert_eq!(stage_of(&status, "application")["shards"], 1);

    let shard = world
        .cluster
        .must_get(&objects::inventories(), &world.namespace, "shop-application-0")
        .await;
    let labels = &shard["metadata"]["labels"];
    assert_eq!(labels["stages.metio.wtf/stage-set"], "shop");
    assert_eq!(labels["stages.metio.wtf/stage"], "application");
    assert_eq!(labels["stages.metio.wtf/shard"], "0");
    let owner = &shard["metadata"]["ownerReferences"][0];
    assert_eq!(
        (owner["kind"].as_str(), owner["name"].as_str()),
        (Some("StageSet"), Some("shop"))
    );
    assert_eq!(owner["controller"], true);
    assert_eq!(shard["spec"]["stagePosition"], 0);
    let ns = &world.namespace;
    assert_eq!(
        shard["spec"]["entries"],
        json!([{ "id": format!("{ns}_web__Service"), "v": "v1" }, { "id": format!("{ns}_web_apps_Deployment"), "v": "apps/v1" }])
    );
}

/// Rules: run 3 step 19, run 18.1, run 18.4 ready, run 27.2 rest, decisions 2 unfinished
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_waits_until_the_one_before_is_ready() {
    let world = World::start("order").await;
    world.publish("first", &[("w.yaml", &widget("gate", 1))]).await;
    world.publish("second", &[("m.yaml", &configmap("after", "1"))]).await;
    world.widget("gate", false).await;
    let shop = stageset("shop")
        .stage(stage("first", "first"))
        .stage(stage("second", "second"))
        .apply(&world)
        .await;

    let status = shop.until_phase("first", "Verifying").await;
    let ready = condition_of(&status, "Ready").expect("a Ready condition");
    assert_eq!(
        (ready["status"].as_str(), ready["reason"].as_str()),
        (Some("Unknown"), Some("Progressing"))
    );
    assert_eq!(
        condition_of(&status, "Reconciling").expect("Reconciling")["status"],
        "True"
    );
    assert!(
        !world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "after")
            .await
    );
    shop.until("waiting for the widget by name", |s| {
        stage_of(s, "first").to_string().contains("gate")
            || condition_of(s, "Ready").is_some_and(|c| c["message"].to_string().contains("gate"))
    })
    .await;

    world.widget("gate", true).await;
    shop.until_ready().await;
    assert!(
        world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "after")
            .await
    );
}

/// Rules: run 2.1 artifact
#[tokio::test(flavor = "multi_thread")]
async fn a_new_revision_rolls_through_all_stages() {
    let world = World::start("change").await;
    three(&world, "1").await;
    let shop = stageset("shop")
        .stage(stage("a", "database"))
        .stage(stage("b", "backend"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let revisions = three(&world, "2").await;
    shop.until_rolled_out("a", &revisions[0]).await;
    shop.until_rolled_out("b", &revisions[1]).await;
    assert_eq!(world.config_value("database").await.as_deref(), Some("database-2"));
    assert_eq!(world.config_value("backend").await.as_deref(), Some("backend-2"));
}

/// Rules: run 2.1 flux, run 8.1, run 14.1 path, run D14
#[tokio::test(flavor = "multi_thread")]
async fn a_git_repository_rolls_out_and_a_commit_follows() {
    let world = World::start("git").await;
    let repo = GitRepo::create(&world, "app").await;
    let first = repo.commit(&[
        ("deploy/map.yaml", &configmap("from-git", "1")),
        ("README.md", "not a manifest"),
    ]);
    repo.source(&world, "app").await;
    let source = json!({ "kind": "GitRepository", "name": "app" });
    let shop = stageset("shop")
        .stage(stage_from("app", source).path("./deploy"))
        .apply(&world)
        .await;
    let status = shop.until_ready().await;
    assert_eq!(stage_of(&status, "app")["appliedRevision"], first.as_str());

    let second = repo.commit(&[("deploy/map.yaml", &configmap("from-git", "2"))]);
    let seen = sources::refresh(&world, &objects::git_repositories(), "app", &first).await;
    assert_eq!(seen, second);
    shop.until_rolled_out("app", &second).await;
    assert_eq!(world.config_value("from-git").await.as_deref(), Some("2"));
}

/// Rules: run 2.1 flux, run 8.1, run D14
#[tokio::test(flavor = "multi_thread")]
async fn an_oci_repository_rolls_out_and_a_moved_tag_follows() {
    let world = World::start("oci").await;
    let url = sources::push_oci(&world, "app", "latest", &[("map.yaml", &configmap("from-oci", "1"))]).await;
    sources::oci_source(&world, "app", &url, "latest").await;
    let source = json!({ "kind": "OCIRepository", "name": "app" });
    let shop = stageset("shop").stage(stage_from("app", source)).apply(&world).await;
    let status = shop.until_ready().await;
    let first = stage_of(&status, "app")["appliedRevision"]
        .as_str()
        .expect("a revision")
        .to_owned();

    sources::push_oci(&world, "app", "latest", &[("map.yaml", &configmap("from-oci", "2"))]).await;
    let second = sources::refresh(&world, &objects::oci_repositories(), "app", &first).await;
    shop.until_rolled_out("app", &second).await;
    assert_eq!(world.config_value("from-oci").await.as_deref(), Some("2"));
}

/// Rules: run 2.1 flux, run 8.1, run D14
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_rolls_out_and_a_changed_object_follows() {
    let world = World::start("bucket").await;
    let bucket = sources::fill_bucket(&world, "app", &[("map.yaml", &configmap("from-s3", "1"))]).await;
    sources::bucket_source(&world, "app", &bucket).await;
    let source = json!({ "kind": "Bucket", "name": "app" });
    let shop = stageset("shop").stage(stage_from("app", source)).apply(&world).await;
    let status = shop.until_ready().await;
    let first = stage_of(&status, "app")["appliedRevision"]
        .as_str()
        .expect("a revision")
        .to_owned();

    sources::fill_bucket(&world, "app", &[("map.yaml", &configmap("from-s3", "2"))]).await;
    let second = sources::refresh(&world, &objects::buckets(), "app", &first).await;
    shop.until_rolled_out("app", &second).await;
    assert_eq!(world.config_value("from-s3").await.as_deref(), Some("2"));
}

/// Rules: run 2.3 back-pointer, run 2.3 index, run 8.1, run 8.2.2, run 14.2.3
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_is_found_by_the_back_pointer_of_its_artifact() {
    let world = World::start("producer").await;
    world
        .external_artifact("generated-name", Some((&objects::snippets(), "my-snippet")))
        .await;
    let revision = world
        .publish(
            "generated-name",
            &[(
                "rendered.json",
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"rendered"},"data":{"value":"1"}}"#,
            )],
        )
        .await;
    // The version in the reference is not the one in the back-pointer: only the group decides.
    let source = json!({ "apiVersion": "fixture.stageset.test/v9", "kind": "Snippet", "name": "my-snippet" });
    let shop = stageset("shop").stage(stage_from("app", source)).apply(&world).await;
    let status = shop.until_ready().await;
    assert_eq!(
        status["lastAppliedRevisions"][format!("{}/generated-name", world.namespace)],
        revision.as_str()
    );
    assert_eq!(world.config_value("rendered").await.as_deref(), Some("1"));

    let second = world
        .publish(
            "generated-name",
            &[(
                "rendered.json",
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"rendered"},"data":{"value":"2"}}"#,
            )],
        )
        .await;
    shop.until_rolled_out("app", &second).await;
    assert_eq!(world.config_value("rendered").await.as_deref(), Some("2"));
}

/// Rules: run 14.1 path, run 14.2.1, run 14.2.2, run 14.2.3, run 14.2.4
#[tokio::test(flavor = "multi_thread")]
async fn every_manifest_format_is_read() {
    let world = World::start("formats").await;
    let json_map = |name: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"value":"json"}}}}"#)
    };
    let list = "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: ConfigMap\n    metadata: { name: listed-a }\n  \
                - apiVersion: v1\n    kind: ConfigMap\n    metadata: { name: listed-b }\n";
    let files = [
        ("plain/one.yaml", configmap("plain", "yaml")),
        ("plain/two.yml", configmap("short-suffix", "yml")),
        ("plain/three.json", json_map("from-json")),
        ("plain/nested/deep/four.yaml", configmap("nested", "yaml")),
        (
            "plain/many.yaml",
            multi(&[configmap("many-a", "1"), configmap("many-b", "2")]),
        ),
        ("plain/list.yaml", list.to_owned()),
        ("plain/notes.txt", "kind: Nonsense".to_owned()),
        (
            "listed/kustomization.yaml",
            "resources: [in/map.yaml, ../plain/one.yaml]\n".to_owned(),
        ),
        ("listed/in/map.yaml", configmap("by-kustomization", "1")),
        ("listed/forgotten.yaml", configmap("not-listed", "1")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    world.publish("app", &files).await;

    let plain = stageset("plain")
        .stage(stage("app", "app").path("./plain"))
        .apply(&world)
        .await;
    plain.until_ready().await;
    let expected = [
        "from-json",
        "listed-a",
        "listed-b",
        "many-a",
        "many-b",
        "nested",
        "plain",
        "short-suffix",
    ];
    assert_eq!(world.applied(&objects::configmaps(), "plain").await, expected);

    plain.delete().await;
    plain.until_gone().await;
    let listed = stageset("listed")
        .stage(stage("app", "app").path("listed/"))
        .apply(&world)
        .await;
    listed.until_ready().await;
    assert_eq!(
        world.applied(&objects::configmaps(), "listed").await,
        ["by-kustomization", "plain"]
    );
}

/// Rules: run 18.4 ready, run 27.2 job, run 27.2 deployment, run 27.4
#[tokio::test(flavor = "multi_thread")]
async fn real_workloads_become_ready() {
    let world = World::start("workloads").await;
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: { name: migrate }\nspec:\n  template:\n    spec:\n      \
               restartPolicy: Never\n      containers: [{ name: main, image: 'migrate:1' }]\n";
    world.publish("db", &[("job.yaml", job)]).await;
    world
        .publish(
            "app",
            &[("app.yaml", &multi(&[deployment("web", "web:1", 2), service("web", 80)]))],
        )
        .await;
    let shop = stageset("shop")
        .stage(stage("db", "db"))
        .stage(stage("app", "app"))
        .apply(&world)
        .await;
    shop.until_ready().await;
    let web = world
        .cluster
        .must_get(&objects::deployments(), &world.namespace, "web")
        .await;
    assert_eq!(web["status"]["availableReplicas"], 2);
    let migrate = world
        .cluster
        .must_get(&objects::jobs(), &world.namespace, "migrate")
        .await;
    assert_eq!(migrate["status"]["succeeded"], 1);
}

/// Rules: run B19 digests, decisions 7 digests
#[tokio::test(flavor = "multi_thread")]
async fn every_digest_algorithm_of_flux_is_verified() {
    let world = World::start("digests").await;
    let mut shop = stageset("shop");
    for algorithm in ["sha256", "sha384", "sha512", "blake3"] {
        let bytes = Archive::of(&[("map.yaml", &configmap(algorithm, algorithm))]).gzip();
        let digest = archive::digest(algorithm, &bytes);
        let url = world
            .artifacts
            .put(&format!("{algorithm}.tar.gz"), Answer::Bytes(bytes.into()));
        world
            .publish_status(algorithm, &url, &format!("v1@{digest}"), &digest, true)
            .await;
        shop = shop.stage(stage(algorithm, algorithm));
    }
    shop.apply(&world).await.until_ready().await;
    assert_eq!(
        world.applied(&objects::configmaps(), "shop").await,
        ["blake3", "sha256", "sha384", "sha512"]
    );
}

/// Rules: run 14.5, run D15
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_names_no_namespace_lands_beside_its_stageset() {
    let world = World::start("namespaces").await;
    let elsewhere = world.another_namespace("b").await;
    world
        .cluster
        .apply_yaml(&tenant_binding(&world.namespace), &elsewhere)
        .await;
    let other = configmap("there", "1").replace("name: there", &format!("name: there\n  namespace: {elsewhere}"));
    world
        .publish("app", &[("a.yaml", &configmap("here", "1")), ("b.yaml", &other)])
        .await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    assert!(
        world
            .cluster
            .exists(&objects::configmaps(), &world.namespace, "here")
            .await
    );
    assert!(world.cluster.exists(&objects::configmaps(), &elsewhere, "there").await);
    let ids = shop.inventory().await["app"].clone();
    assert!(ids.contains(&format!("{elsewhere}_there__ConfigMap")), "{ids:?}");
}

fn tenant_binding(of: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{ name: neighbour }}\nroleRef: {{ apiGroup: rbac.authorization.k8s.io, \
         kind: ClusterRole, name: stageset-it-tenant }}\nsubjects: [{{ kind: ServiceAccount, name: tenant, namespace: {of} }}]\n"
    )
}

/// Rules: run B26
#[tokio::test(flavor = "multi_thread")]
async fn sources_of_different_kinds_may_share_a_name() {
    let world = World::start("same-name").await;
    let repo = GitRepo::create(&world, "app").await;
    repo.commit(&[("map.yaml", &configmap("git", "1"))]);
    repo.source(&world, "app").await;
    let url = sources::push_oci(&world, "app", "v1", &[("map.yaml", &configmap("oci", "1"))]).await;
    sources::oci_source(&world, "app", &url, "v1").await;
    let shop = stageset("shop")
        .interval("1s")
        .stage(stage_from("git", json!({ "kind": "GitRepository", "name": "app" })))
        .stage(stage_from("oci", json!({ "kind": "OCIRepository", "name": "app" })))
        .apply(&world)
        .await;
    let status = shop.until_ready().await;
    let revision = |stage: &str| stage_of(&status, stage)["appliedRevision"].clone();
    assert_ne!(revision("git"), revision("oci"));
    // Several intervals on, neither looks like a new revision of the other.
    let mark = world.proxy.mark();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(
        world.proxy.since(mark).writes().is_empty(),
        "{}",
        world.proxy.since(mark).writes().lines()
    );
}
