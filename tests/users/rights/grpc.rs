//! Calls of each kind over gRPC.

use axum::http::Request;
use bytes::Bytes;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy::protocol::envoy::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::protocol::envoy::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use divvy::protocol::rpc::Rpc;

use crate::users::http2::call;

/// Returns pairs such as `api=a user=ann` as a descriptor.
pub fn descriptor(pairs: &str) -> RateLimitDescriptor {
    let entries = pairs.split(' ').map(|pair| {
        let (key, value) = pair.split_once('=').unwrap();
        Entry { key: key.to_owned().into(), value: value.to_owned().into() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// Returns a call with these descriptors. A commit is of the reservation with this id.
pub fn request(rpc: Rpc, authorization: &str, descriptors: Vec<RateLimitDescriptor>, id: &str) -> Request<Bytes> {
    let domain = Bytes::from_static(b"shop");
    match rpc {
        Rpc::EnvoyShouldRateLimit | Rpc::KuadrantCheckRateLimit | Rpc::KuadrantReport => {
            let message = RateLimitRequest { domain, descriptors, ..RateLimitRequest::default() };
            call(rpc.path(), authorization, &message)
        }
        Rpc::KuadrantReserve => {
            let message = ReserveRequest { domain, descriptors, amount: 3, ttl: None };
            call(rpc.path(), authorization, &message)
        }
        Rpc::KuadrantCommit => {
            let reservation_id = Bytes::copy_from_slice(id.as_bytes());
            let message = CommitRequest { domain, descriptors, reservation_id, actual_amount: 2 };
            call(rpc.path(), authorization, &message)
        }
    }
}
