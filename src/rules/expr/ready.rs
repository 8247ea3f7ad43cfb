//! Readiness of a kind by expressions (`readyChecks.exprs[]`, run 18.3).
//!
//! Flux's `healthCheckExprs` look at `inProgress`, `failed`, `current` in this order. Here `failed` comes before
//! `inProgress`, since a stage fails at once when it is true; the two agree on every object for which at most one of
//! them is true. As with Flux an object that is being deleted, or whose controller has not seen its generation yet, is
//! judged by that first: what its status says is about something else.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

use super::{EvalError, ExprError, Expression, shown};
use crate::api::ReadyExpr;
use crate::api::common::non_empty;
use crate::rules::readiness::Readiness;

/// An expression of a list that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expression {index}, {field} \"{}\" does not compile: {cause}", shown(text))]
pub struct CompileError {
    /// Place in the list, from 0.
    pub index: usize,
    /// `current`, `inProgress` or `failed`.
    pub field: &'static str,
    /// The expression.
    pub text: String,
    pub cause: ExprError,
}

impl CompileError {
    /// The field below the list, as in `[1].current`.
    pub fn path(&self) -> String {
        format!("[{}].{}", self.index, self.field)
    }
}

/// The rules of readiness of some kinds. They stand in place of the kstatus rules (run 28 B12).
#[derive(Debug, Default)]
pub struct ReadyExprs {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    group: String,
    kind: String,
    failed: Option<Arc<Expression>>,
    in_progress: Option<Arc<Expression>>,
    current: Option<Arc<Expression>>,
}

/// What one expression says.
enum Says {
    Yes,
    No,
    /// It has no result.
    Nothing(EvalError),
}

impl ReadyExprs {
    /// Compiles every expression.
    ///
    /// # Errors
    /// All expressions that are refused.
    pub fn compile(exprs: &[ReadyExpr]) -> Result<Self, Vec<CompileError>> {
        let mut errors = Vec::new();
        let mut rules = Vec::with_capacity(exprs.len());
        for (index, expr) in exprs.iter().enumerate() {
            let mut one = |field: &'static str, text: &Option<String>| {
                let text = non_empty(text)?;
                match Expression::compile(text) {
                    Ok(compiled) => Some(compiled),
                    Err(cause) => {
                        errors.push(CompileError {
                            index,
                            field,
                            text: text.to_owned(),
                            cause,
                        });
                        None
                    }
                }
            };
            rules.push(Rule {
                current: one("current", &expr.current),
                failed: one("failed", &expr.failed),
                in_progress: one("inProgress", &expr.in_progress),
                group: group_of(&expr.api_version).to_owned(),
                kind: expr.kind.clone(),
            });
        }
        if errors.is_empty() {
            Ok(Self { rules })
        } else {
            Err(errors)
        }
    }

    /// Whether objects of this group and kind are judged by expressions.
    pub fn covers(&self, group: &str, kind: &str) -> bool {
        self.of(group, kind).next().is_some()
    }

    /// Whether there is no rule at all.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether judging an object of this kind may take more than some microseconds.
    pub fn may_be_slow(&self, group: &str, kind: &str) -> bool {
        let mut expressions = self
            .of(group, kind)
            .flat_map(|rule| [&rule.failed, &rule.in_progress, &rule.current]);
        expressions.any(|e| e.as_ref().is_some_and(|e| e.may_be_slow()))
    }

    /// A number for the rules of this kind: 0 where there are none, another one where they were changed.
    pub fn fingerprint(&self, group: &str, kind: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut any = false;
        for rule in self.of(group, kind) {
            any = true;
            for expression in [&rule.failed, &rule.in_progress, &rule.current] {
                expression.as_ref().map(|e| e.source()).hash(&mut hasher);
            }
        }
        if any { hasher.finish().max(1) } else { 0 }
    }

    /// Judges an object; `None` where no rule is for its kind. Several rules for one kind all have to hold.
    pub fn judge(&self, object: &Value) -> Option<Readiness> {
        let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        let mut rules = self.of(group_of(api_version), kind).peekable();
        rules.peek()?;
        if let Some(first) = before_all(object) {
            return Some(first);
        }
        let verdicts: Vec<Readiness> = rules.map(|rule| rule.judge(object)).collect();
        let failed = verdicts.iter().find(|v| v.is_failed());
        let worst = failed.or_else(|| verdicts.iter().find(|v| !v.is_ready()));
        Some(worst.cloned().unwrap_or(Readiness::Current))
    }

    fn of<'a>(&'a self, group: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.rules
            .iter()
            .filter(move |rule| rule.group == group && rule.kind == kind)
    }
}

impl Rule {
    fn judge(&self, object: &Value) -> Readiness {
        // No result counts as false, except for `current`.
        if let (Some(failed), Some(Says::Yes)) = (&self.failed, ask(&self.failed, object)) {
            return Readiness::Failed {
                message: format!("{} is true", Named("failed", failed)),
                recoverable: false,
            };
        }
        if let (Some(in_progress), Some(Says::Yes)) = (&self.in_progress, ask(&self.in_progress, object)) {
            return waiting(format!("{} is true", Named("inProgress", in_progress)));
        }
        let Some(current) = &self.current else {
            return Readiness::Current;
        };
        let named = Named("current", current);
        match ask(&self.current, object) {
            None | Some(Says::Yes) => Readiness::Current,
            Some(Says::No) => waiting(format!("{named} is not true yet")),
            Some(Says::Nothing(why)) if why.is_missing() => waiting(format!("{named} has no answer yet: {why}")),
            Some(Says::Nothing(why)) => Readiness::Unknown {
                message: format!("{named} has no answer: {why}"),
            },
        }
    }
}

/// An expression in a message.
struct Named<'a>(&'static str, &'a Expression);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.0, shown(self.1.source()))
    }
}

fn ask(expression: &Option<Arc<Expression>>, object: &Value) -> Option<Says> {
    Some(match expression.as_ref()?.evaluate(object) {
        Ok(true) => Says::Yes,
        Ok(false) => Says::No,
        Err(why) => Says::Nothing(why),
    })
}

fn waiting(message: String) -> Readiness {
    Readiness::InProgress { message }
}

/// What is looked at before any expression.
fn before_all(object: &Value) -> Option<Readiness> {
    let deleted = object.pointer("/metadata/deletionTimestamp").and_then(Value::as_str);
    if deleted.is_some_and(|at| !at.is_empty()) {
        return Some(Readiness::Terminating);
    }
    let generation = integer(object.pointer("/metadata/generation")?)?;
    let observed = integer(object.pointer("/status/observedGeneration")?)?;
    (generation != observed).then(|| {
        waiting(format!(
            "generation {generation} is not observed yet, its controller is at {observed}"
        ))
    })
}

/// An integer, also where a controller writes it as text: an Argo Rollout does.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
#[path = "ready_tests.rs"]
mod tests;
