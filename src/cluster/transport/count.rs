//! Counts requests by their answers, as client-go does.

use http::Request;
use kube::Client;
use kube::client::Body;
use prometheus::IntCounterVec;

/// Counts the requests to one cluster.
#[derive(Clone)]
pub struct Counter {
    requests: IntCounterVec,
    host: String,
}

impl Counter {
    /// A counter of the series `requests` with the labels code, method and host.
    pub fn new(requests: IntCounterVec, host: impl Into<String>) -> Self {
        Self {
            requests,
            host: host.into(),
        }
    }

    /// One for the clusters that tenants name: all under one host, for there may be any number of them.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        Self::new(self.requests.clone(), "remote")
    }

    fn count(&self, code: &str, method: &str) {
        self.requests.with_label_values(&[code, method, &self.host]).inc();
    }
}

/// The same client, counted.
pub fn counted(client: Client, counter: Counter) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, counter) = (client.clone(), counter.clone());
        async move {
            let method = request.method().clone();
            let answer = client.send(request).await;
            match &answer {
                Ok(response) => counter.count(response.status().as_str(), method.as_str()),
                Err(_) => counter.count("<error>", method.as_str()),
            }
            answer
        }
    });
    Client::new(service, "default")
}
