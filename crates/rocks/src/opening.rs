//! Opens the store: the directory is claimed, the journal is replayed, and the threads are started.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::RocksStore;
use super::disk::backup::Backups;
use super::disk::counter_record::Decoder;
use super::disk::database::Database;
use super::disk::expiry_filter::Swept;
use super::disk::open_error::OpenError;
use super::disk::{directory, stored_seal_key};
use super::engine::{Engine, Journal};
use super::store_core::{StoreCore, Threads};
use super::table::Table;
use super::upkeep::timings::Timings;
use divvy_core::clock::Timestamp;
use divvy_store::bounds::CounterBudget;
use divvy_store::contract::StoreError;
use divvy_store::rocks_options::{Durability, RocksOptions};
use divvy_store::seal::Seal;
use divvy_store::{record_key, value};

/// Share of the memory for counters that write-backs use: one byte in this many.
const WRITE_BACK_SHARE: usize = 8;

impl RocksStore {
    /// Opens the store in `path`, creating it in a new or empty directory.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is overwritten then.
    pub fn open(path: &Path, options: RocksOptions) -> Result<Self, OpenError> {
        let table = Arc::new(Table::new(options.cache_memory - options.cache_memory / WRITE_BACK_SHARE));
        let counters = Arc::new(CounterBudget::new(options.bounds));
        let swept = Arc::<Swept>::default();
        directory::claim(path)?;
        let lock = directory::lock(path)?;
        let database = Database::open(path, options.clock, Arc::clone(&swept))?;
        let last_commit = database.last_commit;
        // The estimate may be 0 even if there are counters.
        let is_empty = last_commit == 0 && database.records().next().is_none();
        let timings = Timings::new(options.clock);
        let journal = Journal { last_commit, max_bytes: options.max_journal };
        let budgets = (Arc::clone(&counters), options.bounds.records());
        let engine = Engine::new(database, Arc::clone(&table), budgets, options.durability, timings, journal);
        let damaged = |error: StoreError| OpenError::damaged(path, &error);
        engine.load_records(options.clock.now()).map_err(damaged)?;
        engine.replay().map_err(damaged)?;
        table.sweep_records(options.clock.now(), false);
        table.share_records(&engine.admission.records);
        if is_empty {
            table.noted_records();
        }
        let seal = Seal::new(stored_seal_key::read_or_make(path)?);
        let core = Arc::new(StoreCore {
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
        if !is_empty {
            counters.estimated(core.engine.with_disk(|database| core.estimate(database)).unwrap_or_default());
        }
        let bound = Some(spawn("divvy-bound", &core, StoreCore::bound_loop)?);
        let mut writers = vec![
            spawn("divvy-write-back", &core, StoreCore::write_back_loop)?,
            spawn("divvy-fsync", &core, StoreCore::sync_loop)?,
            spawn("divvy-heal", &core, StoreCore::heal_loop)?,
            spawn("divvy-load", &core, StoreCore::load_loop)?,
        ];
        if options.durability == Durability::Lazy {
            writers.push(spawn("divvy-commit", &core, StoreCore::lazy_commit_loop)?);
        }
        let backups = Backups::new(options.backup_dir);
        backups.tidy();
        Ok(Self { core, threads: Mutex::new(Threads { writers, bound }), backups })
    }
}

impl Engine<Database> {
    /// Loads the stored records of reservations and answers that have not ended by `now`. The journal may have later
    /// ones.
    fn load_records(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut decoder = Decoder::default();
        self.with_disk(|database| {
            for entry in database.entries(record_key::PREFIX, None) {
                let (key, stored) = entry?;
                match value::decode_record(&stored) {
                    Ok(record) if record.until <= now => {}
                    Ok(record) => {
                        decoder.note_record(&key, &record);
                        self.table.load_record(self.table.hasher.hash_of(&key), record);
                    }
                    Err(damaged) => self.damage.note_record(&key, &StoreError::new(damaged.to_string())),
                }
            }
            Ok(())
        })
    }
}

fn spawn(name: &str, core: &Arc<StoreCore>, run: fn(&StoreCore)) -> Result<JoinHandle<()>, OpenError> {
    let core = Arc::clone(core);
    thread::Builder::new().name(name.into()).spawn(move || run(&core)).map_err(OpenError::NoThread)
}
