//! Bytes of an artifact to Kubernetes objects. No I/O, no async, no cluster.
