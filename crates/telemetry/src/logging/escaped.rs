//! Escapes bytes from outside for the log: one line, ASCII only, truncated.

use std::fmt::{self, Write};

/// Maximum number of bytes shown of a client's input.
const CLIENT_BYTES: usize = 64;
/// Maximum number of bytes shown of an error from a peer or a library, enough for operators to understand it.
const ERROR_BYTES: usize = 512;

/// Bytes from outside. Displays them truncated, with control characters, double quotes and all non-ASCII characters escaped.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    limit: usize,
}

impl<'a> Escaped<'a> {
    /// Wraps bytes that a client sent.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, limit: CLIENT_BYTES }
    }

    /// Wraps the text of an error that may quote a client or a peer.
    pub fn error(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), limit: ERROR_BYTES }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.bytes.get(..self.limit).unwrap_or(self.bytes);
        for byte in shown {
            match byte {
                b'\'' => f.write_char('\'')?,
                byte => write!(f, "{}", byte.escape_ascii())?,
            }
        }
        match self.bytes.len() {
            length if length > shown.len() => write!(f, "... ({length} bytes)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_text_stays_and_control_sequences_are_escaped() {
        assert_eq!(Escaped::new(b"GET /status").to_string(), "GET /status");
        let hostile = Escaped::new(b"a\r\n2026 ERROR forged\x1b[2J\xff\"").to_string();
        assert_eq!(hostile, r#"a\r\n2026 ERROR forged\x1b[2J\xff\""#);
    }

    #[test]
    fn long_text_is_truncated_with_a_mark() {
        assert_eq!(Escaped::new(&[b'a'; 64]).to_string(), "a".repeat(64));
        assert_eq!(Escaped::new(&[b'a'; 65]).to_string(), format!("{}... (65 bytes)", "a".repeat(64)));
        let reason = "cannot reach 'redis://127.0.0.1:6379', which refuses the connection: is it running there?";
        assert_eq!(Escaped::error(reason).to_string(), reason);
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_short_line_of_ascii(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let shown = Escaped::new(&bytes).to_string();
            prop_assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", shown);
            prop_assert!(shown.len() <= 4 * CLIENT_BYTES + "... (200 bytes)".len());
        }
    }
}
