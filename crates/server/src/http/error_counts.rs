//! Counts error responses in the metrics.
//!
//! A handler puts an [`ErrorCount`] into the extensions of an error response. The middleware [`count_errors`] reads it.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::Response;

use crate::error_log;
use crate::net::origin;
use divvy_telemetry::metrics::{Bound, ErrorKind, Metrics};

/// How an error is counted.
#[derive(Debug, Clone)]
pub struct ErrorCount {
    kind: ErrorKind,
    /// The limit that the request exceeded, if any.
    limit: Option<Bound>,
    reason: Cow<'static, str>,
}

impl ErrorCount {
    /// The password is missing or wrong.
    pub fn unauthenticated(reason: &'static str) -> Self {
        Self { kind: ErrorKind::Unauthenticated, limit: None, reason: reason.into() }
    }

    /// Any other error, and the limit that the request exceeded, if any.
    pub fn problem(reason: impl Into<Cow<'static, str>>, limit: Option<Bound>) -> Self {
        Self { kind: ErrorKind::Unknown, limit, reason: reason.into() }
    }
}

/// Counts error responses of a front. This is a middleware.
pub async fn count_errors(
    State((metrics, front)): State<(Arc<Metrics>, &'static str)>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    count_error(&metrics, front, response.extensions());
    response
}

/// Counts an error according to the extensions of its response.
pub fn count_error(metrics: &Metrics, front: &'static str, extensions: &Extensions) {
    let Some(ErrorCount { kind, limit, reason }) = extensions.get() else { return };
    error_log::count(metrics, front, *kind, origin::error_client, reason);
    if let Some(limit) = limit {
        metrics.limits.reached(*limit);
    }
}
