//! What can be told about an expression before it is evaluated. The library has no type checker; this one refuses
//! unknown names and results that can never be true or false, and leaves the rest to the evaluation.

use std::collections::HashSet;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

use super::functions::{self, Form, NoCall, Type};
use super::{ExprError, VARIABLES, variables_in};

/// Types an expression can name, as in `type(x) == string`.
const TYPE_NAMES: [&str; 11] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "optional_type",
    "type",
];

/// What is known of an expression that may be evaluated.
pub(super) struct Facts {
    /// The variables it names.
    pub(super) variables: Vec<&'static str>,
    /// It goes through lists or maps.
    pub(super) loops: bool,
}

/// Checks names and types.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn check(root: &IdedExpr) -> Result<Facts, ExprError> {
    let mut checker = Checker::default();
    let result = checker.infer(root)?;
    if !result.may_be_bool() {
        return Err(ExprError::NotBool { found: result.name() });
    }
    Ok(Facts {
        variables: variables_in(&checker.variables),
        loops: checker.loops,
    })
}

/// Levels of the tree, found without recursion.
pub(super) fn depth(root: &IdedExpr) -> usize {
    let mut deepest = 0;
    let mut open = vec![(root, 1)];
    while let Some((expr, depth)) = open.pop() {
        deepest = deepest.max(depth);
        open.extend(children(&expr.expr).into_iter().map(|child| (child, depth + 1)));
    }
    deepest
}

fn children(expr: &Expr) -> Vec<&IdedExpr> {
    match expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).collect(),
        Expr::Comprehension(c) => vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Struct(object) => object.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
    }
}

fn entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

#[derive(Default)]
struct Checker {
    variables: HashSet<String>,
    loops: bool,
    /// Names that macros bind, innermost last.
    bound: Vec<(String, Type)>,
}

impl Checker {
    fn infer(&mut self, expr: &IdedExpr) -> Result<Type, ExprError> {
        match &expr.expr {
            Expr::Unspecified => Err(ExprError::Parser),
            Expr::Literal(literal) => Ok(of_literal(literal)),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(expr, select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(_) => self.all(&expr.expr, Type::List),
            Expr::Map(_) => self.all(&expr.expr, Type::Map),
            Expr::Struct(object) => Err(ExprError::UnknownType {
                name: object.type_name.clone(),
            }),
        }
    }

    fn all(&mut self, expr: &Expr, result: Type) -> Result<Type, ExprError> {
        for child in children(expr) {
            self.infer(child)?;
        }
        Ok(result)
    }

    fn ident(&mut self, name: &str) -> Result<Type, ExprError> {
        if let Some((_, known)) = self.bound.iter().rev().find(|(bound, _)| bound == name) {
            return Ok(*known);
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        if VARIABLES.contains(&plain) {
            self.variables.insert(plain.to_owned());
            return Ok(match plain {
                "apiVersion" | "kind" => Type::String,
                _ => Type::Dyn,
            });
        }
        if TYPE_NAMES.contains(&plain) {
            return Ok(Type::Meta);
        }
        Err(ExprError::UnknownVariable { name: name.to_owned() })
    }

    fn select(&mut self, whole: &IdedExpr, select: &SelectExpr) -> Result<Type, ExprError> {
        if !select.test
            && matches!(
                dotted(whole).as_deref(),
                Some("google.protobuf.Timestamp" | "google.protobuf.Duration")
            )
        {
            return Ok(Type::Meta);
        }
        let operand = self.infer(&select.operand)?;
        match operand {
            Type::Optional if select.test => Ok(Type::Bool),
            Type::Optional => Ok(Type::Optional),
            Type::Map | Type::Dyn if select.test => Ok(Type::Bool),
            Type::Map | Type::Dyn => Ok(Type::Dyn),
            _ => Err(ExprError::NoFields {
                found: operand.name(),
                field: select.field.clone(),
            }),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Result<Type, ExprError> {
        if let Some(result) = self.operator(call)? {
            return Ok(result);
        }
        let form = match &call.target {
            None => Form::Global,
            Some(target) => match &target.expr {
                Expr::Ident(space) if functions::is_namespaced(space, &call.func_name) => Form::Namespaced(space),
                _ => {
                    self.infer(target)?;
                    Form::Method
                }
            },
        };
        for argument in &call.args {
            self.infer(argument)?;
        }
        let name = || match form {
            Form::Namespaced(space) => format!("{space}.{}", call.func_name),
            _ => call.func_name.clone(),
        };
        match functions::find(form, &call.func_name, call.args.len()) {
            Ok(function) => Ok(function.result),
            Err(NoCall::Name) => Err(ExprError::UnknownFunction { name: name() }),
            Err(NoCall::Arguments) => Err(ExprError::ArgumentCount {
                name: name(),
                count: call.args.len(),
            }),
        }
    }

    /// The result of an operator; `None` where the call is none.
    fn operator(&mut self, call: &CallExpr) -> Result<Option<Type>, ExprError> {
        let Some(operator) = Operator::of(call) else {
            return Ok(None);
        };
        let mut operands = Vec::with_capacity(call.args.len());
        for argument in &call.args {
            operands.push(self.infer(argument)?);
        }
        let truth = |wanted: &[Type], name: &'static str| match wanted.iter().find(|t| !t.may_be_bool()) {
            Some(other) => Err(ExprError::Operand {
                operator: name,
                found: other.name(),
            }),
            None => Ok(()),
        };
        Ok(Some(match operator {
            Operator::Logical(name) => {
                truth(&operands, name)?;
                Type::Bool
            }
            Operator::Choice => {
                truth(&operands[..1], "the condition of ?:")?;
                match (operands[1], operands[2]) {
                    (one, other) if one == other => one,
                    // As the reference: one branch that is no truth value rules the whole out only with the other.
                    (one, other) if !one.may_be_bool() && !other.may_be_bool() => one,
                    _ => Type::Dyn,
                }
            }
            Operator::Truth => Type::Bool,
            Operator::Arithmetic => operands.iter().copied().find(|t| *t != Type::Dyn).unwrap_or(Type::Dyn),
            Operator::Index if operands[0] == Type::Optional => Type::Optional,
            Operator::Index => Type::Dyn,
            Operator::Optional => Type::Optional,
        }))
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Result<Type, ExprError> {
        self.infer(&c.iter_range)?;
        let start = self.infer(&c.accu_init)?;
        // Macros that only bind a name go through an empty list.
        let binds = matches!(&c.iter_range.expr, Expr::List(list) if list.elements.is_empty());
        self.loops |= !binds;
        let before = self.bound.len();
        self.bound
            .push((c.accu_var.clone(), if binds { Type::Dyn } else { start }));
        self.bound.push((c.iter_var.clone(), Type::Dyn));
        self.bound.extend(c.iter_var2.clone().map(|name| (name, Type::Dyn)));
        self.infer(&c.loop_cond)?;
        self.infer(&c.loop_step)?;
        self.bound.truncate(before + 1);
        let result = self.infer(&c.result);
        self.bound.truncate(before);
        result
    }
}

enum Operator {
    /// Operands and result are truth values.
    Logical(&'static str),
    Choice,
    /// The result is a truth value.
    Truth,
    Arithmetic,
    Index,
    Optional,
}

impl Operator {
    fn of(call: &CallExpr) -> Option<Self> {
        if call.target.is_some() {
            return None;
        }
        Some(match (call.func_name.as_str(), call.args.len()) {
            (operators::LOGICAL_AND, 2) => Self::Logical("&&"),
            (operators::LOGICAL_OR, 2) => Self::Logical("||"),
            (operators::LOGICAL_NOT, 1) => Self::Logical("!"),
            (operators::CONDITIONAL, 3) => Self::Choice,
            (operators::NOT_STRICTLY_FALSE, 1) => Self::Truth,
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS
                | operators::IN,
                2,
            ) => Self::Truth,
            (operators::NEGATE, 1)
            | (
                operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
                2,
            ) => Self::Arithmetic,
            (operators::INDEX, 2) => Self::Index,
            (operators::OPT_INDEX | operators::OPT_SELECT, 2) => Self::Optional,
            _ => return None,
        })
    }
}

fn of_literal(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::String,
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// `a.b.c` where the expression is such a name.
fn dotted(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => Some(format!("{}.{}", dotted(&select.operand)?, select.field)),
        _ => None,
    }
}
