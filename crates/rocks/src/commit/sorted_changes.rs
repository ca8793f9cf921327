//! Staged changes in the order of their keys.
//!
//! Keys of one rule differ only in the actor, so the comparison skips the bytes that all keys share. The next eight
//! bytes, compared as one number, nearly always decide.

use super::journal::{self, Change};

const WORD: usize = size_of::<u64>();

/// Staged changes sorted by key, with only the last change of each key.
pub struct SortedChanges<'a> {
    changes: &'a [u8],
    order: Vec<SortKey>,
}

/// The position of a change in the order, which compares the fields one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    /// The key's bytes after those that all keys share.
    word: u64,
    /// Offset of the change.
    offset: usize,
}

impl<'a> SortedChanges<'a> {
    pub fn new(changes: &'a [u8]) -> Self {
        let (shared, count) = shared_by_all(changes);
        let mut order = Vec::with_capacity(count);
        let mut rest = journal::staged(changes);
        let mut offset = 0;
        while let Some(Ok(change)) = rest.next() {
            order.push(SortKey { word: word_at(change.key, shared), offset });
            offset += journal::staged_length(&change);
        }
        order.sort_unstable();
        let mut sorted = Self { changes, order };
        sorted.break_ties();
        sorted
    }

    /// Returns the average length of a change.
    pub fn average_bytes(&self) -> usize {
        self.changes.len() / self.order.len().max(1)
    }

    /// Iterates over the changes, in order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> {
        self.order.iter().filter_map(|sort_key| change_at(self.changes, *sort_key))
    }

    /// Sorts keys with the same word by all their bytes, and keeps the last change of each.
    fn break_ties(&mut self) {
        let changes = self.changes;
        let key = |sort_key: &SortKey| change_at(changes, *sort_key).map(|change| change.key);
        let ties = self.order.chunk_by_mut(|one, other| one.word == other.word);
        for tied in ties.filter(|tied| tied.len() > 1) {
            tied.sort_by(|one, other| key(one).cmp(&key(other)).then(other.offset.cmp(&one.offset)));
        }
        self.order.dedup_by(|later, kept| later.word == kept.word && key(later) == key(kept));
    }
}

fn change_at(changes: &[u8], sort_key: SortKey) -> Option<Change<'_>> {
    journal::staged(changes.get(sort_key.offset..)?).next()?.ok()
}

/// Returns the number of leading bytes that all keys share, and the number of keys.
fn shared_by_all(changes: &[u8]) -> (usize, usize) {
    let mut keys = journal::staged(changes).map_while(Result::ok).map(|change| change.key);
    let Some(first) = keys.next() else { return (0, 0) };
    keys.fold((first.len(), 1), |(shared, count), key| {
        (journal::shared_length(first.get(..shared).unwrap_or(first), key), count + 1)
    })
}

/// Returns the eight bytes of `key` from `start` on as a number in the order of the bytes. A key that ends earlier
/// sorts first, or is equal.
fn word_at(key: &[u8], start: usize) -> u64 {
    let rest = key.get(start..).unwrap_or_default();
    match rest.first_chunk::<WORD>() {
        Some(word) => u64::from_be_bytes(*word),
        None => rest.iter().chain(std::iter::repeat(&0)).take(WORD).fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_are_sorted_and_the_last_one_per_key_stays(
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
