//! Journal records: any bytes, of either format, are changes up to an error. Packing the changes again makes a record
//! with the same changes. Replaying a record twice has the same effect as replaying it once.

#![no_main]

use std::collections::BTreeMap;

use divvy::store::journal::{Change, Packer, each_change, restage, stage, staged};
use libfuzzer_sys::fuzz_target;

/// Counters after a replay: their values, without those that were forgotten.
type Counters = BTreeMap<Vec<u8>, Vec<u8>>;

fuzz_target!(|record: &[u8]| {
    let mut counters = Counters::new();
    let whole = replay(record, &mut counters);
    let once = counters.clone();
    assert_eq!(replay(record, &mut counters), whole);
    assert_eq!(counters, once);

    let (mut changes, mut last) = (Vec::new(), None);
    let _ = each_change(record, |change| {
        last =
            Some((stage(&mut changes, change.key, |out| out.extend_from_slice(change.value)), change.value.to_vec()));
    });
    let mut packed = Vec::new();
    Packer::default().pack(&changes, &mut packed);
    let mut again = Counters::new();
    assert!(replay(&packed, &mut again), "packed changes can be read");
    assert_eq!(again, once);
    if let Some((at, value)) = last {
        let later: Vec<u8> = value.iter().map(|byte| !byte).collect();
        assert!(
            restage(&mut changes, at, |out| out.extend_from_slice(&later)),
            "a value of the same length takes its place"
        );
        let restaged = staged(&changes).last();
        assert_eq!(restaged.map(|change| change.value.to_vec()), Some(later));
    }
});

/// Replays a record. Returns whether it was complete.
fn replay(record: &[u8], counters: &mut Counters) -> bool {
    each_change(record, |Change { key, value }| {
        if value.is_empty() {
            counters.remove(key);
        } else {
            // The compaction filter and the table call this for any value.
            let _ = divvy::store::value::expiry(value);
            counters.insert(key.to_vec(), value.to_vec());
        }
    })
    .is_ok()
}
