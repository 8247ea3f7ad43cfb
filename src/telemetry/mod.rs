//! Logs and metrics. One registry object, no global statics.

mod logs;
mod metrics;

pub use logs::install as install_logs;
pub use metrics::Metrics;
