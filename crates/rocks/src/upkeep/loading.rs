//! Loads counters into memory after a start: a thread reads all records once, while hits are served.
//!
//! If all counters found room, the table is complete when the thread has finished: a counter that is not in it does not
//! exist. The first hit of a new actor then needs no look-up. The thread also records which counters have records,
//! because the count of counters depends on it. Hits never wait for the thread. Until it has finished, they look up the
//! records that they need.
//!
//! A stripe that a counter has left for lack of room needs look-ups until the next start, even if all counters would
//! fit again. To find that out would take another pass over all records, and room that expired counters still occupy.

use std::time::Duration;

use crate::disk::counter_record::Decoder;
use crate::store_core::StoreCore;
use divvy_store::contract::StoreError;
use divvy_store::outage::Outage;

/// Pause between checks whether counters have to be loaded.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of records that are noted at once, while there is no write-back: 64 a stripe, about 5 MB.
const AT_ONCE: usize = 64 << 10;

impl StoreCore {
    pub fn load_loop(&self) {
        let mut outage = Outage::of("loading counters", "counters are looked up in RocksDB when they are needed");
        loop {
            if !self.engine.table.knows_records() && self.engine.is_well() {
                outage.note(&self.load());
            }
            if self.stopped_within(INTERVAL) {
                return;
            }
        }
    }

    /// Notes every record in the table, and loads counters while there is room.
    fn load(&self) -> Result<(), StoreError> {
        let (engine, table) = (&self.engine, &self.engine.table);
        engine.with_disk(|database| {
            let mut records = engine.without_write_backs(|| {
                table.forget_records();
                database.records()
            });
            let mut decoder = Decoder::default();
            loop {
                let some = records.by_ref().take(AT_ONCE).map(|record| {
                    let (key, value) = record?;
                    Ok((table.hasher.hash(&key), decoder.decode(&key, &value).ok()))
                });
                let mut some = some.collect::<Result<Vec<_>, StoreError>>()?;
                let count = some.len();
                // They are sorted by stripe, so that most of a stripe is in the processor's caches.
                some.sort_unstable_by_key(|(hash, _)| hash.stripe());
                engine.without_write_backs(|| {
                    some.into_iter().for_each(|(hash, record)| table.note_record(hash, record))
                });
                if count < AT_ONCE {
                    table.noted_records();
                    return Ok(());
                }
                // A database that has failed is not reopened before this ends.
                if *self.stopping.lock() || !self.engine.is_well() {
                    return Ok(());
                }
            }
        })
    }
}
