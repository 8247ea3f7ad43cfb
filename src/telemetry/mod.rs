//! Logs and metrics. One registry object, no global statics.

mod logs;
mod metrics;
mod work;

pub use logs::install as install_logs;
pub use metrics::Metrics;
pub use work::{Work, Working};
