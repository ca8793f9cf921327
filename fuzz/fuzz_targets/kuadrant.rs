//! Kuadrant's messages: any bytes are either a request or rejected. Either all descriptors of a request are read as
//! operations in its domain, or the request is rejected. Times and costs are in range.

#![no_main]

use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::server::grpc::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use divvy::server::grpc::kuadrant::{MAX_DESCRIPTORS, Subject, reported_cost, ttl_seconds};
use divvy::rules::Operation;
use libfuzzer_sys::fuzz_target;
use prost::Message;

const MAX_PAIRS: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = RateLimitRequest::decode(bytes) {
        read(&request.domain, request.descriptors.len(), Subject::new(&request.domain, &request.descriptors));
        for descriptor in &request.descriptors {
            let cost = reported_cost(&request, descriptor);
            assert!(cost > 0 || descriptor.hits_addend == Some(0));
        }
    }
    if let Ok(request) = ReserveRequest::decode(bytes) {
        assert_eq!(ReserveRequest::decode(&*request.encode_to_vec()).as_ref(), Ok(&request));
        read(&request.domain, request.descriptors.len(), Subject::new(&request.domain, &request.descriptors));
        if let Some(ttl) = &request.ttl {
            let seconds = ttl_seconds(ttl);
            assert!(seconds == u32::MAX || i64::from(seconds) <= ttl.seconds.saturating_add(3).max(0));
        }
    }
    if let Ok(request) = CommitRequest::decode(bytes) {
        assert_eq!(CommitRequest::decode(&*request.encode_to_vec()).as_ref(), Ok(&request));
        read(&request.domain, request.descriptors.len(), Subject::new(&request.domain, &request.descriptors));
    }
});

fn read(domain: &[u8], descriptors: usize, subject: Subject) {
    assert_eq!(subject.is_of_several(), descriptors > 1);
    let domain = String::from_utf8_lossy(domain);
    let mut operations = 0;
    let result = subject.read(MAX_PAIRS, &mut Operation::new(), |operation, _| {
        operations += 1;
        assert!(operation.iter().count() <= MAX_PAIRS);
        assert!(operation.iter().any(|pair| pair == ("domain", &*domain)));
    });
    assert!(operations <= MAX_DESCRIPTORS);
    if result.is_ok() {
        assert_eq!(operations, descriptors.max(1));
    }
}
