//! The read side of CrowdSec's Local API: `GET /v1/decisions`, `GET /v1/decisions/stream` and `POST /v1/usage-metrics`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use tokio::task::yield_now;

use super::body;
use super::operations::broken;
use super::query;
use super::state::Api;
use crate::crowdsec::{API_KEY, Bouncer};
use crate::http::auth::peer;
use crate::http::problem::Problem;
use crate::net::admission::network;
use crate::net::origin;
use crate::protocol::crowdsec::{DecisionQuery, FilterError};
use divvy_limiter::Refusal;

/// A bouncer's report about itself. Divvy has no use for it.
#[derive(Debug, Deserialize)]
struct UsageMetrics {}

/// Middleware that accepts a bouncer's key: a bearer token in another header. A request with both is refused like one with
/// two tokens.
pub async fn accept_api_key(mut request: Request, next: Next) -> Response {
    let headers = request.headers_mut();
    let keys: Vec<_> = headers.get_all(API_KEY).iter().filter_map(|key| bearer(key.as_bytes())).collect();
    for key in keys {
        headers.append(AUTHORIZATION, key);
    }
    next.run(request).await
}

fn bearer(key: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", key].concat()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Answers with the decisions in force.
pub async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let filter = query::parse::<DecisionQuery>(&uri)?.filter().map_err(invalid)?;
    update(&api).await?;
    let mut answer = api.decisions.list(filter).await;
    let mut first = Bytes::new();
    while first.is_empty() && !answer.is_written() {
        first = answer.next().unwrap_or_default();
        yield_now().await;
    }
    // A short answer has its length in its head.
    if answer.is_written() {
        return Ok(json(Body::from(first)));
    }
    Ok(json(body_of(std::iter::once(first).chain(answer))))
}

/// Answers with the decisions that are new, and those that have ended, since the bouncer's last request.
pub async fn stream(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let query: DecisionQuery = query::parse(request.uri())?;
    let (is_startup, filter) = (query.is_startup().map_err(invalid)?, query.filter().map_err(invalid)?);
    let bouncer = bouncer(&request);
    update(&api).await?;
    let answer = api.decisions.stream(bouncer, is_startup, filter).await;
    Ok(json(body_of(answer)))
}

/// Accepts what a bouncer reports about itself, so that it does not log an error every few minutes.
pub async fn usage_metrics(State(api): State<Arc<Api>>, request: Request) -> Result<StatusCode, Problem> {
    check_scope()?;
    let (head, content) = request.into_parts();
    let content = body::read(&head.headers, content, api.limits.max_body).await?;
    body::parse::<UsageMetrics>(&content)?;
    Ok(StatusCode::CREATED)
}

/// Checks that the bouncer may know all blocks.
fn check_scope() -> Result<(), Problem> {
    if origin::user_scope().covers_everything() { Ok(()) } else { Err(Refusal::OutOfScope.into()) }
}

/// Updates the decisions, for a bouncer that may know them.
async fn update(api: &Api) -> Result<(), Problem> {
    check_scope()?;
    if !api.decisions.is_current() {
        let (slot, decisions) = (api.slots.take().await, Arc::clone(&api.decisions));
        slot.run(async move { decisions.update().await }).await.map_err(broken)?;
    }
    Ok(())
}

fn invalid(error: FilterError) -> Problem {
    Problem::bad_request(error.to_string())
}

fn json(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

fn body_of(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    Body::from_stream(stream::unfold(pieces, |mut pieces| async {
        loop {
            let piece = pieces.next()?;
            // Other requests run between two pieces. Many may be empty, if the bouncer wants few of many decisions.
            yield_now().await;
            if !piece.is_empty() {
                return Some((Ok::<_, Infallible>(piece), pieces));
            }
        }
    }))
}

/// Returns the bouncer that sends this request.
fn bouncer(request: &Request) -> Bouncer {
    let agent = request.headers().get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
    Bouncer::new(origin::caller_name(), peer(request).map(|peer| network(peer.ip())), agent)
}
