//! `POST /v1/charge` and `POST /v1/refund`: what is known only after a hit. Both change counters whatever is left, so they are
//! behind the password even where hits are open.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::problem::Problem;
use super::shared::Api;
use crate::limiter::Intent;

/// Counts what was used already.
pub async fn charge(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Charge).await
}

/// Gives back, up to what was taken.
pub async fn refund(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Refund).await
}
