//! The replay of the journal when the store is opened.
//!
//! One thread reads the journal in portions. Several threads decode a portion each, and sort its changes by stripe. Then each of them
//! loads the changes of one part of the table, portion after portion, because the changes of one counter must be made in order. So it
//! makes many changes of a stripe while the stripe is in the processor's caches. Nothing else happens in the store during the replay.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use super::Engine;
use crate::disk::{Decoder, Disk};
use crate::hot_table::maintenance::ReplayedChanges;
use crate::hot_table::{HotTable, stripes};
use crate::journal::{self, Change, SortedChanges};
use divvy_store::{StoreError, record_key, value};

/// Maximum number of threads. More would have nothing to do, because one thread reads the journal for all.
const MAX_THREADS: usize = 4;
/// Length of a portion (bytes). Its decoded windows take as much again. Other states take up to four times as much.
const PORTION_BYTES: usize = 4 << 20;

/// Records that follow each other in the journal.
#[derive(Debug, Default)]
struct Portion {
    bytes: Vec<u8>,
    /// The segment of each record, and where the record ends.
    records: Vec<(u32, usize)>,
}

impl<D: Disk> Engine<D> {
    /// Loads the counters in the journal that the last process left. Nothing else may happen during this time. A value
    /// that cannot be decoded becomes the counter's own record, unchanged.
    ///
    /// # Errors
    /// The journal cannot be read, or is damaged.
    pub fn replay(&self) -> Result<(), StoreError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let undecoded = thread::scope(|scope| {
            let (sender, portions) = sync_channel(threads);
            // The memory of a portion is used again. New memory, which the system clears page by page, cost a sixth of the replay.
            let (used_sender, used) = channel();
            let reader = scope.spawn(move || self.read_portions(&sender, &used));
            let loaded = self.load_portions(portions, &used_sender, threads);
            let read = reader.join().unwrap_or_else(|_| Err(ended()));
            loaded.and_then(|undecoded| read.map(|()| undecoded))
        })?;
        self.inherit();
        if undecoded.is_empty() {
            return Ok(());
        }
        self.with_disk(|disk| disk.write_counters(&SortedChanges::new(&undecoded)))
    }

    /// Loads the portions, and then drops their channel, so that the reader ends in any case. Sends the portions back to
    /// `used`. Returns staged changes that cannot be decoded.
    fn load_portions(
        &self,
        portions: Receiver<Portion>,
        used: &Sender<Portion>,
        threads: usize,
    ) -> Result<Vec<u8>, StoreError> {
        let mut decoded: Vec<_> = (0..threads).map(|_| DecodedPortion::new(&self.table)).collect();
        let mut undecoded = Vec::new();
        loop {
            let portions: Vec<_> = portions.iter().take(threads).collect();
            if portions.is_empty() {
                return Ok(undecoded);
            }
            run_all(decoded.iter_mut().zip(&portions).map(|(decoded, portion)| || decoded.decode(portion)))?;
            decoded.iter_mut().for_each(|decoded| undecoded.append(&mut decoded.undecoded));
            // The reader may have ended.
            portions.into_iter().for_each(|portion| drop(used.send(portion)));
            self.load(&mut decoded)?;
        }
    }

    fn read_portions(&self, portions: &SyncSender<Portion>, used: &Receiver<Portion>) -> Result<(), StoreError> {
        let mut portion = Portion::default();
        self.with_disk(|disk| {
            disk.read_journal(0, u64::MAX, &mut |number, record| {
                portion.bytes.extend_from_slice(record);
                portion.records.push((self.table.marks.open(), portion.bytes.len()));
                self.note_appended(number, record);
                if portion.bytes.len() < PORTION_BYTES {
                    return Ok(());
                }
                let mut next = used.try_recv().unwrap_or_default();
                next.bytes.clear();
                next.records.clear();
                portions.send(std::mem::replace(&mut portion, next)).map_err(|_| ended())
            })
        })?;
        portions.send(portion).map_err(|_| ended())
    }

    /// Loads the changes of portions, which are in the order of the journal.
    fn load(&self, portions: &mut [DecodedPortion<'_>]) -> Result<(), StoreError> {
        let stripes_a_part = stripes().div_ceil(portions.len());
        let mut parts: Vec<_> = portions.iter().map(|_| Vec::new()).collect();
        for portion in portions {
            let of_portion = portion.changes.chunks_mut(stripes_a_part);
            parts.iter_mut().zip(of_portion).for_each(|(part, changes)| part.push(changes));
        }
        run_all((0..).step_by(stripes_a_part).zip(parts).map(|(first, mut part)| {
            move || {
                for offset in 0..stripes_a_part {
                    let of_stripe = part.iter_mut().filter_map(|changes| changes.get_mut(offset));
                    of_stripe.for_each(|changes| self.table.replay(first + offset, changes));
                }
                Ok(())
            }
        }))
    }
}

/// Runs each piece of work on a thread.
///
/// # Errors
/// One of them fails.
fn run_all<W: FnOnce() -> Result<(), StoreError> + Send>(work: impl Iterator<Item = W>) -> Result<(), StoreError> {
    thread::scope(|scope| {
        let threads: Vec<_> = work.map(|work| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended())));
        results.fold(Ok(()), Result::and)
    })
}

/// The decoded changes of a portion. It is reused from portion to portion.
struct DecodedPortion<'a> {
    table: &'a HotTable,
    decoder: Decoder,
    /// The changes of each stripe.
    changes: Vec<ReplayedChanges>,
    /// Staged changes that cannot be decoded.
    undecoded: Vec<u8>,
}

impl<'a> DecodedPortion<'a> {
    fn new(table: &'a HotTable) -> Self {
        let changes = (0..stripes()).map(|_| ReplayedChanges::default()).collect();
        Self { table, decoder: Decoder::default(), changes, undecoded: Vec::new() }
    }

    fn decode(&mut self, Portion { bytes, records }: &Portion) -> Result<(), StoreError> {
        let mut start = 0;
        for (segment, end) in records {
            let record = bytes.get(start..*end).unwrap_or_default();
            journal::each_change(record, |change| self.decode_change(*segment, change))?;
            start = *end;
        }
        Ok(())
    }

    /// Decodes a change. One that this version cannot decode is kept as it is.
    fn decode_change(&mut self, segment: u32, Change { key, value }: Change<'_>) {
        let hash = self.table.hasher.hash_of(key);
        let Some(changes) = self.changes.get_mut(hash.stripe()) else { return };
        let is_forgotten = value.is_empty();
        if record_key::is_record(key) {
            let record = if is_forgotten { Ok(None) } else { value::decode_record(value).map(Some) };
            if let Ok(record) = record {
                record.iter().for_each(|record| self.decoder.note_record(key, record));
                return changes.push_record(hash, record);
            }
        } else {
            // Other changes of an invalid key are among the undecoded ones. One that forgets it must keep its position among them.
            let decoded = if is_forgotten {
                self.decoder.limit(key).map(|_| None)
            } else {
                self.decoder.decode(key, value).map(Some)
            };
            if let Ok(counter) = decoded {
                return changes.push_counter(hash, counter, segment);
            }
        }
        journal::stage(&mut self.undecoded, key, |out| out.extend_from_slice(value));
    }
}

fn ended() -> StoreError {
    StoreError::new("a thread that replays the journal has ended")
}
