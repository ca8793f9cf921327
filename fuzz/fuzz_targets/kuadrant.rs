//! Kuadrant's messages: any bytes are either a request or rejected. Either all descriptors of a request are read as
//! operations in its domain, or the request is rejected. Times and costs are in range.

#![no_main]

use std::sync::LazyLock;

use divvy::metrics::Metrics;
use divvy::rules::Operation;
use divvy::server::grpc::descriptors::DescriptorReader;
use divvy::server::grpc::kuadrant::{MAX_DESCRIPTORS, Subject, reported_cost, ttl_seconds};
use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::server::grpc::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use libfuzzer_sys::fuzz_target;
use prost::Message;

const MAX_PAIRS: usize = 8;
static READER: LazyLock<DescriptorReader> =
    LazyLock::new(|| DescriptorReader { max_pairs: MAX_PAIRS, metrics: Metrics::new() });

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = RateLimitRequest::decode(bytes) {
        read((&request.domain, &request.descriptors));
        for descriptor in &request.descriptors {
            let cost = reported_cost(&request, descriptor);
            assert!(cost > 0 || descriptor.hits_addend == Some(0));
        }
    }
    if let Ok(request) = ReserveRequest::decode(bytes) {
        assert_eq!(ReserveRequest::decode(&*request.encode_to_vec()).as_ref(), Ok(&request));
        read((&request.domain, &request.descriptors));
        if let Some(ttl) = &request.ttl {
            let seconds = ttl_seconds(ttl);
            assert!(seconds == u32::MAX || i64::from(seconds) <= ttl.seconds.saturating_add(3).max(0));
        }
    }
    if let Ok(request) = CommitRequest::decode(bytes) {
        assert_eq!(CommitRequest::decode(&*request.encode_to_vec()).as_ref(), Ok(&request));
        read((&request.domain, &request.descriptors));
    }
});

fn read(subject: Subject<'_>) {
    let (domain, descriptors) = subject;
    let domain = String::from_utf8_lossy(domain);
    let mut operations = 0;
    let result = READER.read(subject, &mut Operation::new(), |operation, _| {
        operations += 1;
        assert!(operation.iter().count() <= MAX_PAIRS);
        assert!(operation.iter().any(|pair| pair == ("domain", &*domain)));
    });
    assert!(operations <= MAX_DESCRIPTORS);
    if result.is_ok() {
        assert_eq!(operations, descriptors.len().max(1));
    }
}
