use proptest::prelude::*;

use super::*;
use crate::rules::spec::jsonpath::{self, JsonPathError};
use crate::rules::spec::{decimal, names, selectors};

#[test]
fn json_paths() {
    for good in [
        "{.data.version}",
        "{$.a}",
        "{@.a}",
        "{.a['x.y/z']}",
        r"{.a.x\.y/z}",
        "{.a[-1]}",
        "{.a[1:3]}",
        "{['a','b']}",
        r#"{.a[?(@.k=="v}")]}"#,
        "{range .a[*]}{.b}{end}",
        "{\"text\"}{..name}",
        "v{.a}",
    ] {
        assert_eq!(jsonpath::check(good), Ok(()), "{good}");
    }
    for (bad, error) in [
        ("", JsonPathError::NoExpression),
        (".a", JsonPathError::NoExpression),
        ("{", JsonPathError::UnclosedBrace),
        ("{.a", JsonPathError::UnclosedBrace),
        ("{.a[0}", JsonPathError::UnclosedBracket),
        ("{.a]}", JsonPathError::StrayBracket),
        ("{.a['b]}", JsonPathError::UnclosedQuote),
        ("{ }", JsonPathError::EmptyExpression),
        ("{a.b}", JsonPathError::NoPath("a.b".into())),
    ] {
        assert_eq!(jsonpath::check(bad), Err(error), "{bad}");
    }
}

#[test]
fn textual_selectors() {
    for good in [
        "",
        "a",
        "!a",
        "a=b",
        "a==b",
        "a!=b",
        "a in (b,c)",
        "a notin (b)",
        "a.b/c=d,e in (f, g),!h",
        "a=",
    ] {
        assert!(selectors::textual(good, true).is_ok(), "{good}");
    }
    for bad in [
        "=",
        "a b",
        "a in b",
        "a in (b",
        "a=b c",
        "-a",
        "a,,b",
        "a like (b)",
        "a/b/c",
    ] {
        assert!(selectors::textual(bad, true).is_err(), "{bad}");
    }
    assert!(
        selectors::textual("a=b c", false).is_ok(),
        "annotation values are free text"
    );
}

#[test]
fn kubernetes_names() {
    assert!(names::dns_subdomain("a.b-c.d").is_ok());
    for bad in ["", ".", "a..b", "a.", "A", "a_b", "a:b", "a/b", &"a".repeat(254)] {
        assert!(names::dns_subdomain(bad).is_err(), "{bad}");
    }
    assert!(names::path_segment("system:node.x").is_ok());
    for bad in ["", ".", "..", "a/b", "a%2fb"] {
        assert!(names::path_segment(bad).is_err(), "{bad}");
    }
    for good in ["v1", "apps/v1", "a.b.c/v1beta2"] {
        assert!(names::api_version(good).is_ok(), "{good}");
    }
    assert!(names::label_key("example.com/a_B.c").is_ok() && names::label_key("example.com/").is_err());
    assert!(names::label_value("").is_ok() && names::label_value("a.").is_err());
}

#[test]
fn decimals() {
    for (text, number) in [("1", 1.0), ("-0.5", -0.5), (".5", 0.5), ("1e-2", 0.01), ("+3", 3.0)] {
        assert_eq!(decimal(text), Some(number), "{text}");
    }
    for text in ["", " 1", "1 ", "nan", "inf", "infinity", "0x10", "1_000", "1e400", "."] {
        assert_eq!(decimal(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_checks(text in "\\PC{0,24}|[{}\\[\\]()'\"\\\\.a=!, ]{0,24}") {
        let _ = jsonpath::check(&text);
        let _ = selectors::textual(&text, true);
        let _ = names::label_key(&text);
        let _ = decimal(&text);
    }

    #[test]
    fn no_text_in_a_spec_breaks_the_rules(text in "\\PC{0,24}") {
        let mut broken = set(include_str!("../testdata/everything.yaml"));
        broken.spec.interval = Some(crate::api::Duration(text.clone()));
        broken.spec.update_windows[0].schedule = Some(text.clone());
        broken.spec.update_windows[0].time_zone = Some(text.clone());
        broken.spec.stages[0].name = text.clone();
        broken.spec.stages[0].source_ref.kind = Some(text.clone());
        broken.spec.stages[0].source_ref.name = text;
        for violation in validate(&broken) {
            prop_assert!(!violation.path.is_empty() && !violation.message.is_empty());
        }
    }
}
