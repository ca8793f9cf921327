//! Stored values: any bytes are a state of the bucket's algorithm or refused, and what is read is written the same.
#![no_main]

use std::num::NonZeroU64;

use divvy::algorithm::{FixedWindow, Limit};
use divvy::store::value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limit = Limit::FixedWindow(FixedWindow { credits: NonZeroU64::MIN, window_ns: NonZeroU64::MIN });
    let expiry = value::expiry(bytes);
    if let Ok(state) = value::decode(&limit, bytes) {
        let expires = expiry.expect("a value has an expiry");
        let mut written = Vec::new();
        value::encode(&state, expires, &mut written);
        assert_eq!(written, bytes);
    }
});
