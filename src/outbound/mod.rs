//! One door to the network: the address guard, the allowlist, size and time caps.
//!
//! Artifact downloads, http actions, metric queries and key services all go through [`Client`]. The address rule is
//! applied to literal hosts, to every answer of the resolver (the client dials only checked addresses) and to each
//! redirect hop; proxies from the environment are ignored, because they would resolve names past the guard.

pub mod address;
mod client;
mod error;
mod policy;
mod resolver;

pub use address::AddressClass;
pub use client::{Client, Limits, MAX_REDIRECTS, Overflow, Pace, Request, Response, Timeouts};
pub use error::{Error, Phase, RedactedUrl, Refusal};
pub use policy::{AllowedHosts, HostPattern, PatternError, Policy};
pub use resolver::{Resolve, SystemResolver};
