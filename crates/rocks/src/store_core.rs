//! The store's core, which its public handle and its threads share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::disk::database::Database;
use super::disk::directory::Lock;
use super::disk::expiry_filter::Swept;
use super::disk::{counter_record, stored_seal_key};
use super::engine::Engine;
use divvy_core::clock::Clock;
use divvy_store::bounds::Bounds;
use divvy_store::contract::{Listing, Page, StoreError};
use divvy_store::seal::Seal;

/// The open store.
pub struct StoreCore {
    pub engine: Arc<Engine<Database>>,
    pub path: PathBuf,
    pub seal: Seal,
    /// Counts of the records that compactions have dropped, in all databases that this store has opened.
    pub swept: Arc<Swept>,
    /// Kept while the database is reopened, because another process may be waiting for it.
    pub _lock: Lock,
    pub bounds: Bounds,
    pub clock: Clock,
    pub stopping: Mutex<bool>,
    pub stop: Condvar,
}

/// The store's threads.
#[derive(Default)]
pub struct Threads {
    /// Threads that write, load and recover.
    pub writers: Vec<JoinHandle<()>>,
    /// The thread that enforces the bounds.
    pub bound: Option<JoinHandle<()>>,
}

impl StoreCore {
    /// Returns the number of expired counters that compactions and write-backs have dropped.
    pub fn expired_dropped(&self) -> u64 {
        self.swept.expired.load(Relaxed) + self.engine.expired.load(Relaxed)
    }

    /// Reads a page of counters.
    ///
    /// # Errors
    /// Fails if RocksDB cannot read.
    pub fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let engine = &self.engine;
        let mut page = Page::default();
        let after = listing.start_after()?;
        let listed = engine.with_disk(|database| {
            for (looked_at, entry) in (1..).zip(database.entries(&listing.prefix, after.as_deref())) {
                let (key, stored) = entry?;
                let state = engine.table.peek(&key).unwrap_or_else(|| {
                    // A damaged record must not prevent the others from being listed.
                    let decoded = counter_record::decode_as(&listing.limit, &stored);
                    decoded.inspect_err(|error| engine.damage.note_record(&key, error)).ok().map(|(state, _)| state)
                });
                let actor = key.get(listing.prefix.len()..).unwrap_or_default();
                if !page.add(listing, actor, state.as_ref(), looked_at) {
                    break;
                }
            }
            Ok(())
        });
        listed.inspect_err(|error| engine.damage.note_read(error, self.clock.now()))?;
        Ok(page)
    }

    /// Copies the database and the key for ids into the new directory `dir`.
    ///
    /// # Errors
    /// The disk refuses reads or writes.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.engine.write_back()?;
        self.engine.with_disk(|database| database.checkpoint(dir))?;
        stored_seal_key::write(self.seal.key()?, dir)
            .map_err(|error| StoreError::new(format!("cannot copy the key for reservation ids: {error}")))
    }

    /// Ends the threads, and writes everything to stable storage.
    ///
    /// # Errors
    /// The disk refuses writes.
    pub fn shut_down(&self, threads: Threads) -> Result<(), StoreError> {
        let engine = &self.engine;
        engine.admission.commits.close();
        *self.stopping.lock() = true;
        self.stop.notify_all();
        for thread in threads.writers {
            let _ = thread.join();
        }
        if !engine.is_well() {
            self.heal();
        }
        let result = engine.commit_rest().and_then(|()| engine.sync());
        let stopped = engine.with_disk(|database| {
            database.stop_background_work();
            Ok(())
        });
        // This thread may have waited for a compaction of all counters, which has been cancelled.
        if let Some(thread) = threads.bound {
            let _ = thread.join();
        }
        result.and(stopped)
    }
}
