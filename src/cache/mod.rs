//! What the watches have reported, indexed for the run: StageSets, inventories, sources.

mod inventories;
mod sources;
mod stagesets;

pub use inventories::Inventories;
pub use sources::Sources;
pub use stagesets::{Change, StageSets, owner_of, reference, trim};
