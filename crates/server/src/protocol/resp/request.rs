//! Decodes requests: finds the ranges of the arguments in one pass, which continues where it stopped. Keeps requests for later.

use std::ops::Range;

use crate::protocol::line::{LineDecoder, LineTooLong};

/// Maximum number of digits of a length: more than any limit needs, and too few to overflow.
const MAX_DIGITS: usize = 9;

/// Capacity that is kept between requests (arguments, and bytes of quoted ones).
const KEPT_ARGUMENTS: usize = 128;
const KEPT_UNQUOTED: usize = 4 * 1024;
/// Maximum number of arguments in a request before the password, as in Redis. `HELLO` needs fewer.
const UNAUTHENTICATED_ARGUMENTS: usize = 10;
/// Maximum length of an argument or inline request before the password, as in Redis (bytes).
const UNAUTHENTICATED_BYTES: usize = 16 * 1024;

/// Bounds on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of arguments, including the command's name.
    pub max_arguments: usize,
    /// Maximum length of an argument (bytes).
    pub max_argument_bytes: usize,
    /// Maximum length of a request including its framing (bytes).
    pub max_request_bytes: usize,
    /// Maximum length of an inline request without its terminator (bytes).
    pub max_inline_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_arguments: 1024,
            max_argument_bytes: 64 * 1024,
            max_request_bytes: 1024 * 1024,
            max_inline_bytes: 64 * 1024,
        }
    }
}

impl Limits {
    /// Returns the bounds for a client who has yet to give the password: requests are only as large as necessary to do so.
    #[must_use]
    pub fn before_login(self) -> Self {
        Self {
            max_arguments: self.max_arguments.min(UNAUTHENTICATED_ARGUMENTS),
            max_argument_bytes: self.max_argument_bytes.min(UNAUTHENTICATED_BYTES),
            max_inline_bytes: self.max_inline_bytes.min(UNAUTHENTICATED_BYTES),
            ..self
        }
    }
}

/// Error of bytes that are not a request, in Redis's words. The start of the next request is unknown, so the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is not a number, or exceeds the limit.
    #[error("ERR Protocol error: invalid multibulk length")]
    ArrayLength,
    /// The length of an argument is not a number, is negative, or exceeds the limit.
    #[error("ERR Protocol error: invalid bulk length")]
    BulkLength,
    /// An element of the request is not a bulk string, but for example a nested array.
    #[error("ERR Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    ExpectedBulk(u8),
    /// No CRLF follows an argument of the declared length.
    #[error("ERR Protocol error: expected CRLF after a bulk string")]
    BulkTerminator,
    /// The whole request is longer than [`Limits::max_request_bytes`].
    #[error("ERR Protocol error: too big request")]
    RequestTooBig,
    /// The request has too many bytes or arguments.
    #[error("ERR Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote in an inline request is not closed, or text follows it directly.
    #[error("ERR Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// A browser was tricked into sending a form to this port, with commands that its user did not write.
    #[error("ERR Protocol error: this is not an HTTP server")]
    Http,
}

/// Finds requests in the input of a connection. Reuses its buffers between requests.
#[derive(Debug, Clone)]
pub struct Decoder {
    limits: Limits,
    /// Finds the end of an inline request.
    line: LineDecoder,
    /// Number of bytes of an unfinished array that have been decoded.
    scanned: usize,
    /// Number of arguments that must follow in an unfinished array; 0 before the count is known.
    missing: usize,
    /// Ranges of the arguments found so far, in the received bytes or in `unquoted`.
    arguments: Vec<Range<usize>>,
    /// Arguments of an inline request without quotes and escapes.
    unquoted: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder of requests within these bounds.
    pub fn new(limits: Limits) -> Self {
        let line = LineDecoder::new(limits.max_inline_bytes);
        Self { limits, line, scanned: 0, missing: 0, arguments: Vec::new(), unquoted: Vec::new() }
    }

    /// Changes the bounds.
    #[inline]
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.line.set_max_line(limits.max_inline_bytes);
    }

    /// Looks for a whole request at the front of `bytes`. Returns its length, or `None` while it is unfinished. A request may
    /// have no [`arguments`](Self::arguments): Redis does not reply to an empty array or line.
    ///
    /// After `None`, the next call must pass the same bytes and more. After a request, it must pass the bytes that follow.
    ///
    /// # Errors
    /// [`ProtocolError`], as soon as a declared length exceeds a limit, before the bytes arrive. Do not use the decoder
    /// after an error.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.missing > 0 { self.read_arguments(bytes, self.scanned, self.missing) } else { self.start(bytes) }
    }

    /// Returns the arguments of the request that [`decode`](Self::decode) found last in the same `bytes`.
    pub fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        let text = if self.unquoted.is_empty() { bytes } else { &self.unquoted };
        Arguments { text, ranges: &self.arguments }
    }

    fn start(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        self.arguments.clear();
        self.arguments.shrink_to(KEPT_ARGUMENTS);
        self.unquoted.clear();
        self.unquoted.shrink_to(KEPT_UNQUOTED);
        match bytes.split_first() {
            None => Ok(None),
            Some((b'*', header)) => self.read_count(bytes, header),
            Some(_) => self.read_inline(bytes),
        }
    }

    fn read_count(&mut self, bytes: &[u8], header: &[u8]) -> Result<Option<usize>, ProtocolError> {
        // Redis treats a negative count, as in the null array, like 0.
        let digits = header.strip_prefix(b"-").unwrap_or(header);
        let Some((count, length)) = read_length(digits).map_err(|NotALength| ProtocolError::ArrayLength)? else {
            return Ok(None);
        };
        let is_negative = digits.len() < header.len();
        let count = if is_negative { 0 } else { count };
        if count > self.limits.max_arguments {
            return Err(ProtocolError::ArrayLength);
        }
        self.read_arguments(bytes, 1 + usize::from(is_negative) + length, count)
    }

    fn read_arguments(
        &mut self,
        bytes: &[u8],
        mut scanned: usize,
        mut missing: usize,
    ) -> Result<Option<usize>, ProtocolError> {
        while missing > 0 {
            let Some((argument, end)) = self.read_argument(bytes, scanned)? else {
                (self.scanned, self.missing) = (scanned, missing);
                return Ok(None);
            };
            self.arguments.push(argument);
            scanned = end;
            missing -= 1;
        }
        self.missing = 0;
        Ok(Some(scanned))
    }

    /// Reads the bulk string that starts at `at`. Returns the range of its content, and its end after the terminator.
    fn read_argument(&self, bytes: &[u8], at: usize) -> Result<Option<(Range<usize>, usize)>, ProtocolError> {
        let header = match bytes.get(at..).and_then(<[u8]>::split_first) {
            None => return Ok(None),
            Some((b'$', header)) => header,
            Some((&found, _)) => return Err(ProtocolError::ExpectedBulk(found)),
        };
        let Some((length, header_length)) = read_length(header).map_err(|NotALength| ProtocolError::BulkLength)? else {
            return Ok(None);
        };
        if length > self.limits.max_argument_bytes {
            return Err(ProtocolError::BulkLength);
        }
        let start = at + 1 + header_length;
        let (stop, end) = (start + length, start + length + 2);
        if end > self.limits.max_request_bytes {
            return Err(ProtocolError::RequestTooBig);
        }
        match bytes.get(stop..end) {
            None => Ok(None),
            Some(b"\r\n") => Ok(Some((start..stop, end))),
            Some(_) => Err(ProtocolError::BulkTerminator),
        }
    }

    fn read_inline(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let found = self.line.next_line(bytes).map_err(|LineTooLong { .. }| ProtocolError::InlineTooBig)?;
        let Some(line) = found else { return Ok(None) };
        split_words(line.text, &mut self.unquoted, &mut self.arguments).ok_or(ProtocolError::UnbalancedQuotes)?;
        if self.arguments.len() > self.limits.max_arguments {
            return Err(ProtocolError::InlineTooBig);
        }
        // Redis also closes the connection at these words: the start of an HTTP request, and a header that every
        // request has.
        let first = self.arguments.first().and_then(|range| self.unquoted.get(range.clone())).unwrap_or_default();
        if first.eq_ignore_ascii_case(b"POST") || first.eq_ignore_ascii_case(b"Host:") {
            return Err(ProtocolError::Http);
        }
        Ok(Some(line.consumed))
    }
}

// Inline commands: words on a line, with redis-cli's quoting. Double quotes, at the start of a word or within it, allow the escapes
// `\n \r \t \b \a \xHH`, and `\` before any other character stands for that character. Single quotes allow only `\'`. A closing
// quote ends its word.

/// Appends the words of `line` to `text`, and their ranges to `words`. Returns `None` if a quote is not closed, or not followed
/// by white space.
fn split_words(line: &[u8], text: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> Option<()> {
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
            b'"' | b'\'' => return read_quoted(byte, after, text),
            byte if byte.is_ascii_whitespace() => break,
            byte => text.push(byte),
        }
        rest = after;
    }
    Some(rest)
}

/// Appends the text up to the closing `quote` to `text`, and returns the rest after the quote.
fn read_quoted<'a>(quote: u8, mut rest: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    let has_escapes = quote == b'"';
    loop {
        let (byte, after) = match rest {
            [byte, after @ ..] if *byte == quote => return Some(after),
            [b'\\', b'x', high, low, after @ ..]
                if has_escapes && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex_value(*high) << 4 | hex_value(*low), after)
            }
            [b'\\', escaped, after @ ..] if has_escapes || *escaped == b'\'' => (unescape(*escaped), after),
            [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        text.push(byte);
        rest = after;
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

/// Error of a header without a length.
struct NotALength;

/// Reads a length and its CRLF at the front of `bytes`. Returns the length and the number of bytes that it took, or `None` while
/// it is unfinished.
// Inlined, because it runs for each argument of each request. A call would cost ten instructions more.
#[inline(always)]
fn read_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, NotALength> {
    // Fast path: most lengths have one digit or two.
    match *bytes {
        [one @ b'0'..=b'9', b'\r', b'\n', ..] => Ok(Some((usize::from(one - b'0'), 3))),
        [ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Ok(Some((10 * usize::from(ten - b'0') + usize::from(one - b'0'), 4)))
        }
        _ => read_any_length(bytes),
    }
}

fn read_any_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, NotALength> {
    let mut length = 0;
    for (at, &byte) in bytes.iter().enumerate().take(MAX_DIGITS + 1) {
        match byte {
            b'0'..=b'9' => length = length * 10 + usize::from(byte - b'0'),
            b'\r' if at > 0 => {
                return match bytes.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((length, at + 2))),
                    Some(_) => Err(NotALength),
                };
            }
            _ => return Err(NotALength),
        }
    }
    if bytes.len() <= MAX_DIGITS { Ok(None) } else { Err(NotALength) }
}

/// The arguments of a request: the command's name first.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    text: &'a [u8],
    ranges: &'a [Range<usize>],
}

impl<'a> Arguments<'a> {
    /// Returns the number of arguments, including the command's name.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether the request was an empty array or line.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the argument at this position, 0 for the command's name. `None` beyond the last.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.ranges.get(index).map(|range| self.slice(range))
    }

    /// Returns the argument at this position; empty beyond the last.
    pub fn word(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// Returns the arguments without the first `count`.
    pub fn skip(&self, count: usize) -> Self {
        Self { text: self.text, ranges: self.ranges.get(count..).unwrap_or_default() }
    }

    /// Returns the first `count` arguments.
    pub fn first(&self, count: usize) -> Self {
        Self { text: self.text, ranges: self.ranges.get(..count).unwrap_or(self.ranges) }
    }

    /// Iterates over the arguments in order, beginning with the command's name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let arguments = *self;
        arguments.ranges.iter().map(move |range| arguments.slice(range))
    }

    /// Returns the text from the first argument to the end of the last, and the arguments' ranges in it.
    pub fn span(&self) -> (&'a [u8], impl Iterator<Item = Range<usize>> + use<'a>) {
        let start = self.ranges.first().map_or(0, |first| first.start);
        let end = self.ranges.last().map_or(start, |last| last.end);
        let places = self.ranges.iter().map(move |range| range.start - start..range.end - start);
        (self.slice(&(start..end)), places)
    }

    fn slice(&self, range: &Range<usize>) -> &'a [u8] {
        self.text.get(range.clone()).unwrap_or_default()
    }
}

/// A request that owns its arguments, to be answered later.
#[derive(Debug)]
pub struct QueuedRequest {
    text: Box<[u8]>,
    /// The arguments' ranges in `text`.
    arguments: Box<[Range<usize>]>,
}

impl QueuedRequest {
    /// Copies a request into allocations of exactly its size.
    pub fn new(request: Arguments) -> Self {
        let mut text = Vec::with_capacity(request.iter().map(<[u8]>::len).sum());
        let mut arguments = Vec::with_capacity(request.len());
        for argument in request.iter() {
            let start = text.len();
            text.extend_from_slice(argument);
            arguments.push(start..text.len());
        }
        Self { text: text.into(), arguments: arguments.into() }
    }

    /// Returns the arguments in the order of arrival, the command's name first.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { text: &self.text, ranges: &self.arguments }
    }

    /// Returns the memory that it holds (bytes).
    pub fn memory(&self) -> usize {
        self.text.len() + size_of_val::<[Range<usize>]>(&self.arguments)
    }
}

#[cfg(test)]
mod tests;
