//! The origin of requests. The store bounds the number of records that clients of one address can create.
//!
//! A future that answers a request over HTTP or gRPC runs in the [`scope`] of its connection's address.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};

use super::admission::network;
use crate::limiter::{Limiter, Origin, PlanBuilder, Scope};

tokio::task_local! {
    static ORIGIN: Origin;
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
pub fn scope<F: Future>(peer: SocketAddr, answering: F) -> impl Future<Output = F::Output> {
    ORIGIN.scope(for_address(peer), answering)
}

/// Begins a plan for the client in scope. See [`Limiter::begin`].
pub fn begin(limiter: &Limiter, builder: &mut PlanBuilder) {
    limiter.begin(builder, &Scope::EVERYTHING);
    builder.set_origin(ORIGIN.try_with(|origin| *origin).ok());
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
