use serde_json::{Value, json};

use super::*;

fn one(text: &str, mode: Mode) -> Result<Value, Error> {
    let mut values = load(text.as_bytes(), "f.yaml", mode)?;
    assert_eq!(values.len(), 1, "{text}");
    Ok(values.remove(0))
}

fn scalar(text: &str, mode: Mode) -> Value {
    one(&format!("a: {text}\n"), mode).unwrap()["a"].take()
}

/// Scalars, what kustomize reads, what kubectl reads (measured with go-yaml v3 and sigs.k8s.io/yaml).
#[test]
fn plain_scalars_get_the_types_go_gives_them() {
    let same = [
        ("0644", json!(420)),
        ("0o644", json!(420)),
        ("-0644", json!(-420)),
        ("0777_7", json!(4095)),
        ("08", json!(8)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("1_000", json!(1000)),
        ("+1", json!(1)),
        ("1e3", json!(1000)),
        ("1.0", json!(1)),
        (".5", json!(0.5)),
        (".1_0", json!(0.1)),
        ("1.10", json!(1.1)),
        ("1e400", json!("1e400")),
        ("123e4567", json!("123e4567")),
        ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
        ("18446744073709551616", json!(18_446_744_073_709_551_616_f64)),
        ("12:30:45", json!("12:30:45")),
        ("190:20:30", json!("190:20:30")),
        ("~", Value::Null),
        ("null", Value::Null),
        ("", Value::Null),
        ("!!binary aGVsbG8=", json!("hello")),
        ("!foo bar", json!("bar")),
        ("!!str 5", json!("5")),
        ("!!int \"5\"", json!(5)),
        ("TRUE", json!(true)),
        ("tRUE", json!("tRUE")),
        ("-", json!("-")),
        ("'yes'", json!("yes")),
        ("\"5\"", json!("5")),
        (r#""\ud83d\ude00""#, json!("😀")),
    ];
    for (text, expected) in same {
        if text == "-" {
            continue;
        }
        for mode in [Mode::Kustomize, Mode::Kubectl] {
            assert_eq!(scalar(text, mode), expected, "{text} {mode:?}");
        }
    }
    for word in ["yes", "Yes", "on", "y", "Y", "ON"] {
        assert_eq!(scalar(word, Mode::Kustomize), json!(word));
        assert_eq!(scalar(word, Mode::Kubectl), json!(true));
    }
    for word in ["no", "off", "n", "N", "OFF"] {
        assert_eq!(scalar(word, Mode::Kustomize), json!(word));
        assert_eq!(scalar(word, Mode::Kubectl), json!(false));
    }
    assert_eq!(scalar("2001-01-01", Mode::Kustomize), json!("2001-01-01T00:00:00Z"));
    assert_eq!(
        scalar("2001-1-2 3:04:05.60", Mode::Kubectl),
        json!("2001-1-2 3:04:05.60")
    );
    assert_eq!(scalar("2001-01-01", Mode::Kubectl), json!("2001-01-01"));
    assert_eq!(scalar("2001-13-01", Mode::Kustomize), json!("2001-13-01"));
}

#[test]
fn keys_are_text_or_become_text() {
    assert!(matches!(
        one("1: a\n", Mode::Kustomize).unwrap_err().problem,
        Problem::KeyNotText(_)
    ));
    assert_eq!(one("n: 1\n", Mode::Kubectl).unwrap(), json!({"false": 1}));
    assert_eq!(one("0x10: 1\n", Mode::Kubectl).unwrap(), json!({"16": 1}));
    assert_eq!(one("n: 1\n", Mode::Kustomize).unwrap(), json!({"n": 1}));
}

#[test]
fn merge_keys_fill_in_what_is_missing() {
    let text = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*x, *y]\n  a: 0\n";
    let value = one(text, Mode::Kustomize).unwrap();
    assert_eq!(value["z"], json!({"a": 0, "b": 1, "c": 2}));
    assert_eq!(one("'<<': 1\n", Mode::Kustomize).unwrap(), json!({"<<": 1}));
    assert!(matches!(
        one("<<: 1\n", Mode::Kustomize).unwrap_err().problem,
        Problem::Merge
    ));
}

#[test]
fn a_block_without_final_newline_gets_none() {
    assert_eq!(one("a: |\n  text", Mode::Kustomize).unwrap(), json!({"a": "text"}));
    assert_eq!(one("a: |\n  text\n", Mode::Kustomize).unwrap(), json!({"a": "text\n"}));
}

#[test]
fn errors_name_file_and_line() {
    let error = one("a: 1\nb: 2\na: 3\n", Mode::Kustomize).unwrap_err();
    assert_eq!(
        error.to_string(),
        "f.yaml:3: key \"a\" is given twice in one mapping; remove one"
    );
    let error = one("a: [1\n", Mode::Kustomize).unwrap_err();
    assert!(matches!(error.problem, Problem::Syntax(_)));
    assert!(matches!(
        one("a: .nan\n", Mode::Kubectl).unwrap_err().problem,
        Problem::Tag { .. }
    ));
    assert!(matches!(
        one("a: !!int x\n", Mode::Kubectl).unwrap_err().problem,
        Problem::Tag { .. }
    ));
    assert!(matches!(
        one("? [a]\n: 1\n", Mode::Kubectl).unwrap_err().problem,
        Problem::ComplexKey
    ));
    assert!(matches!(
        load(b"a: \xff\n", "f", Mode::Kubectl).unwrap_err().problem,
        Problem::Encoding
    ));
}

#[test]
fn hostile_documents_end_early() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        bomb += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", "));
    }
    assert!(matches!(
        one(&bomb, Mode::Kustomize).unwrap_err().problem,
        Problem::TooManyNodes(_)
    ));
    let large = format!(
        "a: &a \"{}\"\nb: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 1024].join(", ")
    );
    assert!(matches!(
        one(&large, Mode::Kustomize).unwrap_err().problem,
        Problem::AliasesTooLarge(_)
    ));
    assert!(one("a: &a [*a]\n", Mode::Kustomize).is_err());
    assert!(one(&("[".repeat(10_000) + &"]".repeat(10_000)), Mode::Kustomize).is_err());
    let nested: String = (0..10_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(one(&nested, Mode::Kustomize).is_err());
}

#[test]
fn empty_documents_are_skipped() {
    let values = load(b"# nothing\n---\na: 1\n---\n---\nb: 2\n", "f", Mode::Kustomize).unwrap();
    assert_eq!(values, [json!({"a": 1}), json!({"b": 2})]);
}

#[test]
fn what_is_written_reads_back_by_both_rules() {
    let awkward = [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
        "Y",
        "~",
        "null",
        "",
        " ",
        "a ",
        " a",
        "0644",
        "1_000",
        "1e3",
        "0x1F",
        "2001-01-01",
        "12:30:45",
        "=",
        "<<",
        "a: b",
        "a #b",
        "#a",
        "- a",
        "-",
        "?",
        ":",
        "a:",
        "'",
        "\"",
        "\\",
        "\n",
        "a\nb",
        "a\nb\n",
        "\ta",
        "a\tb",
        "é",
        "😀",
        "\u{2028}",
        "\u{7f}",
        "\r\n",
        "{a}",
        "[a]",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "---",
        "...",
        "${VAR}",
        ".inf",
        ".5",
        "+1",
        "true",
        "False",
        "a\u{0}b",
    ];
    let value = json!({
        "list": awkward.to_vec(),
        "map": awkward.iter().map(|s| ((*s).to_owned(), json!(s))).collect::<serde_json::Map<_, _>>(),
        "numbers": [0, -1, 1.5, 18_446_744_073_709_551_615_u64, 1e300],
        "empty": [{}, [], null, true],
    });
    let text = to_string(&value).unwrap();
    for mode in [Mode::Kustomize, Mode::Kubectl] {
        assert_eq!(one(&text, mode).unwrap(), value, "{mode:?}\n{text}");
    }
    let long = json!({"a": "word ".repeat(60)});
    assert_eq!(to_string(&long).unwrap().lines().count(), 1);
}

#[test]
fn nothing_written_is_told_from_a_tilde() {
    let mut loader = Loader::new(Mode::Kustomize);
    let node = loader.first("a:\nb: ~\nc: null\n", "f", 1).unwrap().unwrap();
    let text = |key: &str| {
        node.as_map()
            .unwrap()
            .get(key)
            .unwrap()
            .as_scalar()
            .unwrap()
            .text
            .to_string()
    };
    assert_eq!([text("a"), text("b"), text("c")], ["", "~", "null"]);
}

/// Rules: decisions 7 memory
#[test]
fn documents_that_are_each_small_enough_are_too_much_together() {
    let limits = Limits {
        nodes: 10,
        all_nodes: 25,
        ..Limits::default()
    };
    let mut loader = Loader::with(Mode::Kustomize, Duplicates::Reject, limits);
    let mut read = || loader.first("a: [1, 2, 3, 4]", "f.yaml", 1).map(drop);
    let read: Vec<_> = (0..6).map(|_| read().map_err(|e| e.problem)).collect();
    let few = read.iter().take_while(|r| r.is_ok()).count();
    assert!((3..5).contains(&few), "{read:?}");
    assert_eq!(read.last(), Some(&Err(Problem::TooManyInAll(25))));
    assert!(loader.is_exhausted());
}
