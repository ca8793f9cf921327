//! `--check-id`: checks of one request count once. nginx asks again after an internal redirect, with the same request ID.

use std::str::FromStr;

use axum::http::HeaderName;

use super::forwarded::ForwardedRequest;
use crate::http::api::idempotency::{self, IdempotencyKey};
use crate::http::problem::Problem;
use crate::net::calls_in_flight::{CallGuard, CallsInFlight};
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, Payload, PlanBuilder};

/// Maximum length of an ID (bytes).
const MAX_ID: usize = 200;
/// Precedes IDs, so that no client's `Idempotency-Key` is one: those have no control characters.
const PREFIX: &str = "check\0";

/// The header whose value names a request. The gateway must overwrite it, or a client could give one name to all its
/// requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckId(HeaderName);

/// The name of a request.
pub struct RequestId(String);

impl CheckId {
    /// Returns the ID of the request; `None` if it has none.
    ///
    /// # Errors
    /// The header is not a usable ID, or occurs several times.
    pub fn find(&self, forwarded: &ForwardedRequest) -> Result<Option<RequestId>, Problem> {
        let Some(id) = forwarded.once(&self.0)? else { return Ok(None) };
        if id.len() > MAX_ID {
            let detail = format!("the header {} names the request, and has more than {MAX_ID} bytes", self.0);
            return Err(Problem::bad_request(detail));
        }
        Ok(Some(RequestId(id.to_owned())))
    }
}

impl RequestId {
    /// Adds a hit that counts once for this ID and operation. The same ID may come with another operation: nginx changes the
    /// method for an error page.
    ///
    /// # Errors
    /// The same check is in flight, or the hit is refused.
    pub fn add(
        &self,
        operation: &Operation,
        builder: &mut PlanBuilder,
        calls: &CallsInFlight,
    ) -> Result<CallGuard, Problem> {
        let mut payload = Payload::new(Intent::Hit);
        payload.add(operation, None);
        let key = IdempotencyKey::internal(format!("{PREFIX}{:016x} {}", payload.fingerprint(), self.0));
        builder.idempotent(key.as_bytes(), &payload, |builder| builder.add(operation, Intent::Hit, None))?;
        if let Some((_, refusal)) = builder.plan().refusals().next() {
            return Err(refusal.clone().into());
        }
        idempotency::enter(calls, &key, &payload)
    }
}

impl FromStr for CheckId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix("header:").and_then(|name| name.parse().ok());
        name.map(Self).ok_or_else(|| format!("{text:?}: expected header:NAME, such as header:X-Request-Id"))
    }
}
