//! The hot table: counters in memory, in front of RocksDB.
//!
//! Striped by key hash: a stripe's mutex makes read-modify-write atomic and gives read-your-writes. Beside its counters
//! a stripe keeps what the next commit has to write. A counter stays in the table until its own record in RocksDB is
//! current. Nothing here waits for a disk. A counter that may be in RocksDB and is not in the table is [looked up](super::lookups)
//! before its stripe is locked.
//!
//! An entry need not hold its key: 74 bits of a hash whose secret is drawn at each start stand for it. That two of 100
//! million keys share them has a probability of 3 · 10⁻⁷, and no client can bring it about.

mod records;
mod together;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use super::commit::GroupCommit;
use super::health::Health;
use super::journal::{self, Packer};
use super::marks::{Mark, Marks};
use super::slot::Tags;
use super::stripe::Stripe;
use super::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use super::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use crate::algorithm::{Outcome, Record as RecordBeside, State};
use crate::clock::Timestamp;
use crate::store::bounds::{CounterBudget, RecordBudgets};
use crate::store::contract::{Change, Entry, StoreError};
use crate::store::record_key;

/// Number of stripes, a power of two. The model checker sees more with few of them.
pub const STRIPES: usize = if cfg!(all(test, feature = "model")) { 2 } else { 1024 };
const WORD_BITS: usize = u64::BITS as usize;

/// Stands for a bucket key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash {
    high: u64,
    low: u64,
}

impl KeyHash {
    /// The number of the stripe that has the counter.
    pub fn stripe(self) -> usize {
        self.low as usize % STRIPES
    }
}

/// A counter's record, if it has one: its state, and when it expires.
pub type Record = Option<(State, Timestamp)>;

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
    /// Room for counters.
    pub counters: &'a CounterBudget,
    /// Room for records of reservations and answers.
    pub records: &'a RecordBudgets,
}

/// Which counters a write-back writes: those whose last change lies in segment `through` or earlier.
pub struct Due<'a> {
    pub through: u32,
    /// By which counters have expired.
    pub now: Timestamp,
    pub group: &'a GroupCommit,
    pub budget: &'a CounterBudget,
}

/// No group is at work: see [`Table::between_groups`].
pub struct BetweenGroups<'a>(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'a, ()>);

/// A change that was found in the journal when the store was opened.
pub struct Replayed {
    pub hash: KeyHash,
    pub what: Found,
    /// The number of the segment that it was in.
    pub segment: u32,
}

/// What a change in the journal says of a counter, or of a record beside one.
pub enum Found {
    Counter(Record),
    Record(Option<RecordBeside>),
}

/// What the table holds, and how it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub counters: u64,
    pub bytes: u64,
    /// Actions that needed no look-up in RocksDB.
    pub hits: u64,
    /// Actions on counters that had to be looked up.
    pub misses: u64,
}

/// The number of counters, as the table sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Counters without a record in RocksDB, less records without a counter.
    pub unrecorded: i64,
    /// Counters that were made since the start, less those that were forgotten.
    pub begun: i64,
}

/// The striped table.
pub struct Table {
    stripes: Box<[Mutex<Stripe>]>,
    /// One bit a stripe: set while it has staged changes that no commit took.
    pending: Box<[AtomicU64]>,
    /// Held by a group while it changes its counters, and by a commit while it takes changes: it takes all of a group's,
    /// or none. Comes before the stripes.
    gate: RwLock<()>,
    pub marks: Marks,
    /// Which counters have records is known.
    knows_records: AtomicBool,
    /// Some stripes do not hold all of their counters.
    needs_records: AtomicBool,
    /// What the counters may take, if they can be evicted (bytes).
    memory: usize,
    /// How much more they take, because their records are not current.
    excess: AtomicUsize,
    hasher: SipHasher13,
}

impl Table {
    /// A table that takes up to `memory` bytes, and more only for counters whose records in RocksDB are not current.
    pub fn new(memory: usize) -> Self {
        let [low, high] = hash_secret();
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(Stripe::new(memory / STRIPES))).collect(),
            pending: (0..STRIPES.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect(),
            gate: RwLock::default(),
            marks: Marks::new(),
            knows_records: AtomicBool::new(false),
            needs_records: AtomicBool::new(true),
            memory,
            excess: AtomicUsize::new(0),
            hasher: SipHasher13::new_with_keys(low, high),
        }
    }

    /// The store holds no counter but those in the table.
    pub fn holds_all(&self) {
        self.needs_records.store(false, Relaxed);
        self.stripes.iter().for_each(|stripe| stripe.lock().holds_all = true);
        self.knows_records.store(true, Release);
    }

    /// Applies `entry` to the counter with `key`, if there is one or there is room for it. `load` gives the counter's
    /// record: its state, and when it expires. It is told the number of departures that goes with it. `None`, and nothing
    /// is changed, when it gives nothing.
    ///
    /// # Errors
    /// Those of `load`, and the disk's failure when a change could not be kept; nothing is changed then.
    pub fn act(
        &self,
        key: &[u8],
        entry: &Entry,
        now: Timestamp,
        Surroundings { group, health, counters: budget, .. }: Surroundings<'_>,
        load: impl FnOnce(u32) -> Result<Option<Record>, StoreError>,
    ) -> Result<Option<Acted>, StoreError> {
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let mut index = stripe.find(hash.high);
        if index.is_none() && !stripe.holds_all {
            let Some(record) = load(*stripe.departures(hash.high))? else { return Ok(None) };
            stripe.loaded += 1;
            index = record.map(|(state, expires)| self.keep_loaded(stripe, hash, state, expires));
        }
        stripe.acted += 1;
        let found = stripe.found(index);
        let is_new = found.state().is_none();
        if is_new {
            // What is refused must leave no trace, and push no other counter out of the table.
            if let Some(fault) = health.refusal(entry) {
                return Err(fault);
            }
            if let Some(refusal) = budget.refusal(entry) {
                return refusal.map(|outcome| Some(Acted::at_once(outcome)));
            }
        }
        let (outcome, change) = entry.decide(found.state());
        let state = match change {
            Change::Keep => {
                let durable_after = index.map_or(0, |index| {
                    stripe.touch(index);
                    stripe.durable_after(index)
                });
                return Ok(Some(Acted { outcome, durable_after }));
            }
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
            (true, true) if !budget.begin() => {
                return budget.refuse(entry).map(|outcome| Some(Acted::at_once(outcome)));
            }
            (true, true) => stripe.begun += 1,
            (false, false) => {
                budget.forget();
                stripe.begun -= 1;
            }
            _ => {}
        }
        let is_recorded = index.is_some_and(|index| stripe.slot(index).tags().recorded);
        self.set((stripe, index), (hash, key, entry), state, is_recorded, now, group);
        Ok(Some(Acted { outcome, durable_after: stripe.changed_in }))
    }

    /// Sets the counter's state in its stripe, where it may be at an index, and stages that for the next commit.
    #[inline]
    fn set(
        &self,
        (stripe, index): (&mut Stripe, Option<usize>),
        (hash, key, entry): (KeyHash, &[u8], &Entry),
        state: Option<State>,
        is_recorded: bool,
        now: Timestamp,
        group: &GroupCommit,
    ) {
        if index.is_none() {
            self.make_room(stripe);
        }
        let tags = self.change(stripe, hash, group, is_recorded);
        let expires = match &state {
            // Not reckoned for nothing: it is the window's end anyway.
            Some(State::FixedWindow(window)) => window.ends,
            Some(state) => entry.expiry(state, now),
            None => now,
        };
        let index = stripe.set(index, hash.high, state, expires, tags);
        stage(stripe, hash.high, index, key);
        self.count_excess(stripe);
    }

    /// Keeps what was read of a counter. Returns its index.
    fn keep_loaded(&self, stripe: &mut Stripe, hash: KeyHash, state: State, expires: Timestamp) -> usize {
        self.make_room(stripe);
        let tags = stripe.loaded_tags(self.marks.clean_mark(), true);
        stripe.set(None, hash.high, Some(state), expires, tags)
    }

    /// If an action on the counter with `key` needs its record: the number of departures that goes with a record that is
    /// read from now on.
    pub fn departures_if_absent(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hash(key);
        let mut stripe = self.stripe(hash.stripe());
        let is_absent = !stripe.holds_all && stripe.find(hash.high).is_none();
        is_absent.then(|| *stripe.departures(hash.high))
    }

    /// Whether actions may need records at all. They may a moment later even if not.
    pub fn needs_records(&self) -> bool {
        self.needs_records.load(Relaxed)
    }

    /// The state of the counter with `key`, as it is now; the outer `None` when it is not in the table.
    pub fn peek(&self, key: &[u8]) -> Option<Option<State>> {
        let hash = self.hash(key);
        let stripe = self.stripe(hash.stripe());
        stripe.find(hash.high).map(|index| stripe.found(Some(index)).state().cloned())
    }

    /// While it is held, every group has either changed all of its counters or none.
    pub fn between_groups(&self) -> BetweenGroups<'_> {
        BetweenGroups(self.gate.write())
    }

    /// Moves every change that no commit has taken yet to `record`.
    pub fn take_journal(&self, _: &BetweenGroups<'_>, packer: &mut Packer, record: &mut Vec<u8>) {
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

    /// Appends to `record` every change that no commit has taken yet, and leaves them for the next commit.
    pub fn copy_journal(&self, packer: &mut Packer, record: &mut Vec<u8>) {
        self.stripes.iter().for_each(|stripe| packer.pack(&stripe.lock().staged, record));
    }

    /// A commit in the journal has `change`. If its counter is due: stages in `changes` what its record has to be. It
    /// counts as recorded.
    ///
    /// Only what is committed becomes a record: one counter's part of a group, or a hit that was never acknowledged, must not
    /// outlive a crash alone.
    ///
    /// A counter that has expired is forgotten instead: true then. `is_late` says of a counter whether a change of it may
    /// outlive the segment in the journal: then forgetting it has to be a change as well.
    pub fn write_back(
        &self,
        change: &journal::Change<'_>,
        &Due { through, now, group, budget }: &Due<'_>,
        is_late: impl FnOnce(KeyHash) -> bool,
        changes: &mut Vec<u8>,
    ) -> bool {
        let key = change.key;
        if record_key::is_record(key) {
            Self::write_back_record(change, now, changes);
            return false;
        }
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let Some(index) = stripe.find(hash.high) else { return false };
        let slot = stripe.slot(index);
        let tags = slot.tags();
        if self.marks.is_clean(tags.mark) {
            return false;
        }
        if stripe.durable_after(index) > group.done() {
            // The last change of the key that the write-back comes to is its last before that one, or a later segment has it.
            journal::stage(changes, key, |out| out.extend_from_slice(change.value));
            stripe.retag(index, Tags { recorded: !change.value.is_empty(), ..tags });
            return false;
        }
        if self.marks.number(tags.mark) > through {
            // A later segment has that change.
            return false;
        }
        if slot.is_live() && slot.expires() > now.as_nanos() {
            journal::stage(changes, key, |out| stripe.write_value(index, out));
            stripe.retag(index, Tags { recorded: true, ..tags });
            return false;
        }
        let is_late = slot.is_live() && is_late(hash);
        let may_have_record = tags.recorded || !self.knows_records();
        if slot.is_live() {
            stripe.begun -= 1;
            budget.forget();
        }
        // A late one's, too: a compaction may drop it, and the count would rest on a record that is not there.
        if may_have_record {
            journal::stage(changes, key, |_| ());
        }
        if is_late {
            let tags = self.change(stripe, hash, group, false);
            stripe.clear(index, Tags { used: false, ..tags });
            stage(stripe, hash.high, index, key);
        } else {
            stripe.clear(index, Tags { recorded: false, ..tags });
        }
        slot.is_live()
    }

    /// If the counter is about to be clean with segment `through`: it is not yet, since its last change is in the next
    /// segment, or will be. If it left the table, that change might be gone; and if a compaction dropped its record, the next
    /// start would find a counter that is not counted.
    pub fn stays_in_journal(&self, hash: KeyHash, through: u32) {
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.find(hash.high) else { return };
        let tags = stripe.slot(index).tags();
        if !self.marks.is_clean(tags.mark) && self.marks.number(tags.mark) <= through {
            stripe.retag(index, Tags { mark: through.wrapping_add(1) as Mark, ..tags });
        }
    }

    /// Stages the counters that these records changed as they are now, once each, for the open segment.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn change_again<'a>(
        &self,
        _: &BetweenGroups<'_>,
        records: impl Iterator<Item = &'a [u8]>,
        changes: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        for record in records {
            journal::each_change(record, |change| {
                let hash = self.hash_of(change.key);
                if !seen.insert(hash) {
                    return Ok(());
                }
                if record_key::is_record(change.key) {
                    self.stage_record(hash, change.key, changes);
                } else {
                    let mut stripe = self.stripe(hash.stripe());
                    if let Some(index) = stripe.find(hash.high) {
                        let tags = Tags { mark: self.marks.open() as Mark, ..stripe.slot(index).tags() };
                        stripe.retag(index, tags);
                        journal::stage(changes, change.key, |out| stripe.write_value(index, out));
                    }
                }
                Ok::<_, StoreError>(())
            })?;
        }
        Ok(())
    }

    /// Makes changes of one stripe that were found in the journal when the store was opened.
    pub fn replay(&self, stripe: usize, changes: impl Iterator<Item = Replayed>) {
        let mut stripe = self.stripe(stripe);
        for Replayed { hash, what, segment } in changes {
            let state = match what {
                Found::Counter(state) => state,
                Found::Record(record) => {
                    stripe.load_record(hash.high, record);
                    continue;
                }
            };
            let index = stripe.find(hash.high);
            if index.is_none() {
                self.make_room(&mut stripe);
            }
            let tags = Tags { recorded: false, mark: segment as Mark, ..stripe.loaded_tags(0, false) };
            let (state, expires) = state.unzip();
            stripe.note_time(state.as_ref());
            stripe.set(index, hash.high, state, expires.unwrap_or_default(), tags);
        }
        self.count_excess(&mut stripe);
    }

    /// A record that was in RocksDB when nothing had left the table yet. The counter is loaded if there is room. No
    /// write-back may run.
    pub fn note_record(&self, hash: KeyHash, record: Option<(State, Timestamp)>) {
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        stripe.note_time(record.as_ref().map(|(state, _)| state));
        if let Some(index) = stripe.find(hash.high) {
            let slot = stripe.slot(index);
            // The record of one that was forgotten is deleted by now if that is written back.
            if !slot.tags().recorded && (slot.is_live() || !self.marks.is_clean(slot.tags().mark)) {
                stripe.retag(index, Tags { recorded: true, ..slot.tags() });
            }
            return;
        }
        // What has left may have changed since.
        if stripe.holds_all || stripe.has_given_way() {
            return;
        }
        match record {
            Some((state, expires)) if stripe.has_room() => {
                let tags = stripe.loaded_tags(self.marks.clean_mark(), false);
                stripe.set(None, hash.high, Some(state), expires, tags);
            }
            _ => stripe.note_no_room(),
        }
    }

    /// Every record was noted. A stripe that nothing has left holds all there is.
    pub fn noted_records(&self) {
        self.needs_records.store(false, Relaxed);
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.holds_all = !stripe.has_given_way();
            if !stripe.holds_all {
                self.needs_records.store(true, Relaxed);
            }
        }
        self.knows_records.store(true, Release);
    }

    /// It is unknown which counters have records, until all records are noted again.
    pub fn forget_records(&self) {
        self.knows_records.store(false, Release);
        self.stripes.iter().for_each(|stripe| stripe.lock().forget_records());
    }

    /// Whether it is known which counters have records.
    pub fn knows_records(&self) -> bool {
        self.knows_records.load(Acquire)
    }

    /// With the number of records in RocksDB this makes the number of counters: exactly, if records are known and no
    /// write-back runs.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            tally.unrecorded += stripe.unrecorded;
            tally.begun += stripe.begun;
        }
        tally
    }

    /// A compaction drops a record of this counter, because it has expired. Whether that may have been its latest
    /// record: not when the table knows of a later one, or that the counter is forgotten.
    pub fn record_dropped(&self, key: &[u8], value: &[u8]) -> bool {
        if record_key::is_record(key) {
            return false;
        }
        let hash = self.hash(key);
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.find(hash.high) else { return true };
        let slot = stripe.slot(index);
        let mut latest = Vec::new();
        stripe.write_value(index, &mut latest);
        let is_latest = slot.is_live() && self.marks.is_clean(slot.tags().mark) && latest == value;
        if is_latest {
            stripe.clear(index, Tags { recorded: false, ..slot.tags() });
        }
        is_latest
    }

    /// Forgets the counter if it has expired; the caller deletes its record then. `load` tells when its record in RocksDB
    /// expires. Nothing waits for that to be durable: an expired counter may come back after a crash. True if it is one
    /// less.
    ///
    /// # Errors
    /// Those of `load`; nothing is changed then.
    pub fn sweep(
        &self,
        key: &[u8],
        now: Timestamp,
        group: &GroupCommit,
        budget: &CounterBudget,
        load: impl FnOnce() -> Result<Option<Timestamp>, StoreError>,
    ) -> Result<bool, StoreError> {
        let hash = self.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        match stripe.find(hash.high) {
            Some(index) => {
                let slot = stripe.slot(index);
                if !slot.is_live() || slot.expires() > now.as_nanos() {
                    return Ok(false);
                }
                // Its last change may still be in the journal: the next start must not take it for the counter.
                let tags = self.change(stripe, hash, group, false);
                stripe.clear(index, tags);
                stage(stripe, hash.high, index, key);
            }
            None => {
                if load()?.is_none_or(|expires| expires > now) {
                    return Ok(false);
                }
                // A hit that comes before the record is deleted must not take it for the counter.
                self.make_room(stripe);
                let tags = Tags { recorded: false, ..stripe.loaded_tags(self.marks.clean_mark(), true) };
                stripe.set(None, hash.high, None, now, tags);
            }
        }
        stripe.begun -= 1;
        budget.forget();
        Ok(true)
    }

    /// A look at every stripe in turn.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            usage.counters += stripe.len() as u64;
            usage.bytes += stripe.bytes() as u64;
            usage.hits += stripe.acted - stripe.loaded;
            usage.misses += stripe.loaded;
        }
        usage
    }

    /// What the counters may take, if they can be evicted (bytes).
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// How much more they take, because their records are not current (bytes).
    pub fn excess(&self) -> usize {
        self.excess.load(Relaxed)
    }

    /// Gives back what exceeds the memory, as far as records are current.
    pub fn give_back(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if stripe.counted_excess > 0 {
                stripe.give_back(&self.marks);
                self.count_excess(&mut stripe);
            }
        }
    }

    /// Counts what the stripe, which the caller holds, takes beyond its memory.
    fn count_excess(&self, stripe: &mut Stripe) {
        let excess = stripe.excess();
        let counted = std::mem::replace(&mut stripe.counted_excess, excess);
        // What all stripes have counted is never less than what one has.
        match excess.checked_sub(counted) {
            Some(0) => {}
            Some(more) => drop(self.excess.fetch_add(more, Relaxed)),
            None => drop(self.excess.fetch_sub(counted - excess, Relaxed)),
        }
    }

    /// Makes room for one more counter in the stripe, which the caller holds.
    fn make_room(&self, stripe: &mut Stripe) {
        stripe.make_room(&self.marks);
        if !stripe.holds_all && !self.needs_records.load(Relaxed) {
            self.needs_records.store(true, Relaxed);
        }
    }

    /// Begins a change in the stripe, which the caller holds: the tags of the counter that changes.
    fn change(&self, stripe: &mut Stripe, hash: KeyHash, group: &GroupCommit, recorded: bool) -> Tags {
        if stripe.staged.is_empty() {
            self.mark_pending(hash.stripe());
        }
        // Both are read under the stripe's lock, and after it is pending: that commit has not yet taken this stripe's
        // changes, or the next one will.
        stripe.changed_in = group.open();
        Tags { used: true, recorded, epoch: stripe.epoch(), mark: self.marks.open() as Mark }
    }

    /// What stands for a key that was found in the journal: a counter's, or that of a record.
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        let bucket = self.hash(record_key::bucket(key));
        if record_key::is_record(key) { self.hash_of_record(key, bucket) } else { bucket }
    }

    /// What stands for a counter's key.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.hasher.hash(key);
        KeyHash { high: hash.h1, low: hash.h2 }
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

/// Stages the counter as it is now.
fn stage(stripe: &mut Stripe, hash: u64, index: usize, key: &[u8]) {
    let mut staged = std::mem::take(&mut stripe.staged);
    let write_value = |out: &mut Vec<u8>| stripe.write_value(index, out);
    // A counter that is hit again and again is staged once a commit.
    let again = stripe.staged_last(hash).is_some_and(|at| journal::restage(&mut staged, at, write_value));
    if !again {
        let at = journal::stage(&mut staged, key, |out| stripe.write_value(index, out));
        stripe.set_staged_last(hash, at);
    }
    stripe.staged = staged;
}

/// The secret of the hash, drawn at start. The model checker repeats runs, and needs the same one.
fn hash_secret() -> [u64; 2] {
    if cfg!(all(test, feature = "model")) {
        return [0, 1];
    }
    let random = RandomState::new();
    [random.hash_one(0), random.hash_one(1)]
}
