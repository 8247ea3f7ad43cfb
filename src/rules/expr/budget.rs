//! The budget of one evaluation. The library calls functions without any context of ours, so it lives in the
//! thread: an evaluation never leaves the thread it began on.

use std::cell::Cell;

use cel::ExecutionError;
use cel::common::types::{CelBytes, CelList, CelMap, CelOptional, CelString};
use cel::common::value::Val;

/// Cost of a value that an operation reads, copies or makes.
const VALUE: u64 = 32;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static SPENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `evaluation` with a budget. The second result says that the budget ran out, also where the expression
/// absorbed the error.
pub(super) fn limited<T>(budget: u64, evaluation: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(budget);
    SPENT.set(false);
    let result = evaluation();
    (result, SPENT.get())
}

/// Takes `cost` from the budget.
///
/// # Errors
/// There is not so much left; then nothing is left.
pub(super) fn spend(cost: u64) -> Result<(), ExecutionError> {
    let left = LEFT.get();
    if !SPENT.get() && cost <= left {
        LEFT.set(left - cost);
        return Ok(());
    }
    SPENT.set(true);
    LEFT.set(0);
    Err(ExecutionError::function_error("budget", "spent"))
}

/// Takes the cost of handling `value` from the budget: the values in it, and the bytes of its texts.
///
/// # Errors
/// As [`spend`].
pub(super) fn spend_on(value: &(dyn Val + '_)) -> Result<(), ExecutionError> {
    if let Some(text) = value.downcast_ref::<CelString>() {
        return spend(VALUE + length(text.inner().len()));
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        return spend(VALUE + length(bytes.inner().len()));
    }
    spend(VALUE)?;
    if let Some(list) = value.downcast_ref::<CelList>() {
        list.inner().iter().try_for_each(|item| spend_on(item.as_ref()))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        map.inner().iter().try_for_each(|(key, item)| {
            spend_on(key.inner())?;
            spend_on(item.as_ref())
        })
    } else if let Some(inner) = value.downcast_ref::<CelOptional>().and_then(CelOptional::option) {
        spend_on(inner)
    } else {
        Ok(())
    }
}

/// A length as a cost.
pub(super) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
