//! Sources: resolve a reference to an artifact, fetch it, verify it, unpack it.
//!
//! [`resolve::plan`] says what to read for a `sourceRef`; whoever holds the watch caches reads it; [`Target::judge`]
//! turns what was found into an [`Artifact`] or an [`Error`]. [`cache::Cache::tree`] turns the artifact into its files,
//! and [`Tree::build_directory`] finds the stage's directory in them. [`Error::outcome`] says what a failure means.

pub mod archive;
pub mod cache;
pub mod digest;
mod error;
pub mod fetch;
pub mod path;
pub mod resolve;
#[cfg(test)]
mod testing;
mod tree;

pub use archive::{Fault, Limits};
pub use cache::Cache;
pub use digest::Digest;
pub use error::{Class, Error, NotReady, ObjectName, Outcome, ReadFailure};
pub use resolve::{Artifact, Lookup, Reference, Scope, SourceKey, Target};
pub use tree::{PathError, SkippedKind, Tree};
