//! The name and link target of an entry: header, GNU long name, PAX record, in rising precedence.

use std::io::Read;

use tar::{EntryType, Header};

use super::{Fault, MAX_PATH, corrupt};

/// Largest extension header. Extended attributes are the only honest reason to come near it.
const MAX_EXTENSION: u64 = 1 << 20;

/// All extension headers of an archive; without it they would be a way around the cap on content.
const MAX_EXTENSIONS: u64 = 32 << 20;

/// Longest name shown in a message.
const SHOWN: usize = 256;

/// What extension headers say about the next entry.
#[derive(Default)]
pub(super) struct Names {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Option<Pax>,
    /// Bytes of all extension headers so far.
    total: u64,
}

#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<Vec<u8>>,
    sparse: bool,
}

impl Names {
    /// Reads `entry` if it is an extension header; `false` where it is an entry of its own.
    pub(super) fn absorb<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<bool, Fault> {
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                let name = until_nul(self.content(entry)?);
                once(&mut self.long_name, name, "two long names")?;
            }
            EntryType::GNULongLink => {
                let link = until_nul(self.content(entry)?);
                once(&mut self.long_link, link, "two long link names")?;
            }
            EntryType::XHeader => {
                let pax = parse(&self.content(entry)?)?;
                once(&mut self.pax, pax, "two PAX headers")?;
            }
            EntryType::XGlobalHeader => {
                let pax = parse(&self.content(entry)?)?;
                if pax.path.is_some() || pax.link.is_some() || pax.size.is_some() || pax.sparse {
                    return Err(Fault::Unsupported {
                        path: lossy(&entry.header().path_bytes()),
                        what: "a PAX header that renames or resizes all entries",
                    });
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn content<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, Fault> {
        let size = entry.header().entry_size().map_err(|e| corrupt(&e))?;
        self.total = self.total.saturating_add(size);
        if size > MAX_EXTENSION || self.total > MAX_EXTENSIONS {
            return Err(Fault::EntryTooLarge {
                path: lossy(&entry.header().path_bytes()),
                size,
                limit: MAX_EXTENSION,
            });
        }
        super::read_exactly(entry, size).map(Into::into)
    }

    /// Forgets what was said about the entry that has been read.
    pub(super) fn clear(&mut self) {
        *self = Self {
            total: self.total,
            ..Self::default()
        };
    }

    /// Refuses extension headers that no entry followed.
    pub(super) fn finish(self) -> Result<(), Fault> {
        if self.long_name.is_some() || self.long_link.is_some() || self.pax.is_some() {
            return Err(malformed("an extension header has no entry"));
        }
        Ok(())
    }

    /// The entry's path.
    pub(super) fn path(&self, header: &Header) -> Result<String, Fault> {
        let pax = self.pax.as_ref();
        let name = pax
            .and_then(|p| p.path.clone())
            .or_else(|| self.long_name.clone())
            .unwrap_or_else(|| header.path_bytes().into_owned());
        if pax.is_some_and(|p| p.sparse) {
            return Err(Fault::Unsupported {
                path: lossy(&name),
                what: "a sparse file",
            });
        }
        self.check_size(header, &name)?;
        text(name)
    }

    /// Where the entry links to; empty where it says nothing.
    pub(super) fn link(&self, header: &Header) -> Result<String, Fault> {
        let target = self
            .pax
            .as_ref()
            .and_then(|p| p.link.clone())
            .or_else(|| self.long_link.clone())
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default();
        if target.is_empty() {
            return Ok(String::new());
        }
        text(target)
    }

    /// A PAX size that differs from the header's makes readers disagree about where the next header begins.
    fn check_size(&self, header: &Header, name: &[u8]) -> Result<(), Fault> {
        let Some(size) = self.pax.as_ref().and_then(|p| p.size.as_ref()) else {
            return Ok(());
        };
        let stated = std::str::from_utf8(size).ok().and_then(|s| s.parse().ok());
        let actual = header.entry_size().map_err(|e| corrupt(&e))?;
        if stated == Some(actual) {
            return Ok(());
        }
        Err(Fault::Unsupported {
            path: lossy(name),
            what: "an entry with two different sizes",
        })
    }
}

/// A name for messages: at most [`SHOWN`] bytes, invalid UTF-8 replaced.
pub(super) fn lossy(name: &[u8]) -> String {
    let shown = &name[..name.len().min(SHOWN)];
    let mut text = String::from_utf8_lossy(shown).into_owned();
    if shown.len() < name.len() {
        text.push_str("...");
    }
    text
}

fn text(name: Vec<u8>) -> Result<String, Fault> {
    let cause = if name.is_empty() {
        "its name is empty"
    } else if name.contains(&0) {
        "its name contains a NUL byte"
    } else if name.len() > MAX_PATH {
        "its path is longer than 4096 bytes"
    } else {
        return String::from_utf8(name).map_err(|error| Fault::UnusableName {
            path: lossy(error.as_bytes()),
            cause: "its name is not UTF-8",
        });
    };
    Err(Fault::UnusableName {
        path: lossy(&name),
        cause,
    })
}

fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|b| *b == 0) {
        name.truncate(end);
    }
    name
}

fn once<T>(slot: &mut Option<T>, value: T, what: &str) -> Result<(), Fault> {
    if slot.replace(value).is_some() {
        return Err(malformed(&format!("{what} for one entry")));
    }
    Ok(())
}

fn malformed(cause: &str) -> Fault {
    Fault::Corrupt {
        cause: cause.to_owned(),
    }
}

/// Reads PAX records, `"%d %s=%s\n"` with the length of the whole record in front (POSIX pax, "pax Header Block").
/// Values may contain line breaks, so the length decides, not the line. An empty value withdraws a record.
fn parse(mut records: &[u8]) -> Result<Pax, Fault> {
    let mut pax = Pax::default();
    while !records.is_empty() {
        let (record, rest) = split_record(records).ok_or_else(|| malformed("a PAX record is malformed"))?;
        records = rest;
        let equals = record
            .iter()
            .position(|b| *b == b'=')
            .ok_or_else(|| malformed("a PAX record has no value"))?;
        let value = Some(record[equals + 1..].to_vec()).filter(|v| !v.is_empty());
        match &record[..equals] {
            b"path" => pax.path = value,
            b"linkpath" => pax.link = value,
            b"size" => pax.size = value,
            key if key.starts_with(b"GNU.sparse.") => pax.sparse = true,
            _ => {}
        }
    }
    Ok(pax)
}

/// `key=value` of the first record, and what follows it.
fn split_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = records.iter().take(20).position(|b| *b == b' ')?;
    let digits = std::str::from_utf8(&records[..space]).ok()?;
    let length: usize = digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())??;
    let record = records.get(..length)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    Some((body, &records[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_contain_line_breaks() {
        let pax = parse(b"24 SCHILY.xattr.a=x\n\n\ny\n12 path=a/b\n").expect("records");
        assert_eq!(pax.path.as_deref(), Some(&b"a/b"[..]));
    }

    #[test]
    fn an_empty_value_withdraws() {
        let pax = parse(b"10 path=a\n8 path=\n").expect("records");
        assert_eq!(pax.path, None);
    }

    #[test]
    fn bad_records_are_refused() {
        for bad in [
            &b"path=a\n"[..],
            b"9999 path=a\n",
            b"0 path=a\n",
            b"2 path=a\n",
            b"+10 path=a\n",
            b"10 path=ab",
            b"5 abc\n",
            b"\0\0\0",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn long_names_are_cut_in_messages() {
        assert_eq!(lossy(&[b'a'; 300]).len(), SHOWN + 3);
        assert_eq!(lossy(b"a\xff"), "a\u{fffd}");
    }
}
