//! Download, verification, unpacking: nothing is unpacked before its digest was found right.

use bytes::Bytes;

use super::archive::{self, Limits};
use super::digest::Digest;
use super::error::Error;
use super::resolve::Artifact;
use super::tree::Tree;
use crate::outbound;

/// Reads the digest of an artifact.
///
/// # Errors
/// [`Error::InvalidDigest`].
pub fn digest(artifact: &Artifact) -> Result<Digest, Error> {
    Digest::parse(&artifact.digest).map_err(|error| Error::InvalidDigest {
        object: artifact.object(),
        digest: artifact.digest.clone(),
        error,
    })
}

/// Downloads the compressed bytes of an artifact; they are not verified yet.
///
/// # Errors
/// [`Error::Fetch`].
pub async fn download(client: &outbound::Client, artifact: &Artifact, limits: &Limits) -> Result<Bytes, Error> {
    let caps = outbound::Limits::download(limits.compressed);
    client.fetch(&artifact.url, &caps).await.map_err(|error| Error::Fetch {
        object: artifact.object(),
        error,
    })
}

/// Compares the digest of the compressed bytes. CPU-bound: call it from a blocking thread.
///
/// # Errors
/// [`Error::DigestMismatch`].
pub fn verify(artifact: &Artifact, expected: &Digest, bytes: &[u8]) -> Result<(), Error> {
    let actual = Digest::compute(expected.algorithm(), bytes);
    if actual == *expected {
        return Ok(());
    }
    Err(Error::DigestMismatch {
        object: artifact.object(),
        expected: expected.clone(),
        actual,
    })
}

/// Unpacks verified bytes. CPU-bound: call it from a blocking thread.
///
/// # Errors
/// [`Error::Archive`].
pub fn unpack(artifact: &Artifact, bytes: &[u8], limits: &Limits) -> Result<Tree, Error> {
    archive::unpack(bytes, limits).map_err(|fault| Error::Archive {
        object: artifact.object(),
        fault,
    })
}

#[cfg(test)]
mod tests;
