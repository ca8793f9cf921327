//! One counter in 24 bytes: a hash, a time, and a word of bits.
//!
//! A fixed window fits if its count is less than 2^40. For other states, the slot has their index in the stripe, and
//! their expiry.

use crate::commit::segment_marks::Mark;

const KIND_BITS: u32 = 2;
const USED: u64 = 1 << 2;
const RECORDED: u64 = 1 << 3;
const EPOCH_SHIFT: u32 = 4;
const EPOCH_BITS: u32 = 4;
const MARK_SHIFT: u32 = 8;
const NUMBER_SHIFT: u32 = 24;
/// The smallest number that does not fit.
const NUMBER_END: u64 = 1 << (u64::BITS - NUMBER_SHIFT);

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn slot_takes_24_bytes() {
        assert_eq!(size_of::<Slot>(), 24);
        assert!(Slot::default().is_empty() && Slot::fits(NUMBER_END - 1) && !Slot::fits(NUMBER_END));
    }
}
