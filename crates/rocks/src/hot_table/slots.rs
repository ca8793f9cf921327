//! An open-addressing table of slots, found by their hash. A slot is one counter in 24 bytes: a hash, a time, and a word of bits.
//!
//! A fixed window fits into a slot if its count is less than 2^40. For other states, the slot has their index in the stripe,
//! and their expiry.
//!
//! The home index of a hash is in proportion to the hash. So slots are in the order of their hashes, as close to home
//! as possible. A search ends at the first larger hash, growing is one pass from front to back, and the capacity can be
//! any number.

use crate::journal::Mark;

const KIND_BITS: u32 = 2;
const USED: u64 = 1 << 2;
const RECORDED: u64 = 1 << 3;
const EPOCH_SHIFT: u32 = 4;
const EPOCH_BITS: u32 = 4;
const MARK_SHIFT: u32 = 8;
const NUMBER_SHIFT: u32 = 24;
/// The smallest number that does not fit.
const NUMBER_END: u64 = 1 << (u64::BITS - NUMBER_SHIFT);
/// Maximum load of a table, in eighths. A search then looks at four slots on average.
const FULL_EIGHTHS: usize = 7;
/// Number of consecutive slots that a sweep visits.
const RUN: usize = 16;
/// Spare slots beyond the end of any table.
const LEAST_SPARE: usize = 16;
/// Slots per additional spare slot.
const SLOTS_TO_SPARE: usize = 64;
/// Maximum number of those additional spare slots. In a table at its maximum load, k slots are pushed beyond the end
/// with a probability of about e^(-k/4), and full tables see millions of combinations.
const MOST_MORE_SPARE: usize = 112;

/// The state in a counter's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// The counter does not exist, or was forgotten.
    Absent,
    /// A fixed window: its end (nanoseconds since 1970), and its credits left or used.
    Window { ends: u64, count: u64 },
    /// Any other state: its expiry (nanoseconds since 1970), and its index among the states outside of the slots.
    Outside { expires: u64, index: usize },
}

/// Bits about a counter in addition to its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    /// Whether the counter was used since an eviction last considered it.
    pub used: bool,
    /// Whether RocksDB has a record of the counter, current or not.
    pub recorded: bool,
    /// The number of times that commits had taken the stripe's changes when the counter last changed (four bits).
    pub epoch: u8,
    /// The journal segment of the last change.
    pub mark: Mark,
}

/// A slot of the table. All zeros stand for an empty slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    pub hash: u64,
    time: u64,
    bits: u64,
}

impl Slot {
    /// The number of different epochs.
    pub const EPOCHS: u64 = 1 << EPOCH_BITS;

    /// Returns whether a window with this count fits into a slot.
    pub fn fits(count: u64) -> bool {
        count < NUMBER_END
    }

    /// Creates a slot. A window's count must fit.
    pub fn new(hash: u64, state: SlotState, tags: Tags) -> Self {
        let (kind, time, number) = match state {
            SlotState::Absent => (1, 0, 0),
            SlotState::Window { ends, count } => (2, ends, count),
            SlotState::Outside { expires, index } => (3, expires, index as u64),
        };
        let mut bits = kind | number << NUMBER_SHIFT | u64::from(tags.mark) << MARK_SHIFT;
        bits |= (u64::from(tags.epoch) % Self::EPOCHS) << EPOCH_SHIFT;
        bits |= if tags.used { USED } else { 0 } | if tags.recorded { RECORDED } else { 0 };
        Self { hash, time, bits }
    }

    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Returns the state in an occupied slot.
    pub fn state(&self) -> SlotState {
        match self.bits % (1 << KIND_BITS) {
            2 => SlotState::Window { ends: self.time, count: self.bits >> NUMBER_SHIFT },
            3 => SlotState::Outside { expires: self.time, index: (self.bits >> NUMBER_SHIFT) as usize },
            _ => SlotState::Absent,
        }
    }

    pub fn is_live(&self) -> bool {
        self.bits % (1 << KIND_BITS) > 1
    }

    /// Returns the counter's expiry; 0 if it is absent.
    pub fn expires(&self) -> u64 {
        self.time
    }

    pub fn tags(&self) -> Tags {
        Tags {
            used: self.bits & USED != 0,
            recorded: self.bits & RECORDED != 0,
            epoch: (self.bits >> EPOCH_SHIFT) as u8 % Self::EPOCHS as u8,
            mark: (self.bits >> MARK_SHIFT) as Mark,
        }
    }

    pub fn with_tags(self, tags: Tags) -> Self {
        Self::new(self.hash, self.state(), tags)
    }

    /// Returns 1 for a counter without a record, -1 for a record without a counter, and otherwise 0.
    pub fn unrecorded(&self) -> i64 {
        i64::from(self.is_live()) - i64::from(self.bits & RECORDED != 0)
    }
}

/// Slots in the order of their hashes, with gaps.
#[derive(Debug, Default)]
pub struct Slots {
    /// `capacity` slots, and spare slots for those that are pushed beyond the end.
    slots: Vec<Slot>,
    capacity: usize,
    len: usize,
    /// The number of slots that sweeps have visited. The next sweep continues there.
    hand: usize,
}

impl Slots {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the memory of the table (bytes).
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// Returns the memory of a table with this capacity (bytes).
    pub fn bytes_of(capacity: usize) -> usize {
        (capacity + spare(capacity)) * size_of::<Slot>()
    }

    /// Returns the largest capacity that fits into `bytes`.
    pub fn capacity_within(bytes: usize) -> usize {
        let slots = bytes / size_of::<Slot>();
        // This is never too large, because fewer slots have fewer spare ones.
        slots.saturating_sub(spare(slots))
    }

    /// Returns whether one more slot fits without growing.
    pub fn has_room(&self) -> bool {
        (self.len + 1) * 8 <= self.capacity * FULL_EIGHTHS
    }

    /// Returns the smallest capacity for `len` slots.
    pub fn capacity_for(len: usize) -> usize {
        (len * 8).div_ceil(FULL_EIGHTHS)
    }

    /// Returns the index of the slot with this hash. It is valid until a slot is inserted or removed.
    pub fn find(&self, hash: u64) -> Option<usize> {
        let mut from_start = self.slots.iter().enumerate().skip(self.home(hash));
        let (index, slot) = from_start.find(|(_, slot)| slot.is_empty() || slot.hash >= hash)?;
        (!slot.is_empty() && slot.hash == hash).then_some(index)
    }

    /// Returns the slot at an index from [`Slots::find`] or [`Slots::insert`].
    #[expect(clippy::indexing_slicing, reason = "the index is one that this table gave, and is still valid")]
    pub fn at(&self, index: usize) -> Slot {
        self.slots[index]
    }

    /// Replaces the slot at an index from [`Slots::find`] or [`Slots::insert`] with one that has the same hash.
    #[expect(clippy::indexing_slicing, reason = "the index is one that this table gave, and is still valid")]
    pub fn set(&mut self, index: usize, slot: Slot) {
        self.slots[index] = slot;
    }

    /// Adds a slot with a new hash. There must be room for it. Returns its index.
    pub fn insert(&mut self, slot: Slot) -> usize {
        let start = self.home(slot.hash);
        let is_after = |other: &Slot| other.is_empty() || other.hash > slot.hash;
        let from_start = self.slots.iter().skip(start);
        let index = from_start.clone().position(is_after).map_or(self.slots.len(), |ahead| start + ahead);
        match self.slots.iter().skip(index).position(Slot::is_empty) {
            Some(ahead) => {
                self.slots.copy_within(index..index + ahead, index + 1);
                self.set(index, slot);
            }
            None => {
                self.reserve_one();
                self.slots.insert(index, slot);
            }
        }
        self.len += 1;
        index
    }

    /// Removes the slot at this index.
    pub fn remove(&mut self, index: usize) {
        // The following slots move up until one is at its home index.
        let moved = self.slots.iter().enumerate().skip(index + 1);
        let moved = moved.take_while(|(at, slot)| !slot.is_empty() && self.home(slot.hash) < *at).count();
        self.slots.copy_within(index + 1..index + 1 + moved, index);
        self.set(index + moved, Slot::default());
        self.len -= 1;
    }

    /// Changes the capacity, which must be large enough.
    pub fn resize(&mut self, capacity: usize) {
        let old = std::mem::take(self);
        self.slots = Vec::with_capacity(capacity + spare(capacity));
        self.slots.resize(capacity, Slot::default());
        self.capacity = capacity;
        self.hand = old.hand;
        let mut next = 0;
        for slot in old.slots {
            if slot.is_empty() {
                continue;
            }
            next = next.max(self.home(slot.hash));
            match self.slots.get_mut(next) {
                Some(free) => *free = slot,
                None => {
                    self.reserve_one();
                    self.slots.push(slot);
                }
            }
            next += 1;
            self.len += 1;
        }
    }

    /// Visits the slots, each at most twice, until `decide` returns true for a slot, which is then removed. Returns its
    /// index. `decide` may replace the slot.
    ///
    /// It visits short runs, each far from the last. A sweep from front to back would leave the slots behind it empty
    /// and those before it full, and there every insertion would move hundreds of slots.
    pub fn sweep(&mut self, mut decide: impl FnMut(&mut Slot) -> bool) -> Option<usize> {
        let runs = self.slots.len().div_ceil(RUN).next_power_of_two();
        // One more run, because the first one may be incomplete.
        for _ in 0..=2 * runs {
            let start = reversed(self.hand / RUN % runs, runs) * RUN;
            for index in start + self.hand % RUN..start + RUN {
                if let Some(slot) = self.slots.get_mut(index)
                    && !slot.is_empty()
                    && decide(slot)
                {
                    // The next visit is to the slot that moves up to this index.
                    return Some(index);
                }
                self.hand = self.hand.wrapping_add(1);
            }
        }
        None
    }

    /// Makes room for one more slot beyond the end. Without this, the vector would double its capacity.
    fn reserve_one(&mut self) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(LEAST_SPARE);
        }
    }

    /// Iterates over all occupied slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| !slot.is_empty())
    }

    /// Returns the indexes of the occupied slots that fulfill a condition.
    pub fn find_all(&self, is_wanted: impl Fn(&Slot) -> bool) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| !slot.is_empty() && is_wanted(slot)).map(|(index, _)| index).collect()
    }

    /// Returns the home index of a hash: its slot's index if it were alone.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.capacity as u128) >> u64::BITS) as usize
    }
}

/// Returns the number of spare slots beyond the end of a table with this capacity.
fn spare(capacity: usize) -> usize {
    LEAST_SPARE + (capacity / SLOTS_TO_SPARE).min(MOST_MORE_SPARE)
}

/// Reverses the low bits of a number less than `power`, a power of two. This spreads consecutive numbers evenly.
fn reversed(number: usize, power: usize) -> usize {
    number.reverse_bits().checked_shr(usize::BITS - power.trailing_zeros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::hot_table::slots::{SlotState, Tags};

    fn slot_state() -> impl Strategy<Value = SlotState> {
        prop_oneof![
            Just(SlotState::Absent),
            (any::<u64>(), 0..NUMBER_END).prop_map(|(ends, count)| SlotState::Window { ends, count }),
            (any::<u64>(), 0..NUMBER_END as usize).prop_map(|(expires, index)| SlotState::Outside { expires, index }),
        ]
    }

    proptest! {
        #[test]
        fn slot_reads_back(hash: u64, state in slot_state(), used: bool, recorded: bool, epoch in 0..16u8, mark: Mark) {
            let tags = Tags { used, recorded, epoch, mark };
            let slot = Slot::new(hash, state, tags);
            prop_assert!(!slot.is_empty());
            prop_assert_eq!((slot.hash, slot.state(), slot.tags()), (hash, state, tags));
            prop_assert_eq!(slot.is_live(), state != SlotState::Absent);
            let other = Tags { used: !used, recorded: !recorded, epoch: 15 - epoch, mark: !mark };
            prop_assert_eq!((slot.with_tags(other).state(), slot.with_tags(other).tags()), (state, other));
        }
    }

    fn slot(hash: u64, left: u64) -> Slot {
        Slot::new(
            hash,
            SlotState::Window { ends: 1, count: left },
            Tags { used: false, recorded: false, epoch: 0, mark: 0 },
        )
    }

    #[derive(Debug, Clone)]
    enum Step {
        Set(u64, u64),
        Remove(u64),
        Resize(usize),
        Sweep,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Generates a few hashes, at both ends and close together, so that they displace each other.
        let hash = prop_oneof![
            0..20u64,
            (0..20u64).prop_map(|n| u64::MAX - n),
            (0..20u64).prop_map(|n| n << 58),
            any::<u64>()
        ];
        let step = prop_oneof![
            6 => (hash.clone(), 0..9u64).prop_map(|(hash, left)| Step::Set(hash, left)),
            3 => hash.prop_map(Step::Remove),
            1 => (0..40usize).prop_map(Step::Resize),
            1 => Just(Step::Sweep),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn slots_agree_with_a_map(steps in steps()) {
            let (mut slots, mut model) = (Slots::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(hash, left) => {
                        match slots.find(hash) {
                            Some(index) => slots.set(index, slot(hash, left)),
                            None => {
                                if !slots.has_room() {
                                    slots.resize(slots.capacity() * 5 / 4 + 2);
                                }
                                let index = slots.insert(slot(hash, left));
                                prop_assert_eq!(slots.at(index).hash, hash);
                            }
                        }
                        model.insert(hash, left);
                    }
                    Step::Remove(hash) => {
                        let index = slots.find(hash);
                        prop_assert_eq!(index.is_some(), model.remove(&hash).is_some());
                        if let Some(index) = index {
                            slots.remove(index);
                        }
                    }
                    Step::Resize(capacity) => slots.resize(capacity.max(Slots::capacity_for(slots.len()))),
                    Step::Sweep => {
                        let mut seen = 0;
                        if let Some(index) = slots.sweep(|_| { seen += 1; seen == 3 }) {
                            model.remove(&slots.at(index).hash);
                            slots.remove(index);
                        }
                    }
                }
                prop_assert_eq!(slots.len(), model.len());
                for (hash, left) in &model {
                    let found = slots.find(*hash).map(|index| slots.at(index));
                    prop_assert_eq!(found, Some(slot(*hash, *left)));
                }
                let listed: Vec<u64> = slots.iter_mut().map(|slot| slot.hash).collect();
                prop_assert_eq!(listed, model.keys().copied().collect::<Vec<_>>());
            }
        }
    }

    /// Regression test: sweeps from front to back left clusters of thousands of slots.
    #[test]
    fn short_lived_counters_leave_no_clusters() {
        const CAPACITY: usize = 10_000;
        let mut slots = Slots::default();
        slots.resize(CAPACITY);
        for number in 0..20 * CAPACITY as u64 {
            if !slots.has_room() {
                let victim = slots.sweep(|_| true).unwrap();
                slots.remove(victim);
            }
            // The hashes are random, because the values of a linear sequence would not collide like hashes.
            let hash = std::hash::BuildHasher::hash_one(&foldhash::fast::FixedState::default(), number);
            slots.insert(slot(hash, number));
        }
        let crowds = slots.slots.split(Slot::is_empty).map(<[Slot]>::len);
        let longest = crowds.max().unwrap();
        assert!(longest < 600, "{longest}");
    }

    #[test]
    fn sweep_visits_every_slot() {
        let mut slots = Slots::default();
        slots.resize(1_000);
        (0..800u64).for_each(|n| {
            slots.insert(slot(n << 54, n));
        });
        let mut seen = std::collections::HashSet::new();
        assert_eq!(
            slots.sweep(|slot| {
                seen.insert(slot.hash);
                false
            }),
            None
        );
        assert_eq!(seen.len(), 800);
    }

    /// Regression test: slots that were pushed beyond the end of a full table used to double its size.
    #[test]
    fn replacing_counters_does_not_grow_a_full_table() {
        const CAPACITY: usize = 4096;
        let mut slots = Slots::default();
        slots.resize(CAPACITY);
        let mut next = 0u64;
        for turn in 0..500_000 {
            while !slots.has_room() {
                let victim = slots.sweep(|_| true).unwrap();
                slots.remove(victim);
            }
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The upper bits of such a sequence are the random ones: they decide the home index.
            if slots.find(next).is_none() {
                slots.insert(slot(next, turn));
            }
        }
        assert!(slots.bytes() <= Slots::bytes_of(CAPACITY), "{} slots beyond the end", slots.slots.len() - CAPACITY);
        assert!(Slots::capacity_within(Slots::bytes_of(CAPACITY)) >= CAPACITY - 2);
    }
}
