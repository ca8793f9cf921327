//! One stripe of the table: its counters, what the next commit has to write of them, and what gives way to what.
//!
//! The stripe's caller holds its lock. What an action does to a counter is decided elsewhere.

mod eviction;

use slab::Slab;

use super::slot::{Held, Slot, Tags};
use super::slots::Slots;
use foldhash::fast::FixedState;

use crate::algorithm::{Record, State, fixed_window};
use crate::clock::Timestamp;
use crate::store::bounds::Records;
use crate::store::rocks::commit::segment_marks::Mark;
use crate::store::value;

/// Counters for which a stripe makes room at first, and states outside of its slots.
const FIRST_CAPACITY: usize = 8;
/// Memory for staged changes that a stripe keeps from commit to commit (bytes).
const KEPT_STAGED: usize = 16 << 10;
/// Departures are counted apart for so many groups of counters: a batch evicts as many as it loads, and reads again what
/// it has read of counters in the same group.
const GROUPS: usize = 16;

/// The state of a counter: taken out of its slot, or where it lies.
pub enum Found<'a> {
    Absent,
    InSlot(State),
    Outside(&'a State),
}

impl Found<'_> {
    pub fn state(&self) -> Option<&State> {
        match self {
            Self::Absent => None,
            Self::InSlot(state) => Some(state),
            Self::Outside(state) => Some(state),
        }
    }
}

/// One stripe's counters and the changes that they owe to the next commit.
#[derive(Debug, Default)]
pub struct Stripe {
    /// What its counters may take, if they can be evicted (bytes).
    memory: usize,
    /// How much more they took when the table counted it.
    pub counted_excess: usize,
    slots: Slots,
    /// States that do not fit into a slot,
    outside: Slab<State>,
    /// and bytes that they hold elsewhere.
    outside_bytes: usize,
    /// Staged changes since the last commit took them.
    pub staged: Vec<u8>,
    /// The counter that changed last, and where its value is staged.
    last_staged: Option<(u64, usize)>,
    /// How often commits have taken `staged`.
    pub taken: u64,
    /// The commit that makes the changes in `staged` durable, and the one for all before.
    pub changed_in: u64,
    pub taken_in: u64,
    /// Every counter of the stripe is here: what is not, does not exist.
    pub holds_all: bool,
    /// A counter has left that may have a record, or had no room to be loaded.
    has_given_way: bool,
    /// Counters without a record in RocksDB, less records without a counter.
    pub unrecorded: i64,
    /// Counters that were made here, less those that were forgotten.
    pub begun: i64,
    /// Actions, and those whose counter had to be looked up in RocksDB.
    pub acted: u64,
    pub loaded: u64,
    /// No counter could be evicted while [`clean`](crate::store::rocks::commit::segment_marks::SegmentMarks::clean) was this.
    stuck_at: Option<u32>,
    /// How many counters have left, by group.
    departures: [u32; GROUPS],
    /// The records next to its counters, by the hash of their keys, which needs no other secret. They are in memory of their own,
    /// because plain hits need none of it in their caches.
    pub records: Box<Records<u64, FixedState>>,
}

impl Stripe {
    /// An empty stripe for so many bytes.
    pub fn new(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// What the counters take (bytes).
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.bytes_outside()
    }

    fn bytes_outside(&self) -> usize {
        self.outside.capacity() * size_of::<State>() + self.outside_bytes
    }

    /// The counter's index, valid until a counter is added or evicted.
    pub fn find(&self, hash: u64) -> Option<usize> {
        self.slots.find(hash)
    }

    /// How many counters have left of those that this one is counted with. If the counter is absent before and after, and
    /// this has not changed, it was absent all the time.
    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the number of groups")]
    pub fn departures(&mut self, hash: u64) -> &mut u32 {
        &mut self.departures[hash as usize % GROUPS]
    }

    pub fn slot(&self, index: usize) -> Slot {
        self.slots.at(index)
    }

    /// The state at an index, or none.
    pub fn found(&self, index: Option<usize>) -> Found<'_> {
        match index.map(|index| self.slots.at(index).held()) {
            None | Some(Held::Absent) => Found::Absent,
            Some(Held::Window { ends, count }) => {
                Found::InSlot(State::FixedWindow(fixed_window::State { ends: Timestamp::from_nanos(ends), count }))
            }
            Some(Held::Outside { index, .. }) => self.outside.get(index).map_or(Found::Absent, Found::Outside),
        }
    }

    /// Appends the counter's value; nothing when it does not exist.
    pub fn write_value(&self, index: usize, out: &mut Vec<u8>) {
        if let Some(state) = self.found(Some(index)).state() {
            value::encode(state, Timestamp::from_nanos(self.slots.at(index).expires()), out);
        }
    }

    /// The counter was used.
    pub fn touch(&mut self, index: usize) {
        let slot = self.slots.at(index);
        let tags = slot.tags();
        // Not written for nothing: the cache line would have to be written back.
        if !tags.used {
            self.slots.set(index, slot.with_tags(Tags { used: true, ..tags }));
        }
    }

    /// The commit that makes the counter's last change durable, or a later one.
    pub fn durable_after(&self, index: usize) -> u64 {
        let is_staged = self.slots.at(index).tags().epoch == self.epoch() && !self.staged.is_empty();
        if is_staged { self.changed_in } else { self.taken_in }
    }

    /// The commit that makes all changes of the stripe durable.
    pub fn all_durable_after(&self) -> u64 {
        if self.staged.is_empty() { self.taken_in } else { self.changed_in }
    }

    /// The epoch of a change made now.
    pub fn epoch(&self) -> u8 {
        (self.taken % Slot::EPOCHS) as u8
    }

    /// Where the last change is staged, if it was one of the counter with this hash.
    pub fn staged_last(&self, hash: u64) -> Option<usize> {
        self.last_staged.filter(|(last, _)| *last == hash).map(|(_, at)| at)
    }

    pub fn set_staged_last(&mut self, hash: u64, at: usize) {
        self.last_staged = Some((hash, at));
    }

    /// The staged changes were taken.
    pub fn note_taken(&mut self) {
        self.staged.clear();
        self.staged.shrink_to(KEPT_STAGED);
        self.last_staged = None;
        self.taken += 1;
        self.taken_in = self.changed_in;
    }

    /// Sets the counter's state. Returns its index.
    pub fn set(
        &mut self,
        index: Option<usize>,
        hash: u64,
        state: Option<State>,
        expires: Timestamp,
        tags: Tags,
    ) -> usize {
        let old = index.map(|index| self.slots.at(index));
        let expires = match &state {
            Some(State::FixedWindow(state)) => state.ends,
            _ => expires,
        };
        let held = match (state, old.map(|slot| slot.held())) {
            (Some(State::FixedWindow(state)), before) if Slot::fits(state.count) => {
                self.drop_outside(before);
                Held::Window { ends: state.ends.as_nanos(), count: state.count }
            }
            (Some(state), Some(Held::Outside { index, .. })) if self.outside.contains(index) => {
                self.outside_bytes += heap_bytes(&state);
                if let Some(place) = self.outside.get_mut(index) {
                    self.outside_bytes -= heap_bytes(place);
                    *place = state;
                }
                Held::Outside { expires: expires.as_nanos(), index }
            }
            (Some(state), _) => {
                self.outside_bytes += heap_bytes(&state);
                if !self.has_place_outside() {
                    self.outside.reserve_exact(self.outside_may_grow_by().max(FIRST_CAPACITY));
                }
                Held::Outside { expires: expires.as_nanos(), index: self.outside.insert(state) }
            }
            (None, before) => {
                self.drop_outside(before);
                Held::Absent
            }
        };
        let slot = Slot::new(hash, held, tags);
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

    /// Changes the tags of the counter.
    pub fn retag(&mut self, index: usize, tags: Tags) {
        let old = self.slots.at(index);
        let slot = old.with_tags(tags);
        self.unrecorded += slot.unrecorded() - old.unrecorded();
        self.slots.set(index, slot);
    }

    /// The counter does not exist any more.
    pub fn clear(&mut self, index: usize, tags: Tags) {
        let hash = self.slots.at(index).hash;
        self.set(Some(index), hash, None, Timestamp::default(), tags);
    }

    fn drop_outside(&mut self, held: Option<Held>) {
        if let Some(Held::Outside { index, .. }) = held
            && let Some(state) = self.outside.try_remove(index)
        {
            self.outside_bytes -= heap_bytes(&state);
        }
    }

    /// A counter could not be loaded, for want of room.
    pub fn note_no_room(&mut self) {
        self.has_given_way = true;
    }

    /// Whether counters have left, or had no room.
    pub fn has_given_way(&self) -> bool {
        self.has_given_way
    }

    /// It is unknown which counters have records.
    pub fn forget_records(&mut self) {
        for slot in self.slots.iter_mut() {
            *slot = slot.with_tags(Tags { recorded: false, ..slot.tags() });
        }
        self.unrecorded = self.slots.iter_mut().map(|slot| slot.unrecorded()).sum();
    }

    /// Notes the time at which the reservations of a loaded state last changed. The server's clock may have been set back
    /// since.
    pub fn note_time(&mut self, state: Option<&State>) {
        if let Some(State::Reserved(state)) = state {
            self.records.note_time(state.groups.time);
        }
    }

    /// Loads a record while the store opens; `None` if it was forgotten.
    pub fn load_record(&mut self, hash: u64, record: Option<Record>) {
        match record {
            Some(record) => self.records.set(hash, record, None),
            None => self.records.remove(&hash),
        }
    }

    /// Tags of a counter that was loaded, with a record that is current.
    pub fn loaded_tags(&self, mark: Mark, used: bool) -> Tags {
        // Not this epoch: it has nothing staged.
        let epoch = (self.taken.wrapping_sub(1) % Slot::EPOCHS) as u8;
        Tags { used, recorded: true, epoch, mark }
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

#[cfg(all(test, not(feature = "model")))]
mod tests;
