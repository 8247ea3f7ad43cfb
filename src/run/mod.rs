//! One step of a run for one StageSet.
