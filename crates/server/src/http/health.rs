//! Health checks: `/healthz` and `/readyz`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::error_text;
use crate::health::Health;

/// Reports that the process is alive.
pub async fn alive() -> &'static str {
    "ok\n"
}

/// Reports whether hits can be answered: the store responds, and the server is not draining. Rules are always loaded.
pub async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    match health.state() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error_text::hide_paths(&reason))),
    }
}
