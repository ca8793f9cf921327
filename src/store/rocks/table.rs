//! The hot table: the counters in use, in memory, in front of RocksDB.
//!
//! Striped by key hash: a stripe's mutex makes read-modify-write atomic and gives read-your-writes. Beside its counters
//! a stripe keeps what the next commit has to write (journal records) and what the next write-back has to write (keys).
//! A counter stays in the table until its own record in RocksDB is current and synced. Nothing here waits for a disk,
//! except to load a counter that is not in the table.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;
use siphasher::sip128::SipHasher13;

use super::commit::GroupCommit;
use super::health::Health;
use super::journal;
use super::sync::atomic::{AtomicU64, Ordering::AcqRel};
use super::sync::{Mutex, MutexGuard};
use crate::algorithm::{Outcome, State};
use crate::clock::Timestamp;
use crate::store::batch::{Change, Entry};
use crate::store::counter_budget::CounterBudget;
use crate::store::error::StoreError;
use crate::store::value;

/// Number of stripes, a power of two. The model checker sees more with few of them.
pub const STRIPES: usize = if cfg!(all(test, feature = "model")) { 2 } else { 1024 };
const WORD_BITS: usize = u64::BITS as usize;

/// Stands for a bucket key: 128 bits of a hash whose secret is drawn at start, so that two keys of one table never
/// meet, by chance or by design, and an entry need not hold its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash {
    high: u64,
    low: u64,
}

impl KeyHash {
    fn stripe(self) -> usize {
        self.low as usize % STRIPES
    }
}

/// How a counter's own record in RocksDB compares with the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    /// The same, and synced: the counter may be evicted.
    Current,
    /// Older; the key is in the stripe's list for the next write-back.
    Dirty,
    /// Being written, or written and not synced; a change sets it back to `Dirty`.
    Writing,
}

#[derive(Debug)]
struct Counter {
    hash: KeyHash,
    /// `None`: no such bucket, or forgotten.
    state: Option<State>,
    expires: Timestamp,
    /// The commit that makes the last change durable.
    changed_in: u64,
    /// Where the last change's value lies in the stripe's journal, while `drained` is the stripe's.
    journal_at: usize,
    drained: u64,
    record: Record,
    /// The number of the write with its record, while that is `Writing`.
    write: u32,
    /// Touched since the last eviction sweep.
    used: bool,
}

/// What an action on a counter came to.
pub struct Acted {
    pub outcome: Outcome,
    /// The commit that makes what this outcome saw durable; 0 when it has long been.
    pub durable_after: u64,
}

impl Acted {
    fn at_once(outcome: Outcome) -> Self {
        Self { outcome, durable_after: 0 }
    }
}

/// What decides about a change of a counter besides the counter itself.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// To which commit it belongs.
    pub group: &'a GroupCommit,
    /// Whether it can be written.
    pub health: &'a Health,
    /// Whether there is room for one more counter.
    pub budget: &'a CounterBudget,
}

/// One stripe's counters and the writes they owe.
#[derive(Debug, Default)]
pub struct Stripe {
    counters: HashTable<Counter>,
    /// Evict down to this many counters,
    capacity: usize,
    /// once there are so many: more than `capacity` only while too many of them are not `Current`.
    sweep_at: usize,
    /// Changes since the last commit took them, as journal records.
    journal: Vec<u8>,
    /// How often commits have taken `journal`.
    drained: u64,
    /// Keys of dirty counters, as changes without values.
    dirty: Vec<u8>,
    /// Counters that were made here, less those that were forgotten; and as it was when `dirty` was taken last.
    begun: i64,
    begun_when_taken: i64,
    /// Actions, and those whose counter had to be loaded.
    acted: u64,
    loaded: u64,
}

/// What the table holds, and how it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub counters: u64,
    /// Actions on counters that were in the table.
    pub hits: u64,
    /// Actions on counters that had to be loaded.
    pub misses: u64,
}

/// The striped table.
pub struct Table {
    stripes: Box<[Mutex<Stripe>]>,
    /// One bit a stripe: set while it has journal records that no commit took.
    pending: Box<[AtomicU64]>,
    hasher: SipHasher13,
}

impl Table {
    /// A table that evicts down to `capacity` counters wherever their records in RocksDB are current.
    pub fn new(capacity: usize) -> Self {
        let [low, high] = hash_secret();
        let capacity = capacity.div_ceil(STRIPES).max(1);
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(Stripe::with_capacity(capacity))).collect(),
            pending: (0..STRIPES.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect(),
            hasher: SipHasher13::new_with_keys(low, high),
        }
    }

    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.hasher.hash(key);
        KeyHash { high: hash.h1, low: hash.h2 }
    }

    /// Applies `entry` to the counter with `key`, if there is one or there is room for it; `load` reads the counter's
    /// record: its state, and when it expires.
    ///
    /// # Errors
    /// Those of `load`, and the disk's failure when a change could not be kept; nothing is changed then.
    pub fn act(
        &self,
        key: &[u8],
        entry: &Entry,
        now: Timestamp,
        Surroundings { group, health, budget }: Surroundings<'_>,
        load: impl FnOnce() -> Result<Option<(State, Timestamp)>, StoreError>,
    ) -> Result<Acted, StoreError> {
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        stripe.make_room();
        stripe.acted += 1;
        // Asked only about counters that the entry would begin: what is refused must not push others out of the table.
        let refusal = |counter: &Counter| {
            if counter.state.is_some() {
                return None;
            }
            match health.refusal(entry) {
                Some(fault) => Some(Err(fault)),
                None => budget.refusal(entry),
            }
        };
        let counter = match stripe.counters.entry(hash.high, |other| other.hash == hash, |other| other.hash.high) {
            Place::Occupied(place) => {
                let counter = place.into_mut();
                if let Some(refusal) = refusal(counter) {
                    return refusal.map(Acted::at_once);
                }
                counter
            }
            Place::Vacant(place) => {
                stripe.loaded += 1;
                let loaded = Counter::loaded(hash, load()?);
                if let Some(refusal) = refusal(&loaded) {
                    return refusal.map(Acted::at_once);
                }
                place.insert(loaded).into_mut()
            }
        };
        counter.used = true;
        let is_new = counter.state.is_none();
        let (outcome, change) = entry.decide(counter.state.as_ref());
        let state = match change {
            Change::Keep => return Ok(Acted { outcome, durable_after: counter.changed_in }),
            Change::Set(state) => Some(state),
            Change::Clear => None,
        };
        // While the disk refuses writes nothing is changed: what could not be written must not cost credit, be
        // acknowledged in `lazy` mode, or wait in memory.
        if let Some(fault) = health.fault() {
            return Err(fault);
        }
        match (is_new, state.is_some()) {
            // Another stripe's counter may have taken the last room just now.
            (true, true) if !budget.begin() => return budget.refuse(entry).map(Acted::at_once),
            (true, true) => stripe.begun += 1,
            (false, false) => {
                budget.forget();
                stripe.begun -= 1;
            }
            _ => {}
        }
        if stripe.journal.is_empty() {
            self.mark_pending(hash.stripe());
        }
        counter.expires = state.as_ref().map_or(now, |state| entry.expiry(state, now));
        counter.state = state;
        // Read under the stripe's lock: that commit has not yet taken this stripe's journal, or the next one will.
        counter.changed_in = group.open();
        let write_value = |out: &mut Vec<u8>| counter.write_value(out);
        let overwritten = counter.drained == stripe.drained
            && journal::overwrite_with(&mut stripe.journal, counter.journal_at, write_value);
        if !overwritten {
            counter.journal_at = journal::append_with(&mut stripe.journal, key, write_value);
            counter.drained = stripe.drained;
        }
        counter.mark_dirty(key, &mut stripe.dirty);
        Ok(Acted { outcome, durable_after: counter.changed_in })
    }

    /// The state of the counter with `key`, as it is now; the outer `None` when it is not in the table.
    pub fn peek(&self, key: &[u8]) -> Option<Option<State>> {
        let hash = self.hash(key);
        self.stripe(hash.stripe()).counter(hash).map(|counter| counter.state.clone())
    }

    /// Moves every journal record that no commit has taken yet to `record`.
    pub fn take_journal(&self, record: &mut Vec<u8>) {
        for (word, bits) in self.pending.iter().enumerate() {
            let mut bits = bits.swap(0, AcqRel);
            while bits != 0 {
                let mut stripe = self.stripe(word * WORD_BITS + bits.trailing_zeros() as usize);
                record.append(&mut stripe.journal);
                stripe.drained += 1;
                bits &= bits - 1;
            }
        }
    }

    /// Appends to `changes` what every dirty counter of the stripe is now: a change each, as in a journal record. They
    /// count as being written, in the write with this number, until [`Table::written`] or [`Table::not_written`].
    pub fn take_dirty(&self, stripe: usize, write: u32, changes: &mut Vec<u8>) {
        let mut guard = self.stripe(stripe);
        let stripe = &mut *guard;
        stripe.begun_when_taken = stripe.begun;
        let dirty = std::mem::take(&mut stripe.dirty);
        for key in journal::keys(&dirty) {
            let hash = self.hash(key);
            let Some(counter) = stripe.counters.find_mut(hash.high, |other| other.hash == hash) else { continue };
            counter.record = Record::Writing;
            counter.write = write;
            journal::append_with(changes, key, |out| counter.write_value(out));
        }
    }

    /// The records of the counters with these changes are as [`Table::take_dirty`] gave them, and synced.
    pub fn written(&self, write: u32, changes: &[u8]) {
        for key in journal::keys(changes) {
            let hash = self.hash(key);
            let mut stripe = self.stripe(hash.stripe());
            if let Some(counter) = stripe.counter(hash)
                && counter.is_in(write)
            {
                counter.record = Record::Current;
                // A stripe that is too large because of such counters may drop them when it is used next.
                stripe.sweep_at = stripe.capacity;
            }
        }
    }

    /// The counters with these changes could not be written or synced: the next write-back has to.
    pub fn not_written(&self, write: u32, changes: &[u8]) {
        for key in journal::keys(changes) {
            let hash = self.hash(key);
            let mut guard = self.stripe(hash.stripe());
            let stripe = &mut *guard;
            if let Some(counter) = stripe.counters.find_mut(hash.high, |other| other.hash == hash)
                && counter.is_in(write)
            {
                counter.mark_dirty(key, &mut stripe.dirty);
            }
        }
    }

    /// Counters that were made less those that were forgotten, as of when [`Table::take_dirty`] took each stripe last:
    /// while no write-back runs, and the last one succeeded, RocksDB holds exactly these changes of the number of
    /// counters.
    pub fn begun_when_taken(&self) -> i64 {
        self.stripes.iter().map(|stripe| stripe.lock().begun_when_taken).sum()
    }

    /// A compaction drops a record of this counter, because it has expired. Whether that may have been its latest
    /// record: not when the table knows of a later one, or that the counter is forgotten.
    pub fn record_dropped(&self, key: &[u8], value: &[u8]) -> bool {
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let Some(counter) = stripe.counters.find_mut(hash.high, |other| other.hash == hash) else { return true };
        let is_latest = counter.record != Record::Dirty && counter.state.is_some() && counter.value() == value;
        if is_latest {
            counter.state = None;
        }
        is_latest
    }

    /// Forgets the counter if it has expired; the next write-back deletes its record. `load` tells when its record in
    /// RocksDB expires. Nothing waits for that to be durable: an expired counter may come back after a crash. True if it
    /// is one less.
    ///
    /// # Errors
    /// Those of `load`; nothing is changed then.
    pub fn sweep(
        &self,
        key: &[u8],
        now: Timestamp,
        budget: &CounterBudget,
        load: impl FnOnce() -> Result<Option<Timestamp>, StoreError>,
    ) -> Result<bool, StoreError> {
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        stripe.make_room();
        let counter = match stripe.counters.entry(hash.high, |other| other.hash == hash, |other| other.hash.high) {
            Place::Occupied(place) => {
                let counter = place.into_mut();
                if value::expiry(&counter.value()).map_or(true, |expires| now < expires) {
                    return Ok(false);
                }
                counter.state = None;
                counter
            }
            Place::Vacant(place) => {
                if load()?.is_none_or(|expires| now < expires) {
                    return Ok(false);
                }
                let forgotten = Counter { used: false, ..Counter::loaded(hash, None) };
                place.insert(forgotten).into_mut()
            }
        };
        counter.mark_dirty(key, &mut stripe.dirty);
        stripe.begun -= 1;
        budget.forget();
        Ok(true)
    }

    /// A look at every stripe in turn.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            usage.counters += stripe.counters.len() as u64;
            usage.hits += stripe.acted - stripe.loaded;
            usage.misses += stripe.loaded;
        }
        usage
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "callers take the index from a hash, or count up to the number of stripes"
    )]
    fn stripe(&self, index: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[index].lock()
    }

    #[expect(clippy::indexing_slicing, reason = "there is a bit for every stripe")]
    fn mark_pending(&self, stripe: usize) {
        self.pending[stripe / WORD_BITS].fetch_or(1 << (stripe % WORD_BITS), AcqRel);
    }
}

impl Stripe {
    fn with_capacity(capacity: usize) -> Self {
        Self { capacity, sweep_at: capacity, ..Self::default() }
    }

    fn counter(&mut self, hash: KeyHash) -> Option<&mut Counter> {
        self.counters.find_mut(hash.high, |other| other.hash == hash)
    }

    /// Second chance: a full stripe drops what has not been touched since the last sweep, or else all that it may.
    fn make_room(&mut self) {
        if self.counters.len() < self.sweep_at {
            return;
        }
        let is_unwritten = |counter: &Counter| counter.record != Record::Current;
        self.counters.retain(|counter| std::mem::take(&mut counter.used) || is_unwritten(counter));
        if self.counters.len() >= self.capacity {
            self.counters.retain(|counter| is_unwritten(counter));
        }
        self.sweep_at = self.capacity.max(self.counters.len() + self.capacity.div_ceil(4));
    }
}

/// The secret of the hash, drawn at start. The model checker repeats runs, and needs the same one.
fn hash_secret() -> [u64; 2] {
    if cfg!(all(test, feature = "model")) {
        return [0, 1];
    }
    let random = RandomState::new();
    [random.hash_one(0), random.hash_one(1)]
}

impl Counter {
    fn loaded(hash: KeyHash, record: Option<(State, Timestamp)>) -> Self {
        let (state, expires) = record.unzip();
        Self {
            hash,
            state,
            expires: expires.unwrap_or_default(),
            changed_in: 0,
            journal_at: 0,
            drained: u64::MAX,
            record: Record::Current,
            write: 0,
            used: true,
        }
    }

    /// The counter as a stored value; empty when it is forgotten.
    /// Whether its record is being written, or not synced, in this write.
    fn is_in(&self, write: u32) -> bool {
        self.record == Record::Writing && self.write == write
    }

    /// Puts the counter's key into the stripe's list for the next write-back, unless it is there.
    fn mark_dirty(&mut self, key: &[u8], dirty: &mut Vec<u8>) {
        if self.record != Record::Dirty {
            self.record = Record::Dirty;
            journal::append(dirty, key, &[]);
        }
    }

    /// The counter's value; empty when it is forgotten.
    fn value(&self) -> Vec<u8> {
        let mut value = Vec::new();
        self.write_value(&mut value);
        value
    }

    /// Appends the counter's value; nothing when it is forgotten.
    fn write_value(&self, out: &mut Vec<u8>) {
        if let Some(state) = &self.state {
            value::encode(state, self.expires, out);
        }
    }
}
