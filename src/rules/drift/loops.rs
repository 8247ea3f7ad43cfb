//! Drift that returns: the same field corrected against the same manager pass after pass (decisions 6).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Change;
use crate::rules::backoff::Ladder;
use crate::rules::inventory::ObjectId;

/// Corrections in a row after which drift counts as a loop.
pub const LOOP_PASSES: u32 = 5;
/// First wait before a field in a loop is corrected again.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// Two managers that keep overwriting each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftLoop {
    pub object: ObjectId,
    /// JSON pointer of the field.
    pub path: String,
    /// The other manager.
    pub manager: String,
    pub passes: u32,
}

impl fmt::Display for DriftLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} was corrected {} times in a row against {}; \
             ignore the field (spec.stages[].ignore) or stop the other manager",
            self.object, self.path, self.passes, self.manager
        )
    }
}

/// What is remembered of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    manager: String,
    passes: u32,
}

/// The corrections in a row of every field that drifts. Holds nothing for objects that do not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DriftLoops {
    fields: BTreeMap<ObjectId, BTreeMap<String, Seen>>,
}

impl DriftLoops {
    /// Takes in what one pass corrected on an object (nothing, where it was clean) and returns the loops that became
    /// one with it. A field that was not corrected, or against another manager, begins anew. A pass that left the
    /// correction out because it has to wait is not taken in.
    pub fn observe(&mut self, object: &ObjectId, corrected: &[Change]) -> Vec<DriftLoop> {
        let before = self.fields.remove(object).unwrap_or_default();
        let mut after = BTreeMap::new();
        let mut found = Vec::new();
        for change in corrected {
            let manager = change
                .manager
                .clone()
                .unwrap_or_else(|| "an unknown manager".to_owned());
            let earlier = before.get(&change.path).filter(|seen| seen.manager == manager);
            let passes = earlier.map_or(0, |seen| seen.passes).saturating_add(1);
            if passes == LOOP_PASSES {
                found.push(DriftLoop {
                    object: object.clone(),
                    path: change.path.clone(),
                    manager: manager.clone(),
                    passes,
                });
            }
            after.insert(change.path.clone(), Seen { manager, passes });
        }
        if !after.is_empty() {
            self.fields.insert(object.clone(), after);
        }
        found
    }

    /// How long after its last correction an object is left alone: nothing while there is no loop, then twice as long
    /// each time, up to `interval`.
    pub fn wait(&self, object: &ObjectId, interval: Duration) -> Duration {
        let fields = self.fields.get(object).into_iter().flat_map(BTreeMap::values);
        let most = fields.map(|seen| seen.passes).max().unwrap_or(0);
        match most.checked_sub(LOOP_PASSES) {
            Some(beyond) => Ladder::doubling(FIRST_WAIT, interval).wait(beyond),
            None => Duration::ZERO,
        }
    }

    /// Forgets an object that left the inventory.
    pub fn forget(&mut self, object: &ObjectId) {
        self.fields.remove(object);
    }
}
