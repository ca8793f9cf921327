//! `GET /v1/top`: the actors of a rule that take the most, or are denied the most.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::counters::broken;
use super::json::Json;
use super::query;
use super::state::Api;
use crate::limiter::top::{DEFAULT_COUNT, MAX_COUNT, Order, Ranked, RuleName, RuleRanking, TopOf, Window};
use crate::server::http::problem::Problem;
use crate::server::net::origin;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// The rule's name.
    rule: String,
    order: Option<String>,
    last: Option<String>,
    count: Option<String>,
}

/// The query.
#[derive(Debug)]
struct TopQuery {
    rule: String,
    order: Order,
    window: Window,
    count: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TopResponse {
    rule: String,
    order: &'static str,
    /// Seconds.
    last: u64,
    canary: bool,
    sampled: bool,
    has_room: bool,
    /// `None` if the user may see only one actor.
    total: Option<u64>,
    top: Vec<Actor>,
}

#[derive(Debug, Serialize)]
struct Actor {
    actor: String,
    cut: bool,
    count: u64,
    error: u64,
}

impl From<Ranked> for Actor {
    fn from(Ranked { actor, is_cut: cut, count, error }: Ranked) -> Self {
        // An actor consists of text.
        Self { actor: String::from_utf8_lossy(&actor).into_owned(), cut, count, error }
    }
}

pub async fn top(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let TopQuery { rule, order, window, count } = TopQuery::parse(&uri)?;
    let (slot, limiter, scope) = (api.slots.take().await, Arc::clone(&api.limiter), origin::user_scope());
    let ranked = slot.run(async move {
        let of = TopOf { rule: RuleName::Name(&rule), order, window, count };
        limiter.top(of, &scope)
    });
    let RuleRanking { rule, is_canary, is_of_one_actor, ranking } = ranked.await.map_err(broken)??;
    let response = TopResponse {
        rule,
        order: order.name(),
        last: window.seconds(),
        canary: is_canary,
        sampled: ranking.is_sampled,
        has_room: ranking.has_room,
        total: (!is_of_one_actor).then_some(ranking.total),
        top: ranking.actors.into_iter().map(Actor::from).collect(),
    };
    // A browser must show the current ranking, and keep nothing of it.
    Ok(([(CACHE_CONTROL, "no-store")], Json(response)).into_response())
}

impl TopQuery {
    fn parse(uri: &Uri) -> Result<Self, Problem> {
        let Parameters { rule, order, last, count } = query::parse(uri)?;
        let order = choose("order", order.as_deref(), Order::Denied, "denied or taken", |name| {
            Order::ALL.into_iter().find(|order| order.name() == name)
        })?;
        let window = choose("last", last.as_deref(), Window::Minute, "60 or 3600", |seconds| {
            Window::ALL.into_iter().find(|window| window.seconds().to_string() == seconds)
        })?;
        let range = format!("a whole number from 1 to {MAX_COUNT}");
        let count = choose("count", count.as_deref(), DEFAULT_COUNT, &range, |count| {
            count.parse().ok().filter(|count| (1..=MAX_COUNT).contains(count))
        })?;
        Ok(Self { rule, order, window, count })
    }
}

/// Returns the value of the parameter `name`, as `parse` reads it, or the default.
fn choose<T>(
    name: &str,
    given: Option<&str>,
    default: T,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, Problem> {
    let Some(given) = given else { return Ok(default) };
    parse(given).ok_or_else(|| Problem::bad_request(format!("{name} is '{given}', but must be {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<String, String> {
        let query = TopQuery::parse(&format!("/v1/top?{query}").parse().unwrap());
        let TopQuery { rule, order, window, count } = query.map_err(|problem| format!("{problem:?}"))?;
        Ok(format!("{rule} {order:?} {window:?} {count}"))
    }

    #[test]
    fn parameters_have_defaults() {
        assert_eq!(parsed("rule=a").unwrap(), "a Denied Minute 10");
        assert_eq!(parsed("count=1000&last=3600&rule=b%20c&order=taken").unwrap(), "b c Taken Hour 1000");
    }

    #[test]
    fn mistakes_are_named() {
        for (query, error) in [
            ("", "the query's parameter 'rule' is missing"),
            ("rule=a&order=Denied", "order is 'Denied', but must be denied or taken"),
            ("rule=a&last=61", "last is '61', but must be 60 or 3600"),
            ("rule=a&count=0", "count is '0', but must be a whole number from 1 to 1000"),
            ("rule=a&count=1001", "count is '1001', but must be a whole number from 1 to 1000"),
            ("rule=a&actor=b", "unknown parameter 'actor'"),
        ] {
            let problem = parsed(query).unwrap_err();
            assert!(problem.contains(error), "{query}: {problem}");
        }
    }
}
