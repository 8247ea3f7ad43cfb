//! Reading and writing YAML the way Flux does: twice, by different rules. Strict and bounded.

mod compose;
mod emit;
pub(crate) mod plain;
pub(crate) mod scalar;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::node::{Key, Node};

pub use emit::{EmitError, to_string};

/// Whose rules read the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// go-yaml v3, as kustomize reads resources: `yes` is text, keys must be text.
    Kustomize,
    /// go-yaml v2 (YAML 1.1), as kubectl and Flux read text after substitution: `yes` is a boolean, keys
    /// become text.
    Kubectl,
}

/// What a repeated key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// An error.
    Reject,
    /// The last one wins, as in kustomization files.
    LastWins,
}

/// Bounds on what one document may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Nested collections.
    pub depth: usize,
    /// Nodes of one document, aliases counted by what they expand to.
    pub nodes: usize,
    /// Nodes of all documents that one loader reads, whatever becomes of them.
    pub all_nodes: usize,
    /// Bytes of text one loader may add through aliases.
    pub alias_bytes: usize,
    /// Documents of one stream.
    pub documents: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 100,
            nodes: 1_000_000,
            all_nodes: 4_000_000,
            alias_bytes: 32 << 20,
            documents: 100_000,
        }
    }
}

/// A document that cannot be read.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{file}:{line}: {problem}")]
pub struct Error {
    /// Name of the file, as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a document.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Problem {
    /// The text is not UTF-8.
    #[error("not UTF-8 text")]
    Encoding,
    /// The YAML grammar is violated.
    #[error("malformed YAML: {0}")]
    Syntax(String),
    /// The same key twice in one mapping.
    #[error("key {0:?} is given twice in one mapping; remove one")]
    DuplicateKey(String),
    /// A list or mapping as key.
    #[error("a mapping key must be a scalar")]
    ComplexKey,
    /// A number, boolean or null as key.
    #[error("mapping key {0} is not text; quote it")]
    KeyNotText(String),
    /// `<<` with something that is no mapping.
    #[error("a merge key (<<) needs a mapping or a list of mappings")]
    Merge,
    /// Text that does not fit its explicit tag, or `.inf` and `.nan`, which JSON cannot hold.
    #[error("{text:?} is not {expected}")]
    Tag {
        /// The text.
        text: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An alias inside the node it refers to.
    #[error("an alias refers to the node that contains it")]
    RecursiveAlias,
    /// More nesting than [`Limits::depth`].
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
    /// More nodes than [`Limits::nodes`].
    #[error("more than {0} nodes, aliases counted by what they stand for")]
    TooManyNodes(usize),
    /// More nodes than [`Limits::all_nodes`].
    #[error("this and what was read before it have more than {0} nodes")]
    TooManyInAll(usize),
    /// Aliases add more text than [`Limits::alias_bytes`].
    #[error("aliases expand to more than {0} bytes")]
    AliasesTooLarge(usize),
    /// More documents than [`Limits::documents`].
    #[error("more than {0} documents")]
    TooManyDocuments(usize),
    /// Text after a `---` line marker.
    #[error("only white space or a comment may follow a document separator (---)")]
    Separator,
}

/// Reads documents by one set of rules; keys are shared between all documents one loader reads.
pub struct Loader {
    mode: Mode,
    duplicates: Duplicates,
    limits: Limits,
    alias_bytes_left: usize,
    alias_nodes_left: usize,
    nodes_left: usize,
    keys: HashSet<Key>,
}

impl Loader {
    /// A strict loader with the usual bounds.
    pub fn new(mode: Mode) -> Self {
        Self::with(mode, Duplicates::Reject, Limits::default())
    }

    /// A loader with chosen rules.
    pub fn with(mode: Mode, duplicates: Duplicates, limits: Limits) -> Self {
        Self {
            mode,
            duplicates,
            limits,
            alias_bytes_left: limits.alias_bytes,
            alias_nodes_left: limits.nodes,
            nodes_left: limits.all_nodes,
            keys: HashSet::new(),
        }
    }

    /// Whether it has read as much as it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.nodes_left == 0
    }

    /// Shares the text of a key.
    pub(crate) fn key(&mut self, text: &str) -> Key {
        // Large one-off keys (file names, hashes) are not worth keeping.
        const SHARED: usize = 64;
        if text.len() > SHARED {
            return Key::from(text);
        }
        if let Some(key) = self.keys.get(text) {
            return Arc::clone(key);
        }
        let key = Key::from(text);
        self.keys.insert(Arc::clone(&key));
        key
    }

    /// The first document of `text`; `None` when there is none. `first_line` is the line of the file at which
    /// `text` begins, from 1.
    ///
    /// # Errors
    /// Anything [`Problem`] names, with file and line.
    pub fn first(&mut self, text: &str, file: &str, first_line: usize) -> Result<Option<Node>, Error> {
        compose::Composer::new(self, text, file, first_line).next_document()
    }

    /// All documents of `text` that are not null.
    ///
    /// # Errors
    /// Anything [`Problem`] names, with file and line.
    pub fn all(&mut self, text: &str, file: &str) -> Result<Vec<Node>, Error> {
        let limit = self.limits.documents;
        let mut composer = compose::Composer::new(self, text, file, 1);
        let mut documents = Vec::new();
        while let Some(node) = composer.next_document()? {
            if documents.len() == limit {
                return Err(Error {
                    file: file.to_owned(),
                    line: 1,
                    problem: Problem::TooManyDocuments(limit),
                });
            }
            if !node.is_null() {
                documents.push(node);
            }
        }
        Ok(documents)
    }
}

/// UTF-8 text of a file, without a byte-order mark.
///
/// # Errors
/// [`Problem::Encoding`] with the line of the first bad byte.
pub fn text<'a>(bytes: &'a [u8], file: &str) -> Result<&'a str, Error> {
    let text = std::str::from_utf8(bytes).map_err(|e| Error {
        file: file.to_owned(),
        line: 1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count(),
        problem: Problem::Encoding,
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// All documents of a YAML or JSON text as values; null documents are skipped.
///
/// # Errors
/// Anything [`Problem`] names, with file and line.
pub fn load(bytes: &[u8], file: &str, mode: Mode) -> Result<Vec<Value>, Error> {
    let text = text(bytes, file)?;
    let nodes = Loader::new(mode).all(text, file)?;
    nodes.into_iter().map(|node| to_value(node, file)).collect()
}

/// The value of a node.
///
/// # Errors
/// [`Problem::Tag`] where a scalar does not fit its type.
pub(crate) fn to_value(node: Node, file: &str) -> Result<Value, Error> {
    node.into_value().map_err(|e| Error {
        file: file.to_owned(),
        line: 1,
        problem: Problem::Tag {
            text: format!("{}: {}", e.path, e.text),
            expected: e.expected,
        },
    })
}

#[cfg(test)]
mod tests;
