//! Responses of HTTP/1.1 (RFC 9112): heads, chunks, and the date.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, TRANSFER_ENCODING};
use hyper::{StatusCode, Version};

use crate::http::api::answer::write_number;
use divvy_core::clock::Clock;

/// Permission to send a body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The body of a response: how a client finds its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// A body of this length.
    Length(usize),
    /// None, because the request's method was `HEAD`. The headers have its length, if it is known.
    Omitted,
    /// None, because of the status.
    Bodiless,
    Chunked,
    /// The body ends with the connection.
    Closed,
}

/// Appends the status line.
fn write_status(status: StatusCode, version: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a header. The value must be valid, as [`HeaderValue`](hyper::header::HeaderValue) is.
pub fn write_header(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the length of the body, the date, and the empty line after a head.
pub fn write_end(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    write_number(length, out);
    out.extend_from_slice(b"\r\n");
    write_date(out);
}

/// Appends a head. `keeps_open` says that the connection continues after the response.
pub fn write_head(
    (status, version): (StatusCode, Version),
    headers: &HeaderMap,
    body: BodyEnd,
    keeps_open: bool,
    out: &mut Vec<u8>,
) {
    write_status(status, version, out);
    for (name, value) in headers {
        // These are the connection's.
        let is_of_connection = [CONNECTION, TRANSFER_ENCODING, DATE].contains(name);
        if !is_of_connection && (*name != CONTENT_LENGTH || body == BodyEnd::Omitted) {
            write_header(name.as_str(), value.as_bytes(), out);
        }
    }
    match (keeps_open, version) {
        (false, _) => write_header("connection", b"close", out),
        (true, Version::HTTP_10) => write_header("connection", b"keep-alive", out),
        (true, _) => {}
    }
    match body {
        BodyEnd::Length(length) => return write_end(length, out),
        BodyEnd::Chunked => write_header("transfer-encoding", b"chunked", out),
        BodyEnd::Omitted | BodyEnd::Bodiless | BodyEnd::Closed => {}
    }
    write_date(out);
}

/// Appends a chunk. It must not be empty.
pub fn write_chunk(content: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(b"\r\n");
}

/// Appends the date, and the empty line after a head.
fn write_date(out: &mut Vec<u8>) {
    out.extend_from_slice(b"date: ");
    out.extend_from_slice(&date());
    out.extend_from_slice(b"\r\n\r\n");
}

/// Length of a date (bytes).
const DATE_LENGTH: usize = 29;

/// Returns the date. Its text is made once a second on each thread.
pub fn date() -> [u8; DATE_LENGTH] {
    thread_local! {
        static TEXT: Cell<(u64, [u8; DATE_LENGTH])> = const { Cell::new((0, [0; DATE_LENGTH])) };
    }
    let second = Clock::system().now().as_secs();
    let (mut made, mut text) = TEXT.get();
    if made != second {
        let date = fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        // Every date has this length.
        if let Ok(date) = date.as_bytes().try_into() {
            (made, text) = (second, date);
            TEXT.set((made, text));
        }
    }
    text
}
