//! The replay of the journal when the store is opened.
//!
//! Several threads load the journal's changes into the table. The changes of one counter must be made in order, so each thread has a
//! part of the table to itself. It reads every record, and makes the changes of its part. It makes many changes of a stripe at a time,
//! while the stripe is in the processor's caches. Nothing else happens in the store during the replay.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::Engine;
use crate::disk::{Decoder, Disk};
use crate::hot_table::maintenance::{ReplayedChange, ReplayedValue};
use crate::hot_table::{HotTable, stripes};
use crate::journal::{self, Change, SortedChanges};
use divvy_store::{StoreError, record_key, value};

/// Maximum number of records that wait for each thread. A record may have a megabyte.
const RECORDS_AHEAD: usize = 4;
/// Maximum number of threads. More would have nothing to do, because one thread reads the journal for all.
const MAX_THREADS: usize = 4;

/// Changes a stripe that a thread collects before it makes them: with two threads about 10 MB.
const REPLAYED_AT_ONCE: usize = 128;

/// A journal record and the number of its segment.
type SegmentRecord = (u32, Arc<[u8]>);

impl<D: Disk> Engine<D> {
    /// Loads the counters in the journal that the last process left. Nothing else may happen during this time. A value
    /// that cannot be decoded becomes the counter's own record, unchanged.
    ///
    /// # Errors
    /// The journal cannot be read, or is damaged.
    pub fn replay(&self) -> Result<(), StoreError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let mut replays: Vec<_> = (0..threads).map(|part| Replay::new(&self.table, (part, threads))).collect();
        thread::scope(|scope| {
            let started = replays.iter_mut().map(|replay| {
                let (sender, records) = sync_channel::<SegmentRecord>(RECORDS_AHEAD);
                let read_all = move || {
                    let read = records.into_iter().try_for_each(|(segment, record)| replay.read(segment, &record));
                    read.map(|()| replay.load())
                };
                (sender, scope.spawn(read_all))
            });
            let (senders, threads): (Vec<_>, Vec<_>) = started.unzip();
            let read = self.with_disk(|disk| {
                disk.read_journal(0, u64::MAX, &mut |number, record| {
                    let shared: SegmentRecord = (self.table.marks.open(), record.into());
                    // A thread that takes no more records has failed. Joining it returns its error.
                    if !senders.iter().all(|sender| sender.send(shared.clone()).is_ok()) {
                        return Err(ended());
                    }
                    self.note_appended(number, record);
                    Ok(())
                })
            });
            drop(senders);
            let loaded = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended())));
            loaded.fold(Ok(()), Result::and).and(read)
        })?;
        let undecoded = replays.into_iter().map(|replay| replay.undecoded).filter(|changes| !changes.is_empty());
        self.with_disk(|disk| {
            undecoded.into_iter().try_for_each(|changes| disk.write_counters(&SortedChanges::new(&changes)))
        })
    }
}

/// Loads the changes of one part of the table.
struct Replay<'a> {
    table: &'a HotTable,
    part: usize,
    parts: usize,
    decoder: Decoder,
    /// Changes that are not loaded yet, by stripe.
    pending: Vec<Vec<ReplayedChange>>,
    /// Number of changes in `pending`.
    count: usize,
    /// Staged changes that cannot be decoded.
    undecoded: Vec<u8>,
}

impl<'a> Replay<'a> {
    fn new(table: &'a HotTable, (part, parts): (usize, usize)) -> Self {
        let pending = (0..stripes()).map(|_| Vec::new()).collect();
        Self { table, part, parts, decoder: Decoder::default(), pending, count: 0, undecoded: Vec::new() }
    }

    fn read(&mut self, segment: u32, record: &[u8]) -> Result<(), StoreError> {
        journal::each_change(record, |Change { key, value }| {
            let hash = self.table.hasher.hash_of(key);
            if hash.stripe() % self.parts != self.part {
                return;
            }
            match self.decode(key, value) {
                None => drop(journal::stage(&mut self.undecoded, key, |out| out.extend_from_slice(value))),
                Some(value) => {
                    if let Some(changes) = self.pending.get_mut(hash.stripe()) {
                        changes.push(ReplayedChange { hash, value, segment });
                        self.count += 1;
                    }
                }
            }
        })?;
        if self.count >= REPLAYED_AT_ONCE * stripes() {
            self.load();
        }
        Ok(())
    }

    /// Decodes a change. Returns `None` if this version cannot decode it.
    fn decode(&mut self, key: &[u8], value: &[u8]) -> Option<ReplayedValue> {
        let is_forgotten = value.is_empty();
        if record_key::is_record(key) {
            let record = if is_forgotten { None } else { Some(value::decode_record(value).ok()?) };
            record.iter().for_each(|record| self.decoder.note_record(key, record));
            return Some(ReplayedValue::Record(record));
        }
        if is_forgotten {
            // Other changes of an invalid key are among the undecoded ones, and this one must keep its position among
            // them.
            return self.decoder.limit(key).is_ok().then_some(ReplayedValue::Counter(None));
        }
        self.decoder.decode(key, value).ok().map(|state| ReplayedValue::Counter(Some(state)))
    }

    fn load(&mut self) {
        self.count = 0;
        for (stripe, changes) in self.pending.iter_mut().enumerate() {
            self.table.replay(stripe, changes.drain(..));
        }
    }
}

fn ended() -> StoreError {
    StoreError::new("a thread that replays the journal has ended")
}
