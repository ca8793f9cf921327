//! Is the process alive, and may it be sent requests?

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::server::error_text;
use crate::server::health::Health;

/// The process answers.
pub async fn alive() -> &'static str {
    "ok\n"
}

/// The store answers, and the server is not about to stop. Rules are loaded before anything listens.
pub async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    match health.state() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", error_text::hide_paths(&reason))),
    }
}
