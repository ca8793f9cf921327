//! Envoy's messages: any bytes are either a request or rejected. Each descriptor of a request is either an operation in
//! its domain or rejected. An encoded request decodes to the same request.

#![no_main]

use std::sync::LazyLock;

use divvy::metrics::Metrics;
use divvy::rules::Operation;
use divvy::server::grpc::descriptors::DescriptorReader;
use divvy::server::grpc::envoy::describe;
use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message;

const MAX_PAIRS: usize = 8;
static READER: LazyLock<DescriptorReader> =
    LazyLock::new(|| DescriptorReader { max_pairs: MAX_PAIRS, metrics: Metrics::new() });

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    let again = RateLimitRequest::decode(&*request.encode_to_vec()).expect("written text can be read");
    assert_eq!(again, request);
    let mut operation = Operation::new();
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let Ok(ask) = READER.read_descriptor(&request, index, descriptor, &mut operation) else { continue };
        let domain = String::from_utf8_lossy(&request.domain);
        assert!(operation.iter().any(|pair| pair == ("domain", &*domain)));
        assert!((1..=MAX_PAIRS).contains(&operation.iter().count()));
        if let Some(limit) = ask.own_limit.and_then(|own| own.limit()) {
            describe("its own".into(), &limit);
        }
    }
});
