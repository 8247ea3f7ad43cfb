//! Which test shows which rule: the page is made from the tests' own words, and a rule cannot lose its test unseen.
//!
//! A test names the rules it shows in a doc line, `/// Rules: run 16.4 dropped, run B23`. `docs/rules.tsv` lists the
//! rules and how far each is shown. `UPDATE_RULES=1` writes the page and raises what is shown; lowering it is done by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::support::process;

/// How far a rule is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    /// Not at all.
    Open,
    /// By tests beside the code.
    Unit,
    /// By a test on a real control plane.
    Plane,
}

impl Shown {
    const WORDS: [(Self, &str); 3] = [(Self::Open, "open"), (Self::Unit, "unit"), (Self::Plane, "plane")];

    fn word(self) -> &'static str {
        Self::WORDS
            .iter()
            .find_map(|(shown, word)| (*shown == self).then_some(*word))
            .unwrap_or_default()
    }

    fn read(word: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find_map(|(shown, known)| (*known == word).then_some(*shown))
    }
}

struct Rule {
    id: String,
    /// `core`, or the feature that brings it.
    scope: String,
    shown: Shown,
    says: String,
}

impl Rule {
    fn is_core(&self) -> bool {
        self.scope == "core"
    }
}

/// A test that says which rules it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tagged {
    test: String,
    plane: bool,
    rules: Vec<String>,
}

fn list_path() -> PathBuf {
    process::root().join("docs/rules.tsv")
}

fn read_list() -> Vec<Rule> {
    let text = fs::read_to_string(list_path()).expect("the list of rules");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [id, scope, shown, says] = fields[..] else {
                panic!("not four fields: {line:?}")
            };
            Rule {
                id: id.to_owned(),
                scope: scope.to_owned(),
                shown: Shown::read(shown).unwrap_or_else(|| panic!("{id}: {shown:?} is not open, unit or plane")),
                says: says.to_owned(),
            }
        })
        .collect()
}

/// Every Rust file below a folder, in order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of sources")
        .flatten()
        .map(|e| e.path())
        .collect();
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// `src/rules/window/tests.rs` is `rules::window::tests`.
fn module_of(path: &Path) -> String {
    let text = path.with_extension("").display().to_string();
    text.trim_end_matches("/mod").replace('/', "::")
}

/// The tests of a file that name rules. A `Rules:` line that belongs to no test is a fault.
fn tags(module: &str, text: &str, of_system: bool) -> Result<Vec<Tagged>, String> {
    let (mut found, mut inner, mut rules, mut attribute) = (Vec::new(), String::new(), Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let code = line.trim();
        let function = code.strip_prefix("async ").unwrap_or(code).strip_prefix("fn ");
        let name = function.map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
        if let Some(ids) = code.strip_prefix("/// Rules: ") {
            rules.extend(ids.split(", ").map(str::to_owned));
        } else if ["#[test]", "#[rstest]", "#[tokio::test"]
            .iter()
            .any(|start| code.starts_with(start))
        {
            attribute = Some(code.starts_with("#[tokio"));
        } else if code.starts_with("///") || code.starts_with("#[") || attribute.is_some() && name.is_none() {
            // An attribute may take several lines.
            continue;
        } else if let (Some(concurrent), Some(name)) = (attribute, name) {
            let rules = std::mem::take(&mut rules);
            attribute = None;
            if !rules.is_empty() {
                found.push(Tagged {
                    test: format!("{module}{inner}::{name}"),
                    plane: of_system && concurrent,
                    rules,
                });
            }
        } else if !rules.is_empty() {
            return Err(format!("{module}: the rules above line {} belong to no test", at + 1));
        } else if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            inner = format!("::{name}");
        }
    }
    Ok(found)
}

fn all_tags() -> Vec<Tagged> {
    let mut all = Vec::new();
    for (folder, of_system) in [("tests/it", true), ("src", false)] {
        let folder = process::root().join(folder);
        for file in sources(&folder) {
            let module = module_of(file.strip_prefix(&folder).expect("a file below its folder"));
            if module == "rules" && of_system {
                continue;
            }
            let text = fs::read_to_string(&file).expect("a source");
            all.extend(tags(&module, &text, of_system).unwrap_or_else(|fault| panic!("{fault}")));
        }
    }
    all
}

/// Tests by rule.
type Index = BTreeMap<String, Vec<Tagged>>;

fn index(tags: &[Tagged]) -> Index {
    let mut index = Index::new();
    for tagged in tags {
        for rule in &tagged.rules {
            index.entry(rule.clone()).or_default().push(tagged.clone());
        }
    }
    index
}

fn shown(index: &Index, rule: &Rule) -> Shown {
    let tests = index.get(&rule.id).map_or(&[][..], Vec::as_slice);
    tests
        .iter()
        .map(|t| if t.plane { Shown::Plane } else { Shown::Unit })
        .max()
        .unwrap_or(Shown::Open)
}

fn page(rules: &[Rule], index: &Index) -> String {
    let core: Vec<&Rule> = rules.iter().filter(|r| r.is_core()).collect();
    let of = |wanted: Shown| -> Vec<&&Rule> { core.iter().filter(|r| shown(index, r) == wanted).collect() };
    let (open, unit, plane) = (of(Shown::Open), of(Shown::Unit), of(Shown::Plane));
    let mut page = String::from(HEAD);
    let _ = write!(
        page,
        "\n{} rules belong to this version: {} are shown on a real control plane, {} by unit tests alone, {} by no test \
         yet. {} more belong to features that are still to come.\n",
        core.len(),
        plane.len(),
        unit.len(),
        open.len(),
        rules.len() - core.len()
    );
    for (title, gaps) in [("No test yet", open), ("Unit tests only", unit)] {
        if gaps.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n");
        for rule in gaps {
            let _ = writeln!(page, "- `{}` {}", rule.id, rule.says);
        }
    }
    for (title, later) in [("Rules", false), ("Features to come", true)] {
        let rules = rules.iter().filter(|r| r.is_core() != later);
        let feature = if later { " feature |" } else { "" };
        let _ = write!(
            page,
            "\n## {title}\n\n| rule | says |{feature} tests |\n| --- | --- |{} --- |\n",
            if later { " --- |" } else { "" }
        );
        for rule in rules {
            let feature = if later {
                format!(" {} |", rule.scope)
            } else {
                String::new()
            };
            let _ = writeln!(
                page,
                "| {} | {} |{feature} {} |",
                rule.id,
                rule.says,
                tests_of(index, rule)
            );
        }
    }
    page
}

const HEAD: &str = "# Rules and their tests

<!-- Made by tests/it/rules.rs with UPDATE_RULES=1; do not edit. -->

What the controller promises, rule by rule, and the tests that show it. `run`, `gates`, `decisions` and `contract` are
the project's fact sheets, `B` their items about what others get wrong. A test without a mark runs against a real
control plane; *unit* marks one that needs none.
";

fn tests_of(index: &Index, rule: &Rule) -> String {
    let tests = index.get(&rule.id).map_or(&[][..], Vec::as_slice);
    let cells: Vec<String> = tests
        .iter()
        .map(|t| format!("{}`{}`", if t.plane { "" } else { "*unit* " }, t.test))
        .collect();
    if cells.is_empty() {
        "none".to_owned()
    } else {
        cells.join("<br>")
    }
}

/// The list with what is shown raised to what the tests show.
fn raised(rules: &[Rule], index: &Index) -> String {
    let text = fs::read_to_string(list_path()).expect("the list of rules");
    let mut list: String = text
        .lines()
        .filter(|l| l.starts_with('#'))
        .map(|l| format!("{l}\n"))
        .collect();
    for rule in rules {
        let word = rule.shown.max(shown(index, rule)).word();
        let _ = writeln!(list, "{}\t{}\t{word}\t{}", rule.id, rule.scope, rule.says);
    }
    list
}

#[test]
fn the_index_of_rules_is_fresh_and_no_rule_lost_its_test() {
    let (rules, tags) = (read_list(), all_tags());
    let index = index(&tags);
    let known: BTreeSet<&str> = rules.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(known.len(), rules.len(), "a rule is listed twice");
    let unknown: Vec<(&String, &Vec<Tagged>)> = index.iter().filter(|(id, _)| !known.contains(id.as_str())).collect();
    assert!(unknown.is_empty(), "rules that are not in docs/rules.tsv: {unknown:#?}");
    let lost: Vec<String> = rules
        .iter()
        .filter(|r| shown(&index, r) < r.shown)
        .map(|r| format!("{}: {:?} before, {:?} now", r.id, r.shown, shown(&index, r)))
        .collect();
    assert!(
        lost.is_empty(),
        "shown less than docs/rules.tsv says; if that is meant, say so there: {lost:#?}"
    );
    let (list, page) = (raised(&rules, &index), page(&rules, &index));
    let page_path = process::root().join("docs/src/rules.md");
    if std::env::var("UPDATE_RULES").is_ok_and(|v| v == "1") {
        fs::write(list_path(), list).expect("the list is written");
        fs::write(page_path, page).expect("the page is written");
        return;
    }
    let hint = "run UPDATE_RULES=1 cargo test --test it rules:: and commit";
    assert!(
        fs::read_to_string(list_path()).expect("the list") == list,
        "docs/rules.tsv is stale: {hint}"
    );
    assert!(
        fs::read_to_string(page_path).unwrap_or_default() == page,
        "docs/src/rules.md is stale: {hint}"
    );
}

#[test]
fn rules_are_read_from_the_doc_lines_of_tests() {
    let text = "mod tests {\n    /// What it does.\n    ///\n    /// Rules: run 1.2, run B3\n    #[test]\n    fn one() {\n    }\n    \
                #[tokio::test(flavor = \"multi_thread\")]\n    async fn untagged() {\n    }\n}\n";
    let found = tags("a::b", text, true).expect("tags");
    let one = Tagged {
        test: "a::b::tests::one".to_owned(),
        plane: false,
        rules: vec!["run 1.2".to_owned(), "run B3".to_owned()],
    };
    assert_eq!(found, [one]);
    let system = "/// Rules: run 5\n#[tokio::test]\nasync fn two() {}\n";
    assert!(tags("c", system, true).expect("tags")[0].plane);
    assert!(
        !tags("c", system, false).expect("tags")[0].plane,
        "beside the code there is no control plane"
    );
    assert!(
        tags("c", "/// Rules: run 5\nfn helper() {}\n", true).is_err(),
        "only tests show rules"
    );
}
