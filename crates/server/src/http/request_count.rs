//! Middleware that counts requests by route.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use divvy_telemetry::metrics::{FrontRequests, RequestKind};

/// Counts a request of this kind.
pub async fn count(
    State((requests, kind)): State<(FrontRequests, RequestKind)>,
    request: Request,
    next: Next,
) -> Response {
    requests.count(kind);
    next.run(request).await
}
