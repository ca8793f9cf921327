//! The line protocol of Button's Divvy: `HIT key=value …` → `OK <allowed> <credit> <reset>` or `ERR <code> "<reason>"`.
//!
//! The server's side comes first: framing, requests, replies. [`format_hit`] and [`parse_reply`] are the client's. The text form
//! of the pairs is [`operation`]'s.

use std::fmt::Display;
use std::io::Write;

use divvy_core::rules::Operation;
use divvy_core::rules::operation::{self, PairSpans, SyntaxError, Unwritable};
use divvy_telemetry::metrics::ErrorKind;

/// Default maximum length of a line, without its terminator (bytes).
pub const DEFAULT_MAX_LINE: usize = 16 * 1024;

/// The answer to the right password.
const WELCOME: &str = "OK";
/// Beginning of a line with a password.
const AUTH: &[u8] = b"AUTH ";

/// Maximum number of characters of an unknown command that the error repeats.
const MAX_ECHOED_CHARS: usize = 64;

/// Finds lines in the input of a connection.
#[derive(Debug, Clone)]
pub struct LineDecoder {
    max_line: usize,
    /// Bytes of the unfinished line that contain no line feed.
    searched: usize,
}

/// A line, and its length in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The line without its terminator.
    pub text: &'a [u8],
    /// Length of the line in the input, including its terminator.
    pub consumed: usize,
}

/// The line is longer than the limit. The start of the next one is unknown, so the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("The line is longer than {max_line} bytes.")]
pub struct LineTooLong {
    /// The maximum, without the terminator (bytes).
    pub max_line: usize,
}

impl LineDecoder {
    /// Creates a decoder for lines of at most `max_line` bytes, without the terminator.
    pub fn new(max_line: usize) -> Self {
        Self { max_line, searched: 0 }
    }

    /// Changes the maximum length of lines, but not for the unfinished one.
    pub fn set_max_line(&mut self, max_line: usize) {
        self.max_line = max_line;
    }

    /// Returns the first line of `bytes`, which ends with LF or CRLF; `None` while it is unfinished.
    ///
    /// After `None`, the next call must pass the same bytes and more. After a line, it must pass the bytes that follow.
    ///
    /// # Errors
    /// [`LineTooLong`], without waiting for the end of the line.
    pub fn next_line<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Line<'a>>, LineTooLong> {
        let longest = self.max_line.saturating_add("\r\n".len());
        let window = bytes.get(..longest).unwrap_or(bytes);
        let unsearched = window.get(self.searched..).unwrap_or_default();
        let end = memchr::memchr(b'\n', unsearched).map(|at| self.searched + at);

        let text = end.and_then(|end| window.get(..end)).unwrap_or(window);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.len() > self.max_line {
            return Err(LineTooLong { max_line: self.max_line });
        }
        self.searched = if end.is_some() { 0 } else { window.len() };
        Ok(end.map(|end| Line { text, consumed: end + 1 }))
    }
}

/// Error of a line that is not a request, in the words of Button's Divvy if it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The command in upper case, truncated.
    #[error("Unrecognized command: {0}")]
    UnknownCommand(String),
    /// The command or a pair is not well-formed, for example because a quote is not closed.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The line contains bytes outside UTF-8.
    #[error("The request is not valid UTF-8.")]
    NotUtf8,
    /// The operation has more pairs than a request may have. Repeated keys count.
    #[error("The request has more than {max_pairs} pairs.")]
    TooManyPairs {
        /// The configured maximum.
        max_pairs: usize,
    },
}

impl RequestError {
    /// Returns the code of the `ERR` reply. Most errors share [`ErrorKind::Unknown`], as in Button's Divvy.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownCommand(_) => ErrorKind::UnknownCommand,
            Self::Syntax(_) | Self::NotUtf8 | Self::TooManyPairs { .. } => ErrorKind::Unknown,
        }
    }
}

/// Reads a HIT, the only command, into `operation`. After an error, do not use its content.
///
/// The command may be in any case and quoted, and ends like any other string. A line that starts with white space has an empty
/// command.
///
/// # Errors
/// [`RequestError`], for example for more than `max_pairs` pairs, including repeated keys.
pub fn parse_request(line: &[u8], operation: &mut Operation, max_pairs: usize) -> Result<(), RequestError> {
    // Most lines are ASCII, and checking that takes many bytes at once.
    if !line.is_ascii() && std::str::from_utf8(line).is_err() {
        return Err(RequestError::NotUtf8);
    }
    let (command, end) = operation::read_string(line, 0)?;
    let command = line.get(command).unwrap_or_default();
    if !command.eq_ignore_ascii_case(b"HIT") {
        let command = std::str::from_utf8(command).unwrap_or_default();
        let echoed: String = command.chars().take(MAX_ECHOED_CHARS).collect();
        return Err(RequestError::UnknownCommand(echoed.to_uppercase()));
    }
    operation.begin_text(line);
    for (earlier, pair) in operation::pair_spans(line, end).enumerate() {
        let PairSpans { key, value } = pair?;
        if earlier == max_pairs {
            return Err(RequestError::TooManyPairs { max_pairs });
        }
        operation.set_spans(key, value);
    }
    Ok(())
}

/// Returns the password of an `AUTH` line: the text after one space, unchanged. `None` for any other line.
pub fn parse_auth(line: &[u8]) -> Option<&[u8]> {
    let (command, password) = line.split_at_checked(AUTH.len())?;
    command.eq_ignore_ascii_case(AUTH).then_some(password)
}

/// Appends the reply to an `AUTH` with the right password.
pub fn write_welcome(out: &mut Vec<u8>) {
    out.extend_from_slice(WELCOME.as_bytes());
    out.push(b'\n');
}

/// Appends an `OK` reply: whether the hit was allowed, the credits left, and the seconds until there are more.
pub fn write_verdict(out: &mut Vec<u8>, allowed: bool, credit: u64, reset_seconds: u64) {
    out.extend_from_slice(if allowed { b"OK true " } else { b"OK false " });
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(credit).as_bytes());
    out.push(b' ');
    out.extend_from_slice(digits.format(reset_seconds).as_bytes());
    out.push(b'\n');
}

/// Appends an `ERR` reply. It is exactly one line for any `reason`: double quotes become single ones, and each control
/// character or line separator becomes a `?`.
pub fn write_error(out: &mut Vec<u8>, kind: ErrorKind, reason: impl Display) {
    let safe = |c: char| match c {
        '"' => '\'',
        '\u{2028}' | '\u{2029}' => '?',
        c if c.is_control() => '?',
        c => c,
    };
    let reason: String = reason.to_string().chars().map(safe).collect();
    // Writing to a Vec cannot fail.
    let _ = writeln!(out, "ERR {} \"{reason}\"", kind.name());
}

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `OK …`: the decision about a hit.
    Verdict {
        /// Whether the hit was counted.
        allowed: bool,
        /// Credits left.
        credit: u64,
        /// Seconds until there are more.
        reset_seconds: u64,
    },
    /// `ERR …`: the request was not decided.
    Error {
        /// Code for programs, such as `unknown-command`.
        code: String,
        /// Message for people, without its quotes.
        reason: String,
    },
}

/// A line that is not a reply of the line protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither `OK <allowed> <credit> <reset>` nor `ERR <code> \"<reason>\"`: is this a Divvy server?")]
pub struct BadReply(pub String);

/// Formats a HIT with these pairs, including its line feed.
///
/// # Errors
/// [`Unwritable`] names the first string that the protocol cannot carry.
pub fn format_hit<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<String, Unwritable> {
    let pairs = operation::write(pairs)?;
    Ok(if pairs.is_empty() { "HIT\n".to_owned() } else { format!("HIT {pairs}\n") })
}

/// Formats an AUTH, including its line feed. `password` is a line without its end.
pub fn format_auth(password: &str) -> String {
    format!("AUTH {password}\n")
}

/// Returns whether a reply line, with or without its terminator, confirms the password.
pub fn is_welcome(line: &str) -> bool {
    line.trim_end() == WELCOME
}

/// Reads a reply line, with or without its terminator.
///
/// # Errors
/// [`BadReply`]: the line is not a reply of this protocol.
pub fn parse_reply(line: &str) -> Result<Reply, BadReply> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let reply = match line.split_once(' ') {
        Some(("OK", verdict)) => parse_verdict(verdict),
        Some(("ERR", error)) => parse_error(error),
        _ => None,
    };
    reply.ok_or_else(|| BadReply(line.to_owned()))
}

fn parse_verdict(text: &str) -> Option<Reply> {
    let (allowed, numbers) = text.split_once(' ')?;
    let (credit, reset_seconds) = numbers.split_once(' ')?;
    Some(Reply::Verdict {
        allowed: allowed.parse().ok()?,
        credit: credit.parse().ok()?,
        reset_seconds: reset_seconds.parse().ok()?,
    })
}

fn parse_error(text: &str) -> Option<Reply> {
    let (code, quoted) = text.split_once(' ')?;
    let reason = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(Reply::Error { code: code.to_owned(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests;
