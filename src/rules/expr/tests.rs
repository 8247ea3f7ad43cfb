//! The language: what is understood, what is refused, and why.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn object() -> Value {
    json!({
        "apiVersion": "db.example/v1",
        "kind": "Database",
        "metadata": {
            "name": "shop", "generation": 3,
            "labels": {"a/b": "c", "app": "Web"},
            "creationTimestamp": "2026-06-15T09:21:04Z",
        },
        "spec": {"replicas": 3, "ratio": 0.5, "hosts": ["a", "b"], "big": u64::MAX},
        "status": {
            "phase": "Running", "ready": true, "replicas": 3, "none": null,
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Up"},
                {"type": "Stalled", "status": "False"},
            ],
        },
    })
}

#[track_caller]
fn eval(source: &str) -> Result<bool, EvalError> {
    Expression::compile(source)
        .unwrap_or_else(|e| panic!("{source}: {e}"))
        .evaluate(&object())
}

#[track_caller]
fn refused(source: &str) -> ExprError {
    match Expression::compile(source) {
        Ok(_) => panic!("{source} is accepted"),
        Err(error) => error,
    }
}

#[rstest]
// Fields, variables, numbers.
#[case("status.phase == 'Running'")]
#[case("status.phase in ['Running', 'Idle']")]
#[case("apiVersion == 'db.example/v1' && kind == 'Database'")]
#[case("metadata.labels['a/b'] == 'c' && 'app' in metadata.labels")]
#[case("status.replicas == spec.replicas && spec.replicas * 2 - 1 == 5")]
#[case("spec.replicas >= 3.0 && spec.ratio < 1 && -spec.replicas < 0 && spec.replicas % 2 == 1")]
#[case("spec.big == 18446744073709551615u && spec.big > spec.replicas")]
#[case("status.ready")]
#[case("status.ready ? true : status.missing")]
#[case("status.none == null && type(status.phase) == string && type(spec.replicas) == int")]
#[case("type(timestamp(metadata.creationTimestamp)) == google.protobuf.Timestamp")]
// Presence, optionals, absorbed errors.
#[case("has(status.phase) && !has(status.missing) && !has(metadata.annotations)")]
#[case("status.?missing.orValue('x') == 'x' && status.?phase.orValue('') == 'Running'")]
#[case("!status.?a.?b.hasValue() && status[?'phase'].hasValue()")]
#[case("optional.of(1).value() == 1 && !optional.none().hasValue()")]
#[case("status.?phase.optMap(p, p.size()).orValue(0) == 7")]
#[case("status.missing || true")]
#[case("!(status.missing && false)")]
// Macros.
#[case("status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')")]
#[case("status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True' && c.reason == 'Up')")]
#[case("status.conditions.exists_one(c, c.status == 'True')")]
#[case("status.conditions.map(c, c.type) == ['Ready', 'Stalled']")]
#[case("status.conditions.map(c, c.status == 'True', c.type)[0] == 'Ready'")]
#[case("spec.hosts.all(h, spec.hosts.exists(g, g == h))")]
#[case("status.conditions.exists(c, c.reason == 'Up')")]
#[case("metadata.labels.exists(k, metadata.labels[k] == 'c')")]
// Functions.
#[case("size(spec.hosts) == 2 && status.conditions.size() == 2 && size('grüß') == 4")]
#[case("status.phase.startsWith('Run') && status.phase.endsWith('ing') && status.phase.contains('nn')")]
#[case("status.phase.matches('^R[a-z]+g$') && matches(status.phase, 'unn') && !'a'.matches('b')")]
#[case("'x'.matches('^(a{1000}|x)$') && 'Ä'.matches(r'^\\p{L}$')")]
#[case(
    "int('3') == spec.replicas && string(spec.replicas) == '3' && double('1.5') == 1.5 && uint(3) == 3u && bool('true')"
)]
#[case("timestamp(metadata.creationTimestamp) + duration('1h') > timestamp('2026-06-15T10:00:00Z')")]
#[case("timestamp(metadata.creationTimestamp).getFullYear() == 2026 && duration('90s').getMinutes() == 1")]
#[case("metadata.labels.app.lowerAscii() == 'web' && 'web'.upperAscii() == 'WEB' && ' a '.trim() == 'a'")]
#[case("'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']")]
#[case("spec.hosts.join('-') == 'a-b' && spec.hosts.join() == 'ab' && [].join('x') == ''")]
#[case(
    "'abab'.replace('a', 'x') == 'xbxb' && 'abab'.replace('a', 'x', 1) == 'xbab' && 'ab'.replace('', '-') == '-a-b-'"
)]
#[case("'abab'.replace('a', '', -1) == 'bb' && 'abab'.replace('a', 'x', 0) == 'abab'")]
#[case("'hello'.substring(1) == 'ello' && 'hello'.substring(1, 3) == 'el' && 'hello'.charAt(1) == 'e'")]
#[case("'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.indexOf('z') == -1")]
#[case("'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2 && 'grüße'.indexOf('e') == 4")]
#[case("'hello'.indexOf('') == 0 && 'hello'.lastIndexOf('') == 5 && 'ab'.indexOf('', 9) == 2")]
#[case("'ab'.reverse() == 'ba' && strings.quote('a\"b') == '\"a\\\\\"b\"' && '%s is %d'.format(['a', 1]) == 'a is 1'")]
#[case("base64.encode(b'hello') == 'aGVsbG8=' && base64.decode('aGVsbG8=') == b'hello'")]
#[case("sets.contains(spec.hosts, ['a']) && !sets.contains(spec.hosts, ['z']) && sets.contains([1], [])")]
#[case("sets.equivalent(spec.hosts, ['b', 'a', 'a']) && !sets.equivalent(spec.hosts, ['a'])")]
#[case(
    "sets.intersects(spec.hosts, ['z', 'b']) && !sets.intersects(spec.hosts, []) && sets.contains([1, 2.0], [1.0, 2])"
)]
#[case("{'a': status.phase}.a == 'Running' && [status.phase][0] == 'Running'")]
#[case("dyn(status.ready)")]
fn holds(#[case] source: &str) {
    assert_eq!(eval(source), Ok(true), "{source}");
}

#[rstest]
#[case("status.missing == 'x'", "there is no field \"missing\"")]
#[case("status.missing.deeper == 1", "there is no field \"missing\"")]
#[case("metadata[status.phase] == 1", "there is no such key")]
#[case("spec.hosts[7] == 'a'", "a list has no such element")]
#[case("spec.replicas / 0 == 1", "a number is divided by zero")]
#[case("spec.replicas % (spec.replicas - 3) == 1", "a number is divided by zero")]
#[case("spec.replicas * 9223372036854775807 == 1", "a number is too large")]
#[case("status.phase", "its result is neither true nor false but of type string")]
#[case(
    "status.?ready.orValue(1) == 1 ? spec.replicas : spec.replicas",
    "its result is neither true nor false but of type int"
)]
#[case("status.phase.matches('[')", "a function does not accept its argument")]
#[case("'ab'.indexOf('b', -1) == 0", "a function does not accept its argument")]
#[case("'ab'.lastIndexOf('b', 9) == 0", "a function does not accept its argument")]
#[case("timestamp(status.phase) > timestamp(0)", "a function does not accept its argument")]
#[case("status.conditions.all(c, c.reason == 'Up')", "there is no field \"reason\"")]
#[case(
    "spec.hosts.join(',') == [1].join(',')",
    "found no matching overload for 'join' applied to '(int)'"
)]
#[case(
    "status && status.ready",
    "found no matching overload for '_&&_' applied to '(map, bool)'"
)]
#[case("status ? true : false", "a value has the type map where bool is needed")]
fn has_no_result(#[case] source: &str, #[case] why: &str) {
    assert_eq!(eval(source).unwrap_err().to_string(), why, "{source}");
}

#[test]
fn an_error_says_nothing_of_the_objects_values() {
    let object = json!({"spec": {"password": "hunter2", "list": ["hunter2"]}, "metadata": {"hunter2": {}}});
    for source in [
        "spec[spec.password] == 1",
        "int(spec.password) == 1",
        "timestamp(spec.password) == timestamp(0)",
        "duration(spec.password) == duration('1s')",
        "spec.password < 1",
        "spec.password + 1 == 2",
        "{spec.password: 1, spec.password: 2}.size() == 1",
        "spec.list[spec.password] == 1",
        "spec.password.matches('[' + spec.password)",
        "base64.decode(spec.password + '!') == b''",
        "'%z'.format([spec.password]) == ''",
        "spec.password",
        "bool(spec.password)",
        "metadata.map(k, metadata[k].nope)[0] == 1",
    ] {
        let error = Expression::compile(source).unwrap().evaluate(&object).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{source}: {error}");
    }
}

#[test]
fn what_is_absent_is_empty() {
    for object in [
        json!({}),
        json!({"metadata": null, "spec": null, "status": null}),
        json!([]),
        json!("x"),
    ] {
        for source in [
            "apiVersion == '' && kind == ''",
            "metadata == {} && spec == {} && status.size() == 0",
            "!has(status.phase) && !('a' in spec)",
        ] {
            assert_eq!(
                Expression::compile(source).unwrap().evaluate(&object),
                Ok(true),
                "{source} over {object}"
            );
        }
    }
    let data = Expression::compile("data.a == 1");
    assert_eq!(data.unwrap_err(), ExprError::UnknownVariable { name: "data".into() });
}

#[rstest]
#[case("", "it is empty")]
#[case("  \n ", "it is empty")]
#[case("status.phase = 'x'", "at line 1, column ")]
#[case("status.phase ==", "at line 1, column ")]
#[case("(status.ready", "at line 1, column ")]
#[case("status.phase == 'x", "at line 1, column ")]
#[case("status.ready &&\n status.", "at line 2, column ")]
#[case("has(status)", "at line 1, column ")]
#[case("status.a.all(c + 1, true)", "at line 1, column ")]
#[case(
    "statsu.phase == 'x'",
    "there is no variable \"statsu\"; an expression sees apiVersion, kind, metadata, spec, status"
)]
#[case("status.conditions.all(c, d.ok)", "there is no variable \"d\"")]
#[case("status.a.exists(c, c.ok) && c.ok", "there is no variable \"c\"")]
#[case("object.status.ready", "there is no variable \"object\"")]
#[case("now() > timestamp(0)", "there is no function \"now\"")]
#[case("status.phase.startswith('x')", "there is no function \"startswith\"")]
#[case("sets.union([1], [2]) == [1]", "there is no variable \"sets\"")]
#[case("quantity(spec.a) == spec.b", "there is no function \"quantity\"")]
#[case("lists.range(10).all(x, x > 1)", "there is no variable \"lists\"")]
#[case("status.phase.contains()", "the function \"contains\" does not take 0 arguments")]
#[case("sets.contains([1])", "the function \"sets.contains\" does not take 1 arguments")]
#[case("1 + 2", "its result has the type int")]
#[case("status.replicas + 1", "its result has the type int")]
#[case("size(status.conditions)", "its result has the type int")]
#[case("'true'", "its result has the type string")]
#[case("kind", "its result has the type string")]
#[case("[true]", "its result has the type list")]
#[case("{'a': true}", "its result has the type map")]
#[case("null", "its result has the type null_type")]
#[case("status.conditions.map(c, c.ok)", "its result has the type list")]
#[case("status.conditions.filter(c, c.ok)", "its result has the type list")]
#[case("status.?ready", "its result has the type optional_type")]
#[case("status.ready ? 1 : 2", "its result has the type int")]
#[case("timestamp(spec.t)", "its result has the type timestamp")]
#[case("string", "its result has the type type")]
#[case("status.ready && 1", "&& needs true or false, not a value of type int")]
#[case("'a' || status.ready", "|| needs true or false, not a value of type string")]
#[case("!kind", "! needs true or false, not a value of type string")]
#[case("status.a.all(c, c.size() + 1)", "&& needs true or false, not a value of type int")]
#[case(
    "(size(kind) ? true : false)",
    "the condition of ?: needs true or false, not a value of type int"
)]
#[case("kind.name == 'x'", "a value of type string has no field \"name\"")]
#[case(
    "google.protobuf.Duration{seconds: 1} == spec.a",
    "objects of type \"google.protobuf.Duration\" cannot be made"
)]
#[case("@charge(1) == 1", "at line 1, column ")]
fn is_refused(#[case] source: &str, #[case] why: &str) {
    let error = refused(source).to_string();
    assert!(error.starts_with(why), "{source}: {error}");
    assert!(!error.contains('\n') && error.len() < 320, "{error}");
}

#[test]
fn every_known_function_exists_in_the_library() {
    // A wrong type is an answer of the library's, an unknown name is one of ours.
    for source in functions::samples() {
        let result = eval(&format!("[{source}].size() == 1 || true"));
        assert_eq!(result, Ok(true), "{source}");
        let alone = Expression::compile(&format!("[{source}].size() == 1"))
            .unwrap()
            .evaluate(&object());
        assert_ne!(alone, Err(EvalError::Operation("it cannot be evaluated")), "{source}");
    }
}

#[test]
fn only_loops_may_be_slow() {
    for (source, slow) in [
        ("status.phase == 'Running'", false),
        ("status.?phase.optMap(p, p.size()).orValue(0) == 7", false),
        ("status.conditions.exists(c, c.type == 'Ready')", true),
        ("size(status.conditions.map(c, c.type)) > 1", true),
    ] {
        assert_eq!(Expression::compile(source).unwrap().may_be_slow(), slow, "{source}");
    }
}

#[test]
fn only_the_variables_it_names_are_bound() {
    let expression = Expression::compile("status.a == spec.b && [1].all(metadata, metadata == 1)").unwrap();
    assert_eq!(expression.variables, ["spec", "status"]);
    assert_eq!(
        expression.source(),
        "status.a == spec.b && [1].all(metadata, metadata == 1)"
    );
}

#[test]
fn a_second_compilation_is_the_same_expression() {
    let source = "status.phase == 'cached'";
    let first = Expression::compile(source).unwrap();
    assert!(Arc::ptr_eq(&first, &Expression::compile(source).unwrap()));
}

#[test]
fn the_cache_keeps_what_is_used_and_stays_bounded() {
    let mut cache = Cache::default();
    let expression = |n: usize| {
        let source = format!("status.phase == '{n:0>500}'");
        Arc::new(Expression::compile_anew(&source).unwrap())
    };
    let kept = expression(0);
    cache.put(&kept);
    for n in 1..400 {
        cache.put(&expression(n));
        assert!(cache.get(kept.source()).is_some(), "after {n}");
        let text: usize = cache.young.keys().chain(cache.old.keys()).map(String::len).sum();
        assert!(text <= CACHED_TEXT, "{text} bytes after {n}");
    }
    assert!(cache.get(expression(1).source()).is_none());
    assert!(cache.get(expression(399).source()).is_some());
}
