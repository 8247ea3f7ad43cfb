use rstest::rstest;
use serde_json::json;

use super::*;
use crate::source::error::{Class, Outcome};

const HERE: Scope<'_> = Scope {
    namespace: "apps",
    no_cross_namespace_refs: false,
};
const ISOLATED: Scope<'_> = Scope {
    namespace: "apps",
    no_cross_namespace_refs: true,
};
const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn reference(api_version: &str, kind: &str, name: &str, namespace: &str) -> Reference {
    let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
    Reference {
        api_version: some(api_version),
        kind: some(kind),
        name: name.to_owned(),
        namespace: some(namespace),
    }
}

fn source(name: &str) -> Value {
    json!({
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "GitRepository",
        "metadata": {"name": name, "namespace": "apps", "generation": 2},
        "spec": {},
        "status": {
            "observedGeneration": 2,
            "conditions": [
                {"type": "ArtifactInStorage", "status": "True"},
                {"type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact"},
            ],
            "artifact": {
                "url": "http://source-controller.flux-system/x.tar.gz",
                "digest": DIGEST,
                "revision": "main@sha1:abc",
                "size": 123,
                "lastUpdateTime": "2026-06-15T09:21:04Z",
            },
        },
    })
}

/// An ExternalArtifact as a list returns it: without kind. It has no `status.observedGeneration`.
fn external(name: &str, back: Value) -> Value {
    let mut artifact = source(name);
    let object = artifact.as_object_mut().expect("an object");
    object.remove("kind");
    object.remove("apiVersion");
    artifact["spec"]["sourceRef"] = back;
    let status = artifact["status"].as_object_mut().expect("an object");
    status.remove("observedGeneration");
    artifact
}

fn snippet(name: &str) -> Value {
    json!({"apiVersion": "jaas.metio.wtf/v1", "kind": "JsonnetSnippet", "name": name})
}

fn resolve(reference: &Reference, scope: Scope<'_>, found: Result<&[&Value], ReadFailure>) -> Result<Artifact, Error> {
    plan(reference, scope)?.judge(found)
}

fn outcome(result: Result<Artifact, Error>) -> Outcome {
    result.expect_err("must fail").outcome()
}

fn git() -> Reference {
    reference("", "GitRepository", "web", "")
}

fn producer() -> Reference {
    reference("jaas.metio.wtf/v1beta1", "JsonnetSnippet", "web", "")
}

#[rstest]
#[case("", "", "source.toolkit.fluxcd.io/v1", "ExternalArtifact")]
#[case("", "ExternalArtifact", "source.toolkit.fluxcd.io/v1", "ExternalArtifact")]
#[case(
    "source.toolkit.fluxcd.io/v1beta2",
    "ExternalArtifact",
    "source.toolkit.fluxcd.io/v1beta2",
    "ExternalArtifact"
)]
#[case(
    "foreign.example/v1",
    "ExternalArtifact",
    "source.toolkit.fluxcd.io/v1",
    "ExternalArtifact"
)]
#[case("", "GitRepository", "source.toolkit.fluxcd.io/v1", "GitRepository")]
#[case("", "OCIRepository", "source.toolkit.fluxcd.io/v1", "OCIRepository")]
#[case(
    "source.toolkit.fluxcd.io/v1beta2",
    "Bucket",
    "source.toolkit.fluxcd.io/v1beta2",
    "Bucket"
)]
fn direct(#[case] api_version: &str, #[case] kind: &str, #[case] read_version: &str, #[case] read_kind: &str) {
    let target = plan(&reference(api_version, kind, "web", ""), HERE).expect("a target");
    assert_eq!(
        target.lookup(),
        &Lookup::Object {
            api_version: read_version.to_owned(),
            kind: read_kind.to_owned(),
            namespace: "apps".to_owned(),
            name: "web".to_owned()
        }
    );
    assert!(!target.is_foreign());
}

#[rstest]
#[case("jaas.metio.wtf/v1", "JsonnetSnippet", "jaas.metio.wtf")]
#[case("foreign.example/v1", "GitRepository", "foreign.example")]
#[case("source.toolkit.fluxcd.io/v1", "HelmChart", "source.toolkit.fluxcd.io")]
#[case("v1", "ConfigMap", "")]
fn produced(#[case] api_version: &str, #[case] kind: &str, #[case] group: &str) {
    let target = plan(&reference(api_version, kind, "web", ""), HERE).expect("a target");
    let Lookup::ExternalArtifacts { namespace, producer } = target.lookup() else {
        panic!("{target:?}");
    };
    assert_eq!(namespace, "apps");
    assert_eq!((producer.group.as_str(), producer.kind.as_str()), (group, kind));
}

#[test]
fn a_producer_needs_a_group() {
    let result = resolve(&reference("", "JsonnetSnippet", "web", ""), HERE, Ok(&[]));
    let found = outcome(result);
    assert_eq!((found.reason, found.class), ("InvalidSpec", Class::Terminal));
    assert_eq!(
        found.message,
        "sourceRef JsonnetSnippet \"web\" has no apiVersion; set it, a producer is found by its API group"
    );
}

#[test]
fn a_ready_source_is_an_artifact() {
    let found = resolve(&git(), HERE, Ok(&[&source("web")])).expect("an artifact");
    assert_eq!(
        found,
        Artifact {
            kind: "GitRepository".to_owned(),
            namespace: "apps".to_owned(),
            name: "web".to_owned(),
            revision: "main@sha1:abc".to_owned(),
            digest: DIGEST.to_owned(),
            url: "http://source-controller.flux-system/x.tar.gz".to_owned(),
            size: Some(123),
            last_update: Some("2026-06-15T09:21:04Z".parse().expect("a time")),
        }
    );
    assert_eq!(found.key(), "apps/web");
}

#[test]
fn a_revision_may_be_absent() {
    let mut object = source("web");
    let artifact = object["status"]["artifact"].as_object_mut().expect("an object");
    for key in ["revision", "size", "lastUpdateTime"] {
        artifact.remove(key);
    }
    let found = resolve(&git(), HERE, Ok(&[&object])).expect("an artifact");
    assert_eq!(
        (found.revision.as_str(), found.size, found.last_update),
        ("", None, None)
    );
}

#[test]
fn a_missing_object_is_not_found() {
    let found = outcome(resolve(&git(), HERE, Ok(&[])));
    assert_eq!((found.reason, found.class), ("ArtifactNotFound", Class::Transient));
    assert_eq!(found.operation, None);
    assert_eq!(
        found.message,
        "GitRepository \"apps/web\" not found; create it or correct sourceRef"
    );
    let default = outcome(resolve(&reference("", "", "web", ""), HERE, Ok(&[])));
    assert!(default.message.starts_with("ExternalArtifact \"apps/web\" not found"));
}

#[test]
fn a_back_pointer_leads_to_the_artifact() {
    let artifacts = [
        external("other", snippet("other")),
        external("rendered", snippet("web")),
        external(
            "kind",
            json!({"apiVersion": "jaas.metio.wtf/v1", "kind": "Other", "name": "web"}),
        ),
        external(
            "group",
            json!({"apiVersion": "other.wtf/v1", "kind": "JsonnetSnippet", "name": "web"}),
        ),
        external("core", json!({"kind": "JsonnetSnippet", "name": "web"})),
        external(
            "elsewhere",
            json!({"apiVersion": "jaas.metio.wtf/v1", "kind": "JsonnetSnippet", "name": "web", "namespace": "infra"}),
        ),
        external("none", Value::Null),
    ];
    let found: Vec<&Value> = artifacts.iter().collect();
    let artifact = resolve(&producer(), HERE, Ok(&found)).expect("an artifact");
    assert_eq!(
        (artifact.kind.as_str(), artifact.key().as_str()),
        ("ExternalArtifact", "apps/rendered")
    );
}

/// Rules: run 8.2.2, contract 13.7
#[test]
fn an_artifact_of_another_namespace_speaks_for_no_producer_here() {
    let claim =
        json!({"apiVersion": "jaas.metio.wtf/v1", "kind": "JsonnetSnippet", "name": "web", "namespace": "apps"});
    let mut forged = external("forged", claim);
    forged["metadata"]["namespace"] = "infra".into();
    assert_eq!(SourceKey::back_pointer(&forged), None);
    let own = external("rendered", snippet("web"));
    let alone = resolve(&producer(), HERE, Ok(&[&forged]))
        .expect_err("not found")
        .outcome();
    assert_eq!(alone.reason, "ArtifactNotFound");
    let beside = resolve(&producer(), HERE, Ok(&[&forged, &own])).expect("the own one");
    assert_eq!(beside.key(), "apps/rendered");
}

#[test]
fn no_back_pointer_is_not_found() {
    let found = outcome(resolve(&producer(), HERE, Ok(&[&external("x", snippet("other"))])));
    assert_eq!((found.reason, found.class), ("ArtifactNotFound", Class::Transient));
    assert_eq!(
        found.message,
        "no ExternalArtifact in namespace \"apps\" points back at JsonnetSnippet \"apps/web\" of group \
         \"jaas.metio.wtf\"; check that it exists and publishes an artifact there"
    );
}

#[test]
fn two_back_pointers_are_ambiguous() {
    let (a, b) = (external("b", snippet("web")), external("a", snippet("web")));
    let found = outcome(resolve(&producer(), HERE, Ok(&[&a, &b])));
    assert_eq!((found.reason, found.class), ("ResolveFailed", Class::Terminal));
    assert_eq!(
        found.message,
        "ExternalArtifacts \"a\", \"b\" all point back at JsonnetSnippet \"apps/web\"; keep one, or reference an \
         ExternalArtifact by name"
    );
}

fn edited(pointer: &str, value: Value) -> Value {
    let mut object = source("web");
    *object.pointer_mut(pointer).expect("a field") = value;
    object
}

#[rstest]
#[case(edited("/status", json!({})), "it has no Ready condition yet")]
#[case(edited("/status/conditions", json!([])), "it has no Ready condition yet")]
#[case(edited("/status/conditions", json!([{"type": "Reconciling", "status": "True"}])), "it has no Ready condition yet")]
#[case(edited("/status/conditions/1", json!({"type": "Ready", "status": "False", "reason": "GitOperationFailed", "message": "no route"})), "Ready is False, GitOperationFailed: no route")]
#[case(edited("/status/conditions/1", json!({"type": "Ready", "status": "Unknown", "reason": "Progressing"})), "Ready is Unknown, Progressing")]
#[case(edited("/status/conditions/1/status", json!("true")), "Ready is true, Succeeded: stored artifact")]
#[case(edited("/metadata/generation", json!(3)), "its status is about generation 2, its spec is at 3")]
#[case(edited("/status/observedGeneration", json!(-1)), "it has not been looked at by its controller yet")]
#[case(edited("/status/artifact", json!(null)), "it is Ready, but status.artifact.url is empty")]
#[case(edited("/status/artifact/url", json!("")), "it is Ready, but status.artifact.url is empty")]
#[case(edited("/status/artifact/digest", json!(" ")), "it is Ready, but status.artifact.digest is empty")]
fn not_usable_yet(#[case] object: Value, #[case] text: &str) {
    let found = outcome(resolve(&git(), HERE, Ok(&[&object])));
    assert_eq!((found.reason, found.class), ("SourceNotReady", Class::Transient));
    assert_eq!(
        found.message,
        format!("GitRepository \"apps/web\" is not ready: {text}")
    );
}

#[test]
fn a_suspended_source_keeps_serving_what_it_froze() {
    let mut object = edited("/metadata/generation", json!(3));
    object["spec"]["suspend"] = json!(true);
    assert!(resolve(&git(), HERE, Ok(&[&object])).is_ok());
    object["status"]["conditions"][1]["status"] = json!("False");
    assert_eq!(outcome(resolve(&git(), HERE, Ok(&[&object]))).reason, "SourceNotReady");
}

#[test]
fn an_external_artifact_is_judged_by_its_conditions_generation() {
    let direct = reference("", "", "web", "");
    let mut object = external("web", Value::Null);
    assert!(resolve(&direct, HERE, Ok(&[&object])).is_ok());
    for (observed, usable) in [(0, true), (1, false), (2, true), (7, true)] {
        object["status"]["conditions"][1]["observedGeneration"] = json!(observed);
        let found = resolve(&direct, HERE, Ok(&[&object]));
        assert_eq!(found.is_ok(), usable, "{observed}: {found:?}");
    }
}

#[test]
fn a_long_condition_message_is_cut() {
    let object = edited(
        "/status/conditions/1",
        json!({"type": "Ready", "status": "False", "message": "ä".repeat(4000)}),
    );
    let found = outcome(resolve(&git(), HERE, Ok(&[&object])));
    assert!(
        found.message.len() < 600 && found.message.ends_with("ä..."),
        "{}",
        found.message
    );
}

/// Rules: run 8.4 denied, run 8.4 other
#[rstest]
#[case(ReadFailure::Forbidden("gitrepositories is forbidden: User \"x\"".to_owned()), "reading GitRepository \"apps/web\" is forbidden; grant get, list and watch on its kind to the controller: gitrepositories is forbidden: User \"x\"")]
#[case(
    ReadFailure::NotServed,
    "reading GitRepository \"apps/web\" failed: the API server does not serve source.toolkit.fluxcd.io/v1 GitRepository; install its CRD or correct sourceRef.apiVersion"
)]
#[case(ReadFailure::Other("timeout".to_owned()), "reading GitRepository \"apps/web\" failed: timeout")]
fn a_failed_read(#[case] failure: ReadFailure, #[case] text: &str) {
    let found = outcome(resolve(&git(), HERE, Err(failure)));
    assert_eq!((found.reason, found.class), ("ResolveFailed", Class::Transient));
    assert_eq!(found.message, text);
}

#[test]
fn a_producer_whose_artifact_kind_is_missing_says_so() {
    let found = outcome(resolve(&producer(), HERE, Err(ReadFailure::NotServed)));
    assert_eq!(found.reason, "ResolveFailed");
    assert!(
        found
            .message
            .contains("does not serve source.toolkit.fluxcd.io/v1 ExternalArtifact")
    );
}

const CONCEALED: &str = "cross-namespace GitRepository \"web\" is not reachable; check its status in namespace \
                         \"infra\", and whether the controller runs with --no-cross-namespace-refs";

/// Rules: run 8.5 redaction, run B18
#[test]
fn every_failure_in_another_namespace_reads_the_same() {
    let foreign = reference("", "GitRepository", "web", "infra");
    let broken = edited("/status/conditions/1/status", json!("False"));
    let stale = edited("/metadata/generation", json!(9));
    let bare = edited("/status/artifact", json!(null));
    let failures = [
        resolve(&foreign, HERE, Ok(&[])),
        resolve(&foreign, HERE, Ok(&[&broken])),
        resolve(&foreign, HERE, Ok(&[&stale])),
        resolve(&foreign, HERE, Ok(&[&bare])),
        resolve(&foreign, HERE, Err(ReadFailure::Forbidden("secret".to_owned()))),
        resolve(&foreign, HERE, Err(ReadFailure::NotServed)),
        resolve(&foreign, HERE, Err(ReadFailure::Other("secret".to_owned()))),
    ];
    let expected = Outcome {
        reason: "ResolveFailed",
        class: Class::Transient,
        operation: None,
        message: CONCEALED.to_owned(),
    };
    for failure in failures {
        assert_eq!(outcome(failure), expected);
    }
    assert!(resolve(&foreign, HERE, Ok(&[&source("web")])).is_ok());

    let target = plan(&foreign, HERE).expect("a target");
    let refused = crate::outbound::Error::InvalidUrl {
        cause: "secret".to_owned(),
    };
    let object = source_name();
    for error in [
        Error::Fetch {
            object: object.clone(),
            error: refused,
        },
        Error::Interrupted { object },
    ] {
        assert_eq!(target.conceal(error).outcome(), expected);
    }
}

fn source_name() -> Box<ObjectName> {
    Box::new(ObjectName {
        kind: "GitRepository".to_owned(),
        namespace: "infra".to_owned(),
        name: "web".to_owned(),
    })
}

#[test]
fn an_ambiguous_foreign_producer_is_concealed_too() {
    let foreign = reference("jaas.metio.wtf/v1", "JsonnetSnippet", "web", "infra");
    let back =
        json!({"apiVersion": "jaas.metio.wtf/v1", "kind": "JsonnetSnippet", "name": "web", "namespace": "infra"});
    let there = |name: &str| {
        let mut artifact = external(name, back.clone());
        artifact["metadata"]["namespace"] = "infra".into();
        artifact
    };
    let (a, b) = (there("a"), there("b"));
    let found = outcome(resolve(&foreign, HERE, Ok(&[&a, &b])));
    assert_eq!((found.reason, found.class), ("ResolveFailed", Class::Transient));
    assert!(
        found
            .message
            .starts_with("cross-namespace JsonnetSnippet \"web\" is not reachable")
    );
    assert!(!found.message.contains("\"a\""));
}

/// Rules: run 8.5 flag
#[test]
fn the_flag_refuses_another_namespace_before_any_read() {
    let foreign = reference("", "GitRepository", "web", "infra");
    let found = plan(&foreign, ISOLATED).expect_err("refused").outcome();
    assert_eq!((found.reason, found.class), ("ResolveFailed", Class::Terminal));
    assert_eq!(found.message, CONCEALED);
    for own in ["apps", ""] {
        let target = plan(&reference("", "GitRepository", "web", own), ISOLATED).expect("allowed");
        assert!(!target.is_foreign());
    }
}

/// Rules: run 8.5 own
#[test]
fn an_own_failure_is_not_concealed() {
    let explicit = reference("", "GitRepository", "web", "apps");
    let target = plan(&explicit, HERE).expect("a target");
    let error = Error::Interrupted { object: source_name() };
    assert_eq!(target.conceal(error.clone()), error);
}

/// Rules: run 2.3 index, run 2.3 defaults, run 2.3 back-pointer, run B16
#[test]
fn keys_meet_where_events_and_references_should() {
    let object = source("web");
    assert_eq!(SourceKey::of_object(&object), Some(git().key("apps")));
    let old = reference("source.toolkit.fluxcd.io/v1beta2", "GitRepository", "web", "apps");
    assert_eq!(old.key("other"), git().key("apps"));
    let artifact = external("rendered", snippet("web"));
    assert_eq!(SourceKey::back_pointer(&artifact), Some(producer().key("apps")));
    assert_ne!(SourceKey::back_pointer(&artifact), Some(producer().key("other")));
    assert_eq!(SourceKey::back_pointer(&object), None);
}
