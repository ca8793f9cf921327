//! The state that all endpoints share.

use std::sync::Arc;

use super::check::settings::CheckSettings;
use super::ratelimit::RateLimitHeaders;
use super::web_origins::WebOrigins;
use crate::Limits;
use crate::crowdsec::Decisions;
use crate::net::calls_in_flight::CallsInFlight;
use crate::net::memory::BufferMemory;
use crate::net::request_memory::{RequestMemory, SMALL};
use crate::net::work_slots::WorkSlots;
use crate::operations::Operations;
use divvy_limiter::{Limiter, Policy, Refusal};
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
    /// Field of the blocks that are decisions for CrowdSec's bouncers.
    pub crowdsec_field: Arc<str>,
}

/// The state that all endpoints share.
pub struct Api {
    pub(super) limiter: Arc<Limiter>,
    pub(super) operations: Operations,
    pub(super) settings: ApiSettings,
    pub(super) limits: Limits,
    pub(super) requests: FrontRequests,
    pub(super) slots: WorkSlots,
    /// Requests with idempotency keys.
    pub(super) calls: CallsInFlight,
    /// Decisions for CrowdSec's bouncers.
    pub(super) decisions: Arc<Decisions>,
    memory: Arc<BufferMemory>,
}

impl Api {
    /// Creates the state. `operations` carries out what operators ask for. Requests are counted in `requests`, `slots` bound the
    /// large ones, and the memory of requests in work comes from `memory`.
    pub fn new(
        limiter: Arc<Limiter>,
        operations: Operations,
        settings: ApiSettings,
        limits: Limits,
        requests: FrontRequests,
        slots: WorkSlots,
        memory: Arc<BufferMemory>,
    ) -> Self {
        let decisions = Decisions::new(Arc::clone(&limiter), Arc::clone(&settings.crowdsec_field));
        Self {
            limiter,
            operations,
            settings,
            limits,
            requests,
            slots,
            calls: CallsInFlight::default(),
            decisions: Arc::new(decisions),
            memory,
        }
    }

    /// Waits for the memory of a request of this length with at most `count` operations; returns `None` if it needs none.
    pub(super) async fn request_memory(&self, bytes: usize, count: usize) -> Option<RequestMemory> {
        if bytes <= SMALL && count == 1 {
            return None;
        }
        Box::pin(RequestMemory::wait_for_call(&self.memory, &self.limiter, bytes, count)).await
    }

    /// Returns the rules in force.
    ///
    /// # Errors
    /// There are no rules.
    pub(super) fn policy(&self) -> Result<Arc<Policy>, Refusal> {
        self.limiter.policy().ok_or(Refusal::NoRules)
    }
}
