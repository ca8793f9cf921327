//! The origin of requests: the client's address, and its identity. The store bounds the number of records that clients
//! of one address can create.
//!
//! A future that answers a request over HTTP or gRPC runs in the [`scope`] of its connection.

use std::cell::RefCell;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::admission::network;
use crate::access::Identity;
use crate::limiter::{Limiter, Origin, PlanBuilder, Scope};
use crate::server::changes;

/// Where a request over HTTP or gRPC comes from.
struct RequestOrigin {
    address: Origin,
    /// Name in the client's certificate.
    certificate: Option<Arc<str>>,
    /// Set when the request passes a guard.
    identity: RefCell<Identity>,
}

tokio::task_local! {
    static ORIGIN: RequestOrigin;
}

/// Returns the origin for a client's address.
pub fn for_address(peer: SocketAddr) -> Origin {
    let bits = match network(peer.ip()) {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    Origin(bits)
}

/// Runs `answering` with this client as the origin of its requests.
pub fn scope<F: Future>(
    peer: SocketAddr,
    certificate: Option<Arc<str>>,
    answering: F,
) -> impl Future<Output = F::Output> {
    let origin = RequestOrigin { address: for_address(peer), certificate, identity: RefCell::new(Identity::OPEN) };
    ORIGIN.scope(origin, answering)
}

/// Returns the name in the certificate of the client in scope.
pub fn certificate() -> Option<Arc<str>> {
    ORIGIN.try_with(|origin| origin.certificate.clone()).ok().flatten()
}

/// Sets the identity of the client in scope.
pub fn identify(identity: Identity) {
    let _ = ORIGIN.try_with(|origin| origin.identity.replace(identity));
}

/// Returns the name of the client in scope for the audit log. See [`caller_name`](changes::caller_name).
pub fn caller_name() -> Option<Arc<str>> {
    ORIGIN.try_with(|origin| changes::caller_name(&origin.identity.borrow())).ok().flatten()
}

/// Returns whether the client in scope has a token for one actor.
pub fn has_actor_token() -> bool {
    ORIGIN.try_with(|origin| origin.identity.borrow().has_actor_token()).unwrap_or(false)
}

/// Returns the rules and the actor that the client in scope may use.
pub fn user_scope() -> Scope {
    ORIGIN.try_with(|origin| origin.identity.borrow().scope().clone()).unwrap_or_else(|_| Scope::nothing())
}

/// Begins a plan for the client in scope, within the scope of its user. See [`Limiter::begin`].
pub fn begin(limiter: &Limiter, builder: &mut PlanBuilder) {
    let begun = ORIGIN.try_with(|origin| {
        limiter.begin(builder, origin.identity.borrow().scope());
        builder.set_origin(Some(origin.address));
    });
    if begun.is_err() {
        limiter.begin(builder, &Scope::nothing());
        builder.set_origin(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_network_have_one_origin() {
        let origin = |address: &str| for_address(address.parse().unwrap());
        assert_eq!(origin("192.0.2.1:5"), origin("192.0.2.1:6"));
        assert_eq!(origin("192.0.2.1:5"), origin("[::ffff:192.0.2.1]:5"));
        assert_ne!(origin("192.0.2.1:5"), origin("192.0.2.2:5"));
        assert_eq!(origin("[2001:db8:1:2::3]:5"), origin("[2001:db8:1:2:3::4]:5"));
        assert_ne!(origin("[2001:db8:1:2::3]:5"), origin("[2001:db8:1:3::3]:5"));
    }
}
