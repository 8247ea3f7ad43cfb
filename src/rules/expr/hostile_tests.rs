//! Expressions that want to hang, overflow or exhaust: each ends, and soon, without harm.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// What any expression may take, to compile and to evaluate, in an unoptimised build on a shared machine. Alone on
/// it, everything here ends in less than a second.
const SOON: Duration = Duration::from_secs(5);
/// A small stack: an evaluation runs deep within an asynchronous task.
const STACK: usize = 1 << 20;

fn object() -> Value {
    let numbers: Vec<u64> = (0..300).collect();
    json!({
        "apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}},
        "spec": {"text": "a".repeat(20_000), "numbers": numbers},
        "status": {"phase": "Running", "items": vec![json!({"a": "b", "c": ["d", {"e": 1}]}); 300]},
    })
}

/// Compiles and evaluates on a small stack; the result, and how long it took.
fn run(source: &str) -> (Result<Result<bool, EvalError>, ExprError>, Duration) {
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let object = object();
        let began = Instant::now();
        let result = Expression::compile(&source).map(|e| e.evaluate(&object));
        (result, began.elapsed())
    });
    thread.unwrap().join().unwrap()
}

#[track_caller]
fn ends_soon(name: &str, source: &str) -> Result<Result<bool, EvalError>, ExprError> {
    let (result, took) = run(source);
    assert!(took < SOON, "{name} took {took:?}: {result:?}");
    result
}

/// `item` as often as fits into an expression with what is around it.
fn full(before: &str, item: &str, after: &str) -> String {
    let count = (MAX_LENGTH - before.len() - after.len()) / item.len();
    format!("{before}{}{after}", item.repeat(count))
}

/// Rules: run 18.3 cost
#[test]
fn loops_within_loops_run_out_of_budget() {
    let budget = Ok(Err(EvalError::Budget));
    for (name, source) in [
        (
            "all",
            "spec.numbers.all(a, spec.numbers.all(b, spec.numbers.all(c, spec.numbers.all(d, a + b + c + d >= 0))))",
        ),
        (
            "exists",
            "spec.numbers.exists(a, spec.numbers.exists(b, spec.numbers.exists(c, a + b + c < 0)))",
        ),
        (
            "errors",
            "spec.numbers.exists(a, spec.numbers.exists(b, spec.numbers.exists(c, spec.nope)))",
        ),
        (
            "map",
            "spec.numbers.map(a, spec.numbers.map(b, spec.numbers.map(c, c))).size() == 1",
        ),
        (
            "filter",
            "spec.numbers.filter(a, spec.numbers.filter(b, spec.numbers.filter(c, false) == []) != []) == []",
        ),
        (
            "one",
            "spec.numbers.exists_one(a, spec.numbers.exists_one(b, spec.numbers.exists_one(c, c < 0)))",
        ),
        (
            "items",
            "spec.numbers.all(a, status.items.all(b, status.items.all(c, c == b)))",
        ),
        (
            "copies",
            "spec.numbers.all(a, spec.numbers.all(b, [status.items, status.items, status.items].size() == 3))",
        ),
        (
            "optional copies",
            "spec.numbers.all(a, spec.numbers.all(b, status.?items.hasValue()))",
        ),
        (
            "text",
            "spec.numbers.all(a, spec.numbers.all(b, spec.text == spec.text + ''))",
        ),
        (
            "contains",
            "spec.numbers.all(a, spec.numbers.all(b, !spec.text.contains('aaab')))",
        ),
        ("in", "spec.numbers.all(a, spec.numbers.all(b, !(-1 in spec.numbers)))"),
        (
            "sets",
            "spec.numbers.all(a, sets.equivalent(spec.numbers, spec.numbers))",
        ),
        (
            "absorbed",
            "spec.numbers.all(a, spec.numbers.all(b, spec.numbers.all(c, true))) || true",
        ),
        (
            "absorbed twice",
            "spec.numbers.all(x, spec.numbers.all(a, spec.numbers.all(b, spec.numbers.all(c, true))) || true)",
        ),
    ] {
        assert_eq!(ends_soon(name, source), budget, "{name}");
    }
}

#[test]
fn values_that_grow_run_out_of_budget() {
    let grow = |seed: &str, stage: &str, end: &str| format!("{seed}{}{end}", stage.repeat(60));
    for (name, source) in [
        ("double text", grow("['aaaaaaaaaa']", ".map(x,x+x)", "==[]")),
        ("double list", grow("[[1]]", ".map(x,[x,x])", "==[]")),
        ("add lists", grow("[[1]]", ".map(x,x+x)", "==[]")),
        ("double map", grow("[{}]", ".map(x,{1:x,2:x})", "==[]")),
        ("replace", grow("'aa'", ".replace('','aaaaa')", "==''")),
        ("replace all", grow("'a'", ".replace('a','aaaaa')", "==''")),
        ("join", grow("['aaaa']", ".map(x,[x,x,x].join(x))", "==[]")),
        ("format", grow("['a']", ".map(x,'%s%s%s'.format([x,x,x]))", "==[]")),
        ("split", grow("['ab']", ".map(x,(x+x).split('').join('ab'))", "==[]")),
        ("quote", grow("['\"']", ".map(x,strings.quote(x))", "==[]")),
        ("encode", grow("['a']", ".map(x,base64.encode(bytes(x+x)))", "==[]")),
        (
            "optional",
            grow("[optional.of(1)]", ".map(x,optional.of([x,x]))", "==[]"),
        ),
    ] {
        assert_eq!(ends_soon(name, &source), Ok(Err(EvalError::Budget)), "{name}");
    }
}

#[test]
fn patterns_cost_what_they_are() {
    for (name, source) in [
        (
            "many",
            "spec.numbers.all(a, spec.numbers.all(b, !'x'.matches('y' + string(a) + '-' + string(b) + '{900}')))",
        ),
        ("text", "spec.numbers.all(a, !spec.text.matches('(a|b)*a(a|b){200}c'))"),
        (
            "classes",
            "spec.numbers.all(a, !spec.text.matches('(\\\\pL{2}|\\\\pN){30}z'))",
        ),
    ] {
        assert_eq!(ends_soon(name, source), Ok(Err(EvalError::Budget)), "{name}");
    }
    for pattern in [
        "(((a{1000}){1000}){1000})",
        "(a{100}){100}",
        "((((a{30}){30}){30}){30}){30}",
        "(\\\\pL{100}){100}",
    ] {
        let result = ends_soon("huge", &format!("'x'.matches('{pattern}') == false"));
        assert!(
            matches!(result, Ok(Ok(true) | Err(EvalError::Operation(_) | EvalError::Budget))),
            "{pattern}: {result:?}"
        );
    }
}

/// Rules: run 18.3 cost
#[test]
fn depth_is_refused_before_it_overflows() {
    for (name, source) in [
        ("sum", full("1", "+1", "==1")),
        ("fields", full("status", ".a", "==1")),
        ("methods", full("kind", ".trim()", "==''")),
        ("indices", full("status", "[0]", "==1")),
        ("optionals", full("status", ".?a", ".hasValue()")),
        ("maps", full("[]", ".map(x,x)", "==[]")),
        ("comparisons", full("1", "==1", "")),
        ("in", full("1", " in[1]", "")),
    ] {
        assert_eq!(ends_soon(name, &source), Err(ExprError::TooDeep), "{name}");
    }
    for (name, source) in [
        ("parentheses", full("", "(", "")),
        ("brackets", full("", "[", "")),
        ("braces", full("", "{", "")),
        ("pairs", format!("{}true{}", "(".repeat(2000), ")".repeat(2000))),
        ("else", full("true", "?true:true", "")),
        ("calls", full("", "size(", "")),
        ("macros", full("", "[].all(x,", "true")),
    ] {
        assert_eq!(ends_soon(name, &source), Err(ExprError::TooDeep), "{name}");
    }
    for (name, source) in [
        ("nots", full("", "!", "true")),
        ("minus", full("", "-", "1==1")),
        ("minus apart", full("", "- ", "1==1")),
        ("choices", full("", "true?", "true")),
        ("dots", full("", ".", "")),
        ("quotes", full("", "'", "")),
        ("nothing", full("", "\u{1F600}", "")),
        ("backslashes", full("'", "\\", "'")),
        ("commas", full("[", ",", "]")),
        ("maps open", full("{", "1:{", "")),
        ("questions", full("", "?", "")),
        ("long name", full("", "a", "")),
        ("tokens", full("", "&& ", "")),
        ("digits", full("", "9", "==1")),
        ("mixed", full("", "([{", "")),
    ] {
        let _ = ends_soon(name, &source);
    }
    assert_eq!(
        refused_length(MAX_LENGTH + 1),
        Err(ExprError::TooLong { length: MAX_LENGTH + 1 })
    );
}

fn refused_length(length: usize) -> Result<(), ExprError> {
    Expression::compile(&format!("true{}", " ".repeat(length - 4))).map(|_| ())
}

#[test]
fn what_is_just_deep_enough_fits_the_stack() {
    let chain = |item: &str, count: usize| item.repeat(count);
    for (name, source) in [
        ("sum", format!("1{}==1", chain("+1", MAX_DEPTH - 2))),
        ("fields", format!("has(status{})", chain(".a", MAX_DEPTH - 1))),
        ("methods", format!("kind{}==''", chain(".trim()", MAX_DEPTH - 2))),
        ("maps", format!("spec.numbers{}==[]", chain(".map(x,[x])", 150))),
        ("optionals", format!("status{}.hasValue()", chain(".?a", MAX_DEPTH - 2))),
        (
            "choices",
            format!("{}true{}", "(true?".repeat(40), ":false)".repeat(40)),
        ),
        ("loops", format!("{}true{}", "[1].all(x,".repeat(30), ")".repeat(30))),
        ("broad", full("true", "&&true", "")),
    ] {
        let result = ends_soon(name, &source);
        assert!(result.is_ok(), "{name}: {result:?}");
    }
    assert_eq!(ends_soon("broad", &full("true", "||true", "")), Ok(Ok(true)));
}

#[test]
fn ordinary_work_is_far_from_the_budget() {
    for source in [
        "status.items.all(i, i.a == 'b' && i.c.exists(c, c == 'd'))",
        "spec.numbers.all(n, spec.numbers.exists(m, m == n))",
        "status.items.filter(i, i.a == 'b').map(i, i.c[0]).all(t, t.matches('^[a-z]+$'))",
        "sets.contains(spec.numbers, [1, 2, 3]) && spec.text.size() == 20000",
    ] {
        assert_eq!(ends_soon("ordinary", source), Ok(Ok(true)), "{source}");
    }
}

/// Expressions that parse, more often than not.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("status".to_owned()),
        Just("status.phase".to_owned()),
        Just("status.items".to_owned()),
        Just("spec.numbers".to_owned()),
        Just("spec.text".to_owned()),
        Just("kind".to_owned()),
        Just("x".to_owned()),
        Just("true".to_owned()),
        Just("null".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("1.5".to_owned()),
        Just("2u".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        "'[a-zäß%{}()*+]{0,6}'".prop_map(|text| text),
    ];
    leaf.prop_recursive(6, 60, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        let three = (inner.clone(), inner.clone(), inner.clone());
        const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in"];
        const MACROS: &[&str] = &["all", "exists", "exists_one", "map", "filter", "optMap"];
        const METHODS: &[&str] = &[
            "contains",
            "split",
            "join",
            "matches",
            "indexOf",
            "orValue",
            "format",
            "startsWith",
            "charAt",
        ];
        const GLOBALS: &[&str] = &[
            "size",
            "int",
            "string",
            "type",
            "dyn",
            "timestamp",
            "duration",
            "optional.of",
            "base64.encode",
        ];
        const SETS: &[&str] = &["sets.contains", "sets.intersects", "sets.equivalent"];
        prop_oneof![
            (two.clone(), prop::sample::select(OPERATORS)).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (two.clone(), prop::sample::select(MACROS)).prop_map(|((a, b), m)| format!("{a}.{m}(x, {b})")),
            (two.clone(), prop::sample::select(METHODS)).prop_map(|((a, b), m)| format!("{a}.{m}({b})")),
            (inner.clone(), prop::sample::select(GLOBALS)).prop_map(|(a, f)| format!("{f}({a})")),
            (two.clone(), prop::sample::select(SETS)).prop_map(|((a, b), f)| format!("{f}({a}, {b})")),
            three.clone().prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            three.prop_map(|(a, b, c)| format!("{a}.replace({b}, {c})")),
            two.clone().prop_map(|(a, b)| format!("[{a}, {b}]")),
            two.clone().prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            two.prop_map(|(a, b)| format!("{a}[{b}]")),
            inner.clone().prop_map(|a| format!("!{a}")),
            inner.clone().prop_map(|a| format!("has({a}.phase)")),
            inner.prop_map(|a| format!("{a}.?phase")),
        ]
    })
}

/// Fragments in any order: mostly nonsense.
fn nonsense() -> impl Strategy<Value = String> {
    let words = [
        "status",
        ".",
        "a",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        "\"",
        "==",
        "&&",
        "||",
        "?",
        ":",
        "!",
        "-",
        "1",
        "0x",
        "e",
        "all",
        "has",
        "map",
        "x",
        ",",
        " ",
        "\n",
        "//",
        "\\",
        "'''",
        "b'",
        "r'",
        "in",
        "true",
        "null",
        "google.protobuf",
        "\u{0}",
        "ß",
        "`",
        "@charge(",
        "matches('",
        "{1000}",
        "9223372036854775808",
        "1e999",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..60).prop_map(|words| words.concat())
}

/// Without our counting, to compare with.
fn plainly(source: &str, object: &Value) -> Result<bool, ()> {
    let root = parse(source).map_err(|_| ())?;
    let mut context = Context::with_env(env::shared());
    for name in VARIABLES {
        context.add_variable_as_val(name, value::variable(object, name));
    }
    let result = cel::Value::resolve_val(&root, &context).map_err(|_| ())?;
    result.downcast_ref::<CelBool>().map(|b| *b.inner()).ok_or(())
}

proptest! {
    #[test]
    fn no_expression_panics_or_hangs(
        source in expression().prop_map(|e| format!("({e}) == true")),
    ) {
        let (_, took) = run(&source);
        prop_assert!(took < SOON, "{source} took {took:?}");
    }

    #[test]
    fn no_nonsense_panics_or_hangs(source in nonsense()) {
        let (_, took) = run(&source);
        prop_assert!(took < SOON, "{source} took {took:?}");
    }

    #[test]
    fn no_text_panics_or_hangs(source in any::<String>()) {
        let (_, took) = run(&source);
        prop_assert!(took < SOON, "{source} took {took:?}");
    }

    #[test]
    fn counting_changes_no_result(source in expression().prop_map(|e| format!("({e}) == true"))) {
        let object = json!({
            "kind": "A", "spec": {"text": "abcab", "numbers": [1, 2, 3]},
            "status": {"phase": "a", "items": [{"phase": "a"}, {"b": [true, null]}]},
        });
        if let Ok(compiled) = Expression::compile(&source) {
            match compiled.evaluate(&object) {
                Err(EvalError::Budget) => {}
                counted => {
                    let plain = apart(PARSER_STACK, || plainly(&source, &object)).unwrap();
                    prop_assert_eq!(counted.clone().map_err(|_| ()), plain, "{}: {:?}", source, counted);
                }
            }
        }
    }
}
