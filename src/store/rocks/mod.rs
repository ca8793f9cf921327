//! The embedded store: RocksDB behind a table of hot counters, with group commit.
//!
//! A hit changes its counter in the [`table`], under its stripe's mutex. A [`commit`] writes the changes of all
//! connections as one [`journal`] record and then releases their replies. The counters' own records in the [`database`]
//! follow behind, by [`write_back`]; opening replays what is left of the journal. Expired counters are reclaimed by a
//! compaction [`filter`].

mod backup;
mod bound;
mod commit;
mod damage;
mod database;
mod directory;
mod figures;
mod filter;
mod journal;
mod stored_count;
mod table;
mod write_back;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use self::backup::Backups;
pub use self::backup::{BackupError, RestoreError, restore};
use self::commit::{Commits, Waited};
use self::damage::Damage;
pub use self::database::OpenError;
use self::database::{Database, Patience};
use self::figures::Timings;
use self::filter::OnDrop;
use self::table::Table;
use self::write_back::WriteBack;
use super::counter_budget::CounterBudget;
use super::outage::Outage;
use super::{Batch, Bounds, Entry, Listing, Page, Store, StoreError, value};
use crate::algorithm::{Limit, State};
use crate::clock::{Clock, Timestamp};
use crate::metrics::Figure;

/// Counters kept in memory unless more are being changed: about 100 bytes each.
pub const DEFAULT_HOT_COUNTERS: usize = 900_000;
/// How often counters are written back and, unless every commit does it, the write-ahead log is fsynced.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// How long an acknowledged hit may wait for its commit with [`Durability::Lazy`].
const LAZY_INTERVAL: Duration = Duration::from_millis(100);
/// Past this a commit waits for a write-back: it bounds the journal, the counters that cannot be evicted, and the time
/// that opening takes.
const MAX_JOURNAL_BYTES: u64 = 128 << 20;

/// When a hit may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once it is on stable storage.
    Sync,
    /// Once it is in the write-ahead log, which survives the end of the process; stable storage follows every second.
    #[default]
    Wal,
    /// At once; it is in the write-ahead log within 100 ms.
    Lazy,
}

/// How to open a [`RocksStore`].
#[derive(Debug, Clone)]
pub struct RocksOptions {
    pub durability: Durability,
    /// Counters kept in memory unless more are being changed.
    pub hot_counters: usize,
    /// Tells what has expired.
    pub clock: Clock,
    /// How much is remembered, at most.
    pub bounds: Bounds,
    /// Where backups may be written; `None`: nowhere.
    pub backup_dir: Option<PathBuf>,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            hot_counters: DEFAULT_HOT_COUNTERS,
            clock: Clock::system(),
            bounds: Bounds::default(),
            backup_dir: None,
        }
    }
}

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

struct Shared {
    database: Database,
    table: Arc<Table>,
    budget: Arc<CounterBudget>,
    bounds: Bounds,
    clock: Clock,
    commits: Commits,
    committer: Mutex<Committer>,
    write_back: WriteBack,
    durability: Durability,
    timings: Timings,
    damage: Damage,
    /// Whether the last commit failed.
    failing: AtomicBool,
    stopping: Mutex<bool>,
    stop: Condvar,
}

/// What whoever leads works with.
struct Committer {
    record: Vec<u8>,
    outage: Outage,
}

impl RocksStore {
    /// Opens the store in `path`, creating it in a new or empty directory.
    ///
    /// # Errors
    /// See [`OpenError`]: nothing is overwritten then.
    pub fn open(path: &Path, options: RocksOptions) -> Result<Self, OpenError> {
        let table = Arc::new(Table::new(options.hot_counters));
        let budget = Arc::new(CounterBudget::new(options.bounds));
        let database = Database::open(path, options.clock, on_drop(&table, &budget))?;
        match database.count {
            Some(count) => budget.remembered(count),
            None => budget.estimated(database.approximate_counters().unwrap_or_default()),
        }
        let shared = Arc::new(Shared {
            database,
            table,
            budget,
            bounds: options.bounds,
            clock: options.clock,
            commits: Commits::new(),
            committer: Mutex::new(Committer {
                record: Vec::new(),
                outage: Outage::of("commits", "hits are answered with an error"),
            }),
            write_back: WriteBack::default(),
            durability: options.durability,
            timings: Timings::new(options.clock),
            damage: Damage::default(),
            failing: AtomicBool::new(false),
            stopping: Mutex::new(false),
            stop: Condvar::new(),
        });
        let bound = Some(spawn("divvy-bound", &shared, Shared::bound_loop)?);
        let mut writers = vec![spawn("divvy-write-back", &shared, Shared::write_back_loop)?];
        match options.durability {
            Durability::Sync => writers.push(spawn("divvy-commit", &shared, Shared::sync_commit_loop)?),
            Durability::Lazy => writers.push(spawn("divvy-commit", &shared, Shared::lazy_commit_loop)?),
            Durability::Wal => {}
        }
        if options.durability != Durability::Sync {
            writers.push(spawn("divvy-fsync", &shared, Shared::sync_loop)?);
        }
        let backups = Backups::new(options.backup_dir);
        backups.tidy();
        Ok(Self { shared, threads: Mutex::new(Threads { writers, bound }), backups })
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
        self.shared.write_back_now()?;
        self.shared.database.compact();
        Ok(())
    }

    /// See [`super::Backend::backup`].
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        let place = self.backups.place(name)?;
        let shared = Arc::clone(&self.shared);
        let taken = tokio::task::spawn_blocking(move || place.take(|dir| shared.checkpoint(dir)));
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
        self.shared.durability
    }

    /// The data directory.
    pub fn path(&self) -> &Path {
        self.shared.database.path()
    }

    /// Expired counters that compactions have dropped since the store was opened.
    pub fn expired_dropped(&self) -> u64 {
        self.shared.database.swept.expired.load(Relaxed)
    }
}

impl Store for RocksStore {
    async fn apply(&self, batch: &mut Batch) {
        let shared = &self.shared;
        let now = batch.now();
        let durable = shared.commits.done();
        let mut durable_after = 0;
        let mut unsettled = std::mem::take(&mut batch.unsettled);
        batch.answer_each(|index, key, entry| {
            let acted = shared.act(key, entry, now)?;
            if acted.durable_after > durable {
                unsettled.push(index);
                durable_after = durable_after.max(acted.durable_after);
            }
            Ok(acted.outcome)
        });
        batch.unsettled = unsettled;
        if durable_after > 0
            && shared.durability != Durability::Lazy
            && let Err(error) = shared.settle(durable_after).await
        {
            batch.fail_unsettled(&error);
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.blocking("list counters", move |shared| shared.list(&listing)).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        Ok(self.shared.budget.approximately())
    }

    /// After a failed commit another one is made: nobody may be asking any more, who would show that it works again.
    async fn check(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        shared.damage.check(shared.clock.now())?;
        if shared.failing.load(Relaxed) { shared.settle(shared.commits.open()).await } else { Ok(()) }
    }

    fn figures(&self) -> Vec<Figure> {
        self.shared.figures()
    }

    async fn close(&self) -> Result<(), StoreError> {
        let threads = std::mem::take(&mut *self.threads.lock());
        self.blocking("close the store", move |shared| shared.shut_down(threads)).await
    }
}

impl Shared {
    fn act(&self, key: &[u8], entry: &Entry, now: Timestamp) -> Result<table::Acted, StoreError> {
        self.table.act(key, entry, now, &self.commits, &self.budget, || self.load(key, entry))
    }

    /// The counter's record: its state, and when it expires.
    fn load(&self, key: &[u8], entry: &Entry) -> Result<Option<(State, Timestamp)>, StoreError> {
        let read = self.database.counter(key).inspect_err(|error| self.damage.note_read(error, self.clock.now()));
        let Some(stored) = read? else { return Ok(None) };
        let state = decode(&entry.limit, &stored).inspect_err(|error| self.damage.note_record(key, error))?;
        Ok(Some((state, value::expiry(&stored).map_err(damaged)?)))
    }

    fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        if listing.cursor.is_none() {
            // Counters that are only in the table and the journal so far have no key in RocksDB to be found by.
            self.write_back_now()?;
        }
        let mut page = Page::default();
        let mut looked_at = 0;
        let listed = self.database.each_counter(&listing.prefix, listing.start_after()?.as_deref(), |key, stored| {
            looked_at += 1;
            let state = self.table.peek(key).unwrap_or_else(|| {
                // The others are listed all the same.
                decode(&listing.limit, stored).inspect_err(|error| self.damage.note_record(key, error)).ok()
            });
            Ok(page.add(listing, key.get(listing.prefix.len()..).unwrap_or_default(), state.as_ref(), looked_at))
        });
        listed.inspect_err(|error| self.damage.note_read(error, self.clock.now()))?;
        Ok(page)
    }

    /// Copies the database, as it is now, into the new directory `dir`.
    fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        // Hits that are answered and not committed yet (`lazy`) are in the table alone.
        self.write_back_now()?;
        self.database.checkpoint(dir)
    }

    /// Waits until commit `number` is durable, making it if nobody else does.
    async fn settle(self: &Arc<Self>, number: u64) -> Result<(), StoreError> {
        let lead = match self.commits.wait_for(number).await {
            Waited::Committed(result) => return result,
            Waited::Lead(lead) => lead,
        };
        // Other connections whose requests have arrived get their changes into this commit.
        tokio::task::yield_now().await;
        let number = lead.begin();
        let result = match self.commit_at_once(number) {
            Some(result) => result,
            None => self.commit_elsewhere(number).await,
        };
        lead.finish(number, &result);
        result
    }

    /// Makes the commit on this thread, unless that might take long: then `None`.
    fn commit_at_once(&self, number: u64) -> Option<Result<(), StoreError>> {
        let committer = &mut *self.committer.lock();
        let is_quick = self.durability == Durability::Wal
            && !committer.outage.lasts()
            && self.write_back.journal_bytes() <= MAX_JOURNAL_BYTES;
        if !is_quick {
            return None;
        }
        // A write to the page cache takes less than handing it to another thread would.
        let begun = self.timings.now();
        self.table.take_journal(&mut committer.record);
        let result = self.database.append_journal(number, &committer.record, Patience::None)?;
        self.journaled(committer, &result, begun);
        Some(result)
    }

    /// Makes the commit on a thread that may block.
    async fn commit_elsewhere(self: &Arc<Self>, number: u64) -> Result<(), StoreError> {
        let shared = Arc::clone(self);
        let committed = tokio::task::spawn_blocking(move || shared.commit(number)).await;
        committed.unwrap_or_else(|e| Err(StoreError::new(format!("cannot commit: {e}"))))
    }

    /// An fsync takes milliseconds, and the next can begin when it ends: a thread of its own keeps the lead.
    fn sync_commit_loop(&self) {
        let lead = loop {
            match self.commits.try_lead() {
                Some(lead) => break lead,
                // The first hit came before this thread did, and leads.
                None if self.stopped_within(Duration::from_millis(1)) => return,
                None => {}
            }
        };
        while lead.is_wanted() {
            let number = lead.begin();
            lead.finish(number, &self.commit(number));
        }
    }

    fn lazy_commit_loop(&self) {
        while !self.stopped_within(LAZY_INTERVAL) {
            if let Some(lead) = self.commits.try_lead() {
                let number = lead.begin();
                lead.finish(number, &self.commit(number));
            }
        }
    }

    /// Makes every change so far durable, however long it takes.
    fn commit(&self, number: u64) -> Result<(), StoreError> {
        let committer = &mut *self.committer.lock();
        let begun = self.timings.now();
        self.table.take_journal(&mut committer.record);
        let result =
            if committer.outage.lasts() { self.recover(number) } else { self.append(number, &committer.record) };
        self.journaled(committer, &result, begun);
        result
    }

    fn append(&self, number: u64, record: &[u8]) -> Result<(), StoreError> {
        if self.write_back.journal_bytes() > MAX_JOURNAL_BYTES {
            self.write_back.run(&self.table, &self.database, number - 1)?;
        }
        let patience = if self.durability == Durability::Sync { Patience::Fsync } else { Patience::Stalls };
        let written = self.database.append_journal(number, record, patience);
        // A record that was not written must never count as durable, whatever RocksDB's reason.
        written.unwrap_or_else(|| Err(StoreError::new("cannot write the journal: RocksDB would not wait")))
    }

    /// After a failure memory is ahead of the disk, and the lost record cannot be told from one that was written after
    /// all: the counters themselves are written, and the journal dropped.
    fn recover(&self, number: u64) -> Result<(), StoreError> {
        self.write_back.run(&self.table, &self.database, number)?;
        self.database.clear_journal(number)?;
        if self.durability == Durability::Sync { self.database.sync() } else { Ok(()) }
    }

    /// The committer's record has been dealt with.
    fn journaled(&self, committer: &mut Committer, result: &Result<(), StoreError>, begun: Timestamp) {
        committer.outage.note(result);
        self.failing.store(committer.outage.lasts(), Relaxed);
        if !committer.record.is_empty() {
            self.timings.committed(begun);
        }
        self.write_back.journal_grew(committer.record.len());
        committer.record.clear();
    }

    fn write_back_loop(&self) {
        let mut outage = Outage::of("write-backs", "counters stay in the journal");
        while !self.stopped_within(HOUSEKEEPING_INTERVAL) {
            outage.note(&self.write_back_now());
        }
    }

    fn write_back_now(&self) -> Result<(), StoreError> {
        self.write_back.run(&self.table, &self.database, self.commits.done())
    }

    fn sync_loop(&self) {
        let mut synced = 0;
        let mut outage = Outage::of("fsyncs", "acknowledged hits are not on stable storage");
        while !self.stopped_within(HOUSEKEEPING_INTERVAL) {
            let done = self.commits.done();
            if done == synced {
                continue;
            }
            let begun = self.timings.now();
            let result = self.database.sync();
            self.timings.synced(begun);
            outage.note(&result);
            if result.is_ok() {
                synced = done;
            }
        }
    }

    /// Sleeps for `interval`, or until the store is being closed: true then.
    fn stopped_within(&self, interval: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stop.wait_for(&mut stopping, interval);
        }
        *stopping
    }

    fn shut_down(&self, threads: Threads) -> Result<(), StoreError> {
        self.commits.close();
        *self.stopping.lock() = true;
        self.stop.notify_all();
        for thread in threads.writers {
            let _ = thread.join();
        }
        // This writes all there is, committed or not.
        let result = self.write_back_now().and_then(|()| self.database.sync());
        self.database.stop_background_work();
        // It may have been waiting for a compaction of everything, which is over now.
        if let Some(thread) = threads.bound {
            let _ = thread.join();
        }
        // Last of all: nothing may change the number of counters after it is stored.
        result.and_then(|()| self.budget.count().map_or(Ok(()), |count| self.database.store_count(count)))
    }
}

/// What happens when a compaction drops an expired record. It may not wait for anything that waits for a compaction: the
/// table's stripes are held for reads at most.
fn on_drop(table: &Arc<Table>, budget: &Arc<CounterBudget>) -> OnDrop {
    let (table, budget) = (Arc::clone(table), Arc::clone(budget));
    Arc::new(move |key, value| {
        if table.record_dropped(key, value) {
            budget.dropped_record();
        }
    })
}

fn decode(limit: &Limit, stored: &[u8]) -> Result<State, StoreError> {
    value::decode(limit, stored).map_err(damaged)
}

fn damaged(damaged: value::Damaged) -> StoreError {
    StoreError::new(damaged.to_string())
}

fn spawn(name: &str, shared: &Arc<Shared>, run: fn(&Shared)) -> Result<JoinHandle<()>, OpenError> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(name.into()).spawn(move || run(&shared)).map_err(OpenError::NoThread)
}
