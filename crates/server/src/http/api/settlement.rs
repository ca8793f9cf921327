//! `POST /v1/charge` and `POST /v1/refund`: corrections after a hit. Both change counters regardless of the credits left, so
//! they require the password even if hits do not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::state::Api;
use crate::http::problem::Problem;
use divvy_limiter::Intent;

/// Counts credits that were used already.
pub async fn charge(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Charge).await
}

/// Gives credits back, at most as many as were taken.
pub async fn refund(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Refund).await
}
