//! Expressions over one object, in CEL: `readyChecks.exprs[]` and `wait.expr` (api 3.2, run 18.3).
//!
//! The environment is Flux's, so that its `healthCheckExprs` are portable: the standard library, optionals, and
//! the `strings`, `sets` and `encoders` extensions. An expression sees `apiVersion`, `kind`, `metadata`, `spec`
//! and `status`; an absent one is an empty map.
//!
//! Expressions come from tenants, so both halves are bounded. What does not parse, nests too deep, names what
//! does not exist or cannot be true or false is refused when it is compiled. What takes too long is stopped by a
//! budget when it is evaluated: the library itself counts nothing, so [`meter`] writes the counting into the
//! expression.

mod budget;
mod check;
mod env;
mod functions;
mod meter;
mod ready;
mod text;
mod value;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cel::common::ast::IdedExpr;
use cel::common::types::CelBool;
use cel::{Context, ExecutionError};
use serde_json::Value;

pub use ready::{CompileError, ReadyExprs};

/// What an expression can see of an object.
pub const VARIABLES: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Longest expression, in bytes.
pub const MAX_LENGTH: usize = 4096;
/// Deepest nesting of an expression; a chain such as `a.b.c` or `a + b + c` nests with every link.
pub const MAX_DEPTH: usize = 200;
/// Brackets and choices that the parser takes within each other.
pub const MAX_NESTING: usize = 90;
/// Cost one evaluation may have. The reference counts differently in detail; the order of magnitude is the same.
pub const BUDGET: u64 = 10_000_000;

/// Stack for parsing: the parser recurses along chains, which [`MAX_LENGTH`] alone bounds.
const PARSER_STACK: usize = 64 << 20;
/// Stack that one level of an expression may need when it is evaluated: the library's frames are that large.
const LEVEL_STACK: usize = 64 << 10;
/// Levels, with the counting, that are evaluated on the stack of the caller.
const LEVELS_IN_PLACE: usize = 12;
/// Source text kept compiled, in bytes; a compiled expression takes some hundred times its text at worst.
const CACHED_TEXT: usize = 128 << 10;

/// Why an expression is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    #[error("it is empty")]
    Empty,
    #[error("it has {length} bytes; at most {MAX_LENGTH} are allowed")]
    TooLong { length: usize },
    #[error("at line {line}, column {column}: {message}")]
    Syntax {
        line: isize,
        column: isize,
        message: String,
    },
    #[error(
        "it nests too deep; a chain may have {MAX_DEPTH} links, and {MAX_NESTING} brackets may stand in each other"
    )]
    TooDeep,
    #[error("there is no variable \"{name}\"; an expression sees {}", VARIABLES.join(", "))]
    UnknownVariable { name: String },
    #[error("there is no function \"{name}\"")]
    UnknownFunction { name: String },
    #[error("the function \"{name}\" does not take {count} arguments")]
    ArgumentCount { name: String, count: usize },
    #[error("{operator} needs true or false, not a value of type {found}")]
    Operand {
        operator: &'static str,
        found: &'static str,
    },
    #[error("a value of type {found} has no field \"{field}\"")]
    NoFields { found: &'static str, field: String },
    #[error("objects of type \"{name}\" cannot be made")]
    UnknownType { name: String },
    #[error("its result has the type {found}; it has to be true or false")]
    NotBool { found: &'static str },
    #[error("the parser gave up on it; write it differently")]
    Parser,
}

/// Why an expression has no result for an object. Texts hold nothing of the object's values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("there is no field \"{field}\"")]
    NoSuchField { field: String },
    #[error("there is no such key")]
    NoSuchKey,
    #[error("{0}")]
    Types(String),
    #[error("its result is neither true nor false but of type {found}")]
    NotBool { found: String },
    #[error("it costs more than {BUDGET}")]
    Budget,
    #[error("{0}")]
    Operation(&'static str),
}

impl EvalError {
    /// Whether a field or key is missing, as is usual before a controller has written its status.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::NoSuchField { .. } | Self::NoSuchKey)
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    source: String,
    root: IdedExpr,
    variables: Vec<&'static str>,
    loops: bool,
    /// Depth, with the counting.
    depth: usize,
}

impl Expression {
    /// Compiles an expression, or takes it from the cache.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn compile(source: &str) -> Result<Arc<Self>, ExprError> {
        if let Some(known) = CACHE.lock().unwrap_or_else(PoisonError::into_inner).get(source) {
            return Ok(known);
        }
        let compiled = Arc::new(Self::compile_anew(source)?);
        CACHE.lock().unwrap_or_else(PoisonError::into_inner).put(&compiled);
        Ok(compiled)
    }

    fn compile_anew(source: &str) -> Result<Self, ExprError> {
        if source.trim().is_empty() {
            return Err(ExprError::Empty);
        }
        if source.len() > MAX_LENGTH {
            return Err(ExprError::TooLong { length: source.len() });
        }
        // All of it recurses, dropping what is refused too, so it has a stack of its own.
        let source = source.to_owned();
        apart(PARSER_STACK, || Self::parse(source)).unwrap_or(Err(ExprError::Parser))
    }

    fn parse(source: String) -> Result<Self, ExprError> {
        let parsed = parse(&source)?;
        let facts = check::check(&parsed)?;
        let root = meter::meter(parsed);
        Ok(Self {
            source,
            depth: check::depth(&root),
            root,
            variables: facts.variables,
            loops: facts.loops,
        })
    }

    /// The text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether an evaluation may take more than some microseconds: then it does not belong on a thread that
    /// others wait for.
    pub fn may_be_slow(&self) -> bool {
        self.loops
    }

    /// Evaluates the expression over one object.
    ///
    /// # Errors
    /// There is no result, or none that is true or false.
    pub fn evaluate(&self, object: &Value) -> Result<bool, EvalError> {
        if self.depth <= LEVELS_IN_PLACE {
            return self.evaluate_here(object);
        }
        let given_up = Err(EvalError::Operation("it cannot be evaluated"));
        apart((self.depth + LEVELS_IN_PLACE) * LEVEL_STACK, || {
            self.evaluate_here(object)
        })
        .unwrap_or(given_up)
    }

    fn evaluate_here(&self, object: &Value) -> Result<bool, EvalError> {
        let mut context = Context::with_env(env::shared());
        for name in &self.variables {
            context.add_variable_as_val(*name, value::variable(object, name));
        }
        let (result, spent) = budget::limited(BUDGET, || {
            let result = cel::Value::resolve_val(&self.root, &context)?;
            Ok(match result.downcast_ref::<CelBool>() {
                Some(verdict) => Ok(*verdict.inner()),
                None => Err(EvalError::NotBool {
                    found: result.get_type().name().to_owned(),
                }),
            })
        });
        if spent {
            return Err(EvalError::Budget);
        }
        result.unwrap_or_else(|error: ExecutionError| Err(self.explain(&error)))
    }

    /// What went wrong, without values: they may be confidential.
    fn explain(&self, error: &ExecutionError) -> EvalError {
        match error {
            ExecutionError::NoSuchKey(key) if self.source.contains(key.as_str()) => {
                EvalError::NoSuchField { field: key.to_string() }
            }
            ExecutionError::NoSuchKey(_) => EvalError::NoSuchKey,
            ExecutionError::NoSuchOverload(overload) => EvalError::Types(overload.to_string()),
            ExecutionError::UnexpectedType { got, want } => {
                EvalError::Types(format!("a value has the type {got} where {want} is needed"))
            }
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
                EvalError::Operation("a number is divided by zero")
            }
            ExecutionError::Overflow(..) => EvalError::Operation("a number is too large"),
            ExecutionError::IndexOutOfBounds(_) => EvalError::Operation("a list has no such element"),
            ExecutionError::DuplicateKey(_) => EvalError::Operation("a map has the same key twice"),
            ExecutionError::FunctionError { .. } => EvalError::Operation("a function does not accept its argument"),
            ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedBinaryOperator(..)
            | ExecutionError::UnsupportedIndex(..)
            | ExecutionError::UnsupportedKeyType(_) => {
                EvalError::Operation("an operator does not accept values of these types")
            }
            _ => EvalError::Operation("it cannot be evaluated"),
        }
    }
}

/// Runs `work` on a stack of its own; `None` where there is no thread to be had, or it panicked.
fn apart<T: Send>(stack: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("expression".to_owned())
            .stack_size(stack);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

fn parse(source: &str) -> Result<IdedExpr, ExprError> {
    match env::shared().parser().parse(source) {
        Ok(parsed) if check::depth(&parsed) > MAX_DEPTH => Err(ExprError::TooDeep),
        Ok(parsed) => Ok(parsed),
        // The parser has a limit of its own, and a text for it that is no text for a person.
        Err(_) if nesting(source) > MAX_NESTING => Err(ExprError::TooDeep),
        Err(errors) => Err(match errors.errors.first() {
            Some(first) => ExprError::Syntax {
                line: first.pos.0,
                column: first.pos.1,
                message: text::shortened(&first.msg, 200),
            },
            None => ExprError::Parser,
        }),
    }
}

/// Brackets within each other, and choices, wherever they stand.
fn nesting(source: &str) -> usize {
    let mut deepest = 0;
    let mut open: usize = 0;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' | b'?' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// Compiled expressions by their text. Two generations: what was not asked for since the last turn goes.
#[derive(Default)]
struct Cache {
    young: HashMap<String, Arc<Expression>>,
    old: HashMap<String, Arc<Expression>>,
    /// Bytes of text in `young`.
    size: usize,
}

impl Cache {
    fn get(&mut self, source: &str) -> Option<Arc<Expression>> {
        if let Some(found) = self.young.get(source) {
            return Some(found.clone());
        }
        let found = self.old.remove(source)?;
        self.put(&found);
        Some(found)
    }

    fn put(&mut self, expression: &Arc<Expression>) {
        if self.size + expression.source.len() > CACHED_TEXT / 2 {
            self.old = std::mem::take(&mut self.young);
            self.size = 0;
        }
        if self
            .young
            .insert(expression.source.clone(), expression.clone())
            .is_none()
        {
            self.size += expression.source.len();
        }
    }
}

/// An expression as a message shows it: on one line, and not all of a long one.
pub fn shown(source: &str) -> String {
    text::shortened(source, 160)
}

/// The distinct variables among `names`, in the order of [`VARIABLES`].
fn variables_in(names: &HashSet<String>) -> Vec<&'static str> {
    VARIABLES.into_iter().filter(|v| names.contains(*v)).collect()
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
