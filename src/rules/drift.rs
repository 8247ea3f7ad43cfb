//! Drift: pure decisions.
