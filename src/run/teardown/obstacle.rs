//! What a teardown waits for, or gives up over.

use std::collections::BTreeSet;

use super::super::target::shown;
use super::NAMED;
use crate::cluster::{Error, RemoteError};
use crate::rules::inventory::ObjectId;

/// Why a stage is not gone.
#[derive(Debug)]
pub(super) struct Obstacle {
    pub kind: Kind,
    pub message: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its objects are on their way out.
    Leaving,
    /// A request failed.
    Failed,
    /// The credentials of a connection, named here, are refused.
    Refused(String),
    /// The cluster cannot be reached.
    Unreachable,
    /// The cluster that is reached is not the one its objects are on.
    Elsewhere,
    /// Records were lost, and the objects cannot be found.
    Unread,
    /// Nothing of it is left but what may not be deleted.
    Denied,
}

impl Obstacle {
    pub fn leaving(stage: &str, ids: &BTreeSet<ObjectId>) -> Self {
        let names: Vec<String> = ids.iter().take(NAMED).map(ToString::to_string).collect();
        Self {
            kind: Kind::Leaving,
            message: format!(
                "stage \"{}\": waits until these are gone: {}",
                shown(stage),
                names.join(", ")
            ),
        }
    }

    pub fn failed(stage: &str, error: &Error, connection: &str) -> Self {
        let kind = match error.code() {
            Some(401) => Kind::Refused(connection.to_owned()),
            _ => Kind::Failed,
        };
        Self {
            kind,
            message: format!("stage \"{}\" teardown: {error}", shown(stage)),
        }
    }

    pub fn denied(stage: &str, error: &Error) -> Self {
        Self {
            kind: Kind::Denied,
            message: format!("stage \"{}\" teardown: {error}", shown(stage)),
        }
    }

    pub fn unreachable(stage: &str, error: &RemoteError) -> Self {
        Self {
            kind: Kind::Unreachable,
            message: format!("stage \"{}\" connect to target cluster: {error}", shown(stage)),
        }
    }

    pub fn unread(why: &str) -> Self {
        Self {
            kind: Kind::Unread,
            message: format!("the inventory is lost, and its objects cannot be found by their labels: {why}"),
        }
    }

    pub fn elsewhere(message: String) -> Self {
        Self {
            kind: Kind::Elsewhere,
            message,
        }
    }
}
