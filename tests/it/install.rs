//! What the book tells people to install and to try, as it is written there.

use std::fs;

use serde_json::Value;

use crate::support::{
    Controller, Launch, World,
    objects::{Kind, configmap, documents},
    process,
    stageset::{stage, stageset},
};

fn installed(file: &str) -> String {
    let path = process::root().join("docs/src/install").join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Rules of the role with this name.
fn rules(text: &str, kind: &str, name: &str) -> Vec<Value> {
    let role = documents(text)
        .into_iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    let role = role.unwrap_or_else(|| panic!("no {kind} {name}"));
    role["rules"].as_array().cloned().unwrap_or_default()
}

/// Every other test runs with the rights of the fixture, so these suffice.
#[test]
fn the_rights_to_install_are_those_the_tests_run_with() {
    let (ours, fixture) = (installed("rights.yaml"), include_str!("fixtures/rbac.yaml"));
    let mut tested = rules(fixture, "ClusterRole", "stageset-controller-it");
    // A kind of the tests that stands for any producer.
    tested.retain(|rule| rule["apiGroups"][0] != "fixture.stageset.test");
    assert_eq!(rules(&ours, "ClusterRole", "stageset-controller"), tested);
    assert_eq!(
        rules(&ours, "Role", "stageset-controller"),
        rules(fixture, "ClusterRole", "stageset-controller-it-lease")
    );
}

/// The controller as it is installed by the book, but for the namespace, and run from outside of the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_installed_by_the_book_rolls_out() {
    let world = World::builder("install").without_controller().start().await;
    let here = |file: &str| installed(file).replace("stageset-system", &world.namespace);
    let rights: Vec<Value> = documents(&here("rights.yaml"))
        .into_iter()
        .map(|mut object| {
            // Cluster-wide names are shared with other runs on this control plane.
            if object["kind"] == "ClusterRoleBinding" {
                object["metadata"]["name"] = Value::from(format!("install-{}", world.namespace));
            }
            object
        })
        .collect();
    for object in &rights {
        world.cluster.apply(object, &world.namespace).await;
    }
    world
        .cluster
        .apply_yaml(&here("controller.yaml"), &world.namespace)
        .await;
    let deployment = world
        .cluster
        .must_get(
            &Kind::new("apps/v1", "Deployment"),
            &world.namespace,
            "stageset-controller",
        )
        .await;
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let mut flags: Vec<String> = serde_json::from_value(container["args"].clone()).expect("the flags");
    flags.push(format!("--watch-namespaces={}", world.namespace));
    let mut controller = Controller::start(Launch {
        name: world.namespace.clone(),
        kubeconfig: world.kubeconfig_for("stageset-controller").await,
        flags,
        env: [("POD_NAMESPACE".to_owned(), world.namespace.clone())].into(),
        guarded: false,
    });
    controller.until_ready().await;
    world.publish("app", &[("map.yaml", &configmap("map", "1"))]).await;
    let shop = stageset("shop").stage(stage("app", "app")).apply(&world).await;
    shop.until_ready().await;
    assert!(controller.running(), "{}", controller.tail(20));
}

/// YAML blocks of a page.
fn yaml_blocks(text: &str) -> Vec<&str> {
    let blocks = text.split("\n```yaml\n").skip(1);
    blocks.filter_map(|rest| rest.split("\n```").next()).collect()
}

/// A StageSet of the book is good as it is: what it still waits for is its source, which is not there.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_first_pages_show_is_accepted() {
    for page in ["README.md", "docs/src/getting-started.md"] {
        let world = World::start("shown").await;
        let text = fs::read_to_string(process::root().join(page)).expect("a page");
        let namespaced = text
            .replace("namespace: shop", &format!("namespace: {}", world.namespace))
            .replace(
                "kind: Namespace\nmetadata: { name: shop }",
                "kind: Namespace\nmetadata: { name: NAME }",
            )
            .replace("{ name: NAME }", &format!("{{ name: {} }}", world.namespace));
        let blocks = yaml_blocks(&namespaced);
        assert!(!blocks.is_empty(), "{page} shows nothing");
        for block in blocks {
            world.cluster.apply_yaml(block, &world.namespace).await;
        }
        let shop = crate::support::StageSet::named(&world, "shop").await;
        let status = shop
            .until("waiting for its source", |s| {
                s["conditions"].as_array().is_some_and(|all| {
                    all.iter()
                        .any(|c| c["reason"] == "ArtifactNotFound" || c["reason"] == "SourceNotReady")
                })
            })
            .await;
        assert!(!status.to_string().contains("InvalidSpec"), "{page}: {status}");
    }
}
