//! The HTTP API: hits in JSON, what gateways ask, and a look at rules and counters.
//!
//! One file an endpoint. What they share: [`body`] reads requests, [`answer`] and [`ratelimit`] word what the limiter
//! said, [`problem`] words what went wrong. Nothing here decides anything.

mod answer;
mod body;
pub mod check;
mod cost;
mod counters;
mod explain;
mod hit;
mod hits;
mod openapi;
mod operation;
mod peek;
pub mod problem;
pub mod ratelimit;
mod rules;

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, any, get, post};

use self::check::CheckSettings;
use self::ratelimit::RateLimitHeaders;
use crate::limiter::{Limiter, Policy, Refusal};
use crate::server::Limits;
use crate::server::auth::Access;
use crate::server::http::auth::guarded;

/// Hits in one request to `/v1/hits`, unless the operator says otherwise.
pub const DEFAULT_MAX_HITS: usize = 1_000;

/// How the API is served.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    pub headers: RateLimitHeaders,
    pub check: CheckSettings,
    /// Hits in one request to `/v1/hits`.
    pub max_hits: usize,
}

/// What every endpoint works with.
pub struct Api {
    limiter: Arc<Limiter>,
    settings: ApiSettings,
    limits: Limits,
}

impl Api {
    pub fn new(limiter: Arc<Limiter>, settings: ApiSettings, limits: Limits) -> Self {
        Self { limiter, settings, limits }
    }

    /// # Errors
    /// There are no rules.
    fn policy(&self) -> Result<Arc<Policy>, Refusal> {
        self.limiter.policy().ok_or(Refusal::NoRules)
    }
}

type Route = (&'static str, MethodRouter<Arc<Api>>);

/// What takes credit.
fn hit_routes() -> Vec<Route> {
    vec![("/v1/hit", post(hit::hit)), ("/v1/hits", post(hits::hits))]
}

/// What gateways ask, which take credit too.
fn check_routes() -> Vec<Route> {
    vec![
        ("/v1/check", get(check::check).post(check::check)),
        ("/v1/check/", any(check::check_below)),
        ("/v1/check/{*path}", any(check::check_below)),
    ]
}

/// What reads or changes counters and rules.
fn inspection_routes() -> Vec<Route> {
    vec![
        ("/v1/peek", post(peek::peek)),
        ("/v1/explain", post(explain::explain)),
        ("/v1/rules", get(rules::rules)),
        ("/v1/counters", get(counters::list).delete(counters::forget)),
    ]
}

/// What is nobody's secret.
fn public_routes() -> Vec<Route> {
    vec![("/openapi.json", get(openapi::describe))]
}

/// All routes, each behind the password where it is asked for.
pub fn router(api: Arc<Api>, access: &Access) -> Router {
    let routes = |routes: Vec<Route>| {
        routes.into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods))
    };
    routes(public_routes())
        .merge(guarded(routes(hit_routes()), access.hit.clone()))
        .merge(guarded(routes(check_routes()), access.check.clone()))
        .merge(guarded(routes(inspection_routes()), access.http.clone()))
        .with_state(api)
}

#[cfg(test)]
mod tests;
