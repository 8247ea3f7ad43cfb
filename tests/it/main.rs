//! Black-box tests, one module per capability, against a real control plane.

mod kustomize;
