//! `POST /v1/explain`: which rules match an operation, and why the others do not.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::answer::name;
use super::body;
use super::json::Json;
use super::operation::Pairs;
use super::state::Api;
use crate::rules::Operation;
use crate::rules::explain::{self, ExplainedRule};
use crate::server::http::problem::Problem;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
}

#[derive(Serialize)]
struct Explanation<'a> {
    rules: Vec<NamedRule<'a>>,
}

/// The result of a rule, and the rule's name in answers and headers.
#[derive(Serialize)]
struct NamedRule<'a> {
    name: Cow<'a, str>,
    #[serde(flatten)]
    explained: ExplainedRule,
}

pub async fn explain(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let request: ExplainRequest = body::parse(&body)?;
    let mut operation = Operation::new();
    request.operation.read(api.limits.max_pairs, "/operation", &mut operation)?;
    let policy = api.policy()?;
    let rules = policy.rules();
    // An explanation covers the rules from the first one on.
    let now = api.limiter.now();
    let own_credits = |index| policy.own_credits(index, &operation, now);
    let explained = explain::explain(rules, &operation, own_credits).rules.into_iter().zip(rules.rules()).enumerate();
    let named = explained.map(|(place, (explained, rule))| NamedRule { name: name(place, rule), explained });
    Ok(Json(Explanation { rules: named.collect() }).into_response())
}
