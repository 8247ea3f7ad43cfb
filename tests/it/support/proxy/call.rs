//! What one request to the API server is: its verb, its object and whether it counts as a write.

use std::collections::HashMap;

use http::{HeaderMap, Method, Uri};

/// Kubernetes verb of a request, as the API server itself would name it in an audit event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Discovery, version, OpenAPI: a path that names no resource.
    NonResource,
}

/// How a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// GET, LIST, WATCH, discovery.
    Read,
    /// Anything else that is sent with `dryRun`.
    DryRun,
    /// A write to a Lease: leader election, left out of every count.
    Lease,
    /// A write to an Event: counted on its own.
    Event,
    /// A question to the authorizer (SelfSubjectAccessReview and its like): stores nothing.
    Review,
    /// Everything else changes the cluster.
    Write,
}

/// One request, reduced to what tests ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub dry_run: bool,
    /// True for a server-side apply.
    pub apply: bool,
    /// `Impersonate-User`, empty where the request runs as the connection's own identity.
    pub user: String,
    pub path: String,
}

impl Call {
    /// Reads a request's line and headers.
    pub fn read(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let query: HashMap<String, String> = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
        let place = Place::read(uri.path());
        let content_type = text(headers, "content-type");
        Self {
            verb: verb(method, &place, &query),
            group: place.group,
            version: place.version,
            resource: place.resource,
            subresource: place.subresource,
            namespace: place.namespace,
            name: place.name,
            dry_run: query.contains_key("dryRun"),
            apply: *method == Method::PATCH && content_type.starts_with("application/apply-patch"),
            user: text(headers, "impersonate-user"),
            path: uri.path().to_owned(),
        }
    }

    /// A create names its object in the body alone.
    pub fn name_from_body(&mut self, body: &[u8]) {
        if self.verb == Verb::Create && self.name.is_empty() {
            let object: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
            self.name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        }
    }

    /// How this request counts: a write is what is neither a read nor a dry run; Leases and Events apart.
    pub fn class(&self) -> Class {
        match self.verb {
            Verb::Get | Verb::List | Verb::Watch | Verb::NonResource => Class::Read,
            _ if self.group == "authorization.k8s.io" => Class::Review,
            _ if self.dry_run => Class::DryRun,
            _ if self.resource == "leases" => Class::Lease,
            _ if self.resource == "events" => Class::Event,
            _ => Class::Write,
        }
    }

    /// `PATCH configmaps/app/web (status)`: short enough for a list of hundreds.
    pub fn line(&self) -> String {
        let sub = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        let dry = if self.dry_run { " dry-run" } else { "" };
        let user = if self.user.is_empty() {
            String::new()
        } else {
            format!(" as {}", self.user)
        };
        if self.verb == Verb::NonResource {
            return format!("{:?} {}", self.verb, self.path);
        }
        format!(
            "{:?} {} {}/{}{sub}{dry}{user}",
            self.verb, self.resource, self.namespace, self.name
        )
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers
        .get(name)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

fn verb(method: &Method, place: &Place, query: &HashMap<String, String>) -> Verb {
    if place.resource.is_empty() {
        return Verb::NonResource;
    }
    let watching = matches!(query.get("watch").map(String::as_str), Some("true" | "1"));
    match (method.as_str(), place.name.is_empty()) {
        ("GET" | "HEAD", _) if watching => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::List,
        ("GET" | "HEAD", false) => Verb::Get,
        ("POST", _) => Verb::Create,
        ("PUT", _) => Verb::Update,
        ("PATCH", _) => Verb::Patch,
        ("DELETE", false) => Verb::Delete,
        ("DELETE", true) => Verb::DeleteCollection,
        _ => Verb::NonResource,
    }
}

/// The object a path names.
#[derive(Default)]
struct Place {
    group: String,
    version: String,
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
}

impl Place {
    fn read(path: &str) -> Self {
        let mut parts = path.split('/').filter(|p| !p.is_empty()).map(str::to_owned);
        let mut place = Self::default();
        match parts.next().as_deref() {
            Some("api") => {}
            Some("apis") => match parts.next() {
                Some(group) => place.group = group,
                None => return place,
            },
            _ => return place,
        }
        let Some(version) = parts.next() else {
            return Self::default();
        };
        place.version = version;
        let rest: Vec<String> = parts.collect();
        let rest = match rest.as_slice() {
            [first, namespace, _, ..] if first == "namespaces" && !is_namespace_subresource(&rest) => {
                place.namespace.clone_from(namespace);
                &rest[2..]
            }
            all => all,
        };
        let mut rest = rest.iter().cloned();
        place.resource = rest.next().unwrap_or_default();
        place.name = rest.next().unwrap_or_default();
        place.subresource = rest.next().unwrap_or_default();
        place
    }
}

fn is_namespace_subresource(rest: &[String]) -> bool {
    rest.len() == 3 && matches!(rest[2].as_str(), "status" | "finalize")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, uri: &str) -> Call {
        Call::read(&method.parse().unwrap(), &uri.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn a_namespaced_object_is_taken_apart() {
        let seen = call(
            "PATCH",
            "/apis/apps/v1/namespaces/shop/deployments/web/status?force=true",
        );
        assert_eq!(
            (
                seen.verb,
                seen.group.as_str(),
                seen.resource.as_str(),
                seen.subresource.as_str()
            ),
            (Verb::Patch, "apps", "deployments", "status")
        );
        assert_eq!((seen.namespace.as_str(), seen.name.as_str()), ("shop", "web"));
        assert_eq!(seen.class(), Class::Write);
    }

    #[test]
    fn reads_are_told_apart() {
        assert_eq!(call("GET", "/api/v1/namespaces/shop/configmaps").verb, Verb::List);
        assert_eq!(call("GET", "/api/v1/namespaces/shop/configmaps/a").verb, Verb::Get);
        assert_eq!(
            call("GET", "/api/v1/namespaces/shop/configmaps?watch=1").verb,
            Verb::Watch
        );
        assert_eq!(call("GET", "/api/v1/namespaces/shop").resource, "namespaces");
        assert_eq!(call("GET", "/apis/apps/v1").verb, Verb::NonResource);
        assert_eq!(call("GET", "/version").verb, Verb::NonResource);
    }

    #[test]
    fn what_changes_nothing_is_no_write() {
        assert_eq!(
            call("PATCH", "/api/v1/namespaces/a/configmaps/b?dryRun=All").class(),
            Class::DryRun
        );
        assert_eq!(
            call("POST", "/apis/events.k8s.io/v1/namespaces/a/events").class(),
            Class::Event
        );
        assert_eq!(
            call("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l").class(),
            Class::Lease
        );
        assert_eq!(
            call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").class(),
            Class::Review
        );
        assert_eq!(
            call("DELETE", "/api/v1/namespaces/a/configmaps/b").class(),
            Class::Write
        );
    }

    #[test]
    fn a_namespace_status_stays_a_namespace() {
        let seen = call("PUT", "/api/v1/namespaces/shop/status");
        assert_eq!(
            (seen.resource.as_str(), seen.name.as_str(), seen.subresource.as_str()),
            ("namespaces", "shop", "status")
        );
    }
}
