//! Makes room in a stripe: it grows within its memory, and then evicts counters that are written back.

use slab::Slab;

use super::super::slot::{Slot, SlotState, Tags};
use super::super::slots::Slots;
use super::{FIRST_CAPACITY, Stripe};
use crate::commit::segment_marks::SegmentMarks;
use divvy_core::algorithm::State;

/// Maximum number of counters that are evicted at once.
const EVICTED_AT_ONCE: usize = 2;
/// A stripe may exceed its memory by one part in this many, because giving memory back takes a pass over its counters.
pub(super) const TOLERATED_EXCESS: usize = 16;

impl Stripe {
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
        while self.least_bytes() > self.memory {
            if !self.evict(marks) {
                return;
            }
        }
        self.fit();
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
