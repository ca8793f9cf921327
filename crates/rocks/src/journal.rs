//! The journal: its records, each with the changes of one commit, packed into one value, and its segments.
//!
//! Values are absolute. So a record can be replayed twice, and even after its changes have reached the counters. A
//! value of length 0 means that the bucket is forgotten.
//!
//! Before a commit, changes are *staged*: each is `key length, key, value length, value` with lengths as 32-bit
//! little-endian numbers. A record begins with [`MAGIC`]. A run of changes follows: the number of bytes that the key
//! shares with the key before, the number of its other bytes, these bytes, the value's length, and the value. The
//! numbers are LEB128. Keys of one rule differ only in the actor, so most changes take a third of their staged length.
//!
//! Write-backs sort staged changes by key. Records that no fsync has covered are kept in memory, because a failing disk may lose
//! them even after they were written.
//!
//! The journal is divided into numbered segments. A change carries the number of the segment that was open when it was
//! made. The change is in that segment or in the first commit of the next one: see [`SegmentMarks::open`]. Another mark
//! names the last segment whose counters are all written back.

use std::collections::VecDeque;

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use divvy_store::StoreError;
use divvy_store::key::{read_bytes, read_number, write_number};

const LENGTH: usize = size_of::<u32>();
/// Size of a fixed window's value (bytes).
const WINDOW: usize = 16;
/// First bytes of a record.
const MAGIC: [u8; LENGTH] = [2, 0, 0, 0xff];
const WORD: usize = size_of::<u64>();
/// Approximate size of a chunk of records. Memory is given back chunk by chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes beyond which a commit waits for an fsync.
const MAX_BYTES: usize = 48 << 20;
/// Bytes beyond which a large batch waits for an fsync before it changes anything. So commits need not wait.
const MANY_BYTES: usize = 8 << 20;

/// One change of one bucket.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The bucket's key.
    pub key: &'a [u8],
    /// The bucket's new value; empty if the bucket is forgotten.
    pub value: &'a [u8],
}

/// Stages a change whose value `write_value` appends. Returns the offset of the value.
#[inline]
pub fn stage(staged: &mut Vec<u8>, key: &[u8], write_value: impl FnOnce(&mut Vec<u8>)) -> usize {
    staged.extend_from_slice(&length_of(key));
    staged.extend_from_slice(key);
    staged.extend_from_slice(&[0; LENGTH]);
    let value_at = staged.len();
    write_value(staged);
    let (before, value) = staged.split_at_mut(value_at);
    if let Some(length) = before.last_chunk_mut() {
        *length = length_of(value);
    }
    value_at
}

/// Replaces the staged value at `offset` with a later one, which `write_value` appends. Returns false, and changes
/// nothing, if their lengths differ.
pub fn restage(staged: &mut Vec<u8>, offset: usize, write_value: impl FnOnce(&mut Vec<u8>)) -> bool {
    let end = staged.len();
    // The value is first written at the end, because that memory was just used. The memory of a separate buffer was
    // not.
    write_value(staged);
    let (earlier, later) = staged.split_at_mut(end);
    let earlier_length = offset.checked_sub(LENGTH).and_then(|start| earlier.get(start..offset));
    let is_as_long = earlier_length == Some(&length_of(later));
    let place = earlier.get_mut(offset..offset + later.len()).filter(|_| is_as_long);
    let is_replaced = place.is_some();
    if let Some(place) = place {
        place.copy_from_slice(later);
    }
    staged.truncate(end);
    is_replaced
}

/// Returns the staged changes, oldest first. Ends if one is incomplete.
pub fn staged(mut staged: &[u8]) -> impl Iterator<Item = Change<'_>> {
    std::iter::from_fn(move || {
        let key = read_staged(&mut staged)?;
        Some(Change { key, value: read_staged(&mut staged)? })
    })
}

/// Packs staged changes into a record. It is reused from record to record.
#[derive(Debug, Default)]
pub struct Packer {
    key_before: Vec<u8>,
}

impl Packer {
    /// Appends staged changes to `record`, which may be empty.
    pub fn pack(&mut self, staged: &[u8], record: &mut Vec<u8>) {
        if staged.is_empty() {
            return;
        }
        if record.is_empty() {
            self.key_before.clear();
            record.extend_from_slice(&MAGIC);
        }
        let mut last = None;
        for Change { key, value } in self::staged(staged) {
            let shared = shared_length(last.unwrap_or(&self.key_before), key);
            let rest = key.get(shared..).unwrap_or_default();
            write_number(record, shared as u64);
            write_number(record, rest.len() as u64);
            record.extend_from_slice(rest);
            write_number(record, value.len() as u64);
            match <&[u8; WINDOW]>::try_from(value) {
                // Fast path: a copy without a call.
                Ok(window) => record.extend_from_slice(window),
                Err(_) => record.extend_from_slice(value),
            }
            last = Some(key);
        }
        if let Some(key) = last {
            self.key_before.clear();
            self.key_before.extend_from_slice(key);
        }
    }
}

/// Calls `each` with the changes of a record, oldest first.
///
/// # Errors
/// The record begins differently, ends in the middle of a change, or refers to more bytes of a key than the key had. `each` has then
/// seen the changes before the damage.
pub fn each_change(record: &[u8], each: impl FnMut(Change<'_>)) -> Result<(), StoreError> {
    read_changes(record, each).ok_or_else(|| StoreError::new("a journal record does not consist of whole changes"))
}

fn read_changes(record: &[u8], mut each: impl FnMut(Change<'_>)) -> Option<()> {
    if record.is_empty() {
        return Some(());
    }
    let mut rest = record.strip_prefix(&MAGIC)?;
    let mut key = Vec::new();
    while !rest.is_empty() {
        let shared = usize::try_from(read_number(&mut rest)?).ok()?;
        key.truncate(Some(shared).filter(|shared| *shared <= key.len())?);
        key.extend_from_slice(read_bytes(&mut rest)?);
        each(Change { key: &key, value: read_bytes(&mut rest)? });
    }
    Some(())
}

/// Returns the number of leading bytes that two keys share.
pub fn shared_length(one: &[u8], other: &[u8]) -> usize {
    let (words, rest) = one.as_chunks();
    let (other_words, other_rest) = other.as_chunks();
    let mut shared = 0;
    for (one, other) in words.iter().zip(other_words) {
        let different = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if different != 0 {
            return shared + different.trailing_zeros() as usize / u8::BITS as usize;
        }
        shared += size_of::<u64>();
    }
    let one = if words.len() > other_words.len() { one.get(shared..).unwrap_or_default() } else { rest };
    let other = if other_words.len() > words.len() { other.get(shared..).unwrap_or_default() } else { other_rest };
    shared + one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn read_staged<'a>(staged: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = staged.split_first_chunk::<LENGTH>()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *staged = rest;
    Some(bytes)
}

fn length_of(bytes: &[u8]) -> [u8; LENGTH] {
    // Keys and values are bounded far below 4 GiB by the limits on requests and on logs.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Staged changes sorted by key, with only the last change of each key.
///
/// Keys of one rule differ only in the actor, so the comparison skips the bytes that all keys share. The next eight
/// bytes, compared as one number, nearly always decide.
pub struct SortedChanges<'a> {
    changes: &'a [u8],
    /// For each change, the key's bytes after those that all keys share, and the change's offset.
    order: Vec<(u64, usize)>,
}

impl<'a> SortedChanges<'a> {
    /// Sorts staged changes.
    pub fn new(changes: &'a [u8]) -> Self {
        let (shared, count) = shared_by_all(changes);
        let (mut order, mut offset) = (Vec::with_capacity(count), 0);
        for Change { key, value } in staged(changes) {
            order.push((word_at(key, shared), offset));
            offset += 2 * LENGTH + key.len() + value.len();
        }
        // The last change of each key comes first, and stays.
        let key = |offset| change_at(changes, offset).map(|change| change.key);
        order.sort_unstable_by(|(word, at), (other_word, other_at)| {
            let by_key = word.cmp(other_word).then_with(|| key(*at).cmp(&key(*other_at)));
            by_key.then(other_at.cmp(at))
        });
        order.dedup_by(|(word, at), (kept_word, kept_at)| word == kept_word && key(*at) == key(*kept_at));
        Self { changes, order }
    }

    /// Returns the average length of a change.
    pub fn average_bytes(&self) -> usize {
        self.changes.len() / self.order.len().max(1)
    }

    /// Iterates over the changes, in order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> {
        self.order.iter().filter_map(|(_, offset)| change_at(self.changes, *offset))
    }
}

fn change_at(changes: &[u8], offset: usize) -> Option<Change<'_>> {
    staged(changes.get(offset..)?).next()
}

/// Returns the number of leading bytes that all keys share, and the number of keys.
fn shared_by_all(changes: &[u8]) -> (usize, usize) {
    let mut keys = staged(changes).map(|change| change.key);
    let Some(first) = keys.next() else { return (0, 0) };
    keys.fold((first.len(), 1), |(shared, count), key| {
        (shared_length(first.get(..shared).unwrap_or(first), key), count + 1)
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

/// The records since the last fsync, in chunks.
#[derive(Debug, Default)]
pub struct UnsyncedRecords {
    /// Records are framed like staged changes: each is the value of a change without a key.
    chunks: Vec<Vec<u8>>,
    bytes: usize,
}

impl UnsyncedRecords {
    /// Adds a record, even if writing it may have failed.
    pub fn push(&mut self, record: &[u8]) {
        if record.is_empty() {
            return;
        }
        self.bytes += record.len();
        let has_room = |chunk: &Vec<u8>| chunk.len() + record.len() <= CHUNK_BYTES;
        if !self.chunks.last().is_some_and(has_room) {
            // A chunk that grows would be copied. The system provides the pages of a large chunk only as they are
            // written.
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            stage(chunk, &[], |out| out.extend_from_slice(record));
        }
    }

    /// Returns whether a commit must wait for an fsync.
    pub fn is_full(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Returns whether large batches must wait for an fsync.
    pub fn is_long(&self) -> bool {
        self.bytes > MANY_BYTES
    }

    /// Puts back the records of a failed fsync, before those that were added since.
    pub fn put_back(&mut self, mut records: Self) {
        records.bytes += self.bytes;
        records.chunks.append(&mut self.chunks);
        *self = records;
    }

    /// Iterates over the records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().flat_map(|chunk| staged(chunk).map(|record| record.value))
    }
}

/// The low bits of a segment's number, which fit into a slot of the table. If a counter does not change for 65,536
/// segments, it looks as if it had changed recently, while that segment is kept. The only effect is that it stays in
/// memory.
pub type Mark = u16;
/// Minimum number of segments in a full journal.
const SEGMENTS: u64 = 32;
/// Minimum ratio of the table's length to a segment's. Otherwise, the counters of one segment might fill the table, and
/// none of them could be evicted.
const TABLE_TO_SEGMENT: u64 = 32;
/// Length that a segment may have regardless of the table (bytes).
const SHORTEST_SEGMENT: u64 = 64 << 10;

/// The number of the last closed segment, and of the last one whose counters are all written back.
#[derive(Debug, Default)]
pub struct SegmentMarks {
    closed: AtomicU32,
    clean: AtomicU32,
}

impl SegmentMarks {
    /// Returns the number of the open segment.
    ///
    /// A change must read it under its stripe's lock, after the stripe is marked as pending. If a commit has taken the
    /// stripe's changes before that, the change sees the segments that were closed by then. So no change is later than
    /// in the first commit after its segment.
    pub fn open(&self) -> u32 {
        self.closed.load(Acquire).wrapping_add(1)
    }

    /// Closes the open segment, and returns its number.
    pub fn close(&self) -> u32 {
        self.closed.fetch_add(1, AcqRel).wrapping_add(1)
    }

    /// Returns the last segment that is written back: the own record of every counter whose last change is in this
    /// segment or earlier is current.
    pub fn clean(&self) -> u32 {
        self.clean.load(Acquire)
    }

    /// Records that every counter whose last change is in segment `number` or earlier is written back.
    pub fn set_clean(&self, number: u32) {
        self.clean.fetch_max(number, Release);
    }

    /// Returns the segment that `mark` stands for: the last one with these low bits.
    pub fn number(&self, mark: Mark) -> u32 {
        let open = self.open();
        open.wrapping_sub(u32::from((open as Mark).wrapping_sub(mark)))
    }

    /// Returns whether the counter's own record contains its last change, which has this mark.
    pub fn is_clean(&self, mark: Mark) -> bool {
        // A mark from before the first segment becomes a number near the largest.
        let number = self.number(mark);
        number <= self.clean() || number > self.open()
    }
}

/// A run of commits whose counters are written back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: u32,
    /// The first commit in the segment. In an empty segment, it is after the last commit.
    pub first: u64,
    /// The last commit in the segment.
    pub last: u64,
    /// The length of its records.
    pub bytes: u64,
}

/// The segments that are not written back. The last one is open.
#[derive(Debug)]
pub struct Segments {
    segments: VecDeque<Segment>,
    /// The length of all segments (bytes).
    pub bytes: u64,
    max_bytes: u64,
    /// Length that a longer journal of the last process has now; 0 once it is within `max_bytes`. The journal may
    /// exceed `max_bytes` by it.
    inherited: u64,
    /// A segment is closed at this length (bytes).
    segment_bytes: u64,
}

impl Segments {
    /// Creates an empty journal of at most `max_bytes`, for a table with `table_bytes`.
    pub fn new(max_bytes: u64, table_bytes: u64, marks: &SegmentMarks) -> Self {
        let longest_segment = (table_bytes / TABLE_TO_SEGMENT).max(SHORTEST_SEGMENT);
        let segment_bytes = (max_bytes / SEGMENTS).min(longest_segment);
        let mut segments = Self { segments: VecDeque::new(), bytes: 0, max_bytes, inherited: 0, segment_bytes };
        segments.open(marks, 0);
        segments
    }

    fn open(&mut self, marks: &SegmentMarks, last: u64) {
        self.segments.push_back(Segment { number: marks.open(), first: last + 1, last, bytes: 0 });
    }

    /// Notes that commit `number` was appended to the open segment, and closes a segment that is long enough.
    pub fn grew(&mut self, number: u64, bytes: u64, marks: &SegmentMarks) {
        self.bytes += bytes;
        if let Some(open) = self.segments.back_mut() {
            if open.bytes == 0 {
                open.first = number;
            }
            open.last = number;
            open.bytes += bytes;
            if open.bytes >= self.segment_bytes {
                self.close(marks);
            }
        }
    }

    /// Closes the open segment. Returns its number.
    pub fn close(&mut self, marks: &SegmentMarks) -> u32 {
        let last = self.segments.back().map_or(0, |open| open.last);
        let closed = marks.close();
        self.open(marks, last);
        closed
    }

    /// Notes that all segments are the last process's.
    pub fn inherit(&mut self) {
        self.inherited = self.bytes;
        self.note_inherited();
    }

    /// Returns whether the last process left a journal that is still longer than it may be.
    pub fn has_inherited(&self) -> bool {
        self.inherited > 0
    }

    /// Returns whether the journal exceeds its maximum length.
    pub fn is_full(&self) -> bool {
        self.bytes > self.max_bytes + self.inherited
    }

    /// Returns whether a segment should be written back, to make room for the next ones.
    pub fn is_long(&self) -> bool {
        self.bytes > self.max_bytes + self.inherited - 2 * self.segment_bytes
    }

    /// Returns the oldest segment, if it is closed, and the first commit after it, if there is one.
    pub fn oldest(&self) -> Option<(Segment, Option<u64>)> {
        let oldest = self.segments.front()?;
        let next = self.segments.get(1)?;
        Some((*oldest, (next.bytes > 0).then_some(next.first)))
    }

    /// Notes that the oldest segment was written back, and its commits were dropped.
    pub fn drop_oldest(&mut self) {
        if let Some(dropped) = self.segments.pop_front() {
            self.bytes -= dropped.bytes;
        }
        self.note_inherited();
    }

    fn note_inherited(&mut self) {
        self.inherited = if self.bytes > self.max_bytes { self.inherited.min(self.bytes) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn pairs() -> impl Strategy<Value = Pairs> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        let key =
            prop_oneof![bytes(), bytes().prop_map(|end| [&b"a rule's prefix, longer than a word"[..], &end].concat())];
        prop::collection::vec((key, prop_oneof![bytes(), Just(vec![7; 300])]), 0..8)
    }

    fn staged_of(pairs: &Pairs) -> Vec<u8> {
        let mut staged = Vec::new();
        for (key, value) in pairs {
            let at = stage(&mut staged, key, |out| out.extend_from_slice(value));
            assert_eq!(&staged[at..], value);
        }
        staged
    }

    fn changes(record: &[u8]) -> Option<Pairs> {
        let mut changes = Vec::new();
        each_change(record, |change| changes.push((change.key.to_vec(), change.value.to_vec()))).ok()?;
        Some(changes)
    }

    proptest! {
        #[test]
        fn record_reads_back(pairs in pairs(), more in pairs()) {
            let staged = staged_of(&pairs);
            let (mut packer, mut record) = (Packer::default(), Vec::new());
            packer.pack(&staged_of(&more), &mut vec![]);
            packer.pack(&staged, &mut record);
            packer.pack(&staged_of(&more), &mut record);
            prop_assert_eq!(changes(&record), Some([pairs, more].concat()));
        }

        #[test]
        fn later_value_replaces_an_earlier_one_of_equal_length(mut pairs in pairs(), later: [u8; 9]) {
            let mut staged = staged_of(&pairs);
            let at = stage(&mut staged, b"key", |out| out.extend_from_slice(&[0; 9]));
            let before = staged.clone();
            prop_assert!(!restage(&mut staged, at, |out| out.extend_from_slice(&later[..8])));
            prop_assert_eq!(&staged, &before);
            prop_assert!(restage(&mut staged, at, |out| out.extend_from_slice(&later)));
            pairs.push((b"key".to_vec(), later.to_vec()));
            prop_assert_eq!(staged, staged_of(&pairs));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = changes(&bytes);
            let _ = changes(&[&MAGIC[..], &bytes].concat());
        }
    }

    #[test]
    fn record_with_a_dangling_reference_is_damaged() {
        for dangling in [&[1, 0, 0][..], &[0, 2, b'a'], &[0xff; 11]] {
            assert_eq!(changes(&[&MAGIC[..], dangling].concat()), None);
        }
    }

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
                stage(&mut staged, &key, |out| out.extend_from_slice(value));
                model.insert(key, value.to_vec());
            }
            let sorted = SortedChanges::new(&staged);
            let read: Vec<_> = sorted.iter().map(|change| (change.key.to_vec(), change.value.to_vec())).collect();
            prop_assert_eq!(read, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn marks_wrap_and_stay_distinct() {
        let marks = SegmentMarks::default();
        (0..70_000).for_each(|_| marks.set_clean(marks.close()));
        assert!(!marks.is_clean(marks.open() as Mark));
        assert!((1..65_000).all(|ago| marks.is_clean((marks.open() - ago) as Mark)));
    }
}
