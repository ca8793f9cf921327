//! The text form of an operation, `key=value "another key"="some value"`, as written in Divvy's line protocol, its
//! rules files and on the command line. Surrounding syntax, such as a command word or a section header's brackets, is
//! parsed elsewhere.
//!
//! A string is bare or in double quotes. A bare one ends at white space, at `=` or at the end of the text, and may be
//! empty. A quoted one ends at the next quote, and has no escapes. Pairs are separated by white space.

use std::fmt::Write;
use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<(&str, &str)>, SyntaxError> {
        pairs(text).collect()
    }

    #[test]
    fn strings_are_bare_or_quoted() {
        assert_eq!(read(r#"a=1 "b c"="d=e"  f="#), Ok(vec![("a", "1"), ("b c", "d=e"), ("f", "")]));
        assert_eq!(read(r#"a=b"c"#), Ok(vec![("a", "b\"c")]));
        assert_eq!(read("a=ü\u{a0}b=c"), Ok(vec![("a", "ü"), ("b", "c")]));
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
