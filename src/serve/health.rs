//! `/healthz` says the process lives; `/readyz` says it knows the cluster (contract 4.2).

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;

/// Answers which kinds have not been listed yet.
pub type Readiness = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// The probes.
pub fn router(readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/healthz/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/readyz/readyz", get(ready))
        .with_state(readiness)
}

async fn ready(
    State(readiness): State<Readiness>,
    Query(query): Query<HashMap<String, String>>,
) -> (StatusCode, String) {
    let failing = readiness();
    if !failing.is_empty() {
        let lines: Vec<String> = failing
            .iter()
            .map(|kind| format!("[-]{kind} failed: not listed yet; the log says what is in the way"))
            .collect();
        return (StatusCode::INTERNAL_SERVER_ERROR, lines.join("\n") + "\n");
    }
    let text = if query.contains_key("verbose") {
        "[+]caches ok\nreadyz check passed\n"
    } else {
        "ok"
    };
    (StatusCode::OK, text.to_owned())
}
