//! The kustomize engine against the real program, file for file.

mod fixtures;
mod generator;
mod random;
mod reference;
