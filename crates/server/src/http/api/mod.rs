//! The HTTP API: hits in JSON, checks for gateways, and requests about rules and counters.
//!
//! Each endpoint has a file. They share the state [`Api`]; [`body`] reads requests, [`json`] writes bodies, and
//! [`answer`] and [`ratelimit`] represent the limiter's answers. This module makes no decisions.

pub mod answer;
pub mod body;
pub mod check;
mod decisions;
mod explain;
pub mod hit;
mod hit_route;
pub mod hits;
mod idempotency;
pub mod json;
mod number;
mod openapi;
mod operation;
mod operations;
mod peek;
pub mod query;
pub mod ratelimit;
mod reservations;
mod rules;
mod settlement;
mod state;
mod web_origins;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, any, delete, get, post};
use tower_http::cors::CorsLayer;

pub use self::hit_route::HitRoute;
use self::operations::Route;
pub use self::state::{Api, ApiSettings};
pub use self::web_origins::{InvalidOrigin, WebOrigin, WebOrigins};
use super::auth::check as check_access;
use super::changes::{Refusals, record_refusals};
use super::problem::wrong_method;
use super::request_count::count;
use crate::net::auth::{Access, Guard};
use divvy_access::Category;
use divvy_telemetry::metrics::RequestKind;

/// Returns the routes of hits.
fn hit_routes() -> Vec<Route> {
    vec![
        ("/v1/hit", RequestKind::Hit, vec![(Category::Hit, post(hit::hit))]),
        ("/v1/hits", RequestKind::Hit, vec![(Category::Hit, post(hits::hits))]),
    ]
}

/// Returns the routes of checks for gateways. A check is a hit, too.
fn check_routes() -> Vec<Route> {
    vec![
        ("/v1/check", RequestKind::Hit, vec![(Category::Hit, get(check::check).post(check::check))]),
        ("/v1/check/", RequestKind::Hit, vec![(Category::Hit, any(check::check_below))]),
        ("/v1/check/{*path}", RequestKind::Hit, vec![(Category::Hit, any(check::check_below))]),
    ]
}

/// Returns the routes that read or change counters and rules.
fn inspection_routes() -> Vec<Route> {
    vec![
        ("/v1/peek", RequestKind::Peek, vec![(Category::Hit, post(peek::peek))]),
        ("/v1/charge", RequestKind::Charge, vec![(Category::Hit, post(settlement::charge))]),
        ("/v1/refund", RequestKind::Refund, vec![(Category::Hit, post(settlement::refund))]),
        ("/v1/reservations", RequestKind::Reserve, vec![(Category::Hit, post(reservations::reserve))]),
        ("/v1/reservations/{id}", RequestKind::Release, vec![(Category::Hit, delete(reservations::release))]),
        ("/v1/reservations/{id}/commit", RequestKind::Commit, vec![(Category::Hit, post(reservations::commit))]),
        ("/v1/reservations/{id}/renew", RequestKind::Renew, vec![(Category::Hit, post(reservations::renew))]),
        ("/v1/explain", RequestKind::Explain, vec![(Category::Read, post(explain::explain))]),
        ("/v1/rules", RequestKind::Rules, vec![(Category::Read, get(rules::rules))]),
    ]
}

/// Returns the routes of CrowdSec's bouncers, which may send their key in a header of their own.
fn bouncer_routes() -> Vec<Route> {
    vec![
        ("/v1/decisions", RequestKind::Bouncer, vec![(Category::Read, get(decisions::list))]),
        ("/v1/decisions/stream", RequestKind::Bouncer, vec![(Category::Read, get(decisions::stream))]),
        ("/v1/usage-metrics", RequestKind::Bouncer, vec![(Category::Read, post(decisions::usage_metrics))]),
    ]
}

/// Returns the routes that are open to all clients.
fn public_routes() -> Vec<Route> {
    vec![("/openapi.json", RequestKind::Server, vec![(Category::Connection, get(openapi::describe))])]
}

/// Returns all routes. Each requires a user with its category, unless its part of the server is open.
pub fn router(api: Arc<Api>, access: &Access) -> Router {
    let cors = api.settings.origins.layer();
    let add = |router, routes: Vec<Route>, guard: Option<&Arc<Guard>>| {
        let counted = |kind| from_fn_with_state((api.requests.clone(), kind), count);
        routes.into_iter().fold(router, |router: Router<_>, (path, kind, methods)| {
            let is_for_web_pages = methods.iter().any(|(category, _)| *category == Category::Status);
            let methods = methods.into_iter().map(|(category, methods)| {
                let methods: MethodRouter<_> = methods.layer(counted(kind));
                guarded(methods, guard, category)
            });
            let methods = methods.reduce(MethodRouter::merge).unwrap_or_default();
            router.route(path, for_web_pages(methods, cors.as_ref().filter(|_| is_for_web_pages)))
        })
    };
    // Outside the check of the category, so that it sees refused requests.
    let refusals = Refusals { audit: Arc::clone(api.operations.audit()), has_guard: access.http.is_some() };
    let refusals = from_fn_with_state(refusals, record_refusals);
    let operators = add(Router::new(), operations::routes(), access.http.as_ref()).route_layer(refusals);
    let bouncers = add(Router::new(), bouncer_routes(), access.http.as_ref());
    let bouncers = bouncers.route_layer(from_fn(decisions::accept_api_key));
    let router = add(Router::new(), public_routes(), None);
    let router = add(router, hit_routes(), access.hit.as_ref());
    let router = add(router, check_routes(), access.check.as_ref());
    add(router, inspection_routes(), access.http.as_ref()).merge(operators).merge(bouncers).with_state(api)
}

/// Lets web pages of other origins use these methods. Answers preflight requests, which have no credentials.
fn for_web_pages(methods: MethodRouter<Arc<Api>>, cors: Option<&CorsLayer>) -> MethodRouter<Arc<Api>> {
    match cors {
        // The fallback is set here, because the router would replace the default one, without the layer.
        Some(cors) => methods.fallback(wrong_method).layer(cors.clone()),
        None => methods,
    }
}

/// Requires a user with this category for these methods; any client may use them without a guard.
pub fn guarded<S: Clone + Send + Sync + 'static>(
    methods: MethodRouter<S>,
    guard: Option<&Arc<Guard>>,
    category: Category,
) -> MethodRouter<S> {
    match guard {
        Some(guard) => methods.layer(from_fn_with_state((Arc::clone(guard), category), check_access)),
        None => methods,
    }
}

#[cfg(test)]
mod tests;
