//! Conflict: pure decisions.
