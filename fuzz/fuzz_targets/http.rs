//! Bodies of HTTP requests: any bytes are either hits, whose operations have at most as many pairs as allowed, or
//! rejected with a problem that can be written as JSON.

#![no_main]

use divvy::rules::Operation;
use divvy::server::http::api::body;
use divvy::server::http::api::hits::{HitRequest, HitsRequest};
use libfuzzer_sys::fuzz_target;

const MAX_PAIRS: usize = 8;

fuzz_target!(|bytes: &[u8]| {
    if let Err(problem) = body::parse::<HitsRequest>(bytes) {
        serde_json::to_vec(&problem).expect("a problem is JSON");
    }
    match body::parse::<HitRequest>(bytes) {
        Ok(hit) => {
            let mut operation = Operation::new();
            match hit.operation.read(bytes, MAX_PAIRS, "/operation", &mut operation) {
                Ok(()) => assert!(operation.iter().count() <= MAX_PAIRS),
                Err(problem) => {
                    serde_json::to_vec(&problem).expect("a problem is JSON");
                }
            }
        }
        Err(problem) => {
            serde_json::to_vec(&problem).expect("a problem is JSON");
        }
    }
});
