//! Servers: probes, metrics, gate, admission.
