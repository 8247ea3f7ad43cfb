//! Unpacking a tar.gz into memory, under caps, refusing what reaches outside.
//!
//! Entries are read raw: extension headers (PAX, GNU long names) are interpreted here, so that their size is capped
//! and an archive that two readers would understand differently is refused rather than guessed at.

mod inflate;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use bytes::Bytes;
use tar::EntryType;

use super::path;
use super::tree::{SkippedKind, Tree};
use inflate::Inflate;
use names::{Names, lossy};

/// Caps on an artifact (run 12, contract 13.2). A value exactly at a cap is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes downloaded.
    pub compressed: u64,
    /// Bytes out of gzip, headers and padding included.
    pub inflated: u64,
    /// Bytes of one entry.
    pub entry: u64,
    /// Bytes of all entries.
    pub extracted: u64,
    /// Headers in the archive, extension headers included.
    pub entries: usize,
    /// Bytes of all paths, implied directories included: what an archive of nothing but names can cost.
    pub names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            compressed: 64 << 20,
            inflated: 512 << 20,
            entry: 16 << 20,
            extracted: 64 << 20,
            entries: 200_000,
            names: 16 << 20,
        }
    }
}

/// Longest path, as on Linux.
const MAX_PATH: usize = 4096;

/// Why an archive is refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are no gzip stream.
    #[error("it is not gzip-compressed; publish a tar.gz")]
    NotGzip,
    /// gzip or tar structure is broken.
    #[error("it is not a well-formed tar.gz: {cause}")]
    Corrupt {
        /// What does not hold.
        cause: String,
    },
    /// More than [`Limits::inflated`].
    #[error("it inflates to more than the allowed {limit} bytes")]
    InflatedTooLarge {
        /// The cap.
        limit: u64,
    },
    /// More than [`Limits::entry`].
    #[error("entry {path:?} has {size} bytes, more than the allowed {limit}; leave it out of the artifact")]
    EntryTooLarge {
        /// The entry.
        path: String,
        /// What its header says.
        size: u64,
        /// The cap.
        limit: u64,
    },
    /// More than [`Limits::extracted`].
    #[error("its files have more than the allowed {limit} bytes together; leave out what is not deployed")]
    ExtractedTooLarge {
        /// The cap.
        limit: u64,
    },
    /// More than [`Limits::entries`].
    #[error("it has more than the allowed {limit} entries; leave out what is not deployed")]
    TooManyEntries {
        /// The cap.
        limit: usize,
    },
    /// More than [`Limits::names`].
    #[error("its paths have more than the allowed {limit} bytes together")]
    NamesTooLarge {
        /// The cap.
        limit: usize,
    },
    /// An entry's path leaves the artifact root.
    #[error("entry {path:?} leads outside the artifact root; the whole artifact is refused")]
    Escape {
        /// As the archive has it.
        path: String,
    },
    /// A link's target leaves the artifact root.
    #[error("link {path:?} leads outside the artifact root, to {target:?}; the whole artifact is refused")]
    LinkEscape {
        /// The link.
        path: String,
        /// Where it points.
        target: String,
    },
    /// A name that cannot be kept.
    #[error("entry {path:?} cannot be kept: {cause}; rename it or leave it out of the artifact")]
    UnusableName {
        /// As far as it can be shown.
        path: String,
        /// What is wrong with the name.
        cause: &'static str,
    },
    /// Two files of one path.
    #[error("entry {path:?} occurs twice")]
    Duplicate {
        /// The clean path.
        path: String,
    },
    /// A path is both a file and a directory.
    #[error("{path:?} is both a file and a directory")]
    Conflict {
        /// The clean path.
        path: String,
    },
    /// Something this reader does not interpret and must not guess at.
    #[error("entry {path:?} is {what}, which is not supported")]
    Unsupported {
        /// The entry.
        path: String,
        /// What it is.
        what: &'static str,
    },
}

fn corrupt(error: &std::io::Error) -> Fault {
    Fault::Corrupt {
        cause: error.to_string(),
    }
}

/// Unpacks a tar.gz (several gzip members allowed). CPU-bound, up to a second at the caps: call it from a blocking
/// thread. The result depends on the bytes and the caps alone.
///
/// # Errors
/// The first [`Fault`] in archive order. All are final for these bytes.
pub fn unpack(archive: &[u8], limits: &Limits) -> Result<Tree, Fault> {
    let mut inflate = Inflate::new(archive, limits.inflated).ok_or(Fault::NotGzip)?;
    let result = read(&mut inflate, limits);
    if inflate.exceeded() {
        return Err(Fault::InflatedTooLarge { limit: limits.inflated });
    }
    result
}

fn read(stream: &mut impl Read, limits: &Limits) -> Result<Tree, Fault> {
    let mut archive = tar::Archive::new(stream);
    let entries = archive.entries().map_err(|e| corrupt(&e))?.raw(true);
    let mut unpacker = Unpacker::new(limits);
    let mut names = Names::default();
    for (count, entry) in entries.enumerate() {
        let mut entry = entry.map_err(|e| corrupt(&e))?;
        if count >= limits.entries {
            return Err(Fault::TooManyEntries { limit: limits.entries });
        }
        if !names.absorb(&mut entry)? {
            unpacker.take(&mut entry, &names)?;
            names.clear();
        }
    }
    names.finish()?;
    Ok(unpacker.finish())
}

struct Unpacker<'a> {
    limits: &'a Limits,
    files: BTreeMap<String, Bytes>,
    directories: BTreeSet<String>,
    skipped: BTreeMap<String, SkippedKind>,
    extracted: u64,
    names: usize,
}

impl<'a> Unpacker<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self {
            limits,
            files: BTreeMap::new(),
            directories: BTreeSet::new(),
            skipped: BTreeMap::new(),
            extracted: 0,
            names: 0,
        }
    }

    fn take<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, names: &Names) -> Result<(), Fault> {
        let header = entry.header();
        let kind = header.entry_type();
        let size = header.entry_size().map_err(|e| corrupt(&e))?;
        let raw = names.path(header)?;
        let path = path::clean_entry(&raw).map_err(|path::Escape| Fault::Escape {
            path: lossy(raw.as_bytes()),
        })?;
        // Pre-POSIX archives mark a directory by a trailing slash alone.
        let directory = kind.is_dir() || (kind.is_file() && raw.ends_with('/'));
        if directory || has_no_content(kind) {
            no_content(&path, size)?;
        }
        if directory {
            return self.add_directory(&path);
        }
        match kind {
            EntryType::Regular | EntryType::Continuous => self.add_file(entry, path, size),
            EntryType::Symlink => {
                let target = names.link(header)?;
                let inside = path::resolve_link(&path, &target);
                self.skip_link(path, &target, inside)
            }
            EntryType::Link => {
                let target = names.link(header)?;
                let inside = path::clean_entry(&target);
                self.skip_link(path, &target, inside)
            }
            EntryType::GNUSparse => Err(Fault::Unsupported {
                path,
                what: "a sparse file",
            }),
            _ => {
                self.charge(&path, size)?;
                self.skip(path, SkippedKind::Special)
            }
        }
    }

    fn add_file<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, path: String, size: u64) -> Result<(), Fault> {
        if path.is_empty() {
            return Err(Fault::UnusableName {
                path,
                cause: "a file needs a name",
            });
        }
        self.charge(&path, size)?;
        if self.files.contains_key(&path) {
            return Err(Fault::Duplicate { path });
        }
        if self.directories.contains(&path) {
            return Err(Fault::Conflict { path });
        }
        if let Some(parent) = path::parent(&path) {
            self.add_directory(parent)?;
        }
        self.count_name(&path)?;
        let content = read_exactly(entry, size)?;
        self.files.insert(path, content);
        Ok(())
    }

    /// Accounts for content before it is read.
    fn charge(&mut self, path: &str, size: u64) -> Result<(), Fault> {
        if size > self.limits.entry {
            return Err(Fault::EntryTooLarge {
                path: path.to_owned(),
                size,
                limit: self.limits.entry,
            });
        }
        self.extracted += size;
        if self.extracted > self.limits.extracted {
            return Err(Fault::ExtractedTooLarge {
                limit: self.limits.extracted,
            });
        }
        Ok(())
    }

    fn add_directory(&mut self, path: &str) -> Result<(), Fault> {
        let mut next = Some(path).filter(|p| !p.is_empty());
        while let Some(path) = next {
            if self.directories.contains(path) {
                return Ok(());
            }
            if self.files.contains_key(path) {
                return Err(Fault::Conflict { path: path.to_owned() });
            }
            self.count_name(path)?;
            self.directories.insert(path.to_owned());
            next = path::parent(path);
        }
        Ok(())
    }

    fn skip_link(&mut self, path: String, target: &str, inside: Result<String, path::Escape>) -> Result<(), Fault> {
        if inside.is_err() {
            return Err(Fault::LinkEscape {
                path,
                target: lossy(target.as_bytes()),
            });
        }
        self.skip(path, SkippedKind::Link)
    }

    fn skip(&mut self, path: String, kind: SkippedKind) -> Result<(), Fault> {
        self.count_name(&path)?;
        self.skipped.insert(path, kind);
        Ok(())
    }

    fn count_name(&mut self, path: &str) -> Result<(), Fault> {
        self.names += path.len();
        if self.names > self.limits.names {
            return Err(Fault::NamesTooLarge {
                limit: self.limits.names,
            });
        }
        Ok(())
    }

    fn finish(self) -> Tree {
        Tree {
            files: self.files.into_iter().collect(),
            directories: self.directories,
            skipped: self.skipped,
        }
    }
}

/// Types whose header is the whole entry (POSIX pax, "ustar Interchange Format").
fn has_no_content(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::Link | EntryType::Symlink | EntryType::Char | EntryType::Block | EntryType::Fifo
    )
}

/// Some readers skip the content of such an entry and some read it as the next header.
fn no_content(path: &str, size: u64) -> Result<(), Fault> {
    if size == 0 {
        return Ok(());
    }
    Err(Fault::Unsupported {
        path: path.to_owned(),
        what: "a directory, link or device with content",
    })
}

/// Reads the content of an entry to its last byte; the caller has checked `size` against the caps.
fn read_exactly<R: Read>(entry: &mut tar::Entry<'_, R>, size: u64) -> Result<Bytes, Fault> {
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    entry.read_to_end(&mut content).map_err(|e| corrupt(&e))?;
    if content.len() as u64 != size {
        return Err(Fault::Corrupt {
            cause: "the archive ends inside an entry".to_owned(),
        });
    }
    Ok(content.into())
}

#[cfg(test)]
mod tests;
