//! The origin of requests: the client's address, and its identity.
//!
//! A future that answers a request over HTTP or gRPC runs in the [`scope`] of its connection.

use std::cell::{RefCell, RefMut};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::error_log::ErrorClient;
use crate::operations::{self, Admission};
use divvy_access::{Authority, Category, Identity};
use divvy_limiter::{Limiter, PlanBuilder, Scope};

/// Where a request over HTTP or gRPC comes from.
struct RequestOrigin {
    peer: SocketAddr,
    /// Name in the client's certificate.
    certificate: Option<Arc<str>>,
    client: RefCell<Client>,
}

/// The client of a request, and the check that the request passed.
struct Client {
    identity: Identity,
    /// Set when the request passes a guard.
    passed: Option<(Arc<Authority>, Category)>,
}

impl RequestOrigin {
    /// Returns the client with the rights that its user has now. The request may have waited for its body, or for other
    /// requests, since it passed its guard.
    fn client(&self) -> RefMut<'_, Client> {
        let mut client = self.client.borrow_mut();
        let Client { identity, passed } = &mut *client;
        if let Some((authority, category)) = passed
            && authority.refresh(identity)
            && identity.may(*category).is_err()
        {
            identity.revoke();
        }
        client
    }
}

tokio::task_local! {
    static ORIGIN: RequestOrigin;
}

/// Runs `answering` with this client as the origin of its requests.
pub fn scope<F: Future>(
    peer: SocketAddr,
    certificate: Option<Arc<str>>,
    answering: F,
) -> impl Future<Output = F::Output> {
    let client = RefCell::new(Client { identity: Identity::OPEN, passed: None });
    let origin = RequestOrigin { peer, certificate, client };
    ORIGIN.scope(origin, answering)
}

/// Returns the name in the certificate of the client in scope.
pub fn certificate() -> Option<Arc<str>> {
    ORIGIN.try_with(|origin| origin.certificate.clone()).ok().flatten()
}

/// Sets the identity of the client in scope, whose request needs this category.
pub fn identify(identity: Identity, authority: &Arc<Authority>, category: Category) {
    let client = Client { identity, passed: Some((Arc::clone(authority), category)) };
    let _ = ORIGIN.try_with(|origin| origin.client.replace(client));
}

/// Returns whether the credentials of the client in scope were verified by a guard.
pub fn has_passed() -> bool {
    ORIGIN.try_with(|origin| origin.client.borrow().passed.is_some()).unwrap_or(false)
}

/// Returns the name of the client in scope for the audit log. See [`caller_name`](operations::caller_name).
pub fn caller_name() -> Option<Arc<str>> {
    ORIGIN.try_with(|origin| operations::caller_name(&origin.client.borrow().identity)).ok().flatten()
}

/// Returns the client in scope for a note about an error.
pub fn error_client() -> ErrorClient {
    let client = |origin: &RequestOrigin| {
        let user = origin.client.borrow().identity.name().map(Into::into);
        ErrorClient { peer: Some(origin.peer), user }
    };
    ORIGIN.try_with(client).unwrap_or_default()
}

/// Returns whether the client in scope has a token for one actor.
pub fn has_actor_token() -> bool {
    ORIGIN.try_with(|origin| origin.client.borrow().identity.has_actor_token()).unwrap_or(false)
}

/// Returns the check that the request in scope passed; `None` if no guard asked for one.
pub fn admission() -> Option<Admission> {
    let admission = |origin: &RequestOrigin| {
        let client = origin.client();
        let (authority, category) = client.passed.clone()?;
        Some(Admission { authority, identity: client.identity.clone(), category })
    };
    ORIGIN.try_with(admission).ok().flatten()
}

/// Returns the rules and the actor that the client in scope may use now. Call it right before they are used.
pub fn user_scope() -> Scope {
    ORIGIN.try_with(|origin| origin.client().identity.scope().clone()).unwrap_or_else(|_| Scope::nothing())
}

/// Begins a plan for the client in scope, within the scope of its user. See [`Limiter::begin`].
pub fn begin(limiter: &Limiter, builder: &mut PlanBuilder) {
    if ORIGIN.try_with(|origin| limiter.begin(builder, origin.client().identity.scope())).is_err() {
        limiter.begin(builder, &Scope::nothing());
    }
}
