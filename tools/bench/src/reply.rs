//! Counts replies in a stream of bytes without building them. The stream may arrive in pieces of any size.
//!
//! Memory stays bounded for any input: nested arrays are a count of missing elements, and long strings a count of bytes
//! to skip.

use crate::args::Protocol;

/// Maximum length of a stored error, in bytes.
const SHOWN_ERROR: usize = 200;

/// Counts of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyCounts {
    pub replies: u64,
    /// Replies that deny: `OK false …`, or an array that starts with the integer of a denial (see [`FirstNumber`]).
    pub denied: u64,
    /// Replies that are errors: `ERR …`, or a RESP error.
    pub errors: u64,
}

/// The meaning of the first number in a RESP reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstNumber {
    /// Zero means denied, as in `DIVVY.HIT`.
    Allowed,
    /// One means denied, as in redis-cell.
    Limited,
}

impl FirstNumber {
    /// Returns the meaning for replies to `command`.
    pub fn of(command: &str) -> Self {
        let name = command.split_whitespace().next().unwrap_or_default();
        if name.eq_ignore_ascii_case("CL.THROTTLE") { Self::Limited } else { Self::Allowed }
    }

    fn of_a_denial(self) -> &'static [u8] {
        match self {
            Self::Allowed => b"0",
            Self::Limited => b"1",
        }
    }
}

/// A violation of the protocol. The rest of the stream cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the reply is not RESP: it starts with {0:?} (is this the line protocol's port?)")]
    UnknownType(char),
    #[error("a reply has {0:?} in place of a length")]
    BadLength(String),
    #[error("the reply is not of the line protocol: {0:?} (is this the RESP port?)")]
    NotALine(String),
}

/// Counts the replies of one connection.
#[derive(Debug)]
pub struct ReplyCounter {
    protocol: Protocol,
    first_number: FirstNumber,
    counts: ReplyCounts,
    first_error: Option<String>,
    /// Remaining bytes of a string and its line break.
    skip: u64,
    reply: RespReply,
}

/// The RESP reply that is being read.
#[derive(Debug, Clone, Copy)]
struct RespReply {
    /// Values that are missing, including those inside arrays.
    missing: u64,
    /// Values read so far.
    seen: u64,
    denied: bool,
    error: bool,
}

const FRESH: RespReply = RespReply { missing: 1, seen: 0, denied: false, error: false };

impl ReplyCounter {
    pub fn new(protocol: Protocol, first_number: FirstNumber) -> Self {
        Self { protocol, first_number, counts: ReplyCounts::default(), first_error: None, skip: 0, reply: FRESH }
    }

    /// Returns the first error reply, cut to a length that can be shown.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Counts the replies that end in `bytes`. Returns the counts and the number of bytes used. The unused bytes are
    /// the start of a line. Pass them again, followed by the bytes after them.
    pub fn count(&mut self, bytes: &[u8]) -> Result<(ReplyCounts, usize), StreamError> {
        let mut rest = bytes;
        loop {
            let skipped = usize::try_from(self.skip).map_or(rest.len(), |skip| skip.min(rest.len()));
            rest = rest.get(skipped..).unwrap_or_default();
            self.skip -= skipped as u64;
            if self.skip == 0 && self.reply.missing == 0 {
                self.end_resp_reply();
            }
            let Some(end) = memchr::memchr(b'\n', rest) else { break };
            let (line, after) = rest.split_at(end);
            match self.protocol {
                Protocol::Line => self.line(line)?,
                Protocol::Resp => self.resp_line(line.strip_suffix(b"\r").unwrap_or(line))?,
            }
            rest = after.get(1..).unwrap_or_default();
        }
        Ok((std::mem::take(&mut self.counts), bytes.len() - rest.len()))
    }

    fn line(&mut self, line: &[u8]) -> Result<(), StreamError> {
        match line {
            [b'O', b'K', b' ', b'f', ..] => self.counts.denied += 1,
            [b'O', b'K', ..] => {}
            [b'E', b'R', b'R', ..] => {
                self.counts.errors += 1;
                self.keep_error(line);
            }
            _ => return Err(StreamError::NotALine(shown(line))),
        }
        self.counts.replies += 1;
        Ok(())
    }

    /// Reads a RESP line: a whole value, or the length of a string or an aggregate.
    fn resp_line(&mut self, line: &[u8]) -> Result<(), StreamError> {
        let (kind, text) = line.split_first().unwrap_or((&b'\n', &[]));
        match kind {
            b':' => self.reply.denied |= self.reply.seen == 1 && text == self.first_number.of_a_denial(),
            b'+' | b'_' | b'#' | b',' | b'(' => {}
            b'-' => self.resp_error(text),
            b'$' | b'=' => self.skip = length(text)?.map_or(0, |bytes| bytes.saturating_add(2)),
            b'!' => {
                self.skip = length(text)?.map_or(0, |bytes| bytes.saturating_add(2));
                self.resp_error(b"an error in RESP3's long form");
            }
            b'*' | b'~' => self.expect(length(text)?.unwrap_or(0)),
            b'%' => self.expect(length(text)?.unwrap_or(0).saturating_mul(2)),
            other => return Err(StreamError::UnknownType(char::from(*other))),
        }
        self.reply.seen += 1;
        self.reply.missing -= 1;
        Ok(())
    }

    fn end_resp_reply(&mut self) {
        self.counts.replies += 1;
        self.counts.denied += u64::from(self.reply.denied);
        self.counts.errors += u64::from(self.reply.error);
        self.reply = FRESH;
    }

    fn expect(&mut self, values: u64) {
        self.reply.missing = self.reply.missing.saturating_add(values);
    }

    fn resp_error(&mut self, text: &[u8]) {
        self.reply.error = true;
        self.keep_error(text);
    }

    fn keep_error(&mut self, text: &[u8]) {
        if self.first_error.is_none() {
            self.first_error = Some(shown(text));
        }
    }
}

/// Parses a RESP length; `None` for `-1`, which is the null of RESP 2.
fn length(text: &[u8]) -> Result<Option<u64>, StreamError> {
    if text == b"-1" {
        return Ok(None);
    }
    let digits = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    digits.map(Some).ok_or_else(|| StreamError::BadLength(shown(text)))
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..SHOWN_ERROR).unwrap_or(text)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts `stream` in pieces that end at `cuts`. Like a connection, keeps the bytes that were not used.
    fn count_in_pieces(protocol: Protocol, stream: &[u8], cuts: &[usize]) -> (ReplyCounts, Option<String>) {
        let mut counter = ReplyCounter::new(protocol, FirstNumber::Allowed);
        let mut total = ReplyCounts::default();
        let mut start = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let (counts, used) = counter.count(&stream[start..end.max(start)]).unwrap();
            start += used;
            total.replies += counts.replies;
            total.denied += counts.denied;
            total.errors += counts.errors;
        }
        assert_eq!(start, stream.len());
        (total, counter.first_error().map(str::to_owned))
    }

    const LINES: &[u8] = b"OK true 57 60\nOK false 0 3\r\nERR unknown \"No\"\nERR b \"c\"\n";

    const RESP: &[u8] = b"*3\r\n:1\r\n:57\r\n:60\r\n*3\r\n:0\r\n:0\r\n:3\r\n:0\r\n+OK\r\n-ERR no\r\n-ERR later\r\n\
        $5\r\n*1\r\n\n\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n*2\r\n*2\r\n:0\r\n$1\r\nx\r\n*0\r\n%1\r\n+a\r\n:0\r\n_\r\n";

    #[test]
    fn each_line_is_a_reply() {
        let (counts, error) = count_in_pieces(Protocol::Line, LINES, &[]);
        assert_eq!(counts, ReplyCounts { replies: 4, denied: 1, errors: 2 });
        assert_eq!(error.as_deref(), Some("ERR unknown \"No\""));
    }

    #[test]
    fn each_resp_value_is_a_reply_even_if_nested() {
        let (counts, error) = count_in_pieces(Protocol::Resp, RESP, &[]);
        assert_eq!(counts, ReplyCounts { replies: 14, denied: 1, errors: 2 });
        assert_eq!(error.as_deref(), Some("ERR no"));
    }

    #[test]
    fn redis_cells_first_number_is_1_for_a_denial() {
        let denied_of = |command| {
            let mut counter = ReplyCounter::new(Protocol::Resp, FirstNumber::of(command));
            let (counts, _) = counter.count(b"*2\r\n:0\r\n:5\r\n*2\r\n:0\r\n:4\r\n*2\r\n:1\r\n:0\r\n").unwrap();
            counts.denied
        };
        assert_eq!((denied_of("cl.throttle k 1 1 60"), denied_of("DIVVY.HIT ip=a")), (1, 2));
    }

    #[test]
    fn error_inside_an_array_makes_the_reply_an_error() {
        let (counts, _) = count_in_pieces(Protocol::Resp, b"*2\r\n:1\r\n-ERR x\r\n!3\r\nabc\r\n", &[]);
        assert_eq!(counts, ReplyCounts { replies: 2, denied: 0, errors: 2 });
    }

    #[test]
    fn deep_nesting_and_huge_lengths_need_no_memory() {
        let mut counter = ReplyCounter::new(Protocol::Resp, FirstNumber::Allowed);
        let deep = b"*1\r\n".repeat(100_000);
        assert_eq!(counter.count(&deep), Ok((ReplyCounts::default(), deep.len())));
        assert_eq!(counter.count(b":1\r\n"), Ok((ReplyCounts { replies: 1, ..ReplyCounts::default() }, 4)));
        assert_eq!(counter.count(b"$3\r\nabc\r"), Ok((ReplyCounts::default(), 8)));
        assert_eq!(counter.count(b"\n"), Ok((ReplyCounts { replies: 1, ..ReplyCounts::default() }, 1)));
        let huge = b"*18446744073709551615\r\n$18446744073709551615\r\nabc";
        assert_eq!(counter.count(huge), Ok((ReplyCounts::default(), huge.len())));
    }

    #[test]
    fn foreign_streams_are_rejected() {
        let refused =
            |protocol, bytes: &[u8]| ReplyCounter::new(protocol, FirstNumber::Allowed).count(bytes).unwrap_err();
        assert_eq!(refused(Protocol::Resp, b"OK true 1 1\n"), StreamError::UnknownType('O'));
        assert_eq!(refused(Protocol::Resp, b"$x\r\n"), StreamError::BadLength("x".into()));
        assert_eq!(refused(Protocol::Resp, b"*-2\r\n"), StreamError::BadLength("-2".into()));
        assert_eq!(refused(Protocol::Line, b"-ERR unknown\r\n"), StreamError::NotALine("-ERR unknown".into()));
    }

    proptest! {
        #[test]
        fn counts_do_not_depend_on_the_cuts(mut cuts in prop::collection::vec(0..RESP.len(), 0..12)) {
            cuts.sort_unstable();
            prop_assert_eq!(count_in_pieces(Protocol::Resp, RESP, &cuts), count_in_pieces(Protocol::Resp, RESP, &[]));
            cuts.retain(|cut| *cut < LINES.len());
            prop_assert_eq!(count_in_pieces(Protocol::Line, LINES, &cuts), count_in_pieces(Protocol::Line, LINES, &[]));
        }

        #[test]
        fn any_bytes_are_counted_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for protocol in [Protocol::Line, Protocol::Resp] {
                if let Ok((_, used)) = ReplyCounter::new(protocol, FirstNumber::Allowed).count(&bytes) {
                    prop_assert!(used <= bytes.len());
                }
            }
        }
    }
}
