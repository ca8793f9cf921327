//! Stored values: any bytes are either a state of the counter's algorithm or rejected, and either a record or rejected.
//! A value that was read and written again reads the same.

#![no_main]

mod limit;

use divvy::algorithm::State;
use divvy::clock::Timestamp;
use divvy::store::value;
use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let Ok(limit) = limit::read_limit(&mut input) else { return };
    let bytes = input.take_rest();
    if let Ok(state) = value::decode(&limit, bytes) {
        let expires = value::expiry(bytes).expect("a value has an expiry");
        let mut written = Vec::new();
        value::encode(&state, expires, &mut written);
        // Writing rounds the ends of reservations.
        if let Ok(rounded) = value::decode(&limit, &written) {
            let mut again = Vec::new();
            value::encode(&rounded, expires, &mut again);
            assert_eq!(again, written);
        } else {
            assert!(matches!(state, State::Reserved(_)), "{state:?} cannot be read back");
        }
    }
    if let Ok(record) = value::decode_record(bytes) {
        let mut written = Vec::new();
        value::encode_record(&record, &mut written);
        assert_eq!(value::decode_record(&written).ok(), Some(record));
        record.found(Timestamp::from_nanos(bytes.len() as u64));
    }
});
