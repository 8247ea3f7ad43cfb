use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::evaluate::{Budget, Scope};
use super::reference::runner;
use super::*;

/// One template a line, compared with the reference as well.
pub(super) const TEMPLATES: &str = r"
plain text
${x}
a${x}b${f}c
${x}${x}
${u}
${undefined}
${e}
${1}
${é}
${x
${
${}
${ x}
${-x}
${x }
${x y}
${x.y}
${x-d}
${x+d}
${x?d}
${x!d}
${x@Q}
${a[@]}
${x[0]}
${!x}
$x $(cmd) $ $$ a$$b $$$ $$$$ $x$
$${x}
$$${x}
$$$${x}
${{x}}
{{x}} }
${x=d} ${e=d} ${undefined=d} ${undefined=}
${x:=d} ${e:=d} ${undefined:=d} ${undefined:=}
${x:-d} ${e:-d} ${undefined:-d} ${undefined:-}
${x:?d} ${e:?d} ${undefined:?d} ${undefined:?}
${x:+d} ${e:+d} ${undefined:+d} ${undefined:+}
${undefined:=a b  c}
${undefined:=a-${f}-b-${e:=c}-${x}}
${undefined:=$$x}
${undefined:=$${x}}
${undefined:=\}}
${undefined:=a\/b}
${undefined:={}}
${undefined:=${e}}
${undefined:=unclosed
${undefined:=${x}
${undefined:=${undefined}}
${x:=${undefined}}
${undefined=${x^^}}
something $${v=${x}}
$${v}$x${x:3:3}
${#x} ${#e} ${#u}
${#undefined}
${#}
${##x}
${#x#}
${x^} ${x^^} ${x,} ${x,,} ${u^^} ${f^} ${e^} ${e^^}
${x^,} ${x,^}
${x^^^}
${x,,,}
${x^a}
${undefined^^}
${x:0} ${x:3} ${x:15} ${x:16} ${x:99}
${x:0:0} ${x:3:3} ${x:3:99} ${x:99:1} ${x:12:3}
${x:1:-1} ${x:1:-14} ${x:1:-15} ${x:14:-2} ${x:99:-1} ${x:0:-99}
${x: 1} ${x:+}
${x:a} ${x:1a} ${x:1:b} ${x:1:1b}
${x:+1}
${x:1:+2}
${x:${n}} ${x:${m}} ${x:${m}:2} ${x:${n}:${n}} ${x:${m}:${m}}
${x:1${n}}
${x:1:1${n}}
${x::3}
${x:1::3}
${x:1:}
${x:}
${x:1:2:3}
${x:é}
${x:99999999999999999999}
${x:1:99999999999999999999}
${x:1:9223372036854775807}
${x:-3}
${undefined:1}
${u:1} ${u:3} ${u:10}
${u:2}
${u:0:2}
${x/abc/xyz} ${x//abc/xyz} ${x/#abc/XYZ} ${x/%abc/XYZ}
${x/abc/} ${x//abc/} ${x/#abc/} ${x/%abc/}
${x/#zzz/y} ${x/%zzz/y} ${x/zzz/y} ${x//zzz/y}
${x/a//b}
${x/a///b}
${x///b}
${x//}
${x/a}
${x/a/b
${x/}
${p//\//-} ${p/\/p/x} ${p/path/\/} ${p/path/a\/b} ${p/path/\\}
${x/${e}/-} ${x//${e}/-} ${x/#${e}/-} ${x/%${e}/-}
${x/${n}/-} ${x//${n}/${f}} ${x/abc/${f}}
${x/a${n}/b}
${x/a/b${n}}
${x/$$/b}
${x/a/$$}
${x/a/$${x}
${x/a/\}}
${x/a*/b} ${x/./b}
${x/a}b/c}
${q/*/x} ${q//?/x} ${q/[d]/x}
${undefined/a/b}
${f#*.} ${f##*.} ${f%.*} ${f%%.*}
${p##*/} ${p#*/} ${p%/*} ${p%%/*}
${x#abc} ${x##abc} ${x%abc} ${x%%abc}
${x#*} ${x##*} ${x%*} ${x%%*}
${x#?} ${x##?} ${x%?} ${x%%?}
${x#???} ${x#*?} ${x##*?} ${x##?*?}
${x#[a-c]} ${x##[a-c]*} ${x#[^a]} ${x#[^b]} ${x#[abc][abc]} ${x#[]a]} ${x#[a-]} ${x#[-a]} ${x#[a} ${x#[} ${x#[]}
${x#\a} ${x#\\} ${x#a\} ${x#\*} ${q#a\*} ${q%%\*} ${q#*[*]} ${q#*[?]} ${q%[d]*}
${x%[a-c]} ${x%]c-a[} ${x%%*3*}
${x#zzz} ${x##*zzz} ${x%zzz}
${x#*1*} ${x##*1*} ${x%*1*} ${x%%*1*}
${x#**} ${x##**B**} ${x#*a*b*c*} ${x##*a*b*c*}
${f#${g}} ${f##${g}}
${x#a${n}}
${x#}
${x%}
${x##}
${x###}
${x#a#b}
${x#a
${e#*} ${e##*} ${e%*}
${undefined#a}
${undefined%%a}
${u#a} ${u##*z} ${u%z} ${u%%é*} ${u#*漢} ${s// /_} ${s/  /_}
${x:=a}}
${x}}
${undefined:=a$b}
${undefined:=a$}
a\${x}
\$$x
";

fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}, "data": data})
}

fn one(data: &Value, pairs: &[(&str, &str)]) -> Result<Value, Error> {
    let objects = substitute_objects(vec![config_map(data)], &vars(pairs), true)?;
    Ok(objects[0]["data"].clone())
}

#[test]
fn check_values() {
    let vars = vars(&[
        ("x", "abcABC123ABCabc"),
        ("f", "bash.string.txt"),
        ("p", "/path/to/file"),
        ("u", "aé漢😀z"),
    ]);
    for (template, expected) in [
        ("${x/abc/xyz}, ${x//abc/xyz}", "xyzABC123ABCabc, xyzABC123ABCxyz"),
        ("${x/#abc/XYZ}, ${x/%abc/XYZ}", "XYZABC123ABCabc, abcABC123ABCXYZ"),
        (
            "${f#*.}, ${f##*.}, ${f%.*}, ${f%%.*}",
            "string.txt, txt, bash.string, bash",
        ),
        ("${p##*/}, ${p#*/}", "file, path/to/file"),
        ("${p//\\//-}", "-path-to-file"),
        ("${undefined=${x^^}}", "ABCABC123ABCABC"),
        ("something $${v=${x}}", "something ${v=abcABC123ABCabc}"),
        ("$${v}$x${x:3:3}", "${v}$xABC"),
        ("a$$b $var", "a$b $var"),
        ("${undefined:+d}${undefined:?d}${x:+d}", "ddabcABC123ABCabc"),
        ("${#u}", "11"),
        // One character is one character, whatever its bytes.
        ("${u#a?} ${u%?} ${u##[^é]?}", "漢😀z aé漢😀 漢😀z"),
    ] {
        assert_eq!(substitute_text(template, &vars, true).unwrap(), expected, "{template}");
    }
}

#[test]
fn lenient_mode_takes_undefined_for_empty() {
    let none = BTreeMap::new();
    assert_eq!(substitute_text("<${a}${#a}${a^^}>", &none, false).unwrap(), "<0>");
}

/// Rules: run B20 missing
#[test]
fn strict_mode_names_all_undefined_variables_of_an_object() {
    let error = one(
        &json!({"a": "${one} ${two:=d} ${KNOWN}", "${three}": ["${one^^}", "${four:=${five}}"]}),
        &[("KNOWN", "secret-value")],
    )
    .unwrap_err();
    let Error::Undefined { place, names } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(place, "v1 ConfigMap n/m");
    assert_eq!(names, &["five", "one", "three"]);
    let text = error.to_string();
    assert!(text.contains("\"five\", \"one\", \"three\""), "{text}");
    assert!(!text.contains("secret-value"), "{text}");
}

#[test]
fn types_follow_the_value_unless_it_has_quotes() {
    let pairs = [
        ("N", "3"),
        ("B", "on"),
        ("V", "1.10"),
        ("E", ""),
        ("Q", "\"3\""),
        ("D", "2001-01-01"),
        ("M", "{a: 1}"),
    ];
    let data = json!({"n": "${N}", "b": "${B}", "v": "${V}", "e": "${E}", "q": "${Q}", "d": "${D}", "m": "${M}",
        "text": "v${N}", "colon": "${N}: ${N}", "lines": "${N}\n", "untouched": "on"});
    let expected = json!({"n": 3, "b": true, "v": 1.1, "e": null, "q": "3", "d": "2001-01-01", "m": {"a": 1},
        "text": "v3", "colon": "3: 3", "lines": "3\n", "untouched": "on"});
    assert_eq!(one(&data, &pairs).unwrap(), expected);
}

/// Rules: run 14.6 syntax
#[test]
fn newlines_of_values_are_removed() {
    assert_eq!(
        one(&json!({"a": "x ${V}"}), &[("V", "1\nb: 2\n")])
            .unwrap_err()
            .to_string()
            .matches("near field data.a")
            .count(),
        1
    );
    assert_eq!(
        one(&json!({"a": "x ${V}"}), &[("V", "1\n2\n")]).unwrap(),
        json!({"a": "x 12"})
    );
}

#[test]
fn objects_without_expressions_stay_as_they_are() {
    let object = json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "m"},
        "n": 9_007_199_254_740_993_u64, "f": 1.0, "z": {"y": null, "a": "yes"}});
    let same = substitute_objects(vec![object.clone()], &vars(&[("a", "b")]), true).unwrap();
    assert_eq!(
        serde_json::to_string(&same[0]).unwrap(),
        serde_json::to_string(&object).unwrap()
    );
    // With an expression elsewhere, numbers are still exact.
    assert_eq!(
        one(&json!({"n": 9_007_199_254_740_993_u64, "t": "${a}"}), &[("a", "b")]).unwrap(),
        json!({"n": 9_007_199_254_740_993_u64, "t": "b"})
    );
}

#[test]
fn without_variables_nothing_happens() {
    let object = config_map(&json!({"a": "${undefined} ${broken $$"}));
    assert_eq!(
        substitute_objects(vec![object.clone()], &BTreeMap::new(), true).unwrap(),
        [object]
    );
}

/// Rules: run B20 opt-out
#[test]
fn objects_opt_out_by_label_or_annotation() {
    for key in OPT_OUT {
        for field in ["labels", "annotations"] {
            let mut object = config_map(&json!({"a": "${V} ${undefined}"}));
            object["metadata"][field] = json!({key: "disabled"});
            let out = substitute_objects(vec![object.clone()], &vars(&[("V", "1")]), true).unwrap();
            assert_eq!(out, [object]);
        }
    }
    let mut object = config_map(&json!({"a": "${V}"}));
    object["metadata"]["labels"] = json!({OPT_OUT[0]: "enabled"});
    let out = substitute_objects(vec![object], &vars(&[("V", "w")]), true).unwrap();
    assert_eq!(out[0]["data"]["a"], "w");
}

/// Rules: run 14.6 syntax
#[test]
fn invalid_names_are_all_named() {
    let bad = vars(&[("ok", ""), ("my-key", "s3cret"), ("1st", "s3cret"), ("a.b", "")]);
    let text = substitute_objects(Vec::new(), &bad, true).unwrap_err().to_string();
    assert!(
        text.contains(r#""1st", "a.b", "my-key""#) && !text.contains("s3cret"),
        "{text}"
    );
    let mut into = BTreeMap::new();
    add_variable(&mut into, "ConfigMap n/c", "A", b"1\n2\n").unwrap();
    add_variable(&mut into, "Secret n/s", "A", b"3").unwrap();
    assert_eq!(into, vars(&[("A", "3")]));
    let text = add_variable(&mut into, "Secret n/s", "B", b"\xff")
        .unwrap_err()
        .to_string();
    assert!(text.contains("Secret n/s") && text.contains("\"B\""), "{text}");
    assert!(matches!(
        add_variable(&mut into, "", "b-c", b""),
        Err(Error::Names { .. })
    ));
}

#[test]
fn errors_name_object_and_field_but_no_value() {
    let pairs = [
        ("V", "s3cret"),
        ("COLON", "s3cret: x: y"),
        ("TAG", "!!int s3cret"),
        ("KEY", "b"),
    ];
    for (data, field) in [
        (json!({"script.sh": "if ${V\n"}), "data[\"script.sh\"]"),
        (json!({"list": ["ok", {"a b": "${V.x}"}]}), "data.list[1][\"a b\"]"),
        (json!({"a": "${}"}), "data.a"),
        (json!({"a": "${V:=x"}), "data.a"),
        (json!({"a": "1", "b": "x ${COLON}", "c": "2"}), "data.b"),
        (json!({"a": "${TAG}"}), "data.a"),
        (json!({"${KEY}": "1", "b": "2"}), "data[\"${KEY}\"]"),
    ] {
        let text = one(&data, &pairs).unwrap_err().to_string();
        assert!(text.starts_with("v1 ConfigMap n/m"), "{text}");
        assert!(text.contains(&format!("field {field}")), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    let text = substitute_text("a\nb ${x.y}", &BTreeMap::new(), true)
        .unwrap_err()
        .to_string();
    assert!(text.starts_with("line 2: ${x...}: '.'"), "{text}");
}

#[test]
fn expressions_end_with_their_field() {
    // The reference would swallow everything up to the slash and brace of the next field.
    let error = one(&json!({"a": "${V/x}", "b": "y/z}"}), &[("V", "1")]).unwrap_err();
    assert!(matches!(error, Error::Expression { .. }), "{error:?}");
}

#[test]
fn long_lines_are_not_folded_inside_expressions() {
    let text = format!("{} ${{V/ /_}} ${{V:=a b}} end", "x".repeat(100));
    let expected = format!("{} p_q r p q r end", "x".repeat(100));
    assert_eq!(
        one(&json!({"a": text}), &[("V", "p q r")]).unwrap(),
        json!({"a": expected})
    );
}

#[test]
fn values_that_yaml_would_drop_are_errors() {
    for value in ["#a", "&a", "&p@ss", "!a", " #a", "&a b", "!a b", "|", ">-"] {
        let error = one(&json!({"a": "${V}"}), &[("V", value)]).unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Expression {
                    problem: Problem::Dropped,
                    ..
                }
            ),
            "{value:?}: {error:?}"
        );
        assert!(one(&json!({"a": "x${V}"}), &[("V", value)]).is_ok());
        let quoted = format!("'{value}'");
        assert_eq!(
            one(&json!({"a": "${V}"}), &[("V", &quoted)]).unwrap(),
            json!({"a": value})
        );
    }
    assert_eq!(
        one(&json!({"a": "${V}"}), &[("V", "!!str 3")]).unwrap(),
        json!({"a": "3"})
    );
    // As the reference.
    assert_eq!(
        one(&json!({"a": "${V}"}), &[("V", "1.2 # why")]).unwrap(),
        json!({"a": 1.2})
    );
}

#[test]
fn objects_must_stay_objects() {
    for (name, found) in [
        ("3", "a number"),
        ("", "empty"),
        ("yes", "a boolean"),
        ("[a]", "a list"),
        ("{a: b}", "a mapping"),
    ] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "${NAME}"}});
        let error = substitute_objects(vec![object], &vars(&[("NAME", name)]), true).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("metadata.name is {found}")) && text.contains("${NAME}"),
            "{text}"
        );
    }
}

#[test]
fn objects_must_stay_different() {
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let error = substitute_objects(
        vec![object("a-b"), object("c"), object("a-${X}")],
        &vars(&[("X", "b")]),
        true,
    )
    .unwrap_err();
    assert_eq!(
        error,
        Error::Duplicate {
            first: "v1 ConfigMap a-b".to_owned(),
            second: "v1 ConfigMap a-${X}".to_owned()
        }
    );
}

#[test]
fn digest_is_sha256_of_lengths_keys_and_values() {
    assert_eq!(digest(&BTreeMap::new()), "");
    // printf '1:a=1:b\n2:ab=3:\303\251x\n' | sha256sum
    assert_eq!(
        digest(&vars(&[("ab", "éx"), ("a", "b")])),
        "ffd0192c9fad113c996e1470d51fdb2f64fc84a7a3c835582bfed449e0790b02"
    );
    assert_eq!(digest(&vars(&[("a", "1\n2")])), digest(&vars(&[("a", "12")])));
}

#[test]
fn hostile_texts_end_soon_with_an_error() {
    let mebibyte = "a".repeat(1 << 20);
    let slow = format!("*{}b", "a".repeat(1 << 12));
    let big = vars(&[("b", &mebibyte), ("s", "x"), ("slow", &slow)]);
    let nested = |levels: usize| format!("{}x{}", "${u:=".repeat(levels), "}".repeat(levels));
    let within = |template: String| {
        let start = Instant::now();
        let result = substitute_text(&template, &big, true);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        match result {
            Err(Error::Expression { problem, .. }) => problem,
            other => panic!("{:?}", other.map(|text| text.len())),
        }
    };
    assert_eq!(substitute_text(&nested(100), &big, true).unwrap(), "x");
    assert_eq!(within(nested(101)), Problem::TooDeep);
    assert_eq!(within(nested(1_000_000)), Problem::TooDeep);
    assert_eq!(within("${b}".repeat(17)), Problem::TooLarge);
    assert_eq!(within("${b//a/${b}}".to_owned()), Problem::TooLarge);
    assert_eq!(within("${b//${e:=}/${b}}".to_owned()), Problem::TooLarge);
    assert_eq!(within("${s:=${b^^}}".repeat(1000)), Problem::TooExpensive);
    assert_eq!(within("${b##${slow}}".to_owned()), Problem::TooExpensive);
    assert_eq!(within("${b%${b}}".repeat(1000)), Problem::TooExpensive);
    let many: Vec<Value> = (0..100)
        .map(|index| json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": index.to_string()}, "a": "${b}"}))
        .collect();
    let error = substitute_objects(many, &big, true).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Expression {
                problem: Problem::TooMuchGrowth,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn deep_objects_are_refused() {
    let mut deep = json!("${V}");
    for _ in 0..300 {
        deep = json!([deep]);
    }
    let error = one(&deep, &[("V", "1")]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Expression {
                problem: Problem::TooDeep,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn any_text_gives_text_or_error() {
    let values = prop::collection::btree_map("[a-c]", any::<String>(), 0..4);
    let text = prop_oneof![
        any::<String>(),
        "[$a-c{}#%/:=^,*?\\[\\]\\\\ -]{0,40}",
        "(\\$\\{[a-c]([#%/:=^,]{1,2}[a-c*?0-9]{0,3}/?)?\\}?){0,6}",
    ];
    runner("any_text_gives_text_or_error")
        .run(&(text, values, any::<bool>()), |(text, vars, strict)| {
            if let Err(error) = substitute_text(&text, &vars, strict) {
                prop_assert!(!error.to_string().is_empty());
            }
            let _ = substitute_objects(vec![config_map(&json!({"a": text, &text: [text]}))], &vars, strict);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

fn json_values() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        2 => any::<String>(),
        2 => "[a-c $:#'\"\\[{,&*!|>%@\\\\\n\t?.~=<0-9-]{0,12}",
        1 => "([a-z$]{1,12} {1,2}){0,20}",
        1 => "[$a-z]{100,300}",
        1 => prop::sample::select(&["yes", "y", "~", "null", "1", "1.5", "0x1", "2001-01-01", "<<", "=", "1:20", "1_0", "---", "...", "- a", ""][..])
            .prop_map(str::to_owned),
        1 => "\n{0,2} {0,2}[a$]?\n{0,2}",
    ];
    let leaf = prop_oneof![
        6 => text.clone().prop_map(Value::String),
        1 => any::<i64>().prop_map(|n| json!(n)),
        1 => any::<u64>().prop_map(|n| json!(n)),
        1 => any::<f64>().prop_map(|n| json!(n)),
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 20, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(text.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The value with every `$` doubled, which substitution takes back.
fn doubled(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace('$', "$$")),
        Value::Array(items) => items.iter().map(doubled).collect(),
        Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (k.replace('$', "$$"), doubled(v))).collect()),
        other => other.clone(),
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && equal(a.1, b.1))
        }
        (a, b) => a == b,
    }
}

#[test]
fn what_is_written_is_read_back() {
    runner("what_is_written_is_read_back")
        .run(&json_values(), |value| {
            let none = BTreeMap::new();
            let mut scope = Scope::new(&none, true, Budget::new(1 << 20));
            let object = json!({"o": value});
            let written = write::write(&doubled(&object), &mut scope).ok();
            let text = written.ok_or_else(|| TestCaseError::fail("not written"))?;
            let read = yaml::load(text.as_bytes(), "t", Mode::Kubectl)
                .map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert!(read.len() == 1 && equal(&read[0], &object), "{}\n{:?}", text, read);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}
