//! The operation of a request: `key=value` pairs.

use std::ops::Range;

use super::key::{Key, Tag};

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
}
