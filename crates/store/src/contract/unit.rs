//! Entries that take effect together.

use super::Entry;

/// One entry, or the entries of a group, which take effect together.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// The index of the first entry.
    pub first: usize,
    /// The entries.
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
