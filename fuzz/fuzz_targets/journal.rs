//! Journal records: any bytes are changes, of which the last may be cut short; changes that are written again are the same
//! record; and replaying a record twice leaves what replaying it once does.

#![no_main]

use std::collections::BTreeMap;

use divvy::store::journal::{append, changes, overwrite_with};
use divvy::store::value;
use libfuzzer_sys::fuzz_target;

/// What a replay makes of the counters: the value of each, unless it is forgotten.
type Counters = BTreeMap<Vec<u8>, Vec<u8>>;

fuzz_target!(|record: &[u8]| {
    let mut counters = Counters::new();
    let whole = replay(record, &mut counters);
    let once = counters.clone();
    assert_eq!(replay(record, &mut counters), whole);
    assert_eq!(counters, once);

    let (mut again, mut last) = (Vec::new(), None);
    for change in changes(record).map_while(Result::ok) {
        last = Some((append(&mut again, change.key, change.value), change));
    }
    assert!(record.starts_with(&again) && (!whole || again.len() == record.len()));
    if let Some((at, change)) = last {
        let later: Vec<u8> = change.value.iter().map(|byte| !byte).collect();
        assert!(overwrite_with(&mut again, at, |out| out.extend_from_slice(&later)), "a value of the same length takes its place");
        let overwritten = changes(&again).map_while(Result::ok).last();
        assert_eq!(overwritten.map(|change| change.value.to_vec()), Some(later));
    }
});

/// Whether all of the record could be replayed.
fn replay(record: &[u8], counters: &mut Counters) -> bool {
    let mut errors = 0;
    for change in changes(record) {
        assert_eq!(errors, 0, "nothing follows an error");
        match change {
            Ok(change) if change.value.is_empty() => {
                counters.remove(change.key);
            }
            Ok(change) => {
                // The compaction filter and the table ask this of any value.
                let _ = value::expiry(change.value);
                counters.insert(change.key.to_vec(), change.value.to_vec());
            }
            Err(_) => errors += 1,
        }
    }
    errors == 0
}
