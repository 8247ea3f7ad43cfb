//! The environment of every expression, with the functions that count.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use cel::common::types::{
    CelBool, CelInt, CelList, CelString, CelUInt, DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE, UINT_TYPE,
};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError, extensions};
use regex::{Regex, RegexBuilder};

use super::budget::{length, spend, spend_on};
use super::meter::{CHARGE, STEP};

type Arguments<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Outcome<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// The environment, made once.
pub(super) fn shared() -> Arc<Env> {
    static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
        let mut env = Env::stdlib();
        // The names are distinct by construction, and a test calls every function.
        if let Err(error) = extend(&mut env) {
            tracing::error!(%error, "an expression function is declared twice");
        }
        Arc::new(env)
    });
    ENV.clone()
}

fn extend(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::encoders)?;
    env.add_overload(CHARGE, CHARGE, vec![DYN_TYPE], charge)?;
    env.add_overload(STEP, STEP, vec![UINT_TYPE, DYN_TYPE], step)?;
    for (name, function) in [
        ("sets.contains", sets_contains as cel::common::functions::Function),
        ("sets.equivalent", sets_equivalent),
        ("sets.intersects", sets_intersects),
    ] {
        env.add_overload(name, name, vec![LIST_TYPE, LIST_TYPE], function)?;
    }
    let texts = |count: usize| std::iter::repeat_with(|| STRING_TYPE).take(count).collect::<Vec<_>>();
    let and_int = |mut types: Vec<_>| {
        types.push(INT_TYPE);
        types
    };
    env.add_overload("@matches", "@matches", texts(2), matches)?;
    env.add_member_overload("@matches", "@matches()", STRING_TYPE, texts(1), matches)?;
    env.add_member_overload("@replace", "@replace", STRING_TYPE, texts(2), replace)?;
    env.add_member_overload("@replace", "@replace(n)", STRING_TYPE, and_int(texts(2)), replace)?;
    env.add_member_overload("@join", "@join", LIST_TYPE, vec![], join)?;
    env.add_member_overload("@join", "@join(text)", LIST_TYPE, texts(1), join)?;
    env.add_member_overload("@indexOf", "@indexOf", STRING_TYPE, texts(1), index_of)?;
    env.add_member_overload("@indexOf", "@indexOf(n)", STRING_TYPE, and_int(texts(1)), index_of)?;
    env.add_member_overload("@lastIndexOf", "@lastIndexOf", STRING_TYPE, texts(1), last_index_of)?;
    env.add_member_overload(
        "@lastIndexOf",
        "@lastIndexOf(n)",
        STRING_TYPE,
        and_int(texts(1)),
        last_index_of,
    )
}

fn charge<'b, 'v>(mut arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    let value = arguments.pop().ok_or_else(ExecutionError::missing_argument_or_target)?;
    spend_on(value.as_ref())?;
    Ok(value)
}

fn step<'b, 'v>(mut arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    let value = arguments.pop().ok_or_else(ExecutionError::missing_argument_or_target)?;
    let cost = arguments
        .first()
        .and_then(|c| c.downcast_ref::<CelUInt>().map(|c| *c.inner()));
    spend(cost.unwrap_or(u64::MAX))?;
    Ok(value)
}

fn truth<'b, 'v>(truth: bool) -> Outcome<'b, 'v> {
    Ok(CowVal::owned(CelBool::from(truth)))
}

fn wrong(function: &str, value: &(dyn Val + '_)) -> ExecutionError {
    ExecutionError::no_such_overload(function, vec![value.get_type().name().to_owned()])
}

fn text<'a>(function: &str, arguments: &'a [CowVal<'_, '_>], at: usize) -> Result<&'a str, ExecutionError> {
    let value = arguments
        .get(at)
        .ok_or_else(ExecutionError::missing_argument_or_target)?;
    value
        .downcast_ref::<CelString>()
        .map(|text| text.inner())
        .ok_or_else(|| wrong(function, value.as_ref()))
}

fn list<'a, 'v>(
    function: &str,
    arguments: &'a [CowVal<'_, 'v>],
    at: usize,
) -> Result<&'a [Box<dyn Val + 'v>], ExecutionError> {
    let value = arguments
        .get(at)
        .ok_or_else(ExecutionError::missing_argument_or_target)?;
    value
        .downcast_ref::<CelList>()
        .map(CelList::inner)
        .ok_or_else(|| wrong(function, value.as_ref()))
}

fn integer(arguments: &[CowVal<'_, '_>], at: usize) -> Option<i64> {
    arguments.get(at)?.downcast_ref::<CelInt>().map(|n| *n.inner())
}

/// Whether every item of `inner` is in `outer`. Each pair is compared at worst.
fn within(inner: &[Box<dyn Val + '_>], outer: &[Box<dyn Val + '_>]) -> Result<bool, ExecutionError> {
    for item in inner {
        for other in outer {
            spend_on(item.as_ref())?;
            if item.equals(other.as_ref()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn all_within(inner: &[Box<dyn Val + '_>], outer: &[Box<dyn Val + '_>]) -> Result<bool, ExecutionError> {
    for item in inner {
        if !within(std::slice::from_ref(item), outer)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sets_contains<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "sets.contains";
    truth(all_within(list(NAME, &arguments, 1)?, list(NAME, &arguments, 0)?)?)
}

fn sets_equivalent<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "sets.equivalent";
    let (one, other) = (list(NAME, &arguments, 0)?, list(NAME, &arguments, 1)?);
    truth(all_within(one, other)? && all_within(other, one)?)
}

fn sets_intersects<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "sets.intersects";
    truth(within(list(NAME, &arguments, 0)?, list(NAME, &arguments, 1)?)?)
}

/// The text with `from` replaced, everywhere or the given number of times.
fn replace<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "replace";
    let (this, from, to) = (
        text(NAME, &arguments, 0)?,
        text(NAME, &arguments, 1)?,
        text(NAME, &arguments, 2)?,
    );
    let limit = integer(&arguments, 3)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let count = this.matches(from).take(limit).count();
    spend(length(this.len()).saturating_add(length(count).saturating_mul(length(to.len()))))?;
    Ok(CowVal::owned(CelString::from(this.replacen(from, to, count))))
}

fn join<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "join";
    let items = list(NAME, &arguments, 0)?;
    let separator = if arguments.len() > 1 {
        text(NAME, &arguments, 1)?
    } else {
        ""
    };
    spend(length(items.len()).saturating_mul(length(separator.len())))?;
    let parts = items.iter().map(|item| {
        item.downcast_ref::<CelString>()
            .map(|t| t.inner())
            .ok_or_else(|| wrong(NAME, item.as_ref()))
    });
    let parts = parts.collect::<Result<Vec<&str>, _>>()?;
    Ok(CowVal::owned(CelString::from(parts.join(separator))))
}

/// Where to look from, in bytes, for an index in characters.
fn offset(function: &str, this: &str, needle: &str, index: i64) -> Result<usize, ExecutionError> {
    let out_of_range = || ExecutionError::function_error(function, "index out of range");
    let index = usize::try_from(index).map_err(|_| out_of_range())?;
    match this.char_indices().nth(index) {
        Some((at, _)) => Ok(at),
        None if needle.is_empty() => Ok(this.len()),
        None => Err(out_of_range()),
    }
}

/// A position in bytes as an index in characters, or -1.
fn index<'b, 'v>(this: &str, at: Option<usize>) -> Outcome<'b, 'v> {
    let index = at.map_or(-1, |at| i64::try_from(this[..at].chars().count()).unwrap_or(i64::MAX));
    Ok(CowVal::owned(CelInt::from(index)))
}

fn index_of<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "indexOf";
    let (this, needle) = (text(NAME, &arguments, 0)?, text(NAME, &arguments, 1)?);
    let from = integer(&arguments, 2).map_or(Ok(0), |n| offset(NAME, this, needle, n))?;
    index(this, this[from..].find(needle).map(|at| at + from))
}

fn last_index_of<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "lastIndexOf";
    let (this, needle) = (text(NAME, &arguments, 0)?, text(NAME, &arguments, 1)?);
    let last = integer(&arguments, 2).map_or(Ok(this.len()), |n| offset(NAME, this, needle, n))?;
    // It may begin at `last`, so its end may lie behind.
    let end = this.floor_char_boundary(last.saturating_add(needle.len()));
    index(this, this[..end].rfind(needle))
}

/// Sizes a compiled pattern may have, in bytes, and what one byte of text costs with it.
const PATTERNS: [(usize, u64); 5] = [
    (4 << 10, 16),
    (16 << 10, 64),
    (64 << 10, 256),
    (256 << 10, 1024),
    (1 << 20, 4096),
];
/// What compiling costs, as a multiple of the cost of a byte.
const COMPILING: u64 = 300;
/// Compiled patterns a thread keeps, and the largest it keeps.
const KEPT: usize = 16;
const KEPT_SIZE: usize = 64 << 10;

thread_local! {
    static REGEXES: RefCell<Vec<(String, Regex, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Whether the pattern is found in the text. Time is linear in both, and a pattern can be much larger than its text:
/// `a{1000}` is a thousand letters.
fn matches<'b, 'v>(arguments: Arguments<'b, 'v>) -> Outcome<'b, 'v> {
    const NAME: &str = "matches";
    let (this, pattern) = (text(NAME, &arguments, 0)?, text(NAME, &arguments, 1)?);
    let (regex, cost) = pattern_of(pattern)?;
    spend(cost.saturating_mul(length(this.len())))?;
    truth(regex.is_match(this))
}

fn pattern_of(pattern: &str) -> Result<(Regex, u64), ExecutionError> {
    let kept = REGEXES.with_borrow(|kept| {
        kept.iter()
            .find(|(text, ..)| text == pattern)
            .map(|(_, r, c)| (r.clone(), *c))
    });
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let mut refused = "pattern too large";
    for (size, cost) in PATTERNS {
        spend(cost * COMPILING)?;
        match RegexBuilder::new(pattern)
            .size_limit(size)
            .dfa_size_limit(size.max(64 << 10))
            .build()
        {
            Ok(regex) => {
                if size <= KEPT_SIZE {
                    REGEXES.with_borrow_mut(|kept| {
                        if kept.len() >= KEPT {
                            kept.remove(0);
                        }
                        kept.push((pattern.to_owned(), regex.clone(), cost));
                    });
                }
                return Ok((regex, cost));
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(_) => {
                refused = "no regular expression";
                break;
            }
        }
    }
    Err(ExecutionError::function_error("matches", refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_its_own_name() {
        assert_eq!(extend(&mut Env::stdlib()), Ok(()));
    }
}
