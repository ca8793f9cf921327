//! The text form of an operation, `key=value "another key"="some value"`, as Divvy's line protocol, its rules files and
//! the command line write it. What surrounds it (a command word, a section header's brackets) is parsed elsewhere.
//!
//! A string is bare or in double quotes. A bare one ends at white space, at `=` or with the text, and may be empty; a
//! quoted one ends at the next quote, and knows no escapes. Pairs are separated by white space.

use std::fmt::Write;

/// Why a text is not an operation. The wording is that of Button's Divvy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("Unexpected end of quoted string.")]
    UnclosedQuote,
    #[error("Unexpected end of input string.")]
    UnexpectedEnd,
    #[error("Expected '=', found '{0}'")]
    ExpectedEquals(char),
    #[error("Expected whitespace, found '{0}'")]
    ExpectedWhitespace(char),
}

/// A string that the text form cannot express: it contains a double quote and characters that need quotes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be written: it needs quotes and contains a quote")]
pub struct Unwritable(pub String);

/// Reads one string off the front of `text`; returns it, and what follows it.
pub fn read_string(text: &str) -> Result<(&str, &str), SyntaxError> {
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted.split_once('"').ok_or(SyntaxError::UnclosedQuote);
    }
    Ok(text.split_at(bare_len(text)))
}

/// The pairs of `text`, in order, repeated keys included. Ends after the first error.
pub fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), SyntaxError>> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match read_pair(rest) {
            Ok((pair, after)) => {
                rest = after;
                Some(Ok(pair))
            }
            Err(error) => {
                rest = "";
                Some(Err(error))
            }
        }
    })
}

fn read_pair(text: &str) -> Result<((&str, &str), &str), SyntaxError> {
    let (key, rest) = read_string(text)?;
    let rest = match rest.chars().next() {
        Some('=') => rest.get(1..).unwrap_or_default(),
        Some(other) => return Err(SyntaxError::ExpectedEquals(other)),
        None => return Err(SyntaxError::UnexpectedEnd),
    };
    let (value, rest) = read_string(rest)?;
    match rest.chars().next() {
        Some(next) if !next.is_whitespace() => Err(SyntaxError::ExpectedWhitespace(next)),
        _ => Ok(((key, value), rest.trim_start())),
    }
}

/// The length in bytes of the bare string at the front of `text`.
fn bare_len(text: &str) -> usize {
    // Bytes first: most strings are ASCII, and decoding characters would triple the time.
    let ends = |byte: u8| matches!(byte, b'=' | b' ' | b'\t'..=b'\r') || !byte.is_ascii();
    match text.bytes().position(ends) {
        None => text.len(),
        Some(at) if text.as_bytes().get(at).is_some_and(u8::is_ascii) => at,
        Some(_) => text.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(text.len()),
    }
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

fn write_string(text: &mut String, string: &str, must_quote: bool) -> Result<(), Unwritable> {
    let bare = !must_quote && !string.starts_with('"') && bare_len(string) == string.len();
    if bare {
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
    fn errors_use_divvys_words() {
        let message = |text| read(text).map_err(|error| error.to_string());
        assert_eq!(message("\"a=1"), Err("Unexpected end of quoted string.".into()));
        assert_eq!(message("a"), Err("Unexpected end of input string.".into()));
        assert_eq!(message("a = b"), Err("Expected '=', found ' '".into()));
        assert_eq!(message("a=\"b\"c"), Err("Expected whitespace, found 'c'".into()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(pairs in prop::collection::vec((".*", ".*"), 0..5)) {
            let borrowed: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            match write(borrowed.iter().copied()) {
                Ok(text) => prop_assert_eq!(read(&text), Ok(borrowed)),
                Err(Unwritable(string)) => prop_assert!(string.contains('"') || string.contains('\n')),
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = read(&text);
        }
    }
}
