//! Backoff: pure decisions.
