//! What single objects ask for by label or annotation (run 16.5, 28 B24).

use serde_json::Value;

/// How an object is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As any other.
    Apply,
    /// Other managers keep what they own: nothing is taken over from kubectl.
    Merge,
    /// Created when absent, never touched afterwards.
    IfNotPresent,
    /// Neither applied nor pruned.
    Ignore,
}

const PREFIXES: [&str; 2] = ["stages.metio.wtf", "kustomize.toolkit.fluxcd.io"];

/// What the rendered object, or the live one, asks for. Our own keys win over Flux's.
pub fn mode(rendered: &Value, live: Option<&Value>) -> Mode {
    let disabled = |object: &Value| {
        PREFIXES
            .iter()
            .any(|p| has(object, &format!("{p}/reconcile"), "disabled"))
    };
    if disabled(rendered) || live.is_some_and(disabled) {
        return Mode::Ignore;
    }
    for prefix in PREFIXES {
        let key = format!("{prefix}/ssa");
        for (value, mode) in [
            ("ignore", Mode::Ignore),
            ("ifnotpresent", Mode::IfNotPresent),
            ("merge", Mode::Merge),
        ] {
            if has(rendered, &key, value) {
                return mode;
            }
        }
    }
    Mode::Apply
}

/// Whether a label or annotation has a value, compared in any case.
fn has(object: &Value, key: &str, value: &str) -> bool {
    ["labels", "annotations"].iter().any(|map| {
        let found = object
            .get("metadata")
            .and_then(|m| m.get(*map))
            .and_then(|m| m.get(key))
            .and_then(Value::as_str);
        found.is_some_and(|f| f.eq_ignore_ascii_case(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(kind: &str, key: &str, value: &str) -> Value {
        json!({"metadata": {kind: {key: value}}})
    }

    /// Rules: run B24
    #[test]
    fn both_spellings_and_any_case_count() {
        let plain = json!({"metadata": {}});
        for prefix in PREFIXES {
            let ssa = format!("{prefix}/ssa");
            assert_eq!(
                mode(&with("annotations", &ssa, "ifNotPresent"), None),
                Mode::IfNotPresent
            );
            assert_eq!(mode(&with("labels", &ssa, "Ignore"), None), Mode::Ignore);
            assert_eq!(mode(&with("annotations", &ssa, "MERGE"), None), Mode::Merge);
            let off = with("annotations", &format!("{prefix}/reconcile"), "Disabled");
            assert_eq!(mode(&off, None), Mode::Ignore);
            assert_eq!(mode(&plain, Some(&off)), Mode::Ignore);
        }
        assert_eq!(
            mode(&with("annotations", "stages.metio.wtf/ssa", "Override"), None),
            Mode::Apply
        );
    }

    #[test]
    fn only_the_author_chooses_how_it_is_applied() {
        let live = with("annotations", "stages.metio.wtf/ssa", "Ignore");
        assert_eq!(mode(&json!({"metadata": {}}), Some(&live)), Mode::Apply);
    }
}
