//! The seam between the HTTP front and the live page, which is a crate of its own: what the front asks of a page, and what
//! a page uses of the front.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use hyper::Response;
use hyper::http::request::Parts;
use tokio_util::sync::CancellationToken;

pub use super::api::body;
pub use super::auth::{Refusal, check_category, recognize, too_many_logins};
pub use super::cross_origin::{check_origin, host_in_uri};
pub use super::monitoring::count_counters;
pub use super::response::{Answered, Problem, empty, json, not_found, of_type};
pub use super::transport::bodies::{Reply, RequestBody};
pub use crate::errors::{ERROR_LOG, LastError, hide_paths};
pub use crate::net::auth::RequestOrigin;
pub use crate::net::places::{NoPlace, Place, Places};
pub use crate::net::work::WorkSlots;
use divvy_telemetry::metrics::FrontRequests;

/// The live page, as the HTTP front and the server see it.
pub trait Page: Send + Sync {
    /// Answers a request with a path of the page, and counts it.
    fn respond<'a>(
        self: Arc<Self>,
        head: &'a Parts,
        body: RequestBody,
        origin: &'a RequestOrigin,
        requests: &'a FrontRequests,
    ) -> BoxFuture<'a, Response<Reply>>;

    /// Runs the page's tasks until `stopping` is cancelled. Then its streams end.
    fn run(self: Arc<Self>, stopping: CancellationToken) -> BoxFuture<'static, ()>;
}

/// Returns whether the page has this path.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix("/ui").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
