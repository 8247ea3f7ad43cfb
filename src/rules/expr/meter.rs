//! Writes the counting of cost into an expression.
//!
//! Three kinds of calls, with names that no expression can contain, take from the budget: `@charge(x)` the size of
//! `x`, around what an operation reads, copies or makes; `@step(n, x)` the static cost `n` of a loop's body, once a
//! turn; and our own `@replace`, `@matches` and others, whose cost is no simple sum. They hand their value through,
//! so the meaning of the expression stays.
//!
//! An error in the body of `all` or `exists` does not end the loop, another element may still decide it. So the step
//! of such a loop is counted in its condition, where an error ends it.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapEntryExpr,
    SelectExpr, operators,
};

use super::functions::{self, Form};

/// Takes the size of its argument from the budget.
pub(super) const CHARGE: &str = "@charge";
/// Takes its first argument from the budget and hands the second through.
pub(super) const STEP: &str = "@step";

/// Static cost of evaluating one part of an expression.
const PART: u64 = 3;

/// The expression with its counting.
pub(super) fn meter(root: IdedExpr) -> IdedExpr {
    let mut meter = Meter { loops: 1, cost: 0 };
    meter.rewrite(root)
}

struct Meter {
    /// Loops around this place, and one: so many scopes a name is looked up in.
    loops: u64,
    /// Static cost so far.
    cost: u64,
}

impl Meter {
    fn rewrite(&mut self, expr: IdedExpr) -> IdedExpr {
        self.cost += PART;
        let IdedExpr { id, expr } = expr;
        let expr = match expr {
            Expr::Call(call) => return self.call(id, call),
            Expr::Comprehension(comprehension) => return self.comprehension(id, *comprehension),
            Expr::Select(select) => return self.select(id, select),
            Expr::Ident(name) => {
                self.cost += self.loops;
                Expr::Ident(name)
            }
            Expr::List(list) => Expr::List(ListExpr {
                elements: list.elements.into_iter().map(|e| self.counted(e)).collect(),
                optional_indices: list.optional_indices,
            }),
            Expr::Map(mut map) => {
                map.entries = map.entries.into_iter().map(|e| self.entry(e)).collect();
                Expr::Map(map)
            }
            other => other,
        };
        IdedExpr { id, expr }
    }

    /// Rewritten, and its size counted.
    fn counted(&mut self, expr: IdedExpr) -> IdedExpr {
        charge(self.rewrite(expr))
    }

    fn entry(&mut self, entry: IdedEntryExpr) -> IdedEntryExpr {
        let expr = match entry.expr {
            EntryExpr::MapEntry(e) => EntryExpr::MapEntry(MapEntryExpr {
                key: self.counted(e.key),
                value: self.counted(e.value),
                optional: e.optional,
            }),
            field => field,
        };
        IdedEntryExpr { id: entry.id, expr }
    }

    fn select(&mut self, id: u64, select: SelectExpr) -> IdedExpr {
        let links = links(&select.operand);
        // A name `a.b.c` is looked up as a whole first, then without its last part, and so on.
        self.cost += links * self.loops;
        let copies = !select.test && !is_path(&select.operand);
        let expr = Expr::Select(SelectExpr {
            operand: Box::new(self.rewrite(*select.operand)),
            ..select
        });
        let expr = IdedExpr { id, expr };
        if copies { charge(expr) } else { expr }
    }

    fn call(&mut self, id: u64, mut call: CallExpr) -> IdedExpr {
        let form = match &call.target {
            None => Form::Global,
            Some(target) => match &target.expr {
                Expr::Ident(space) if functions::is_namespaced(space, &call.func_name) => {
                    return self.namespaced(id, call);
                }
                _ => Form::Method,
            },
        };
        let Ok(function) = functions::find(form, &call.func_name, call.args.len()) else {
            return self.operator(id, call);
        };
        call.target = call.target.map(|target| Box::new(self.counted(*target)));
        call.args = call.args.into_iter().map(|argument| self.counted(argument)).collect();
        if let Some(name) = functions::counted(&call.func_name) {
            call.func_name = name;
        }
        let expr = rebuilt(id, call);
        if function.result.is_small() { expr } else { charge(expr) }
    }

    /// The target is the first half of the function's name, so it stays as it is.
    fn namespaced(&mut self, id: u64, mut call: CallExpr) -> IdedExpr {
        call.args = call.args.into_iter().map(|argument| self.counted(argument)).collect();
        charge(rebuilt(id, call))
    }

    fn operator(&mut self, id: u64, mut call: CallExpr) -> IdedExpr {
        let literal = call.args.iter().any(|a| matches!(a.expr, Expr::Literal(_)));
        let mut args: Vec<IdedExpr> = call.args.into_iter().map(|argument| self.rewrite(argument)).collect();
        let (read, made) = match call.func_name.as_str() {
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS => ((!literal).then_some(0), false),
            operators::IN => (Some(1), false),
            operators::ADD | operators::OPT_INDEX | operators::OPT_SELECT => (None, true),
            _ => (None, false),
        };
        if let Some(read) = read.filter(|at| *at < args.len()) {
            let operand = args.swap_remove(read);
            args.push(charge(operand));
            let last = args.len() - 1;
            args.swap(read, last);
        }
        call.args = args;
        let expr = rebuilt(id, call);
        if made { charge(expr) } else { expr }
    }

    fn comprehension(&mut self, id: u64, c: ComprehensionExpr) -> IdedExpr {
        let binds = matches!(&c.iter_range.expr, Expr::List(list) if list.elements.is_empty());
        let iter_range = self.counted(c.iter_range);
        let accu_init = self.counted(c.accu_init);
        let outside = std::mem::take(&mut self.cost);
        self.loops += 1;
        let mut loop_cond = self.rewrite(c.loop_cond);
        let mut loop_step = self.rewrite(c.loop_step);
        let turn = std::mem::replace(&mut self.cost, outside);
        let result = self.rewrite(c.result);
        self.loops -= 1;
        if !binds {
            // The library builds lists in place where it recognises a step that appends; its shape has to stay.
            let appends = matches!(loop_cond.expr, Expr::Literal(_));
            if !(appends && step_inside(&mut loop_step, turn)) {
                loop_cond = step(turn, loop_cond);
            }
        }
        charge(IdedExpr {
            id,
            expr: Expr::Comprehension(Box::new(ComprehensionExpr {
                iter_range,
                accu_init,
                loop_cond,
                loop_step,
                result,
                ..c
            })),
        })
    }
}

/// Counts a turn within `condition ? @result + [..] : @result` or `@result + [..]`; false for another shape.
fn step_inside(expr: &mut IdedExpr, turn: u64) -> bool {
    // Appending is an addition, so it has been given its own counting; the library must not see it.
    uncharge(expr);
    let Expr::Call(call) = &mut expr.expr else {
        return false;
    };
    match (call.func_name.as_str(), call.args.as_mut_slice()) {
        (operators::CONDITIONAL, [condition, then, _]) => {
            uncharge(then);
            *condition = step(turn, std::mem::take(condition));
            true
        }
        (operators::ADD, [_, items]) => match &mut items.expr {
            Expr::List(list) if !list.elements.is_empty() => {
                let first = &mut list.elements[0];
                *first = step(turn, std::mem::take(first));
                true
            }
            _ => false,
        },
        _ => false,
    }
}

fn charge(expr: IdedExpr) -> IdedExpr {
    if matches!(expr.expr, Expr::Literal(_)) || is_charge(&expr) {
        return expr;
    }
    let id = expr.id;
    rebuilt(
        id,
        CallExpr {
            func_name: CHARGE.to_owned(),
            target: None,
            args: vec![expr],
        },
    )
}

fn uncharge(expr: &mut IdedExpr) {
    if is_charge(expr)
        && let Expr::Call(call) = &mut expr.expr
        && let Some(inner) = call.args.pop()
    {
        *expr = inner;
    }
}

fn is_charge(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Call(call) if call.func_name == CHARGE)
}

fn step(cost: u64, expr: IdedExpr) -> IdedExpr {
    let id = expr.id;
    let cost = IdedExpr {
        id,
        expr: Expr::Literal(LiteralValue::UInt(cost.into())),
    };
    rebuilt(
        id,
        CallExpr {
            func_name: STEP.to_owned(),
            target: None,
            args: vec![cost, expr],
        },
    )
}

fn rebuilt(id: u64, call: CallExpr) -> IdedExpr {
    IdedExpr {
        id,
        expr: Expr::Call(call),
    }
}

/// Whether reading a field of the expression copies nothing: a variable, or something in it.
fn is_path(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => !select.test && is_path(&select.operand),
        Expr::Call(call) => call.func_name == operators::INDEX && call.args.first().is_some_and(is_path),
        _ => false,
    }
}

/// Links of a chain of fields.
fn links(expr: &IdedExpr) -> u64 {
    let mut links = 1;
    let mut at = expr;
    while let Expr::Select(select) = &at.expr {
        links += 1;
        at = &select.operand;
    }
    links
}
