//! `POST /v1/explain`: which rules match an operation, and why the others do not.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;

use super::operation::Pairs;
use super::problem::Problem;
use super::{Api, body};
use crate::rules::explain::{self, Explanation};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
}

pub async fn explain(State(api): State<Arc<Api>>, request: Request) -> Result<Json<Explanation>, Problem> {
    let body = body::read(request, api.limits.max_body).await?;
    let asked: Asked = body::parse(&body)?;
    let operation = asked.operation.operation(api.limits.max_pairs, "/operation")?;
    Ok(Json(explain::explain(api.policy()?.rules(), &operation)))
}
