//! The operation of a request: `key=value` pairs, the keys to look up in them, and their text form.
//!
//! For each request, every key of the rules is looked up among the keys of its operation. Keys are compared by a number made
//! of a key's length and its first bytes. Most keys are short, and short keys are equal if their numbers are.
//!
//! The text form, `key=value "another key"="some value"`, is written in Divvy's line protocol, its
//! rules files and on the command line. Surrounding syntax, such as a command word or a section header's brackets, is
//! parsed elsewhere.
//!
//! A string is bare or in double quotes. A bare one ends at white space, at `=` or at the end of the text, and may be
//! empty. A quoted one ends at the next quote, and has no escapes. Pairs are separated by white space.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

/// The key for the domain of a gRPC request, which Envoy's Rate Limit Service sends apart from the other pairs.
pub const DOMAIN: &str = "domain";

/// The `key=value` pairs that a caller asks about, each key once, unless they are the entries of a descriptor. Reused from request to request, so that its buffers
/// keep their capacity.
#[derive(Debug, Clone, Default)]
pub struct Operation {
    /// Bytes, not a `str`: matching needs no more, and slicing a `str` costs more. Keys and values are UTF-8.
    text: Vec<u8>,
    pairs: Vec<Pair>,
    /// Whether its values have the spelling of checks.
    pub(super) is_normalized: bool,
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

    /// Adds a pair. The last value of a repeated key wins. Returns whether the key is new.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        let (key, value) = (self.append(key), self.append(value));
        self.set_spans(key, value)
    }

    /// Adds a pair after the others, even if its key is known. Look-ups then find the first value.
    pub fn push(&mut self, key: &str, value: &str) {
        let (key, value) = (self.append(key), self.append(value));
        let tag = Tag::new(self.text.get(key.start..).unwrap_or_default(), key.len());
        self.pairs.push(Pair { tag, key, value });
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
    #[inline]
    fn place(&self, tag: Tag, key: &[u8]) -> Option<usize> {
        let is_same = |pair: &Pair| pair.tag == tag && (tag.holds_whole_key() || self.bytes(&pair.key) == key);
        self.pairs.iter().position(is_same)
    }

    /// Returns the pairs, in the order of their keys' first appearance.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.pairs.iter().map(|pair| (self.str(&pair.key), self.str(&pair.value)))
    }

    /// Returns the pairs as a descriptor has them: in their order, without the domain.
    pub fn entries(&self) -> impl Iterator<Item = [&[u8]; 2]> {
        let domain = self.place(Tag::new(DOMAIN.as_bytes(), DOMAIN.len()), DOMAIN.as_bytes());
        let others = self.pairs.iter().enumerate().filter(move |(place, _)| Some(*place) != domain);
        others.map(|(_, pair)| [self.bytes(&pair.key), self.bytes(&pair.value)])
    }

    #[inline]
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
    #[inline]
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

/// A syntax error in an operation. The wording is that of Button's Divvy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// A quoted string has no closing quote.
    #[error("Unexpected end of quoted string.")]
    UnclosedQuote,
    /// The text ends after a key without its `=`.
    #[error("Unexpected end of input string.")]
    UnexpectedEnd,
    /// This character follows a key, where `=` is expected.
    #[error("Expected '=', found '{0}'")]
    ExpectedEquals(char),
    /// This character follows the closing quote of a value.
    #[error("Expected whitespace, found '{0}'")]
    ExpectedWhitespace(char),
}

/// A string that the text form cannot express: it contains a double quote and characters that need quotes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be written: it needs quotes and contains a quote")]
pub struct Unwritable(pub String);

/// The positions of a pair's strings, without their quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairSpans {
    /// Range of the key in the text.
    pub key: Range<usize>,
    /// Range of the value in the text, may be empty.
    pub value: Range<usize>,
}

/// Returns the pairs of `text`, in order, including repeated keys. Ends after the first error.
pub fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), SyntaxError>> {
    let part = |range| text.get(range).unwrap_or_default();
    pair_spans(text.as_bytes(), 0).map(move |pair| pair.map(|PairSpans { key, value }| (part(key), part(value))))
}

/// Returns pairs as [`pairs`] does, but as spans of the part of `text` (UTF-8) that begins at `start`.
#[inline]
pub fn pair_spans(text: &[u8], start: usize) -> impl Iterator<Item = Result<PairSpans, SyntaxError>> {
    let mut at = skip_whitespace(text, start);
    std::iter::from_fn(move || {
        if at >= text.len() {
            return None;
        }
        let pair = read_pair(text, at);
        at = pair.as_ref().map_or(text.len(), |(_, next)| *next);
        Some(pair.map(|(pair, _)| pair))
    })
}

/// Reads the string that begins at `at`. Returns its span, and the position after it.
#[inline]
pub fn read_string(text: &[u8], at: usize) -> Result<(Range<usize>, usize), SyntaxError> {
    if text.get(at) != Some(&b'"') {
        let end = bare_end(text, at);
        return Ok((at..end, end));
    }
    let quoted = text.get(at + 1..).unwrap_or_default();
    let length = memchr::memchr(b'"', quoted).ok_or(SyntaxError::UnclosedQuote)?;
    let end = at + 1 + length;
    Ok((at + 1..end, end + 1))
}

/// Reads the pair that begins at `at`. Returns it, and the position of the next one.
fn read_pair(text: &[u8], at: usize) -> Result<(PairSpans, usize), SyntaxError> {
    let (key, equals) = read_string(text, at)?;
    match text.get(equals) {
        Some(b'=') => {}
        Some(_) => return Err(SyntaxError::ExpectedEquals(char_at(text, equals))),
        None => return Err(SyntaxError::UnexpectedEnd),
    }
    let (value, end) = read_string(text, equals + 1)?;
    let next = skip_whitespace(text, end);
    if next == end && end < text.len() {
        return Err(SyntaxError::ExpectedWhitespace(char_at(text, end)));
    }
    Ok((PairSpans { key, value }, next))
}

/// Returns the end of the bare string that begins at `at`.
fn bare_end(text: &[u8], mut at: usize) -> usize {
    loop {
        // Bytes first: most strings are ASCII, and decoding characters would triple the time.
        let rest = text.get(at..).unwrap_or_default();
        at += rest.iter().position(may_end_bare).unwrap_or(rest.len());
        match text.get(at) {
            Some(byte) if !byte.is_ascii() && whitespace(text, at) == 0 => at += char_at(text, at).len_utf8(),
            _ => return at,
        }
    }
}

/// Returns whether the byte ends a bare string, or starts a multi-byte character that may end one.
fn may_end_bare(byte: &u8) -> bool {
    MAY_END_BARE.get(usize::from(*byte)) == Some(&true)
}

/// One entry per byte. A look-up takes a third of the time of comparisons.
static MAY_END_BARE: [bool; 256] = {
    let mut table = [false; 256];
    let mut places: &mut [bool] = &mut table;
    let mut byte = 0_u8;
    while let [place, rest @ ..] = places {
        *place = byte == b'=' || is_ascii_whitespace(byte) || !byte.is_ascii();
        places = rest;
        byte = byte.wrapping_add(1);
    }
    table
};

fn skip_whitespace(text: &[u8], mut at: usize) -> usize {
    loop {
        match whitespace(text, at) {
            0 => return at,
            length => at += length,
        }
    }
}

/// Returns the length of the white space character at `at`, or 0 for any other character.
fn whitespace(text: &[u8], at: usize) -> usize {
    match text.get(at) {
        Some(byte) if is_ascii_whitespace(*byte) => 1,
        Some(byte) if !byte.is_ascii() => {
            Some(char_at(text, at)).filter(|c| c.is_whitespace()).map_or(0, char::len_utf8)
        }
        _ => 0,
    }
}

/// Returns what `char::is_whitespace` returns, which includes the vertical tab.
const fn is_ascii_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Returns the character that begins at `at`.
fn char_at(text: &[u8], at: usize) -> char {
    let rest = text.get(at..).unwrap_or_default();
    let longest = rest.get(..4).unwrap_or(rest);
    let valid = longest.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
    valid.unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Writes `pairs` so that [`pairs`] reads them again, quoting only what needs it.
///
/// # Errors
/// [`Unwritable`] names the first string that no quoting can protect.
pub fn write<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<String, Unwritable> {
    let mut text = String::new();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push(' ');
        }
        // A bare empty key (`=v`) would be valid, but hard to recognize.
        write_string(&mut text, key, key.is_empty())?;
        text.push('=');
        write_string(&mut text, value, false)?;
    }
    Ok(text)
}

/// Returns whether the string needs no quotes. An empty one needs none.
pub fn is_bare(string: &[u8]) -> bool {
    string.first() != Some(&b'"') && bare_end(string, 0) == string.len()
}

fn write_string(text: &mut String, string: &str, must_quote: bool) -> Result<(), Unwritable> {
    if !must_quote && is_bare(string.as_bytes()) {
        text.push_str(string);
    } else if string.contains('"') || string.contains('\n') {
        return Err(Unwritable(string.to_owned()));
    } else {
        // Writing to a String cannot fail.
        let _ = write!(text, "\"{string}\"");
    }
    Ok(())
}

/// The definition of the text form, in characters rather than bytes.
#[cfg(test)]
mod definition {
    use super::SyntaxError;

    pub fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), SyntaxError>> {
        let mut rest = text.trim_start();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let pair = read_pair(rest);
            rest = pair.as_ref().map_or("", |(_, after)| after.trim_start());
            Some(pair.map(|(pair, _)| pair))
        })
    }

    fn read_pair(text: &str) -> Result<((&str, &str), &str), SyntaxError> {
        let (key, rest) = read_string(text)?;
        let rest = match rest.chars().next() {
            Some('=') => &rest[1..],
            Some(other) => return Err(SyntaxError::ExpectedEquals(other)),
            None => return Err(SyntaxError::UnexpectedEnd),
        };
        let (value, rest) = read_string(rest)?;
        match rest.chars().next() {
            Some(next) if !next.is_whitespace() => Err(SyntaxError::ExpectedWhitespace(next)),
            _ => Ok(((key, value), rest)),
        }
    }

    fn read_string(text: &str) -> Result<(&str, &str), SyntaxError> {
        match text.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(SyntaxError::UnclosedQuote),
            None => Ok(text.split_at(text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len()))),
        }
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

    fn read(text: &str) -> Result<Vec<(&str, &str)>, SyntaxError> {
        pairs(text).collect()
    }

    #[test]
    fn errors_have_the_wording_of_buttons_divvy() {
        let message = |text| read(text).map_err(|error| error.to_string());
        assert_eq!(message("\"a=1"), Err("Unexpected end of quoted string.".into()));
        assert_eq!(message("a"), Err("Unexpected end of input string.".into()));
        assert_eq!(message("a = b"), Err("Expected '=', found ' '".into()));
        assert_eq!(message("a=\"b\"c"), Err("Expected whitespace, found 'c'".into()));
    }

    proptest! {
        #[test]
        fn written_operations_parse_to_the_same_pairs(pairs in prop::collection::vec((".*", ".*"), 0..5)) {
            let borrowed: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            match write(borrowed.iter().copied()) {
                Ok(text) => prop_assert_eq!(read(&text), Ok(borrowed)),
                Err(Unwritable(string)) => prop_assert!(string.contains('"') || string.contains('\n')),
            }
        }

        #[test]
        fn parsing_follows_the_definition(text in "([ab=\" \t\u{b}\u{a0}\u{2028}ü漢🍪]|a=b ){0,24}|.*", before in "[a ü]{0,3}") {
            let defined: Result<Vec<_>, _> = definition::pairs(&text).collect();
            prop_assert_eq!(read(&text), defined.clone());
            let within = format!("{before}{text}");
            let places: Result<Vec<_>, _> = pair_spans(within.as_bytes(), before.len()).collect();
            let parts = |places: Vec<PairSpans>| {
                places.into_iter().map(|PairSpans { key, value }| (&within[key], &within[value])).collect::<Vec<_>>()
            };
            prop_assert_eq!(places.map(parts), defined);
        }
    }
}
