//! Writes replies.

use std::fmt::Display;
use std::io::Write;

/// Version of a connection's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// The version of a new connection.
    #[default]
    Resp2,
    /// The version after `HELLO 3`, which has maps, sets and its own null.
    Resp3,
}

impl Version {
    /// Returns the version's number in `HELLO`.
    pub fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Appends replies to a buffer. Each reply takes one call. After the call for an aggregate, its elements must follow.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> ReplyWriter<'a> {
    /// Creates a writer that appends to `out` in this version of the protocol.
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// Writes the answer to a hit: allowed (0 or 1), the credits left, and the seconds until there are more.
    pub fn verdict(&mut self, allowed: bool, credit: u64, reset_seconds: u64) {
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(if allowed { b"*3\r\n:1\r\n:" } else { b"*3\r\n:0\r\n:" });
        self.out.extend_from_slice(digits.format(signed(credit)).as_bytes());
        self.out.extend_from_slice(b"\r\n:");
        self.out.extend_from_slice(digits.format(signed(reset_seconds)).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends an integer, `:`.
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Writes an unsigned integer.
    pub fn unsigned(&mut self, value: u64) {
        self.integer(signed(value));
    }

    /// Writes a short text, which must not contain line breaks.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes an error. `message` begins with its code (`ERR `, …), and line breaks become spaces.
    pub fn error(&mut self, message: impl Display) {
        self.out.push(b'-');
        let start = self.out.len();
        // Writing to a Vec cannot fail.
        let _ = write!(self.out, "{message}");
        for byte in self.out.iter_mut().skip(start).filter(|byte| matches!(byte, b'\r' | b'\n')) {
            *byte = b' ';
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends a bulk string, `$`, which may contain any bytes.
    pub fn bulk(&mut self, content: &[u8]) {
        self.length(b'$', content.len());
        self.out.extend_from_slice(content);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends a null: `$-1` in RESP 2, `_` in RESP 3.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array. Replies for its `elements` must follow.
    pub fn array(&mut self, elements: usize) {
        self.length(b'*', elements);
    }

    /// Begins a set, in RESP2 an array. Replies for its `elements` must follow.
    pub fn set(&mut self, elements: usize) {
        let marker = if self.version == Version::Resp3 { b'~' } else { b'*' };
        self.length(marker, elements);
    }

    /// Begins a map, in RESP2 an array of alternating keys and values. Two replies for each of the `pairs` must follow.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Resp2 => self.length(b'*', 2 * pairs),
            Version::Resp3 => self.length(b'%', pairs),
        }
    }

    fn length(&mut self, marker: u8, length: usize) {
        self.header(marker, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn header(&mut self, marker: u8, number: i64) {
        self.out.push(marker);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Caps a number at the largest of RESP's integers, which are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::resp::client::{Frame, decode_reply};

    fn written(version: Version, write: impl FnOnce(&mut ReplyWriter)) -> String {
        let mut out = Vec::new();
        write(&mut ReplyWriter::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn verdicts_are_three_integers() {
        assert_eq!(written(Version::Resp2, |reply| reply.verdict(true, 57, 60)), "*3\r\n:1\r\n:57\r\n:60\r\n");
        let largest = written(Version::Resp3, |reply| reply.verdict(false, u64::MAX, 0));
        assert_eq!(largest, "*3\r\n:0\r\n:9223372036854775807\r\n:0\r\n");
    }

    #[test]
    fn error_is_one_line() {
        let error = written(Version::Resp2, |reply| reply.error("ERR unknown command 'a\r\nb'"));
        assert_eq!(error, "-ERR unknown command 'a  b'\r\n");
    }

    #[test]
    fn types_missing_in_resp2_are_replaced() {
        let write = |reply: &mut ReplyWriter| {
            reply.map(2);
            reply.simple("flags");
            reply.set(1);
            reply.bulk(b"fast");
            reply.bulk(b"name");
            reply.null();
        };
        let resp2 = written(Version::Resp2, write);
        let resp3 = written(Version::Resp3, write);
        assert_eq!(resp2, "*4\r\n+flags\r\n*1\r\n$4\r\nfast\r\n$4\r\nname\r\n$-1\r\n");
        assert_eq!(resp3, "%2\r\n+flags\r\n~1\r\n$4\r\nfast\r\n$4\r\nname\r\n_\r\n");
        let (frame, consumed) = decode_reply(resp2.as_bytes(), Version::Resp2).unwrap().unwrap();
        assert!(consumed == resp2.len() && matches!(&frame, Frame::Array { data, .. } if data.len() == 4), "{frame:?}");
        let (frame, consumed) = decode_reply(resp3.as_bytes(), Version::Resp3).unwrap().unwrap();
        assert!(consumed == resp3.len() && matches!(&frame, Frame::Map { data, .. } if data.len() == 2), "{frame:?}");
    }
}
