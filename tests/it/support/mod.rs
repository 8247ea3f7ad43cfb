//! What every test stands on: a real control plane, the real binary, and helpers in the domain's words.
//!
//! A test begins with [`World::start`], which gives it a namespace of its own with a tenant
//! ServiceAccount, a fault proxy, and a controller that watches that namespace alone.

#![allow(
    dead_code,
    unused_imports,
    reason = "each capability uses its own part of the harness"
)]

pub mod archive;
pub mod artifacts;
pub mod cluster;
pub mod controller;
pub mod controlplane;
pub mod diagnose;
pub mod objects;
pub mod process;
pub mod proxy;
pub mod sources;
pub mod stageset;
pub mod world;

use std::{future::Future, time::Duration};

pub use self::{
    archive::Archive,
    artifacts::ArtifactServer,
    cluster::Cluster,
    controller::{Controller, Launch},
    controlplane::ControlPlane,
    proxy::{Class, Fault, FaultProxy, Match, Moment, Tally, Verb, When},
    stageset::StageSet,
    world::{Identity, World},
};

/// What a test may reasonably wait for a rollout on a busy two-core machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks at something that is awaited.
pub const GLANCE: Duration = Duration::from_millis(40);

/// rustls wants one process-wide provider; more than one call is fine.
pub fn install_crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Looks until the closure gives a value; `Err` says what was seen instead. `None` when time is up.
pub async fn look<T, F, Fut>(patience: Duration, mut glance: F) -> Result<T, String>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let seen = match glance().await {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(seen);
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// A seed for what is drawn at random: `STAGESET_SEED` where it is set, else new; always printed.
pub fn seed() -> u64 {
    let seed = std::env::var("STAGESET_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(rand::random);
    println!("STAGESET_SEED={seed}");
    seed
}

/// Whether every case is to be run instead of a sample (`hack/test --full`).
pub fn full() -> bool {
    std::env::var("STAGESET_FULL").is_ok_and(|v| v == "1")
}

/// Measurements want the machine to themselves: they take it alone, everything else shares it.
pub mod machine {
    use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    static QUIET: RwLock<()> = RwLock::const_new(());

    /// Held by an ordinary test.
    pub async fn share() -> RwLockReadGuard<'static, ()> {
        QUIET.read().await
    }

    /// Held by a test that measures time.
    pub async fn alone() -> RwLockWriteGuard<'static, ()> {
        QUIET.write().await
    }
}
