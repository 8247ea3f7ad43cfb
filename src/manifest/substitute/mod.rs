//! Post-build substitution: `${name}` and its operators in the objects of a build, as Flux's kustomize-controller
//! replaces them (`postBuild`).
//!
//! Pure: variables come as a map, objects as values. The dialect is that of `github.com/fluxcd/pkg/envsubst`, the
//! treatment of objects that of `github.com/fluxcd/pkg/kustomize`; a test compares both. Differences on purpose are
//! listed in the documentation's page on substitution.

mod evaluate;
mod glob;
mod path;
mod write;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

pub use evaluate::Problem;
use evaluate::{Budget, Scope};

use super::objects::describe;
use super::yaml::{self, Duplicates, Limits, Loader, Mode};

/// Labels and annotations that keep an object as it is when their value is `disabled`.
pub const OPT_OUT: [&str; 2] = ["kustomize.toolkit.fluxcd.io/substitute", "stages.metio.wtf/substitute"];

/// Bytes one text or object may have after substitution.
const MAX_TEXT: usize = 16 << 20;
/// Bytes that all objects of one call may grow by.
const MAX_GROWTH: usize = 16 << 20;
/// Expressions inside expressions, and collections inside collections of an object.
const MAX_DEPTH: usize = 100;
/// Bytes and characters looked at in one call.
const MAX_STEPS: usize = 64 << 20;

/// Why nothing was substituted. Messages name variables, objects and fields, never a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Variables whose name no expression could have.
    #[error(
        "variable names {} are not valid (a letter or _, then letters, digits and _); rename these keys in postBuild.substitute or in the ConfigMap or Secret they come from",
        quoted(names)
    )]
    Names {
        /// All of them, sorted.
        names: Vec<String>,
    },
    /// A value that is not text.
    #[error("{origin}: the value of key {key:?} is not UTF-8 text and cannot be a variable; remove the key")]
    NotText {
        /// Where the key is, such as `Secret prod/vars`.
        origin: String,
        /// The key.
        key: String,
    },
    /// Variables that strict mode misses.
    #[error(
        "{place}: undefined variables {}; define them in postBuild, give a default (\"${{{}:=value}}\"), or write \"$${{\" where \"${{\" is meant",
        quoted(names),
        names.first().map_or("x", String::as_str)
    )]
    Undefined {
        /// The object.
        place: String,
        /// All of them, sorted.
        names: Vec<String>,
    },
    /// An expression that cannot be evaluated.
    #[error("{place}: {problem}")]
    Expression {
        /// The object and field, or the line of a text.
        place: String,
        /// What is wrong.
        problem: Problem,
    },
    /// Text that is no object any more once values are in it.
    #[error("{object}, near field {field}: {problem} once the variables' values are in it; {QUOTING_HINT}")]
    Reread {
        /// The object, as it was before.
        object: String,
        /// The field whose substitution is likely the cause.
        field: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An object that lost what every object needs.
    #[error("{object}: {field} is {found} after substitution; it must be text that is not empty; {QUOTING_HINT}")]
    Incomplete {
        /// The object, as it was before.
        object: String,
        /// The field.
        field: &'static str,
        /// What it turned into.
        found: &'static str,
    },
    /// Two objects that became one.
    #[error("{first} and {second} become the same object after substitution; give them different names")]
    Duplicate {
        /// The first, as it was before.
        first: String,
        /// The second, as it was before.
        second: String,
    },
}

const QUOTING_HINT: &str =
    "a value that must stay text as it is needs quotes of its own, such as '\"yes\"' or '\"a: b\"'";

/// Adds one key of a source to the variables, newlines removed as Flux removes them. Later keys win.
///
/// # Errors
/// [`Error::Names`] and [`Error::NotText`]; `origin` names the source in the latter.
pub fn add_variable(vars: &mut BTreeMap<String, String>, origin: &str, key: &str, value: &[u8]) -> Result<(), Error> {
    if !is_name(key) {
        return Err(Error::Names {
            names: vec![key.to_owned()],
        });
    }
    let text = std::str::from_utf8(value).map_err(|_| Error::NotText {
        origin: origin.to_owned(),
        key: key.to_owned(),
    })?;
    vars.insert(key.to_owned(), text.replace('\n', ""));
    Ok(())
}

/// A text with its expressions replaced. Values are taken as they are, newlines included.
///
/// With `strict`, an undefined variable is an error unless its operator has a default; else it counts as empty.
///
/// # Errors
/// [`Error::Expression`] and [`Error::Undefined`].
pub fn substitute_text(text: &str, vars: &BTreeMap<String, String>, strict: bool) -> Result<String, Error> {
    let mut scope = Scope::new(vars, strict, Budget::new(MAX_STEPS));
    let out = scope.evaluate(text).map_err(|(at, problem)| Error::Expression {
        place: format!("line {}", 1 + text[..at].bytes().filter(|b| *b == b'\n').count()),
        problem,
    })?;
    defined(&mut scope, || "the text".to_owned())?;
    Ok(out)
}

/// Objects with the expressions in their keys and texts replaced; order is kept.
///
/// Each object is written as YAML, its expressions are replaced, and it is read again by YAML 1.1 rules, so a value
/// such as `3` or `yes` changes the type of a field that held nothing else. Without variables nothing is touched;
/// neither are objects that opted out (see [`OPT_OUT`]).
///
/// # Errors
/// [`Error`] for the first object that fails; an error about undefined variables names all of that object.
pub fn substitute_objects(
    objects: Vec<Value>,
    vars: &BTreeMap<String, String>,
    strict: bool,
) -> Result<Vec<Value>, Error> {
    if vars.is_empty() {
        return Ok(objects);
    }
    let names: Vec<String> = vars.keys().filter(|name| !is_name(name)).cloned().collect();
    if !names.is_empty() {
        return Err(Error::Names { names });
    }
    let vars = without_newlines(vars);
    let mut changer = Changer {
        scope: Scope::new(&vars, strict, Budget::new(MAX_STEPS)),
        loader: Loader::with(Mode::Kubectl, Duplicates::Reject, Limits::default()),
        growth_left: MAX_GROWTH,
    };
    let mut originals = HashMap::new();
    let mut out = Vec::with_capacity(objects.len());
    for (index, object) in objects.into_iter().enumerate() {
        if opted_out(&object) || !write::has_dollar(&object) {
            out.push(object);
            continue;
        }
        out.push(changer.change(&object)?);
        originals.insert(index, describe(&object));
    }
    if !originals.is_empty() {
        distinct(&out, &originals)?;
    }
    Ok(out)
}

/// Fingerprint of resolved variables: SHA-256 in hex over `LEN(key):key=LEN(value):value\n` of each in sorted
/// order, lengths in bytes; empty when there are none. It goes into `status.lastAppliedSnapshot[].substitutionDigest`.
pub fn digest(vars: &BTreeMap<String, String>) -> String {
    if vars.is_empty() {
        return String::new();
    }
    let mut hasher = Sha256::new();
    for (key, value) in without_newlines(vars).iter() {
        hasher.update(format!("{}:{key}={}:{value}\n", key.len(), value.len()));
    }
    hasher
        .finalize()
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

struct Changer<'v> {
    scope: Scope<'v>,
    loader: Loader,
    growth_left: usize,
}

impl Changer<'_> {
    fn change(&mut self, object: &Value) -> Result<Value, Error> {
        let text = write::write(object, &mut self.scope).map_err(|fault| Error::Expression {
            place: format!("{}, field {}", describe(object), fault.path),
            problem: fault.problem,
        })?;
        defined(&mut self.scope, || describe(object))?;
        self.growth_left = self
            .growth_left
            .checked_sub(self.scope.take_growth())
            .ok_or_else(|| Error::Expression {
                place: describe(object),
                problem: Problem::TooMuchGrowth,
            })?;
        let changed = self.read(&text).map_err(|(line, problem)| {
            let mut again = Scope::new(self.scope.vars, false, Budget::new(MAX_STEPS));
            Error::Reread {
                object: describe(object),
                field: write::field_at(object, &mut again, line)
                    .map_or_else(|| "?".to_owned(), |path| path.to_string()),
                problem,
            }
        })?;
        complete(object, &changed)?;
        Ok(changed)
    }

    fn read(&mut self, text: &str) -> Result<Value, (usize, &'static str)> {
        let redacted = |error: yaml::Error| (error.line, redact(&error.problem));
        let mut documents = self.loader.all(text, "").map_err(redacted)?;
        match (documents.pop(), documents.is_empty()) {
            (Some(node), true) => yaml::to_value(node, "").map_err(redacted),
            (None, _) => Err((1, "it is empty")),
            (Some(_), false) => Err((1, "it is more than one document")),
        }
    }
}

/// A reader's problem without the text it quotes, which may hold values.
fn redact(problem: &yaml::Problem) -> &'static str {
    match problem {
        yaml::Problem::DuplicateKey(_) => "two keys of one mapping are equal",
        yaml::Problem::ComplexKey | yaml::Problem::KeyNotText(_) => "a mapping key is no text",
        yaml::Problem::Merge => "a merge key (<<) stands before something that is no mapping",
        yaml::Problem::Tag { .. } => "a value does not fit its tag, or is a number JSON cannot hold (.inf, .nan)",
        yaml::Problem::TooDeep(_) => "it is nested too deep",
        yaml::Problem::TooManyNodes(_) | yaml::Problem::AliasesTooLarge(_) | yaml::Problem::TooManyDocuments(_) => {
            "it is too large"
        }
        _ => "it is not valid YAML",
    }
}

fn defined(scope: &mut Scope<'_>, place: impl FnOnce() -> String) -> Result<(), Error> {
    let missing: BTreeSet<String> = std::mem::take(&mut scope.missing);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Undefined {
        place: place(),
        names: missing.into_iter().collect(),
    })
}

fn complete(before: &Value, after: &Value) -> Result<(), Error> {
    for (field, pointer) in [
        ("apiVersion", "/apiVersion"),
        ("kind", "/kind"),
        ("metadata.name", "/metadata/name"),
    ] {
        let found = match after.pointer(pointer) {
            Some(Value::String(text)) if !text.is_empty() => continue,
            Some(Value::String(_) | Value::Null) => "empty",
            Some(Value::Number(_)) => "a number",
            Some(Value::Bool(_)) => "a boolean",
            Some(Value::Array(_)) => "a list",
            Some(Value::Object(_)) => "a mapping",
            None => "missing",
        };
        return Err(Error::Incomplete {
            object: describe(before),
            field,
            found,
        });
    }
    Ok(())
}

/// Checks that no two objects have one apiVersion, kind, namespace and name.
fn distinct(objects: &[Value], originals: &HashMap<usize, String>) -> Result<(), Error> {
    let original = |index: usize| {
        originals
            .get(&index)
            .cloned()
            .unwrap_or_else(|| describe(&objects[index]))
    };
    let mut seen = HashMap::with_capacity(objects.len());
    for (index, object) in objects.iter().enumerate() {
        let part = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let namespace = match part("/metadata/namespace") {
            "" => "default",
            namespace => namespace,
        };
        let id = (part("/apiVersion"), part("/kind"), namespace, part("/metadata/name"));
        if let Some(first) = seen.insert(id, index) {
            return Err(Error::Duplicate {
                first: original(first),
                second: original(index),
            });
        }
    }
    Ok(())
}

fn opted_out(object: &Value) -> bool {
    ["/metadata/labels", "/metadata/annotations"].iter().any(|pointer| {
        OPT_OUT.iter().any(|key| {
            object
                .pointer(pointer)
                .and_then(|map| map.get(key))
                .and_then(Value::as_str)
                == Some("disabled")
        })
    })
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn without_newlines(vars: &BTreeMap<String, String>) -> Cow<'_, BTreeMap<String, String>> {
    if vars.values().any(|value| value.contains('\n')) {
        let clean = vars.iter().map(|(key, value)| (key.clone(), value.replace('\n', "")));
        return Cow::Owned(clean.collect());
    }
    Cow::Borrowed(vars)
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
