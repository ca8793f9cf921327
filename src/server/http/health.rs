//! Is the process alive, and may it be sent requests?

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::store::Store;

/// What health is judged by.
pub struct Health {
    limiter: Arc<Limiter>,
    draining: CancellationToken,
}

impl Health {
    pub fn new(limiter: Arc<Limiter>, draining: CancellationToken) -> Self {
        Self { limiter, draining }
    }
}

/// The process answers.
pub async fn alive() -> &'static str {
    "ok\n"
}

/// The store answers, and the server is not about to stop.
pub async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if health.draining.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match health.limiter.store().approximate_len().await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store does not answer: {error}\n")),
    }
}
