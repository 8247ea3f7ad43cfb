//! Duration: pure decisions.
