//! `PUT`, `GET` and `DELETE /v1/limits`: limits of single actors.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::body;
use super::counters::broken;
use super::json::Json;
use super::problem::Problem;
use super::query;
use super::shared::Api;
use super::whole::Whole;
use crate::clock::ceil_seconds;
use crate::limiter::counters::{DEFAULT_PAGE, MAX_PAGE};
use crate::limiter::limits::{LimitFilter, ListedLimit};

/// Whose limit is meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    /// A label, or `default`.
    rule: String,
    actor: String,
}

/// Which limits are meant: one actor's, or a page of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    rule: Option<String>,
    actor: Option<String>,
    cursor: Option<String>,
    count: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    credits: Whole,
    /// Seconds; without it the limit stays until it is removed.
    #[serde(rename = "expiresIn")]
    expires_in: Option<Whole>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Limit {
    rule: String,
    actor: String,
    credits: u64,
    /// Seconds, rounded up.
    expires_in: Option<u64>,
    orphan: bool,
}

impl From<ListedLimit> for Limit {
    fn from(ListedLimit { rule, actor, credits, ends_ns, is_orphan }: ListedLimit) -> Self {
        Self { rule, actor, credits, expires_in: ends_ns.map(ceil_seconds), orphan: is_orphan }
    }
}

#[derive(Debug, Serialize)]
struct Listed {
    limits: Vec<Limit>,
    /// The cursor of the next page; none after the last.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Removed {
    removed: bool,
}

pub async fn set(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let of: Of = query::parse(&head.uri)?;
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let New { credits: Whole(credits), expires_in } = body::parse(&body)?;
    let (turn, limiter) = (api.turns.take().await, Arc::clone(&api.limiter));
    let lasts = expires_in.map(|Whole(seconds)| Duration::from_secs(seconds));
    let limit = turn.run(async move {
        limiter.set_limit(&of.rule, &of.actor, credits, lasts).await?;
        limiter.limit_of(&of.rule, &of.actor)
    });
    match limit.await.map_err(broken)?? {
        Some(limit) => Ok(Json(Limit::from(limit)).into_response()),
        // Somebody has removed it since.
        None => Err(none()),
    }
}

pub async fn get(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let Asked { rule, actor, cursor, count } = query::parse(&uri)?;
    if let (Some(rule), Some(actor)) = (&rule, &actor) {
        let limit = api.limiter.limit_of(rule, actor)?;
        return limit.map(|limit| Json(Limit::from(limit)).into_response()).ok_or_else(none);
    }
    let count = count.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&count) {
        return Err(Problem::bad_request(format!("count is {count}, but must be from 1 to {MAX_PAGE}")));
    }
    let (turn, limiter) = (api.turns.take().await, Arc::clone(&api.limiter));
    let page = turn.run(async move {
        let of = LimitFilter { rule: rule.as_deref(), actor: actor.as_deref() };
        limiter.limits(of, cursor.as_deref(), count)
    });
    let page = page.await.map_err(broken)??;
    let limits = page.limits.into_iter().map(Limit::from).collect();
    Ok(Json(Listed { limits, next: page.next }).into_response())
}

pub async fn remove(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let of: Of = query::parse(&uri)?;
    let (turn, limiter) = (api.turns.take().await, Arc::clone(&api.limiter));
    let removed = turn.run(async move { limiter.remove_limit(&of.rule, &of.actor).await }).await.map_err(broken)??;
    Ok(Json(Removed { removed }).into_response())
}

fn none() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "this actor has no limit of its own")
}
