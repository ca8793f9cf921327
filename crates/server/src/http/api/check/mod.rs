//! `/v1/check`: a hit for gateways that ask before they forward a request (nginx's auth_request, Traefik's ForwardAuth,
//! Envoy's ext_authz). The operation is in headers and path. The answer is a status without a body.

mod forwarded;
mod sources;

use std::str::FromStr;

use hyper::StatusCode;
use hyper::header::HeaderName;
use hyper::http::request::Parts;

pub use self::forwarded::CheckFrom;
use self::forwarded::ForwardedRequest;
pub use self::sources::CheckOperation;
use super::answer::Answer;
use super::idempotency::{self, IdempotencyKey, mark_replayed};
use super::state::Api;
use crate::http::response::{Answered, Problem, empty};
use crate::net::auth::Origin;
use crate::net::work::{CallGuard, CallsInFlight};
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, Payload, PlanBuilder};
use divvy_telemetry::logging::LogThrottle;

/// Settings of checks for gateways.
#[derive(Debug, Clone)]
pub struct CheckSettings {
    /// How the checked request becomes an operation.
    pub operation: CheckOperation,
    /// The headers that the gateway sets; `None` if that is unknown.
    pub from: Option<CheckFrom>,
    /// The header that names the checked request, if there is one.
    pub id: Option<CheckId>,
    /// Number of addresses at the end of `X-Forwarded-For` that belong to the operator's proxies.
    pub trusted_hops: usize,
    /// Status of a denial.
    pub deny_status: StatusCode,
}

impl Api {
    /// Checks a request. Without a `prefix`, headers describe it. Otherwise it was sent here unchanged, except that the prefix
    /// precedes its path, as Envoy does it.
    pub async fn check(&self, head: &Parts, prefix: Option<&str>, origin: &Origin) -> Answered {
        let settings = &self.settings;
        let (operation, id) = self.read_check(head, prefix).inspect_err(|problem| {
            static REFUSED: LogThrottle = LogThrottle::new();
            REFUSED.say(|left_out| tracing::warn!(left_out, "refused a check of a gateway: {}", problem.detail()));
        })?;
        let _request_memory = self.request_memory(operation.memory(), 1).await;
        let mut builder = PlanBuilder::default();
        origin.begin(&self.limiter, &mut builder);
        let guard = match id {
            None => {
                builder.add(&operation, Intent::Hit, None);
                None
            }
            Some(id) => Some(id.add(&operation, &mut builder, &self.calls)?),
        };
        let applied = self.limiter.apply(builder.build()).await;
        let answer = Answer::for_request(applied.report(), 0)?;
        let mut response = empty(if answer.allowed { StatusCode::OK } else { settings.check.deny_status });
        if guard.is_some() && applied.report().is_replay() == Ok(true) {
            mark_replayed(response.headers_mut());
        }
        answer.write_headers(settings.headers, response.headers_mut(), &mut Vec::new());
        Ok(response)
    }

    /// Reads the operation in question, and the name of the request if there is one.
    fn read_check(&self, head: &Parts, prefix: Option<&str>) -> Result<(Operation, Option<RequestId>), Problem> {
        let settings = &self.settings.check;
        let forwarded = ForwardedRequest::read(head, prefix, settings.from, settings.operation.final_slash())?;
        let operation = settings.operation.read(&forwarded, settings.trusted_hops, self.limits.max_pairs)?;
        Ok((operation, settings.id.as_ref().map(|id| id.find(&forwarded)).transpose()?.flatten()))
    }
}

/// Maximum length of an ID (bytes).
const MAX_ID: usize = 200;
/// Precedes IDs, so that no client's `Idempotency-Key` is one: those have no control characters.
const PREFIX: &str = "check\0";

/// The header whose value names a request (`--check-id`). Checks of one request count once: nginx asks again after an internal
/// redirect, with the same request ID. The gateway must overwrite it, or a client could give one name to all its
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
