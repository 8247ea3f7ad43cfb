//! `dependsOn`: cycles, and whether a dependency is satisfied (run 7).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::inventory::OwnerRef;
use super::spec::{Feature, Supported};
use super::version;

/// What is known of a dependency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub ready: bool,
    /// The status speaks of the current generation.
    pub current: bool,
    /// Reason and message of its Ready condition, for people.
    pub why: String,
    /// A window holds a new revision of it.
    pub holds_update: bool,
    /// `status.version`.
    pub version: Option<String>,
}

/// The way from `start` back to itself along `dependsOn`, if there is one. `edges` gives the dependencies of a
/// StageSet; one that is not known has none.
pub fn cycle(start: &OwnerRef, edges: impl Fn(&OwnerRef) -> Vec<OwnerRef>) -> Option<Vec<OwnerRef>> {
    let mut came_from: BTreeMap<OwnerRef, OwnerRef> = BTreeMap::new();
    let mut seen: BTreeSet<OwnerRef> = BTreeSet::from([start.clone()]);
    let mut queue = VecDeque::from([start.clone()]);
    while let Some(at) = queue.pop_front() {
        for next in edges(&at) {
            if next == *start {
                let mut path = vec![next];
                let mut step = Some(&at);
                while let Some(one) = step {
                    path.push(one.clone());
                    step = came_from.get(one);
                }
                path.reverse();
                return Some(path);
            }
            if seen.insert(next.clone()) {
                came_from.insert(next.clone(), at.clone());
                queue.push_back(next);
            }
        }
    }
    None
}

/// Whether a dependency of the same namespace lets its dependent go on.
///
/// # Errors
/// What it still lacks, for people.
pub fn satisfied(
    name: &OwnerRef,
    found: Option<&Found>,
    min_version: Option<&str>,
    supported: &Supported,
) -> Result<(), String> {
    let display = display(name);
    let Some(found) = found else {
        return Err(format!(
            "{display} does not exist: create it, or remove it from spec.dependsOn"
        ));
    };
    if !found.current {
        return Err(format!("{display} has not acted upon its current generation yet"));
    }
    if !found.ready {
        return Err(format!("{display} is not ready: {}", found.why));
    }
    if found.holds_update {
        return Err(format!("{display} holds a new revision until its update window opens"));
    }
    let Some(wanted) = min_version else {
        return Ok(());
    };
    let deployed = found.version.as_deref().unwrap_or_default();
    if version::parse_version(wanted).is_ok_and(|minimum| version::is_at_least(Some(deployed), &minimum)) {
        return Ok(());
    }
    let shown = if deployed.is_empty() { "(none)" } else { deployed };
    // Where nothing ever records a version, waiting for one is no use.
    let hint = if deployed.is_empty() && !supported.has(Feature::Versions) {
        "; this version of the controller does not record versions: leave minVersion out"
    } else {
        ""
    };
    Err(format!(
        "{display} is at version {shown}, at least {wanted} is needed{hint}"
    ))
}

/// Says that a dependency has not applied yet what a source offers that its dependent reads, too.
pub fn behind(name: &OwnerRef, stage: &str, source: &str, revision: &str) -> String {
    format!(
        "{} has not rolled out {source} at {revision} yet: its stage \"{stage}\" reads the same source and comes first",
        display(name)
    )
}

fn display(name: &OwnerRef) -> String {
    format!("StageSet {}/{}", name.namespace, name.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> OwnerRef {
        OwnerRef {
            name: name.into(),
            namespace: "n".into(),
        }
    }

    fn graph(edges: &'static [(&str, &str)]) -> impl Fn(&OwnerRef) -> Vec<OwnerRef> {
        move |from| {
            edges
                .iter()
                .filter(|(a, _)| *a == from.name)
                .map(|(_, b)| one(b))
                .collect()
        }
    }

    fn names(path: Option<Vec<OwnerRef>>) -> String {
        path.unwrap_or_default()
            .iter()
            .map(|o| o.name.as_str())
            .collect::<Vec<_>>()
            .join(">")
    }

    /// Rules: run 7.2
    #[test]
    fn cycles_are_found_and_named() {
        assert_eq!(names(cycle(&one("a"), graph(&[("a", "a")]))), "a>a");
        assert_eq!(
            names(cycle(&one("a"), graph(&[("a", "b"), ("b", "c"), ("c", "a")]))),
            "a>b>c>a"
        );
        assert_eq!(
            names(cycle(&one("a"), graph(&[("a", "b"), ("b", "c"), ("c", "b")]))),
            ""
        );
        assert_eq!(
            names(cycle(
                &one("a"),
                graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
            )),
            ""
        );
    }

    fn good() -> Found {
        Found {
            ready: true,
            current: true,
            why: "Succeeded".into(),
            holds_update: false,
            version: Some("v2.1".into()),
        }
    }

    /// Rules: run 7.3 version, run 7.3 pending
    #[test]
    fn every_lack_is_named() {
        let dep = one("db");
        let all = Supported::everything();
        let say = |found: Option<Found>, min: Option<&str>| satisfied(&dep, found.as_ref(), min, &all).unwrap_err();
        assert!(satisfied(&dep, Some(&good()), Some("2.1.0"), &all).is_ok());
        assert!(say(None, None).contains("StageSet n/db does not exist"));
        assert!(
            say(
                Some(Found {
                    current: false,
                    ..good()
                }),
                None
            )
            .contains("generation")
        );
        assert!(
            say(
                Some(Found {
                    ready: false,
                    why: "StageFailed".into(),
                    ..good()
                }),
                None
            )
            .contains("StageFailed")
        );
        assert!(
            say(
                Some(Found {
                    holds_update: true,
                    ..good()
                }),
                None
            )
            .contains("update window")
        );
        assert!(say(Some(good()), Some("3")).contains("is at version v2.1, at least 3"));
        assert!(
            say(
                Some(Found {
                    version: None,
                    ..good()
                }),
                Some("3")
            )
            .contains("(none)")
        );
    }

    /// Rules: run 7.3 version
    #[test]
    fn a_version_that_nothing_records_is_not_waited_for_in_silence() {
        let none = Found {
            version: None,
            ..good()
        };
        let say = |found: &Found, supported: &Supported| {
            satisfied(&one("db"), Some(found), Some("3"), supported).unwrap_err()
        };
        let without = Supported::without(&[Feature::Versions]);
        let hint = "does not record versions";
        assert!(say(&none, &without).contains(hint));
        assert!(!say(&none, &Supported::everything()).contains(hint));
        assert!(!say(&good(), &without).contains(hint), "one that is recorded can grow");
    }
}
