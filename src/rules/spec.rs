//! Spec: pure decisions.
