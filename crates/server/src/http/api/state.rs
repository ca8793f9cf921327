//! The state that all endpoints share.

use std::sync::Arc;

use bytes::Bytes;
use hyper::HeaderMap;
use serde::de::DeserializeOwned;

use super::body;
use super::check::CheckSettings;
use super::ratelimit::RateLimitHeaders;
use super::web_origins::WebOrigins;
use crate::Limits;
use crate::http::response::Problem;
use crate::http::transport::bounds::Incoming;
use crate::net::memory::{BufferMemory, RequestMemory, SMALL};
use crate::net::work::{CallsInFlight, WorkSlots};
use crate::operations::Operations;
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::FrontRequests;

/// Settings of the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// The dialects of rate limit headers.
    pub headers: RateLimitHeaders,
    /// Checks for gateways.
    pub check: CheckSettings,
    /// Web pages that may read the status of an actor.
    pub origins: WebOrigins,
}

/// The state that all endpoints share.
pub struct Api {
    pub limiter: Arc<Limiter>,
    /// Carries out what operators ask for.
    pub operations: Operations,
    pub settings: ApiSettings,
    pub limits: Limits,
    /// Counts requests.
    pub requests: FrontRequests,
    /// Bounds the large requests in work.
    pub slots: WorkSlots,
    /// Requests with idempotency keys.
    pub calls: CallsInFlight,
    /// Memory of requests in work.
    pub memory: Arc<BufferMemory>,
}

impl Api {
    /// Waits for the memory of a request of this length with at most `count` operations; returns `None` if it needs none.
    pub async fn request_memory(&self, bytes: usize, count: usize) -> Option<RequestMemory> {
        if bytes <= SMALL && count == 1 {
            return None;
        }
        Box::pin(RequestMemory::wait_for_call(&self.memory, &self.limiter, bytes, count)).await
    }

    /// Reads the JSON body of a request with these headers.
    ///
    /// # Errors
    /// See [`body::read`].
    pub async fn read(&self, headers: &HeaderMap, body: impl Incoming) -> Result<Bytes, Problem> {
        body::read(headers, body, self.limits.max_body).await
    }

    /// Reads and parses a body that borrows nothing.
    ///
    /// # Errors
    /// See [`body::read`] and [`body::parse`].
    pub async fn parse<T: DeserializeOwned>(&self, headers: &HeaderMap, body: impl Incoming) -> Result<T, Problem> {
        body::parse(&self.read(headers, body).await?)
    }
}
