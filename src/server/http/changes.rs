//! Changes over HTTP: their caller, and the record of attempts that are refused before they begin.

use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use url::form_urlencoded;

use super::error_counts::ErrorCount;
use crate::audit::{Action, AuditLog, Caller, Change};
use crate::server::changes::Operator;
use crate::server::net::origin;

/// Name of the front.
pub const FRONT: &str = "http";

/// Marks the response to a change whose outcome has been recorded.
#[derive(Debug, Clone, Copy)]
struct Recorded;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(Self { caller: caller(&parts.extensions, true), scope: origin::user_scope() })
    }
}

impl Operator {
    /// Returns the operator with the rights that its user has now. Call it right before the change.
    #[must_use]
    pub fn up_to_date(self) -> Self {
        Self { scope: origin::user_scope(), ..self }
    }
}

fn caller(extensions: &Extensions, is_admitted: bool) -> Caller {
    let peer = extensions.get().map(|ConnectInfo(peer)| *peer);
    let caller = Caller::client(FRONT, peer, is_admitted.then(origin::caller_name).flatten());
    if origin::has_actor_token() { caller.as_stranger() } else { caller }
}

/// Marks the response to a change that has begun.
pub fn recorded(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    response.extensions_mut().insert(Recorded);
    response
}

/// Middleware that records attempts that were refused before they began: without a login, without the category, or with
/// a mistake in the request.
pub async fn record_refusals(State(audit): State<Arc<AuditLog>>, request: Request, next: Next) -> Response {
    let Some(change) = change_of(request.method(), request.uri()) else { return next.run(request).await };
    let extensions = request.extensions().clone();
    let response = next.run(request).await;
    if response.extensions().get::<Recorded>().is_none() {
        let is_admitted = !matches!(response.extensions().get(), Some(ErrorCount::Unauthenticated));
        audit.refuse(caller(&extensions, is_admitted), change, response.status());
    }
    response
}

/// Returns the change that a request asks for, if it does.
fn change_of(method: &Method, uri: &Uri) -> Option<Change> {
    let action = match (method, uri.path()) {
        (&Method::PUT, "/v1/limits") => Action::LimitSet,
        (&Method::DELETE, "/v1/limits") => Action::LimitDelete,
        (&Method::DELETE, "/v1/counters") => Action::CountersForget,
        _ => return None,
    };
    let query = uri.query().unwrap_or_default().as_bytes();
    let parameter = |name| form_urlencoded::parse(query).find(|(found, _)| found == name).map(|(_, value)| value);
    let mut change = Change::new(action);
    if let Some(rule) = parameter("rule") {
        change = change.with_rule(&rule);
    }
    if let Some(actor) = parameter("actor") {
        change = change.with_actor(&actor);
    }
    Some(change)
}
