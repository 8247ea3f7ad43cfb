//! Conflict: what to do when a field cannot be changed in place (run 16.6).
//!
//! Three questions, in the order in which they come up: what does the policy say about this object
//! ([`Policy::choose`]), may it be applied at all ([`before_apply`]), and, once the server refused the change, is that
//! refusal one that deleting and creating the object again can cure ([`immutable_conflict`], [`on_conflict`]).

mod recognise;
mod trial;

use serde_json::Value;

use super::inventory::{ObjectId, Preconditions, keys};

pub use recognise::{ApiRefusal, Cause, ImmutableConflict, immutable_conflict};
pub use trial::trial_object;

/// What a policy can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Action {
    /// Report the conflict.
    #[default]
    Fail,
    /// Delete the object and create it again.
    Recreate,
    /// Create it when absent, never touch it when present.
    KeepExisting,
}

/// A partial selector: what is none or empty matches everything, what is set must be equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub name: Option<String>,
    pub namespace: Option<String>,
}

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    pub target: Target,
    pub action: Action,
    /// Consent to lose what a claim or volume holds.
    pub allow_data_loss: bool,
}

/// `stages[].conflictPolicy` and `stages[].force`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// None where the author left it out, so that `force` still counts.
    pub default: Option<Action>,
    pub force: bool,
    pub rules: Vec<Rule>,
}

/// What an action was chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenBy {
    /// The `force` annotation on the rendered object.
    Annotation,
    /// The rule at this index.
    Rule(usize),
    /// `conflictPolicy.default`, `force`, or nothing at all.
    Default,
}

/// The policy's word on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub action: Action,
    pub by: ChosenBy,
    /// Data loss was consented to: by the annotation, or by the rule.
    pub allow_data_loss: bool,
}

impl Target {
    fn matches(&self, object: &Value) -> bool {
        let equals = |wanted: &Option<String>, pointer: &str| {
            let wanted = wanted.as_deref().unwrap_or_default();
            let found = object.pointer(pointer).and_then(Value::as_str);
            wanted.is_empty() || found.unwrap_or_default() == wanted
        };
        equals(&self.api_version, "/apiVersion")
            && equals(&self.kind, "/kind")
            && equals(&self.name, "/metadata/name")
            && equals(&self.namespace, "/metadata/namespace")
    }
}

impl Policy {
    /// What the policy says about a rendered object: its own `force` annotation first, then the first rule that
    /// matches, then `conflictPolicy.default`, then `force`, else `Fail`.
    pub fn choose(&self, rendered: &Value) -> Choice {
        if is_forced(rendered) {
            return Choice {
                action: Action::Recreate,
                by: ChosenBy::Annotation,
                allow_data_loss: true,
            };
        }
        let mut rules = self.rules.iter().enumerate();
        if let Some((index, rule)) = rules.find(|(_, rule)| rule.target.matches(rendered)) {
            return Choice {
                action: rule.action,
                by: ChosenBy::Rule(index),
                allow_data_loss: rule.allow_data_loss,
            };
        }
        let forced = if self.force { Action::Recreate } else { Action::Fail };
        Choice {
            action: self.default.unwrap_or(forced),
            by: ChosenBy::Default,
            allow_data_loss: false,
        }
    }
}

/// True where the object itself consents to be recreated: our annotation with any value but a plain no, or Flux's
/// (label or annotation) with `enabled`.
fn is_forced(rendered: &Value) -> bool {
    let value = |map: &str, key: &str| rendered.pointer(map)?.get(key)?.as_str();
    let refuses = |text: &str| ["disabled", "false"].iter().any(|no| text.eq_ignore_ascii_case(no));
    let ours = value("/metadata/annotations", keys::FORCE);
    let flux = ["/metadata/annotations", "/metadata/labels"].map(|map| value(map, keys::FLUX_FORCE));
    ours.is_some_and(|text| !text.is_empty() && !refuses(text))
        || flux
            .into_iter()
            .flatten()
            .any(|text| text.eq_ignore_ascii_case("enabled"))
}

/// True for the kinds whose deletion destroys data.
fn holds_data(object: &Value) -> bool {
    let api_version = object.get("apiVersion").and_then(Value::as_str);
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    api_version == Some("v1") && is_data_kind(kind)
}

fn is_data_kind(kind: &str) -> bool {
    matches!(kind, "PersistentVolumeClaim" | "PersistentVolume")
}

/// A recreate that would destroy data nobody consented to lose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{id}: {asked_by} asks to recreate it, which destroys the data it holds; \
     set allowDataLoss: true on a conflictPolicy rule for it if that is meant"
)]
pub struct DataLoss {
    pub id: ObjectId,
    /// The rule or setting, for a person to find.
    pub asked_by: String,
}

fn data_loss(rendered: &Value, choice: Choice) -> Option<DataLoss> {
    let destroys = choice.action == Action::Recreate && holds_data(rendered) && !choice.allow_data_loss;
    destroys.then(|| DataLoss {
        id: ObjectId::of(rendered).unwrap_or_else(|| ObjectId::new("", "", "", "PersistentVolumeClaim")),
        asked_by: match choice.by {
            ChosenBy::Annotation => format!("its annotation {}", keys::FORCE),
            ChosenBy::Rule(index) => format!("conflictPolicy.rules[{index}]"),
            ChosenBy::Default => "the stage's default (conflictPolicy.default or force)".to_owned(),
        },
    })
}

/// What to do with an object before it is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeforeApply {
    /// Apply it.
    Apply,
    /// It is there and is to be left as it is.
    KeepExisting,
    /// A rule would destroy data: nothing of the stage is applied.
    RefuseDataLoss(DataLoss),
}

/// Decides before an apply, conflict or not. Only a rule is refused here: `default: Recreate` and `force` mean many
/// objects at once and are refused when a conflict really exists (run 28 B6).
pub fn before_apply(policy: &Policy, rendered: &Value, exists: bool) -> BeforeApply {
    let choice = policy.choose(rendered);
    match (choice.by, data_loss(rendered, choice)) {
        (ChosenBy::Rule(_), Some(loss)) => BeforeApply::RefuseDataLoss(loss),
        _ if choice.action == Action::KeepExisting && exists => BeforeApply::KeepExisting,
        _ => BeforeApply::Apply,
    }
}

/// What to do about a refused change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Report it; the message says what refused and how to go on.
    Fail { message: String },
    /// Delete the live object with these preconditions, wait until it is gone, create it.
    Recreate {
        by: ChosenBy,
        preconditions: Preconditions,
        /// What it owns stays for the new object to adopt.
        orphan: bool,
    },
    /// Leave the live object as it is and go on.
    KeepExisting,
    /// Recreating it would destroy data.
    RefuseDataLoss(DataLoss),
}

/// Decides about a change the server refused because a field is immutable. `live` is the object as it was read.
pub fn on_conflict(policy: &Policy, rendered: &Value, live: &Value, conflict: &ImmutableConflict) -> Decision {
    let choice = policy.choose(rendered);
    match choice.action {
        Action::KeepExisting => Decision::KeepExisting,
        Action::Fail => Decision::Fail {
            message: fail_message(rendered, conflict),
        },
        Action::Recreate => match data_loss(rendered, choice) {
            Some(loss) => Decision::RefuseDataLoss(loss),
            None => Decision::Recreate {
                by: choice.by,
                // The object may be written to meanwhile; what matters is that it is still the same one.
                preconditions: Preconditions {
                    uid: live.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned),
                    resource_version: None,
                },
                orphan: is_adoptable(rendered, live),
            },
        },
    }
}

/// Whether a new object would adopt what the old one owns: a StatefulSet takes pods over by its selector, and its
/// claims may be owned by it too. A selector that changed finds nothing, and pods of the old one would be in the way.
fn is_adoptable(rendered: &Value, live: &Value) -> bool {
    let is = |object: &Value| {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        text("kind") == "StatefulSet" && text("apiVersion").starts_with("apps/")
    };
    is(rendered) && rendered.pointer("/spec/selector") == live.pointer("/spec/selector")
}

fn fail_message(rendered: &Value, conflict: &ImmutableConflict) -> String {
    let id = ObjectId::of(rendered).map_or_else(|| "object".to_owned(), |id| id.to_string());
    format!(
        "{id} cannot be changed in place: {conflict}; allow it with a conflictPolicy rule (Recreate or KeepExisting)"
    )
}

/// Rules that name a claim or volume with `Recreate` and without `allowDataLoss`, by index: refused at admission.
pub fn find_data_loss_rules(rules: &[Rule]) -> Vec<(usize, String)> {
    let names_data = |target: &Target| {
        let core = target
            .api_version
            .as_deref()
            .is_none_or(|version| version.is_empty() || version == "v1");
        core && target.kind.as_deref().is_some_and(is_data_kind)
    };
    rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.action == Action::Recreate && !rule.allow_data_loss && names_data(&rule.target))
        .map(|(index, rule)| {
            let kind = rule.target.kind.as_deref().unwrap_or_default();
            let message =
                format!("recreating a {kind} destroys the data it holds: set allowDataLoss: true if that is meant");
            (index, message)
        })
        .collect()
}

#[cfg(test)]
mod tests;
