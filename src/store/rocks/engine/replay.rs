//! Replaying the journal when the store is opened: its changes are loaded into the table by several threads.
//!
//! The changes of one counter are made in their order, so each thread has a part of the table to itself: it reads every
//! record, and makes the changes of its part. It makes them stripe by stripe, many at a time: then the processor finds
//! most of a stripe in its caches. Nothing else happens in the store meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::Engine;
use crate::store::contract::StoreError;
use crate::store::rocks::commit::journal::{self, Change};
use crate::store::rocks::commit::sorted_changes::SortedChanges;
use crate::store::rocks::disk::Disk;
use crate::store::rocks::disk::counter_record::Decoder;
use crate::store::rocks::table::loading::{Found, Replayed};
use crate::store::rocks::table::{STRIPES, Table};
use crate::store::{record_key, value};

/// Records that wait for each thread at most: one may be a megabyte.
const AHEAD: usize = 4;
/// More would find nothing to do: one thread reads the journal for all.
const MAX_THREADS: usize = 4;

/// Changes that a thread keeps until it makes them: 256 a stripe with two threads, about 10 MB.
const AT_ONCE: usize = STRIPES * 128;

/// A record, and the segment that it is in.
type InSegment = (u32, Arc<[u8]>);

impl<D: Disk> Engine<D> {
    /// Loads the counters that are in the journal, as the last process left it. Nothing else may happen meanwhile. What
    /// makes no sense to this divvy becomes the counter's own record as it is.
    ///
    /// # Errors
    /// When the journal cannot be read, or is damaged.
    pub fn replay(&self) -> Result<(), StoreError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        // The model checker does not know of these threads.
        let threads = if cfg!(all(test, feature = "model")) { 1 } else { threads };
        let mut replays: Vec<_> = (0..threads).map(|part| Replay::new(&self.table, part, threads)).collect();
        match replays.as_mut_slice() {
            [one] => {
                self.each_record(|segment, record| one.read(segment, record))?;
                one.load();
            }
            several => self.share_out(several)?,
        }
        let unread = replays.into_iter().map(|replay| replay.unread).filter(|unread| !unread.is_empty());
        self.with_disk(|disk| {
            unread.into_iter().try_for_each(|unread| disk.write_counters(&SortedChanges::new(&unread)))
        })
    }

    /// Has each of `replays` load every record on a thread of its own.
    fn share_out(&self, replays: &mut [Replay<'_>]) -> Result<(), StoreError> {
        thread::scope(|scope| {
            let started = replays.iter_mut().map(|replay| {
                let (give, given) = sync_channel(AHEAD);
                (give, scope.spawn(|| replay.read_all(given)))
            });
            let (givers, threads): (Vec<_>, Vec<_>) = started.unzip();
            let read = self.each_record(|segment, record| {
                let record: Arc<[u8]> = record.into();
                // A thread that takes no more has failed, and says so when it is joined.
                let taken = givers.iter().all(|give| give.send((segment, Arc::clone(&record))).is_ok());
                if taken { Ok(()) } else { Err(ended()) }
            });
            drop(givers);
            let loaded = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(ended())));
            loaded.fold(Ok(()), Result::and).and(read)
        })
    }

    fn each_record(&self, mut load: impl FnMut(u32, &[u8]) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let marks = &self.table.marks;
        self.with_disk(|disk| {
            disk.read_journal(0, u64::MAX, &mut |number, record| {
                load(marks.open(), record)?;
                self.write_back.journal_grew(number, record.len(), marks);
                Ok(())
            })
        })
    }
}

/// Loads the changes of one part of the table.
struct Replay<'a> {
    table: &'a Table,
    part: usize,
    parts: usize,
    decoder: Decoder,
    /// What was read and is not loaded yet, by stripe.
    read: Vec<Vec<Replayed>>,
    /// How many changes that are.
    count: usize,
    /// Staged changes that make no sense to this divvy.
    unread: Vec<u8>,
}

impl<'a> Replay<'a> {
    fn new(table: &'a Table, part: usize, parts: usize) -> Self {
        let read = (0..STRIPES).map(|_| Vec::new()).collect();
        Self { table, part, parts, decoder: Decoder::default(), read, count: 0, unread: Vec::new() }
    }

    fn read_all(&mut self, records: Receiver<InSegment>) -> Result<(), StoreError> {
        records.into_iter().try_for_each(|(segment, record)| self.read(segment, &record))?;
        self.load();
        Ok(())
    }

    fn read(&mut self, segment: u32, record: &[u8]) -> Result<(), StoreError> {
        journal::each_change(record, |Change { key, value }| {
            let hash = self.table.hasher.hash_of(key);
            if hash.stripe() % self.parts != self.part {
                return Ok(());
            }
            match self.decoded(key, value) {
                None => drop(journal::stage(&mut self.unread, key, |out| out.extend_from_slice(value))),
                Some(what) => {
                    if let Some(changes) = self.read.get_mut(hash.stripe()) {
                        changes.push(Replayed { hash, what, segment });
                        self.count += 1;
                    }
                }
            }
            Ok::<_, StoreError>(())
        })?;
        if self.count >= AT_ONCE {
            self.load();
        }
        Ok(())
    }

    /// What a change says; `None` when it makes no sense to this divvy.
    fn decoded(&mut self, key: &[u8], value: &[u8]) -> Option<Found> {
        let is_forgotten = value.is_empty();
        if record_key::is_record(key) {
            let record = if is_forgotten { None } else { Some(value::decode_record(value).ok()?) };
            record.iter().for_each(|record| self.decoder.note_record(key, record));
            return Some(Found::Record(record));
        }
        if is_forgotten {
            // Of a key that makes no sense, an earlier or a later change may be among the unread ones: it is one of them, too.
            return self.decoder.limit(key).is_ok().then_some(Found::Counter(None));
        }
        self.decoder.decode(key, value).ok().map(|state| Found::Counter(Some(state)))
    }

    fn load(&mut self) {
        self.count = 0;
        for (stripe, changes) in self.read.iter_mut().enumerate() {
            self.table.replay(stripe, changes.drain(..));
        }
    }
}

fn ended() -> StoreError {
    StoreError::new("a thread that was to replay the journal has ended")
}
