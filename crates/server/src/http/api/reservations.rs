//! `/v1/reservations`: reserves credits, and commits, renews or releases reservations. These requests change counters like
//! charges, so they require the password even if hits do not.

use std::convert::Infallible;

use hyper::header::{HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Api;
use super::answer::Answer;
use super::body::{self, Pairs};
use super::hits::find_key;
use crate::http::response::{Answered, Problem, json};
use crate::http::transport::bodies::{Reply, RequestBody};
use crate::net::auth::RequestOrigin;
use divvy_core::clock::ceil_seconds;
use divvy_core::json::WholeNumber;
use divvy_core::rules::Operation;
use divvy_limiter::{
    Answers, BadReservationId, PlanBuilder, Refusal, ReservationId, Reserve, Settlement, lasting_seconds,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationRequest<'a> {
    #[serde(borrow)]
    operation: Pairs<'a>,
    amount: WholeNumber,
    /// TTL in seconds. Leases need none, because their rule defines how long they last.
    ttl: Option<WholeNumber>,
    /// The client's name for the reservation.
    id: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReservationResponse<'a> {
    #[serde(flatten)]
    answer: Answer<'a>,
    id: String,
    /// Whole seconds until it expires; `None` if it is committed already.
    expires_in: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommitRequest {
    cost: WholeNumber,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewRequest {
    /// New TTL in seconds; `None` for the original TTL.
    ttl: Option<WholeNumber>,
}

impl Api {
    /// Reserves credits: 201, 200 if this id has reserved them already, or 429.
    pub async fn reserve(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let body = self.read(&head.headers, body)?;
        let _request_memory = self.request_memory(body.len(), 1).await;
        let ReservationRequest { operation: pairs, amount: WholeNumber(credits), ttl, id } = body::parse(&body)?;
        if id.is_none() && find_key(&head.headers)?.is_some() {
            let detail = "a reservation takes no Idempotency-Key: set its `id` instead, which has the same effect";
            return Err(Problem::bad_request(detail));
        }
        let mut operation = Operation::new();
        pairs.read(&body, self.server.limits.max_pairs, "/operation", &mut operation)?;
        let ttl_seconds = ttl.map(seconds);
        let reserve = Reserve { credits, ttl_seconds, id: id.as_deref().map(str::as_bytes) };
        let answers = self.ask_limiter(origin, |builder| builder.add_reservation(&operation, reserve)).await;
        let report = answers.report();
        let reserved = report.reserved(0).map_err(describe)?;
        let answer = Answer::with_note(report, 0)?;
        let mut headers = HeaderMap::new();
        answer.write_headers(self.settings.headers, &mut headers, &mut Vec::new());
        let Some(id) = reserved.id else { return Ok(respond(StatusCode::TOO_MANY_REQUESTS, headers, json(&answer)?)) };
        let id = self.server.limiter.write_id(id)?;
        let status = if reserved.is_repeated { StatusCode::OK } else { StatusCode::CREATED };
        if let Ok(location) = HeaderValue::try_from(format!("/v1/reservations/{id}"))
            && !reserved.is_repeated
        {
            headers.insert(LOCATION, location);
        }
        // A reservation that no rule counts lasts as long as the client wants.
        let expires_in = match reserved.ends_ns {
            None if !reserved.is_repeated => ttl_seconds.map(u64::from),
            ends => ends.map(lasting_seconds),
        };
        Ok(respond(status, headers, json(&ReservationResponse { answer, id, expires_in })?))
    }

    /// Counts the used credits of a reservation, and releases the rest.
    pub async fn commit(&self, id: &str, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let id = self.read_id(id)?;
        let CommitRequest { cost: WholeNumber(cost) } = self.parse(&head.headers, body)?;
        let answers = self.ask_limiter(origin, |builder| builder.settle(&id, Settlement::Commit { cost })).await;
        let settled = answers.report().committed(0)?;
        let verdict = settled.verdict;
        json(&json!({
            "remaining": verdict.credit,
            "balance": verdict.balance(),
            "reset": ceil_seconds(verdict.reset_ns),
            "status": settled.word(),
        }))
    }

    /// Extends a reservation.
    pub async fn renew(&self, id: &str, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        let id = self.read_id(id)?;
        let RenewRequest { ttl } = self.parse(&head.headers, body)?;
        let ttl_seconds = ttl.map(seconds);
        let answers = self.ask_limiter(origin, |builder| builder.settle(&id, Settlement::Renew { ttl_seconds })).await;
        let settled = answers.report().settled(0).map_err(describe)?;
        let gone = "this reservation has expired, or was committed or released";
        let expires_in = settled.lasts_seconds(ttl_seconds).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, gone))?;
        json(&json!({ "expiresIn": expires_in }))
    }

    /// Releases a reservation.
    pub async fn release(&self, id: &str, origin: &RequestOrigin) -> Answered {
        let id = self.read_id(id)?;
        let answers = self.ask_limiter(origin, |builder| builder.settle(&id, Settlement::Release)).await;
        json(&json!({ "released": answers.report().settled(0)?.is_released() }))
    }

    /// Asks the limiter what `add` adds.
    pub(super) async fn ask_limiter(&self, origin: &RequestOrigin, add: impl FnOnce(&mut PlanBuilder)) -> Answers {
        let add = |builder: &mut PlanBuilder| {
            add(builder);
            Ok::<_, Infallible>(())
        };
        let Ok(answers) = origin.ask(&self.server.limiter, add).await;
        answers
    }

    /// Reads the id of a reservation in a path.
    pub(super) fn read_id(&self, text: &str) -> Result<ReservationId, Refusal> {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| BadReservationId)?;
        self.server.limiter.read_id(text.as_bytes())
    }
}

/// Describes why a request is refused, with the field that it is about.
fn describe(refusal: Refusal) -> Problem {
    let field = match refusal {
        Refusal::NoCredits => "/amount",
        Refusal::BadTtl { .. } | Refusal::NoTtl(_) => "/ttl",
        Refusal::BadClientId | Refusal::DifferentReservation => "/id",
        refusal => return refusal.into(),
    };
    Problem::from(refusal).at(field)
}

/// Returns the response with this status, and with these headers after its type.
pub(super) fn respond(status: StatusCode, headers: HeaderMap, mut response: Response<Reply>) -> Response<Reply> {
    *response.status_mut() = status;
    response.headers_mut().extend(headers);
    response
}

/// Caps the number. The limiter refuses the cap as too long, too.
fn seconds(WholeNumber(seconds): WholeNumber) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
