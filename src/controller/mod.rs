//! Watches fill the caches and wake StageSets; a woken StageSet gets one step of its run.

mod feed;
mod lease;
mod prerequisites;
mod restored;
mod runner;

pub use feed::Feeds;
pub use lease::Lease;
pub use prerequisites::watch_over;
pub use restored::until_restored;
pub use runner::run;
