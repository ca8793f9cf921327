//! `POST /v1/peek`: the answer to a hit, without its effect.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::state::Api;
use crate::http::problem::Problem;
use divvy_limiter::Intent;

pub async fn peek(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    api.ask_routed(request, Intent::Peek).await
}
