//! Artifact digests: `<algorithm>:<hex>`.

use std::fmt;

use sha2::Digest as _;

/// Algorithms that Flux can publish (decisions 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-384 (FIPS 180-4).
    Sha384,
    /// SHA-512 (FIPS 180-4).
    Sha512,
    /// BLAKE3 with its default 32 bytes of output.
    Blake3,
}

impl Algorithm {
    const ALL: [Self; 4] = [Self::Sha256, Self::Sha384, Self::Sha512, Self::Blake3];

    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
            Self::Blake3 => "blake3",
        }
    }

    /// Length of the digest in bytes.
    fn length(self) -> usize {
        match self {
            Self::Sha256 | Self::Blake3 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// A content digest. Printed in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

/// Text that is no digest this controller can verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// No colon between algorithm and value.
    #[error("it has no \"<algorithm>:\" prefix")]
    Shape,
    /// An algorithm that is not verified here.
    #[error("algorithm {0:?} is not one of sha256, sha384, sha512, blake3")]
    Algorithm(String),
    /// Wrong number of hexadecimal digits, or other characters.
    #[error("{algorithm} needs {wanted} hexadecimal digits")]
    Value {
        /// The algorithm of the prefix.
        algorithm: &'static str,
        /// How many digits it has.
        wanted: usize,
    },
}

impl Digest {
    /// Reads `<algorithm>:<hex>`; surrounding blanks and case do not count (run 12).
    ///
    /// # Errors
    /// [`DigestError`] naming what is wrong.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let (name, hex) = text.trim().split_once(':').ok_or(DigestError::Shape)?;
        let algorithm = Algorithm::ALL
            .into_iter()
            .find(|a| a.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| DigestError::Algorithm(name.to_owned()))?;
        let bytes = unhex(hex)
            .filter(|b| b.len() == algorithm.length())
            .ok_or(DigestError::Value {
                algorithm: algorithm.name(),
                wanted: algorithm.length() * 2,
            })?;
        Ok(Self { algorithm, bytes })
    }

    /// Computes the digest of `content`. Takes about a second per gigabyte: keep it off the async threads.
    #[must_use]
    pub fn compute(algorithm: Algorithm, content: &[u8]) -> Self {
        let bytes = match algorithm {
            Algorithm::Sha256 => sha2::Sha256::digest(content).to_vec(),
            Algorithm::Sha384 => sha2::Sha384::digest(content).to_vec(),
            Algorithm::Sha512 => sha2::Sha512::digest(content).to_vec(),
            Algorithm::Blake3 => blake3::hash(content).as_bytes().to_vec(),
        };
        Self { algorithm, bytes }
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.algorithm.name())?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    // FIPS 180-4 and BLAKE3 test vectors for "abc".
    const SHA256: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const SHA384: &str =
        "sha384:cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7";
    const SHA512: &str = "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
    const BLAKE3: &str = "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";

    #[rstest]
    #[case(SHA256)]
    #[case(SHA384)]
    #[case(SHA512)]
    #[case(BLAKE3)]
    fn known_answers(#[case] text: &str) {
        let digest = Digest::parse(text).expect("a digest");
        assert_eq!(digest.to_string(), text);
        assert_eq!(Digest::compute(digest.algorithm(), b"abc"), digest);
        assert_ne!(Digest::compute(digest.algorithm(), b"abd"), digest);
    }

    #[test]
    fn blanks_and_case_do_not_count() {
        let shouted = format!("  {}\n", SHA256.to_ascii_uppercase());
        assert_eq!(Digest::parse(&shouted), Digest::parse(SHA256));
    }

    #[rstest]
    #[case("", DigestError::Shape)]
    #[case("abc", DigestError::Shape)]
    #[case("md5:00", DigestError::Algorithm("md5".to_owned()))]
    #[case(":00", DigestError::Algorithm(String::new()))]
    #[case("sha256:", DigestError::Value { algorithm: "sha256", wanted: 64 })]
    #[case("sha256:ba78", DigestError::Value { algorithm: "sha256", wanted: 64 })]
    #[case("sha256:abc", DigestError::Value { algorithm: "sha256", wanted: 64 })]
    #[case("sha512:zz", DigestError::Value { algorithm: "sha512", wanted: 128 })]
    fn refused(#[case] text: &str, #[case] expected: DigestError) {
        assert_eq!(Digest::parse(text), Err(expected));
    }

    #[test]
    fn a_digest_of_another_length_is_refused() {
        let text = SHA384.replace("sha384", "sha256");
        assert!(matches!(Digest::parse(&text), Err(DigestError::Value { .. })));
    }
}
