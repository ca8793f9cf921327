//! What every endpoint works with.

use std::sync::Arc;

use super::check::settings::CheckSettings;
use super::idempotency::InFlight;
use super::ratelimit::RateLimitHeaders;
use crate::limiter::{Limiter, Policy, Refusal};
use crate::metrics::FrontRequests;
use crate::server::Limits;
use crate::server::turns::Turns;

/// Hits in one request to `/v1/hits`, unless the operator says otherwise.
pub const DEFAULT_MAX_HITS: usize = 1_000;

/// How the API is served.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    pub headers: RateLimitHeaders,
    pub check: CheckSettings,
    /// Hits in one request to `/v1/hits`.
    pub max_hits: usize,
}

/// What every endpoint works with.
pub struct Api {
    pub(super) limiter: Arc<Limiter>,
    pub(super) settings: ApiSettings,
    pub(super) limits: Limits,
    pub(super) requests: FrontRequests,
    pub(super) turns: Turns,
    pub(super) in_flight: InFlight,
}

impl Api {
    /// `requests` is where the front's requests are counted; `turns` are those at large requests.
    pub fn new(
        limiter: Arc<Limiter>,
        settings: ApiSettings,
        limits: Limits,
        requests: FrontRequests,
        turns: Turns,
    ) -> Self {
        Self { limiter, settings, limits, requests, turns, in_flight: InFlight::default() }
    }

    /// # Errors
    /// There are no rules.
    pub(super) fn policy(&self) -> Result<Arc<Policy>, Refusal> {
        self.limiter.policy().ok_or(Refusal::NoRules)
    }
}
