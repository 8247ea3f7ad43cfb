use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn object(api_version: &str, kind: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": "app", "uid": "u1", "resourceVersion": "7"}})
}

fn annotated(mut object: Value, map: &str, key: &str, value: &str) -> Value {
    object["metadata"][map] = json!({key: value});
    object
}

fn rule(kind: &str, action: Action) -> Rule {
    Rule {
        target: Target {
            kind: Some(kind.into()),
            ..Target::default()
        },
        action,
        allow_data_loss: false,
    }
}

fn invalid(causes: &[(&str, &str)]) -> ApiRefusal {
    ApiRefusal {
        code: 422,
        reason: "Invalid".into(),
        message: "Deployment.apps \"web\" is invalid".into(),
        causes: causes
            .iter()
            .map(|(field, message)| Cause {
                reason: "FieldValueInvalid".into(),
                message: (*message).into(),
                field: (*field).into(),
            })
            .collect(),
    }
}

/// Answers of a kube-apiserver v1.37.2 to real changes; long values are cut.
const ANSWERS: &str = include_str!("answers.json");

/// Rules: run B5
#[test]
fn the_servers_own_answers_are_recognised() {
    let answers: Vec<Value> = serde_json::from_str(ANSWERS).unwrap();
    assert!(answers.len() > 30, "{}", answers.len());
    for answer in answers {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
        let causes = answer["causes"].as_array().unwrap();
        let refusal = ApiRefusal {
            code: u16::try_from(answer["code"].as_u64().unwrap()).unwrap(),
            reason: text(&answer, "reason"),
            message: text(&answer, "message"),
            causes: causes
                .iter()
                .map(|cause| Cause {
                    reason: text(cause, "reason"),
                    message: text(cause, "message"),
                    field: text(cause, "field"),
                })
                .collect(),
        };
        let name = text(&answer, "name");
        let conflict = immutable_conflict(&refusal);
        assert_eq!(conflict.is_some(), !name.starts_with("NOT "), "{name}: {conflict:?}");
        if let Some(conflict) = conflict {
            assert!(
                !conflict.fields.is_empty() && conflict.detail.len() < 400 && !conflict.detail.contains(['\n']),
                "{name}: {conflict}"
            );
        }
    }
}

// Texts of older servers and of common controllers.
#[rstest]
#[case("spec.selector", r#"Invalid value: {"matchLabels":{"app":"b"}}: field is immutable"#)]
#[case(
    "spec.selector",
    r#"Invalid value: v1.LabelSelector{MatchLabels:map[string]string{"a":"b"}}: field is immutable"#
)]
#[case(
    "spec.template",
    "Invalid value: core.PodTemplateSpec{ObjectMeta:v1.ObjectMeta{Name:\"\"}}: field is immutable"
)]
#[case(
    "spec",
    "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template' are forbidden"
)]
#[case("spec.clusterIPs[0]", r#"Invalid value: ["10.0.0.2"]: may not change once set"#)]
#[case(
    "spec.clusterIPs[0]",
    "Invalid value: []string(nil): primary clusterIP can not be unset"
)]
#[case("spec.clusterIP", r#"Invalid value: "10.0.0.2": field is immutable"#)]
#[case("roleRef", r#"Invalid value: rbac.RoleRef{APIGroup:"x"}: cannot change roleRef"#)]
#[case("type", r#"Invalid value: "kubernetes.io/tls": field is immutable"#)]
#[case("data", "Forbidden: field is immutable when `immutable` is set")]
#[case("parameters", "Forbidden: updates to parameters are forbidden.")]
#[case("provisioner", "Forbidden: updates to provisioner are forbidden.")]
#[case("value", "Forbidden: may not be changed in an update.")]
#[case(
    "spec",
    "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)]
#[case(
    "spec.resources.requests.storage",
    "Forbidden: field can not be less than status.capacity"
)]
#[case(
    "spec",
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
)]
#[case("spec.volumeName", r#"Invalid value: "string": failed rule: self == oldSelf"#)]
#[case("spec.source", r#"Invalid value: "object": persistentVolumeClaimName is immutable"#)]
#[case(
    "spec.engine",
    r#"Invalid value: "string": Value is immutable: create a new cluster instead"#
)]
fn immutability_is_recognised(#[case] field: &str, #[case] message: &str) {
    let conflict = immutable_conflict(&invalid(&[(field, message)])).unwrap();
    assert_eq!(conflict.fields, [field]);
    assert!(!conflict.detail.contains("Invalid value"), "{conflict}");
}

/// Rules: run B5
#[rstest]
#[case("spec.replicas", "Invalid value: -1: must be greater than or equal to 0")]
#[case(
    "metadata.name",
    r#"Invalid value: "is immutable": a lowercase RFC 1123 subdomain must consist of"#
)]
#[case("metadata.name", r#"Invalid value: "a\" is immutable": must be lower case"#)]
#[case(
    "spec.template",
    r#"Invalid value: core.PodTemplateSpec{Note:"x: is immutable"}: may not contain a name"#
)]
#[case("spec.containers[0].image", "Required value")]
#[case("spec.type", "Unsupported value: \"x\": supported values: \"ClusterIP\"")]
fn an_invalid_manifest_is_no_conflict(#[case] field: &str, #[case] message: &str) {
    assert_eq!(immutable_conflict(&invalid(&[(field, message)])), None);
}

#[test]
fn one_cause_of_another_kind_spoils_the_cure() {
    let mixed = invalid(&[
        ("spec.selector", "Invalid value: {}: field is immutable"),
        ("spec.replicas", "Invalid value: -1: must be greater than or equal to 0"),
    ]);
    assert_eq!(immutable_conflict(&mixed), None);
    let both = invalid(&[
        ("spec.completions", "Invalid value: 3: field is immutable"),
        (
            "spec.template",
            "Invalid value: core.PodTemplateSpec{}: field is immutable",
        ),
    ]);
    let conflict = immutable_conflict(&both).unwrap();
    assert_eq!(
        conflict.to_string(),
        "spec.completions, spec.template: field is immutable"
    );
}

fn refusal(code: u16, reason: &str, message: &str) -> ApiRefusal {
    ApiRefusal {
        code,
        reason: reason.into(),
        message: message.into(),
        causes: Vec::new(),
    }
}

#[rstest]
#[case(
    403,
    "Forbidden",
    r#"admission webhook "v.example.com" denied the request: spec.size is immutable"#,
    true
)]
#[case(
    400,
    "",
    r#"admission webhook "v.example.com" denied the request: [spec.a: the field cannot be changed]"#,
    true
)]
#[case(422, "Invalid", r#"admission webhook "v.example.com" denied the request: Cluster.x "a" is invalid: spec: Invalid value: 1: field is immutable"#, true)]
#[case(
    422,
    "Invalid",
    "widgets.example.com \"a\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: size is immutable",
    true
)]
#[case(
    403,
    "Forbidden",
    r#"admission webhook "immutable.example.com" denied the request: no privileged pods"#,
    false
)]
#[case(
    500,
    "InternalError",
    r#"admission webhook "v.example.com" denied the request: spec.size is immutable"#,
    false
)]
#[case(
    403,
    "Forbidden",
    r#"deployments.apps "is immutable" is forbidden: User "x" cannot patch resource"#,
    false
)]
#[case(
    409,
    "Conflict",
    "Operation cannot be fulfilled: the object has been modified",
    false
)]
#[case(
    422,
    "Invalid",
    r#"Widget.example.com "is immutable" is invalid: spec.size: too small"#,
    false
)]
#[case(
    422,
    "Invalid",
    r#"Widget.example.com "web" is invalid: spec.size: field is immutable"#,
    true
)]
#[case(404, "NotFound", "is immutable", false)]
fn answers_without_causes(#[case] code: u16, #[case] reason: &str, #[case] message: &str, #[case] expected: bool) {
    let found = immutable_conflict(&refusal(code, reason, message));
    assert_eq!(found.is_some(), expected, "{found:?}");
}

/// Rules: run 16.6 precedence
#[test]
fn the_first_matching_rule_wins() {
    let policy = Policy {
        default: Some(Action::Fail),
        force: false,
        rules: vec![
            Rule {
                target: Target {
                    api_version: Some("batch/v1".into()),
                    kind: Some("Job".into()),
                    name: Some("other".into()),
                    namespace: Some(String::new()),
                },
                action: Action::KeepExisting,
                allow_data_loss: false,
            },
            rule("Job", Action::Recreate),
            Rule::default(),
            rule("Deployment", Action::Recreate),
        ],
    };
    let job = policy.choose(&object("batch/v1", "Job"));
    assert_eq!((job.action, job.by), (Action::Recreate, ChosenBy::Rule(1)));
    let deployment = policy.choose(&object("apps/v1", "Deployment"));
    assert_eq!((deployment.action, deployment.by), (Action::Fail, ChosenBy::Rule(2)));
}

/// Rules: run 16.6 match
#[rstest]
#[case(Some("apps/v1"), None, None, None, true)]
#[case(Some("apps"), None, None, None, false)]
#[case(None, Some("deployment"), None, None, false)]
#[case(None, Some("Deployment"), Some("web"), Some("app"), true)]
#[case(None, None, Some("we*"), None, false)]
#[case(None, None, None, Some("other"), false)]
#[case(Some(""), Some(""), Some(""), Some(""), true)]
fn targets_compare_for_equality(
    #[case] api_version: Option<&str>,
    #[case] kind: Option<&str>,
    #[case] name: Option<&str>,
    #[case] namespace: Option<&str>,
    #[case] matches: bool,
) {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let target = Target {
        api_version: owned(api_version),
        kind: owned(kind),
        name: owned(name),
        namespace: owned(namespace),
    };
    assert_eq!(target.matches(&object("apps/v1", "Deployment")), matches);
}

/// Rules: run 16.6 default
#[rstest]
#[case(None, false, Action::Fail)]
#[case(None, true, Action::Recreate)]
#[case(Some(Action::Fail), true, Action::Fail)]
#[case(Some(Action::KeepExisting), true, Action::KeepExisting)]
#[case(Some(Action::Recreate), false, Action::Recreate)]
fn an_explicit_default_beats_force(#[case] default: Option<Action>, #[case] force: bool, #[case] expected: Action) {
    let policy = Policy {
        default,
        force,
        rules: vec![rule("Job", Action::Fail)],
    };
    let choice = policy.choose(&object("apps/v1", "Deployment"));
    assert_eq!((choice.action, choice.by), (expected, ChosenBy::Default));
}

/// Rules: run 16.5 force
#[rstest]
#[case("annotations", "stages.metio.wtf/force", "enabled", true)]
#[case("annotations", "stages.metio.wtf/force", "yes", true)]
#[case("annotations", "stages.metio.wtf/force", "", false)]
#[case("annotations", "stages.metio.wtf/force", "disabled", false)]
#[case("annotations", "stages.metio.wtf/force", "False", false)]
#[case("labels", "stages.metio.wtf/force", "enabled", false)]
#[case("annotations", "kustomize.toolkit.fluxcd.io/force", "Enabled", true)]
#[case("labels", "kustomize.toolkit.fluxcd.io/force", "enabled", true)]
#[case("annotations", "kustomize.toolkit.fluxcd.io/force", "yes", false)]
fn the_annotation_beats_every_rule(#[case] map: &str, #[case] key: &str, #[case] value: &str, #[case] forced: bool) {
    let policy = Policy {
        default: Some(Action::Fail),
        force: false,
        rules: vec![rule("Deployment", Action::KeepExisting)],
    };
    let choice = policy.choose(&annotated(object("apps/v1", "Deployment"), map, key, value));
    let expected = if forced {
        (Action::Recreate, ChosenBy::Annotation)
    } else {
        (Action::KeepExisting, ChosenBy::Rule(0))
    };
    assert_eq!((choice.action, choice.by), expected);
}

fn conflict() -> ImmutableConflict {
    ImmutableConflict {
        fields: vec!["spec.selector".into()],
        detail: "field is immutable".into(),
    }
}

fn claim() -> Value {
    object("v1", "PersistentVolumeClaim")
}

#[test]
fn keep_existing_holds_with_and_without_a_conflict() {
    let policy = Policy {
        rules: vec![rule("Deployment", Action::KeepExisting)],
        ..Policy::default()
    };
    let web = object("apps/v1", "Deployment");
    assert_eq!(before_apply(&policy, &web, true), BeforeApply::KeepExisting);
    assert_eq!(before_apply(&policy, &web, false), BeforeApply::Apply);
    assert_eq!(on_conflict(&policy, &web, &web, &conflict()), Decision::KeepExisting);
}

/// Rules: run 16.6 data
#[test]
fn a_rule_that_would_destroy_data_is_refused_before_anything_is_applied() {
    let mut policy = Policy {
        rules: vec![rule("PersistentVolumeClaim", Action::Recreate)],
        ..Policy::default()
    };
    for exists in [true, false] {
        let BeforeApply::RefuseDataLoss(loss) = before_apply(&policy, &claim(), exists) else {
            panic!("the claim's data must be guarded");
        };
        let text = loss.to_string();
        for part in [
            "PersistentVolumeClaim/app/web",
            "conflictPolicy.rules[0]",
            "allowDataLoss",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
    policy.rules[0].allow_data_loss = true;
    assert_eq!(before_apply(&policy, &claim(), true), BeforeApply::Apply);
    let decision = on_conflict(&policy, &claim(), &claim(), &conflict());
    assert!(matches!(decision, Decision::Recreate { .. }), "{decision:?}");
}

/// Rules: run B6
#[test]
fn a_default_that_would_destroy_data_is_refused_when_it_comes_to_it() {
    for policy in [
        Policy {
            force: true,
            ..Policy::default()
        },
        Policy {
            default: Some(Action::Recreate),
            ..Policy::default()
        },
    ] {
        for volume in [claim(), object("v1", "PersistentVolume")] {
            assert_eq!(before_apply(&policy, &volume, true), BeforeApply::Apply);
            let decision = on_conflict(&policy, &volume, &volume, &conflict());
            assert!(matches!(decision, Decision::RefuseDataLoss(_)), "{decision:?}");
        }
        let other = object("example.com/v1", "PersistentVolumeClaim");
        let decision = on_conflict(&policy, &other, &other, &conflict());
        assert!(matches!(decision, Decision::Recreate { .. }), "{decision:?}");
    }
}

#[test]
fn the_annotation_is_consent_to_lose_data() {
    let forced = annotated(claim(), "annotations", "stages.metio.wtf/force", "enabled");
    let policy = Policy::default();
    assert_eq!(before_apply(&policy, &forced, true), BeforeApply::Apply);
    let decision = on_conflict(&policy, &forced, &claim(), &conflict());
    let expected = Decision::Recreate {
        by: ChosenBy::Annotation,
        preconditions: Preconditions {
            uid: Some("u1".into()),
            resource_version: None,
        },
        orphan: false,
    };
    assert_eq!(decision, expected);
}

/// Rules: run 16.8
#[test]
fn what_a_new_stateful_set_would_adopt_is_left_to_it() {
    let policy = Policy {
        force: true,
        ..Policy::default()
    };
    let orphans = |rendered: &Value, live: &Value| {
        let Decision::Recreate { orphan, .. } = on_conflict(&policy, rendered, live, &conflict()) else {
            panic!("force recreates");
        };
        orphan
    };
    let with = |kind: &str, app: &str, size: &str| {
        let mut object = object("apps/v1", kind);
        object["spec"] = json!({"selector": {"matchLabels": {"app": app}}, "volumeClaimTemplates": [size]});
        object
    };
    let live = with("StatefulSet", "db", "1Gi");
    assert!(orphans(&with("StatefulSet", "db", "2Gi"), &live));
    assert!(
        !orphans(&with("StatefulSet", "other", "2Gi"), &live),
        "pods of the old selector would be in the way"
    );
    let live = with("Deployment", "db", "1Gi");
    assert!(!orphans(&with("Deployment", "db", "2Gi"), &live));
}

#[test]
fn a_failure_names_object_field_and_next_step() {
    let web = object("apps/v1", "Deployment");
    let Decision::Fail { message } = on_conflict(&Policy::default(), &web, &web, &conflict()) else {
        panic!("the default is to fail");
    };
    for part in [
        "Deployment/app/web",
        "spec.selector",
        "field is immutable",
        "conflictPolicy",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn rules_that_name_a_volume_are_found_at_admission() {
    let mut allowed = rule("PersistentVolume", Action::Recreate);
    allowed.allow_data_loss = true;
    let mut foreign = rule("PersistentVolume", Action::Recreate);
    foreign.target.api_version = Some("example.com/v1".into());
    let mut explicit = rule("PersistentVolumeClaim", Action::Recreate);
    explicit.target.api_version = Some("v1".into());
    let rules = [
        rule("PersistentVolumeClaim", Action::Recreate),
        allowed,
        foreign,
        rule("PersistentVolume", Action::KeepExisting),
        explicit,
        Rule {
            action: Action::Recreate,
            ..Rule::default()
        },
    ];
    let found = find_data_loss_rules(&rules);
    let indexes: Vec<usize> = found.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, [0, 4]);
    assert!(found[0].1.contains("allowDataLoss"));
}

#[test]
fn a_trial_differs_in_name_and_claims_nothing_unique() {
    let mut service = object("v1", "Service");
    service["spec"] = json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "healthCheckNodePort": 31_000,
        "ports": [{"port": 80, "nodePort": 30_080}]});
    let trial = trial_object(&service).unwrap();
    let name = trial["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("stageset-trial-") && name.len() <= 63, "{name}");
    assert_eq!(trial["spec"], json!({"ports": [{"port": 80}]}));
    assert_eq!(trial["metadata"]["namespace"], "app");
    assert_eq!(trial["metadata"].get("uid"), None);
    let mut headless = object("v1", "Service");
    headless["spec"] = json!({"clusterIP": "None"});
    assert_eq!(trial_object(&headless).unwrap()["spec"], json!({"clusterIP": "None"}));
    assert_eq!(
        trial_object(&object("apiextensions.k8s.io/v1", "CustomResourceDefinition")),
        None
    );
    assert_eq!(trial_object(&json!({"kind": "Secret"})), None);
}

proptest! {
    #[test]
    fn any_answer_is_read(code in 400_u16..600, message in ".{0,80}", causes in prop::collection::vec((".{0,10}", "(Invalid value: )?.{0,40}"), 0..3)) {
        let mut answer = refusal(code, "Invalid", &message);
        answer.causes = causes.into_iter().map(|(field, message)| Cause { reason: String::new(), message, field }).collect();
        let _ = immutable_conflict(&answer);
    }

    /// A quoted value never decides, whatever it says.
    #[test]
    fn values_do_not_decide(value in ".{0,30}", odd in prop::sample::select(vec!["is immutable", "oldSelf", "cannot be changed"])) {
        let quoted = format!("{:?}", format!("{value}{odd}{value}"));
        let refused = invalid(&[("a", &format!("Invalid value: {quoted}: must be short"))]);
        prop_assert_eq!(immutable_conflict(&refused), None);
    }
}
