//! One door to a cluster: clients bound to an identity.
