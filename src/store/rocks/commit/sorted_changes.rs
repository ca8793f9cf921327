//! Staged changes in the order of their keys.
//!
//! Keys of one rule are alike up to the actor. So what all keys have in common is left out of the comparison, and the
//! eight bytes after it, compared as one number, decide nearly always.

use super::journal::{self, Change};

const WORD: usize = size_of::<u64>();

/// A view of staged changes: sorted by key, of each key the last one.
pub struct SortedChanges<'a> {
    changes: &'a [u8],
    order: Vec<Place>,
}

/// The order is that of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// What follows the bytes that all keys share.
    word: u64,
    /// Where the change begins.
    at: usize,
}

impl<'a> SortedChanges<'a> {
    pub fn new(changes: &'a [u8]) -> Self {
        let (shared, count) = shared_by_all(changes);
        let mut order = Vec::with_capacity(count);
        let mut rest = journal::staged(changes);
        let mut at = 0;
        while let Some(Ok(change)) = rest.next() {
            order.push(Place { word: word_at(change.key, shared), at });
            at += journal::staged_length(&change);
        }
        order.sort_unstable();
        let mut sorted = Self { changes, order };
        sorted.settle_ties();
        sorted
    }

    /// How long a change is.
    pub fn average_bytes(&self) -> usize {
        self.changes.len() / self.order.len().max(1)
    }

    /// The changes, in order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> {
        self.order.iter().filter_map(|place| change_at(self.changes, *place))
    }

    /// Orders keys whose words are alike by all their bytes, and keeps the last change of each.
    fn settle_ties(&mut self) {
        let changes = self.changes;
        let key = |place: &Place| change_at(changes, *place).map(|change| change.key);
        let ties = self.order.chunk_by_mut(|one, other| one.word == other.word);
        for tied in ties.filter(|tied| tied.len() > 1) {
            tied.sort_by(|one, other| key(one).cmp(&key(other)).then(other.at.cmp(&one.at)));
        }
        self.order.dedup_by(|later, kept| later.word == kept.word && key(later) == key(kept));
    }
}

fn change_at(changes: &[u8], place: Place) -> Option<Change<'_>> {
    journal::staged(changes.get(place.at..)?).next()?.ok()
}

/// How many bytes all keys have in common at their beginnings, and how many keys there are.
fn shared_by_all(changes: &[u8]) -> (usize, usize) {
    let mut keys = journal::staged(changes).map_while(Result::ok).map(|change| change.key);
    let Some(first) = keys.next() else { return (0, 0) };
    keys.fold((first.len(), 1), |(shared, count), key| {
        (journal::shared_length(first.get(..shared).unwrap_or(first), key), count + 1)
    })
}

/// The eight bytes of `key` from `at` on, as a number in the order of the bytes. A key that ends earlier comes first, or
/// is alike.
fn word_at(key: &[u8], at: usize) -> u64 {
    let rest = key.get(at..).unwrap_or_default();
    match rest.first_chunk::<WORD>() {
        Some(word) => u64::from_be_bytes(*word),
        None => rest.iter().chain(std::iter::repeat(&0)).take(WORD).fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_are_sorted_and_the_last_of_a_key_stays(
            prefix in prop::collection::vec(any::<u8>(), 0..12),
            changes in prop::collection::vec((prop::collection::vec(0..3u8, 0..12), any::<[u8; 2]>()), 0..40),
            other in prop::option::of(prop::collection::vec(any::<u8>(), 0..12)),
        ) {
            let (mut staged, mut model) = (Vec::new(), BTreeMap::new());
            let keys = changes.iter().map(|(key, value)| ([&prefix[..], key].concat(), value));
            for (key, value) in keys.chain(other.map(|key| (key, &[7, 7]))) {
                journal::stage(&mut staged, &key, |out| out.extend_from_slice(value));
                model.insert(key, value.to_vec());
            }
            let sorted = SortedChanges::new(&staged);
            let read: Vec<_> = sorted.iter().map(|change| (change.key.to_vec(), change.value.to_vec())).collect();
            prop_assert_eq!(read, model.into_iter().collect::<Vec<_>>());
        }
    }
}
