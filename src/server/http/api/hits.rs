//! `POST /v1/hits`: many hits, in order, as one batch.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::body;
use super::hit::AskedHit;
use super::json::Json;
use super::object::Object;
use super::problem::Problem;
use super::shared::Api;
use crate::limiter::{Intent, Requests};
use crate::metrics::Limit;
use crate::rules::Operation;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedHits<'a> {
    #[serde(borrow)]
    hits: Vec<Object<AskedHit<'a>>>,
}

#[derive(Debug, Serialize)]
struct Answers<'a> {
    results: Vec<AnswerOrProblem<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnswerOrProblem<'a> {
    Answer(Answer<'a>),
    Problem(Problem),
}

/// 200, with an answer or a problem for each hit. When a hit is not even well formed, none of them is taken.
pub async fn hits(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let asked: AskedHits = body::parse(&body)?;
    let max_hits = api.settings.max_hits;
    if asked.hits.len() > max_hits {
        let problem = Problem::bad_request(format!("more than {max_hits} hits (--max-hits)"));
        return Err(problem.beyond(Limit::Hits).at("/hits"));
    }
    let mut requests = Requests::default();
    api.limiter.begin(&mut requests);
    let mut operation = Operation::new();
    for (index, Object(hit)) in asked.hits.iter().enumerate() {
        hit.operation.read(api.limits.max_pairs, format_args!("/hits/{index}/operation"), &mut operation)?;
        requests.push_at_cost(&operation, Intent::Hit, hit.cost());
    }
    api.limiter.apply(&mut requests).await;
    let errors = &api.limiter.metrics().errors;
    let answer = |index| match Answer::of(&requests, index) {
        Ok(answer) => AnswerOrProblem::Answer(answer),
        Err(problem) => {
            errors.unknown.inc();
            AnswerOrProblem::Problem(problem)
        }
    };
    Ok(Json(Answers { results: (0..requests.len()).map(answer).collect() }).into_response())
}
