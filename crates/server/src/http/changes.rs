//! Operations over HTTP: their caller, and the record of attempts that are refused before they begin.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use url::form_urlencoded;

use crate::net::origin;
use crate::operations::Operator;
use divvy_access::audit::{AuditLog, Caller, Change};
use divvy_api as api;

/// Name of the front.
pub const FRONT: &str = "http";

/// Whether the change that a request asks for has begun, and records its outcome.
#[derive(Debug, Clone, Default)]
struct Begun(Arc<AtomicBool>);

/// The operator of a request whose change has not begun.
pub struct PendingOperator {
    caller: Caller,
    begun: Option<Begun>,
}

impl<S: Sync> FromRequestParts<S> for PendingOperator {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let caller = caller(peer(&parts.extensions), true);
        Ok(Self { caller, begun: parts.extensions.get().cloned() })
    }
}

impl PendingOperator {
    /// Returns the operator with the rights that its user has now. Call it right before the change, which records its own
    /// outcome.
    #[must_use]
    pub fn begin(self) -> Operator {
        if let Some(Begun(begun)) = self.begun {
            begun.store(true, Relaxed);
        }
        Operator { caller: self.caller, scope: origin::user_scope(), admission: origin::admission() }
    }
}

fn peer(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get().map(|ConnectInfo(peer)| *peer)
}

fn caller(peer: Option<SocketAddr>, is_admitted: bool) -> Caller {
    let caller = Caller::client(FRONT, peer, is_admitted.then(origin::caller_name).flatten());
    if origin::has_actor_token() { caller.as_stranger() } else { caller }
}

/// The audit log for refused attempts. `has_guard` says that clients have to log in.
#[derive(Clone)]
pub struct Refusals {
    pub audit: Arc<AuditLog>,
    pub has_guard: bool,
}

/// A request that asks for a change. If it is dropped before the change begins, because its client left, that is recorded.
struct Attempt {
    refusals: Refusals,
    peer: Option<SocketAddr>,
    change: Option<Change>,
    begun: Begun,
}

impl Attempt {
    /// Records that the change was refused, unless it has begun.
    fn refuse(&mut self, error: impl Display) {
        if let Some(change) = self.change.take().filter(|_| !self.begun.0.load(Relaxed)) {
            let is_admitted = !self.refusals.has_guard || origin::has_passed();
            self.refusals.audit.refuse(caller(self.peer, is_admitted), change, error);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.refuse("the request was aborted before its answer");
    }
}

/// Middleware that records attempts that were refused before they began: without a login, without the category, or with
/// a mistake in the request. Also if the client does not wait for the answer.
pub async fn record_refusals(State(refusals): State<Refusals>, mut request: Request, next: Next) -> Response {
    let Some(change) = change_of(request.method(), request.uri()) else { return next.run(request).await };
    let begun = Begun::default();
    request.extensions_mut().insert(begun.clone());
    let mut attempt = Attempt { refusals, peer: peer(request.extensions()), change: Some(change), begun };
    let response = next.run(request).await;
    attempt.refuse(response.status());
    response
}

/// Returns the change that a request asks for, if it does.
fn change_of(method: &Method, uri: &Uri) -> Option<Change> {
    let action = api::find(method.as_str(), uri.path())?.action?;
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
