//! Paths inside an artifact: cleaned lexically, never above the root.

/// A path that would leave the artifact root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape;

/// Cleans a `spec.stages[].path`: leading and trailing slashes do not count, empty, `.`, `./` and `/` are the root
/// (run 14.1, build 5.1).
///
/// Returns the path without leading and trailing slash; the root is the empty string.
///
/// # Errors
/// [`Escape`] where a `..` leaves the root.
pub fn clean(path: &str) -> Result<String, Escape> {
    resolve("", path.trim_start_matches('/'))
}

/// Cleans the name of an archive entry; unlike [`clean`] an absolute name leaves the root.
///
/// # Errors
/// [`Escape`] where the name is absolute or a `..` leaves the root, also when backslashes are read as separators.
pub(super) fn clean_entry(name: &str) -> Result<String, Escape> {
    if name.starts_with('/') {
        return Err(Escape);
    }
    guard_backslashes(name)?;
    resolve("", name)
}

/// Where a symbolic link at the cleaned path `link` leads, read lexically.
///
/// # Errors
/// [`Escape`] where the target is absolute or leaves the root.
pub(super) fn resolve_link(link: &str, target: &str) -> Result<String, Escape> {
    if target.starts_with('/') {
        return Err(Escape);
    }
    guard_backslashes(target)?;
    let parent = link.rsplit_once('/').map_or("", |(parent, _)| parent);
    resolve(parent, target)
}

/// The parent of a cleaned path; `None` for an entry of the root.
pub(super) fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

fn resolve(base: &str, path: &str) -> Result<String, Escape> {
    let mut segments: Vec<&str> = base.split('/').filter(|s| !s.is_empty()).collect();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop().ok_or(Escape)?;
            }
            name => segments.push(name),
        }
    }
    Ok(segments.join("/"))
}

/// A backslash is an ordinary character here (systemd units carry it in their names), but a name that would climb
/// where it separates is meant as an attack.
fn guard_backslashes(name: &str) -> Result<(), Escape> {
    let climbs = name.contains('\\') && name.split(['/', '\\']).any(|segment| segment == "..");
    if climbs { Err(Escape) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("", "")]
    #[case(".", "")]
    #[case("./", "")]
    #[case("/", "")]
    #[case("//", "")]
    #[case("deploy", "deploy")]
    #[case("/deploy/", "deploy")]
    #[case("./deploy//prod/.", "deploy/prod")]
    #[case("deploy/../prod", "prod")]
    #[case("deploy/..", "")]
    #[case(".hidden/x", ".hidden/x")]
    #[case("a/...", "a/...")]
    #[case(" deploy", " deploy")]
    fn cleans(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(clean(path).as_deref(), Ok(expected));
    }

    /// Rules: run 14.1 path
    #[rstest]
    #[case("..")]
    #[case("../x")]
    #[case("/../x")]
    #[case("a/../../b")]
    #[case("a/../..")]
    #[case("./..")]
    fn escapes(#[case] path: &str) {
        assert_eq!(clean(path), Err(Escape));
    }

    #[rstest]
    #[case("/etc/passwd")]
    #[case("../x")]
    #[case("a/../../x")]
    #[case("..\\x")]
    #[case("a\\..\\..\\x")]
    fn entry_escapes(#[case] name: &str) {
        assert_eq!(clean_entry(name), Err(Escape));
    }

    #[test]
    fn a_backslash_alone_is_a_character() {
        assert_eq!(
            clean_entry("units/mnt-a\\x2db.mount").as_deref(),
            Ok("units/mnt-a\\x2db.mount")
        );
    }

    #[rstest]
    #[case("a/b/link", "../c", Ok("a/c"))]
    #[case("a/b/link", "../../c", Ok("c"))]
    #[case("a/b/link", "../../../c", Err(Escape))]
    #[case("link", "..", Err(Escape))]
    #[case("link", "/etc/passwd", Err(Escape))]
    #[case("link", ".", Ok(""))]
    fn links(#[case] link: &str, #[case] target: &str, #[case] expected: Result<&str, Escape>) {
        assert_eq!(resolve_link(link, target).as_deref().map_err(|e| *e), expected);
    }

    /// What a path means to a file system without links: a walk over a stack of names.
    fn depth_never_negative(path: &str) -> bool {
        let mut depth = 0_i32;
        path.split('/').all(|segment| {
            depth += match segment {
                "" | "." => 0,
                ".." => -1,
                _ => 1,
            };
            depth >= 0
        })
    }

    proptest! {
        #[test]
        fn clean_is_idempotent_and_confined(path in "[a./\\\\ -]{0,24}") {
            match clean(&path) {
                Ok(cleaned) => {
                    prop_assert!(depth_never_negative(path.trim_start_matches('/')));
                    prop_assert!(!cleaned.starts_with('/') && !cleaned.ends_with('/'));
                    prop_assert!(cleaned.is_empty() || cleaned.split('/').all(|s| !matches!(s, "" | "." | "..")));
                    prop_assert_eq!(clean(&cleaned), Ok(cleaned.clone()));
                    prop_assert_eq!(clean(&format!("/{path}/")), Ok(cleaned));
                }
                Err(Escape) => prop_assert!(!depth_never_negative(path.trim_start_matches('/'))),
            }
        }
    }
}
