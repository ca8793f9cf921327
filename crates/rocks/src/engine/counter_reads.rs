//! Reads of counters' records from the disk, for counters that are not in the table.
//!
//! A batch's records are read before its stripes are locked: first those in RocksDB's memory, then the rest on a thread
//! that may block. A record that has become outdated is read again, the last time under its stripe's lock. Reads change
//! nothing, so a caller may leave at any time.

use std::sync::Arc;

use super::Engine;
use crate::disk::{Disk, Reach, counter_record};
use crate::sync::run_blocking;
use crate::table::CounterRecord;
use crate::table::lookups::Lookups;
use divvy_core::algorithm::Limit;
use divvy_core::clock::Timestamp;
use divvy_store::contract::{Entry, StoreError};

/// Maximum number of records that are read at once. Their blocks stay in memory until all of them are read.
const READ_AT_ONCE: usize = 128;

impl<D: Disk> Engine<D> {
    /// Reads the records of those counters of `entries` that are not in the table. An entry comes with its index in the
    /// batch and its key.
    pub async fn look_up<'a>(
        self: &Arc<Self>,
        lookups: &mut Lookups,
        entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>,
        now: Timestamp,
    ) {
        lookups.begin(&self.table, entries);
        let wanted = lookups.unread();
        if wanted > 0 && self.cache_yield.is_worth_a_try() {
            self.read(lookups, Reach::Memory, now);
            self.cache_yield.note(wanted - lookups.unread(), wanted);
        }
        if lookups.unread() > 0 {
            let Ok(turn) = Arc::clone(&self.readers).acquire_owned().await else { return };
            let (engine, mut unread) = (Arc::clone(self), std::mem::take(lookups));
            let read = run_blocking(move || {
                // The turn ends with the read, even if the caller has left.
                let _turn = turn;
                engine.read(&mut unread, Reach::Disk, now);
                unread
            });
            // While the runtime shuts down, no other thread can continue the read.
            *lookups = read.await.unwrap_or_else(Lookups::exhausted);
        }
    }

    /// Reads the records that have not been read yet, as far as they are within `reach`. If the database cannot be read, its
    /// error becomes the result of each look-up.
    fn read(&self, Lookups { lookups, keys, .. }: &mut Lookups, reach: Reach, now: Timestamp) {
        let mut unread: Vec<_> = lookups.iter_mut().filter(|lookup| lookup.record.is_none()).collect();
        for unread in unread.chunks_mut(READ_AT_ONCE) {
            let wanted: Vec<_> = unread.iter().map(|lookup| keys.get(lookup.key.clone()).unwrap_or_default()).collect();
            let read = self.with_disk(|disk| {
                disk.counters(&wanted, reach, &mut |position, stored| {
                    if let (Some(lookup), Some(key)) = (unread.get_mut(position), wanted.get(position)) {
                        lookup.record = Some(self.decode(key, &lookup.limit, stored, now));
                    }
                });
                Ok(())
            });
            if let Err(error) = read {
                unread.iter_mut().for_each(|lookup| lookup.record = Some(Err(error.clone())));
            }
        }
    }

    /// Returns the record of an entry's counter, as it was looked up, if it is still current. `None` means that the
    /// caller must look it up again.
    pub(super) fn record_for(
        &self,
        (index, key, entry): (usize, &[u8], &Entry),
        now: Timestamp,
        lookups: &mut Lookups,
        evictions: u32,
    ) -> Result<Option<CounterRecord>, StoreError> {
        match lookups.take(index, evictions) {
            Some(record) => record.map(Some),
            None if lookups.may_go_on() => Ok(None),
            None => self.with_disk(|disk| {
                let mut record = Ok(None);
                disk.counters(&[key], Reach::Disk, &mut |_, stored| {
                    record = self.decode(key, &entry.limit, stored, now).map(Some);
                });
                record
            }),
        }
    }

    /// Decodes the stored record of the counter with `key`, and reports damage.
    fn decode(
        &self,
        key: &[u8],
        limit: &Limit,
        stored: Result<Option<&[u8]>, StoreError>,
        now: Timestamp,
    ) -> Result<CounterRecord, StoreError> {
        let stored = stored.inspect_err(|error| self.damage.note_read(error, now))?;
        let record = stored.map(|stored| counter_record::decode_as(limit, stored)).transpose();
        record.inspect_err(|error| self.damage.note_record(key, error))
    }
}
