//! Why a remote cluster cannot be used, in words fit for a status.

use std::sync::Arc;

use super::Fault;
use crate::cluster::Error;

/// The Secret a StageSet reaches its cluster by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SecretKey {
    pub namespace: String,
    pub name: String,
    pub key: String,
}

impl std::fmt::Display for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret {}/{}, key {:?}", self.namespace, self.name, self.key)
    }
}

/// Why a target cluster cannot be reached. The text names the Secret, the field and what to do; it never holds a value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RemoteError {
    /// No Secret is named: workload identity, or nothing.
    #[error(
        "spec.kubeConfig names no Secret: set spec.kubeConfig.secretRef; configMapRef is not supported by this version"
    )]
    NoSecret,
    /// The StageSet's ServiceAccount may not read the Secret (contract 17.5).
    #[error(
        "ServiceAccount {}/{account} may not read Secret {}/{}: grant it get on that Secret, or name an account that has it in serviceAccountName",
        secret.namespace, secret.namespace, secret.name
    )]
    NotAllowed { secret: SecretKey, account: String },
    /// The Secret, or the right to read it, could not be looked up.
    #[error("{source}")]
    Lookup {
        #[source]
        source: Arc<Error>,
    },
    /// The controller may not read the Secret.
    #[error("the controller may not read Secret {}/{}: grant its ServiceAccount get on Secrets there", secret.namespace, secret.name)]
    ControllerForbidden { secret: SecretKey },
    /// There is no such Secret.
    #[error("Secret {}/{} does not exist: create it with a kubeconfig under the key {:?}", secret.namespace, secret.name, secret.key)]
    SecretMissing { secret: SecretKey },
    /// The Secret lacks the key, or holds nothing under it.
    #[error("{secret} is missing or empty: store a kubeconfig there, or set spec.kubeConfig.secretRef.key")]
    KeyMissing { secret: SecretKey },
    /// The kubeconfig is refused.
    #[error("{secret}: {fault}")]
    Refused { secret: SecretKey, fault: Box<Fault> },
    /// The cluster did not answer as one.
    #[error("{secret}: {source}")]
    Unreachable {
        secret: SecretKey,
        #[source]
        source: Arc<Error>,
    },
}

impl RemoteError {
    /// The failed request, where one was answered, or not answered, with a failure.
    pub fn request(&self) -> Option<&Error> {
        match self {
            Self::Lookup { source } | Self::Unreachable { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Trying again soon may succeed without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        self.request().is_some_and(Error::is_transient)
    }

    /// A right is missing, and granting it is all that is needed.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::NotAllowed { .. } | Self::ControllerForbidden { .. })
    }
}
