//! The hot table: counters in memory, in front of RocksDB.
//!
//! The table is striped by key hash. A stripe's mutex makes read-modify-write atomic and gives read-your-writes. A
//! stripe also keeps the changes that the next commit has to write. A counter stays in the table until its own record
//! in RocksDB is current. The table never waits for a disk: a counter that may be in RocksDB and is not in the table is
//! [looked up](Lookups) before its stripe is locked.
//!
//! An entry does not contain its key. Instead, it has 74 bits of a keyed hash, whose secret is drawn at each start. The
//! probability that two of 100 million keys share them is 3 · 10⁻⁷, and no client can increase it.
//!
//! Look-ups of records for a batch: a record does not change while its counter is not in the table. So a record is current if its
//! counter was absent before the read and is absent now, and if no counter of its eviction group has left the table in between.

mod group;
pub mod maintenance;
mod slots;
mod stripe;

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use siphasher::sip128::SipHasher13;

use self::slots::Tags;
use self::stripe::Stripe;
use super::group_commit::GroupCommit;
use super::health::Health;
use super::journal::{Mark, Packer, SegmentMarks};
use super::sync::atomic::Ordering::{AcqRel, Relaxed};
use super::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use super::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard, is_modeled};
use divvy_core::algorithm::{Limit, Outcome, State};
use divvy_core::clock::Timestamp;
use divvy_store::{Bounds, Change, CounterBudget, Entry, RecordBudgets, StoreError, record_key};

const WORD_BITS: usize = u64::BITS as usize;

/// A counter's record, if it has one: its state and its expiry.
pub type CounterRecord = Option<(State, Timestamp)>;

/// Proof that no group is changing counters: see [`HotTable::wait_for_groups`].
pub type GroupBarrier<'a> = RwLockWriteGuard<'a, ()>;

/// The striped table.
pub struct HotTable {
    stripes: Box<[Mutex<Stripe>]>,
    /// One bit per stripe: set while the stripe has staged changes that no commit has taken.
    pending: Box<[AtomicU64]>,
    /// Held by a group while it changes its counters, and by a commit while it takes changes. So a commit takes all of
    /// a group's changes or none. It is locked before the stripes.
    gate: RwLock<()>,
    pub marks: SegmentMarks,
    /// Whether the table knows which counters have records.
    knows_records: AtomicBool,
    /// Whether some stripes do not contain all of their counters, so that actions may need records. This may be outdated a moment
    /// later.
    pub needs_records: AtomicBool,
    /// Memory for counters that can be evicted (bytes).
    pub memory: usize,
    /// Bytes beyond `memory`, taken by counters whose records are not current.
    excess: AtomicUsize,
    pub hasher: KeyHasher,
    /// These decide which changes are admitted, and which commit they belong to. Each change needs a commit, a disk that takes
    /// writes, and room.
    pub commits: Arc<GroupCommit>,
    pub health: Health,
    pub counters: CounterBudget,
    pub records: RecordBudgets,
}

impl HotTable {
    /// Creates a table that takes up to `memory` bytes, and more only for counters whose records in RocksDB are not
    /// current. The first commit follows number `last_commit`.
    pub fn new(memory: usize, last_commit: u64, bounds: Bounds) -> Self {
        Self {
            stripes: (0..stripes()).map(|_| Mutex::new(Stripe::new(memory / stripes()))).collect(),
            pending: (0..stripes().div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect(),
            gate: RwLock::default(),
            marks: SegmentMarks::default(),
            knows_records: AtomicBool::new(false),
            needs_records: AtomicBool::new(true),
            memory,
            excess: AtomicUsize::new(0),
            hasher: KeyHasher::new(),
            commits: GroupCommit::new(last_commit),
            health: Health::default(),
            counters: CounterBudget::new(bounds),
            records: RecordBudgets::new(bounds),
        }
    }

    /// Applies `entry` to the counter with `key`, if the counter exists or there is room for it. `load` returns the
    /// counter's record, given the number of evictions in its group. Returns the outcome, and the commit that makes the
    /// state behind it durable; 0 if that has long been durable. If `load` returns `None`, so does this function, and
    /// nothing changes.
    ///
    /// # Errors
    /// Returns the error of `load`, or the disk's failure if a change could not be kept. Nothing changes then.
    pub fn act(
        &self,
        key: &[u8],
        entry: &Entry,
        now: Timestamp,
        load: impl FnOnce(u32) -> Result<Option<CounterRecord>, StoreError>,
    ) -> Result<Option<(Outcome, u64)>, StoreError> {
        let hash = self.hasher.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let mut index = stripe.slots.find(hash.high);
        if index.is_none() && !stripe.holds_all {
            let Some(record) = load(*stripe.evictions(hash.high))? else { return Ok(None) };
            stripe.loaded += 1;
            index = record.map(|(state, expires)| self.keep_loaded(stripe, hash, state, expires));
        }
        stripe.acted += 1;
        let found = stripe.state(index);
        let is_new = found.is_none();
        if is_new {
            // A refused entry leaves no trace, and evicts no other counter. Counters that could not be written would fill the memory.
            if !entry.action.gives_back()
                && let Some(fault) = self.health.fault()
            {
                return Err(fault);
            }
            if let Some(refusal) = self.counters.refusal(entry) {
                return refusal.map(|outcome| Some((outcome, 0)));
            }
        }
        let (outcome, change) = entry.decide(found.as_deref());
        let state = match change {
            Change::Keep => {
                let durable_after = index.map_or(0, |index| {
                    stripe.touch(index);
                    stripe.durable_after(index)
                });
                return Ok(Some((outcome, durable_after)));
            }
            Change::Set(state) => Some(state),
            Change::Clear => None,
        };
        // Nothing changes while the disk refuses writes: a change that cannot be written must not cost credit, be
        // acknowledged in `lazy` mode, or wait in memory.
        if let Some(fault) = self.health.fault() {
            return Err(fault);
        }
        match (is_new, state.is_some()) {
            // A counter in another stripe may have taken the last room just now.
            (true, true) if !self.counters.begin() => {
                return self.counters.refuse(entry).map(|outcome| Some((outcome, 0)));
            }
            (false, false) => self.counters.forget(),
            _ => {}
        }
        let is_recorded = index.is_some_and(|index| stripe.slots.at(index).tags().recorded);
        self.set((stripe, index), (hash, key, entry), state, is_recorded, now);
        Ok(Some((outcome, stripe.changed_in)))
    }

    /// Sets a counter's state in its stripe, and stages it for the next commit. The index is `None` if the counter is
    /// not in the stripe.
    // Inlined, because it runs for each counter of each hit.
    #[inline(always)]
    fn set(
        &self,
        (stripe, index): (&mut Stripe, Option<usize>),
        (hash, key, entry): (KeyHash, &[u8], &Entry),
        state: Option<State>,
        is_recorded: bool,
        now: Timestamp,
    ) {
        if index.is_none() {
            self.make_room(stripe);
        }
        let tags = self.change(stripe, hash, is_recorded);
        let expires = match &state {
            // The general computation would also return the window's end.
            Some(State::FixedWindow(window)) => window.ends,
            Some(state) => entry.expiry(state, now),
            None => now,
        };
        let index = stripe.set(index, hash.high, state, expires, tags);
        stripe.stage(hash.high, index, key);
        self.count_excess(stripe);
    }

    /// Adds a counter that was read. Returns its index.
    fn keep_loaded(&self, stripe: &mut Stripe, hash: KeyHash, state: State, expires: Timestamp) -> usize {
        self.make_room(stripe);
        let tags = stripe.loaded_tags(self.marks.clean() as Mark, true);
        stripe.set(None, hash.high, Some(state), expires, tags)
    }

    /// Returns the number of evictions for a record that is read from now on; `None` if an action on the counter with
    /// `key` needs no record.
    pub fn evictions_if_absent(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash(key);
        let mut stripe = self.stripe(hash.stripe());
        let is_absent = !stripe.holds_all && stripe.slots.find(hash.high).is_none();
        is_absent.then(|| *stripe.evictions(hash.high))
    }

    /// Returns the current state of the counter with `key`. The outer `None` means that the counter is not in the
    /// table.
    pub fn peek(&self, key: &[u8]) -> Option<Option<State>> {
        let hash = self.hasher.hash(key);
        let stripe = self.stripe(hash.stripe());
        stripe.slots.find(hash.high).map(|index| stripe.state(Some(index)).map(Cow::into_owned))
    }

    /// Waits for groups to finish. While the result is held, every group has changed all of its counters or none.
    pub fn wait_for_groups(&self) -> GroupBarrier<'_> {
        self.gate.write()
    }

    /// Moves every change that no commit has taken yet to `record`.
    pub fn take_journal(&self, _: &GroupBarrier<'_>, packer: &mut Packer, record: &mut Vec<u8>) {
        for (word, bits) in self.pending.iter().enumerate() {
            let mut bits = bits.swap(0, AcqRel);
            while bits != 0 {
                let mut stripe = self.stripe(word * WORD_BITS + bits.trailing_zeros() as usize);
                packer.pack(&stripe.staged, record);
                stripe.note_taken();
                bits &= bits - 1;
            }
        }
    }

    /// Returns a record of every change that no commit has taken yet, and leaves them for the next commit.
    pub fn copy_journal(&self) -> Vec<u8> {
        let (mut packer, mut record) = (Packer::default(), Vec::new());
        self.stripes.iter().for_each(|stripe| packer.pack(&stripe.lock().staged, &mut record));
        record
    }

    /// Makes room for one more counter in the stripe, which the caller holds.
    fn make_room(&self, stripe: &mut Stripe) {
        stripe.make_room(&self.marks);
        if !stripe.holds_all && !self.needs_records.load(Relaxed) {
            self.needs_records.store(true, Relaxed);
        }
    }

    /// Begins a change in the stripe, which the caller holds. Returns the tags of the counter that changes.
    fn change(&self, stripe: &mut Stripe, hash: KeyHash, recorded: bool) -> Tags {
        if stripe.staged.is_empty() {
            self.mark_pending(hash.stripe());
        }
        // Both are read under the stripe's lock, after the stripe is marked as pending. So either that commit has not
        // taken this stripe's changes yet, or the next one will.
        stripe.changed_in = self.commits.open();
        Tags { used: true, recorded, epoch: stripe.epoch(), mark: self.marks.open() as Mark }
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

/// Returns the number of stripes, a power of two. The model checker finds more with only a few of them.
pub fn stripes() -> usize {
    if is_modeled() { 2 } else { 1024 }
}

/// A hash that stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash {
    pub high: u64,
    low: u64,
}

impl KeyHash {
    /// Returns the number of the counter's stripe.
    pub fn stripe(self) -> usize {
        self.low as usize % stripes()
    }
}

/// Hashes keys with a secret.
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// Draws a secret. The model checker needs the same one in each run.
    pub fn new() -> Self {
        let random = RandomState::new();
        let [low, high] = if is_modeled() { [0, 1] } else { [random.hash_one(0), random.hash_one(1)] };
        Self(SipHasher13::new_with_keys(low, high))
    }

    /// Hashes a counter's key.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.0.hash(key);
        KeyHash { high: hash.h1, low: hash.h2 }
    }

    /// Hashes a key from the journal, of a counter or a record.
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        let bucket = self.hash(record_key::bucket(key));
        if record_key::is_record(key) { self.hash_of_record(key, bucket) } else { bucket }
    }

    /// Hashes a record's key. The record is in the stripe of its bucket.
    pub fn hash_of_record(&self, key: &[u8], bucket: KeyHash) -> KeyHash {
        KeyHash { high: self.0.hash(key).h1, low: bucket.low }
    }
}

/// Maximum number of times that a batch's records are read in advance. After that, records that are outdated are read
/// under their stripes' locks.
const ROUNDS: u32 = 3;
/// RocksDB is asked for the records that are in its memory in one of `TRIED_EVERY` batches, and in every batch while most of them
/// are.
const TRIED_EVERY: u32 = 32;

/// Decides whether to ask RocksDB first only for records in its memory. If it does, RocksDB searches twice for the
/// records that are not.
#[derive(Debug, Default)]
pub struct CacheYield {
    /// Whether at least three quarters of the records were in memory at the last attempt.
    found_most: AtomicBool,
    batches: AtomicU32,
}

impl CacheYield {
    pub fn is_worth_a_try(&self) -> bool {
        // An occasional attempt detects a change.
        let is_due = self.batches.fetch_add(1, Relaxed).is_multiple_of(TRIED_EVERY);
        is_due || self.found_most.load(Relaxed)
    }

    pub fn note(&self, found: usize, wanted: usize) {
        self.found_most.store(found * 4 >= wanted * 3, Relaxed);
    }
}

/// The look-ups of one batch.
#[derive(Default)]
pub struct Lookups {
    /// The look-ups, in the order of the batch's entries.
    pub lookups: Vec<Lookup>,
    pub keys: Vec<u8>,
    rounds: u32,
}

/// A counter to look up.
pub struct Lookup {
    /// The entry's index in its batch.
    index: usize,
    pub key: Range<usize>,
    pub limit: Limit,
    /// The number of evictions before the record was read.
    evictions: u32,
    pub record: Option<Result<CounterRecord, StoreError>>,
}

impl Lookups {
    /// Returns look-ups that have used up their rounds, so that records are read under their stripes' locks.
    pub fn exhausted() -> Self {
        Self { rounds: ROUNDS, ..Self::default() }
    }

    /// Takes the record that was read for this entry, if it is still current after this number of evictions.
    pub fn take(&mut self, index: usize, evictions: u32) -> Option<Result<CounterRecord, StoreError>> {
        let position = self.lookups.binary_search_by_key(&index, |lookup| lookup.index).ok()?;
        self.lookups.get_mut(position).filter(|lookup| lookup.evictions == evictions)?.record.take()
    }

    /// Returns whether records may be read in advance once more.
    pub fn may_go_on(&self) -> bool {
        self.rounds < ROUNDS
    }

    /// Replaces the look-ups with those that `entries` need.
    pub fn begin<'a>(&mut self, table: &HotTable, entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>) {
        self.rounds += 1;
        self.keys.clear();
        self.lookups.clear();
        for (index, key, entry) in entries {
            let key = record_key::bucket(key);
            let Some(evictions) = table.evictions_if_absent(key) else { continue };
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            let key = start..self.keys.len();
            self.lookups.push(Lookup { index, key, limit: entry.limit, evictions, record: None });
        }
    }

    /// Returns the number of records that have not been read yet.
    pub fn unread(&self) -> usize {
        self.lookups.iter().filter(|lookup| lookup.record.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RocksStore;
    use divvy_core::clock::Clock;
    use divvy_store::testing::{TAKE, outcomes, wait, window};
    use divvy_store::{RocksOptions, Store};

    #[test]
    fn memory_is_searched_first_while_it_has_most_records() {
        let cache = CacheYield::default();
        assert!(cache.is_worth_a_try() && !cache.is_worth_a_try());
        cache.note(30, 30);
        assert!(cache.is_worth_a_try() && cache.is_worth_a_try());
        cache.note(10, 30);
        assert!(!cache.is_worth_a_try());
        assert_eq!((0..TRIED_EVERY).filter(|_| cache.is_worth_a_try()).count(), 1);
    }

    #[test]
    fn counters_missing_from_memory_are_read_from_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        // The table keeps only what is not written back.
        let options = RocksOptions { cache_memory: 0, ..RocksOptions::default() };
        let store = RocksStore::open(dir.path(), options).unwrap();
        let (limit, now) = (window(100, 600), Clock::system().now());
        let keys: Vec<_> = (0..2_000).map(|actor| format!("actor {actor}")).collect();
        let hits: Vec<_> = keys.iter().map(|key| (key.as_str(), limit, TAKE)).collect();
        for left in [99, 98, 97] {
            let lefts: Vec<_> = outcomes(&store, now, &hits).into_iter().map(|outcome| outcome.unwrap().left).collect();
            assert!(lefts.iter().all(|of_one| *of_one == left), "{left}: {lefts:?}");
            // All files are new, so none of their blocks is in memory. Then other counters evict these.
            store.core.engine.write_back().unwrap();
            let others: Vec<_> = (0..4_000).map(|other| format!("other {left} {other}")).collect();
            let others: Vec<_> = others.iter().map(|key| (key.as_str(), limit, TAKE)).collect();
            assert!(outcomes(&store, now, &others).iter().all(Result::is_ok));
        }
        assert!(store.core.engine.table.usage().misses > 2_000);
        assert_eq!(store.core.engine.damage.records.load(Relaxed), 0);
        wait(store.close()).unwrap();
    }
}
