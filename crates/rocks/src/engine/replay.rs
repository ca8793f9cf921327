//! The replay of the journal when the store is opened.
//!
//! One thread reads the journal in portions, and several decode these and load their changes into the table. The changes of one
//! counter must be made in order, so a portion's thread loads a run of stripes after the portion before. It makes the changes of a
//! stripe together, while the stripe is in the processor's caches. Nothing else happens in the store during the replay.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use super::Engine;
use crate::disk::{Decoder, Disk};
use crate::hot_table::maintenance::{ReplayedChange, ReplayedValue};
use crate::hot_table::{HotTable, KeyHash, KeyHasher, stripes};
use crate::journal::{self, Change, SortedChanges};
use crate::sync::Mutex;
use divvy_store::{StoreError, record_key, value};

/// Length of a portion (bytes): about forty changes for each stripe. The journals of tests are short.
const PORTION: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// Maximum number of threads, because one thread reads the journal for all.
const MAX_THREADS: usize = 4;
/// Number of stripes that a portion loads at a time.
const RUN: usize = 64;

/// Consecutive journal records.
struct Portion {
    /// Each record comes with the number of its segment.
    records: Vec<(u32, Box<[u8]>)>,
    bytes: usize,
    /// Gets a message for each run of stripes that the portion before has loaded. Closed if there is none, or if its
    /// thread has ended.
    before: Receiver<()>,
    /// The other end of the next portion's channel.
    next: Option<Sender<()>>,
}

impl Portion {
    fn after(before: Receiver<()>) -> Self {
        Self { records: Vec::new(), bytes: 0, before, next: None }
    }
}

impl<D: Disk> Engine<D> {
    /// Loads the counters in the journal that the last process left. Nothing else may happen during this time. A value
    /// that cannot be decoded becomes the counter's own record, unchanged.
    ///
    /// # Errors
    /// The journal cannot be read, or is damaged.
    pub fn replay(&self) -> Result<(), StoreError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let undecoded = Mutex::default();
        thread::scope(|scope| {
            let (sender, portions) = sync_channel(threads);
            // Only the threads keep the receiver, so that sending fails once all of them have ended.
            let portions = Arc::new(Mutex::new(portions));
            let start = |_| {
                let (portions, mut replay) = (Arc::clone(&portions), Replay::new(&self.table, &undecoded));
                scope.spawn(move || replay.run(&portions))
            };
            let threads: Vec<_> = (0..threads).map(start).collect();
            drop(portions);
            let mut portion = Portion::after(channel().1);
            let read = self.with_disk(|disk| {
                disk.read_journal(0, u64::MAX, &mut |number, record| {
                    portion.records.push((self.table.marks.open(), record.into()));
                    portion.bytes += record.len();
                    self.note_appended(number, record);
                    if portion.bytes < PORTION {
                        return Ok(());
                    }
                    let (loaded, before) = channel();
                    portion.next = Some(loaded);
                    sender.send(std::mem::replace(&mut portion, Portion::after(before))).map_err(|_| ended())
                })
            });
            let read = read.and_then(|()| sender.send(portion).map_err(|_| ended()));
            drop(sender);
            let loaded = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended())));
            loaded.fold(Ok(()), Result::and).and(read)
        })?;
        let undecoded = undecoded.lock();
        if undecoded.is_empty() {
            return Ok(());
        }
        self.with_disk(|disk| disk.write_counters(&SortedChanges::new(&undecoded)))
    }
}

/// Loads portions of the journal.
struct Replay<'a> {
    table: &'a HotTable,
    decoder: Decoder,
    /// The prefix of an earlier key's rule, in whole words, and the hasher for the rest of such keys.
    rule: Option<(Box<[u8]>, KeyHasher)>,
    /// Changes that are not loaded yet, by stripe.
    pending: Vec<Vec<ReplayedChange>>,
    /// Staged changes of the portion that cannot be decoded.
    undecoded: Vec<u8>,
    /// Those of all portions before.
    all_undecoded: &'a Mutex<Vec<u8>>,
}

impl<'a> Replay<'a> {
    fn new(table: &'a HotTable, all_undecoded: &'a Mutex<Vec<u8>>) -> Self {
        let pending = (0..stripes()).map(|_| Vec::new()).collect();
        Self { table, decoder: Decoder::default(), rule: None, pending, undecoded: Vec::new(), all_undecoded }
    }

    fn run(&mut self, portions: &Mutex<Receiver<Portion>>) -> Result<(), StoreError> {
        let mut result = Ok(());
        loop {
            let Ok(portion) = portions.lock().recv() else { return result };
            for (segment, record) in portion.records {
                result = result.and(self.read(segment, &record));
            }
            for (run, stripes) in self.pending.chunks_mut(RUN).enumerate() {
                // If the portion before is loaded, or its thread has ended, this fails at once.
                let _ = portion.before.recv();
                self.all_undecoded.lock().append(&mut self.undecoded);
                for (stripe, changes) in (run * RUN..).zip(stripes) {
                    self.table.replay(stripe, changes);
                }
                portion.next.iter().for_each(|next| next.send(()).unwrap_or_default());
            }
        }
    }

    fn read(&mut self, segment: u32, record: &[u8]) -> Result<(), StoreError> {
        journal::each_change(record, |Change { key, value }| {
            let hash = self.hash(key);
            match (self.decode(key, value), self.pending.get_mut(hash.stripe())) {
                (Some(value), Some(changes)) => changes.push(ReplayedChange { hash: hash.high, value, segment }),
                _ => drop(journal::stage(&mut self.undecoded, key, |out| out.extend_from_slice(value))),
            }
        })
    }

    /// Hashes a key. The prefix of a rule's counters is hashed once.
    fn hash(&mut self, key: &[u8]) -> KeyHash {
        let hasher = &self.table.hasher;
        if record_key::is_record(key) {
            return hasher.hash_of(key);
        }
        if let Some((prefix, after)) = &self.rule
            && let Some(rest) = key.strip_prefix(&**prefix)
        {
            return after.hash(rest);
        }
        let prefix = self.decoder.prefix().as_chunks::<{ size_of::<u64>() }>().0.as_flattened();
        self.rule = (!prefix.is_empty()).then(|| (prefix.into(), hasher.after(prefix)));
        hasher.hash(key)
    }

    /// Decodes a change. Returns `None` if this version cannot decode it.
    fn decode(&mut self, key: &[u8], value: &[u8]) -> Option<ReplayedValue> {
        let is_forgotten = value.is_empty();
        if record_key::is_record(key) {
            let record = if is_forgotten { None } else { Some(Box::new(value::decode_record(value).ok()?)) };
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
}

fn ended() -> StoreError {
    StoreError::new("a thread that replays the journal has ended")
}
