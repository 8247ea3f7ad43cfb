//! Inventory: pure decisions.
