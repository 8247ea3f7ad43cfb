//! Black-box tests, one module per capability, against a real control plane.

mod support;

mod control;
mod crash;
mod docs;
mod endpoints;
mod faults;
mod figures;
mod harness;
mod kustomize;
mod leader;
mod notifications;
mod prune;
mod refusals;
mod rollout;
mod status;
mod steady;
mod teardown;
mod triggers;
mod waiting;
