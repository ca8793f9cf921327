//! `POST /v1/explain`: which rules match an operation, and why the others do not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::body;
use super::json::Json;
use super::operation::Pairs;
use super::state::Api;
use crate::http::problem::Problem;
use crate::net::origin;
use divvy_core::rules::Operation;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
}

pub async fn explain(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let request: ExplainRequest = body::parse(&body)?;
    let mut operation = Operation::new();
    request.operation.read(&body, api.limits.max_pairs, "/operation", &mut operation)?;
    Ok(Json(api.limiter.explain(&operation, &origin::user_scope())?).into_response())
}
