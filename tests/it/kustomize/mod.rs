//! The kustomize engine against the real program, file for file.

mod command;
mod fixtures;
mod generator;
mod oracle;
mod overlays;
mod random;
mod reference;
mod schema;
mod yaml;
