//! Black-box tests, one module per capability, against a real control plane.

mod support;

mod accounts;
mod applying;
mod attacks;
mod checks;
mod control;
mod crash;
mod dependencies;
mod docs;
mod drift;
mod elsewhere;
mod endpoints;
mod faults;
mod figures;
mod forgeries;
mod gates;
mod harness;
mod kustomize;
mod leader;
mod notifications;
mod policies;
mod prune;
mod refusals;
mod remote;
mod retries;
mod rollout;
mod rules;
mod status;
mod steady;
mod teardown;
mod triggers;
mod waiting;
mod wakes;
mod watches;
mod windows;
