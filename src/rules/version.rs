//! Version: pure decisions.
