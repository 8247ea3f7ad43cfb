//! Condition: pure decisions.
