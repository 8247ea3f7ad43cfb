//! Pure decisions: functions from values to a value. No clock (time is an argument), no network,
//! no cluster, no async.

pub mod backoff;
pub mod condition;
pub mod conflict;
pub mod dependency;
pub mod drift;
pub mod duration;
pub mod expr;
pub mod inventory;
pub mod managers;
pub mod next;
pub mod optout;
pub mod order;
pub mod readiness;
pub mod redact;
pub mod spec;
pub mod version;
pub mod window;
