//! The operations of operators over HTTP: their requests and replies, as the table of operations has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::Value;
use tokio::task::JoinError;

use super::body;
use super::json::Json;
use super::query;
use super::state::Api;
use crate::http::changes::PendingOperator;
use crate::http::problem::Problem;
use crate::net::origin;
use divvy_access::Category;
use divvy_api::{ArgumentError, Arguments, ENDPOINTS, Endpoint, Task};
use divvy_telemetry::metrics::{Bound, RequestKind};

/// A path, the kind of its requests in the metrics, and its methods, each with the category that it needs.
pub type Route = (&'static str, RequestKind, Vec<(Category, MethodRouter<Arc<Api>>)>);

/// Returns the routes of operations.
pub fn routes() -> Vec<Route> {
    let mut paths: BTreeMap<&str, Route> = BTreeMap::new();
    for endpoint in ENDPOINTS {
        let Some((method, path)) = endpoint.http else { continue };
        let methods =
            on(filter(method), move |State(api): State<Arc<Api>>, operator: PendingOperator, request: Request| {
                operate(api, endpoint, operator, request)
            });
        let methods: MethodRouter<Arc<Api>> = methods;
        paths.entry(path).or_insert((path, endpoint.kind, Vec::new())).2.push((endpoint.category, methods));
    }
    paths.into_values().collect()
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "PUT" => MethodFilter::PUT,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

async fn operate(
    api: Arc<Api>,
    endpoint: &'static Endpoint,
    operator: PendingOperator,
    request: Request,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let parameters: Vec<(String, String)> = query::parse(&head.uri)?;
    let mut arguments = Arguments::from_query(endpoint, &parameters, api.limits.max_pairs).map_err(bad_argument)?;
    if endpoint.fields.iter().any(|field| field.is_in_body) {
        let body = body::read(&head.headers, body, api.limits.max_body).await?;
        arguments = body::parse_seed(&body, || arguments.clone().with_body(endpoint))?;
    }
    let slot = match endpoint.task {
        Task::ShowStatus if origin::has_actor_token() => api.slots.take_for_customer().await,
        _ => api.operations.take_slot(endpoint, &api.slots).await,
    };
    let (operations, operator) = (api.operations.clone(), operator.begin());
    let work = async move { operations.run(&operator, endpoint, &arguments, None).await };
    match slot.run(work).await.map_err(broken)?? {
        Value::Null => Err(Problem::new(StatusCode::NOT_FOUND, endpoint.missing)),
        // A browser must show the current state, and keep nothing of it.
        reply => Ok(([(CACHE_CONTROL, "no-store")], Json(reply)).into_response()),
    }
}

fn bad_argument(error: ArgumentError) -> Problem {
    let problem = Problem::bad_request(error.to_string());
    match error {
        ArgumentError::ManyPairs { .. } => problem.with_limit(Bound::Pairs),
        _ => problem,
    }
}

/// Describes work that panicked, or that the shutdown ended.
pub fn broken(error: JoinError) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
