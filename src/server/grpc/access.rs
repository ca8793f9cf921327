//! The check of categories for calls over gRPC.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tonic::Status;

use crate::access::{Category, LoginError};
use crate::protocol::rpc::Rpc;
use crate::server::http::ErrorCount;
use crate::server::http::auth::{Refusal, admit, describe, invalid_token, peer, unauthenticated};
use crate::server::net::auth::Guard;

/// Requires a user with the category of each RPC for the routes that `router` has so far, unless there is no guard.
pub fn guarded(router: Router, guard: Option<Arc<Guard>>) -> Router {
    match guard {
        Some(guard) => router.route_layer(from_fn_with_state(guard, check)),
        None => router,
    }
}

async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    // Reflection, and methods that do not exist.
    let category = Rpc::find(request.uri().path()).map_or(Category::Connection, Rpc::category);
    match admit(&guard, request.headers(), peer(&request), category).await {
        Ok(()) => next.run(request).await,
        Err(Refusal::Unauthenticated(lack)) => unauthenticated(&guard, lack),
        Err(Refusal::InvalidToken) => invalid_token(),
        Err(Refusal::TooManyLogins) => refused(Status::unavailable(LoginError::QueueFull.to_string())),
        Err(Refusal::Forbidden(forbidden)) => refused(Status::permission_denied(describe(forbidden))),
    }
}

fn refused(status: Status) -> Response {
    let counted = ErrorCount::problem(status.message().to_owned(), None);
    let mut response: Response = status.into_http();
    response.extensions_mut().insert(counted);
    response
}
