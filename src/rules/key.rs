//! Keys that are compared quickly: by a number made of a key's length and its first bytes.
//!
//! For each request, every key of the rules is looked up among the keys of its operation. Most keys are short, and
//! short keys are equal if their numbers are.

/// Bytes of a key that fit its tag.
const TAG_BYTES: usize = 7;

/// The length of a key and its first bytes. Keys of up to seven bytes are equal if their tags are. Longer keys need a
/// comparison of all bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Creates the tag of a key that is `length` bytes long and starts `text`.
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
    pub fn holds_whole_key(self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
