//! Comparison with Flux's own libraries, which a small Go program in `hack/diff/envsubst` answers for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Error, Problem, substitute_objects, substitute_text};

const SOURCES: [(&str, &str); 3] = [
    ("main.go", include_str!("../../../hack/diff/envsubst/main.go")),
    ("go.mod", include_str!("../../../hack/diff/envsubst/go.mod")),
    ("go.sum", include_str!("../../../hack/diff/envsubst/go.sum")),
];

type Vars = BTreeMap<String, String>;

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Question<'q> {
    Text {
        template: &'q str,
        vars: &'q Vars,
        strict: bool,
    },
    Object {
        object: &'q Value,
        vars: &'q Vars,
        strict: bool,
    },
}

/// What the reference says. A text that is no UTF-8 any more is `broken`.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    output: Option<String>,
    object: Option<Value>,
    error: Option<String>,
    panic: Option<String>,
    #[serde(default)]
    broken: bool,
}

struct Reference {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reference {
    fn start() -> Result<Self, String> {
        let program = program()?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self {
            _child: child,
            input,
            output,
        })
    }

    fn ask(&mut self, question: &Question<'_>) -> Answer {
        serde_json::to_writer(&mut self.input, question).unwrap();
        self.input.write_all(b"\n").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("answer {line:?} to {question:?}: {e}"))
    }
}

/// The program: named by `STAGESET_ENVSUBST`, or built into the cache folder of `hack/testenv`.
fn program() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("STAGESET_ENVSUBST") {
        return Ok(given.into());
    }
    let mut hasher = Sha256::new();
    for (_, text) in SOURCES {
        hasher.update(text);
    }
    let hash: String = hasher.finalize().iter().take(6).map(|b| format!("{b:02x}")).collect();
    let folder = cache()?.join(format!("envsubst-{hash}"));
    let program = folder.join("envsubst");
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    build(&folder.join(format!("building-{}", std::process::id())), &program)?;
    Ok(program)
}

fn cache() -> Result<PathBuf, String> {
    let var = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    var("STAGESET_TESTENV_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("stageset-testenv")))
        .or_else(|| Some(var("HOME")?.join(".cache/stageset-testenv")))
        .ok_or_else(|| "set STAGESET_TESTENV_CACHE, XDG_CACHE_HOME or HOME: there is no place for a cache".to_owned())
}

fn build(temporary: &Path, program: &Path) -> Result<(), String> {
    const HELP: &str = "the reference for substitution needs Go 1.26 or newer (https://go.dev/dl) and its modules; \
                        or set STAGESET_ENVSUBST to a built hack/diff/envsubst";
    let built = Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o"])
        .arg(temporary)
        .arg(".")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/hack/diff/envsubst"))
        .output()
        .map_err(|e| format!("cannot run go: {e}; {HELP}"))?;
    if !built.status.success() {
        return Err(format!("{}; {HELP}", String::from_utf8_lossy(&built.stderr)));
    }
    fs::rename(temporary, program).map_err(|e| format!("{}: {e}", program.display()))
}

fn ask(question: &Question<'_>) -> Answer {
    static REFERENCE: LazyLock<Result<Mutex<Reference>, String>> = LazyLock::new(|| Reference::start().map(Mutex::new));
    match &*REFERENCE {
        Ok(reference) => reference
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .ask(question),
        Err(message) => panic!("{message}"),
    }
}

fn vars(pairs: &[(&str, &str)]) -> Vars {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A runner that prints its seed; `PROPTEST_RNG_SEED` repeats one.
pub(super) fn runner(name: &str) -> TestRunner {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let full = std::env::var_os("STAGESET_FULL").is_some_and(|value| value == "1");
    let cases = number("PROPTEST_CASES").unwrap_or(if full { 10_000 } else { 256 });
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    eprintln!("{name}: {cases} cases, PROPTEST_RNG_SEED={seed}");
    TestRunner::new(Config {
        cases: u32::try_from(cases).unwrap(),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    })
}

/// True for differences on purpose: see the page on substitution.
fn differs_on_purpose(template: &str, vars: &Vars, answer: &Answer) -> bool {
    let globs = |text: &str| text.contains(['?', '[']);
    let foreign = vars.values().any(|value| !value.is_ascii());
    // Bytes that are no characters, or were none before the text was reversed.
    let damaged = answer.broken || answer.output.as_deref().is_some_and(|text| text.contains('\u{fffd}'));
    foreign && (damaged || globs(template) || vars.values().any(|value| globs(value)))
}

/// Compares one text; false where a difference is on purpose.
fn compare_text(template: &str, vars: &Vars, strict: bool) -> Result<bool, String> {
    let answer = ask(&Question::Text { template, vars, strict });
    let ours = substitute_text(template, vars, strict);
    let cut = matches!(
        &ours,
        Err(Error::Expression {
            problem: Problem::Cut { .. },
            ..
        })
    );
    if cut || differs_on_purpose(template, vars, &answer) {
        return Ok(false);
    }
    let agree = match (&ours, &answer) {
        (
            Ok(ours),
            Answer {
                output: Some(theirs), ..
            },
        ) => ours == theirs,
        (Err(Error::Undefined { names, .. }), Answer { error: Some(error), .. }) => {
            names.iter().any(|name| error.contains(&format!("{name:?}"))) || !error.contains("strict mode")
        }
        (Err(_), Answer { error, panic, .. }) => error.is_some() || panic.is_some(),
        _ => false,
    };
    if agree {
        return Ok(true);
    }
    Err(format!(
        "{template:?} with {vars:?}, strict {strict}: ours {ours:?}, reference {answer:?}"
    ))
}

/// Rules: run 14.6 syntax
#[test]
fn table_agrees() {
    let vars = vars(&[
        ("x", "abcABC123ABCabc"),
        ("f", "bash.string.txt"),
        ("p", "/path/to/file"),
        ("e", ""),
        ("n", "3"),
        ("m", "-3"),
        ("g", "*."),
        ("u", "aé漢😀z"),
        ("s", "a b  c"),
        ("q", "a*b?c[d]e"),
    ]);
    for strict in [true, false] {
        for template in super::tests::TEMPLATES.lines().filter(|line| !line.is_empty()) {
            compare_text(template, &vars, strict).unwrap();
        }
    }
}

#[test]
fn random_templates_agree() {
    let compared = Cell::new(0u32);
    let with_value = Cell::new(0u32);
    let mut runner = runner("random_templates_agree");
    let cases = runner.config().cases;
    runner
        .run(
            &(templates(), variables(), any::<bool>()),
            |(template, vars, strict)| {
                let counts = compare_text(&template, &vars, strict).map_err(TestCaseError::fail)?;
                compared.set(compared.get() + u32::from(counts));
                let has_value = substitute_text(&template, &vars, strict).is_ok();
                with_value.set(with_value.get() + u32::from(has_value));
                Ok(())
            },
        )
        .unwrap_or_else(|e| panic!("{e}"));
    let (compared, agreed_value) = (compared.get(), with_value.get());
    // The comparison must not be empty: few are left out, and many have a value.
    assert!(compared * 10 > cases * 7, "{compared} of {cases} compared");
    assert!(agreed_value * 10 > cases * 2, "{agreed_value} of {cases} have a value");
}

#[test]
fn letter_case_agrees() {
    let letters: Vec<char> = ('\u{1}'..=char::MAX)
        .filter(|c| !c.is_ascii() && (c.to_uppercase().next() != Some(*c) || c.to_lowercase().next() != Some(*c)))
        .collect();
    assert!(letters.len() > 2500, "{}", letters.len());
    let mut different = Vec::new();
    for c in letters {
        let vars = vars(&[("x", &format!("{c}{c}"))]);
        if compare_text("${x^^} ${x,,} ${x^} ${x,}", &vars, true).is_err() {
            different.push(c);
        }
    }
    // Letters that became letters with newer editions of Unicode than Go knows.
    let newer = |c: &char| matches!(c, '\u{10d50}'..='\u{10d85}' | '\u{16ea0}'..='\u{16ed3}' | '\u{1c89}'..='\u{1c8a}' | '\u{a7cb}'..='\u{a7dd}' | '\u{19b}' | '\u{264}');
    different.retain(|c| !newer(c));
    assert!(different.is_empty(), "{different:?}");
}

/// Compares one object; false where a difference is on purpose.
fn compare_object(object: &Value, vars: &Vars, strict: bool) -> Result<bool, String> {
    let answer = ask(&Question::Object { object, vars, strict });
    let ours = substitute_objects(vec![object.clone()], vars, strict).map(|mut objects| objects.remove(0));
    let agree = match (&ours, &answer) {
        (
            Ok(ours),
            Answer {
                object: Some(theirs), ..
            },
        ) => same(ours, theirs),
        (Err(_), Answer { error: Some(_), .. } | Answer { panic: Some(_), .. }) => true,
        // Silent loss there, an error here.
        (Err(Error::Reread { problem, .. }), _) if problem.contains("keys of one mapping are equal") => {
            return Ok(false);
        }
        // Its reader takes malformed YAML: \\' in double quotes, and comments without a blank before them.
        (Err(Error::Reread { problem, .. }), _)
            if problem.contains("valid YAML") && vars.values().any(|value| value.contains(['\'', '"', '\\', '#'])) =>
        {
            return Ok(false);
        }
        (Err(Error::Incomplete { .. }), _) => return Ok(false),
        (
            Err(Error::Expression {
                problem: Problem::Cut { .. } | Problem::Dropped,
                ..
            }),
            _,
        ) => return Ok(false),
        _ => false,
    };
    if agree {
        return Ok(true);
    }
    Err(format!(
        "{object} with {vars:?}, strict {strict}: ours {ours:?}, reference {answer:?}"
    ))
}

/// Equal, numbers by value.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn values_in_every_kind_of_scalar_agree() {
    // Each value alone, beside text, in text that has quotes, in a block, as key, as list item.
    let mut faults = Vec::new();
    for value in VALUES {
        let vars = vars(&[("V", value), ("E", "")]);
        for data in [
            json!({"a": "${V}"}),
            json!({"a": "x ${V}", "b": "y"}),
            json!({"a": "${V} x", "b": "y"}),
            json!({"a": "${V}${E}: z"}),
            json!({"a": "# ${V}"}),
            json!({"a": "line\n${V}\nend\n"}),
            json!({"a": " ${V}"}),
            json!({"a": "tab\t${V}"}),
            json!({"a": "it's ${V}", "b": "'${V}'"}),
            json!({"${V}": "a", "k": {"${V}": "b"}}),
            json!({"a": ["${V}", "x", ["${V}", {"b": "${V}"}]]}),
            json!({"a": {"b": {"c": "${V}"}}}),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
            if let Err(fault) = compare_object(&object, &vars, true) {
                faults.push(fault);
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn folded_lines_agree() {
    for width in 60..100 {
        let text = "a".repeat(width);
        let vars = vars(&[("E", ""), ("S", "  two  "), ("C", "#c"), ("W", "w")]);
        for rest in [
            "${E} b",
            "b ${E} c ${E}",
            "${S} x",
            "${C} x",
            "${W}  ${W} y z",
            "${X:=${W}} ${W}",
        ] {
            for (before, after) in [("", ""), ("# ", ""), ("\t", ""), ("", ":"), ("it's: ", "")] {
                let value = format!("{before}{text} {rest}{after}");
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},
                    "data": {"key": value, "list": [value, [value], {"k": value}]}});
                compare_object(&object, &vars, true).unwrap();
            }
        }
    }
}

#[test]
fn random_objects_agree() {
    let mut runner = runner("random_objects_agree");
    let cases = runner.config().cases;
    let compared = Cell::new(0u32);
    runner
        .run(
            &(objects(), object_variables(), any::<bool>()),
            |(object, vars, strict)| {
                let counts = compare_object(&object, &vars, strict).map_err(TestCaseError::fail)?;
                compared.set(compared.get() + u32::from(counts));
                Ok(())
            },
        )
        .unwrap_or_else(|e| panic!("{e}"));
    let compared = compared.get();
    assert!(compared * 10 > cases * 7, "{compared} of {cases} compared");
}

#[test]
fn opting_out_agrees() {
    for field in ["labels", "annotations"] {
        for value in ["disabled", "enabled"] {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "${V}"}, "metadata":
                {"name": "m", field: {"kustomize.toolkit.fluxcd.io/substitute": value}}});
            assert!(compare_object(&object, &vars(&[("V", "1")]), true).unwrap());
        }
    }
}

#[test]
fn names_of_variables_agree() {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "$"}});
    for name in ["a", "_", "A1_", "1a", "a-b", "a.b", "", "é", "a b", "_1", "a\n"] {
        assert!(
            compare_object(&object, &vars(&[(name, "1")]), true).unwrap(),
            "{name:?}"
        );
    }
}

const NAMES: [&str; 8] = ["a", "b", "long_name", "E", "_x1", "undefined", "1", "é"];

const VALUES: [&str; 63] = [
    "",
    "word",
    "two words",
    "3",
    "-1",
    "0644",
    "08",
    "0x1F",
    "1_000",
    "1e3",
    "1.0",
    "1.10",
    ".5",
    "1e400",
    "123e4567",
    "true",
    "yes",
    "on",
    "n",
    "Y",
    "off",
    "null",
    "~",
    "2001-01-01",
    "12:30:45",
    "190:20:30",
    "\"3\"",
    "'yes'",
    "a: b",
    "a:b",
    "a #b",
    "#b",
    ": x",
    "- a",
    "-",
    "?",
    "? a",
    "[1, a]",
    "{a: 1}",
    "{a",
    "]",
    "}",
    ",",
    "&a",
    "&a b",
    "*a",
    "!!str 3",
    "!x y",
    "|",
    "> a",
    "%a",
    "@a",
    "`a",
    "'",
    "\"",
    "\\n",
    "\\",
    " a ",
    "a\tb",
    "é漢😀",
    "<<",
    "$x",
    "${word}",
];

fn variables() -> impl Strategy<Value = Vars> {
    let value = prop_oneof![
        3 => prop::sample::select(&VALUES[..]).prop_map(str::to_owned),
        3 => "[abA1/.*?-]{0,12}",
        1 => "[aé漢😀b]{0,6}",
        1 => "-?[0-9]{1,2}",
    ];
    prop::collection::btree_map(prop::sample::select(&NAMES[..5]).prop_map(str::to_owned), value, 0..5)
}

fn templates() -> impl Strategy<Value = String> {
    let expression = Just(()).prop_flat_map(|()| expressions());
    let piece = prop_oneof![
        6 => expression,
        3 => "[ a-c/:.\\\\\n]{0,6}",
        1 => Just("$$".to_owned()),
        1 => "[$}{#%^,=:?+*\\[\\]'\"\\\\/é-]{1,3}",
    ];
    let whole = prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat());
    // Some are damaged afterwards: a character goes or comes.
    prop_oneof![
        4 => whole.clone(),
        1 => (whole, any::<prop::sample::Index>(), "[$}{#/:=]?").prop_map(|(text, at, new)| {
            let mut chars: Vec<char> = text.chars().collect();
            if !chars.is_empty() {
                let at = at.index(chars.len());
                chars.splice(at..=at, new.chars());
            }
            chars.into_iter().collect()
        }),
    ]
}

fn expressions() -> BoxedStrategy<String> {
    let name = || prop::sample::select(&NAMES[..]).prop_map(str::to_owned);
    let plain = name().prop_map(|name| format!("${{{name}}}"));
    plain
        .boxed()
        .prop_recursive(4, 12, 3, move |inner| {
            let text = || prop_oneof![3 => "[a-c1/.*?! -]{1,5}", 1 => "[a\\\\/$é\\[\\]^:]{1,5}"];
            let argument = prop_oneof![3 => text().boxed(), 2 => inner.clone()];
            let mixed = prop::collection::vec(argument.clone(), 0..4).prop_map(|parts| parts.concat());
            let number = prop_oneof![3 => "-?[0-9]{1,2}", 1 => argument.clone(), 1 => "[0-9]{18,20}"];
            prop_oneof![
                3 => (name(), prop::sample::select(&["=", ":=", ":-", ":?", ":+"][..]), mixed)
                    .prop_map(|(n, op, d)| format!("${{{n}{op}{d}}}")),
                1 => (name(), prop::sample::select(&["-", "+", "?", ".", "@", ""][..]), text())
                    .prop_map(|(n, op, d)| format!("${{{n}{op}{d}}}")),
                1 => name().prop_map(|n| format!("${{#{n}}}")),
                2 => (name(), "[,^]{1,3}").prop_map(|(n, op)| format!("${{{n}{op}}}")),
                2 => (name(), number.clone()).prop_map(|(n, p)| format!("${{{n}:{p}}}")),
                2 => (name(), number.clone(), number, ":{1,2}").prop_map(|(n, p, l, c)| format!("${{{n}:{p}{c}{l}}}")),
                3 => (name(), prop::sample::select(&["/", "//", "/#", "/%"][..]), argument.clone(), argument.clone(), "/{1,2}")
                    .prop_map(|(n, op, a, b, s)| format!("${{{n}{op}{a}{s}{b}}}")),
                1 => (name(), prop::sample::select(&["/", "//", "/#", "/%"][..]), argument.clone())
                    .prop_map(|(n, op, a)| format!("${{{n}{op}{a}/}}")),
                4 => (name(), prop::sample::select(&["#", "##", "%", "%%"][..]), argument)
                    .prop_map(|(n, op, g)| format!("${{{n}{op}{g}}}")),
            ]
        })
        .boxed()
}

fn object_variables() -> impl Strategy<Value = Vars> {
    let value = prop_oneof![
        3 => prop::sample::select(&VALUES[..]).prop_map(str::to_owned),
        1 => "[a-c 0-9:#'\"\\[{,&*!|>%@\\\\-]{0,6}",
    ];
    prop::collection::btree_map(prop::sample::select(&NAMES[..5]).prop_map(str::to_owned), value, 1..5)
}

fn objects() -> impl Strategy<Value = Value> {
    let expression = prop_oneof![
        5 => prop::sample::select(&NAMES[..5]).prop_map(|name| format!("${{{name}}}")),
        1 => prop::sample::select(&NAMES[..6]).prop_map(|name| format!("${{{name}:=default}}")),
        1 => prop::sample::select(&NAMES[..5]).prop_map(|name| format!("${{{name}^^}}")),
        1 => Just("$$".to_owned()),
        1 => Just("$${x}".to_owned()),
    ];
    let text = prop_oneof![
        2 => "[a-c]{1,8}",
        1 => "[a-z ]{20,50}",
        1 => "[ :#'\"\\[{,&*!|>%@\\\\\n?.é😀-]{1,3}",
        // A line that begins with a tab fails in the reference whatever it holds.
        1 => Just("x\ty".to_owned()),
    ];
    let piece = prop_oneof![2 => expression, 2 => text];
    let string = prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat());
    let leaf = prop_oneof![
        8 => string.clone().prop_map(Value::String),
        1 => any::<i32>().prop_map(|n| json!(n)),
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
        1 => Just(json!({})),
        1 => Just(json!([])),
        1 => prop::sample::select(&VALUES[..61]).prop_map(|text| json!(text)),
    ];
    let key =
        prop_oneof![4 => "[a-z]{1,8}", 1 => string, 1 => prop::sample::select(&VALUES[..61]).prop_map(str::to_owned)];
    // As a key without quotes this one merges, and is lost in the reference.
    let key = key.prop_filter("merge key", |key| key != "<<");
    let data = leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    data.prop_map(|data| json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "m"}, "spec": data}))
}
