//! Replaying the journal when the store is opened: its changes are loaded into the table by several threads.
//!
//! The changes of one counter are made in their order, so each thread has a part of the table to itself: it reads every
//! record, and makes the changes of its part. Nothing else happens in the store meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::disk::Disk;
use super::engine::Engine;
use super::journal::{self, Change};
use super::sorted::Sorted;
use super::stored::Decoder;
use super::table::{Part, Table};
use crate::store::error::StoreError;

/// Records that wait for each thread at most: one may be a megabyte.
const AHEAD: usize = 4;
/// More would find nothing to do: one thread reads the journal for all.
const MAX_THREADS: usize = 4;

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
        let mut replays: Vec<_> = Part::all(threads).map(|part| Replay::new(&self.table, part)).collect();
        match replays.as_mut_slice() {
            [one] => self.each_record(|segment, record| one.load(segment, record))?,
            several => self.share_out(several)?,
        }
        let unread = replays.into_iter().map(|replay| replay.unread).filter(|unread| !unread.is_empty());
        self.with_disk(|disk| unread.into_iter().try_for_each(|unread| disk.write_counters(&Sorted::new(&unread))))
    }

    /// Has each of `replays` load every record on a thread of its own.
    fn share_out(&self, replays: &mut [Replay<'_>]) -> Result<(), StoreError> {
        thread::scope(|scope| {
            let started = replays.iter_mut().map(|replay| {
                let (give, given) = sync_channel(AHEAD);
                (give, scope.spawn(|| replay.load_all(given)))
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
    part: Part,
    decoder: Decoder,
    /// Staged changes that make no sense to this divvy.
    unread: Vec<u8>,
}

impl<'a> Replay<'a> {
    fn new(table: &'a Table, part: Part) -> Self {
        Self { table, part, decoder: Decoder::default(), unread: Vec::new() }
    }

    fn load_all(&mut self, records: Receiver<InSegment>) -> Result<(), StoreError> {
        records.into_iter().try_for_each(|(segment, record)| self.load(segment, &record))
    }

    fn load(&mut self, segment: u32, record: &[u8]) -> Result<(), StoreError> {
        journal::each_change(record, |Change { key, value }| {
            let hash = self.table.hash(key);
            if !self.part.holds(hash) {
                return Ok(());
            }
            let state = if value.is_empty() { None } else { self.decoder.decode(key, value).ok() };
            if state.is_some() || value.is_empty() {
                self.table.replay(hash, state, segment);
            } else {
                journal::stage(&mut self.unread, key, |out| out.extend_from_slice(value));
            }
            Ok(())
        })
    }
}

fn ended() -> StoreError {
    StoreError::new("a thread that was to replay the journal has ended")
}
