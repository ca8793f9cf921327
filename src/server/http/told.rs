//! Errors that clients were told: how the metrics learn of them.
//!
//! A handler that makes such a response puts a [`Told`] into its extensions; [`count`] is around all routes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use crate::metrics::{Limit, Metrics};

/// What an error is counted as.
#[derive(Debug, Clone, Copy)]
pub enum Told {
    /// The password is missing or wrong.
    Unauthenticated,
    /// Anything else, and the limit that the request ran into, if that is what is wrong with it.
    Problem(Option<Limit>),
}

/// Counts what the response says of itself.
pub async fn count(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    count_told(&metrics, response.extensions());
    response
}

/// Counts what a response's extensions say of it.
pub fn count_told(metrics: &Metrics, extensions: &Extensions) {
    match extensions.get::<Told>() {
        None => {}
        Some(Told::Unauthenticated) => metrics.errors.unauthenticated.inc(),
        Some(Told::Problem(limit)) => {
            metrics.errors.unknown.inc();
            if let Some(limit) = limit {
                metrics.limits.reached(*limit);
            }
        }
    }
}
