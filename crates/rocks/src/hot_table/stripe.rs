//! One stripe of the table: its counters, and the changes for the next commit. It grows within its memory, and then evicts
//! counters that are written back.
//!
//! Callers hold the stripe's lock, and decide how an action changes a counter.

use std::borrow::Cow;

use foldhash::fast::FixedState;
use slab::Slab;

use super::slots::{Slot, SlotState, Slots, Tags};
use crate::journal;
use crate::journal::{Mark, SegmentMarks};
use divvy_core::algorithm::{Record, State, WindowState};
use divvy_core::clock::Timestamp;
use divvy_store::{RecordBudgets, Records, value};

/// Initial capacity for counters, and for states outside of the slots.
const FIRST_CAPACITY: usize = 8;
/// Memory for staged changes that a stripe keeps from commit to commit (bytes).
const KEPT_STAGED: usize = 16 << 10;
/// Number of groups of counters whose evictions are counted separately. A batch evicts as many counters as it loads,
/// and must then read counters in the same groups again.
const EVICTION_GROUPS: usize = 16;
/// Maximum number of counters that are evicted at once.
const EVICTED_AT_ONCE: usize = 2;
/// A stripe may exceed its memory by one part in this many, because giving memory back takes a pass over its counters.
pub(super) const TOLERATED_EXCESS: usize = 16;

/// One stripe's counters, and their changes for the next commit.
#[derive(Debug, Default)]
pub struct Stripe {
    /// Memory for counters that can be evicted (bytes).
    memory: usize,
    /// Excess over `memory` when the table last counted it (bytes).
    pub counted_excess: usize,
    pub slots: Slots,
    /// States that do not fit into a slot.
    outside: Slab<State>,
    /// Heap memory of those states (bytes).
    outside_bytes: usize,
    /// Staged changes since the last commit took them.
    pub staged: Vec<u8>,
    /// The hash of the counter that changed last, and the offset of its staged value.
    last_staged: Option<(u64, usize)>,
    /// Number of times that commits have taken `staged`.
    taken: u64,
    /// The commit that makes the changes in `staged` durable.
    pub changed_in: u64,
    /// The commit that makes all earlier changes durable.
    taken_in: u64,
    /// Whether every counter of the stripe is here. If so, a counter that is not here does not exist.
    pub holds_all: bool,
    /// Whether a counter that may have a record has left, or found no room when it was loaded.
    pub lacks_counters: bool,
    /// Number of counters without a record in RocksDB, minus the records without a counter.
    pub unrecorded: i64,
    /// Number of actions.
    pub acted: u64,
    /// Number of actions whose counter had to be looked up in RocksDB.
    pub loaded: u64,
    /// The value of `SegmentMarks::clean` at which no counter could be evicted.
    stuck_at: Option<u32>,
    /// Number of counters that have left, by group.
    evictions: [u32; EVICTION_GROUPS],
    /// The records of the stripe's buckets, by the hash of their keys. Boxed, to keep them out of the cache lines that
    /// plain hits use.
    pub records: Box<Records<u64, FixedState>>,
}

impl Stripe {
    /// Creates an empty stripe with `memory` bytes.
    pub fn new(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Returns the memory of the counters (bytes).
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.bytes_outside()
    }

    fn bytes_outside(&self) -> usize {
        self.outside.capacity() * size_of::<State>() + self.outside_bytes
    }

    /// Returns the number of counters in this counter's group that have left. If the number has not changed, a counter
    /// that is absent before and after was absent all the time.
    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the number of groups")]
    pub fn evictions(&mut self, hash: u64) -> &mut u32 {
        &mut self.evictions[hash as usize % EVICTION_GROUPS]
    }

    /// Returns the state at an index, if there is one.
    pub fn state(&self, index: Option<usize>) -> Option<Cow<'_, State>> {
        match self.slots.at(index?).state() {
            SlotState::Absent => None,
            SlotState::Window { ends, count } => {
                Some(Cow::Owned(State::FixedWindow(WindowState { ends: Timestamp::from_nanos(ends), count })))
            }
            SlotState::Outside { index, .. } => self.outside.get(index).map(Cow::Borrowed),
        }
    }

    /// Appends the counter's value, or nothing if it does not exist.
    #[inline]
    pub fn write_value(&self, index: usize, out: &mut Vec<u8>) {
        let slot = self.slots.at(index);
        if let SlotState::Window { ends, count } = slot.state() {
            // Fast path, without a copy of the state.
            value::encode_window(ends, count, out);
        } else if let Some(state) = self.state(Some(index)) {
            value::encode(&state, Timestamp::from_nanos(slot.expires()), out);
        }
    }

    /// Marks the counter as used.
    pub fn touch(&mut self, index: usize) {
        let slot = self.slots.at(index);
        let tags = slot.tags();
        // A write that is not needed would make the processor write the cache line back.
        if !tags.used {
            self.slots.set(index, slot.with_tags(Tags { used: true, ..tags }));
        }
    }

    /// Returns the commit that makes the counter's last change durable, or a later one.
    pub fn durable_after(&self, index: usize) -> u64 {
        let is_staged = self.slots.at(index).tags().epoch == self.epoch() && !self.staged.is_empty();
        if is_staged { self.changed_in } else { self.taken_in }
    }

    /// Returns the commit that makes all changes of the stripe durable.
    pub fn all_durable_after(&self) -> u64 {
        if self.staged.is_empty() { self.taken_in } else { self.changed_in }
    }

    /// Returns the epoch of a change that is made now.
    pub fn epoch(&self) -> u8 {
        (self.taken % Slot::EPOCHS) as u8
    }

    /// Stages the current state of the counter.
    // Inlined, because it runs for each counter of each hit.
    #[inline(always)]
    pub fn stage(&mut self, hash: u64, index: usize, key: &[u8]) {
        let mut staged = std::mem::take(&mut self.staged);
        let write_value = |out: &mut Vec<u8>| self.write_value(index, out);
        // A counter that is hit again and again is staged once per commit.
        let earlier = self.last_staged.filter(|(last, _)| *last == hash);
        if !earlier.is_some_and(|(_, offset)| journal::restage(&mut staged, offset, write_value)) {
            let offset = journal::stage(&mut staged, key, write_value);
            self.last_staged = Some((hash, offset));
        }
        self.staged = staged;
    }

    /// Notes that a commit took the staged changes.
    pub fn note_taken(&mut self) {
        self.staged.clear();
        self.staged.shrink_to(KEPT_STAGED);
        self.last_staged = None;
        self.taken += 1;
        self.taken_in = self.changed_in;
    }

    /// Sets the counter's state, which expires at `expires`: a window at its end. Returns its index.
    pub fn set(
        &mut self,
        index: Option<usize>,
        hash: u64,
        state: Option<State>,
        expires: Timestamp,
        tags: Tags,
    ) -> usize {
        let old = index.map(|index| self.slots.at(index));
        let slot_state = match (state, old.map(|slot| slot.state())) {
            (Some(State::FixedWindow(state)), before) if Slot::fits(state.count) => {
                self.drop_outside(before);
                SlotState::Window { ends: state.ends.as_nanos(), count: state.count }
            }
            (Some(state), Some(SlotState::Outside { index, .. })) if self.outside.contains(index) => {
                self.outside_bytes += heap_bytes(&state);
                if let Some(place) = self.outside.get_mut(index) {
                    self.outside_bytes -= heap_bytes(place);
                    *place = state;
                }
                SlotState::Outside { expires: expires.as_nanos(), index }
            }
            (Some(state), _) => {
                self.outside_bytes += heap_bytes(&state);
                if !self.has_place_outside() {
                    self.outside.reserve_exact(self.outside_may_grow_by().max(FIRST_CAPACITY));
                }
                SlotState::Outside { expires: expires.as_nanos(), index: self.outside.insert(state) }
            }
            (None, before) => {
                self.drop_outside(before);
                SlotState::Absent
            }
        };
        let slot = Slot::new(hash, slot_state, tags);
        self.unrecorded += slot.unrecorded() - old.map_or(0, |old| old.unrecorded());
        match index {
            Some(index) => {
                self.slots.set(index, slot);
                index
            }
            None => {
                if !self.slots.has_room() {
                    self.slots.resize(self.slots.capacity() * 5 / 4 + FIRST_CAPACITY);
                }
                self.slots.insert(slot)
            }
        }
    }

    /// Changes the counter's tags.
    pub fn retag(&mut self, index: usize, tags: Tags) {
        let old = self.slots.at(index);
        let slot = old.with_tags(tags);
        self.unrecorded += slot.unrecorded() - old.unrecorded();
        self.slots.set(index, slot);
    }

    /// Records that the counter does not exist anymore.
    pub fn clear(&mut self, index: usize, tags: Tags) {
        let hash = self.slots.at(index).hash;
        self.set(Some(index), hash, None, Timestamp::default(), tags);
    }

    #[inline]
    fn drop_outside(&mut self, state: Option<SlotState>) {
        if let Some(SlotState::Outside { index, .. }) = state
            && let Some(state) = self.outside.try_remove(index)
        {
            self.outside_bytes -= heap_bytes(&state);
        }
    }

    /// Forgets which counters have records.
    pub fn forget_records(&mut self) {
        for slot in self.slots.iter_mut() {
            *slot = slot.with_tags(Tags { recorded: false, ..slot.tags() });
        }
        self.unrecorded = self.slots.iter_mut().map(|slot| slot.unrecorded()).sum();
    }

    /// Records the time when the reservations of a loaded state last changed. The server's clock may have been set
    /// back since.
    pub fn note_time(&mut self, state: Option<&State>) {
        if let Some(State::Reserved(state)) = state {
            self.records.note_time(state.groups.time);
        }
    }

    /// Loads a record while the store is being opened; `None` if it was forgotten.
    pub fn load_record(&mut self, hash: u64, record: Option<Record>, budgets: &RecordBudgets) {
        match record {
            Some(record) => self.records.set(hash, record, Some(budgets.found(&record))),
            None => self.records.remove(&hash),
        }
    }

    /// Returns the tags of a loaded counter, whose record is current.
    pub fn loaded_tags(&self, mark: Mark, used: bool) -> Tags {
        // An earlier epoch, because the counter has nothing staged.
        let epoch = (self.taken.wrapping_sub(1) % Slot::EPOCHS) as u8;
        Tags { used, recorded: true, epoch, mark }
    }

    /// Makes room for one more counter: by growing, or else by evicting counters that are written back and were not
    /// used recently. If no counter can be evicted, the stripe grows beyond its memory. Indexes are not valid
    /// afterwards.
    pub fn make_room(&mut self, marks: &SegmentMarks) {
        if self.has_room() {
            return;
        }
        for _ in 0..EVICTED_AT_ONCE {
            self.evict(marks);
        }
        if self.excess() > 0 {
            self.give_back(marks);
        } else if self.outside.len() + FIRST_CAPACITY < self.outside.capacity() / 2 {
            // The slots can use that memory.
            self.fit();
        }
    }

    /// Makes room for one more counter within the stripe's memory, without an eviction. Returns whether there is room.
    pub fn has_room(&mut self) -> bool {
        let has_place = self.outside.capacity() == 0 || self.has_place_outside() || self.outside_may_grow_by() > 0;
        self.excess() == 0 && has_place && (self.slots.has_room() || self.grow())
    }

    /// Returns the excess over the stripe's memory and the tolerated excess (bytes).
    pub fn excess(&self) -> usize {
        self.bytes().saturating_sub(self.memory + self.memory / TOLERATED_EXCESS)
    }

    /// Gives back memory beyond the bound, as far as counters are written back. Indexes are not valid afterwards.
    pub fn give_back(&mut self, marks: &SegmentMarks) {
        while self.least_bytes() > self.memory && self.evict(marks) {}
        // As long as counters that cannot be evicted exceed the bound, a move is worth half of the memory.
        if self.least_bytes() <= self.memory.max(self.bytes() / 2) {
            self.fit();
        }
    }

    /// Returns the memory that the counters and one more would take without gaps (bytes).
    pub(super) fn least_bytes(&self) -> usize {
        let slots = Slots::bytes_of(Slots::capacity_for(self.slots.len() + 1));
        slots + (self.outside.len() + 1) * size_of::<State>() + self.outside_bytes
    }

    fn grow(&mut self) -> bool {
        let most = Slots::capacity_within(self.memory.saturating_sub(self.bytes_outside()));
        let capacity = (self.slots.capacity() * 5 / 4 + FIRST_CAPACITY).min(most);
        let grows = capacity >= Slots::capacity_for(self.slots.len() + 1);
        if grows {
            self.slots.resize(capacity);
        }
        grows
    }

    /// Moves the counters into as little memory as they need.
    fn fit(&mut self) {
        let mut outside = Slab::with_capacity(self.outside.len());
        for slot in self.slots.iter_mut() {
            if let SlotState::Outside { expires, index } = slot.state()
                && let Some(state) = self.outside.try_remove(index)
            {
                let slot_state = SlotState::Outside { expires, index: outside.insert(state) };
                *slot = Slot::new(slot.hash, slot_state, slot.tags());
            }
        }
        self.outside = outside;
        self.slots.resize(Slots::capacity_for(self.slots.len() + 1));
    }

    pub(super) fn has_place_outside(&self) -> bool {
        self.outside.len() < self.outside.capacity()
    }

    /// Returns how many states may be added to the memory outside of the slots.
    pub(super) fn outside_may_grow_by(&self) -> usize {
        let step = self.outside.capacity() / 4 + FIRST_CAPACITY;
        step.min(self.memory.saturating_sub(self.bytes()) / size_of::<State>())
    }

    /// Evicts a counter, and returns whether one could be evicted.
    fn evict(&mut self, marks: &SegmentMarks) -> bool {
        let clean = marks.clean();
        if self.stuck_at == Some(clean) {
            return false;
        }
        let victim = self.slots.sweep(|slot| {
            let tags = slot.tags();
            if tags.used {
                *slot = slot.with_tags(Tags { used: false, ..tags });
                return false;
            }
            marks.is_clean(tags.mark)
        });
        let Some(index) = victim else {
            self.stuck_at = Some(clean);
            return false;
        };
        let slot = self.slots.at(index);
        self.drop_outside(Some(slot.state()));
        self.slots.remove(index);
        let evictions = self.evictions(slot.hash);
        *evictions = evictions.wrapping_add(1);
        self.unrecorded -= slot.unrecorded();
        if slot.is_live() {
            self.holds_all = false;
            self.lacks_counters = true;
        }
        true
    }
}

fn heap_bytes(state: &State) -> usize {
    match state {
        State::SlidingLog(state) => size_of_val(&*state.times),
        State::Reserved(state) => size_of_val(&**state) + state.groups.heap_bytes(),
        State::FixedWindow(_)
        | State::SlidingWindow(_)
        | State::TokenBucket(_)
        | State::LeakyBucket(_)
        | State::Concurrency(_) => 0,
    }
}

#[cfg(test)]
mod tests;
