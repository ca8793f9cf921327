//! The embedded store: RocksDB behind a table of hot counters, with group commit.
//!
//! A hit changes its counter in the [`table`], under its stripe's mutex. A [`commit`] writes the changes of all
//! connections as one [`journal`] record and then releases their replies. The counters' own records in the [`database`]
//! follow far behind, by [`write_back`]; opening replays the journal into the table. Expired counters are reclaimed by a
//! compaction [`filter`]. The [`engine`] reads records that are not in the table ([`counter_reads`]), and runs all of this over any [`disk`]; here are the public store and its threads
//! ([`housekeeping`], [`loading`], [`bound`]), which know that the disk is RocksDB.

mod actor_limits;
mod backup;
mod bound;
mod commit;
mod counter_reads;
mod damage;
mod database;
mod directory;
mod disk;
mod engine;
mod filter;
mod format;
mod health;
mod housekeeping;
pub mod journal;
mod loading;
mod lookups;
mod marks;
mod metrics;
#[cfg(all(test, feature = "model"))]
mod model;
mod open_error;
mod replay;
mod segments;
mod shared;
mod slot;
mod slots;
mod sorted;
mod stored;
mod stored_count;
mod stored_seal_key;
mod stripe;
mod sync;
mod synced;
mod table;
mod timings;
mod unsynced;
mod wal;
mod write_back;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use self::backup::Backups;
pub use self::backup::{RestoreError, restore};
use self::database::Database;
use self::engine::{Engine, Journal};
use self::filter::{OnDrop, Swept};
use self::lookups::Lookups;
pub use self::open_error::OpenError;
use self::shared::Shared;
use self::stored::Decoder;
use self::table::Table;
use self::timings::Timings;
use super::record_key;
use super::rocks_options::{Durability, RocksOptions};
use super::seal::Seal;
use super::value;
use crate::clock::Timestamp;
use crate::metrics::Metric;
use crate::store::bounds::{CounterBudget, Shares};
use crate::store::contract::{
    BackupError, Batch, Entry, LimitChange, LimitCursor, LimitPage, Listing, Outcomes, Page, Store, StoreError, Unit,
};

/// One in so many bytes of the memory for counters is for those that are being written back.
const WRITE_BACK_SHARE: usize = 8;
/// A batch whose keys take more than this (bytes) waits for what is due on the disk before it is applied.
const LARGE_BATCH: usize = 64 << 10;

/// The embedded store. Dropping it without [`Store::close`] is like the process being killed.
pub struct RocksStore {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
    backups: Backups,
}

#[derive(Default)]
struct Threads {
    /// Write-backs, commits, fsyncs.
    writers: Vec<JoinHandle<()>>,
    /// Sees to the bounds.
    bound: Option<JoinHandle<()>>,
}

impl RocksStore {
    /// Opens the store in `path`, creating it in a new or empty directory.
    ///
    /// # Errors
    /// See [`OpenError`]: nothing is overwritten then.
    pub fn open(path: &Path, options: RocksOptions) -> Result<Self, OpenError> {
        let table = Arc::new(Table::new(options.cache_memory - options.cache_memory / WRITE_BACK_SHARE));
        let budget = Arc::new(CounterBudget::new(options.bounds));
        let swept = Arc::new(Swept::new(on_drop(&table, &budget)));
        directory::claim(path)?;
        let lock = directory::lock(path)?;
        let database = Database::open(path, options.clock, Arc::clone(&swept))?;
        let (count, last_commit) = (database.count, database.last_commit);
        let counters = database.approximate_counters().unwrap_or_default();
        // Not by the approximation: it may be 0 although there are counters.
        let is_empty = last_commit == 0 && !database.has_counters().unwrap_or(true);
        let timings = Timings::new(options.clock);
        let journal = Journal { last_commit, max_bytes: options.max_journal };
        let budgets = (Arc::clone(&budget), options.bounds.records());
        let engine = Engine::new(database, Arc::clone(&table), budgets, options.durability, timings, journal);
        let damaged = |error: StoreError| OpenError::Damaged { path: path.into(), reason: error.to_string() };
        engine.load_records(options.clock.now()).map_err(damaged)?;
        engine.replay().map_err(damaged)?;
        engine.count_records(options.clock.now());
        match count {
            Some(count) => budget.remembered(count),
            None => budget.estimated(counters + table.tally().unrecorded.unsigned_abs()),
        }
        if is_empty {
            table.holds_all();
        }
        let seal = Seal::new(stored_seal_key::read_or_make(path)?);
        // Last: an earlier divvy can open the directory until then.
        directory::upgrade(path)
            .map_err(|error| OpenError::Unusable { path: path.into(), reason: error.to_string() })?;
        let shared = Arc::new(Shared {
            engine: Arc::new(engine),
            path: path.to_owned(),
            seal,
            swept,
            _lock: lock,
            bounds: options.bounds,
            clock: options.clock,
            stopping: Mutex::new(false),
            stop: Condvar::new(),
        });
        let bound = Some(spawn("divvy-bound", &shared, Shared::bound_loop)?);
        let mut writers = vec![
            spawn("divvy-write-back", &shared, Shared::write_back_loop)?,
            spawn("divvy-fsync", &shared, Shared::sync_loop)?,
            spawn("divvy-heal", &shared, Shared::heal_loop)?,
            spawn("divvy-load", &shared, Shared::load_loop)?,
        ];
        if options.durability == Durability::Lazy {
            writers.push(spawn("divvy-commit", &shared, Shared::lazy_commit_loop)?);
        }
        let backups = Backups::new(options.backup_dir);
        backups.tidy();
        Ok(Self { shared, threads: Mutex::new(Threads { writers, bound }), backups })
    }

    /// The key for ids, which the data directory and its backups have.
    pub fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    /// Whether another process has the store in `path` open.
    pub fn is_in_use(path: &Path) -> bool {
        directory::is_in_use(path)
    }

    /// Writes every counter back and drops the expired ones from disk now, rather than in RocksDB's own time.
    ///
    /// # Errors
    /// When RocksDB refuses a write.
    pub fn compact(&self) -> Result<(), StoreError> {
        self.shared.engine.write_back()?;
        self.shared.engine.with_disk(|database| {
            database.compact();
            Ok(())
        })
    }

    /// See [`super::Backend::backup`].
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        let place = self.backups.place(name)?;
        // Hits that are answered and not committed yet (`lazy`) are in the table alone.
        let committed = self.shared.engine.check().await;
        let shared = Arc::clone(&self.shared);
        let copy = move |dir: &Path| committed.and_then(|()| shared.checkpoint(dir));
        let taken = tokio::task::spawn_blocking(move || place.take(copy));
        taken.await.unwrap_or_else(|error| Err(BackupError::Broken(error.to_string())))
    }

    /// Does `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let worked = tokio::task::spawn_blocking(move || work(&shared)).await;
        worked.unwrap_or_else(|e| Err(StoreError::new(format!("cannot {what}: {e}"))))
    }

    pub fn durability(&self) -> Durability {
        self.shared.engine.durability
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Expired counters that compactions and write-backs have dropped since the store was opened.
    pub fn expired_dropped(&self) -> u64 {
        self.shared.expired_dropped()
    }
}

impl Store for RocksStore {
    async fn apply(&self, batch: &mut Batch) {
        let engine = &self.shared.engine;
        if batch.keys.len() > LARGE_BATCH {
            Box::pin(engine.make_room_ahead()).await;
        }
        let now = batch.now();
        let durable = engine.done();
        let mut durable_after = 0;
        let mut unsettled = std::mem::take(&mut batch.unsettled);
        let mut lookups = Lookups::default();
        let shares = Shares::of(batch.origin);
        batch.forget_outcomes();
        let mut needs_records = engine.table.needs_records();
        loop {
            if needs_records {
                engine.look_up(&mut lookups, batch.unanswered(), now).await;
            }
            let is_done = batch.answer_on(|unit, outcomes| {
                let acted_in = match unit.entries {
                    [entry] if !entry.action.has_record() => {
                        act(engine, (unit.first, unit.key(entry), entry), now, &mut lookups, outcomes)
                    }
                    _ => act_together(engine, unit, now, (&mut lookups, &shares), outcomes),
                };
                let Some(acted_in) = acted_in else { return false };
                if acted_in > durable {
                    unsettled.extend(unit.first..outcomes.len());
                    durable_after = durable_after.max(acted_in);
                }
                true
            });
            if is_done {
                break;
            }
            needs_records = true;
        }
        batch.unsettled = unsettled;
        if durable_after > 0
            && engine.durability != Durability::Lazy
            && let Err(error) = engine.settle(durable_after).await
        {
            batch.fail_unsettled(&error);
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        if listing.cursor.is_none() {
            // Counters that are only in the table and the journal so far have no key in RocksDB to be found by. Only what is
            // committed can be written back.
            self.shared.engine.check().await?;
            self.blocking("write back", |shared| shared.engine.write_back()).await?;
        }
        self.blocking("list counters", move |shared| shared.list(&listing)).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        Ok(self.shared.engine.budget.approximately())
    }

    /// Waits for a commit: a disk that hangs is noticed as one that fails is.
    async fn check(&self) -> Result<(), StoreError> {
        self.shared.engine.damage.check(self.shared.clock.now())?;
        self.shared.engine.check().await
    }

    async fn change_limit(&self, change: LimitChange, _now: Timestamp) -> Result<Option<bool>, StoreError> {
        self.blocking("change a limit", move |shared| {
            let sync = shared.engine.durability == Durability::Sync;
            shared.engine.with_disk(|database| actor_limits::write(database, &change, sync))
        })
        .await
        .map(|()| None)
    }

    async fn forget_limits(&self, over: Vec<LimitChange>) -> Result<(), StoreError> {
        self.blocking("forget limits", move |shared| {
            shared.engine.with_disk(|database| actor_limits::forget(database, &over))
        })
        .await
    }

    async fn follow_limits(&self, known: LimitCursor) -> Result<LimitPage, StoreError> {
        self.blocking("read limits", move |shared| {
            shared.engine.with_disk(|database| actor_limits::read(database, &known))
        })
        .await
    }

    fn metrics(&self) -> Vec<Metric> {
        self.shared.metrics()
    }

    async fn close(&self) -> Result<(), StoreError> {
        let threads = std::mem::take(&mut *self.threads.lock());
        self.blocking("close the store", move |shared| shared.shut_down(threads)).await
    }
}

/// Adds the entry's outcome. Returns the commit that makes what it saw durable; `None`, and nothing done, when the counter
/// has to be looked up.
fn act(
    engine: &Engine<Database>,
    entry: (usize, &[u8], &Entry),
    now: Timestamp,
    lookups: &mut Lookups,
    outcomes: &mut Outcomes,
) -> Option<u64> {
    let (outcome, durable_after) = match engine.act(entry, now, lookups).transpose()? {
        Ok(acted) => (Ok(acted.outcome), acted.durable_after),
        Err(error) => (Err(error), 0),
    };
    outcomes.push(outcome);
    Some(durable_after)
}

/// As [`act`], for the entries of a group.
fn act_together(
    engine: &Engine<Database>,
    group: Unit<'_>,
    now: Timestamp,
    (lookups, shares): (&mut Lookups, &Shares),
    outcomes: &mut Outcomes,
) -> Option<u64> {
    let acted = engine.act_together(group, now, (lookups, shares), outcomes).transpose()?;
    Some(acted.unwrap_or_else(|error| {
        outcomes.extend(group.entries.iter().map(|_| Err(error.clone())));
        0
    }))
}

impl Engine<Database> {
    /// Loads the reservations and answers that have records and are not over at `now`. The journal may know better.
    fn load_records(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut decoder = Decoder::default();
        self.with_disk(|database| {
            database.each_counter(record_key::PREFIX, None, |key, stored| {
                match value::decode_record(stored) {
                    Ok(record) if record.until <= now => {}
                    Ok(record) => {
                        decoder.note_record(key, &record);
                        self.table.load_record(self.table.hash_of(key), Some(record));
                    }
                    Err(damaged) => self.damage.note_record(key, &StoreError::new(damaged.to_string())),
                }
                Ok(true)
            })
        })
    }

    /// Counts the reservations and answers that were found.
    fn count_records(&self, now: Timestamp) {
        self.table.sweep_records(now, false);
        self.table.share_records(&self.records);
    }
}

impl Shared {
    /// Expired counters that compactions and write-backs have dropped.
    fn expired_dropped(&self) -> u64 {
        self.swept.expired.load(Relaxed) + self.engine.write_back.expired()
    }

    fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let engine = &self.engine;
        let mut page = Page::default();
        let mut looked_at = 0;
        let after = listing.start_after()?;
        let listed = engine.with_disk(|database| {
            database.each_counter(&listing.prefix, after.as_deref(), |key, stored| {
                looked_at += 1;
                let state = engine.table.peek(key).unwrap_or_else(|| {
                    // The others are listed all the same.
                    let decoded = stored::decode_as(&listing.limit, stored);
                    decoded.inspect_err(|error| engine.damage.note_record(key, error)).ok().map(|(state, _)| state)
                });
                Ok(page.add(listing, key.get(listing.prefix.len()..).unwrap_or_default(), state.as_ref(), looked_at))
            })
        });
        listed.inspect_err(|error| engine.damage.note_read(error, self.clock.now()))?;
        Ok(page)
    }

    /// Copies the database, as it is now, and the key for ids into the new directory `dir`.
    fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.engine.write_back()?;
        self.engine.with_disk(|database| database.checkpoint(dir))?;
        stored_seal_key::write(self.seal.key()?, dir)
            .map_err(|error| StoreError::new(format!("cannot copy the key for reservation ids: {error}")))
    }

    fn shut_down(&self, threads: Threads) -> Result<(), StoreError> {
        let engine = &self.engine;
        engine.close();
        *self.stopping.lock() = true;
        self.stop.notify_all();
        for thread in threads.writers {
            let _ = thread.join();
        }
        if !engine.health.is_well() {
            self.heal();
        }
        let result = engine.commit_rest().and_then(|()| engine.sync());
        let stopped = engine.with_disk(|database| {
            database.stop_background_work();
            Ok(())
        });
        // It may have been waiting for a compaction of everything, which is over now.
        if let Some(thread) = threads.bound {
            let _ = thread.join();
        }
        result.and(stopped)?;
        // Last of all: nothing may change the number of counters after it is stored.
        if let Some(count) = engine.budget.count()
            && let Err(error) = engine.with_disk(|database| database.store_count(count))
        {
            tracing::warn!(%error, "the next start will recount the counters; none are lost");
        }
        Ok(())
    }
}

/// What happens when a compaction drops an expired record. It may not wait for anything that waits for a compaction: the
/// table's stripes are held for reads at most.
fn on_drop(table: &Arc<Table>, budget: &Arc<CounterBudget>) -> OnDrop {
    let (table, budget) = (Arc::clone(table), Arc::clone(budget));
    Box::new(move |key, value| {
        if table.record_dropped(key, value) {
            budget.dropped_record();
        }
    })
}

fn spawn(name: &str, shared: &Arc<Shared>, run: fn(&Shared)) -> Result<JoinHandle<()>, OpenError> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(name.into()).spawn(move || run(&shared)).map_err(OpenError::NoThread)
}
