//! stageset-controller: staged delivery for Kubernetes.
#![forbid(unsafe_code)]
// What cannot go on says why in an error; a panic is for tests.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod api;
pub mod app;
pub mod cache;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod manifest;
pub mod outbound;
pub mod rules;
pub mod run;
pub mod serve;
pub mod slot;
pub mod source;
pub mod telemetry;
