//! Watches fill the caches and wake StageSets; a woken StageSet gets one step of its run.

mod feed;
mod lease;
mod runner;

pub use feed::Feeds;
pub use lease::Lease;
pub use runner::run;
