//! Black-box tests, one module per capability, against a real control plane.

mod support;

mod chaos;
mod control;
mod crash;
mod crash_matrix;
mod docs;
mod endpoints;
mod faults;
mod figures;
mod gates;
mod harness;
mod kustomize;
mod leader;
mod notifications;
mod policies;
mod prune;
mod records;
mod refusals;
mod remote;
mod rollout;
mod status;
mod steady;
mod teardown;
mod triggers;
mod waiting;
mod wakes;
mod watches;
mod workloads;
