//! The HTTP API: hits in JSON, checks for gateways, and requests about rules and counters.
//!
//! Each endpoint has a file. They share the state [`Api`]; [`body`] reads requests, [`json`] writes bodies, and
//! [`answer`] and [`ratelimit`] represent the limiter's answers. This module makes no decisions.

pub mod answer;
pub mod body;
pub mod check;
mod counters;
mod explain;
pub mod hit;
mod hit_route;
pub mod hits;
mod idempotency;
mod json;
mod limits;
mod number;
mod openapi;
mod operation;
mod peek;
mod query;
pub mod ratelimit;
mod reservations;
mod rules;
mod settlement;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, any, delete, get, post};

pub use self::hit_route::HitRoute;
pub use self::state::{Api, ApiSettings, DEFAULT_MAX_HITS};
use super::auth::guarded;
use super::request_count::count;
use crate::metrics::RequestKind;
use crate::server::net::auth::Access;

type Route = (&'static str, RequestKind, MethodRouter<Arc<Api>>);

/// Returns the routes of hits.
fn hit_routes() -> Vec<Route> {
    vec![("/v1/hit", RequestKind::Hit, post(hit::hit)), ("/v1/hits", RequestKind::Hit, post(hits::hits))]
}

/// Returns the routes of checks for gateways. A check is a hit, too.
fn check_routes() -> Vec<Route> {
    vec![
        ("/v1/check", RequestKind::Hit, get(check::check).post(check::check)),
        ("/v1/check/", RequestKind::Hit, any(check::check_below)),
        ("/v1/check/{*path}", RequestKind::Hit, any(check::check_below)),
    ]
}

/// Returns the routes that read or change counters and rules.
fn inspection_routes() -> Vec<Route> {
    vec![
        ("/v1/peek", RequestKind::Peek, post(peek::peek)),
        ("/v1/charge", RequestKind::Charge, post(settlement::charge)),
        ("/v1/refund", RequestKind::Refund, post(settlement::refund)),
        ("/v1/reservations", RequestKind::Reserve, post(reservations::reserve)),
        ("/v1/reservations/{id}", RequestKind::Release, delete(reservations::release)),
        ("/v1/reservations/{id}/commit", RequestKind::Commit, post(reservations::commit)),
        ("/v1/reservations/{id}/renew", RequestKind::Renew, post(reservations::renew)),
        ("/v1/explain", RequestKind::Explain, post(explain::explain)),
        ("/v1/rules", RequestKind::Rules, get(rules::rules)),
        ("/v1/counters", RequestKind::Counters, get(counters::list).delete(counters::forget)),
        ("/v1/limits", RequestKind::Limits, get(limits::get).put(limits::set).delete(limits::remove)),
    ]
}

/// Returns the routes that are open to all clients.
fn public_routes() -> Vec<Route> {
    vec![("/openapi.json", RequestKind::Server, get(openapi::describe))]
}

/// Returns all routes. Each requires the password of its kind, if there is one.
pub fn router(api: Arc<Api>, access: &Access) -> Router {
    let routes = |routes: Vec<Route>| {
        let counted = |kind| from_fn_with_state((api.requests.clone(), kind), count);
        let add = |router: Router<_>, (path, kind, methods): Route| router.route(path, methods.layer(counted(kind)));
        routes.into_iter().fold(Router::new(), add)
    };
    routes(public_routes())
        .merge(guarded(routes(hit_routes()), access.hit.clone()))
        .merge(guarded(routes(check_routes()), access.check.clone()))
        .merge(guarded(routes(inspection_routes()), access.http.clone()))
        .with_state(api)
}

#[cfg(test)]
mod tests;
