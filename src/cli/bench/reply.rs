//! Counts replies in a stream of bytes, however the stream was cut, without building them.
//!
//! Memory stays bounded whatever the server sends: nested arrays are a count of elements to come, and long strings a
//! count of bytes to skip.

use super::args::Protocol;

/// The longest error that is kept to be shown, in bytes.
const SHOWN_ERROR: usize = 200;

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub replies: u64,
    /// Of these: `OK false …`, or an array that starts with the integer of a denial (see [`FirstNumber`]).
    pub denied: u64,
    /// Of these: `ERR …`, or a RESP error.
    pub errors: u64,
}

/// What the first number of a RESP reply tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstNumber {
    /// 0: denied, as of `DIVVY.HIT`.
    Allowed,
    /// 1: denied, as redis-cell has it.
    Limited,
}

impl FirstNumber {
    /// As the replies to `command` have it.
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

/// The stream is not of the protocol; nothing that follows can be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the reply is not RESP: it starts with {0:?} (is this the line protocol's port?)")]
    UnknownType(char),
    #[error("a reply holds {0:?} where RESP has a length")]
    BadLength(String),
    #[error("the reply is not of the line protocol: {0:?} (is this the RESP port?)")]
    NotALine(String),
}

/// Counts the replies of one connection.
#[derive(Debug)]
pub struct ReplyCounter {
    protocol: Protocol,
    first_number: FirstNumber,
    tally: Tally,
    first_error: Option<String>,
    /// Bytes of a string, and of its line break, that are still to come.
    skip: u64,
    reply: RespReply,
}

/// The RESP reply that is being read.
#[derive(Debug, Clone, Copy)]
struct RespReply {
    /// Values still to come, those inside of arrays included.
    missing: u64,
    /// Values seen so far.
    seen: u64,
    denied: bool,
    error: bool,
}

const FRESH: RespReply = RespReply { missing: 1, seen: 0, denied: false, error: false };

impl ReplyCounter {
    pub fn new(protocol: Protocol, first_number: FirstNumber) -> Self {
        Self { protocol, first_number, tally: Tally::default(), first_error: None, skip: 0, reply: FRESH }
    }

    /// The first reply that was an error, cut to a length that can be shown.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Counts the replies that end in `bytes`. Returns them, and how many bytes were used up: the others are the start
    /// of a line, and have to be given again with what follows them.
    pub fn count(&mut self, bytes: &[u8]) -> Result<(Tally, usize), StreamError> {
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
        Ok((std::mem::take(&mut self.tally), bytes.len() - rest.len()))
    }

    fn line(&mut self, line: &[u8]) -> Result<(), StreamError> {
        match line {
            [b'O', b'K', b' ', b'f', ..] => self.tally.denied += 1,
            [b'O', b'K', ..] => {}
            [b'E', b'R', b'R', ..] => {
                self.tally.errors += 1;
                self.keep_error(line);
            }
            _ => return Err(StreamError::NotALine(shown(line))),
        }
        self.tally.replies += 1;
        Ok(())
    }

    /// A line of RESP: a whole value, or the length of a string or of an aggregate that follows.
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
        self.tally.replies += 1;
        self.tally.denied += u64::from(self.reply.denied);
        self.tally.errors += u64::from(self.reply.error);
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

/// A length as RESP writes it; `None` is the null of RESP 2, `-1`.
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

    /// Feeds `stream` in pieces that end at `cuts`, keeping what was not used up as a connection does.
    fn count_in_pieces(protocol: Protocol, stream: &[u8], cuts: &[usize]) -> (Tally, Option<String>) {
        let mut counter = ReplyCounter::new(protocol, FirstNumber::Allowed);
        let mut total = Tally::default();
        let mut start = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let (tally, used) = counter.count(&stream[start..end.max(start)]).unwrap();
            start += used;
            total.replies += tally.replies;
            total.denied += tally.denied;
            total.errors += tally.errors;
        }
        assert_eq!(start, stream.len());
        (total, counter.first_error().map(str::to_owned))
    }

    const LINES: &[u8] = b"OK true 57 60\nOK false 0 3\r\nERR unknown \"No\"\nERR b \"c\"\n";

    const RESP: &[u8] = b"*3\r\n:1\r\n:57\r\n:60\r\n*3\r\n:0\r\n:0\r\n:3\r\n:0\r\n+OK\r\n-ERR no\r\n-ERR later\r\n\
        $5\r\n*1\r\n\n\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n*2\r\n*2\r\n:0\r\n$1\r\nx\r\n*0\r\n%1\r\n+a\r\n:0\r\n_\r\n";

    #[test]
    fn lines_are_replies() {
        let (tally, error) = count_in_pieces(Protocol::Line, LINES, &[]);
        assert_eq!(tally, Tally { replies: 4, denied: 1, errors: 2 });
        assert_eq!(error.as_deref(), Some("ERR unknown \"No\""));
    }

    #[test]
    fn resp_values_are_replies_however_nested() {
        let (tally, error) = count_in_pieces(Protocol::Resp, RESP, &[]);
        assert_eq!(tally, Tally { replies: 14, denied: 1, errors: 2 });
        assert_eq!(error.as_deref(), Some("ERR no"));
    }

    #[test]
    fn the_first_number_of_redis_cell_is_1_for_a_denial() {
        let denied_of = |command| {
            let mut counter = ReplyCounter::new(Protocol::Resp, FirstNumber::of(command));
            let (tally, _) = counter.count(b"*2\r\n:0\r\n:5\r\n*2\r\n:0\r\n:4\r\n*2\r\n:1\r\n:0\r\n").unwrap();
            tally.denied
        };
        assert_eq!((denied_of("cl.throttle k 1 1 60"), denied_of("DIVVY.HIT ip=a")), (1, 2));
    }

    #[test]
    fn an_error_inside_of_an_array_makes_the_reply_one() {
        let (tally, _) = count_in_pieces(Protocol::Resp, b"*2\r\n:1\r\n-ERR x\r\n!3\r\nabc\r\n", &[]);
        assert_eq!(tally, Tally { replies: 2, denied: 0, errors: 2 });
    }

    #[test]
    fn deep_nesting_and_huge_lengths_are_only_numbers() {
        let mut counter = ReplyCounter::new(Protocol::Resp, FirstNumber::Allowed);
        let deep = b"*1\r\n".repeat(100_000);
        assert_eq!(counter.count(&deep), Ok((Tally::default(), deep.len())));
        assert_eq!(counter.count(b":1\r\n"), Ok((Tally { replies: 1, ..Tally::default() }, 4)));
        assert_eq!(counter.count(b"$3\r\nabc\r"), Ok((Tally::default(), 8)));
        assert_eq!(counter.count(b"\n"), Ok((Tally { replies: 1, ..Tally::default() }, 1)));
        let huge = b"*18446744073709551615\r\n$18446744073709551615\r\nabc";
        assert_eq!(counter.count(huge), Ok((Tally::default(), huge.len())));
    }

    #[test]
    fn foreign_streams_are_refused() {
        let refused =
            |protocol, bytes: &[u8]| ReplyCounter::new(protocol, FirstNumber::Allowed).count(bytes).unwrap_err();
        assert_eq!(refused(Protocol::Resp, b"OK true 1 1\n"), StreamError::UnknownType('O'));
        assert_eq!(refused(Protocol::Resp, b"$x\r\n"), StreamError::BadLength("x".into()));
        assert_eq!(refused(Protocol::Resp, b"*-2\r\n"), StreamError::BadLength("-2".into()));
        assert_eq!(refused(Protocol::Line, b"-ERR unknown\r\n"), StreamError::NotALine("-ERR unknown".into()));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(mut cuts in prop::collection::vec(0..RESP.len(), 0..12)) {
            cuts.sort_unstable();
            prop_assert_eq!(count_in_pieces(Protocol::Resp, RESP, &cuts), count_in_pieces(Protocol::Resp, RESP, &[]));
            cuts.retain(|cut| *cut < LINES.len());
            prop_assert_eq!(count_in_pieces(Protocol::Line, LINES, &cuts), count_in_pieces(Protocol::Line, LINES, &[]));
        }

        #[test]
        fn any_bytes_are_counted_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for protocol in [Protocol::Line, Protocol::Resp] {
                if let Ok((_, used)) = ReplyCounter::new(protocol, FirstNumber::Allowed).count(&bytes) {
                    prop_assert!(used <= bytes.len());
                }
            }
        }
    }
}
