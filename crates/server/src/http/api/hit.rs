//! Requests about one operation: `POST /v1/hit`, `/v1/peek` (the answer to a hit, without its effect), and the corrections
//! `/v1/charge` (credits that were used already) and `/v1/refund` (at most as many as were taken). Corrections change
//! counters regardless of the credits left, so they require the password even if hits do not.

use hyper::{HeaderMap, Response, StatusCode};
use serde::Deserialize;

use super::answer::Answer;
use super::body;
use super::idempotency::{self, IdempotencyKey, mark_replayed};
use super::operation::Pairs;
use super::state::Api;
use crate::http::response::{Answered, Problem};
use crate::http::transport::bounds::Incoming;
use crate::http::transport::reply::Reply;
use crate::net::auth::Origin;
use crate::net::memory::{self, pooled};
use crate::net::work::CallGuard;
use divvy_core::json::WholeNumber;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, Payload, PlanBuilder};

/// The body of a hit, a peek, a charge or a refund.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitRequest<'a> {
    /// The operation's pairs, as a JSON object.
    #[serde(borrow)]
    pub operation: Pairs<'a>,
    /// Cost in credits, instead of the rules' `costField`s.
    cost: Option<WholeNumber>,
}

impl HitRequest<'_> {
    /// Returns the cost in the body. `None` leaves the cost to the rules.
    pub fn cost(&self) -> Option<u64> {
        self.cost.map(|cost| cost.0)
    }
}

/// Buffers of a request.
#[derive(Default)]
struct Work {
    builder: PlanBuilder,
    operation: Operation,
    text: Vec<u8>,
}

pooled!(Box<Work>, |work| work.builder.memory() + work.operation.memory() + work.text.capacity());

impl Api {
    /// Sends the operation in the body to the limiter. A hit is answered with 200 or 429. Any other request is answered
    /// with 200, even if the answer is a denial.
    ///
    /// Reuses `headers`, which are the request's, for the response.
    pub async fn ask(&self, intent: Intent, headers: HeaderMap, body: impl Incoming, origin: &Origin) -> Answered {
        let body = self.read(&headers, body).await?;
        let _request_memory = self.request_memory(body.len(), 1).await;
        let mut work: Box<Work> = memory::take();
        let answered = self.answer(intent, headers, &body, origin, &mut work).await;
        work.builder.release();
        memory::give(work);
        answered
    }

    async fn answer(
        &self,
        intent: Intent,
        mut headers: HeaderMap,
        body: &[u8],
        origin: &Origin,
        work: &mut Work,
    ) -> Answered {
        let request: HitRequest = body::parse(body)?;
        request.operation.read(body, self.limits.max_pairs, "/operation", &mut work.operation)?;
        // A peek has no effect, so a client may repeat it without a key.
        let key = if intent == Intent::Peek { None } else { IdempotencyKey::find(&headers)? };
        origin.begin(&self.limiter, &mut work.builder);
        let guard = match key {
            None => {
                work.builder.add(&work.operation, intent, request.cost());
                None
            }
            Some(key) => Some(self.add_idempotent(&key, intent, request.cost(), work)?),
        };
        let applied = self.limiter.apply(work.builder.build()).await;
        let answer = Answer::for_request(applied.report(), 0)?;
        headers.clear();
        if guard.is_some() && applied.report().is_replay() == Ok(true) {
            mark_replayed(&mut headers);
        }
        let body = answer.write(self.settings.headers, &mut headers, &mut work.text);
        let mut response = Response::new(Reply::Whole(body));
        *response.headers_mut() = headers;
        if intent == Intent::Hit && !answer.allowed {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        work.builder.reuse(applied);
        Ok(response)
    }

    fn add_idempotent(
        &self,
        key: &IdempotencyKey,
        intent: Intent,
        cost: Option<u64>,
        work: &mut Work,
    ) -> Result<CallGuard, Problem> {
        let mut payload = Payload::new(intent);
        payload.add(&work.operation, cost);
        let Work { builder, operation, .. } = work;
        builder.idempotent(key.as_bytes(), &payload, |builder| builder.add(operation, intent, cost))?;
        // A user learns nothing about calls that are outside its scope.
        if let Some((_, refusal)) = builder.plan().refusals().next() {
            return Err(refusal.clone().into());
        }
        idempotency::enter(&self.calls, key, &payload)
    }
}
