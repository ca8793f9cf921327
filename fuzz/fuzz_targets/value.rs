//! Stored values: any bytes are a state of the bucket's algorithm or refused, and what is read is written the same.
#![no_main]

use divvy::algorithm::{FixedWindow, InvalidLimit, LeakyBucket, Limit, SlidingLog, SlidingWindow, TokenBucket};
use divvy::store::value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let limit = limit(*choice).expect("a valid limit");
    let expiry = value::expiry(bytes);
    if let Ok(state) = value::decode(&limit, bytes) {
        let expires = expiry.expect("a value has an expiry");
        let mut written = Vec::new();
        value::encode(&state, expires, &mut written);
        assert_eq!(written, bytes);
    }
});

/// A limit of each algorithm in turn.
fn limit(choice: u8) -> Result<Limit, InvalidLimit> {
    Ok(match choice % 5 {
        0 => Limit::FixedWindow(FixedWindow::new(9, 70)?),
        1 => Limit::SlidingWindow(SlidingWindow::new(9, 70)?),
        2 => Limit::SlidingLog(SlidingLog::new(9, 70)?),
        3 => Limit::TokenBucket(TokenBucket::new(9, 2, 30)?),
        _ => Limit::LeakyBucket(LeakyBucket::new(9, 4, 70)?),
    })
}
