//! `POST /v1/hit`: one hit.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::answer::Answer;
use super::body;
use super::cost::Cost;
use super::operation::Pairs;
use super::problem::Problem;
use super::shared::Api;
use crate::limiter::{Intent, Requests};

/// The body of a hit or a peek.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedHit<'a> {
    #[serde(borrow)]
    pub operation: Pairs<'a>,
    /// How many credits it takes, whatever the rules' `costField`s say.
    cost: Option<Cost>,
}

impl AskedHit<'_> {
    pub fn cost(&self) -> Option<u64> {
        self.cost.map(|cost| cost.0)
    }
}

/// 200 or 429.
pub async fn hit(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let requests = api.ask_one(request, Intent::Hit).await?;
    let answer = Answer::of(&requests, 0)?;
    let status = if answer.allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    Ok(answer.respond(status, api.settings.headers))
}

impl Api {
    /// Asks the limiter what the body says.
    pub async fn ask_one(&self, request: Request, intent: Intent) -> Result<Requests, Problem> {
        let body = body::read(request, self.limits.max_body).await?;
        let asked: AskedHit = body::parse(&body)?;
        let operation = asked.operation.operation(self.limits.max_pairs, "/operation")?;
        let mut requests = Requests::default();
        self.limiter.begin(&mut requests);
        requests.push_at_cost(&operation, intent, asked.cost());
        self.limiter.apply(&mut requests).await;
        Ok(requests)
    }
}
