//! `/v1/reservations`: reserves credits, and commits, renews or releases reservations. These requests change counters like
//! charges, so they require the password even if hits do not.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::body;
use super::idempotency::IdempotencyKey;
use super::json::Json;
use super::operation::Pairs;
use super::state::Api;
use crate::http::problem::Problem;
use crate::net::origin;
use divvy_core::clock::ceil_seconds;
use divvy_core::json::WholeNumber;
use divvy_core::rules::Operation;
use divvy_limiter::{
    Applied, BadReservationId, PlanBuilder, Refusal, ReservationId, Reserve, Settlement, lasting_seconds,
};

/// The reservation id in a route's path.
type IdInPath = Result<Path<String>, PathRejection>;

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

#[derive(Debug, Serialize)]
struct CommitResponse {
    remaining: u64,
    /// Credits left, negative if more were used than there were.
    balance: i64,
    /// Seconds, rounded up, until there are more credits.
    reset: u64,
    status: &'static str,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewRequest {
    /// New TTL in seconds; `None` for the original TTL.
    ttl: Option<WholeNumber>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RenewResponse {
    /// Whole seconds until the reservation expires.
    expires_in: u64,
}

#[derive(Debug, Serialize)]
struct ReleaseResponse {
    released: bool,
}

/// Reserves credits: 201, 200 if this id has reserved them already, or 429.
pub async fn reserve(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let body = body::read(&head.headers, body, api.limits.max_body).await?;
    let _request_memory = api.request_memory(body.len(), 1).await;
    let ReservationRequest { operation: pairs, amount: WholeNumber(credits), ttl, id } = body::parse(&body)?;
    if id.is_none() && IdempotencyKey::find(&head.headers)?.is_some() {
        let detail = "a reservation takes no Idempotency-Key: set its `id` instead, which has the same effect";
        return Err(Problem::bad_request(detail));
    }
    let mut operation = Operation::new();
    pairs.read(&body, api.limits.max_pairs, "/operation", &mut operation)?;
    let ttl_seconds = ttl.map(seconds);
    let reserve = Reserve { credits, ttl_seconds, id: id.as_deref().map(str::as_bytes) };
    let applied = api.apply(|builder| builder.add_reservation(&operation, reserve)).await;
    let report = applied.report();
    let place = |refusal: Refusal| match refusal {
        Refusal::NoCredits => Problem::from(refusal).at("/amount"),
        Refusal::ZeroTtl | Refusal::LongTtl { .. } | Refusal::NoTtl { .. } => Problem::from(refusal).at("/ttl"),
        Refusal::BadClientId | Refusal::DifferentReservation => Problem::from(refusal).at("/id"),
        refusal => refusal.into(),
    };
    let reserved = report.reserved(0).map_err(place)?;
    let answer = Answer::for_request(report, 0)?;
    let (mut headers, mut text) = (HeaderMap::new(), Vec::new());
    let Some(id) = reserved.id else {
        let body = answer.write(api.settings.headers, &mut headers, &mut text);
        return Ok((StatusCode::TOO_MANY_REQUESTS, headers, body).into_response());
    };
    answer.write_headers(api.settings.headers, &mut headers, &mut text);
    let id = api.limiter.write_id(id)?;
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
    Ok((status, headers, Json(ReservationResponse { answer, id, expires_in })).into_response())
}

/// Counts the used credits, and releases the rest.
pub async fn commit(State(api): State<Arc<Api>>, id: IdInPath, request: Request) -> Result<Response, Problem> {
    let id = named(&api, id)?;
    let CommitRequest { cost: WholeNumber(cost) } = api.body(request).await?;
    let settled = api.apply(|builder| builder.settle(&id, Settlement::Commit { cost })).await.report().committed(0)?;
    let verdict = settled.verdict;
    Ok(Json(CommitResponse {
        remaining: verdict.credit,
        balance: verdict.balance(),
        reset: ceil_seconds(verdict.reset_ns),
        status: settled.word(),
    })
    .into_response())
}

/// Extends a reservation.
pub async fn renew(State(api): State<Arc<Api>>, id: IdInPath, request: Request) -> Result<Response, Problem> {
    let id = named(&api, id)?;
    let RenewRequest { ttl } = api.body(request).await?;
    let ttl_seconds = ttl.map(seconds);
    let renewed = api.apply(|builder| builder.settle(&id, Settlement::Renew { ttl_seconds })).await;
    let settled = renewed.report().settled(0).map_err(|refusal| match refusal {
        Refusal::ZeroTtl | Refusal::LongTtl { .. } => Problem::from(refusal).at("/ttl"),
        refusal => refusal.into(),
    })?;
    match settled.lasts_seconds(ttl_seconds) {
        Some(expires_in) => Ok(Json(RenewResponse { expires_in }).into_response()),
        None => Err(Problem::new(StatusCode::NOT_FOUND, "this reservation has expired, or was committed or released")),
    }
}

/// Releases a reservation.
pub async fn release(State(api): State<Arc<Api>>, id: IdInPath) -> Result<Response, Problem> {
    let id = named(&api, id)?;
    let settled = api.apply(|builder| builder.settle(&id, Settlement::Release)).await.report().settled(0)?;
    Ok(Json(ReleaseResponse { released: settled.is_released() }).into_response())
}

impl Api {
    /// Applies the requests of `add` in a plan of their own.
    async fn apply(&self, add: impl FnOnce(&mut PlanBuilder)) -> Applied {
        let mut builder = PlanBuilder::default();
        origin::begin(&self.limiter, &mut builder);
        add(&mut builder);
        self.limiter.apply(builder.build()).await
    }

    async fn body<T: DeserializeOwned>(&self, request: Request) -> Result<T, Problem> {
        let (head, body) = request.into_parts();
        body::parse(&body::read(&head.headers, body, self.limits.max_body).await?)
    }
}

fn named(api: &Api, id: IdInPath) -> Result<ReservationId, Refusal> {
    let Path(text) = id.map_err(|_| BadReservationId)?;
    api.limiter.read_id(text.as_bytes())
}

/// Caps the number. The limiter refuses the cap as too long, too.
fn seconds(WholeNumber(seconds): WholeNumber) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
