//! Syntax of Kubernetes names, labels and versions (RFC 1123, and apimachinery's validation).
//!
//! Names of referents go into the paths of API requests, so they are checked before any request.

const MAX_SUBDOMAIN: usize = 253;
const MAX_LABEL: usize = 63;

/// Why a text is not a name of the wanted kind; continues a sentence that began with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    #[error(
        "is no name: use at most 253 lower-case letters, digits, hyphens and dots, beginning and ending with a letter or digit"
    )]
    Subdomain,
    #[error(
        "is no name: use at most 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit"
    )]
    Label,
    #[error("cannot be part of an object's address: it must not be empty, . or .., nor hold / or %")]
    PathSegment,
    #[error("is no label key: write name or prefix/name, the name of at most 63 letters, digits, -, _ and .")]
    LabelKey,
    #[error(
        "is no label value: use at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit"
    )]
    LabelValue,
    #[error("is no API version: write version or group/version, for example v1 or apps/v1")]
    ApiVersion,
    #[error("is no kind: use letters, digits and hyphens, beginning with a letter, for example Deployment")]
    Kind,
    #[error("is no key of a Secret or ConfigMap: use at most 253 letters, digits, -, _ and .")]
    DataKey,
    #[error("is no name of a variable: use letters, digits and _, not beginning with a digit")]
    Variable,
    #[error("is no name of an HTTP header: use letters, digits and hyphens")]
    Header,
    #[error("must not hold @ or /: both separate the parts of a ledger entry")]
    LedgerKey,
}

fn require(holds: bool, error: NameError) -> Result<(), NameError> {
    if holds { Ok(()) } else { Err(error) }
}

fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A namespace, or the name of a stage.
pub(super) fn dns_label(text: &str) -> Result<(), NameError> {
    require(text.len() <= MAX_LABEL && is_dns_label(text), NameError::Label)
}

/// The name of most objects.
pub(super) fn dns_subdomain(text: &str) -> Result<(), NameError> {
    require(
        text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_dns_label),
        NameError::Subdomain,
    )
}

/// The name of any object; some kinds, such as ClusterRole, allow more than most.
pub(super) fn path_segment(text: &str) -> Result<(), NameError> {
    let forbidden = matches!(text, "" | "." | "..") || text.contains(['/', '%']);
    require(!forbidden, NameError::PathSegment)
}

/// A label key, prefix included.
pub(super) fn label_key(text: &str) -> Result<(), NameError> {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let prefix_holds = prefix.is_none_or(|prefix| dns_subdomain(prefix).is_ok());
    require(
        prefix_holds && !name.is_empty() && label_value(name).is_ok(),
        NameError::LabelKey,
    )
}

/// A label value; may be empty.
pub(super) fn label_value(text: &str) -> Result<(), NameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric();
    let holds = text.is_empty() || (text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge));
    require(text.len() <= MAX_LABEL && holds, NameError::LabelValue)
}

/// `version` or `group/version`.
pub(super) fn api_version(text: &str) -> Result<(), NameError> {
    let (group, version) = text
        .split_once('/')
        .map_or((None, text), |(group, version)| (Some(group), version));
    let holds = is_dns_label(version) && group.is_none_or(|group| dns_subdomain(group).is_ok());
    require(holds, NameError::ApiVersion)
}

/// The kind of an object.
pub(super) fn kind(text: &str) -> Result<(), NameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
    require(
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(inner),
        NameError::Kind,
    )
}

/// A key of a Secret or ConfigMap.
pub(super) fn data_key(text: &str) -> Result<(), NameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let holds =
        !text.is_empty() && text.len() <= MAX_SUBDOMAIN && text.chars().all(inner) && !matches!(text, "." | "..");
    require(holds, NameError::DataKey)
}

/// A variable of `postBuild`.
pub(super) fn variable(text: &str) -> Result<(), NameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let holds = text.chars().all(inner) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    require(holds, NameError::Variable)
}

/// The name of an HTTP header that is a key of a Secret too.
pub(super) fn header(text: &str) -> Result<(), NameError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    require(!text.is_empty() && text.chars().all(inner), NameError::Header)
}

/// A name that becomes part of a ledger entry.
pub(super) fn ledger_key(text: &str) -> Result<(), NameError> {
    require(!text.contains(['@', '/']), NameError::LedgerKey)
}
