//! Lists of actions: rules A3 to A10, R1 to R5, and M8 to M12 for the lists of migrations.

use std::collections::HashMap;

use crate::api::{Action, ActionScope, Migration, StageActions, StageSetSpec};

use super::names;
use super::report::Report;
use super::verbs;

/// Most actions in a list of a migration.
const MAX_MIGRATION_ACTIONS: usize = 100;
/// Retries of an action, in general and in a migration.
const MAX_RETRIES: i32 = 100;
const MAX_MIGRATION_RETRIES: i32 = 10;

/// A list of actions: where it is, and what is allowed in it.
struct List<'a> {
    path: String,
    /// What the list is called in messages, for example `stage "web", pre`.
    title: String,
    actions: &'a [Action],
    scopes: Scopes,
    max_retries: i32,
}

enum Scopes {
    /// Actions may have a scope; `versioned` says whether there is a version to count by.
    Allowed { versioned: bool },
    /// They may not, and why.
    Refused(&'static str),
}

pub(super) fn stage(report: &mut Report, spec: &StageSetSpec, path: &str, stage: &str, actions: &StageActions) {
    let versioned = spec.version.is_some();
    let list = |hook: &str, actions, scopes| List {
        path: format!("{path}.{hook}"),
        title: format!("stage \"{stage}\", {hook}"),
        actions,
        scopes,
        max_retries: MAX_RETRIES,
    };
    let on_failure = Scopes::Refused(
        "onFailure actions run on every failure; scope, and completionAnchor with scope Lifetime, belong to pre and post actions",
    );
    let lists = [
        list("pre", &actions.pre, Scopes::Allowed { versioned }),
        list("post", &actions.post, Scopes::Allowed { versioned }),
        list("onFailure", &actions.on_failure, on_failure),
    ];
    // The three hooks share one ledger, so a name is unique across all of them (A5).
    let mut seen = HashMap::new();
    lists.iter().for_each(|list| check(report, list, &mut seen));
}

pub(super) fn on_rollback(report: &mut Report, spec: &StageSetSpec) {
    let list = List {
        path: "spec.onRollback".to_owned(),
        title: "onRollback".to_owned(),
        actions: &spec.on_rollback,
        scopes: Scopes::Refused(
            "onRollback actions run on every rollback; scope and completionAnchor belong to pre and post actions",
        ),
        max_retries: MAX_RETRIES,
    };
    check(report, &list, &mut HashMap::new());
}

pub(super) fn migration(report: &mut Report, path: &str, migration: &Migration) {
    for (name, actions) in [("actions", &migration.actions), ("down", &migration.down)] {
        let list = List {
            path: format!("{path}.{name}"),
            title: format!("migration \"{}\", {name}", migration.name),
            actions,
            scopes: Scopes::Refused(
                "a migration action runs once per crossing; scope and completionAnchor belong to pre and post actions",
            ),
            max_retries: MAX_MIGRATION_RETRIES,
        };
        if actions.len() > MAX_MIGRATION_ACTIONS {
            let count = actions.len();
            report.invalid(
                list.path.clone(),
                format!("{}: {count} actions, at most {MAX_MIGRATION_ACTIONS}", list.title),
            );
        }
        check(report, &list, &mut HashMap::new());
    }
}

fn check<'a>(report: &mut Report, list: &List<'a>, seen: &mut HashMap<&'a str, String>) {
    for (index, action) in list.actions.iter().enumerate() {
        let path = format!("{}[{index}]", list.path);
        let owner = match action.name.as_str() {
            "" => format!("{} action {index}", list.title),
            name => format!("{} action \"{name}\"", list.title),
        };
        name(report, list, &path, action, seen);
        scope(report, list, &path, &owner, action);
        limits(report, list, &path, &owner, action);
        match action.verb() {
            Ok(_) => {}
            Err(count) => report.invalid(path.clone(), format!("{owner}: {count}")),
        }
        for verb in action.verbs() {
            verbs::check(report, &format!("{path}.{}", verb.name()), &owner, verb);
        }
    }
}

fn name<'a>(report: &mut Report, list: &List<'a>, path: &str, action: &'a Action, seen: &mut HashMap<&'a str, String>) {
    let path = format!("{path}.name");
    if !report.non_empty(&path, &action.name, &format!("every {} action", list.title)) {
        return;
    }
    report.syntax(&path, &action.name, names::ledger_key);
    if let Some(earlier) = seen.get(action.name.as_str()) {
        let (name, title) = (&action.name, &list.title);
        report.invalid(path, format!("{title}: the action name \"{name}\" is already used in {earlier}; ledgers tell actions by name, so it must be unique"));
    } else {
        seen.insert(&action.name, list.title.clone());
    }
}

fn scope(report: &mut Report, list: &List<'_>, path: &str, owner: &str, action: &Action) {
    let scope_path = format!("{path}.scope");
    let anchor_path = format!("{path}.completionAnchor");
    match &list.scopes {
        Scopes::Refused(why) => {
            if let Some(scope) = &action.scope {
                report.invalid(scope_path, format!("{owner}: scope {scope} is not allowed here: {why}"));
            }
            if action.completion_anchor.is_some() {
                report.invalid(
                    anchor_path.clone(),
                    format!("{owner}: completionAnchor is not allowed here: {why}"),
                );
            }
        }
        Scopes::Allowed { versioned } => {
            if let Some(ActionScope::Unknown(value)) = &action.scope {
                let allowed = ActionScope::VALUES.join(", ");
                report.invalid(
                    scope_path.clone(),
                    format!("{owner}: unknown scope \"{value}\"; allowed: {allowed}"),
                );
            }
            if action.scope == Some(ActionScope::Version) && !versioned {
                report.invalid(
                    scope_path,
                    format!("{owner}: scope Version needs spec.version, which is not set"),
                );
            }
            if action.completion_anchor.is_some() && action.scope != Some(ActionScope::Lifetime) {
                report.invalid(
                    anchor_path.clone(),
                    format!("{owner}: completionAnchor needs scope Lifetime"),
                );
            }
        }
    }
    anchor(report, &anchor_path, owner, action);
}

fn anchor(report: &mut Report, path: &str, owner: &str, action: &Action) {
    let Some(anchor) = &action.completion_anchor else {
        return;
    };
    if [&anchor.api_version, &anchor.kind, &anchor.name]
        .iter()
        .any(|field| field.is_empty())
    {
        report.invalid(
            path,
            format!("{owner}: completionAnchor needs apiVersion, kind and name"),
        );
        return;
    }
    report.syntax(&format!("{path}.apiVersion"), &anchor.api_version, names::api_version);
    report.syntax(&format!("{path}.kind"), &anchor.kind, names::kind);
    report.syntax(&format!("{path}.name"), &anchor.name, names::path_segment);
}

fn limits(report: &mut Report, list: &List<'_>, path: &str, owner: &str, action: &Action) {
    report.duration(&format!("{path}.timeout"), action.timeout.as_ref());
    if let Some(retries) = action
        .retries
        .filter(|retries| !(0..=list.max_retries).contains(retries))
    {
        let most = list.max_retries;
        report.invalid(
            format!("{path}.retries"),
            format!("{owner}: {retries} retries; allowed: 0 to {most}"),
        );
    }
}
