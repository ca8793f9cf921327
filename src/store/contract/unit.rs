//! The entries that take effect together.

use super::Entry;

/// What takes effect together: one entry, or those of a group.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Unit<'a> {
    /// The index of the first.
    pub first: usize,
    pub entries: &'a [Entry],
    pub(super) keys: &'a [u8],
}

impl<'a> Unit<'a> {
    /// The bucket key of one of its entries.
    pub(in crate::store) fn key(&self, entry: &Entry) -> &'a [u8] {
        entry.key_in(self.keys)
    }

    /// Index, key and itself of each entry.
    pub(in crate::store) fn members(self) -> impl Iterator<Item = (usize, &'a [u8], &'a Entry)> + Clone {
        self.entries.iter().enumerate().map(move |(place, entry)| (self.first + place, self.key(entry), entry))
    }
}
