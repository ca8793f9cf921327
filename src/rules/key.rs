//! Keys that are compared at a glance: by a number made of a key's length and its first bytes.
//!
//! For each request, every key of the rules is looked for among the keys of its operation. Most keys are short, and for
//! those the number is all there is to compare.

/// How many bytes of a key its tag holds.
const TAGGED: usize = 7;

/// The length of a key and its first bytes. Keys of up to seven bytes are equal when their tags are; for longer ones, the
/// bytes decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Of the key that `text` begins with, and that is `length` bytes long.
    pub fn new(text: &[u8], length: usize) -> Self {
        // Eight bytes at once where there are as many: most often the value follows.
        let first = match text.first_chunk() {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => text.iter().rev().fold(0, |first, byte| first << 8 | u64::from(*byte)),
        };
        let tagged = first & ((1 << (8 * length.min(TAGGED))) - 1);
        Self(tagged | (length.min(usize::from(u8::MAX)) as u64) << (8 * TAGGED))
    }

    /// Whether keys with this tag are equal for it alone.
    pub fn is_whole(self) -> bool {
        self.0 >> (8 * TAGGED) <= TAGGED as u64
    }
}

/// A key to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    tag: Tag,
    text: Box<str>,
}

impl Key {
    pub fn new(text: &str) -> Self {
        Self { tag: Tag::new(text.as_bytes(), text.len()), text: text.into() }
    }

    pub fn tag(&self) -> Tag {
        self.tag
    }

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
        fn tags_tell_short_keys_apart_and_are_equal_for_equal_keys(
            one in "[ab\u{0}]{0,9}", other in "[ab\u{0}]{0,9}", after in "[ab=]{0,9}",
        ) {
            let (tag, other_tag) = (Tag::new(format!("{one}{after}").as_bytes(), one.len()), Key::new(&other).tag());
            prop_assert_eq!(tag.is_whole(), one.len() <= TAGGED);
            if one == other || tag.is_whole() || other_tag.is_whole() {
                prop_assert_eq!(tag == other_tag, one == other);
            }
        }
    }

    #[test]
    fn a_long_key_is_no_short_one() {
        for length in [255, 256, 257, 259, 512] {
            let long = Key::new(&"\0".repeat(length));
            assert!(!long.tag().is_whole(), "{length}");
            assert!((0..9).all(|short| Key::new(&"\0".repeat(short)).tag() != long.tag()), "{length}");
        }
    }
}
