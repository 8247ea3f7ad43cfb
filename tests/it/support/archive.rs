//! Artifacts as producers ship them: gzipped tarballs, good ones and bad ones, built in memory.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// A tarball under construction; entries keep their order.
#[derive(Clone, Default)]
pub struct Archive {
    tar: Vec<u8>,
}

impl Archive {
    /// Nothing in it yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An archive of text files.
    pub fn of(files: &[(&str, &str)]) -> Self {
        files
            .iter()
            .fold(Self::new(), |archive, (path, content)| archive.file(path, content))
    }

    /// A regular file.
    pub fn file(self, path: &str, content: &str) -> Self {
        self.entry(path, content.as_bytes(), b'0', "")
    }

    /// A regular file of binary content.
    pub fn bytes(self, path: &str, content: &[u8]) -> Self {
        self.entry(path, content, b'0', "")
    }

    /// A symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, b"", b'2', target)
    }

    /// A hard link.
    pub fn hardlink(self, path: &str, target: &str) -> Self {
        self.entry(path, b"", b'1', target)
    }

    /// A character device.
    pub fn device(self, path: &str) -> Self {
        self.entry(path, b"", b'3', "")
    }

    /// A directory.
    pub fn dir(self, path: &str) -> Self {
        self.entry(path, b"", b'5', "")
    }

    /// Written byte by byte, because a tar library refuses the names an attacker would use.
    fn entry(mut self, path: &str, content: &[u8], kind: u8, link: &str) -> Self {
        let mut header = [0_u8; 512];
        put(&mut header[..100], path.as_bytes());
        put(&mut header[100..108], b"0000644\0");
        put(&mut header[108..116], b"0000000\0");
        put(&mut header[116..124], b"0000000\0");
        put(&mut header[124..136], format!("{:011o}\0", content.len()).as_bytes());
        put(&mut header[136..148], b"00000000000\0");
        header[148..156].fill(b' ');
        header[156] = kind;
        put(&mut header[157..257], link.as_bytes());
        put(&mut header[257..265], b"ustar\x0000");
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        put(&mut header[148..156], format!("{sum:06o}\0 ").as_bytes());
        self.tar.extend_from_slice(&header);
        self.tar.extend_from_slice(content);
        self.tar.resize(self.tar.len().next_multiple_of(512), 0);
        self
    }

    /// The finished `.tar.gz`. The same content always gives the same bytes.
    pub fn gzip(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&self.tar).expect("writing to memory");
        encoder.write_all(&[0; 1024]).expect("writing to memory");
        encoder.finish().expect("writing to memory")
    }

    /// A small download that inflates to this many MiB of zeroes in one file.
    pub fn bomb(mebibytes: usize) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let size = mebibytes * 1024 * 1024;
        let head = Self::new().entry("bomb.yaml", b"", b'0', "").tar;
        let mut head = head;
        put(&mut head[124..136], format!("{size:011o}\0").as_bytes());
        head[148..156].fill(b' ');
        let sum: u32 = head.iter().map(|&b| u32::from(b)).sum();
        put(&mut head[148..156], format!("{sum:06o}\0 ").as_bytes());
        encoder.write_all(&head).expect("writing to memory");
        let block = vec![0_u8; 1024 * 1024];
        for _ in 0..mebibytes {
            encoder.write_all(&block).expect("writing to memory");
        }
        encoder.write_all(&[0; 1024]).expect("writing to memory");
        encoder.finish().expect("writing to memory")
    }
}

fn put(field: &mut [u8], value: &[u8]) {
    assert!(
        value.len() <= field.len(),
        "{} does not fit a ustar header field",
        String::from_utf8_lossy(value)
    );
    field[..value.len()].copy_from_slice(value);
}

/// `sha256:<hex>`, as Flux publishes it.
pub fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// The digest in any algorithm a Flux source may publish.
pub fn digest(algorithm: &str, bytes: &[u8]) -> String {
    let hex = match algorithm {
        "sha256" => hex(&Sha256::digest(bytes)),
        "sha384" => hex(&Sha384::digest(bytes)),
        "sha512" => hex(&Sha512::digest(bytes)),
        "blake3" => blake3::hash(bytes).to_hex().to_string(),
        other => panic!("no such digest algorithm: {other}"),
    };
    format!("{algorithm}:{hex}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_tar_reader_reads_it_back() {
        let archive = Archive::of(&[("a.yaml", "kind: A"), ("dir/b.yaml", "kind: B")]).symlink("link", "a.yaml");
        let bytes = archive.gzip();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let names: Vec<(String, u64)> = tar
            .entries()
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.path().unwrap().display().to_string(), e.header().size().unwrap()))
            .collect();
        assert_eq!(
            names,
            [("a.yaml".into(), 7), ("dir/b.yaml".into(), 7), ("link".into(), 0)]
        );
        assert_eq!(archive.gzip(), bytes, "the same content gives the same bytes");
    }

    #[test]
    fn a_bomb_is_small_until_it_is_inflated() {
        let bytes = Archive::bomb(8);
        assert!(bytes.len() < 100_000);
        let mut inflated = 0;
        let mut reader = flate2::read::GzDecoder::new(bytes.as_slice());
        let mut buffer = vec![0; 65536];
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => break,
                n => inflated += n,
            }
        }
        assert_eq!(inflated, 8 * 1024 * 1024 + 512 + 1024);
    }

    #[test]
    fn digests_carry_their_algorithm() {
        assert!(digest("sha512", b"x").starts_with("sha512:") && digest("sha512", b"x").len() == 7 + 128);
        assert_eq!(
            sha256(b""),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
