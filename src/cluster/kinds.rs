//! What a cluster serves: kind to path and scope, discovered once and refreshed on a miss.

use std::collections::HashMap;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use kube::core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery};
use tokio::sync::Mutex;

use super::{Error, Target};

/// A miss asks the server again at most this often.
const REFRESH_EVERY: Duration = Duration::from_secs(2);
const DISCOVERY: &str = "discover the kinds the cluster serves";
/// Kinds of a cluster that a tenant names, versions counted; large ones serve a thousand.
const FOREIGN_KINDS: usize = 5000;
/// Groups whose objects are measurements: they are made up when they are asked for.
const HOLDS_NOTHING: [&str; 3] = ["metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io"];

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
    /// Its objects can be listed: kinds that can only be created (reviews, bindings) hold none.
    pub listable: bool,
}

#[derive(Default)]
struct Table {
    /// By group and kind; the versions in the server's order of preference.
    kinds: HashMap<(String, String), Vec<Served>>,
    /// Group and version of aggregated APIs whose servers did not answer: what they serve may be missing above.
    silent: Vec<(String, String)>,
    /// When the discovery began.
    read_at: Option<Instant>,
}

/// The discovery table of one cluster, shared by every identity: what is served is no secret, and
/// every authenticated user may read it (`system:discovery`).
#[derive(Default)]
pub struct Kinds {
    table: RwLock<Table>,
    refreshing: Mutex<()>,
    /// Kinds at most; none for the controller's own cluster.
    most: Option<usize>,
}

impl Kinds {
    /// The table of a cluster that a tenant names.
    pub fn foreign() -> Self {
        Self {
            most: Some(FOREIGN_KINDS),
            ..Self::default()
        }
    }

    /// Finds how `target`'s kind is addressed, asking the server on a miss.
    ///
    /// # Errors
    /// [`Error::UnknownKind`] when the server does not serve it; otherwise the failed request.
    pub async fn resolve(&self, client: &kube::Client, api_version: &str, kind: &str) -> Result<Served, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(found) = self.lookup(group, version, kind) {
            return Ok(found);
        }
        let recently = Instant::now().checked_sub(REFRESH_EVERY);
        self.refresh(client, recently).await?;
        self.lookup(group, version, kind).ok_or_else(|| Error::UnknownKind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// Every namespaced kind whose objects can be listed, at its preferred version: API version and kind. The server is
    /// asked for it every time: a kind that came since the last look counts.
    ///
    /// # Errors
    /// The failed discovery, also one that tells of nothing or lacks the answer of an aggregated API.
    pub async fn namespaced(&self, client: &kube::Client) -> Result<Vec<(String, String)>, Error> {
        self.listed(client, |served| served.namespaced).await
    }

    /// The same with the kinds that live in no namespace.
    ///
    /// # Errors
    /// As [`Kinds::namespaced`].
    pub async fn listable(&self, client: &kube::Client) -> Result<Vec<(String, String)>, Error> {
        self.listed(client, |_| true).await
    }

    async fn listed(
        &self,
        client: &kube::Client,
        wanted: impl Fn(&Served) -> bool,
    ) -> Result<Vec<(String, String)>, Error> {
        let _only_one = self.refreshing.lock().await;
        let table = discover(client, self.most).await?;
        let listed = table.listed(wanted);
        self.store(table);
        listed
    }

    /// A version under which a kind is served, whatever version is asked for elsewhere; `None` where a discovery that
    /// began after `since` knows none.
    ///
    /// # Errors
    /// The failed discovery, also one that lacks the answer of the API that would serve the kind.
    pub async fn any_version(
        &self,
        client: &kube::Client,
        group: &str,
        kind: &str,
        since: Instant,
    ) -> Result<Option<String>, Error> {
        if let Some(version) = self.first_version(group, kind)? {
            return Ok(Some(version));
        }
        self.refresh(client, Some(since)).await?;
        self.first_version(group, kind)
    }

    fn first_version(&self, group: &str, kind: &str) -> Result<Option<String>, Error> {
        let Ok(table) = self.table.read() else {
            return Ok(None);
        };
        let versions = table.kinds.get(&(group.to_owned(), kind.to_owned()));
        match versions.and_then(|v| v.first()) {
            Some(served) => Ok(Some(served.version.clone())),
            None => table.answered(|silent| silent == group).map(|()| None),
        }
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

    /// Asks the server, unless that was begun after `since` already.
    async fn refresh(&self, client: &kube::Client, since: Option<Instant>) -> Result<(), Error> {
        let _only_one = self.refreshing.lock().await;
        let read_at = self.table.read().ok().and_then(|t| t.read_at);
        if read_at.is_some_and(|at| since.is_none_or(|since| at > since)) {
            return Ok(());
        }
        self.store(discover(client, self.most).await?);
        Ok(())
    }

    fn store(&self, table: Table) {
        if let Ok(mut stored) = self.table.write() {
            *stored = table;
        }
    }
}

/// Asks the server what it serves.
async fn discover(client: &kube::Client, most: Option<usize>) -> Result<Table, Error> {
    let mut table = Table {
        read_at: Some(Instant::now()),
        ..Table::default()
    };
    let both = async {
        let groups = client.list_api_groups_aggregated().await?;
        let core = client.list_core_api_versions_aggregated().await?;
        Ok((groups, core))
    };
    let (groups, core) = super::bounded(DISCOVERY.to_owned(), both)
        .await?
        .map_err(|e| Error::from_kube(DISCOVERY.to_owned(), e))?;
    let mut served = 0;
    for group in groups.items.into_iter().chain(core.items) {
        served += group.versions.iter().map(|v| v.resources.len().max(1)).sum::<usize>();
        if most.is_some_and(|most| served > most) {
            return Err(Error::TooLarge {
                what: DISCOVERY.to_owned(),
                limit: "5,000 kinds",
            });
        }
        table.take(group);
    }
    Ok(table)
}

impl Table {
    fn take(&mut self, group: APIGroupDiscovery) {
        let name = group.metadata.and_then(|m| m.name).unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            if version.freshness.as_deref() == Some("Stale") {
                self.silent.push((name.clone(), number.clone()));
            }
            for resource in version.resources {
                let kind = resource.response_kind.as_ref().and_then(|k| k.kind.clone());
                let versions = self.kinds.entry((name.clone(), kind.unwrap_or_default())).or_default();
                versions.push(Served::of(&name, &number, resource));
            }
        }
    }

    fn listed(&self, wanted: impl Fn(&Served) -> bool) -> Result<Vec<(String, String)>, Error> {
        self.answered(|group| !HOLDS_NOTHING.contains(&group))?;
        let mut listed = Vec::new();
        let real = self
            .kinds
            .iter()
            .filter(|((group, _), _)| !HOLDS_NOTHING.contains(&group.as_str()));
        for ((group, kind), versions) in real {
            if let Some(served) = versions.iter().find(|s| s.listable && wanted(s)) {
                listed.push((api_version(group, &served.version), kind.clone()));
            }
        }
        if listed.is_empty() {
            return Err(Error::Undiscovered {
                what: DISCOVERY.to_owned(),
                why: "it tells of no kind at all".to_owned(),
            });
        }
        listed.sort_unstable();
        Ok(listed)
    }

    /// Refuses to draw conclusions where an API of the `relevant` groups did not answer.
    fn answered(&self, relevant: impl Fn(&str) -> bool) -> Result<(), Error> {
        let silent: Vec<String> = self
            .silent
            .iter()
            .filter(|(group, _)| relevant(group))
            .map(|(group, version)| api_version(group, version))
            .collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(Error::Undiscovered {
            what: DISCOVERY.to_owned(),
            why: format!("the aggregated API {} does not answer", silent.join(", ")),
        })
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

impl Served {
    fn of(group: &str, version: &str, resource: APIResourceDiscovery) -> Self {
        let mut subresources = resource.subresources.iter();
        Self {
            version: version.to_owned(),
            namespaced: resource.scope.as_deref() == Some("Namespaced"),
            has_status: subresources.any(|s| s.subresource.as_deref() == Some("status")),
            custom: is_custom(group),
            listable: resource.verbs.iter().any(|verb| verb == "list"),
            plural: resource.resource.unwrap_or_default(),
        }
    }

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
            listable: true,
        }
    }

    /// An aggregated discovery with one group.
    fn table(group: &str, versions: serde_json::Value) -> Table {
        let mut table = Table::default();
        table.take(
            serde_json::from_value(serde_json::json!({"metadata": {"name": group}, "versions": versions})).unwrap(),
        );
        table
    }

    fn version(name: &str, freshness: &str, verbs: &[&str], scope: &str) -> serde_json::Value {
        serde_json::json!({"version": name, "freshness": freshness, "resources": [
            {"resource": "ks", "responseKind": {"group": "g.io", "version": name, "kind": "K"}, "scope": scope, "verbs": verbs,
             "subresources": [{"subresource": "status"}]}]})
    }

    #[test]
    fn what_a_namespace_may_hold_are_the_kinds_that_can_be_listed() {
        let list = ["list", "get"];
        let both = serde_json::json!([
            version("v1", "Current", &list, "Namespaced"),
            version("v1beta1", "Current", &list, "Namespaced")
        ]);
        let found = table("g.io", both);
        assert_eq!(
            found.listed(|s| s.namespaced).unwrap(),
            [("g.io/v1".to_owned(), "K".to_owned())]
        );
        assert!(
            found.kinds[&("g.io".to_owned(), "K".to_owned())]
                .iter()
                .all(|s| s.has_status && s.custom)
        );
        for nothing in [
            serde_json::json!([]),
            serde_json::json!([version("v1", "Current", &["create"], "Namespaced")]),
            serde_json::json!([version("v1", "Current", &list, "Cluster")]),
        ] {
            let error = table("g.io", nothing).listed(|s| s.namespaced).unwrap_err();
            assert!(
                error.is_transient() && error.to_string().contains("no kind at all"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_api_that_does_not_answer_may_serve_anything() {
        let stale = serde_json::json!([{"version": "v1", "freshness": "Stale"}]);
        let mut found = table("silent.io", stale.clone());
        found.kinds.extend(
            table(
                "",
                serde_json::json!([version("v1", "Current", &["list"], "Namespaced")]),
            )
            .kinds,
        );
        let error = found.listed(|s| s.namespaced).unwrap_err();
        assert!(error.to_string().contains("silent.io/v1"), "{error}");
        found.silent = table("metrics.k8s.io", stale.clone()).silent;
        assert!(found.listed(|s| s.namespaced).is_ok(), "measurements are no objects");
        let kinds = Kinds::default();
        kinds.store(table("silent.io", stale));
        assert!(kinds.first_version("silent.io", "Thing").is_err());
        assert_eq!(kinds.first_version("other.io", "Thing").unwrap(), None);
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
