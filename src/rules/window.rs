//! Window: pure decisions.
