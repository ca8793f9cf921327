//! `GET /v1/status`: the counters of one actor, a page at a time.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::counters::broken;
use super::json::Json;
use super::query;
use super::state::Api;
use crate::clock::ceil_seconds;
use crate::limiter::counters::{DEFAULT_PAGE, MAX_PAGE};
use crate::limiter::status::RuleStatus;
use crate::metrics::Bound;
use crate::rules::Operation;
use crate::rules::explain::ActorOverride;
use crate::server::http::problem::Problem;
use crate::server::net::origin;

/// The parameters that are not fields of the actor.
const OPTIONS: [&str; 2] = [CURSOR, COUNT];
const CURSOR: &str = "cursor";
const COUNT: &str = "count";

/// The query: the fields of the actor, and the page.
#[derive(Debug)]
struct StatusQuery {
    actor: Operation,
    cursor: Option<String>,
    count: usize,
}

#[derive(Debug, Serialize)]
struct StatusResponse {
    rules: Vec<ActorStatus>,
    /// Cursor of the next page; `None` after the last.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ActorStatus {
    rule: String,
    limit: u64,
    used: u64,
    reserved: u64,
    in_flight: u64,
    remaining: u64,
    balance: i64,
    /// Seconds, rounded up.
    reset: u64,
    own_limit: Option<u64>,
    #[serde(rename = "override")]
    actor_override: Option<ActorOverride>,
}

impl From<RuleStatus> for ActorStatus {
    fn from(
        RuleStatus { rule, limit, used, reserved, in_flight, verdict, own_limit, actor_override }: RuleStatus,
    ) -> Self {
        let (remaining, balance) = (verdict.credit, verdict.balance());
        let reset = ceil_seconds(verdict.reset_ns);
        Self { rule, limit, used, reserved, in_flight, remaining, balance, reset, own_limit, actor_override }
    }
}

pub async fn status(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let StatusQuery { actor, cursor, count } = StatusQuery::parse(&uri, api.limits.max_pairs)?;
    let slot = if origin::has_actor_token() { api.slots.take_for_customer().await } else { api.slots.take().await };
    let (limiter, scope) = (Arc::clone(&api.limiter), origin::user_scope());
    let page = slot
        .run(async move { limiter.status(&actor, cursor.as_deref(), count, &scope).await })
        .await
        .map_err(broken)??;
    let rules = page.rules.into_iter().map(ActorStatus::from).collect();
    // A browser must show the actor's current status, and keep nothing of it.
    Ok(([(CACHE_CONTROL, "no-store")], Json(StatusResponse { rules, next: page.next })).into_response())
}

impl StatusQuery {
    fn parse(uri: &Uri, max_pairs: usize) -> Result<Self, Problem> {
        let parameters: Vec<(String, String)> = query::parse(uri)?;
        // First: the check for repeated fields compares each field with all others.
        if parameters.iter().filter(|(name, _)| !OPTIONS.contains(&name.as_str())).count() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs")).with_limit(Bound::Pairs));
        }
        let (mut actor, mut cursor, mut count) = (Operation::new(), None, None);
        for (name, value) in parameters {
            let is_repeated = match name.as_str() {
                CURSOR => cursor.replace(value).is_some(),
                COUNT => count.replace(parse_count(&value)?).is_some(),
                field if actor.get(field).is_some() => true,
                field => {
                    actor.set(field, &value);
                    false
                }
            };
            if is_repeated {
                return Err(Problem::bad_request(format!("the query's parameter '{name}' is given twice")));
            }
        }
        if actor.iter().len() == 0 {
            return Err(Problem::bad_request("the query names no actor: add ?FIELD=VALUE to the URL, as in ?user=ann"));
        }
        Ok(Self { actor, cursor, count: count.unwrap_or(DEFAULT_PAGE) })
    }
}

fn parse_count(text: &str) -> Result<usize, Problem> {
    let count = text.parse().ok().filter(|count| (1..=MAX_PAGE).contains(count));
    count.ok_or_else(|| Problem::bad_request(format!("count is {text}, but must be from 1 to {MAX_PAGE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<String, String> {
        let query = StatusQuery::parse(&format!("/v1/status{query}").parse().unwrap(), 4);
        let StatusQuery { actor, cursor, count } = query.map_err(|problem| format!("{problem:?}"))?;
        let fields: Vec<_> = actor.iter().map(|(field, value)| format!("{field}:{value}")).collect();
        Ok(format!("{} {cursor:?} {count}", fields.join(",")))
    }

    #[test]
    fn fields_and_page_are_read_in_any_order() {
        for (query, expected) in [
            ("?user=ann", "user:ann None 100"),
            ("?a=1&b=2&c=3&d=4&count=5&cursor=6", "a:1,b:2,c:3,d:4 Some(\"6\") 5"),
            ("?count=7&path=%2Fa%20b&cursor=3-ff&user=", "path:/a b,user: Some(\"3-ff\") 7"),
        ] {
            assert_eq!(parsed(query).as_deref(), Ok(expected), "{query}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (query, error) in [
            ("", "names no actor"),
            ("?count=5", "names no actor"),
            ("?user=a&user=b", "the query's parameter 'user' is given twice"),
            ("?user=a&cursor=1&cursor=1", "the query's parameter 'cursor' is given twice"),
            ("?user=a&count=0", "count is 0, but must be from 1 to 1000"),
            ("?user=a&count=1001", "count is 1001, but must be from 1 to 1000"),
            ("?user=a&count=x", "count is x, but must be from 1 to 1000"),
            ("?a=1&b=2&c=3&d=4&count=5&cursor=6&e=7", "more than 4 pairs"),
            ("?user=%ff", "is not valid UTF-8"),
        ] {
            let problem = parsed(query).unwrap_err();
            assert!(problem.contains(error), "{query}: {problem}");
        }
    }
}
