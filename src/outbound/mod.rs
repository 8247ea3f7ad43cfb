//! One door to the network: the address guard, the allowlist, size and time caps.
