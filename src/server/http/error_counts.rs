//! Counts error responses in the metrics.
//!
//! A handler puts an [`ErrorCount`] into the extensions of an error response. The middleware [`count_errors`] reads it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use crate::metrics::{Bound, Metrics};

/// How an error is counted.
#[derive(Debug, Clone, Copy)]
pub enum ErrorCount {
    /// The password is missing or wrong.
    Unauthenticated,
    /// Any other error, and the limit that the request exceeded, if any.
    Problem(Option<Bound>),
}

/// Counts error responses. This is a middleware.
pub async fn count_errors(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    count_error(&metrics, response.extensions());
    response
}

/// Counts an error according to the extensions of its response.
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
