//! `POST /v1/peek`: what a hit would be answered, without taking.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;

use super::problem::Problem;
use super::shared::Api;
use crate::limiter::Intent;

pub async fn peek(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    Ok(api.ask_one(head.headers, body, Intent::Peek).await?.map(Body::from))
}
