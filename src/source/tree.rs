//! The unpacked content of an artifact, in memory.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::path;

/// What an entry was that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedKind {
    /// A symbolic or hard link whose target stays inside the artifact.
    Link,
    /// A device, FIFO or vendor-specific entry.
    Special,
}

/// The files of an artifact. Paths are clean: relative, `/` between segments, no `.` or `..`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Content by path, sorted by path bytes.
    pub files: Vec<(String, Bytes)>,
    /// Every directory but the root, also those that only a file's path implies.
    pub directories: BTreeSet<String>,
    /// Entries left out, by path.
    pub skipped: BTreeMap<String, SkippedKind>,
}

/// Why a `spec.stages[].path` cannot be built (run 14.1, build 5.1 and 5.2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A `..` leaves the root.
    #[error("path {path:?} escapes the artifact root; use a directory inside the artifact")]
    Escapes {
        /// As the spec has it.
        path: String,
    },
    /// Nothing is there.
    #[error("build path {path:?} not found in artifact{}", hint(*skipped))]
    Missing {
        /// As the spec has it.
        path: String,
        /// The archive had a link or special file of that name.
        skipped: bool,
    },
    /// A file is there.
    #[error("build path {path:?} is a file; name the directory that holds it")]
    NotADirectory {
        /// As the spec has it.
        path: String,
    },
    /// The artifact has no file at all.
    #[error("the artifact is empty; nothing is applied or pruned")]
    Empty,
    /// No file that could hold a manifest. Never read as "prune everything".
    #[error(
        "no .yaml, .yml, .json or Kustomization file at or below path {path:?} of the artifact; nothing is applied or pruned"
    )]
    NoManifests {
        /// As the spec has it.
        path: String,
    },
}

fn hint(skipped: bool) -> &'static str {
    if skipped {
        "; there is a link or special file of that name, and those are not followed"
    } else {
        ""
    }
}

impl Tree {
    /// Content of the file at a clean path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Bytes> {
        self.files
            .binary_search_by(|(name, _)| name.as_str().cmp(path))
            .ok()
            .map(|at| &self.files[at].1)
    }

    /// Whether a clean path is a directory; the root (empty) always is.
    #[must_use]
    pub fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.directories.contains(path)
    }

    /// The files at or below a clean directory path, in order.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a (String, Bytes)> {
        let start = self.files.partition_point(|(name, _)| name.as_str() < directory);
        // Siblings such as `a-b` and `a.b` sort between `a` and `a/`.
        self.files[start..]
            .iter()
            .take_while(move |(name, _)| name.starts_with(directory))
            .filter(move |(name, _)| directory.is_empty() || name[directory.len()..].starts_with('/'))
    }

    /// Cleans a `spec.stages[].path` and checks that it is a directory with something that could be a manifest.
    ///
    /// Returns the clean path; the root is the empty string.
    ///
    /// # Errors
    /// [`PathError`], in the order escapes, empty artifact, missing, a file, no manifests.
    pub fn build_directory(&self, path: &str) -> Result<String, PathError> {
        let named = || path.to_owned();
        let clean = path::clean(path).map_err(|path::Escape| PathError::Escapes { path: named() })?;
        if self.files.is_empty() {
            return Err(PathError::Empty);
        }
        if !self.is_directory(&clean) {
            return Err(if self.get(&clean).is_some() {
                PathError::NotADirectory { path: named() }
            } else {
                PathError::Missing {
                    path: named(),
                    skipped: self.crosses_skipped(&clean),
                }
            });
        }
        if !self.below(&clean).any(|(name, _)| may_hold_manifests(name)) {
            return Err(PathError::NoManifests { path: named() });
        }
        Ok(clean)
    }

    fn crosses_skipped(&self, path: &str) -> bool {
        let mut next = Some(path);
        while let Some(path) = next {
            if self.skipped.contains_key(path) {
                return true;
            }
            next = path::parent(path);
        }
        false
    }

    /// Bytes of content, for accounting.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|(_, content)| content.len() as u64).sum()
    }
}

fn may_hold_manifests(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    // The one spelling of a kustomization file that has no extension.
    file == "Kustomization"
        || file.rsplit_once('.').is_some_and(|(_, extension)| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension.eq_ignore_ascii_case(known))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn tree(files: &[&str], directories: &[&str], links: &[&str]) -> Tree {
        let mut tree = Tree {
            files: files
                .iter()
                .map(|name| ((*name).to_owned(), Bytes::from_static(b"x")))
                .collect(),
            ..Tree::default()
        };
        tree.files.sort();
        tree.directories = directories.iter().map(|d| (*d).to_owned()).collect();
        tree.skipped = links.iter().map(|l| ((*l).to_owned(), SkippedKind::Link)).collect();
        tree
    }

    fn sample() -> Tree {
        tree(
            &[
                "README.md",
                "a-b/x.yaml",
                "a.b/x.yaml",
                "a/deep/x.YML",
                "a/x.json",
                "ab/x.yaml",
                "docs/readme.txt",
                "dot/.yaml",
            ],
            &["a", "a/deep", "a-b", "a.b", "ab", "docs", "dot", "empty"],
            &["link"],
        )
    }

    #[test]
    fn below_is_exact() {
        let tree = sample();
        let names: Vec<&str> = tree.below("a").map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["a/deep/x.YML", "a/x.json"]);
        assert_eq!(tree.below("").count(), 8);
        assert_eq!(tree.below("empty").count(), 0);
    }

    #[rstest]
    #[case("", "")]
    #[case("./", "")]
    #[case("/a/", "a")]
    #[case("a/deep", "a/deep")]
    #[case("docs/../a", "a")]
    #[case("dot", "dot")]
    fn found(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(sample().build_directory(path).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case("../x", PathError::Escapes { path: "../x".to_owned() }, "path \"../x\" escapes the artifact root")]
    #[case("nope", PathError::Missing { path: "nope".to_owned(), skipped: false }, "build path \"nope\" not found in artifact")]
    #[case("link/sub", PathError::Missing { path: "link/sub".to_owned(), skipped: true }, "not followed")]
    #[case("a/x.json", PathError::NotADirectory { path: "a/x.json".to_owned() }, "is a file")]
    #[case("docs", PathError::NoManifests { path: "docs".to_owned() }, "path \"docs\"")]
    #[case("empty", PathError::NoManifests { path: "empty".to_owned() }, "path \"empty\"")]
    fn refused(#[case] path: &str, #[case] expected: PathError, #[case] text: &str) {
        let error = sample().build_directory(path).expect_err("must fail");
        assert_eq!(error, expected);
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn an_empty_artifact_is_its_own_error() {
        let tree = tree(&[], &["a"], &[]);
        assert_eq!(tree.build_directory("a"), Err(PathError::Empty));
        assert_eq!(tree.build_directory(""), Err(PathError::Empty));
    }
}
