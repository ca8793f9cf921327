//! `POST /v1/charge` and `POST /v1/refund`: what is known only after a hit. Both change counters whatever is left, so they are
//! behind the password even where hits are open.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::state::Api;
use crate::limiter::Intent;
use crate::server::http::problem::Problem;

/// Counts what was used already.
pub async fn charge(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Charge).await
}

/// Gives back, up to what was taken.
pub async fn refund(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Refund).await
}
