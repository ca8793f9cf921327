//! Requests of HTTP/1.1 (RFC 9112): where a request in a connection's input ends, and what its head says.
//!
//! A library parses heads. Two servers in a row may read the same bytes differently, so these are refused: repeated lengths, a
//! length together with chunks, and encodings other than `chunked`.

use std::mem::MaybeUninit;

use httparse::{Header, Status};
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};

use crate::http::transport::MAX_HEAD;

/// Maximum number of headers. Envoy forwards 100 by default, and adds some.
const MAX_HEADERS: usize = 128;
/// Maximum number of bytes in chunked bodies that are sizes and trailers, beyond the maximum length of a body.
const MAX_FRAMING: usize = 16 * 1024;

/// Room for the headers of one request.
pub type HeaderSpace<'a> = [MaybeUninit<Header<'a>>; MAX_HEADERS];

/// Returns room for headers.
#[inline]
pub fn header_space<'a>() -> HeaderSpace<'a> {
    [const { MaybeUninit::uninit() }; MAX_HEADERS]
}

/// The head of a request, as it stands in the input.
#[derive(Debug)]
pub struct Head<'a> {
    pub method: &'a str,
    /// The target of the request, usually a path and a query.
    pub target: &'a str,
    pub headers: &'a [Header<'a>],
    /// Whether this is a request of HTTP/1.0.
    pub is_1_0: bool,
    /// Whether the client wants to send more requests on this connection.
    pub keeps_open: bool,
    /// Whether the client waits for permission to send the body.
    pub expects_continue: bool,
    /// Length of the head (bytes).
    pub length: usize,
    pub framing: Framing,
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The body has this length (bytes).
    Length(u64),
    Chunked,
}

/// Input that is no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    pub status: StatusCode,
    pub detail: &'static str,
}

const TOO_LONG: Malformed = Malformed {
    status: StatusCode::PAYLOAD_TOO_LARGE,
    detail: "the body is longer than --max-body, or has too many chunks",
};

/// Describes input that is no valid request.
pub const fn malformed(detail: &'static str) -> Malformed {
    Malformed { status: StatusCode::BAD_REQUEST, detail }
}

/// Reads the head at the front of the input; returns `None` if it is incomplete.
///
/// # Errors
/// There is no valid head.
#[inline]
pub fn read_head<'a>(input: &'a [u8], space: &'a mut HeaderSpace<'a>) -> Result<Option<Head<'a>>, Malformed> {
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(input, space) {
        Ok(Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(Status::Partial) if input.len() <= MAX_HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            let detail = "the head of the request has more than 65536 bytes, or more than 128 headers";
            return Err(Malformed { status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail });
        }
        Err(httparse::Error::Version) => {
            return Err(malformed("the version must be HTTP/1.1 or HTTP/1.0, or HTTP/2 from the first byte on"));
        }
        Err(_) => return Err(malformed("the request line or a header is not valid")),
    };
    // A complete request has them.
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(malformed("the request line is not valid"));
    };
    let is_1_0 = version == 0;
    let mut head = Head {
        method,
        target,
        headers: request.headers,
        is_1_0,
        keeps_open: !is_1_0,
        expects_continue: false,
        length,
        framing: Framing::Length(0),
    };
    head.read_headers()?;
    Ok(Some(head))
}

impl Head<'_> {
    /// Reads the headers that say how long the request is and what follows it.
    #[inline]
    fn read_headers(&mut self) -> Result<(), Malformed> {
        let (mut length, mut is_chunked, mut closes) = (None, false, false);
        for Header { name, value } in self.headers {
            // The lengths of the names are cheaper to compare.
            match name.len() {
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let number = parse_length(value).filter(|_| length.is_none());
                    length = Some(number.ok_or(malformed("Content-Length must be one whole number"))?);
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    if is_chunked || self.is_1_0 || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                        return Err(malformed("Transfer-Encoding must be chunked, once, with HTTP/1.1"));
                    }
                    is_chunked = true;
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        closes |= option.eq_ignore_ascii_case(b"close");
                        self.keeps_open |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                6 if name.eq_ignore_ascii_case("expect") => {
                    self.expects_continue = !self.is_1_0 && value.eq_ignore_ascii_case(b"100-continue");
                }
                _ => {}
            }
        }
        self.keeps_open &= !closes;
        self.framing = match (length, is_chunked) {
            (Some(_), true) => return Err(malformed("a request has Content-Length or Transfer-Encoding, not both")),
            (None, true) => Framing::Chunked,
            (length, false) => Framing::Length(length.unwrap_or(0)),
        };
        Ok(())
    }
}

/// Parses a length. A sign is not valid.
fn parse_length(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| str::from_utf8(value).ok()?.parse().ok())?
}

/// A chunked body that is being received. Positions are those in the connection's input, where the request remains until it is
/// complete. Content that has been seen is not looked at again, however slowly the rest comes.
#[derive(Debug)]
pub struct Chunks {
    /// Where the body begins.
    start: usize,
    /// Where the next part begins.
    position: usize,
    part: Part,
    /// Length of the content (bytes).
    length: usize,
}

/// The next part of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Size,
    /// This many bytes of a chunk's content.
    Content(usize),
    /// The line end after a chunk.
    End,
    Trailer,
    Nothing,
}

impl Chunks {
    /// Begins with a body at this position.
    pub fn new(start: usize) -> Self {
        Self { start, position: start, part: Part::Size, length: 0 }
    }

    /// Looks at the input that has come in since the last call. Returns whether the body is complete.
    ///
    /// # Errors
    /// The content is longer than `max`, or these are no chunks.
    pub fn advance(&mut self, input: &[u8], max: usize) -> Result<bool, Malformed> {
        self.scan(input, max, |_| {})
    }

    /// Returns the content of a complete body.
    pub fn content(&self, input: &[u8]) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.length);
        // It was found to be valid before.
        let _ = Self::new(self.start).scan(input, self.length, |piece| content.extend_from_slice(piece));
        content
    }

    /// Returns where a complete body ends.
    pub fn end(&self) -> usize {
        self.position
    }

    fn scan(&mut self, input: &[u8], max: usize, mut take: impl FnMut(&[u8])) -> Result<bool, Malformed> {
        while self.part != Part::Nothing {
            let rest = input.get(self.position..).unwrap_or_default();
            let taken = match self.part {
                Part::Size => match next_line(rest) {
                    Some(line) => {
                        let size = line.strip_suffix(b"\r\n").and_then(parse_size);
                        let size = size.ok_or(malformed("the size of a chunk is not valid"))?;
                        if size > max - self.length {
                            return Err(TOO_LONG);
                        }
                        self.part = if size == 0 { Part::Trailer } else { Part::Content(size) };
                        line.len()
                    }
                    None => 0,
                },
                Part::Content(left) => {
                    let piece = rest.get(..left).unwrap_or(rest);
                    take(piece);
                    self.length += piece.len();
                    self.part = if piece.len() == left { Part::End } else { Part::Content(left - piece.len()) };
                    piece.len()
                }
                Part::End => match rest {
                    [b'\r', b'\n', ..] => {
                        self.part = Part::Size;
                        2
                    }
                    [] | [b'\r'] => 0,
                    _ => return Err(malformed("a chunk has another length than it says")),
                },
                Part::Trailer => match next_line(rest) {
                    Some(b"\r\n") => {
                        self.part = Part::Nothing;
                        2
                    }
                    Some(line) if line.strip_suffix(b"\r\n").is_some_and(is_field) => line.len(),
                    Some(_) => return Err(malformed("a trailer is not valid")),
                    None => 0,
                },
                Part::Nothing => 0,
            };
            self.position += taken;
            if taken == 0 {
                // A body of one-byte chunks is mostly sizes.
                let framing = input.len() - self.start - self.length;
                return if framing > max + MAX_FRAMING { Err(TOO_LONG) } else { Ok(false) };
            }
        }
        Ok(true)
    }
}

/// Returns the line at the front of the input, with its end; `None` if it is incomplete.
fn next_line(input: &[u8]) -> Option<&[u8]> {
    input.get(..=memchr::memchr(b'\n', input)?)
}

/// Parses the size of a chunk, which extensions may follow. Other servers must find the end of the line at the same place, so control
/// characters are not valid.
fn parse_size(line: &[u8]) -> Option<usize> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, rest) = line.split_at_checked(digits)?;
    let is_extension = matches!(rest.trim_ascii_start(), [] | [b';', ..]);
    if !is_extension || rest.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return None;
    }
    // A size that no number can hold is too long in any case.
    let has_digits = !digits.is_empty();
    has_digits.then(|| usize::from_str_radix(str::from_utf8(digits).ok()?, 16).ok().or(Some(usize::MAX)))?
}

/// Returns whether a line has a name and a value.
fn is_field(line: &[u8]) -> bool {
    let Some(colon) = memchr::memchr(b':', line) else { return false };
    let (name, value) = line.split_at(colon);
    HeaderName::from_bytes(name).is_ok() && HeaderValue::from_bytes(value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns what a head says: the framing, and whether the connection stays open.
    fn read(head: &str) -> Result<Option<(Framing, bool)>, u16> {
        let mut space = header_space();
        let found = read_head(head.as_bytes(), &mut space).map_err(|error| error.status.as_u16())?;
        Ok(found.map(|head| (head.framing, head.keeps_open)))
    }

    #[test]
    fn head_says_where_the_body_ends_and_whether_the_connection_stays_open() {
        let (none, five) = (Framing::Length(0), Framing::Length(5));
        for (headers, expected) in [
            ("", (none, true)),
            ("Content-Length: 5\r\n", (five, true)),
            ("content-length: 5\r\nconnection: Close, Keep-Alive\r\n", (five, false)),
            ("connection: close\r\nconnection: keep-alive\r\n", (none, false)),
            ("transfer-encoding: Chunked\r\nconnection: te\r\n", (Framing::Chunked, true)),
        ] {
            assert_eq!(read(&format!("POST /a HTTP/1.1\r\n{headers}\r\n")), Ok(Some(expected)), "{headers}");
        }
        assert_eq!(read("GET / HTTP/1.0\r\n\r\n"), Ok(Some((none, false))));
        assert_eq!(read("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"), Ok(Some((none, true))));
        assert_eq!(read("GET / HTTP/1.1\r\na: b\r\n"), Ok(None));
    }

    #[test]
    fn what_servers_may_read_differently_is_refused() {
        for headers in [
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5\r\ncontent-length: 6\r\n",
            "content-length: +5\r\n",
            "content-length: 5, 5\r\n",
            "content-length: \r\n",
            "content-length: 18446744073709551616\r\n",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "content-length : 5\r\n",
            "a: b\r\n content-length: 5\r\n",
            "a: \u{1}\r\n",
        ] {
            assert_eq!(read(&format!("POST /a HTTP/1.1\r\n{headers}\r\n")), Err(400), "{headers:?}");
        }
        assert_eq!(read("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), Err(400));
        for line in ["GET /", "GET / HTTP/2.0", "GET  HTTP/1.1", "G\u{1}T / HTTP/1.1", "GET /a b HTTP/1.1"] {
            assert_eq!(read(&format!("{line}\r\n\r\n")), Err(400), "{line}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let of = |count: usize, value: usize| {
            format!("GET / HTTP/1.1\r\n{}\r\n", format!("a: {}\r\n", "b".repeat(value)).repeat(count))
        };
        assert!(read(&of(MAX_HEADERS, 10)).is_ok_and(|head| head.is_some()));
        assert_eq!(read(&of(MAX_HEADERS + 1, 10)), Err(431));
        assert!(read(&of(1, MAX_HEAD - 100)).is_ok_and(|head| head.is_some()));
        assert_eq!(read(&of(1, MAX_HEAD)), Err(431));
        assert_eq!(read(of(1, MAX_HEAD).split_at(MAX_HEAD + 1).0), Err(431), "an unfinished one");
    }

    const MAX: usize = 20;

    /// Sends a body in steps of this many bytes. Returns its content, and what follows it.
    fn receive(body: &str, step: usize) -> Result<Option<(String, String)>, Malformed> {
        let (head, mut chunks) = ("head", Chunks::new(4));
        let input = format!("{head}{body}");
        let mut end = head.len();
        loop {
            end = (end + step).min(input.len());
            let come_in = &input.as_bytes()[..end];
            if chunks.advance(come_in, MAX)? {
                let content = String::from_utf8(chunks.content(come_in)).unwrap();
                return Ok(Some((content, input[chunks.end()..].to_owned())));
            }
            if end == input.len() {
                return Ok(None);
            }
        }
    }

    #[test]
    fn chunks_are_joined_however_they_come() {
        let received = |content: &str, rest: &str| Ok(Some((content.to_owned(), rest.to_owned())));
        for step in 1..40 {
            assert_eq!(receive("0\r\n\r\nGET", step), received("", "GET"));
            assert_eq!(receive("5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nx: y\r\n\r\n", step), received("hello!", ""));
            assert_eq!(receive("5\r\nhello\r\n", step), Ok(None));
            assert!(receive("5\r\nhello!\r\n", step).is_err_and(|error| error.status == 400));
            for faulty in [
                "x\r\n",
                "\r\n",
                " \r\n",
                ";a\r\n",
                "+0\r\n",
                "0x0\r\n",
                "0\n\r\n",
                "1;a\nb\r\nx\r\n",
                "0 1\r\n",
                "0;\ra\r\n",
                "1\r\nx\n0\r\n",
                "0\r\n\n",
                "0\r\na: b\n\r\n",
                "0\r\nno colon\r\n\r\n",
                "0\r\na : b\r\n\r\n",
                "0\r\na: \0\r\n\r\n",
                "0\r\n\rx\r\n",
            ] {
                let read = receive(faulty, step);
                assert!(read.as_ref().is_err_and(|error| error.status == 400), "{faulty:?}: {read:?}");
            }
            assert_eq!(receive("00000000000000000001 \t;a=\"b\"\r\nx\r\n0;z\r\n\r\n", step), received("x", ""));
            assert_eq!(receive("15\r\n", step), Err(TOO_LONG));
            assert_eq!(receive("14\r\n01234567890123456789\r\n1\r\n", step), Err(TOO_LONG));
            assert_eq!(receive("ffffffffffffffff\r\n", step), Err(TOO_LONG));
        }
        let endless = format!("0\r\n{}", "x: y\r\n".repeat(MAX_FRAMING));
        assert_eq!(receive(&endless, 1000), Err(TOO_LONG), "trailers are bounded");
        let long = format!("1;{}", "x".repeat(2 * MAX_FRAMING));
        assert!(receive(&long, 1000).is_err(), "extensions are bounded");
    }

    proptest! {
        #[test]
        fn any_input_is_read_the_same_in_steps(body in "[0-9a-f\r\n;x]{0,40}", step in 1usize..10) {
            prop_assert_eq!(receive(&body, step), receive(&body, usize::MAX / 2));
        }
    }
}
