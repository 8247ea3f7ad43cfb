//! Readiness: pure decisions.
