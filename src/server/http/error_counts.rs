//! Errors that clients were told: how the metrics learn of them.
//!
//! A handler that makes such a response puts a [`ErrorCount`] into its extensions; [`count_errors`] is around all routes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use crate::metrics::{Limit, Metrics};

/// What an error is counted as.
#[derive(Debug, Clone, Copy)]
pub enum ErrorCount {
    /// The password is missing or wrong.
    Unauthenticated,
    /// Anything else, and the limit that the request ran into, if that is what is wrong with it.
    Problem(Option<Limit>),
}

/// Counts what the response says of itself.
pub async fn count_errors(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    count_error(&metrics, response.extensions());
    response
}

/// Counts what a response's extensions say of it.
pub fn count_error(metrics: &Metrics, extensions: &Extensions) {
    match extensions.get::<ErrorCount>() {
        None => {}
        Some(ErrorCount::Unauthenticated) => metrics.errors.unauthenticated.inc(),
        Some(ErrorCount::Problem(limit)) => {
            metrics.errors.unknown.inc();
            if let Some(limit) = limit {
                metrics.limits.reached(*limit);
            }
        }
    }
}
