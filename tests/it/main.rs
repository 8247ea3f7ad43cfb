//! Black-box tests, one module per capability, against a real control plane.

mod support;

mod harness;
mod refusals;
mod rollout;
mod steady;
mod waiting;
