//! `/metrics` in the Prometheus text format (contract 4.1).

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::telemetry::Metrics;

/// The exposition of one registry.
pub fn router(metrics: Metrics) -> Router {
    Router::new().route("/metrics", get(expose)).with_state(metrics)
}

async fn expose(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => (
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
