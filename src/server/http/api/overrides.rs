//! `PUT`, `GET` and `DELETE /v1/blocks` and `/v1/allows`: blocks and allows of single actors.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, put};
use serde::{Deserialize, Serialize};

use super::body;
use super::counters::broken;
use super::json::Json;
use super::query;
use super::state::Api;
use crate::access::Category;
use crate::clock::ceil_seconds;
use crate::json::WholeNumber;
use crate::limiter::OverrideKind;
use crate::limiter::exceptions::{ExceptionFilter, ListedException};
use crate::server::changes::OverrideTarget;
use crate::server::http::changes::PendingOperator;
use crate::server::http::problem::Problem;
use crate::server::net::origin;

/// The rule and actor of a block or an allow.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// A label, `default`, or `*`.
    rule: String,
    actor: String,
}

impl Target {
    fn of(&self, kind: OverrideKind) -> OverrideTarget<'_> {
        OverrideTarget { kind, rule: &self.rule, actor: &self.actor }
    }
}

/// A request for one actor's entry, or for a page of entries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideQuery {
    rule: Option<String>,
    actor: Option<String>,
    cursor: Option<String>,
    count: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewOverride {
    reason: Option<String>,
    /// Seconds until it ends; `None` if it lasts until it is removed.
    #[serde(rename = "expiresIn")]
    expires_in: Option<WholeNumber>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OverrideResponse {
    rule: String,
    actor: String,
    reason: Option<String>,
    /// Seconds, rounded up.
    expires_in: Option<u64>,
    orphan: bool,
}

impl From<ListedException> for OverrideResponse {
    fn from(ListedException { rule, actor, reason, ends_ns, is_orphan, .. }: ListedException) -> Self {
        Self { rule, actor, reason, expires_in: ends_ns.map(ceil_seconds), orphan: is_orphan }
    }
}

#[derive(Debug, Serialize)]
struct BlockList {
    blocks: Vec<OverrideResponse>,
    /// Cursor of the next page; `None` after the last.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct AllowList {
    allows: Vec<OverrideResponse>,
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct RemoveResponse {
    removed: bool,
}

/// Returns the methods of blocks or of allows, each with its category.
pub fn methods(kind: OverrideKind) -> Vec<(Category, MethodRouter<Arc<Api>>)> {
    let show = move |State(api): State<Arc<Api>>, uri: Uri| show(api, kind, uri);
    let set = move |State(api): State<Arc<Api>>, operator: PendingOperator, request: Request| {
        set(api, kind, operator, request)
    };
    let remove =
        move |State(api): State<Arc<Api>>, operator: PendingOperator, uri: Uri| remove(api, kind, operator, uri);
    vec![(Category::Read, get(show)), (Category::Block, put(set).delete(remove))]
}

async fn set(
    api: Arc<Api>,
    kind: OverrideKind,
    operator: PendingOperator,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let of: Target = query::parse(&head.uri)?;
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let NewOverride { reason, expires_in } = body::parse(&body)?;
    let (slot, limiter, changes) = (api.changes.slots().take().await, Arc::clone(&api.limiter), api.changes.clone());
    let lasts = expires_in.map(|WholeNumber(seconds)| Duration::from_secs(seconds));
    let operator = operator.begin();
    let entry = slot.run(async move {
        changes.set_override(&operator, of.of(kind), reason.as_deref(), lasts).await?;
        // Another client may have removed it since.
        limiter.exception_of(of.of(kind).into(), &operator.scope)?.ok_or_else(|| none(kind))
    });
    let entry = entry.await.map_err(broken).flatten();
    Ok(entry.map(|entry| Json(OverrideResponse::from(entry))).into_response())
}

async fn show(api: Arc<Api>, kind: OverrideKind, uri: Uri) -> Result<Response, Problem> {
    let OverrideQuery { rule, actor, cursor, count } = query::parse(&uri)?;
    if let (Some(rule), Some(actor)) = (&rule, &actor) {
        let entry = api.limiter.exception_of(OverrideTarget { kind, rule, actor }.into(), &origin::user_scope())?;
        let entry = entry.ok_or_else(|| none(kind))?;
        return Ok(Json(OverrideResponse::from(entry)).into_response());
    }
    let count = query::page_size(count.as_deref())?;
    let (slot, limiter, scope) = (api.slots.take().await, Arc::clone(&api.limiter), origin::user_scope());
    let page = slot.run(async move {
        let of = ExceptionFilter { owner: rule.as_deref(), actor: actor.as_deref() };
        limiter.exceptions(kind.into(), of, cursor.as_deref(), count, &scope)
    });
    let page = page.await.map_err(broken)??;
    let (entries, next) = (page.exceptions.into_iter().map(OverrideResponse::from).collect(), page.next);
    Ok(match kind {
        OverrideKind::Block => Json(BlockList { blocks: entries, next }).into_response(),
        OverrideKind::Allow => Json(AllowList { allows: entries, next }).into_response(),
    })
}

async fn remove(api: Arc<Api>, kind: OverrideKind, operator: PendingOperator, uri: Uri) -> Result<Response, Problem> {
    let of: Target = query::parse(&uri)?;
    let (slot, changes) = (api.changes.slots().take().await, api.changes.clone());
    let operator = operator.begin();
    let removed = slot.run(async move { Ok(changes.remove_override(&operator, of.of(kind)).await?) });
    let removed: Result<_, Problem> = removed.await.map_err(broken).flatten();
    Ok(removed.map(|removed| Json(RemoveResponse { removed })).into_response())
}

fn none(kind: OverrideKind) -> Problem {
    let text = match kind {
        OverrideKind::Block => "this actor has no block",
        OverrideKind::Allow => "this actor has no allow",
    };
    Problem::new(StatusCode::NOT_FOUND, text)
}
