//! Order: pure decisions.
