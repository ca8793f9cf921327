//! A non-blocking connection to the server, and the counts of the replies that arrive on it.
//!
//! Replies are counted in a stream of bytes without building them. The stream may arrive in pieces of any size. Memory stays bounded for
//! any input: nested arrays are a count of missing elements, and long strings a count of bytes to skip.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::args::Protocol;
use crate::http2::{CallCounter, OPENING};
use anyhow::{Context, bail};

use divvy_server::protocol::{line, resp};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of reply bytes in one read, and maximum length of a line in a reply.
const INPUT_BYTES: usize = 64 * 1024;

/// A connection to the server. It borrows its socket, so that the list of sockets to wait for can be kept apart from
/// the connections.
#[derive(Debug)]
pub struct Connection<'a> {
    pub socket: &'a TcpStream,
    /// Requests that [`send`](Self::send) has not sent yet.
    pub output: Vec<u8>,
    input: Box<[u8]>,
    /// Bytes of `input` that hold the start of a line.
    filled: usize,
    pub replies: ReplyCounter,
}

/// A user, and its password.
#[derive(Debug, Clone, Copy)]
pub struct Login<'a> {
    /// `None` for the user `default`.
    pub user: Option<&'a str>,
    pub password: &'a str,
}

/// Connects a non-blocking socket, and logs in if there is a login.
pub fn connect(address: SocketAddr, protocol: Protocol, login: Option<Login<'_>>) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    socket.set_nodelay(true)?;
    if let Some(login) = login {
        authenticate(&mut socket, protocol, login)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn authenticate(socket: &mut TcpStream, protocol: Protocol, Login { user, password }: Login<'_>) -> io::Result<()> {
    let (request, welcome) = match protocol {
        Protocol::Line => (line::format_auth(password).into_bytes(), "OK"),
        _ => {
            let mut request = Vec::new();
            let words: Vec<_> = ["AUTH"].into_iter().chain(user).chain([password]).collect();
            resp::write_request(&mut request, &words);
            (request, "+OK")
        }
    };
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    socket.write_all(&request)?;
    let mut answer = String::new();
    // Buffering is safe, because nothing follows the answer: no other request has been sent.
    BufReader::new(socket).read_line(&mut answer)?;
    if answer.trim_end() == welcome {
        return Ok(());
    }
    Err(io::Error::other(format!("the server refused the password: {}", answer.trim_end())))
}

impl<'a> Connection<'a> {
    pub fn new(socket: &'a TcpStream, protocol: Protocol, denial: &'static [u8]) -> Self {
        Self {
            socket,
            output: if protocol == Protocol::Grpc { OPENING.into() } else { Vec::new() },
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0,
            replies: ReplyCounter::new(protocol, denial),
        }
    }

    /// Sends as much as the socket accepts. The rest waits until it is writable.
    pub fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once, and counts the replies that are complete. The next `warm_up` replies belong to the warm-up.
    pub fn receive(&mut self, warm_up: u64) -> anyhow::Result<ReplyCounts> {
        let Some(free @ [_, ..]) = self.input.get_mut(self.filled..) else {
            bail!("a reply has a line of more than {INPUT_BYTES} bytes");
        };
        match self.socket.read(free) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(read) => self.filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let (counts, used) = self.replies.count(self.input.get(..self.filled).unwrap_or_default(), warm_up)?;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.output.append(&mut self.replies.calls.answers);
        Ok(counts)
    }
}

/// Maximum length of a stored error, in bytes.
const SHOWN_ERROR: usize = 200;

/// Counts of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyCounts {
    pub replies: u64,
    /// Replies after the warm-up that deny: `OK false …`, or an array that starts with the integer of a denial (see
    /// [`number_of_a_denial`]), or status 429, or OVER_LIMIT.
    pub denied: u64,
    /// Replies that are errors: `ERR …`, a RESP error, another status, or a call without a message.
    pub errors: u64,
    /// How many of the replies belong to the warm-up: the first ones.
    pub warm_up: u64,
}

impl ReplyCounts {
    /// Counts a reply.
    pub fn add(&mut self, denied: bool, error: bool) {
        self.denied += u64::from(denied && self.replies >= self.warm_up);
        self.errors += u64::from(error);
        self.replies += 1;
    }
}

/// Returns the first number of a RESP reply that denies `command`: zero as in `DIVVY.HIT`, or one as in redis-cell.
pub fn number_of_a_denial(command: &str) -> &'static [u8] {
    let name = command.split_whitespace().next().unwrap_or_default();
    if name.eq_ignore_ascii_case("CL.THROTTLE") { b"1" } else { b"0" }
}

/// Counts the replies of one connection.
#[derive(Debug)]
pub struct ReplyCounter {
    protocol: Protocol,
    /// The first number of a RESP reply that denies.
    denial: &'static [u8],
    counts: ReplyCounts,
    /// The first error reply, cut to a length that can be shown.
    pub first_error: Option<String>,
    /// Remaining bytes of a string and its line break, or of a body.
    skip: u64,
    reply: PartialReply,
    pub calls: CallCounter,
}

/// The reply of RESP or HTTP that is being read.
#[derive(Debug, Clone, Copy)]
struct PartialReply {
    /// Values that are missing, including those inside arrays. An HTTP response is one value.
    missing: u64,
    /// Values or lines read so far.
    seen: u64,
    /// The length of an HTTP response's body.
    body: u64,
    denied: bool,
    error: bool,
}

const FRESH: PartialReply = PartialReply { missing: 1, seen: 0, body: 0, denied: false, error: false };

impl ReplyCounter {
    pub fn new(protocol: Protocol, denial: &'static [u8]) -> Self {
        Self {
            protocol,
            denial,
            counts: ReplyCounts::default(),
            first_error: None,
            skip: 0,
            reply: FRESH,
            calls: CallCounter::default(),
        }
    }

    /// Counts the replies that end in `bytes`. Returns the counts and the number of bytes used. The unused bytes are
    /// the start of a line. Pass them again, followed by the bytes after them. The next `warm_up` replies belong to the
    /// warm-up.
    pub fn count(&mut self, bytes: &[u8], warm_up: u64) -> anyhow::Result<(ReplyCounts, usize)> {
        if self.protocol == Protocol::Grpc {
            return self.calls.count(bytes, warm_up);
        }
        self.counts.warm_up = warm_up;
        let mut rest = bytes;
        loop {
            let skipped = usize::try_from(self.skip).map_or(rest.len(), |skip| skip.min(rest.len()));
            rest = rest.get(skipped..).unwrap_or_default();
            self.skip -= skipped as u64;
            if self.skip == 0 && self.reply.missing == 0 {
                self.end_reply();
            }
            let Some(end) = memchr::memchr(b'\n', rest) else { break };
            let (line, after) = rest.split_at(end);
            match self.protocol {
                Protocol::Line => self.line(line)?,
                Protocol::Http => self.http_line(line.trim_ascii_end())?,
                _ => self.resp_line(line.strip_suffix(b"\r").unwrap_or(line))?,
            }
            rest = after.get(1..).unwrap_or_default();
        }
        Ok((std::mem::take(&mut self.counts), bytes.len() - rest.len()))
    }

    fn line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        match line {
            [b'O', b'K', b' ', b'f', ..] => self.counts.add(true, false),
            [b'O', b'K', ..] => self.counts.add(false, false),
            [b'E', b'R', b'R', ..] => {
                self.counts.add(false, true);
                self.keep_error(line);
            }
            _ => bail!("the reply is not of the line protocol: {:?} (is this the RESP port?)", shown(line)),
        }
        Ok(())
    }

    /// Reads a RESP line: a whole value, or the length of a string or an array.
    fn resp_line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let (kind, text) = line.split_first().unwrap_or((&b'\n', &[]));
        match kind {
            b':' => self.reply.denied |= self.reply.seen == 1 && text == self.denial,
            b'+' => {}
            b'-' => {
                self.reply.error = true;
                self.keep_error(text);
            }
            b'$' => self.skip = length(text)?.map_or(0, |bytes| bytes.saturating_add(2)),
            b'*' => self.reply.missing = self.reply.missing.saturating_add(length(text)?.unwrap_or(0)),
            other => bail!(
                "the reply is not RESP: it starts with {:?} (is this the line protocol's port?)",
                char::from(*other)
            ),
        }
        self.reply.seen += 1;
        self.reply.missing -= 1;
        Ok(())
    }

    /// Reads a line of a response's head.
    fn http_line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        if self.reply.seen == 0 {
            match line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)) {
                Some(b"200") => {}
                Some(b"429") => self.reply.denied = true,
                Some(_) => {
                    self.reply.error = true;
                    self.keep_error(line);
                }
                None => bail!("the reply is not HTTP: {:?}", shown(line)),
            }
        } else if line.is_empty() {
            self.reply.missing = 0;
            self.skip = self.reply.body;
        } else if let Some((name, value)) = line.split_at_checked("content-length:".len())
            && name.eq_ignore_ascii_case(b"content-length:")
        {
            self.reply.body = length(value.trim_ascii())?.unwrap_or(0);
        }
        self.reply.seen += 1;
        Ok(())
    }

    fn end_reply(&mut self) {
        self.counts.add(self.reply.denied, self.reply.error);
        self.reply = FRESH;
    }

    fn keep_error(&mut self, text: &[u8]) {
        if self.first_error.is_none() {
            self.first_error = Some(shown(text));
        }
    }
}

/// Parses a RESP length; `None` for `-1`, which is the null of RESP 2.
fn length(text: &[u8]) -> anyhow::Result<Option<u64>> {
    if text == b"-1" {
        return Ok(None);
    }
    let digits = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    digits.map(Some).with_context(|| format!("a reply has {:?} in place of a length", shown(text)))
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..SHOWN_ERROR).unwrap_or(text)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts `stream` in pieces that end at `cuts`. Like a connection, keeps the bytes that were not used.
    fn count_in_pieces(protocol: Protocol, stream: &[u8], cuts: &[usize]) -> (ReplyCounts, Option<String>) {
        let mut counter = ReplyCounter::new(protocol, b"0");
        let mut total = ReplyCounts::default();
        let mut start = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let (counts, used) = counter.count(&stream[start..end.max(start)], 0).unwrap();
            start += used;
            total.replies += counts.replies;
            total.denied += counts.denied;
            total.errors += counts.errors;
        }
        assert_eq!(start, stream.len());
        (total, counter.first_error)
    }

    const LINES: &[u8] = b"OK true 57 60\nOK false 0 3\r\nERR unknown \"No\"\nERR b \"c\"\n";

    const RESP: &[u8] = b"*3\r\n:1\r\n:57\r\n:60\r\n*3\r\n:0\r\n:0\r\n:3\r\n:0\r\n+OK\r\n-ERR no\r\n-ERR later\r\n\
        $5\r\n*1\r\n\n\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n*2\r\n*2\r\n:0\r\n$1\r\nx\r\n*0\r\n";

    #[test]
    fn each_line_is_a_reply() {
        let (counts, error) = count_in_pieces(Protocol::Line, LINES, &[]);
        assert_eq!(counts, ReplyCounts { replies: 4, denied: 1, errors: 2, warm_up: 0 });
        assert_eq!(error.as_deref(), Some("ERR unknown \"No\""));
    }

    #[test]
    fn each_resp_value_is_a_reply_even_if_nested() {
        let (counts, error) = count_in_pieces(Protocol::Resp, RESP, &[]);
        assert_eq!(counts, ReplyCounts { replies: 12, denied: 1, errors: 2, warm_up: 0 });
        assert_eq!(error.as_deref(), Some("ERR no"));
    }

    #[test]
    fn redis_cells_first_number_is_1_for_a_denial() {
        let denied_of = |command| {
            let mut counter = ReplyCounter::new(Protocol::Resp, number_of_a_denial(command));
            let (counts, _) = counter.count(b"*2\r\n:0\r\n:5\r\n*2\r\n:0\r\n:4\r\n*2\r\n:1\r\n:0\r\n", 0).unwrap();
            counts.denied
        };
        assert_eq!((denied_of("cl.throttle k 1 1 60"), denied_of("DIVVY.HIT ip=a")), (1, 2));
    }

    const HTTP: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\n\nHTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n\
        HTTP/1.1 503 Service Unavailable\r\ncontent-length:1\r\n\r\nx";

    #[test]
    fn each_response_is_a_reply() {
        let (counts, error) = count_in_pieces(Protocol::Http, HTTP, &[]);
        assert_eq!(counts, ReplyCounts { replies: 3, denied: 1, errors: 1, warm_up: 0 });
        assert_eq!(error.as_deref(), Some("HTTP/1.1 503 Service Unavailable"));
    }

    /// Settings and their acknowledgment, an allowed call, a denied one, and one without a message.
    const CALLS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0\
        \0\0\x01\x01\x04\0\0\0\x01\x88\0\0\x07\0\0\0\0\0\x01\0\0\0\0\x02\x08\x01\0\0\x01\x01\x05\0\0\0\x01\x88\
        \0\0\x07\0\0\0\0\0\x03\0\0\0\0\x02\x08\x02\0\0\x01\x01\x05\0\0\0\x03\x88\
        \0\0\x01\x01\x05\0\0\0\x05\x88";

    #[test]
    fn each_call_is_a_reply() {
        let (counts, _) = count_in_pieces(Protocol::Grpc, CALLS, &[]);
        assert_eq!(counts, ReplyCounts { replies: 3, denied: 1, errors: 1, warm_up: 0 });
        let mut counter = ReplyCounter::new(Protocol::Grpc, b"0");
        counter.count(CALLS, 0).unwrap();
        assert_eq!(counter.calls.answers, b"\0\0\0\x04\x01\0\0\0\0");
        assert!(counter.count(b"\0\0\0\x07\0\0\0\0\0", 0).is_err(), "GOAWAY");
        assert!(counter.count(b"\0\0\x02\x01\x04\0\0\0\x07\x20\x88", 0).is_ok(), "with a new size of the table");
        let refused = counter.count(b"\0\0\x01\x01\x04\0\0\0\x09\x8d", 0).unwrap_err().to_string();
        assert!(refused.contains("another status than 200"), "{refused}");
    }

    #[test]
    fn denials_of_calls_that_overlap_are_all_counted() {
        let message = |stream: u8| [b"\0\0\x07\0\0\0\0\0", &[stream][..], b"\0\0\0\0\x02\x08\x02"].concat();
        let end = |stream: u8| [b"\0\0\x01\x01\x05\0\0\0", &[stream][..], b"\x88"].concat();
        let frames = [message(1), message(3), end(1), end(3)].concat();
        let (counts, _) = ReplyCounter::new(Protocol::Grpc, b"0").count(&frames, 0).unwrap();
        assert_eq!(counts, ReplyCounts { replies: 2, denied: 2, errors: 0, warm_up: 0 });
    }

    #[test]
    fn denials_of_the_warm_up_are_not_counted_whatever_arrives_with_them() {
        let calls = CALLS.repeat(2);
        for (protocol, stream, replies) in [
            (Protocol::Line, &b"OK false 0 1\n".repeat(5)[..], 5),
            (Protocol::Resp, &b"*2\r\n:0\r\n:0\r\n".repeat(5), 5),
            (Protocol::Http, &b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n".repeat(5), 5),
            (Protocol::Grpc, &calls, 6),
        ] {
            let denied_of = |warm_up| {
                let (counts, _) = ReplyCounter::new(protocol, b"0").count(stream, warm_up).unwrap();
                assert_eq!(counts.replies, replies);
                counts.denied
            };
            let all = denied_of(0);
            assert_eq!(
                (denied_of(2), denied_of(u64::MAX)),
                (all - if replies == 5 { 2 } else { 1 }, 0),
                "{protocol:?}"
            );
        }
    }

    #[test]
    fn error_inside_an_array_makes_the_reply_an_error() {
        let (counts, _) = count_in_pieces(Protocol::Resp, b"*2\r\n:1\r\n-ERR x\r\n", &[]);
        assert_eq!(counts, ReplyCounts { replies: 1, denied: 0, errors: 1, warm_up: 0 });
    }

    #[test]
    fn deep_nesting_and_huge_lengths_need_no_memory() {
        let mut counter = ReplyCounter::new(Protocol::Resp, b"0");
        let deep = b"*1\r\n".repeat(100_000);
        let mut count = |bytes: &[u8]| counter.count(bytes, 0).unwrap();
        assert_eq!(count(&deep), (ReplyCounts::default(), deep.len()));
        assert_eq!(count(b":1\r\n"), (ReplyCounts { replies: 1, ..ReplyCounts::default() }, 4));
        assert_eq!(count(b"$3\r\nabc\r"), (ReplyCounts::default(), 8));
        assert_eq!(count(b"\n"), (ReplyCounts { replies: 1, ..ReplyCounts::default() }, 1));
        let huge = b"*18446744073709551615\r\n$18446744073709551615\r\nabc";
        assert_eq!(count(huge), (ReplyCounts::default(), huge.len()));
    }

    #[test]
    fn foreign_streams_are_rejected() {
        for (protocol, bytes, expected) in [
            (Protocol::Resp, &b"OK true 1 1\n"[..], "the reply is not RESP: it starts with 'O'"),
            (Protocol::Resp, b"$x\r\n", "a reply has \"x\" in place of a length"),
            (Protocol::Resp, b"*-2\r\n", "a reply has \"-2\" in place of a length"),
            (Protocol::Http, b"-ERR unknown\r\n", "the reply is not HTTP: \"-ERR unknown\""),
            (Protocol::Grpc, b"HTTP/1.1 400 Bad Request\r\n", "the reply is not HTTP/2"),
            (Protocol::Line, b"-ERR unknown\r\n", "the reply is not of the line protocol: \"-ERR unknown\""),
        ] {
            let error = ReplyCounter::new(protocol, b"0").count(bytes, 0).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn counts_do_not_depend_on_the_cuts(mut cuts in prop::collection::vec(0..RESP.len(), 0..12)) {
            cuts.sort_unstable();
            let streams = [(Protocol::Resp, RESP), (Protocol::Http, HTTP), (Protocol::Grpc, CALLS), (Protocol::Line, LINES)];
            for (protocol, stream) in streams {
                let cuts: Vec<_> = cuts.iter().copied().filter(|cut| *cut < stream.len()).collect();
                prop_assert_eq!(count_in_pieces(protocol, stream, &cuts), count_in_pieces(protocol, stream, &[]));
            }
        }

        #[test]
        fn any_bytes_are_counted_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for protocol in [Protocol::Line, Protocol::Resp, Protocol::Http, Protocol::Grpc] {
                if let Ok((_, used)) = ReplyCounter::new(protocol, b"0").count(&bytes, 0) {
                    prop_assert!(used <= bytes.len());
                }
            }
        }
    }
}
