//! A capped gzip reader over all members of a stream.

use std::io::{self, Read};

use flate2::bufread::GzDecoder;

/// Each member costs a fresh decoder, so a stream of empty ones is a cheap way to burn time. Block compressors write
/// one member per 64 KiB, seekable image layers one per file.
const MAX_MEMBERS: usize = 100_000;

pub(super) struct Inflate<'a> {
    member: Option<GzDecoder<&'a [u8]>>,
    members: usize,
    produced: u64,
    limit: u64,
    exceeded: bool,
}

impl<'a> Inflate<'a> {
    /// `None` where the stream does not begin with a gzip header (RFC 1952 2.3.1).
    pub(super) fn new(stream: &'a [u8], limit: u64) -> Option<Self> {
        stream.starts_with(&[0x1f, 0x8b]).then(|| Self {
            member: Some(GzDecoder::new(stream)),
            members: 1,
            produced: 0,
            limit,
            exceeded: false,
        })
    }

    /// Whether reading stopped at the cap.
    pub(super) fn exceeded(&self) -> bool {
        self.exceeded
    }

    fn next_member(&mut self) -> io::Result<()> {
        let rest = self.member.take().map_or(&[][..], GzDecoder::into_inner);
        if rest.is_empty() {
            return Ok(());
        }
        self.members += 1;
        if self.members > MAX_MEMBERS {
            return Err(io::Error::other("it has too many gzip members"));
        }
        self.member = Some(GzDecoder::new(rest));
        Ok(())
    }
}

impl Read for Inflate<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let count = member.read(buffer)?;
            if count == 0 {
                self.next_member()?;
                continue;
            }
            self.produced += count as u64;
            if self.produced > self.limit {
                self.exceeded = true;
                return Err(io::Error::other("it inflates past the cap"));
            }
            return Ok(count);
        }
        Ok(0)
    }
}
