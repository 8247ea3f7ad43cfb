//! What can go wrong on the way to a cluster, with the facts a person needs.

use std::error::Error as StdError;
use std::time::Duration;

use kube::core::Status;

use super::transport::TooMuch;
use crate::outbound::Refusal;
use crate::rules::condition::cut;

/// Stands for an answer that is none of the API.
const NO_STATUS: &str = "the server answered as no API server does";
/// Bytes of a server's words that are kept: more than a condition holds, so that masking comes before any cut that shows.
const MAX_SAID: usize = 64 * 1024;
/// Details of a failure that are kept.
const MAX_CAUSES: usize = 100;

/// A failed request. The text names the object and the verb; it never holds object content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with a failure.
    #[error("{what}: {} ({} {})", status.message, status.code, status.reason)]
    Api { what: String, status: Box<Status> },
    /// No answer in time; whether the request took effect is unknown.
    #[error("{what}: no answer from the API server within {after:?}")]
    Timeout { what: String, after: Duration },
    /// The connection failed before an answer arrived.
    #[error("{what}: {}", chain(source.as_ref()))]
    Transport {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The address guard refused to dial the API server.
    #[error("{what}: refused to contact the API server: {refusal}")]
    Refused { what: String, refusal: Refusal },
    /// The answer was not the JSON expected.
    #[error("{what}: the API server's answer cannot be read: {source}")]
    Decode {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    /// The kind is not served by the cluster.
    #[error(
        "kind {kind} of {api_version} is not served by the cluster: install its CustomResourceDefinition, or correct apiVersion and kind"
    )]
    UnknownKind { api_version: String, kind: String },
    /// What the cluster serves is not known in full, so nothing may be concluded from what is missing.
    #[error("{what}: the answer is not complete: {why}")]
    Undiscovered { what: String, why: String },
    /// An object that cannot be addressed.
    #[error("object {object} has no {field}")]
    Incomplete { object: String, field: &'static str },
    /// A name that is a path.
    #[error(
        "{object}: no object can have this name or namespace; they may not be \".\" or \"..\" nor hold \"/\" or \"%\""
    )]
    NoName { object: String },
    /// The StageSet names no account, and only the controller's own work is a reason to reach the object.
    #[error(
        "{object} is forbidden to a StageSet without an account: the controller's rights on it are for its own work; set \
         spec.serviceAccountName to a ServiceAccount of namespace {namespace} that has the right"
    )]
    NotLent { object: String, namespace: String },
    /// Others kept writing the same object.
    #[error("{what}: others keep writing it; trying again")]
    Busy { what: String },
    /// The server's answer has no end.
    #[error("{what}: the API server's answer is larger than {limit}")]
    TooLarge { what: String, limit: &'static str },
    /// A client could not be built from the configuration.
    #[error("cannot build a client: {0}")]
    Client(String),
}

impl Error {
    /// Sorts a kube error under the request it belongs to.
    pub fn from_kube(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api {
                what,
                status: fit_to_tell(status),
            },
            kube::Error::SerdeError(source) => Self::Decode { what, source },
            other => match refusal_in(&other) {
                Some(refusal) => Self::Refused { what, refusal },
                None => match cause_in::<TooMuch>(&other) {
                    Some(TooMuch { limit }) => Self::TooLarge { what, limit },
                    None => Self::Transport {
                        what,
                        source: Box::new(other),
                    },
                },
            },
        }
    }

    /// The status code of the answer, 0 where it was no Status and its code is not known, when there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => Some(status.code),
            _ => None,
        }
    }

    /// The API server's Status, when it answered with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Nobody answered.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Transport { .. })
    }

    /// 404: the object (or its kind's endpoint) is not there.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// 409 with reason Conflict: the resourceVersion or UID no longer matches.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|s| s.code == 409 && s.reason == "Conflict")
    }

    /// 409 with reason AlreadyExists.
    pub fn already_exists(&self) -> bool {
        self.status()
            .is_some_and(|s| s.code == 409 && s.reason == "AlreadyExists")
    }

    /// An apply that was to create an object was refused for good: there may be one, which the server compares only
    /// after admission has had its say.
    pub fn needs_a_look(&self) -> bool {
        self.code()
            .is_some_and(|code| (400..500).contains(&code) && code != 429)
    }

    /// 403: the identity lacks a right.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::NotLent { .. }) || self.code() == Some(403)
    }

    /// The namespace is being deleted, so nothing can be created in it.
    pub fn namespace_terminating(&self) -> bool {
        self.status().is_some_and(|s| {
            s.details
                .as_ref()
                .is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating"))
        })
    }

    /// The object does not fit the schema of its kind. The server has neither a code nor a reason of its own for that:
    /// it answers 500, and only its words tell this from a stumble.
    pub fn misfits_schema(&self) -> bool {
        const WORDS: [&str; 2] = ["failed to create typed patch object", "failed to convert new object"];
        self.status()
            .is_some_and(|s| s.code == 500 && s.reason.is_empty() && WORDS.iter().any(|w| s.message.starts_with(w)))
    }

    /// Whether the request may yet be carried out although nobody waits for its answer any more. One whose connection
    /// broke was either taken up at once or not at all.
    pub fn leaves_in_doubt(&self) -> bool {
        matches!(self, Self::Timeout { .. }) || self.code() == Some(504)
    }

    /// Trying the same request again soon may succeed without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Transport { .. }
            | Self::Decode { .. }
            | Self::Busy { .. }
            | Self::Undiscovered { .. } => true,
            Self::Api { status, .. } => {
                matches!(status.code, 0 | 408 | 429)
                    || (status.code >= 500 && !self.misfits_schema())
                    || self.is_conflict()
            }
            Self::UnknownKind { .. }
            | Self::Incomplete { .. }
            | Self::NoName { .. }
            | Self::NotLent { .. }
            | Self::Refused { .. }
            | Self::TooLarge { .. }
            | Self::Client(_) => false,
        }
    }

    /// 404 that says nothing about an object: the path itself is not served (any more).
    pub fn path_not_served(&self) -> bool {
        self.status()
            .is_some_and(|s| s.code == 404 && s.details.as_ref().is_none_or(|d| d.name.is_empty()))
    }
}

/// A failure as it may be told. A server that is no API server answers with whatever it has, and a tenant may have named
/// that server to learn of it: of such a body nothing is kept.
fn fit_to_tell(mut status: Box<Status>) -> Box<Status> {
    // A reason is a word of the API; the client writes a sentence there where it could not read the body.
    let is_status = status.code != 0 && !status.reason.contains(' ');
    if !is_status {
        return Status::failure(NO_STATUS, "NoStatus").with_code(status.code).boxed();
    }
    status.message = cut(std::mem::take(&mut status.message), MAX_SAID);
    if let Some(details) = &mut status.details {
        details.causes.truncate(MAX_CAUSES);
        details.causes.shrink_to_fit();
    }
    status
}

/// The guard's refusal among the causes of an error.
pub(super) fn refusal_in(error: &(dyn StdError + 'static)) -> Option<Refusal> {
    cause_in::<Refusal>(error).cloned()
}

fn cause_in<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    causes(error).find_map(|e| e.downcast_ref())
}

/// An error with its causes; HTTP clients keep what happened in the last of them.
pub(super) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let cause = cause.to_string();
        // Some wrappers repeat the text of what they wrap.
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let current = next?;
        next = current.source();
        Some(current)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn said(body: &str, code: u16) -> Error {
        // As the client reads the body of a failure.
        let status = serde_json::from_str(body)
            .unwrap_or_else(|_| Status::failure(body, "Failed to parse error data").with_code(code));
        Error::from_kube("get x".into(), kube::Error::Api(Box::new(status)))
    }

    /// Rules: decisions 7 told
    #[test]
    fn a_body_that_is_no_status_is_not_repeated() {
        let page = said("<html>password: hunter2</html>", 403);
        assert_eq!(page.to_string(), format!("get x: {NO_STATUS} (403 NoStatus)"));
        assert!(page.is_forbidden());
        let json = said(r#"{"message": "hunter2", "reason": "Internal"}"#, 502);
        assert!(!json.to_string().contains("hunter2"), "{json}");
        assert!(json.is_transient());
        let long = format!(
            r#"{{"kind": "Status", "code": 422, "reason": "Invalid", "message": "{}"}}"#,
            "x".repeat(1 << 20)
        );
        assert!(said(&long, 422).to_string().len() < MAX_SAID + 100);
        let cause = format!(
            r#"{{"reason": "FieldValueInvalid", "message": "{}"}}"#,
            "x".repeat(1000)
        );
        let many = format!(
            r#"{{"code": 422, "reason": "Invalid", "details": {{"causes": [{}]}}}}"#,
            vec![cause; 1000].join(",")
        );
        let many = said(&many, 422);
        let details = many.status().and_then(|s| s.details.as_ref());
        assert_eq!(details.map(|d| d.causes.len()), Some(MAX_CAUSES));
        let real = said(
            r#"{"code": 403, "reason": "Forbidden", "message": "pods is forbidden"}"#,
            403,
        );
        assert_eq!(real.to_string(), "get x: pods is forbidden (403 Forbidden)");
    }

    #[rstest]
    #[case(
        500,
        "",
        "failed to create typed patch object (a/b; /v1, Kind=ConfigMap): .data: expected map",
        true
    )]
    #[case(
        500,
        "",
        "failed to convert new object (a/b; /v1, Kind=Secret) to proper version: illegal base64 data",
        true
    )]
    #[case(500, "", "etcdserver: request timed out", false)]
    #[case(
        500,
        "InternalError",
        "failed calling webhook: failed to create typed patch object",
        false
    )]
    #[case(422, "Invalid", "failed to create typed patch object", false)]
    fn a_misfit_is_told_from_a_stumble(
        #[case] code: u16,
        #[case] reason: &str,
        #[case] message: &str,
        #[case] misfit: bool,
    ) {
        let error = Error::Api {
            what: "apply".into(),
            status: Box::new(Status {
                code,
                reason: reason.into(),
                message: message.into(),
                ..Status::default()
            }),
        };
        assert_eq!(error.misfits_schema(), misfit);
        assert_eq!(error.is_transient(), code >= 500 && !misfit);
    }
}
