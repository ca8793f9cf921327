//! The operation of a request: `key=value` pairs, and the keys to look up in them.
//!
//! For each request, every key of the rules is looked up among the keys of its operation. Keys are compared by a number made
//! of a key's length and its first bytes. Most keys are short, and short keys are equal if their numbers are.

use std::borrow::Cow;
use std::ops::Range;

/// The key for the domain of a gRPC request, which Envoy's Rate Limit Service sends apart from the other pairs.
pub const DOMAIN: &str = "domain";

/// The `key=value` pairs that a caller asks about, each key once. Reused from request to request, so that its buffers
/// keep their capacity.
#[derive(Debug, Clone, Default)]
pub struct Operation {
    /// Bytes, not a `str`: matching needs no more, and slicing a `str` costs more. Keys and values are UTF-8.
    text: Vec<u8>,
    pairs: Vec<Pair>,
    is_normalized: bool,
}

#[derive(Debug, Clone)]
struct Pair {
    tag: Tag,
    key: Range<usize>,
    value: Range<usize>,
}

impl Operation {
    /// Creates an operation without pairs. Its buffers grow on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes that its buffers occupy, used or not.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.pairs.capacity() * size_of::<Pair>()
    }

    /// Removes all pairs, and keeps the buffers.
    pub fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
        self.is_normalized = false;
    }

    /// Declares that its values have the one spelling that checks give them. Rules are then compared in that spelling, too.
    pub fn set_normalized(&mut self) {
        self.is_normalized = true;
    }

    /// Returns whether its values have the spelling of checks.
    pub fn is_normalized(&self) -> bool {
        self.is_normalized
    }

    /// Adds a pair. The last value of a repeated key wins. Returns whether the key is new.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        let (key, value) = (self.append(key), self.append(value));
        self.set_spans(key, value)
    }

    /// Clears the operation and copies the text of a request. [`Operation::set_spans`] then adds its pairs, without
    /// another copy.
    #[inline]
    pub fn begin_text(&mut self, text: &[u8]) {
        self.clear();
        self.text.extend_from_slice(text);
    }

    /// Like [`Operation::set`], for a pair given by its spans in the text, which must be UTF-8.
    // Inlined, because it runs for each pair of each hit. A call would cost twenty instructions more.
    #[inline(always)]
    pub fn set_spans(&mut self, key: Range<usize>, value: Range<usize>) -> bool {
        let tag = Tag::new(self.text.get(key.start..).unwrap_or_default(), key.len());
        let pair = Pair { tag, key, value };
        let bytes = |pair: &Pair| self.text.get(pair.key.clone());
        match self
            .pairs
            .iter_mut()
            .find(|earlier| earlier.tag == tag && (tag.holds_whole_key() || bytes(earlier) == bytes(&pair)))
        {
            Some(earlier) => {
                *earlier = pair;
                false
            }
            None => {
                self.pairs.push(pair);
                true
            }
        }
    }

    /// Returns the value of a key. `None` if the operation does not have it.
    pub fn get(&self, key: &str) -> Option<&str> {
        let place = self.place(Tag::new(key.as_bytes(), key.len()), key.as_bytes())?;
        self.pairs.get(place).map(|pair| self.str(&pair.value))
    }

    /// Returns the value of a key that is looked up often. See [`Operation::get`].
    #[inline]
    pub fn value(&self, key: &Key) -> Option<&[u8]> {
        let place = self.place(key.tag(), key.as_str().as_bytes())?;
        self.pairs.get(place).map(|pair| self.bytes(&pair.value))
    }

    /// Returns the index of the key's pair.
    fn place(&self, tag: Tag, key: &[u8]) -> Option<usize> {
        let is_same = |pair: &Pair| pair.tag == tag && (tag.holds_whole_key() || self.bytes(&pair.key) == key);
        self.pairs.iter().position(is_same)
    }

    /// Returns the pairs, in the order of their keys' first appearance.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.pairs.iter().map(|pair| (self.str(&pair.key), self.str(&pair.value)))
    }

    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.text.get(range.clone()).unwrap_or_default()
    }

    fn str(&self, range: &Range<usize>) -> &str {
        str::from_utf8(self.bytes(range)).unwrap_or_default()
    }

    fn append(&mut self, part: &str) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(part.as_bytes());
        start..self.text.len()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Operation {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut operation = Self::new();
        for (key, value) in pairs {
            operation.set(key, value);
        }
        operation
    }
}

/// Bytes of a key that fit its tag.
const TAG_BYTES: usize = 7;

/// The length of a key and its first bytes. Keys of up to seven bytes are equal if their tags are. Longer keys need a
/// comparison of all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Creates the tag of a key that is `length` bytes long and starts `text`.
    #[inline]
    pub fn new(text: &[u8], length: usize) -> Self {
        // Read eight bytes at once if possible: usually the value follows the key.
        let first = match text.first_chunk() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => text.iter().rev().fold(0, |first, byte| first << 8 | u64::from(*byte)),
        };
        let tagged = first & ((1 << (8 * length.min(TAG_BYTES))) - 1);
        Self(tagged | (length.min(usize::from(u8::MAX)) as u64) << (8 * TAG_BYTES))
    }

    /// Returns whether equal tags mean equal keys.
    fn holds_whole_key(self) -> bool {
        self.0 >> (8 * TAG_BYTES) <= TAG_BYTES as u64
    }
}

/// A key to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    tag: Tag,
    text: Box<str>,
}

impl Key {
    /// Copies the key and computes its tag.
    pub fn new(text: &str) -> Self {
        Self { tag: Tag::new(text.as_bytes(), text.len()), text: text.into() }
    }

    /// Returns the number to compare first.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The keys of a request, each once, and their values.
pub trait Values {
    /// Returns the keys.
    fn keys(&self) -> impl Iterator<Item = &str>;
    /// Returns the value of a key.
    fn value(&self, key: &Key) -> Option<&[u8]>;
    /// Returns the value for the conditions of this setting.
    fn value_for(&self, key: &Key, setting: &'static str) -> Option<Cow<'_, [u8]>>;
}

impl Values for Operation {
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    #[inline]
    fn value(&self, key: &Key) -> Option<&[u8]> {
        self.value(key)
    }

    #[inline]
    fn value_for(&self, key: &Key, _: &'static str) -> Option<Cow<'_, [u8]>> {
        self.value(key).map(Cow::Borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The definition: the first pair of each key, with the value of its last.
        #[test]
        fn each_key_appears_once_with_its_last_value(
            pairs in prop::collection::vec(("[abü]{0,2}|longer-key-[ab]", "[xyü]{0,3}"), 0..9), asked in "[abü]{0,2}",
        ) {
            let mut expected: Vec<(&str, &str)> = Vec::new();
            for (key, value) in &pairs {
                match expected.iter_mut().find(|(earlier, _)| earlier == key) {
                    Some(earlier) => earlier.1 = value,
                    None => expected.push((key, value)),
                }
            }
            let operation: Operation = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            prop_assert_eq!(operation.iter().collect::<Vec<_>>(), expected.clone());
            let value = expected.iter().find(|(key, _)| *key == asked).map(|(_, value)| *value);
            prop_assert_eq!(operation.get(&asked), value);
            prop_assert_eq!(operation.value(&Key::new(&asked)), value.map(str::as_bytes));

            // The same pairs, as spans of one text.
            let (mut text, mut places) = (String::new(), Vec::new());
            for (key, value) in &pairs {
                let start = text.len();
                text.push_str(&format!("{key}={value}\r\n"));
                places.push((start..start + key.len(), start + key.len() + 1..text.len() - 2));
            }
            let mut written = operation.clone();
            written.begin_text(text.as_bytes());
            for (key, value) in places {
                written.set_spans(key, value);
            }
            prop_assert_eq!(written.iter().collect::<Vec<_>>(), expected);
        }
    }

    proptest! {
        #[test]
        fn equal_tags_mean_equal_short_keys(
            one in "[ab\u{0}]{0,9}", other in "[ab\u{0}]{0,9}", after in "[ab=]{0,9}",
        ) {
            let (tag, other_tag) = (Tag::new(format!("{one}{after}").as_bytes(), one.len()), Key::new(&other).tag());
            prop_assert_eq!(tag.holds_whole_key(), one.len() <= TAG_BYTES);
            if one == other || tag.holds_whole_key() || other_tag.holds_whole_key() {
                prop_assert_eq!(tag == other_tag, one == other);
            }
        }
    }

    #[test]
    fn long_key_never_equals_a_short_one() {
        for length in [255, 256, 257, 259, 512] {
            let long = Key::new(&"\0".repeat(length));
            assert!(!long.tag().holds_whole_key(), "{length}");
            assert!((0..9).all(|short| Key::new(&"\0".repeat(short)).tag() != long.tag()), "{length}");
        }
    }
}
