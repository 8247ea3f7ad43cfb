//! Written cases for the shapes real repositories have.
