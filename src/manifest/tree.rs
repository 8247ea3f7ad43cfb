//! The files of an artifact in memory. The root of the tree is the boundary: no path leads out of it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// A path that cannot be a path of a [`FileTree`].
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    /// The path leads above the root.
    #[error("path {0:?} leads out of the root of the artifact")]
    Escapes(String),
    /// The path is absolute.
    #[error("path {0:?} is absolute; paths are relative to the file that names them")]
    Absolute(String),
    /// The name cannot be used as a file and as a directory at once, or is empty.
    #[error("path {0:?} is not a usable file name")]
    Unusable(String),
}

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory, implied by the files below it.
    Directory,
}

/// Gives the content of a file on demand; `None` when it cannot be had.
pub type Source = dyn Fn(&str) -> Option<Bytes> + Send + Sync;

/// A sorted map of clean relative paths to file contents. Directories are implied by files; the root is `""`.
#[derive(Clone, Default)]
pub struct FileTree {
    files: BTreeMap<Box<str>, OnceLock<Bytes>>,
    source: Option<Arc<Source>>,
}

impl std::fmt::Debug for FileTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl FileTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tree of these files; a later file of the same path replaces the earlier one.
    ///
    /// # Errors
    /// A path that is absolute, empty or leads out of the root.
    pub fn from_files<P, B>(files: impl IntoIterator<Item = (P, B)>) -> Result<Self, PathError>
    where
        P: AsRef<str>,
        B: Into<Bytes>,
    {
        let mut tree = Self::new();
        for (path, content) in files {
            tree.insert(path.as_ref(), content)?;
        }
        Ok(tree)
    }

    /// A tree of paths whose contents are asked for when they are first needed. A file whose content cannot be
    /// had counts as missing.
    ///
    /// # Errors
    /// A path that is absolute, empty or leads out of the root.
    pub fn deferred<P: AsRef<str>>(paths: impl IntoIterator<Item = P>, source: Arc<Source>) -> Result<Self, PathError> {
        let mut tree = Self {
            files: BTreeMap::new(),
            source: Some(source),
        };
        for path in paths {
            tree.files.insert(file_path(path.as_ref())?.into(), OnceLock::new());
        }
        Ok(tree)
    }

    /// Adds or replaces one file.
    ///
    /// # Errors
    /// A path that is absolute, empty or leads out of the root.
    pub fn insert(&mut self, path: &str, content: impl Into<Bytes>) -> Result<(), PathError> {
        self.files
            .insert(file_path(path)?.into(), OnceLock::from(content.into()));
        Ok(())
    }

    /// The content of the file at a clean path.
    pub fn file(&self, path: &str) -> Option<&Bytes> {
        let slot = self.files.get(path)?;
        if let Some(content) = slot.get() {
            return Some(content);
        }
        let content = self.source.as_ref()?(path)?;
        Some(slot.get_or_init(|| content))
    }

    /// True when files exist below this clean path; the root always is a directory.
    pub fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || self.below(path).next().is_some()
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True without files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// All files with their clean paths, sorted bytewise.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files.keys().filter_map(|path| Some((&**path, self.file(path)?)))
    }

    /// All files, contents replaceable (decryption in place).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Bytes)> {
        self.files
            .iter_mut()
            .filter_map(|(path, slot)| Some((&**path, slot.get_mut()?)))
    }

    /// The paths of the files at any depth below a directory.
    pub fn below<'a>(&'a self, directory: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let prefix = if directory.is_empty() {
            String::new()
        } else {
            format!("{directory}/")
        };
        let range: (Bound<&str>, Bound<&str>) = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let range = self.files.range::<str, _>(range);
        range
            .map(|(path, _)| &**path)
            .take_while(move |path| path.starts_with(&prefix))
    }

    /// The names directly in a directory, files and directories mixed, sorted by name.
    pub fn list(&self, directory: &str) -> Vec<(String, EntryKind)> {
        let prefix = if directory.is_empty() {
            String::new()
        } else {
            format!("{directory}/")
        };
        let mut names = Vec::new();
        let mut from = prefix.clone();
        while let Some((path, _)) = self
            .files
            .range::<str, _>((Bound::Included(from.as_str()), Bound::Unbounded))
            .next()
        {
            let Some(rest) = path.strip_prefix(prefix.as_str()) else {
                break;
            };
            match rest.split_once('/') {
                None => {
                    names.push((rest.to_owned(), EntryKind::File));
                    from = format!("{path}\0");
                }
                Some((name, _)) => {
                    names.push((name.to_owned(), EntryKind::Directory));
                    // `0` is the character after `/`: the first path past everything below.
                    from = format!("{prefix}{name}0");
                }
            }
        }
        names.sort();
        names.dedup_by(|a, b| a.0 == b.0);
        names
    }
}

fn file_path(path: &str) -> Result<String, PathError> {
    let clean = resolve("", path)?;
    if clean.is_empty() || path.ends_with('/') {
        Err(PathError::Unusable(path.to_owned()))
    } else {
        Ok(clean)
    }
}

/// The clean path of `relative` seen from the clean directory `base`; `""` is the root.
///
/// # Errors
/// An absolute path, or one that leads out of the root.
pub fn resolve(base: &str, relative: &str) -> Result<String, PathError> {
    if relative.starts_with('/') {
        return Err(PathError::Absolute(relative.to_owned()));
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err(PathError::Escapes(relative.to_owned()));
                }
            }
            name if name.contains('\0') => return Err(PathError::Unusable(relative.to_owned())),
            name => parts.push(name),
        }
    }
    Ok(parts.join("/"))
}

/// A build path as users write it: surrounding slashes do not matter, empty and `.` mean the root.
///
/// # Errors
/// A path that leads out of the root.
pub fn clean_build_path(path: &str) -> Result<String, PathError> {
    resolve("", path.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> FileTree {
        FileTree::from_files(paths.iter().map(|p| (*p, Bytes::from_static(b"x")))).unwrap()
    }

    #[test]
    fn lists_names_in_the_order_of_names() {
        let tree = tree(&["a/x", "a.yaml", "a-b/y", "a/z/w", "b"]);
        let names = tree.list("");
        assert_eq!(
            names,
            vec![
                ("a".to_owned(), EntryKind::Directory),
                ("a-b".to_owned(), EntryKind::Directory),
                ("a.yaml".to_owned(), EntryKind::File),
                ("b".to_owned(), EntryKind::File),
            ]
        );
        assert_eq!(tree.list("a").len(), 2);
        assert!(tree.list("nothing").is_empty());
    }

    #[test]
    fn paths_stay_inside() {
        assert_eq!(resolve("a/b", "../c/./d").unwrap(), "a/c/d");
        assert_eq!(resolve("a/b", "../..").unwrap(), "");
        assert_eq!(resolve("a", "../../x"), Err(PathError::Escapes("../../x".to_owned())));
        assert_eq!(resolve("a", "/x"), Err(PathError::Absolute("/x".to_owned())));
        assert!(FileTree::from_files([("../x", "y")]).is_err());
        assert!(FileTree::from_files([("a/../..", "y")]).is_err());
        assert!(FileTree::from_files([(".", "y")]).is_err());
    }

    #[test]
    fn directories_are_implied() {
        let tree = tree(&["a/b/c", "ab/d"]);
        assert!(tree.is_dir("a") && tree.is_dir("a/b") && tree.is_dir(""));
        assert!(!tree.is_dir("a/b/c") && !tree.is_dir("b"));
        assert_eq!(tree.below("a").collect::<Vec<_>>(), vec!["a/b/c"]);
    }
}
