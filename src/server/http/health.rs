//! Is the process alive, and may it be sent requests?

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limiter::Limiter;
use crate::store::Store;

/// How long the store may take to answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

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

/// The store answers, and the server is not about to stop. Rules are loaded before anything listens.
pub async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if health.draining.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match timeout(STORE_TIMEOUT, health.limiter.store().check()).await {
        Ok(Ok(())) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store does not answer: {error}\n")),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer in time\n".to_owned()),
    }
}
