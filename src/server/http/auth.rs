//! The password over HTTP: a bearer token.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};

use super::error_counts::ErrorCount;
use crate::server::net::auth::Guard;

/// Response to a client without the password (RFC 9457).
const PROBLEM: &str = "{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\
                       \"detail\":\"a password is required: send Authorization: Bearer PASSWORD\"}\n";

/// Requires the password, if there is one, for the routes that `router` has so far.
pub fn guarded<S: Clone + Send + Sync + 'static>(router: Router<S>, guard: Option<Arc<Guard>>) -> Router<S> {
    match guard {
        Some(guard) => router.route_layer(from_fn_with_state(guard, check)),
        None => router,
    }
}

async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get().map(|ConnectInfo(peer)| *peer);
    if bearer_token(request.headers()).is_some_and(|given| guard.lets_in(given, peer)) {
        return next.run(request).await;
    }
    let headers = [(WWW_AUTHENTICATE, "Bearer realm=\"divvy\""), (CONTENT_TYPE, "application/problem+json")];
    (StatusCode::UNAUTHORIZED, Extension(ErrorCount::Unauthenticated), headers, PROBLEM).into_response()
}

/// Returns whether the client has the password, or needs none. Counts and logs nothing, because the router does that.
pub fn lets_in(guard: Option<&Guard>, headers: &HeaderMap) -> bool {
    guard.is_none_or(|guard| bearer_token(headers).is_some_and(|given| guard.matches(given)))
}

/// Returns the text after `Bearer`, in any case. Returns `None` even if there are two such headers, because a proxy may have
/// checked the other one.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let value = value.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
