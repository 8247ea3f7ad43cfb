//! Documentation that must keep up with the code.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;

use stageset::api::Reason;
use stageset::api::reason::OPERATIONAL_RUNBOOKS;
use stageset::rules::spec::{Feature, Supported};

use crate::support::process;

fn book() -> PathBuf {
    process::root().join("docs/src")
}

/// Every file below a folder whose name ends so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The pages of the book and the README, each with its file.
fn all_pages() -> Vec<(PathBuf, String)> {
    let mut pages = files(&book(), ".md");
    pages.push(process::root().join("README.md"));
    pages
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(&path).expect("a page")))
        .collect()
}

/// A runbook page. A message links to `<base>/<slug>/`, which is what mdBook makes of a folder with an index.
fn runbook(slug: &str) -> String {
    let path = book().join(format!("runbooks/{slug}/index.md"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn slugs() -> BTreeSet<String> {
    let entries = fs::read_dir(book().join("runbooks")).expect("the runbooks");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "index.md")
        .collect()
}

/// Reasons of Ready, each with the slug of its page.
fn reasons_of_ready() -> impl Iterator<Item = (Reason, String)> {
    let reasons = Reason::ALL.iter().filter(|reason| reason.class().is_some());
    reasons.filter_map(|reason| Some((*reason, reason.runbook()?)))
}

/// Rules: contract 7.6
#[test]
fn every_reason_of_ready_has_a_runbook_and_every_runbook_a_reason() {
    let mut wanted: BTreeSet<String> = reasons_of_ready().map(|(_, slug)| slug).collect();
    wanted.extend(OPERATIONAL_RUNBOOKS.map(str::to_owned));
    assert_eq!(slugs(), wanted);
}

#[test]
fn every_runbook_is_complete_and_listed() {
    let summary = fs::read_to_string(book().join("SUMMARY.md")).expect("the summary");
    let index = fs::read_to_string(book().join("runbooks/index.md")).expect("the index");
    for slug in slugs() {
        let text = runbook(&slug);
        for part in ["# ", "## Symptom\n", "## Cause\n", "## Diagnosis\n", "## Remediation\n"] {
            assert!(text.contains(part), "{slug} lacks {part:?}");
        }
        assert!(
            summary.contains(&format!("(runbooks/{slug}/index.md)")),
            "SUMMARY.md does not list {slug}"
        );
        assert!(
            index.contains(&format!("({slug}/index.md)")),
            "runbooks/index.md does not list {slug}"
        );
    }
    for (reason, slug) in reasons_of_ready() {
        let text = runbook(&slug);
        assert!(text.starts_with(&format!("# {reason}\n")), "{slug} is titled otherwise");
        assert!(text.contains(&format!("`{reason}`")), "{slug} does not name its reason");
    }
}

/// What the controller may set: the reasons that the code of a run names. The rules of a spec know more, for features
/// that are still refused.
fn is_set(reason: Reason, code: &str) -> bool {
    let word = format!("Reason::{reason}");
    code.match_indices(&word)
        .any(|(at, _)| !code[at + word.len()..].starts_with(char::is_alphanumeric))
}

/// Somebody who reads a page must learn at once that this version does nothing of the kind.
#[test]
fn the_pages_of_what_is_still_to_come_say_so() {
    let source = process::root().join("src");
    let mut code = fs::read_to_string(source.join("rules/condition.rs")).expect("the conditions");
    for file in files(&source.join("run"), ".rs") {
        if !file.to_string_lossy().ends_with("_tests.rs") {
            code += &fs::read_to_string(file).expect("a source file");
        }
    }
    for (reason, slug) in reasons_of_ready() {
        let says = runbook(&slug).starts_with(&format!("# {reason}\n\nNot in this version: "));
        assert_eq!(says, !is_set(reason, &code), "{slug}");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for (file, text) in all_pages() {
        let folder = file.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                assert!(folder.join(target).exists(), "{}: no {target}", file.display());
            }
        }
    }
}

/// Long flags of a command and of its subcommands.
fn flags_of(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut flags: BTreeSet<String> = own.map(|long| format!("--{long}")).collect();
    flags.extend(command.get_subcommands().flat_map(flags_of));
    flags
}

/// Pieces of a page that belong together: a line of a code block, a span of code in a text, or the text around it;
/// and whether it is code.
fn pieces(text: &str) -> Vec<(bool, String)> {
    let mut pieces = Vec::new();
    let mut in_block = false;
    for line in text.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            pieces.push((true, line.to_owned()));
        } else {
            let spans = line.split('`').enumerate();
            pieces.extend(spans.map(|(at, span)| (at % 2 == 1, span.to_owned())));
        }
    }
    pieces
}

/// Other programs; what follows one of them is theirs.
const OTHERS: [&str; 7] = ["kubectl ", "cargo ", "hack/", "git ", "docker ", "RUN ", "COPY "];
/// Flags that pages name without their program, with the page.
const ELSEWHERE: [(&str, &str); 1] = [("development.md", "--full")];

#[test]
fn flags_and_commands_on_the_pages_exist() {
    let controller = stageset::config::Config::command();
    let tool = stageset::cli::Cli::command();
    let known: BTreeSet<String> = [&controller, &tool].into_iter().flat_map(flags_of).collect();
    let mut unknown = Vec::new();
    for (file, text) in all_pages() {
        let page = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        for (is_code, piece) in pieces(&text) {
            if OTHERS.iter().any(|program| piece.contains(program)) {
                continue;
            }
            let words = piece.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            for flag in words.filter(|w| w.len() > 3 && w.starts_with("--") && !w.starts_with("---")) {
                if flag != "--help" && !known.contains(flag) && !ELSEWHERE.contains(&(page, flag)) {
                    unknown.push(format!("{}: {flag}", file.display()));
                }
            }
            for command in [&controller, &tool].into_iter().filter(|_| is_code) {
                let called = format!("{} ", command.get_name());
                let verb = piece.strip_prefix(&called).and_then(|rest| rest.split(' ').next());
                if let Some(verb) = verb.filter(|v| !v.starts_with('-') && command.find_subcommand(v).is_none()) {
                    unknown.push(format!("{}: {called}{verb}", file.display()));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "no program of ours knows these: {unknown:#?}");
}

const REFUSED_HEAD: &str = "# Refused fields

<!-- Made by tests/it/docs.rs with UPDATE_DOCS=1; do not edit. -->

The definition of StageSet has every field of the API from the first version on, so that nothing you write is dropped in
silence. What a version does not support yet is refused by name: `Ready` is `False` with reason
[InvalidSpec](runbooks/invalidspec/index.md), and nothing of the run is applied. `kubectl explain` says so as well.

| field | for |
| --- | --- |
";

/// What this version refuses, as a page.
fn refused_fields() -> String {
    let supported = Supported::this_release();
    let mut page = REFUSED_HEAD.to_owned();
    for feature in Feature::ALL.iter().filter(|feature| !supported.has(**feature)) {
        for (path, value) in feature.fields() {
            let value = value.map(|value| format!(": {value}")).unwrap_or_default();
            let _ = writeln!(page, "| `{path}{value}` | {} |", feature.says().trim_end_matches('.'));
        }
    }
    page
}

/// Rules: decisions 1.1
#[test]
fn the_page_of_refused_fields_is_fresh() {
    let path = book().join("refused-fields.md");
    if std::env::var("UPDATE_DOCS").is_ok_and(|v| v == "1") {
        fs::write(&path, refused_fields()).expect("the page is written");
    }
    let hint = "run UPDATE_DOCS=1 cargo test --test it docs:: and commit";
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == refused_fields(),
        "docs/src/refused-fields.md is stale: {hint}"
    );
}
