//! The origin of a request over HTTP or gRPC: the client's address, and its identity.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::error_log::ErrorClient;
use crate::operations::{self, Admission};
use divvy_access::{Authority, Category, Identity};
use divvy_limiter::{Limiter, PlanBuilder, Scope};

/// Where a request over HTTP or gRPC comes from.
pub struct Origin {
    peer: SocketAddr,
    /// Name in the client's certificate.
    certificate: Option<Arc<str>>,
    client: Mutex<Client>,
}

/// The client of a request, and the check that the request passed.
struct Client {
    identity: Identity,
    /// Set when the request passes a guard.
    passed: Option<(Arc<Authority>, Category)>,
}

impl Origin {
    /// Returns the origin of a request that has not passed a guard.
    pub fn new(peer: SocketAddr, certificate: Option<Arc<str>>) -> Self {
        Self { peer, certificate, client: Mutex::new(Client { identity: Identity::OPEN, passed: None }) }
    }

    /// Returns the address of the client.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the name in the certificate of the client.
    pub fn certificate(&self) -> Option<&Arc<str>> {
        self.certificate.as_ref()
    }

    /// Sets the identity of the client, whose request needs this category.
    pub fn identify(&self, identity: Identity, authority: &Arc<Authority>, category: Category) {
        *self.client.lock() = Client { identity, passed: Some((Arc::clone(authority), category)) };
    }

    /// Returns the client with the rights that its user has now. The request may have waited for its body, or for other
    /// requests, since it passed its guard.
    fn current_client(&self) -> MutexGuard<'_, Client> {
        let mut client = self.client.lock();
        let Client { identity, passed } = &mut *client;
        if let Some((authority, category)) = passed
            && authority.refresh(identity)
            && identity.may(*category).is_err()
        {
            identity.revoke();
        }
        client
    }

    /// Returns whether the credentials of the client were verified by a guard.
    pub fn has_passed(&self) -> bool {
        self.client.lock().passed.is_some()
    }

    /// Returns the name of the client for the audit log. See [`caller_name`](operations::caller_name).
    pub fn caller_name(&self) -> Option<Arc<str>> {
        operations::caller_name(&self.client.lock().identity)
    }

    /// Returns the client for a note about an error.
    pub fn error_client(&self) -> ErrorClient {
        ErrorClient { peer: Some(self.peer), user: self.client.lock().identity.name().map(Into::into) }
    }

    /// Returns whether the client has a token for one actor.
    pub fn has_actor_token(&self) -> bool {
        self.client.lock().identity.has_actor_token()
    }

    /// Returns the check that the request passed; `None` if no guard asked for one.
    pub fn admission(&self) -> Option<Admission> {
        let client = self.current_client();
        let (authority, category) = client.passed.clone()?;
        Some(Admission { authority, identity: client.identity.clone(), category })
    }

    /// Returns the rules and the actor that the client may use now. Call it right before they are used.
    pub fn user_scope(&self) -> Scope {
        self.current_client().identity.scope().clone()
    }

    /// Begins a plan for the client, within the scope of its user. See [`Limiter::begin`].
    pub fn begin(&self, limiter: &Limiter, builder: &mut PlanBuilder) {
        limiter.begin(builder, self.current_client().identity.scope());
    }
}
