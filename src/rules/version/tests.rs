use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn version(text: &str) -> Version {
    parse_version(text).unwrap()
}

#[rstest]
#[case("2.1.0", "2.1.0")]
#[case("v2.1.0", "2.1.0")]
#[case("2.1", "2.1.0")]
#[case("2", "2.0.0")]
#[case(" v5.2\n", "5.2.0")]
#[case("01.2.03", "1.2.3")]
#[case("1.2.3-rc.1+build.5", "1.2.3-rc.1+build.5")]
#[case("1.2-rc.1", "1.2.0-rc.1")]
#[case("1+b", "1.0.0+b")]
#[case("18446744073709551615.0.0", "18446744073709551615.0.0")]
fn versions_are_read_leniently(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(canonical(text).as_deref(), Ok(expected));
    assert_eq!(check_version(text), Ok(()));
}

#[rstest]
#[case("")]
#[case("  ")]
#[case("v")]
#[case("latest")]
#[case("V1.0.0")]
#[case("vv1.0.0")]
#[case("1.2.3.4")]
#[case("1..2")]
#[case("1.")]
#[case("-1")]
#[case("1.x")]
#[case("1.2.3-")]
#[case("1.2.3-a..b")]
#[case("1.0.0-01")]
#[case("1.2.3+")]
#[case("1.2.3 4")]
#[case("4f2c1a9")]
#[case("18446744073709551616.0.0")]
fn what_is_no_version_is_named(#[case] text: &str) {
    let message = check_version(text).unwrap_err();
    assert!(message.contains(&format!("{text:?}")), "{message}");
}

#[test]
fn a_giant_version_is_refused_without_echoing_it() {
    let message = check_version(&"1".repeat(10_000)).unwrap_err();
    assert!(message.len() < 400, "{}", message.len());
}

#[test]
fn precedence_follows_semver() {
    let ascending = [
        "0.9.9",
        "1.0.0-1",
        "1.0.0-2",
        "1.0.0-11",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.10.0",
        "2.0.0",
    ];
    for pair in ascending.windows(2) {
        assert_eq!(
            compare(&version(pair[0]), &version(pair[1])),
            Ordering::Less,
            "{pair:?}"
        );
    }
    assert_eq!(compare(&version("1.0.0+a"), &version("1.0.0+b")), Ordering::Equal);
}

#[rstest]
#[case("1.2.3", "1.2.3", "1.2.2 1.2.4 1.3.0 2.0.0")]
#[case("=1.2.3", "1.2.3", "1.3.0")]
#[case("v1.2.3", "1.2.3", "1.3.0")]
#[case("1.2.3+build", "1.2.3 1.2.3+other", "1.3.0")]
#[case("^v1.2", "1.2.0 1.9.0", "1.1.9 2.0.0")]
#[case("1.2", "1.2.0 1.2.9", "1.1.9 1.3.0")]
#[case("=1.2", "1.2.0 1.2.9", "1.3.0")]
#[case("1", "1.0.0 1.9.9", "0.9.9 2.0.0")]
#[case("1.x", "1.0.0 1.9.9", "0.9.9 2.0.0")]
#[case("1.*", "1.0.0 1.9.9", "2.0.0")]
#[case("1.X", "1.0.0 1.9.9", "2.0.0")]
#[case("1.2.x", "1.2.0 1.2.9", "1.3.0")]
#[case("*", "0.0.0 9.9.9", "1.0.0-rc.1")]
#[case("x", "0.0.0 9.9.9", "1.0.0-rc.1")]
#[case("^1.2.3", "1.2.3 1.9.0", "1.2.2 2.0.0")]
#[case("^1", "1.0.0 1.9.0", "0.9.0 2.0.0")]
#[case("^0.2.3", "0.2.3 0.2.9", "0.2.2 0.3.0 1.0.0")]
#[case("^0.2", "0.2.0 0.2.9", "0.3.0")]
#[case("^0.0.3", "0.0.3", "0.0.2 0.0.4 0.1.0")]
#[case("^0.0", "0.0.0 0.0.9", "0.1.0")]
#[case("^0", "0.0.0 0.9.9", "1.0.0")]
#[case("~1.2.3", "1.2.3 1.2.9", "1.2.2 1.3.0")]
#[case("~>1.2.3", "1.2.3 1.2.9", "1.3.0")]
#[case("~1.2", "1.2.0 1.2.9", "1.1.0 1.3.0")]
#[case("~1", "1.0.0 1.9.9", "2.0.0")]
#[case("~0.0.0", "0.0.0 7.1.2", "1.0.0-rc.1")]
#[case(">=1.0.0, <2.0.0", "1.0.0 1.9.9", "0.9.9 2.0.0")]
#[case(">=1.0.0 <2.0.0", "1.0.0 1.9.9", "0.9.9 2.0.0")]
#[case(">= 1.0.0 ,  < 2.0.0", "1.0.0 1.9.9", "0.9.9 2.0.0")]
#[case("1.0.0 || 3.x", "1.0.0 3.1.0", "2.0.0 1.0.1")]
#[case("<1||>=2.5,<3", "0.1.0 2.5.0", "1.0.0 2.4.0 3.0.0")]
#[case("1.0.0 - 2.0.0", "1.0.0 1.5.0 2.0.0", "0.9.9 2.0.1")]
#[case("1 - 2", "1.0.0 2.9.9", "0.9.9 3.0.0")]
#[case("1.2 - 2.3.4", "1.2.0 2.3.4", "1.1.9 2.3.5")]
#[case("v1.2 - v2, !=1.5", "1.2.0 2.9.0", "1.5.0 1.5.3")]
#[case("!=1.2.3", "1.2.2 1.2.4", "1.2.3")]
#[case("!=1.2.x", "1.1.0 1.3.0", "1.2.0 1.2.9")]
#[case("!=1.x", "0.9.0 2.0.0", "1.0.0 1.9.9")]
#[case(">1.2.3", "1.2.4 2.0.0", "1.2.3")]
#[case(">1.2", "1.3.0 2.0.0", "1.2.0 1.2.5")]
#[case(">1", "2.0.0", "1.0.0 1.9.9")]
#[case(">=1.2", "1.2.0", "1.1.9")]
#[case("=>1.2", "1.2.0", "1.1.9")]
#[case("<1.2", "1.1.9", "1.2.0")]
#[case("<=1.2.3", "1.2.3", "1.2.4")]
#[case("<=1.2", "1.2.9 1.1.0 0.1.0", "1.3.0 2.0.0")]
#[case("=<1", "1.9.9", "2.0.0")]
#[case(">=1.0.0-0", "1.0.0 1.1.0-alpha 1.0.0-rc.1", "0.9.0 0.9.0-rc.1")]
#[case(">=1.0.0-0, <2.0.0", "1.0.0 2.0.0-rc.1", "2.0.0")]
#[case(">=1.0.0, <2.0.0", "1.0.0", "1.5.0-rc.1 2.0.0-rc.1")]
#[case("1.0.0-rc.1", "1.0.0-rc.1", "1.0.0 1.0.0-rc.2")]
#[case("~1.2.3-beta.2", "1.2.3-beta.2 1.2.3-rc.1 1.2.9", "1.2.3-beta.1 1.3.0")]
#[case("^1.2.3-0 || 3", "1.2.3-rc.1 1.5.0-rc.1 3.1.0", "3.1.0-rc.1")]
fn constraints(#[case] text: &str, #[case] inside: &str, #[case] outside: &str) {
    let constraint = Constraint::parse(text).unwrap();
    for one in inside.split(' ') {
        assert!(constraint.matches(&version(one)), "{text} must admit {one}");
    }
    for one in outside.split(' ') {
        assert!(!constraint.matches(&version(one)), "{text} must not admit {one}");
    }
}

#[rstest]
#[case("")]
#[case("   ")]
#[case("foo")]
#[case("==1.0.0")]
#[case(">>1")]
#[case("1.2.3.4")]
#[case("V1.2.3")]
#[case(">=")]
#[case("1.0.0 ||")]
#[case("|| 1.0.0")]
#[case("1.0.0,,2.0.0")]
#[case("1.0.0,")]
#[case(">=1.0.0<2.0.0")]
#[case("1.0.0 - ")]
#[case(">1 - 2")]
#[case("1x")]
#[case("1.0.0-01")]
#[case("1.0.0-")]
#[case("1 | 2")]
#[case("1.0.0;2")]
fn what_is_no_constraint_is_refused(#[case] text: &str) {
    let message = check_constraint(text).unwrap_err();
    assert!(message.starts_with("version constraint"), "{message}");
}

#[test]
fn sizes_are_bounded() {
    assert_eq!(Constraint::parse(&"1".repeat(513)), Err(ConstraintError::TooLong));
    let many = vec!["1"; 33].join("||");
    assert_eq!(Constraint::parse(&many), Err(ConstraintError::TooManyAlternatives));
    assert!(Constraint::parse(&vec!["1"; 32].join("||")).is_ok());
}

#[rstest]
#[case("1.0.0", true)]
#[case("v1.0.0", true)]
#[case(" 1.0.0-rc.1 ", true)]
#[case("1.0.0+b", true)]
#[case("1.0", false)]
#[case("1.0.x", false)]
#[case("=1.0.0", false)]
#[case(">=1.0.0", false)]
#[case("1.0.0 || 2.0.0", false)]
fn a_plain_version_is_told_from_a_range(#[case] text: &str, #[case] plain: bool) {
    assert_eq!(is_plain_version(text), plain);
}

#[test]
fn a_minimum_needs_a_deployed_version() {
    let minimum = version("1.2");
    assert!(is_at_least(Some("v1.2.0"), &minimum));
    assert!(is_at_least(Some("2"), &minimum));
    assert!(!is_at_least(Some("1.2.0-rc.1"), &minimum));
    assert!(!is_at_least(Some("latest"), &minimum));
    assert!(!is_at_least(None, &minimum));
}

fn some_version() -> impl Strategy<Value = Version> {
    let pre = prop::sample::select(vec!["", "", "", "-0", "-alpha", "-rc.1", "-rc.2"]);
    (0_u64..4, 0_u64..4, 0_u64..4, pre)
        .prop_map(|(major, minor, patch, pre)| version(&format!("{major}.{minor}.{patch}{pre}")))
}

fn some_release() -> impl Strategy<Value = Version> {
    (0_u64..4, 0_u64..4, 0_u64..4).prop_map(|(major, minor, patch)| Version::new(major, minor, patch))
}

fn some_term() -> impl Strategy<Value = String> {
    let sign = prop::sample::select(vec!["", "=", "!=", ">", "<", ">=", "<=", "~", "^"]);
    let number = prop::sample::select(vec![
        "0",
        "1",
        "1.2",
        "0.3",
        "2.0",
        "1.2.3",
        "0.0.2",
        "3.1.0",
        "1.0.0-rc.1",
        "2.x",
    ]);
    (sign, number).prop_map(|(sign, number)| format!("{sign}{number}"))
}

fn admits(text: &str, version: &Version) -> bool {
    Constraint::parse(text).unwrap().matches(version)
}

proptest! {
    #[test]
    fn alternatives_are_a_union(left in some_term(), right in some_term(), version in some_version()) {
        let either = admits(&left, &version) || admits(&right, &version);
        prop_assert_eq!(admits(&format!("{left} || {right}"), &version), either);
    }

    #[test]
    fn terms_are_an_intersection_for_releases(left in some_term(), right in some_term(), version in some_release()) {
        let both = admits(&left, &version) && admits(&right, &version);
        for separator in [",", " ", " , "] {
            prop_assert_eq!(admits(&format!("{left}{separator}{right}"), &version), both);
        }
    }

    #[test]
    fn not_equal_is_the_opposite_of_equal_for_releases(number in prop::sample::select(vec!["1", "1.2", "1.2.3", "0.0", "2.x"]), version in some_release()) {
        prop_assert_ne!(admits(&format!("={number}"), &version), admits(&format!("!={number}"), &version));
        prop_assert_ne!(admits(&format!(">={number}"), &version), admits(&format!("<{number}"), &version));
        prop_assert_ne!(admits(&format!(">{number}"), &version), admits(&format!("<={number}"), &version));
    }

    #[test]
    fn carets_and_tildes_are_ranges(major in 0_u64..3, minor in 0_u64..3, patch in 0_u64..3, probe in some_release()) {
        // ~0.0.0 is the one exception.
        let patch = if major + minor == 0 { patch + 1 } else { patch };
        let base = format!("{major}.{minor}.{patch}");
        let tilde = format!(">={base}, <{major}.{}.0", minor + 1);
        prop_assert_eq!(admits(&format!("~{base}"), &probe), admits(&tilde, &probe));
        let end = match (major, minor) {
            (0, 0) => format!("0.0.{}", patch + 1),
            (0, _) => format!("0.{}.0", minor + 1),
            _ => format!("{}.0.0", major + 1),
        };
        prop_assert_eq!(admits(&format!("^{base}"), &probe), admits(&format!(">={base}, <{end}"), &probe));
    }

    #[test]
    fn canonical_forms_stay(version in some_version()) {
        let text = version.to_string();
        prop_assert_eq!(canonical(&text), Ok(text.clone()));
        prop_assert_eq!(canonical(&format!(" v{text} ")), Ok(text));
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,60}", likely in "[0-9.xX*v<>=~^!|, -]{0,30}") {
        for text in [text, likely] {
            let _ = (check_version(&text), check_constraint(&text), is_plain_version(&text));
        }
    }
}
