//! `/v1/check`: a hit for gateways that ask before they forward a request (nginx's auth_request, Traefik's ForwardAuth,
//! Envoy's ext_authz). The operation is in headers, query and path. The answer is a status without a body.

mod forwarded;
pub mod settings;
mod spec;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use self::forwarded::ForwardedRequest;
pub use self::settings::CheckSettings;
pub use self::spec::CheckOperation;
use super::answer::Answer;
use super::state::Api;
use crate::limiter::{Intent, PlanBuilder};
use crate::server::http::problem::Problem;
use crate::server::net::origin;

const PATH: &str = "/v1/check";

/// Checks the request that the headers describe.
pub async fn check(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    answer(&api, &ForwardedRequest::by_headers(&request)?).await
}

/// Checks a request that was sent here unchanged, except that `/v1/check` precedes its path, as Envoy does it.
pub async fn check_below(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    answer(&api, &ForwardedRequest::by_itself(&request, PATH)).await
}

async fn answer(api: &Api, forwarded: &ForwardedRequest<'_>) -> Result<Response, Problem> {
    let settings = &api.settings.check;
    let operation = settings.operation.read(forwarded, settings.trusted_hops, api.limits.max_pairs)?;
    let _request_memory = api.request_memory(operation.memory(), 1).await;
    let mut builder = PlanBuilder::default();
    origin::begin(&api.limiter, &mut builder);
    builder.add(&operation, Intent::Hit, None);
    let applied = api.limiter.apply(builder.build()).await;
    let answer = Answer::for_request(applied.report(), 0)?;
    let status = if answer.allowed { StatusCode::OK } else { settings.deny_status };
    let mut response = status.into_response();
    answer.write_headers(api.settings.headers, response.headers_mut(), &mut Vec::new());
    Ok(response)
}
