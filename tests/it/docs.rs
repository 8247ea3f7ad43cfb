//! Documentation that must keep up with the code.

use std::{collections::BTreeSet, fs, path::PathBuf};

use stageset::api::Reason;

use crate::support::process;

fn book() -> PathBuf {
    process::root().join("docs/src")
}

fn pages() -> BTreeSet<String> {
    let files = fs::read_dir(book().join("runbooks")).expect("the runbooks");
    files
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".md").map(str::to_owned))
        .filter(|slug| slug != "index")
        .collect()
}

/// Pages about alerts instead of reasons.
const OPERATIONAL: [&str; 6] = [
    "controller-pod-down",
    "reconcile-latency",
    "teardown-forced",
    "watch-engagement",
    "webhook-cert-renewal",
    "workqueue-saturation",
];

#[test]
fn every_reason_of_ready_has_a_runbook_and_every_runbook_a_reason() {
    let mut wanted: BTreeSet<String> = Reason::ALL.iter().filter_map(|reason| reason.runbook()).collect();
    wanted.extend(OPERATIONAL.map(str::to_owned));
    assert_eq!(pages(), wanted);
}

#[test]
fn every_runbook_is_complete_and_listed() {
    let summary = fs::read_to_string(book().join("SUMMARY.md")).expect("the summary");
    let index = fs::read_to_string(book().join("runbooks/index.md")).expect("the index");
    for slug in pages() {
        let text = fs::read_to_string(book().join(format!("runbooks/{slug}.md"))).expect("a page");
        for part in ["# ", "## Symptom\n", "## Cause\n", "## Diagnosis\n", "## Remediation\n"] {
            assert!(text.contains(part), "{slug}.md lacks {part:?}");
        }
        assert!(
            summary.contains(&format!("(runbooks/{slug}.md)")),
            "SUMMARY.md does not list {slug}"
        );
        assert!(
            index.contains(&format!("({slug}.md)")),
            "runbooks/index.md does not list {slug}"
        );
    }
    for reason in Reason::ALL {
        let Some(slug) = reason.runbook().filter(|slug| !OPERATIONAL.contains(&slug.as_str())) else {
            continue;
        };
        let text = fs::read_to_string(book().join(format!("runbooks/{slug}.md"))).expect("a page");
        assert!(
            text.starts_with(&format!("# {}\n", reason.as_str())),
            "{slug}.md is titled otherwise"
        );
        assert!(
            text.contains(&format!("`{}`", reason.as_str())),
            "{slug}.md does not name its reason"
        );
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut folders = vec![book(), process::root().to_owned()];
    folders.push(book().join("runbooks"));
    for folder in folders {
        for file in fs::read_dir(&folder)
            .expect("a folder")
            .flatten()
            .filter(|f| f.path().extension().is_some_and(|e| e == "md"))
        {
            let text = fs::read_to_string(file.path()).expect("a page");
            for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = target.split('#').next().unwrap_or_default();
                if !target.is_empty() && !target.contains("://") {
                    assert!(folder.join(target).exists(), "{}: no {target}", file.path().display());
                }
            }
        }
    }
}
