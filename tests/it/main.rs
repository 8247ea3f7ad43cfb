//! Black-box tests, one module per capability, against a real control plane.

mod support;

mod control;
mod harness;
mod prune;
mod refusals;
mod rollout;
mod steady;
mod teardown;
mod triggers;
mod waiting;
