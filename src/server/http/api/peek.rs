//! `POST /v1/peek`: what a hit would be answered, without taking.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::answer::Answer;
use super::problem::Problem;
use super::shared::Api;
use crate::limiter::Intent;

/// 200, whatever the answer is: the question was answered.
pub async fn peek(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let requests = api.ask_one(request, Intent::Peek).await?;
    Ok(Answer::of(&requests, 0)?.respond(StatusCode::OK, api.settings.headers))
}
