//! Which requests go wrong, and how.

use std::time::Duration;

use super::call::{Call, Class, Verb};

/// Selects requests; a part that is not set matches everything.
#[derive(Clone, Debug, Default)]
pub struct Match {
    verb: Option<Verb>,
    class: Option<Class>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    watches_too: bool,
}

impl Match {
    /// Every request but watches, which are long-lived and rarely meant.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests that change the cluster.
    pub fn writes() -> Self {
        Self {
            class: Some(Class::Write),
            ..Self::default()
        }
    }

    /// Events, which are written but do not count as writes.
    pub fn events() -> Self {
        Self {
            class: Some(Class::Event),
            ..Self::default()
        }
    }

    pub fn verb(mut self, verb: Verb) -> Self {
        self.watches_too |= verb == Verb::Watch;
        self.verb = Some(verb);
        self
    }

    /// Plural name, such as `configmaps`.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// `status` for a status write; an empty text for the object itself.
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Whether the request is one of those meant.
    pub fn hits(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w == have);
        (call.verb != Verb::Watch || self.watches_too)
            && self.verb.is_none_or(|v| v == call.verb)
            && self.class.is_none_or(|c| c == call.class())
            && is(&self.resource, &call.resource)
            && is(&self.subresource, &call.subresource)
            && is(&self.namespace, &call.namespace)
            && is(&self.name, &call.name)
    }
}

/// When a matching request is hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Always,
    /// Only the n-th match, counted from 1.
    Nth(u64),
    /// The first n matches.
    First(u64),
    /// Each match with this probability, drawn from the proxy's seed.
    Chance(f64),
}

impl When {
    /// `count` is 1 for the first match; `draw` is uniform in 0..1.
    pub fn now(self, count: u64, draw: f64) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(n) => count == n,
            Self::First(n) => count <= n,
            Self::Chance(p) => draw < p,
        }
    }
}

/// What happens to a request that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Wait, then go on (later rules still apply).
    Delay(Duration),
    /// Answer with a Kubernetes Status of this code instead of asking the server.
    Status(u16),
    /// Close the connection; the server never sees the request.
    Cut,
    /// Let the server do it, then close the connection without passing on the answer.
    CutAnswer,
    /// Answer with an empty list of long ago, as a server does whose data come from a backup.
    OldList,
}

/// A fault with its selection and how often it has matched.
#[derive(Debug)]
pub struct Rule {
    pub wanted: Match,
    pub when: When,
    pub fault: Fault,
    pub matched: u64,
}

/// Right before the server sees a write, or right after it has answered and before the controller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;

    fn call(method: Method, uri: &str) -> Call {
        Call::read(&method, &uri.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn a_matcher_narrows() {
        let status = call(
            Method::PATCH,
            "/apis/stages.metio.wtf/v1/namespaces/a/stagesets/x/status",
        );
        assert!(
            Match::writes()
                .resource("stagesets")
                .subresource("status")
                .hits(&status)
        );
        assert!(!Match::writes().resource("stagesets").subresource("").hits(&status));
        assert!(!Match::any().name("y").hits(&status));
    }

    #[test]
    fn watches_are_hit_only_when_named() {
        let watch = call(Method::GET, "/api/v1/configmaps?watch=true");
        assert!(!Match::any().hits(&watch));
        assert!(Match::any().verb(Verb::Watch).hits(&watch));
    }

    #[test]
    fn triggers_count_from_one() {
        assert!(When::Nth(2).now(2, 0.9) && !When::Nth(2).now(1, 0.0));
        assert!(When::First(2).now(2, 0.9) && !When::First(2).now(3, 0.0));
        assert!(When::Chance(0.5).now(9, 0.49) && !When::Chance(0.5).now(9, 0.5));
    }
}
