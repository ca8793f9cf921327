//! Redis's protocol (RESP), versions 2 and 3: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.
//!
//! Requests are flat arrays of bulk strings, or inline commands, and [`Decoder`] is written for them. A general RESP decoder
//! recurses into nested arrays and restarts an unfinished array at every read, which is unsafe with untrusted bytes, and it
//! builds a tree where a list of ranges is enough. [`ReplyWriter`] writes the server's replies. A client writes requests with
//! [`write_request`].

mod request;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io::Write;

pub use request::{Arguments, Decoder, Limits, ProtocolError, QueuedRequest};

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

/// Appends a request with these arguments.
pub fn write_request<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    // A request has the same form as a reply that is an array of bulk strings.
    let mut writer = ReplyWriter::new(out, Version::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument.as_ref());
    }
}
