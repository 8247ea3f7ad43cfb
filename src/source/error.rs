//! What keeps a source from being used, and what that means for the StageSet.

use std::fmt;

use super::archive::Fault;
use super::digest::{Digest, DigestError};
use super::tree::PathError;
use crate::outbound;

/// An object in a message: `GitRepository "apps/web"`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = format!("{}/{}", self.namespace, self.name);
        write!(f, "{} {path:?}", self.kind)
    }
}

/// What a source says about itself while it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// No Ready condition yet.
    NoCondition,
    /// A Ready condition that is not True.
    Condition {
        /// Its status.
        status: String,
        /// Its reason.
        reason: String,
        /// Its message, shortened.
        message: String,
    },
    /// The status is about an older generation of the spec (run 28 B35).
    Stale {
        /// `metadata.generation`.
        generation: i64,
        /// What the status has seen.
        observed: i64,
    },
    /// Ready, but an artifact field is missing or empty.
    Unpublished {
        /// The field.
        field: &'static str,
    },
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCondition => f.write_str("it has no Ready condition yet"),
            Self::Condition {
                status,
                reason,
                message,
            } => {
                write!(f, "Ready is {status}")?;
                if !reason.is_empty() {
                    write!(f, ", {reason}")?;
                }
                if !message.is_empty() {
                    write!(f, ": {message}")?;
                }
                Ok(())
            }
            Self::Stale { observed: ..0, .. } => f.write_str("it has not been looked at by its controller yet"),
            Self::Stale { generation, observed } => write!(
                f,
                "its status is about generation {observed}, its spec is at {generation}"
            ),
            Self::Unpublished { field } => write!(f, "it is Ready, but {field} is empty"),
        }
    }
}

/// Why a read of a source failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFailure {
    /// The API server refused it (403), in its words.
    Forbidden(String),
    /// The kind is not served: its CRD is not installed.
    NotServed,
    /// Anything else.
    Other(String),
}

/// A source that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A producer reference without API group.
    #[error("sourceRef {kind} {name:?} has no apiVersion; set it, a producer is found by its API group")]
    ProducerWithoutApiVersion {
        /// Kind of the reference.
        kind: String,
        /// Name of the reference.
        name: String,
    },
    /// A direct reference to an object that does not exist.
    #[error("{object} not found; create it or correct sourceRef")]
    Missing {
        /// What was looked for.
        object: Box<ObjectName>,
    },
    /// No artifact points back at the producer.
    #[error(
        "no ExternalArtifact in namespace {:?} points back at {producer} of group {group:?}; \
         check that it exists and publishes an artifact there",
        producer.namespace
    )]
    NoArtifact {
        /// The producer.
        producer: Box<ObjectName>,
        /// Its API group.
        group: String,
    },
    /// Several artifacts point back at the producer.
    #[error(
        "ExternalArtifacts {} all point back at {producer}; keep one, or reference an ExternalArtifact by name",
        quoted(artifacts)
    )]
    Ambiguous {
        /// The producer.
        producer: Box<ObjectName>,
        /// Names of the artifacts, sorted.
        artifacts: Vec<String>,
    },
    /// The source exists but must not be used yet.
    #[error("{object} is not ready: {state}")]
    NotReady {
        /// The source.
        object: Box<ObjectName>,
        /// Why.
        state: NotReady,
    },
    /// The API server refused the read.
    #[error("reading {object} is forbidden; grant get, list and watch on its kind to the controller: {message}")]
    Forbidden {
        /// What was read.
        object: Box<ObjectName>,
        /// The server's words.
        message: String,
    },
    /// The kind is unknown to the API server.
    #[error(
        "reading {object} failed: the API server does not serve {api_version} {}; \
         install its CRD or correct sourceRef.apiVersion",
        object.kind
    )]
    NotServed {
        /// What was read.
        object: Box<ObjectName>,
        /// The group and version asked for.
        api_version: String,
    },
    /// Any other failed read.
    #[error("reading {object} failed: {message}")]
    Read {
        /// What was read.
        object: Box<ObjectName>,
        /// The client's words.
        message: String,
    },
    /// Any failure on a reference into another namespace: one text, so that it tells nothing about that namespace
    /// (decisions 7).
    #[error(
        "cross-namespace {} {:?} is not reachable; check its status in namespace {:?}, \
         and whether the controller runs with --no-cross-namespace-refs",
        object.kind, object.name, object.namespace
    )]
    CrossNamespace {
        /// The reference as the spec has it.
        object: Box<ObjectName>,
        /// Refused by the flag, before any read.
        forbidden: bool,
    },
    /// The download failed or was refused.
    #[error("artifact of {object}: {error}")]
    Fetch {
        /// The source.
        object: Box<ObjectName>,
        /// What the network side says.
        error: outbound::Error,
    },
    /// `status.artifact.digest` cannot be verified.
    #[error("artifact of {object}: digest {digest:?} is unusable: {error}")]
    InvalidDigest {
        /// The source.
        object: Box<ObjectName>,
        /// As the status has it.
        digest: String,
        /// What is wrong with it.
        error: DigestError,
    },
    /// The downloaded bytes are not what the source announced.
    #[error(
        "artifact of {object}: the download has digest {actual}, its status says {expected}; \
         check that the producer publishes it anew"
    )]
    DigestMismatch {
        /// The source.
        object: Box<ObjectName>,
        /// From `status.artifact.digest`.
        expected: Digest,
        /// Of the bytes received.
        actual: Digest,
    },
    /// The archive is refused.
    #[error("artifact of {object}: {fault}")]
    Archive {
        /// The source.
        object: Box<ObjectName>,
        /// Why.
        fault: Fault,
    },
    /// Unpacking ended early, by a shutdown or a defect.
    #[error("artifact of {object}: unpacking was interrupted")]
    Interrupted {
        /// The source.
        object: Box<ObjectName>,
    },
    /// The stage's path cannot be built.
    #[error(transparent)]
    Path(#[from] PathError),
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Tried again at the retry interval.
    Transient,
    /// Only a change of the spec, the source or the flags helps.
    Terminal,
}

/// What an [`Error`] means for the StageSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Reason of the Ready condition (contract 7.5).
    pub reason: &'static str,
    /// Whether trying again can help.
    pub class: Class,
    /// The stage operation that failed; `None` while resolving, where the message has no operation.
    pub operation: Option<&'static str>,
    /// For people, without the `stage "<name>"` prefix.
    pub message: String,
}

impl Error {
    /// Reason, class, operation and message of this error (run 8.4, 12, 14.1; contract 7.5).
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (reason, class) = self.verdict();
        Outcome {
            reason,
            class,
            operation: self.operation(),
            message: self.to_string(),
        }
    }

    fn verdict(&self) -> (&'static str, Class) {
        use Class::{Terminal, Transient};
        match self {
            Self::ProducerWithoutApiVersion { .. } => ("InvalidSpec", Terminal),
            Self::Missing { .. } | Self::NoArtifact { .. } => ("ArtifactNotFound", Transient),
            Self::NotReady { .. } => ("SourceNotReady", Transient),
            Self::Ambiguous { .. } => ("ResolveFailed", Terminal),
            // A denial or a missing CRD heals without an event that would wake the StageSet.
            Self::Forbidden { .. } | Self::NotServed { .. } | Self::Read { .. } => ("ResolveFailed", Transient),
            Self::CrossNamespace { forbidden, .. } => ("ResolveFailed", if *forbidden { Terminal } else { Transient }),
            Self::Fetch { error, .. } if error.is_terminal() => ("StageFailed", Terminal),
            Self::InvalidDigest { .. } | Self::DigestMismatch { .. } | Self::Archive { .. } => {
                ("StageFailed", Terminal)
            }
            Self::Fetch { .. } | Self::Interrupted { .. } | Self::Path(_) => ("StageFailed", Transient),
        }
    }

    fn operation(&self) -> Option<&'static str> {
        match self {
            Self::Fetch { .. }
            | Self::InvalidDigest { .. }
            | Self::DigestMismatch { .. }
            | Self::Archive { .. }
            | Self::Interrupted { .. } => Some("fetch artifact"),
            Self::Path(_) => Some("build"),
            _ => None,
        }
    }
}
