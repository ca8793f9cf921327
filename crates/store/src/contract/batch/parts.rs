//! Parts of a batch, which a store applies one after the other.

use std::ops::Range;

use crate::contract::{Batch, ENTRY_WEIGHT};

impl Batch {
    /// Divides the entries into ranges of indexes, each of at most `max` bytes of [weight](Batch::weight). A group is
    /// never divided, so a range that consists of one unit may exceed `max`.
    pub fn parts(&self, max: usize) -> Vec<Range<usize>> {
        let (mut parts, mut first, mut weight) = (Vec::new(), 0, 0);
        for unit in self.units(0) {
            let of_unit: usize = unit.entries.iter().map(|entry| ENTRY_WEIGHT + entry.key.len()).sum();
            if weight + of_unit > max && unit.first > first {
                parts.push(first..unit.first);
                (first, weight) = (unit.first, 0);
            }
            weight += of_unit;
        }
        parts.push(first..self.len());
        parts
    }

    /// Copies the entries at `indexes` to a new batch. The indexes must ascend, and contain all or none of a group.
    pub fn part(&self, indexes: &[usize]) -> Self {
        let mut part = Self { now: self.now, ..Self::default() };
        let mut groups = self.groups.iter().peekable();
        for (index, entry) in indexes.iter().filter_map(|index| Some((*index, self.entries.get(*index)?))) {
            part.push_copy(self, entry);
            while groups.next_if(|group| group.end <= index).is_some() {}
            if let Some(group) = groups.next_if(|group| group.end == index + 1) {
                part.group(part.len() - group.len());
            }
        }
        part
    }

    /// Takes over the outcomes of `part`, which consists of the entries at `indexes`.
    pub fn adopt(&mut self, part: Self, indexes: &[usize]) {
        for (index, outcome) in indexes.iter().zip(part.outcomes) {
            if let Some(place) = self.outcomes.get_mut(*index) {
                *place = outcome;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::Action;
    use divvy_core::algorithm::{FixedWindow, Limit};
    use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

    proptest! {
        #[test]
        fn parts_cover_all_entries_and_divide_no_group(
            units in prop::collection::vec((1_usize..6, 0_usize..2_000), 0..40),
            max in 0_usize..10_000,
        ) {
            let limit = Limit::FixedWindow(FixedWindow::new(1, NANOS_PER_SECOND).unwrap());
            let mut batch = Batch::default();
            for (members, key) in &units {
                let first = batch.len();
                for _ in 0..*members {
                    batch.push(limit, Action::Forget, Timestamp::EPOCH, |out| out.resize(out.len() + key, 0));
                }
                batch.group(first);
            }
            let parts = batch.parts(max);
            let ends: Vec<_> = parts.iter().map(|part| part.end).collect();
            let starts: Vec<_> = std::iter::once(0).chain(ends.iter().copied()).take(parts.len()).collect();
            prop_assert_eq!(parts.iter().map(|part| part.start).collect::<Vec<_>>(), starts);
            prop_assert_eq!(ends.last(), Some(&batch.len()));
            for part in parts {
                let whole = batch.units(part.start).take_while(|unit| unit.first < part.end);
                let (count, entries) = whole.fold((0, 0), |(count, entries), unit| (count + 1, entries + unit.entries.len()));
                prop_assert_eq!(entries, part.len());
                let indexes: Vec<_> = part.collect();
                prop_assert!(batch.part(&indexes).weight() <= max || count <= 1);
            }
        }
    }
}
