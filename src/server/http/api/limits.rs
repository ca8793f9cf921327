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
use super::query;
use super::state::Api;
use crate::clock::ceil_seconds;
use crate::json::WholeNumber;
use crate::limiter::exceptions::{ExceptionFilter, ExceptionKind, ExceptionTarget, ListedException};
use crate::server::http::changes::PendingOperator;
use crate::server::http::problem::Problem;
use crate::server::net::origin;

/// The rule and actor of a limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTarget {
    /// A label, or `default`.
    rule: String,
    actor: String,
}

/// A request for one actor's limit, or for a page of limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitQuery {
    rule: Option<String>,
    actor: Option<String>,
    cursor: Option<String>,
    count: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLimit {
    credits: WholeNumber,
    /// Seconds until it expires; `None` to keep the limit until it is removed.
    #[serde(rename = "expiresIn")]
    expires_in: Option<WholeNumber>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ActorLimit {
    rule: String,
    actor: String,
    credits: u64,
    /// Seconds, rounded up.
    expires_in: Option<u64>,
    orphan: bool,
}

impl From<ListedException> for ActorLimit {
    fn from(ListedException { rule, actor, credits, ends_ns, is_orphan, .. }: ListedException) -> Self {
        let credits = credits.unwrap_or_default();
        Self { rule, actor, credits, expires_in: ends_ns.map(ceil_seconds), orphan: is_orphan }
    }
}

#[derive(Debug, Serialize)]
struct LimitList {
    limits: Vec<ActorLimit>,
    /// Cursor of the next page; `None` after the last.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct RemoveResponse {
    removed: bool,
}

pub async fn set(
    State(api): State<Arc<Api>>,
    operator: PendingOperator,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let of: LimitTarget = query::parse(&head.uri)?;
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let NewLimit { credits: WholeNumber(credits), expires_in } = body::parse(&body)?;
    let (slot, limiter, changes) = (api.changes.slots().take().await, Arc::clone(&api.limiter), api.changes.clone());
    let lasts = expires_in.map(|WholeNumber(seconds)| Duration::from_secs(seconds));
    let operator = operator.begin();
    let limit = slot.run(async move {
        changes.set_limit(&operator, &of.rule, &of.actor, credits, lasts).await?;
        // Another client may have removed it since.
        limiter.exception_of(ExceptionTarget::limit(&of.rule, &of.actor), &operator.scope)?.ok_or_else(none)
    });
    let limit = limit.await.map_err(broken).flatten();
    Ok(limit.map(|limit| Json(ActorLimit::from(limit))).into_response())
}

pub async fn get(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let LimitQuery { rule, actor, cursor, count } = query::parse(&uri)?;
    if let (Some(rule), Some(actor)) = (&rule, &actor) {
        let limit = api.limiter.exception_of(ExceptionTarget::limit(rule, actor), &origin::user_scope())?;
        return limit.map(|limit| Json(ActorLimit::from(limit)).into_response()).ok_or_else(none);
    }
    let count = query::page_size(count.as_deref())?;
    let (slot, limiter, scope) = (api.slots.take().await, Arc::clone(&api.limiter), origin::user_scope());
    let page = slot.run(async move {
        let of = ExceptionFilter { owner: rule.as_deref(), actor: actor.as_deref() };
        limiter.exceptions(ExceptionKind::Limit, of, cursor.as_deref(), count, &scope)
    });
    let page = page.await.map_err(broken)??;
    let limits = page.exceptions.into_iter().map(ActorLimit::from).collect();
    Ok(Json(LimitList { limits, next: page.next }).into_response())
}

pub async fn remove(State(api): State<Arc<Api>>, operator: PendingOperator, uri: Uri) -> Result<Response, Problem> {
    let of: LimitTarget = query::parse(&uri)?;
    let (slot, changes) = (api.changes.slots().take().await, api.changes.clone());
    let operator = operator.begin();
    let removed = slot.run(async move { Ok(changes.remove_limit(&operator, &of.rule, &of.actor).await?) });
    let removed: Result<_, Problem> = removed.await.map_err(broken).flatten();
    Ok(removed.map(|removed| Json(RemoveResponse { removed })).into_response())
}

fn none() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "this actor has no limit of its own")
}
