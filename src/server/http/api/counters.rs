//! `GET` and `DELETE /v1/counters`: lists or forgets a rule's counters, a page at a time.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;

use super::json::Json;
use super::query;
use super::state::Api;
use crate::clock::ceil_seconds;
use crate::limiter::counters::{CountersOf, RuleName};
use crate::server::http::changes::PendingOperator;
use crate::server::http::problem::Problem;
use crate::server::net::origin;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CounterQuery {
    /// The rule's name.
    rule: String,
    actor: Option<String>,
    cursor: Option<String>,
    count: Option<String>,
}

#[derive(Debug, Serialize)]
struct CounterList {
    counters: Vec<Counter>,
    /// Cursor of the next page; `None` after the last.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Counter {
    actor: String,
    remaining: u64,
    balance: i64,
    /// Seconds, rounded up.
    reset: u64,
}

#[derive(Debug, Serialize)]
struct ForgetResponse {
    forgotten: u64,
    /// Same as [`CounterList::next`].
    next: Option<String>,
}

pub async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let query: CounterQuery = query::parse(&uri)?;
    let count = query::page_size(query.count.as_deref())?;
    let (slot, limiter, scope) = (api.slots.take().await, Arc::clone(&api.limiter), origin::user_scope());
    let page =
        slot.run(async move { limiter.counters(query.counters(count), &scope).await }).await.map_err(broken)??;
    let counters = page.counters.into_iter().map(|counter| Counter {
        actor: counter.actor,
        remaining: counter.credit,
        balance: counter.balance,
        reset: ceil_seconds(counter.reset_ns),
    });
    Ok(Json(CounterList { counters: counters.collect(), next: page.next }).into_response())
}

pub async fn forget(State(api): State<Arc<Api>>, operator: PendingOperator, uri: Uri) -> Result<Response, Problem> {
    let query: CounterQuery = query::parse(&uri)?;
    let count = query::page_size(query.count.as_deref())?;
    let (slot, changes) = (api.changes.slots().take().await, api.changes.clone());
    let operator = operator.begin();
    let page = slot.run(async move { Ok(changes.forget_counters(&operator, query.counters(count)).await?) });
    let page: Result<_, Problem> = page.await.map_err(broken).flatten();
    Ok(page.map(|page| Json(ForgetResponse { forgotten: page.forgotten, next: page.next })).into_response())
}

/// Describes work that panicked, or that the shutdown ended.
pub fn broken(error: JoinError) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl CounterQuery {
    fn counters(&self, count: usize) -> CountersOf<'_> {
        CountersOf {
            rule: RuleName::Name(&self.rule),
            actor: self.actor.as_deref(),
            cursor: self.cursor.as_deref(),
            count,
        }
    }
}
