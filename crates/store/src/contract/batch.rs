//! Batches: actions on buckets, which a store applies together, and their outcomes.

use std::ops::Range;

use tokio::task::JoinHandle;

use super::{Action, Entry, StoreError};
use crate::record_key::{self, RecordSpace};
use divvy_core::algorithm::{Ask, Limit, Outcome, ReservationAsk};
use divvy_core::clock::Timestamp;

/// Memory of an entry without its key: the entry, its outcome, and the answer (bytes).
pub const ENTRY_WEIGHT: usize = 512;

/// A batch of actions, and their outcomes once a store has applied it. It is reused, and its buffers keep their capacity, so
/// that a hit allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// The server's time when the batch was begun. Expiries on disk are computed from it.
    pub now: Timestamp,
    /// The keys of the entries, one after the other.
    pub keys: Vec<u8>,
    /// The entries, in the order of the requests.
    pub entries: Vec<Entry>,
    /// Entries that take effect together, as ascending ranges of indexes.
    pub groups: Vec<Range<usize>>,
    /// The outcomes of the entries that are answered, in their order.
    pub outcomes: Outcomes,
    /// Indexes of outcomes that depend on a change that was not durable yet.
    pub unsettled: Vec<usize>,
    /// The task that applies the batch if its caller has stopped waiting. This batch is then empty.
    pub unattended: Option<JoinHandle<Batch>>,
}

impl Batch {
    /// Empties the batch, and sets its time.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.keys.clear();
        self.entries.clear();
        self.groups.clear();
        self.outcomes.clear();
        self.unsettled.clear();
    }

    /// Adds an action on the bucket whose key `write_key` appends. Returns its index.
    pub fn push(&mut self, limit: Limit, action: Action, at: Timestamp, write_key: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.keys.len();
        write_key(&mut self.keys);
        self.entries.push(Entry::new(start..self.keys.len(), limit, action, at));
        self.entries.len() - 1
    }

    /// Adds an action as [`Batch::push`] does, except that `write_key` also returns the limit. If it returns `None`,
    /// nothing is added.
    #[inline]
    pub fn push_if(
        &mut self,
        action: Action,
        at: Timestamp,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let (key, limit) = append_key(&mut self.keys, write_key)?;
        self.entries.push(Entry::new(key, limit, action, at));
        Some(self.entries.len() - 1)
    }

    /// Adds an ask about the reservation `id` of the bucket whose key `write_key` appends. Returns its index. If
    /// `write_key` returns no limit, adds nothing and returns `None`.
    pub fn push_reservation(
        &mut self,
        ask: ReservationAsk,
        id: &[u8],
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let space = RecordSpace::Reservations;
        self.push_if(Action::Reservation(ask), self.now, |out| record_key::write(space, id, out, write_key))
    }

    /// Adds an idempotent ask with the record `id` of the bucket whose key `write_key` appends. `fingerprint`
    /// identifies the request, and `request` is its number in this batch. Returns the entry's index. If `write_key`
    /// returns no limit, adds nothing and returns `None`.
    pub fn push_idempotent(
        &mut self,
        ask: Ask,
        (id, fingerprint, request): (&[u8], u64, u32),
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let write_key = |out: &mut _| record_key::write(RecordSpace::Answers, id, out, write_key);
        let index = self.push_if(Action::Idempotent { ask, fingerprint }, self.now, write_key)?;
        self.entries.last_mut()?.request = request;
        Some(index)
    }

    /// Reduces the credits of the entry with this index to the most that its bucket can hold.
    pub fn clamp(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.action = entry.action.up_to(entry.limit.capacity());
        }
    }

    /// Turns the entries from index `first` on into looks, which take nothing.
    pub fn only_look(&mut self, first: usize) {
        for entry in self.entries.iter_mut().skip(first) {
            let Some(cost) = entry.action.wanted() else { continue };
            if entry.action.has_record() {
                // A request that is denied regardless of its counters need not be remembered.
                entry.key = record_key::bucket_range(&self.keys, &entry.key);
            }
            entry.action = Action::Ask(Ask::Look { cost });
        }
    }

    /// Makes the entries from index `first` on a group: they take effect together or not at all (see [`Store`]). Their
    /// buckets must be different. Each entry must be an [`Ask::Look`], an [`Ask::Take`], an [`Ask::Overdraw`] or an [`Ask::Count`],
    /// idempotent or not, or a [`ReservationAsk::Reserve`]. Alternatively, all entries settle reservations. Settlements
    /// are never denied, so they always take effect.
    ///
    /// [`Store`]: super::Store
    pub fn group(&mut self, first: usize) {
        // A single entry needs no group.
        if first + 1 < self.entries.len() {
            self.groups.push(first..self.entries.len());
        }
    }

    /// Removes the entries from index `len` on, and the groups that contain one, from a batch that no store has applied.
    pub fn truncate(&mut self, len: usize) {
        if let Some(first) = self.entries.get(len) {
            self.keys.truncate(first.key.start);
            self.entries.truncate(len);
            self.groups.retain(|group| group.end <= len);
        }
    }

    /// Returns an upper estimate of the memory that the entries take until they are answered (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.entries.len() * ENTRY_WEIGHT + self.keys.len()
    }

    /// Returns the memory of the buffers, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.keys.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.groups.capacity() * size_of::<Range<usize>>()
            + self.outcomes.capacity() * size_of::<Result<Outcome, StoreError>>()
            + self.unsettled.capacity() * size_of::<usize>()
    }

    /// Returns the time of all entries without a time of their own.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the entry's time if a client supplied it, or `None` if it is the batch's time.
    pub fn brought_time(&self, entry: &Entry) -> Option<Timestamp> {
        (entry.at != self.now).then_some(entry.at)
    }

    /// Returns the entry with this index.
    pub fn entry(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Returns the key of the entry with this index.
    pub fn key_at(&self, index: usize) -> Option<&[u8]> {
        Some(self.entries.get(index)?.key_in(&self.keys))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the units from index `first` on. A unit must begin there.
    pub fn units(&self, first: usize) -> impl Iterator<Item = Unit<'_>> {
        let begun = self.groups.partition_point(|group| group.start < first);
        let mut groups = self.groups.iter().skip(begun).peekable();
        let mut first = first;
        std::iter::from_fn(move || {
            let end = groups.next_if(|group| group.start == first).map_or(first + 1, |group| group.end);
            let unit = Unit { first, entries: self.entries.get(first..end)?, keys: &self.keys };
            first = end;
            Some(unit)
        })
    }

    /// Returns the entry with this index, for a change while the batch is built.
    pub fn entry_mut(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index)
    }

    /// Removes the entries at `indexes`, in ascending order, while the batch is being built. Returns them.
    pub fn take(&mut self, indexes: &[usize]) -> Vec<Entry> {
        let taken = indexes.iter().filter_map(|index| self.entries.get(*index).cloned()).collect();
        let mut index = 0..;
        self.entries.retain(|_| index.next().is_some_and(|index| indexes.binary_search(&index).is_err()));
        taken
    }

    /// Adds entries that were taken out again, after the others.
    pub fn put_back(&mut self, taken: Vec<Entry>) {
        self.entries.extend(taken);
    }

    /// Adds a copy of an entry of another batch.
    fn push_copy(&mut self, other: &Self, entry: &Entry) {
        let start = self.keys.len();
        self.keys.extend_from_slice(entry.key_in(&other.keys));
        self.entries.push(Entry { key: start..self.keys.len(), ..entry.clone() });
    }

    /// Answers every entry with `answer`, in order. Ignores groups.
    pub fn answer_each(&mut self, answer: impl FnMut(&Entry) -> Result<Outcome, StoreError>) {
        self.outcomes.clear();
        self.outcomes.extend(self.entries.iter().map(answer));
    }

    /// Answers the unanswered entries, unit by unit. `answer` adds the outcomes of all of the unit's entries. If it
    /// adds none and returns false, this stops. Returns whether all entries are answered.
    pub fn answer_on(&mut self, mut answer: impl FnMut(Unit<'_>, &mut Outcomes) -> bool) -> bool {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let answered = outcomes.len();
        outcomes.reserve(self.entries.len().saturating_sub(answered));
        let is_done = if self.groups.is_empty() {
            // Fast path: there are no groups to search for.
            let mut entries = self.entries.iter().enumerate().skip(answered);
            entries.all(|(first, entry)| {
                answer(Unit { first, entries: std::slice::from_ref(entry), keys: &self.keys }, &mut outcomes)
            })
        } else {
            self.units(answered).all(|unit| answer(unit, &mut outcomes))
        };
        self.outcomes = outcomes;
        is_done
    }

    /// Iterates over the unanswered entries, with their indexes and keys.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, &[u8], &Entry)> {
        let entries = self.entries.iter().enumerate().skip(self.outcomes.len());
        entries.map(|(index, entry)| (index, entry.key_in(&self.keys), entry))
    }

    /// Replaces the outcomes that depend on changes that could not be made durable.
    pub fn fail_unsettled(&mut self, error: &StoreError) {
        for index in self.unsettled.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Iterates over keys, entries and outcomes, once the batch is applied.
    pub fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (entry.key_in(&self.keys), entry, outcome))
    }

    /// Returns the outcome of the entry with this index, or an error if no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        outcome_at(&self.outcomes, index)
    }

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

/// Appends a key to `keys`. Returns its range in `keys`, and the limit that `write_key` returns. If that is `None`, nothing is
/// appended.
#[inline]
pub fn append_key(
    keys: &mut Vec<u8>,
    write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
) -> Option<(Range<usize>, Limit)> {
    let start = keys.len();
    let limit = write_key(keys);
    if limit.is_none() {
        keys.truncate(start);
    }
    limit.map(|limit| (start..keys.len(), limit))
}

/// One entry, or the entries of a group, which take effect together.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// The index of the first entry.
    pub first: usize,
    /// Its entries.
    pub entries: &'a [Entry],
    pub(super) keys: &'a [u8],
}

impl<'a> Unit<'a> {
    /// Returns the key of one of its entries.
    pub fn key(&self, entry: &Entry) -> &'a [u8] {
        entry.key_in(self.keys)
    }

    /// Iterates over the entries, with their indexes and keys.
    pub fn members(self) -> impl Iterator<Item = (usize, &'a [u8], &'a Entry)> + Clone {
        self.entries.iter().enumerate().map(move |(place, entry)| (self.first + place, self.key(entry), entry))
    }
}

/// The outcomes of a batch's entries, in their order.
pub type Outcomes = Vec<Result<Outcome, StoreError>>;

/// Returns the outcome of the entry with this index, or an error if no store has applied it.
#[inline]
pub fn outcome_at(outcomes: &Outcomes, index: usize) -> Result<Outcome, StoreError> {
    match outcomes.get(index) {
        Some(Ok(outcome)) => Ok(*outcome),
        Some(Err(error)) => Err(error.clone()),
        None => Err(StoreError::new("the store returned no answer")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::window;

    /// The bound on idempotency keys counts records by request.
    #[test]
    fn removed_entry_keeps_its_key_and_request_number() {
        let write_key = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"key");
            Some(window(1, 1))
        };
        let mut batch = Batch::default();
        batch.push_idempotent(Ask::Take { cost: 1 }, (b"id", 5, 7), write_key).unwrap();
        batch.push(window(1, 1), Action::Forget, Timestamp::EPOCH, |out| out.push(b'k'));
        let key = batch.key_at(0).unwrap().to_vec();
        let taken = batch.take(&[0]);
        assert_eq!((batch.len(), batch.key_at(0)), (1, Some(&b"k"[..])));
        batch.put_back(taken);
        assert_eq!((batch.entries[1].request, batch.key_at(1)), (7, Some(&*key)));
    }

    proptest! {
        #[test]
        fn parts_cover_all_entries_and_divide_no_group(
            units in prop::collection::vec((1_usize..6, 0_usize..2_000), 0..40),
            max in 0_usize..10_000,
        ) {
            let mut batch = Batch::default();
            for (members, key) in &units {
                let first = batch.len();
                for _ in 0..*members {
                    batch.push(window(1, 1), Action::Forget, Timestamp::EPOCH, |out| out.resize(out.len() + key, 0));
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
