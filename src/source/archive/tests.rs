use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use rstest::rstest;
use tar::Header;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

/// A tar written block by block, so that it can say what no honest writer says.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn header(kind: EntryType, name: &[u8], size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        let bytes = header.as_mut_bytes();
        let length = name.len().min(100);
        bytes[..length].copy_from_slice(&name[..length]);
        header.set_cksum();
        header
    }

    fn push(mut self, header: &Header, content: &[u8]) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        let padding = content.len().next_multiple_of(512) - content.len();
        self.0.resize(self.0.len() + padding, 0);
        self
    }

    fn entry(self, kind: EntryType, name: &str, content: &[u8]) -> Self {
        let header = Self::header(kind, name.as_bytes(), content.len() as u64);
        self.push(&header, content)
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, b"")
    }

    fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        let mut header = Self::header(kind, name.as_bytes(), 0);
        header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.push(&header, b"")
    }

    fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let body = key.len() + value.len() + 3;
            let mut length = body + 1;
            while length != body + length.to_string().len() {
                length += 1;
            }
            content.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
        }
        self.entry(EntryType::XHeader, "pax", &content)
    }

    fn bytes(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    fn gzip(self) -> Vec<u8> {
        gzip(&self.bytes())
    }

    fn unpack(self) -> Result<Tree, Fault> {
        unpack(&self.gzip(), &Limits::default())
    }
}

fn names(tree: &Tree) -> Vec<&str> {
    tree.files.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn an_ordinary_archive() {
    let tree = Tar::default()
        .directory("./")
        .directory("./deploy/")
        .file("./deploy/b.yaml", "b")
        .file("deploy/a.yaml", "a")
        .directory("empty/")
        .file("x/y/z.txt", "")
        .unpack()
        .expect("a tree");
    assert_eq!(names(&tree), ["deploy/a.yaml", "deploy/b.yaml", "x/y/z.txt"]);
    assert_eq!(tree.get("deploy/b.yaml").expect("a file"), "b");
    assert_eq!(tree.get("x/y/z.txt").expect("a file"), "");
    let directories: Vec<&str> = tree.directories.iter().map(String::as_str).collect();
    assert_eq!(directories, ["deploy", "empty", "x", "x/y"]);
    assert_eq!(tree.size(), 2);
}

/// Rules: run B19 names
#[rstest]
#[case(".env")]
#[case(".github/workflows/ci.yaml")]
#[case("with space/a+b@c~d=e,f.yaml")]
#[case("Umlaut/ä/日本.yaml")]
#[case("units/mnt-a\\x2db.mount")]
#[case("a..b/...")]
#[case("Icon\r")]
fn unusual_names_are_kept(#[case] name: &str) {
    let tree = Tar::default().file(name, "x").unpack().expect("a tree");
    assert_eq!(names(&tree), [name]);
}

#[test]
fn a_climb_that_stays_inside_is_cleaned() {
    let tree = Tar::default().file("a/../b/./c.yaml", "x").unpack();
    assert_eq!(names(&tree.expect("a tree")), ["b/c.yaml"]);
}

/// Rules: decisions 7 archives
#[rstest]
#[case("../evil.yaml")]
#[case("a/../../evil.yaml")]
#[case("/etc/passwd")]
#[case("//etc/passwd")]
#[case("..")]
#[case("..\\evil.yaml")]
fn a_path_outside_refuses_everything(#[case] name: &str) {
    let kinds = [
        EntryType::Regular,
        EntryType::Directory,
        EntryType::Fifo,
        EntryType::Symlink,
    ];
    for kind in kinds {
        let result = Tar::default().file("good.yaml", "x").entry(kind, name, b"").unpack();
        assert_eq!(result, Err(Fault::Escape { path: name.to_owned() }), "{kind:?}");
    }
}

#[test]
fn an_extension_header_cannot_smuggle_a_path_out() {
    let escape = Err(Fault::Escape {
        path: "../evil".to_owned(),
    });
    let pax = Tar::default().pax(&[("path", "../evil")]).file("ok", "x");
    assert_eq!(pax.unpack(), escape);
    let gnu = Tar::default()
        .entry(EntryType::GNULongName, "././@LongLink", b"../evil\0")
        .file("ok", "x");
    assert_eq!(gnu.unpack(), escape);
    let pax_link = Tar::default()
        .pax(&[("linkpath", "/etc/passwd")])
        .link(EntryType::Symlink, "ok", "fine");
    assert!(matches!(pax_link.unpack(), Err(Fault::LinkEscape { target, .. }) if target == "/etc/passwd"));
}

/// Rules: decisions 7 archives
#[rstest]
#[case(EntryType::Symlink, "link", "/etc/passwd")]
#[case(EntryType::Symlink, "link", "..")]
#[case(EntryType::Symlink, "a/link", "../../x")]
#[case(EntryType::Symlink, "a/link", "..\\..\\x")]
#[case(EntryType::Link, "link", "/etc/passwd")]
#[case(EntryType::Link, "a/link", "../x")]
fn a_link_outside_refuses_everything(#[case] kind: EntryType, #[case] name: &str, #[case] target: &str) {
    let result = Tar::default().file("good.yaml", "x").link(kind, name, target).unpack();
    assert_eq!(
        result,
        Err(Fault::LinkEscape {
            path: name.to_owned(),
            target: target.to_owned()
        })
    );
}

/// Rules: run 12 entries
#[test]
fn other_links_and_special_files_are_skipped_and_remembered() {
    let tree = Tar::default()
        .file("real/a.yaml", "x")
        .link(EntryType::Symlink, "latest", "real")
        .link(EntryType::Symlink, "real/up", "../real/a.yaml")
        .link(EntryType::Link, "copy.yaml", "real/a.yaml")
        .entry(EntryType::Fifo, "pipe", b"")
        .entry(EntryType::Char, "tty", b"")
        .entry(EntryType::new(b'V'), "label", b"")
        .entry(EntryType::new(b'Z'), "vendor", b"content is passed over")
        .file("real/b.yaml", "y")
        .unpack()
        .expect("a tree");
    assert_eq!(names(&tree), ["real/a.yaml", "real/b.yaml"]);
    let links = tree.skipped.values().filter(|k| **k == SkippedKind::Link);
    assert_eq!(links.count(), 3);
    assert_eq!(tree.skipped.len(), 7);
    let error = tree.build_directory("latest").expect_err("not followed");
    assert!(error.to_string().contains("not followed"), "{error}");
}

/// Rules: run 12 duplicates
#[test]
fn two_entries_of_one_path_are_refused() {
    let twice = Tar::default().file("a.yaml", "1").file("./a.yaml", "2");
    assert_eq!(
        twice.unpack(),
        Err(Fault::Duplicate {
            path: "a.yaml".to_owned()
        })
    );
    let directories = Tar::default().directory("a").directory("a/").file("a/b", "");
    assert!(directories.unpack().is_ok());
    let conflict = Err(Fault::Conflict { path: "a".to_owned() });
    assert_eq!(Tar::default().file("a", "").directory("a").unpack(), conflict);
    assert_eq!(Tar::default().directory("a").file("a", "").unpack(), conflict);
    assert_eq!(Tar::default().file("a", "").file("a/b", "").unpack(), conflict);
    assert_eq!(Tar::default().file("a/b", "").file("a", "").unpack(), conflict);
}

/// Rules: run B19 names
#[test]
fn names_that_cannot_be_kept_are_named() {
    let cause = |tar: Tar| match tar.unpack() {
        Err(Fault::UnusableName { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    let raw = |name: &[u8]| Tar::default().push(&Tar::header(EntryType::Regular, name, 0), b"");
    assert_eq!(cause(raw(b"")), "its name is empty");
    assert_eq!(cause(raw(b"a\xff.yaml")), "its name is not UTF-8");
    assert_eq!(cause(raw(b".")), "a file needs a name");
    let nul = Tar::default().pax(&[("path", "a\0b")]).file("x", "");
    assert_eq!(cause(nul), "its name contains a NUL byte");
    let long = "a/".repeat(2049);
    let long = Tar::default().pax(&[("path", &long)]).file("x", "");
    assert_eq!(cause(long), "its path is longer than 4096 bytes");
}

#[test]
fn long_names_by_every_convention() {
    let long = format!("{}/file.yaml", "directory".repeat(20));
    let mut gnu = long.clone().into_bytes();
    gnu.push(0);
    let mut split = Tar::header(EntryType::Regular, b"name.yaml", 0);
    split.as_mut_bytes()[345..351].copy_from_slice(b"prefix");
    split.set_cksum();
    let tree = Tar::default()
        .pax(&[("mtime", "1.5"), ("path", &long), ("comment", "a\n\nb")])
        .file("short", "pax")
        .entry(EntryType::GNULongName, "././@LongLink", &gnu[9..])
        .file("short", "gnu")
        .push(&split, b"")
        .file("plain", "after")
        .unpack()
        .expect("a tree");
    assert_eq!(tree.get(&long).expect("a file"), "pax");
    assert_eq!(tree.get(&long[9..]).expect("a file"), "gnu");
    assert!(tree.get("prefix/name.yaml").is_some());
    assert_eq!(tree.get("plain").expect("a file"), "after");
}

#[test]
fn a_global_header_is_accepted_unless_it_renames() {
    // What `git archive` writes.
    let git = Tar::default()
        .entry(EntryType::XGlobalHeader, "pax_global_header", b"14 comment=ab\n")
        .file("a", "");
    assert!(git.unpack().is_ok());
    let renames = Tar::default()
        .entry(EntryType::XGlobalHeader, "pax_global_header", b"10 path=x\n")
        .file("a", "");
    assert!(matches!(renames.unpack(), Err(Fault::Unsupported { .. })));
}

#[test]
fn what_two_readers_would_read_differently_is_refused() {
    let pax_size = Tar::default().pax(&[("size", "512")]).file("a", "x");
    assert!(matches!(pax_size.unpack(), Err(Fault::Unsupported { .. })));
    let same_size = Tar::default().pax(&[("size", "1")]).file("a", "x");
    assert!(same_size.unpack().is_ok());
    let sparse = Tar::default().pax(&[("GNU.sparse.major", "1")]).file("a", "x");
    assert!(matches!(
        sparse.unpack(),
        Err(Fault::Unsupported {
            what: "a sparse file",
            ..
        })
    ));
    let old_sparse = Tar::default().entry(EntryType::GNUSparse, "a", b"");
    assert!(matches!(
        old_sparse.unpack(),
        Err(Fault::Unsupported {
            what: "a sparse file",
            ..
        })
    ));
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Directory,
        EntryType::Char,
    ] {
        let content = Tar::default().entry(kind, "a", b"content");
        assert!(matches!(content.unpack(), Err(Fault::Unsupported { .. })), "{kind:?}");
    }
    let twice = Tar::default().pax(&[("path", "a")]).pax(&[("path", "b")]).file("c", "");
    assert!(matches!(twice.unpack(), Err(Fault::Corrupt { .. })));
    let orphan = Tar::default().file("a", "").pax(&[("path", "b")]);
    assert!(matches!(orphan.unpack(), Err(Fault::Corrupt { .. })));
}

#[test]
fn an_old_directory_is_a_name_with_a_slash() {
    let tree = Tar::default()
        .entry(EntryType::Regular, "old/", b"")
        .file("a", "")
        .unpack()
        .expect("a tree");
    assert!(tree.is_directory("old"));
    let content = Tar::default().entry(EntryType::Regular, "old/", b"x");
    assert!(matches!(content.unpack(), Err(Fault::Unsupported { .. })));
}

#[test]
fn broken_streams_are_refused() {
    let limits = Limits::default();
    let plain = Tar::default().file("a", "x").bytes();
    assert_eq!(unpack(&plain, &limits), Err(Fault::NotGzip));
    assert_eq!(unpack(b"", &limits), Err(Fault::NotGzip));
    assert_eq!(unpack(b"<html>not found</html>", &limits), Err(Fault::NotGzip));
    let corrupt = |bytes: &[u8]| {
        let result = unpack(bytes, &limits);
        assert!(matches!(result, Err(Fault::Corrupt { .. })), "{result:?}");
    };
    corrupt(&[0x1f, 0x8b]);
    corrupt(&gzip(b"this is no tar archive"));
    corrupt(&gzip(&[b'x'; 2048]));
    let good = Tar::default().file("a", &"x".repeat(5000)).gzip();
    corrupt(&good[..good.len() / 2]);
    let mut damaged = Tar::default().file("a", "x").bytes();
    damaged[0] = b'b';
    corrupt(&gzip(&damaged));
    let truncated = Tar::default().file("a", &"x".repeat(5000)).bytes();
    corrupt(&gzip(&truncated[..1024]));
}

#[test]
fn members_of_a_gzip_stream_are_joined() {
    let tar = Tar::default().file("a", "1").file("b", "2").bytes();
    let mut joined = Vec::new();
    for part in tar.chunks(700) {
        joined.extend(gzip(part));
        joined.extend(gzip(b""));
    }
    let tree = unpack(&joined, &Limits::default()).expect("a tree");
    assert_eq!(names(&tree), ["a", "b"]);
}

#[test]
fn an_archive_without_files_is_an_empty_tree() {
    for tar in [Tar::default(), Tar::default().directory("./")] {
        assert_eq!(tar.unpack(), Ok(Tree::default()));
    }
    assert_eq!(unpack(&gzip(b""), &Limits::default()), Ok(Tree::default()));
}

/// Rules: run 12 body, run 12 entry, run 12 extracted, run 12 inflated
#[test]
fn every_cap_holds_and_is_inclusive() {
    let tar = || Tar::default().file("aa", "12345").file("b/c", "123").gzip();
    let exact = Limits {
        compressed: 0,
        inflated: 5 * 512,
        entry: 5,
        extracted: 8,
        entries: 2,
        names: "aa".len() + "b".len() + "b/c".len(),
    };
    let check = |limits: Limits| unpack(&tar(), &limits);
    assert!(check(exact).is_ok(), "{:?}", check(exact));
    assert_eq!(
        check(Limits { entry: 4, ..exact }),
        Err(Fault::EntryTooLarge {
            path: "aa".to_owned(),
            size: 5,
            limit: 4
        })
    );
    assert_eq!(
        check(Limits { extracted: 7, ..exact }),
        Err(Fault::ExtractedTooLarge { limit: 7 })
    );
    assert_eq!(
        check(Limits { entries: 1, ..exact }),
        Err(Fault::TooManyEntries { limit: 1 })
    );
    assert_eq!(
        check(Limits { names: 5, ..exact }),
        Err(Fault::NamesTooLarge { limit: 5 })
    );
    assert_eq!(
        check(Limits {
            inflated: 3 * 512,
            ..exact
        }),
        Err(Fault::InflatedTooLarge { limit: 3 * 512 })
    );
}

/// Runs a hostile archive against the real caps. It takes well under a second; the bound leaves room for an
/// unoptimised build, and counts what this thread works, whatever else the machine does.
fn quickly(archive: &[u8]) -> Fault {
    let worked = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("time that has passed")
    };
    let begun = worked();
    let fault = unpack(archive, &Limits::default()).expect_err("must be refused");
    let took = worked().saturating_sub(begun);
    assert!(took < Duration::from_secs(3), "{took:?}");
    fault
}

#[test]
fn bombs_end_quickly() {
    // A header that announces more than it may, with nothing behind it.
    let huge = Tar::header(EntryType::Regular, b"huge", 600 << 20);
    let announced = Tar::default().push(&huge, b"").gzip();
    assert!(matches!(quickly(&announced), Fault::EntryTooLarge { .. }));

    let block = "\0".repeat(16 << 20);
    let many = (0..5).fold(Tar::default(), |tar, n| tar.file(&format!("f{n}"), &block));
    assert!(matches!(quickly(&many.gzip()), Fault::ExtractedTooLarge { .. }));

    // Content that is passed over costs as much to inflate as content that is kept.
    let special = (0..5).fold(Tar::default(), |tar, n| {
        tar.entry(EntryType::new(b'Z'), &format!("f{n}"), block.as_bytes())
    });
    assert!(matches!(quickly(&special.gzip()), Fault::ExtractedTooLarge { .. }));

    let name = Tar::default()
        .entry(EntryType::GNULongName, "././@LongLink", block.as_bytes())
        .file("a", "");
    assert!(matches!(quickly(&name.gzip()), Fault::EntryTooLarge { .. }));

    // Extension headers are no way around the caps either.
    let comment = "x".repeat((1 << 20) - 100);
    let globals = (0..40).fold(Tar::default(), |tar, n| {
        tar.pax(&[("comment", &comment)]).file(&format!("{n}"), "")
    });
    assert!(matches!(quickly(&globals.gzip()), Fault::EntryTooLarge { .. }));
}

#[test]
fn archives_of_names_alone_end_quickly() {
    let mut tar = Tar::default();
    for n in 0..200_001 {
        tar = tar.entry(EntryType::Regular, &format!("{n}"), b"");
    }
    assert!(matches!(quickly(&tar.gzip()), Fault::TooManyEntries { .. }));

    let deep = (0..20).fold(Tar::default(), |tar, n| {
        tar.pax(&[("path", &format!("{n}/{}", "a/".repeat(2040)))])
            .entry(EntryType::Directory, "x", b"")
    });
    assert!(matches!(quickly(&deep.gzip()), Fault::NamesTooLarge { .. }));

    let empty = gzip(b"");
    let members: Vec<u8> = empty.repeat(150_000);
    assert!(matches!(quickly(&members), Fault::Corrupt { .. }));
}

fn path_strategy() -> impl Strategy<Value = String> {
    prop::collection::vec("[a-zA-Z0-9 ._+@äß-]{1,12}", 1..5)
        .prop_map(|segments| segments.join("/"))
        .prop_filter("clean", |path| path::clean_entry(path).as_deref() == Ok(path.as_str()))
}

proptest! {
    #[test]
    fn round_trip(files in prop::collection::btree_map(path_strategy(), prop::collection::vec(any::<u8>(), 0..600), 0..12)) {
        let conflicts = files.keys().any(|a| files.keys().any(|b| b.starts_with(&format!("{a}/"))));
        prop_assume!(!conflicts);
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in &files {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, content.as_slice()).expect("in memory");
        }
        let archive = gzip(&builder.into_inner().expect("in memory"));
        let tree = unpack(&archive, &Limits::default()).expect("a tree");
        let expected: Vec<(String, Bytes)> = files.into_iter().map(|(p, c)| (p, Bytes::from(c))).collect();
        prop_assert_eq!(&tree.files, &expected);
        for (path, _) in &expected {
            let mut parent = path::parent(path);
            while let Some(directory) = parent {
                prop_assert!(tree.is_directory(directory));
                parent = path::parent(directory);
            }
        }
        prop_assert_eq!(unpack(&archive, &Limits::default()), Ok(tree));
    }

    #[test]
    fn any_bytes_end_in_a_tree_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = unpack(&gzip(&bytes), &Limits::default());
        let _ = unpack(&bytes, &Limits::default());
    }

    #[test]
    fn any_header_damage_ends_in_a_clean_tree_or_a_fault(at in 0usize..2048, value in any::<u8>()) {
        let mut bytes = Tar::default().file("a/b.yaml", "x").link(EntryType::Symlink, "l", "a").bytes();
        let at = at % bytes.len();
        bytes[at] = value;
        // Checksums made right again, so that the damage is read.
        for block in [0, 1024] {
            let sum: u32 = bytes[block..block + 512].iter().enumerate()
                .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) }).sum();
            bytes[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if let Ok(tree) = unpack(&gzip(&bytes), &Limits::default()) {
            for (path, _) in &tree.files {
                let clean = path::clean_entry(path);
                prop_assert_eq!(clean.as_deref(), Ok(path.as_str()));
            }
        }
    }
}
