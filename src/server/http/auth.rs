//! The password over HTTP: a bearer token.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use crate::server::auth::{Password, log_wrong_password};

/// Why nothing was done (RFC 9457).
const PROBLEM: &str = "{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\
                       \"detail\":\"the password is needed: Authorization: Bearer PASSWORD\"}";

/// Lets nobody to the routes that `router` has so far but those who give the password, if there is one.
pub fn guarded<S: Clone + Send + Sync + 'static>(router: Router<S>, password: Option<Arc<Password>>) -> Router<S> {
    match password {
        Some(password) => router.route_layer(from_fn_with_state(password, check)),
        None => router,
    }
}

async fn check(State(password): State<Arc<Password>>, request: Request, next: Next) -> Response {
    match bearer_token(request.headers()) {
        Some(given) if password.matches(given) => return next.run(request).await,
        Some(_) => log_wrong_password("HTTP", None),
        None => {}
    }
    let headers = [(WWW_AUTHENTICATE, "Bearer realm=\"divvy\""), (CONTENT_TYPE, "application/problem+json")];
    (StatusCode::UNAUTHORIZED, headers, PROBLEM).into_response()
}

/// What follows `Bearer`, whose case does not matter.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
