//! `/v1/check`: a hit for gateways that ask before they forward a request (nginx's auth_request, Traefik's ForwardAuth,
//! Envoy's ext_authz). The operation is in headers and path. The answer is a status without a body.

mod forwarded;
mod id;
pub mod settings;
mod sources;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

pub use self::forwarded::CheckFrom;
use self::forwarded::ForwardedRequest;
pub use self::id::CheckId;
use self::id::RequestId;
pub use self::settings::CheckSettings;
pub use self::sources::CheckOperation;
use super::answer::Answer;
use super::idempotency::mark_replayed;
use super::state::Api;
use crate::http::problem::Problem;
use crate::net::origin;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, PlanBuilder};
use divvy_telemetry::logging::LogThrottle;

const PATH: &str = "/v1/check";

/// Checks the request that the headers describe.
pub async fn check(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (operation, id) = read(&api, &request, None)?;
    answer(&api, operation, id).await
}

/// Checks a request that was sent here unchanged, except that `/v1/check` precedes its path, as Envoy does it.
pub async fn check_below(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let (operation, id) = read(&api, &request, Some(PATH))?;
    answer(&api, operation, id).await
}

/// Reads the operation in question, and the name of the request if there is one.
fn read(api: &Api, request: &Request, prefix: Option<&str>) -> Result<(Operation, Option<RequestId>), Problem> {
    let settings = &api.settings.check;
    let read = || {
        let forwarded = ForwardedRequest::read(request, prefix, settings.from, settings.operation.final_slash())?;
        let operation = settings.operation.read(&forwarded, settings.trusted_hops, api.limits.max_pairs)?;
        Ok((operation, settings.id.as_ref().map(|id| id.find(&forwarded)).transpose()?.flatten()))
    };
    read().inspect_err(|problem: &Problem| {
        static REFUSED: LogThrottle = LogThrottle::new();
        REFUSED.say(|left_out| tracing::warn!(left_out, "refused a check of a gateway: {}", problem.detail()));
    })
}

async fn answer(api: &Api, operation: Operation, id: Option<RequestId>) -> Result<Response, Problem> {
    let settings = &api.settings;
    let _request_memory = api.request_memory(operation.memory(), 1).await;
    let mut builder = PlanBuilder::default();
    origin::begin(&api.limiter, &mut builder);
    let guard = match id {
        None => {
            builder.add(&operation, Intent::Hit, None);
            None
        }
        Some(id) => Some(id.add(&operation, &mut builder, &api.calls)?),
    };
    let applied = api.limiter.apply(builder.build()).await;
    let answer = Answer::for_request(applied.report(), 0)?;
    let status = if answer.allowed { StatusCode::OK } else { settings.check.deny_status };
    let mut response = status.into_response();
    if guard.is_some() && applied.report().is_replay() == Ok(true) {
        mark_replayed(response.headers_mut());
    }
    answer.write_headers(settings.headers, response.headers_mut(), &mut Vec::new());
    Ok(response)
}
