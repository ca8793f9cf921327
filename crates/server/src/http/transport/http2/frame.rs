//! Frames of HTTP/2 (RFC 9113, sections 4 to 6).

use std::ops::Range;

use super::hpack::CompressionError;

/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's head (bytes).
const HEAD: usize = 9;
/// Maximum length of a frame's content, which is the protocol's default, in both directions (bytes). Clients that accept more get
/// such frames, too.
pub const MAX_FRAME: usize = 16 * 1024;

/// Kind of a frame with a part of a body.
pub const DATA: u8 = 0;
/// Kind of a frame that opens a stream, or has the trailers.
pub const HEADERS: u8 = 1;
/// Kind of a frame that ranks a stream.
pub const PRIORITY: u8 = 2;
/// Kind of a frame that ends a stream early.
pub const RST_STREAM: u8 = 3;
/// Kind of a frame with settings.
pub const SETTINGS: u8 = 4;
/// Kind of a frame that announces a response without a request.
pub const PUSH_PROMISE: u8 = 5;
/// Kind of a frame that asks for an answer.
pub const PING: u8 = 6;
/// Kind of a frame that ends the connection.
pub const GOAWAY: u8 = 7;
/// Kind of a frame that lets the other side send more.
pub const WINDOW_UPDATE: u8 = 8;
/// Kind of a frame with the rest of a head.
pub const CONTINUATION: u8 = 9;

/// Flag of settings and pings that are answers.
pub const ACK: u8 = 1;
/// Flag of the last frame of a body, or of a head without one.
pub const END_STREAM: u8 = 1;
/// Flag of the last frame of a head.
pub const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 32;

/// Setting of either side: the size of the table for the compression of headers.
pub const HEADER_TABLE_SIZE: u16 = 1;
/// Setting: whether the server may send responses without requests.
pub const ENABLE_PUSH: u16 = 2;
/// Setting: the maximum number of open streams.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Setting: the window of a new stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// Setting: the maximum length of a frame's content.
pub const MAX_FRAME_SIZE: u16 = 5;
/// Setting: the maximum size of a list of headers.
pub const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Values of [`MAX_FRAME_SIZE`].
pub const FRAME_SIZES: Range<u32> = MAX_FRAME as u32..1 << 24;
/// Maximum window (bytes).
pub const MAX_WINDOW: u32 = u32::MAX >> 1;

/// The reason why a stream or a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The end is in order.
    NoError = 0,
    /// The other side breaks the protocol.
    ProtocolError = 1,
    /// This side has a bug.
    InternalError = 2,
    /// The other side sends more than its window admits.
    FlowControlError = 3,
    /// The stream has ended.
    StreamClosed = 5,
    /// The length of a frame is wrong.
    FrameSizeError = 6,
    /// The request was not processed, and may be sent again.
    RefusedStream = 7,
    /// A head cannot be decompressed.
    CompressionError = 9,
    /// The other side causes too much work.
    EnhanceYourCalm = 11,
}

impl From<CompressionError> for Reason {
    fn from(CompressionError: CompressionError) -> Self {
        Self::CompressionError
    }
}

/// A frame in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind, such as [`DATA`].
    pub kind: u8,
    /// The flags, whose meaning depends on the kind.
    pub flags: u8,
    /// The stream; 0 for a frame about the connection.
    pub stream: u32,
    /// The bytes after the head.
    pub content: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Finds the frame at the front of the input. Returns it with its total length; `None` if it is incomplete.
    ///
    /// # Errors
    /// The frame is too long.
    pub fn read(input: &'a [u8]) -> Result<Option<(Self, usize)>, Reason> {
        let Some(([high, middle, low, kind, flags, id @ ..], rest)) = input.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        if length > MAX_FRAME {
            return Err(Reason::FrameSizeError);
        }
        let stream = u32::from_be_bytes(*id) & (u32::MAX >> 1);
        let frame = |content| (Self { kind: *kind, flags: *flags, stream, content }, HEAD + length);
        Ok(rest.get(..length).map(frame))
    }

    /// Returns whether the flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the content of a DATA or HEADERS frame without padding and priority.
    ///
    /// # Errors
    /// There is more padding than content.
    pub fn unpadded(&self) -> Result<&'a [u8], Reason> {
        let mut content = self.content;
        if self.has(PADDED) {
            let (padding, rest) = content.split_first().ok_or(Reason::ProtocolError)?;
            let length = rest.len().checked_sub(usize::from(*padding)).ok_or(Reason::ProtocolError)?;
            content = rest.get(..length).unwrap_or_default();
        }
        if self.kind == HEADERS && self.has(HAS_PRIORITY) {
            content = content.get(5..).ok_or(Reason::ProtocolError)?;
        }
        Ok(content)
    }

    /// Returns the content of a frame that has a number.
    ///
    /// # Errors
    /// It has another length.
    pub fn number(&self) -> Result<u32, Reason> {
        self.content.try_into().map(u32::from_be_bytes).map_err(|_| Reason::FrameSizeError)
    }

    /// Returns the settings in the content.
    ///
    /// # Errors
    /// Some are incomplete.
    pub fn settings(&self) -> Result<impl Iterator<Item = (u16, u32)> + use<'a>, Reason> {
        let (settings, []) = self.content.as_chunks::<6>() else { return Err(Reason::FrameSizeError) };
        let read =
            |[k, name, a, b, c, d]: &[u8; 6]| (u16::from_be_bytes([*k, *name]), u32::from_be_bytes([*a, *b, *c, *d]));
        Ok(settings.iter().map(read))
    }
}

/// Appends the head of a frame with content of this length, which is at most [`MAX_FRAME`].
pub fn write_frame_head(kind: u8, flags: u8, stream: u32, length: usize, out: &mut Vec<u8>) {
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    out.extend_from_slice(&[high, middle, low, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends a frame.
pub fn write_frame(kind: u8, flags: u8, stream: u32, content: &[u8], out: &mut Vec<u8>) {
    write_frame_head(kind, flags, stream, content.len(), out);
    out.extend_from_slice(content);
}

/// Appends the end of a stream.
pub fn write_reset(stream: u32, reason: Reason, out: &mut Vec<u8>) {
    write_frame(RST_STREAM, 0, stream, &(reason as u32).to_be_bytes(), out);
}

/// Appends the end of the connection. Streams after the `last` one are not answered.
pub fn write_goodbye(last: u32, reason: Reason, out: &mut Vec<u8>) {
    write_frame_head(GOAWAY, 0, 0, 8, out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(reason as u32).to_be_bytes());
}

/// Lets the client send this many bytes more, on a stream or on the connection.
pub fn write_window(stream: u32, bytes: u32, out: &mut Vec<u8>) {
    write_frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes(), out);
}

/// Appends settings.
pub fn write_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    write_frame_head(SETTINGS, 0, 0, 6 * settings.len(), out);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the headers of a response, or its trailers. `write` appends their block.
pub fn write_head(stream: u32, is_end: bool, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    let end = if is_end { END_STREAM } else { 0 };
    write_frame_head(HEADERS, end | END_HEADERS, stream, 0, out);
    write(out);
    let length = out.len() - start - HEAD;
    if length <= MAX_FRAME {
        if let (Some(place), [_, length @ ..]) = (out.get_mut(start..start + 3), (length as u32).to_be_bytes()) {
            place.copy_from_slice(&length);
        }
        return;
    }
    let block = out.split_off(start + HEAD);
    out.truncate(start);
    let last = length.div_ceil(MAX_FRAME) - 1;
    for (number, part) in block.chunks(MAX_FRAME).enumerate() {
        let (kind, flags) = if number == 0 { (HEADERS, end) } else { (CONTINUATION, 0) };
        write_frame(kind, if number == last { flags | END_HEADERS } else { flags }, stream, part, out);
    }
}
