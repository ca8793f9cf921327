//! Inline commands: words on a line, with redis-cli's quoting.
//!
//! Double quotes, at the start of a word or within it, allow the escapes `\n \r \t \b \a \xHH`, and `\` before any other
//! character stands for that character. Single quotes allow only `\'`. A closing quote ends its word.

use std::ops::Range;

/// Appends the words of `line` to `text`, and their ranges to `words`. Returns `None` if a quote is not closed, or not followed
/// by white space.
pub(super) fn split(line: &[u8], text: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> Option<()> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let start = text.len();
        let after = read_word(rest, text)?;
        words.push(start..text.len());
        rest = after.trim_ascii_start();
        if rest.len() == after.len() && !rest.is_empty() {
            return None;
        }
    }
    Some(())
}

/// Appends the word at the front of `rest` to `text`, and returns the rest after it.
fn read_word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((&byte, after)) = rest.split_first() {
        match byte {
            b'"' => return read_double_quoted(after, text),
            b'\'' => return read_single_quoted(after, text),
            byte if byte.is_ascii_whitespace() => break,
            byte => text.push(byte),
        }
        rest = after;
    }
    Some(rest)
}

fn read_double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex_value(*high) << 4 | hex_value(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                text.push(unescape(*escaped));
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        }
    }
}

fn read_single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\'', after @ ..] => return Some(after),
            [b'\\', b'\'', after @ ..] => {
                text.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        }
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// Returns the value of a hexadecimal digit.
fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut text, mut words) = (Vec::new(), Vec::new());
        split(line, &mut text, &mut words)?;
        Some(words.into_iter().map(|range| text[range].to_vec()).collect())
    }

    fn expect(line: &[u8], expected: &[&[u8]]) {
        assert_eq!(words(line), Some(expected.iter().map(|word| word.to_vec()).collect()), "{}", line.escape_ascii());
    }

    #[test]
    fn words_are_split_and_unquoted_like_in_redis() {
        expect(b"", &[]);
        expect(b" \t ", &[]);
        expect(b"PING", &[b"PING"]);
        expect(b"  a\tb  c ", &[b"a", b"b", b"c"]);
        expect(br#"a "" '' b"#, &[b"a", b"", b"", b"b"]);
        expect(br#"a"b c""#, &[b"ab c"]);
        expect(br#""\n\r\t\b\a\x41\xfF\"\\\q\xZ1""#, &[b"\n\r\t\x08\x07A\xff\"\\qxZ1"]);
        expect(br"'it\'s \n'", &[br"it's \n"]);
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for line in [&br#"""#[..], b"'", br#"a "b"#, br#""a"b"#, b"'a'b", br#""a\"#, br#""a\""#, br"'a\'", br#""a"'b'"#]
        {
            assert_eq!(words(line), None, "{}", line.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_words_can_be_quoted(expected in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)) {
            let quote = |word: &Vec<u8>| -> String {
                let hex: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                format!("\"{hex}\"")
            };
            let line = expected.iter().map(quote).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(words(line.as_bytes()), Some(expected));
        }

        #[test]
        fn words_never_grow(line in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(words) = words(&line) {
                prop_assert!(words.iter().map(Vec::len).sum::<usize>() <= line.len());
            }
        }
    }
}
