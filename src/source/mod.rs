//! Sources: resolve a reference to an artifact, fetch it, verify it, unpack it.
