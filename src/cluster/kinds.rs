//! What a cluster serves: kind to path and scope, discovered once and refreshed on a miss.

use std::collections::HashMap;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use kube::discovery::{Discovery, Scope};
use tokio::sync::Mutex;

use super::{Error, Target};

/// A miss asks the server again at most this often.
const REFRESH_EVERY: Duration = Duration::from_secs(2);

/// How a kind is addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub version: String,
    pub plural: String,
    pub namespaced: bool,
    /// The served version has the `status` subresource.
    pub has_status: bool,
    /// Defined by a CustomResourceDefinition or served by an aggregated API, not by Kubernetes itself.
    pub custom: bool,
}

#[derive(Default)]
struct Table {
    kinds: HashMap<(String, String), Vec<Served>>,
    read_at: Option<Instant>,
}

/// The discovery table of one cluster, shared by every identity: what is served is no secret, and
/// every authenticated user may read it (`system:discovery`).
#[derive(Default)]
pub struct Kinds {
    table: RwLock<Table>,
    refreshing: Mutex<()>,
}

impl Kinds {
    /// Finds how `target`'s kind is addressed, asking the server on a miss.
    ///
    /// # Errors
    /// [`Error::UnknownKind`] when the server does not serve it; otherwise the failed request.
    pub async fn resolve(&self, client: &kube::Client, api_version: &str, kind: &str) -> Result<Served, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(found) = self.lookup(group, version, kind) {
            return Ok(found);
        }
        self.refresh(client).await?;
        self.lookup(group, version, kind).ok_or_else(|| Error::UnknownKind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// Every namespaced kind known, at its preferred version: API version and kind.
    pub fn namespaced(&self) -> Vec<(String, String)> {
        let Ok(table) = self.table.read() else {
            return Vec::new();
        };
        let first = table.kinds.iter().filter_map(|((group, kind), versions)| {
            let served = versions.first().filter(|s| s.namespaced)?;
            let api_version = if group.is_empty() {
                served.version.clone()
            } else {
                format!("{group}/{}", served.version)
            };
            Some((api_version, kind.clone()))
        });
        first.collect()
    }

    /// Forgets what was learned, so that the next look-up asks the server.
    pub fn invalidate(&self) {
        if let Ok(mut table) = self.table.write() {
            table.read_at = None;
            table.kinds.clear();
        }
    }

    /// Forgets one way to address a kind, which has proved wrong; the next look-up asks the server.
    pub fn forget(&self, group: &str, kind: &str, wrong: &Served) {
        if let Ok(mut table) = self.table.write() {
            table.read_at = None;
            if let Some(versions) = table.kinds.get_mut(&(group.to_owned(), kind.to_owned())) {
                versions.retain(|served| served != wrong);
            }
        }
    }

    fn lookup(&self, group: &str, version: &str, kind: &str) -> Option<Served> {
        let table = self.table.read().ok()?;
        let versions = table.kinds.get(&(group.to_owned(), kind.to_owned()))?;
        versions.iter().find(|s| s.version == version).cloned()
    }

    async fn refresh(&self, client: &kube::Client) -> Result<(), Error> {
        let _only_one = self.refreshing.lock().await;
        let fresh = self
            .table
            .read()
            .ok()
            .and_then(|t| t.read_at)
            .is_some_and(|at| at.elapsed() < REFRESH_EVERY);
        if fresh {
            return Ok(());
        }
        let what = || "discover the kinds the cluster serves".to_owned();
        let discovery = super::bounded(what(), Discovery::new(client.clone()).run_aggregated())
            .await?
            .map_err(|e| Error::from_kube(what(), e))?;
        let mut kinds: HashMap<(String, String), Vec<Served>> = HashMap::new();
        for group in discovery.groups() {
            for version in group.versions() {
                for (resource, capabilities) in group.versioned_resources(version) {
                    kinds
                        .entry((resource.group.clone(), resource.kind.clone()))
                        .or_default()
                        .push(Served {
                            version: resource.version.clone(),
                            plural: resource.plural.clone(),
                            namespaced: capabilities.scope == Scope::Namespaced,
                            has_status: capabilities.subresources.iter().any(|(sub, _)| sub.plural == "status"),
                            custom: is_custom(&resource.group),
                        });
                }
            }
        }
        if let Ok(mut table) = self.table.write() {
            table.kinds = kinds;
            table.read_at = Some(Instant::now());
        }
        Ok(())
    }
}

impl Served {
    /// URL path of the collection, or of one object when `name` is given.
    pub fn path(&self, target: &Target, name: Option<&str>) -> String {
        let mut path = match target.group() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if self.namespaced
            && let Some(ns) = &target.namespace
        {
            path.push_str("/namespaces/");
            path.push_str(&segment(ns));
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&segment(name));
        }
        path
    }
}

/// API groups with a dot in their names that Kubernetes itself serves. Others end in `k8s.io` too: those of the
/// Gateway API or of volume snapshots are definitions like any other.
const BUILT_IN: [&str; 18] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Whether the kinds of a group come from outside: a definition's group has a dot in its name.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !BUILT_IN.contains(&group)
}

/// One path segment, percent-encoded: names of RBAC objects may hold `:` and other marks.
pub(super) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'@') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(api_version: &str, namespace: Option<&str>) -> Target {
        Target {
            api_version: api_version.into(),
            kind: "K".into(),
            namespace: namespace.map(Into::into),
            name: "n".into(),
        }
    }

    fn served(namespaced: bool) -> Served {
        Served {
            version: "v1".into(),
            plural: "ks".into(),
            namespaced,
            has_status: false,
            custom: false,
        }
    }

    #[test]
    fn what_kubernetes_serves_itself_is_not_custom() {
        for group in [
            "",
            "apps",
            "batch",
            "networking.k8s.io",
            "rbac.authorization.k8s.io",
            "flowcontrol.apiserver.k8s.io",
        ] {
            assert!(!is_custom(group), "{group}");
        }
        for group in [
            "example.com",
            "gateway.networking.k8s.io",
            "snapshot.storage.k8s.io",
            "x-k8s.io",
            "stages.metio.wtf",
        ] {
            assert!(is_custom(group), "{group}");
        }
    }

    #[test]
    fn paths_follow_scope_and_group() {
        let cases = [
            (
                served(true),
                target("v1", Some("a")),
                Some("n"),
                "/api/v1/namespaces/a/ks/n",
            ),
            (
                served(true),
                target("g.io/v1", Some("a")),
                None,
                "/apis/g.io/v1/namespaces/a/ks",
            ),
            (
                served(false),
                target("g.io/v1", Some("a")),
                Some("n"),
                "/apis/g.io/v1/ks/n",
            ),
            (
                served(false),
                target("v1", None),
                Some("system:x/y?z"),
                "/api/v1/ks/system:x%2Fy%3Fz",
            ),
        ];
        for (kind, target, name, want) in cases {
            assert_eq!(kind.path(&target, name), want);
        }
    }
}
