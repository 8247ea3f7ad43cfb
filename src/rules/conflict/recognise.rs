//! Recognises a refusal that is about immutability in the API server's answer.
//!
//! The API has no machine-readable reason for it: validation, CEL rules and webhooks all say it in words. So words are
//! looked at here, but only where they explain (the detail of a cause, the denial of a webhook), never in values or
//! names, and only in answers of the right code.

use std::fmt;

/// A refused write: the fields of the `Status` the server answered with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiRefusal {
    /// HTTP status code.
    pub code: u16,
    /// `Invalid`, `Forbidden`, `Conflict`, ...; may be empty.
    pub reason: String,
    pub message: String,
    /// `details.causes`.
    pub causes: Vec<Cause>,
}

/// One entry of `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cause {
    /// For example `FieldValueInvalid`.
    pub reason: String,
    pub message: String,
    /// Path of the field, for example `spec.selector`.
    pub field: String,
}

/// A change that the server refuses because something cannot be changed in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImmutableConflict {
    /// The fields named; may be empty.
    pub fields: Vec<String>,
    /// The server's explanation without values.
    pub detail: String,
}

impl fmt::Display for ImmutableConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.fields.is_empty() {
            write!(f, "{}: ", self.fields.join(", "))?;
        }
        f.write_str(&self.detail)
    }
}

/// Phrases of refusals that hold for updates only, in lower case. The comments name who says it.
const PHRASES: [&str; 17] = [
    "is immutable",                               // shared field validation, claims, volumes, most webhooks
    "are immutable",                              // webhooks
    "immutable field",                            // webhooks, older validation
    "immutable once set",                         // CEL messages
    "updates to statefulset spec",                // StatefulSet
    "pod updates may not change",                 // Pod
    "may not change once set",                    // Service addresses
    "primary clusterip can not be unset",         // Service addresses
    "cannot change roleref",                      // RoleBinding, ClusterRoleBinding
    "may not be changed in an update",            // PriorityClass
    "updates to parameters are forbidden",        // StorageClass
    "updates to provisioner are forbidden",       // StorageClass
    "updates to reclaimpolicy are forbidden",     // StorageClass
    "updates to volumebindingmode are forbidden", // StorageClass
    "field can not be less than",                 // claims: storage cannot shrink
    "cannot be changed",                          // CEL messages, webhooks
    "oldself",                                    // CEL transition rules without a message of their own
];

/// Tells whether a refusal is about immutability and nothing else.
///
/// Every cause must be about it: where one says that the manifest itself is wrong, deleting the object would leave
/// nothing behind, so that is no conflict to cure (run 28 B5).
pub fn immutable_conflict(refusal: &ApiRefusal) -> Option<ImmutableConflict> {
    if let Some(denial) = webhook_denial(refusal) {
        return says_immutable(denial).then(|| ImmutableConflict {
            fields: Vec::new(),
            detail: denial.to_owned(),
        });
    }
    if refusal.code != 422 {
        return None;
    }
    if refusal.causes.is_empty() {
        let detail = after_object_name(&refusal.message);
        return says_immutable(detail).then(|| ImmutableConflict {
            fields: Vec::new(),
            detail: detail.to_owned(),
        });
    }
    let details: Vec<&str> = refusal.causes.iter().map(|cause| detail_of(&cause.message)).collect();
    if !details.iter().all(|detail| says_immutable(detail)) {
        return None;
    }
    let fields = refusal.causes.iter().map(|cause| cause.field.clone());
    Some(ImmutableConflict {
        fields: fields.filter(|field| !field.is_empty()).collect(),
        detail: unique(&details).join("; "),
    })
}

fn unique<'a>(details: &[&'a str]) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for detail in details {
        if !seen.contains(detail) {
            seen.push(detail);
        }
    }
    seen
}

fn says_immutable(detail: &str) -> bool {
    let detail = detail.to_lowercase();
    PHRASES.iter().any(|phrase| detail.contains(phrase))
}

/// What an admission webhook or policy said when it denied the request. A denial by RBAC, with the same code, has no
/// such part, so the name of an object cannot be taken for one.
fn webhook_denial(refusal: &ApiRefusal) -> Option<&str> {
    if !matches!(refusal.code, 400 | 403 | 409 | 422) {
        return None;
    }
    let by_webhook = refusal.message.starts_with("admission webhook \"");
    let by_policy = refusal.message.contains("ValidatingAdmissionPolicy '");
    let denied = refusal.message.split_once(" denied the request");
    let denied = denied.or_else(|| refusal.message.split_once(" denied request"));
    let (_, said) = denied.filter(|_| by_webhook || by_policy)?;
    Some(said.trim_start_matches([':', ' ']))
}

/// The part of a message after `Kind "name" is invalid:`.
fn after_object_name(message: &str) -> &str {
    message.split_once("\" is invalid: ").map_or(message, |(_, rest)| rest)
}

/// A cause's message without the value it quotes and without the difference some add in further lines:
/// `Invalid value: "x": detail` becomes `detail`.
fn detail_of(message: &str) -> &str {
    let message = message.lines().next().unwrap_or_default();
    let Some(rest) = message.strip_prefix("Invalid value: ") else {
        return message;
    };
    let end = match rest.as_bytes().first() {
        Some(b'"') => end_of_quoted(rest),
        // A dumped structure or list: its own text may hold anything, its end does not.
        _ => [r#"}: "#, "]: ", "): "]
            .iter()
            .filter_map(|end| rest.rfind(end).map(|at| at + 1))
            .max(),
    };
    let end = end.or_else(|| rest.find(": "));
    end.and_then(|end| rest.get(end..))
        .map_or(rest, |detail| detail.trim_start_matches([':', ' ']))
}

/// Index after the closing quote of a quoted string.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    None
}
