//! Frames from the client, and the heads and bodies of its requests (RFC 9113, section 8).

#![expect(clippy::disallowed_methods, reason = "how long a request may take to come in")]

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use hyper::http::request::Parts;
use hyper::http::uri::{self, Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use tokio::time::Instant;

use super::frame::{
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, FRAME_SIZES, Frame, GOAWAY, HEADER_TABLE_SIZE,
    HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE, MAX_WINDOW, PING,
    PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, Reason, SETTINGS, WINDOW_UPDATE, write_frame, write_reset,
    write_settings, write_window,
};
use super::hpack::{CompressionError, Field, MAX_TABLE};
use super::{Block, Event, Http2Session, MAX_BLOCK, MAX_BLOCK_FRAMES, MAX_FAULTS, Rest, State, Stream, WINDOW};
use crate::http::response::Problem;
use crate::http::transport::bodies::{RequestBody, StreamedBody, refuse};
use crate::http::transport::{CALL, MAX_HEAD, Responder};
use crate::net::auth::RequestOrigin;
use crate::net::connection::Cut;
use crate::net::memory::{BudgetExceeded, FREE, SMALL};
use divvy_telemetry::metrics::RequestKind;

impl<R: Responder> Http2Session<R> {
    /// Reads the complete frames.
    pub(super) fn read(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Result<(), Reason> {
        if !self.has_greeted {
            if !input.starts_with(PREFACE) {
                return if PREFACE.starts_with(input) { Ok(()) } else { Err(Reason::ProtocolError) };
            }
            self.has_greeted = true;
            input.advance(PREFACE.len());
            let settings = [(MAX_CONCURRENT_STREAMS, R::MAX_CONCURRENT), (MAX_HEADER_LIST_SIZE, MAX_HEAD as u32)];
            write_settings(&settings, output);
        }
        let before = self.last;
        let mut read = 0;
        while let Some((frame, length)) = Frame::read(input.get(read..).unwrap_or_default())? {
            read += length;
            self.take(&frame, output)?;
        }
        input.advance(read);
        if self.last > before {
            self.begin_timeouts(before);
        }
        Ok(())
    }

    /// Sets the timeouts of the streams after this one whose bodies are incomplete.
    fn begin_timeouts(&mut self, before: u32) {
        let timeout = self.responder.bounds().timeouts.request;
        let begun = self.streams.iter_mut().rev().take_while(|stream| stream.id > before);
        let mut incomplete = begun.filter(|stream| !stream.has_ended).peekable();
        if incomplete.peek().is_some() {
            let due = Instant::now() + timeout;
            incomplete.for_each(|stream| stream.due = Some(due));
            self.wake_at(due);
        }
    }

    fn take(&mut self, frame: &Frame<'_>, output: &mut Vec<u8>) -> Result<(), Reason> {
        let is_expected = self.block.is_some() == (frame.kind == CONTINUATION);
        let is_of_connection = matches!(frame.kind, SETTINGS | PING | GOAWAY);
        let has_stream =
            frame.kind > CONTINUATION || frame.kind == WINDOW_UPDATE || is_of_connection != (frame.stream > 0);
        if !is_expected || !has_stream || !self.has_settings && frame.kind != SETTINGS {
            return Err(Reason::ProtocolError);
        }
        match frame.kind {
            DATA => self.take_data(frame, output),
            HEADERS if frame.has(END_HEADERS) => {
                self.take_head(frame.stream, frame.has(END_STREAM), frame.unpadded()?, output)
            }
            HEADERS => {
                let due = Instant::now() + self.responder.bounds().timeouts.request;
                let (stream, is_end) = (frame.stream, frame.has(END_STREAM));
                let block = Block { stream, is_end, bytes: Vec::new(), frames: 0, due };
                self.wake_at(due);
                self.extend(block, frame.unpadded()?)
            }
            CONTINUATION => {
                let Some(block) = self.block.take().filter(|block| block.stream == frame.stream) else {
                    return Err(Reason::ProtocolError);
                };
                self.extend(block, frame.content)?;
                match self.block.take_if(|_| frame.has(END_HEADERS)) {
                    Some(block) => {
                        self.used -= block.bytes.len();
                        self.take_head(block.stream, block.is_end, &block.bytes, output)
                    }
                    None => Ok(()),
                }
            }
            PRIORITY if frame.content.len() != 5 => Err(Reason::FrameSizeError),
            RST_STREAM => {
                frame.number()?;
                self.must_have_begun(frame.stream)?;
                self.remove(frame.stream);
                // It may have been the only one with something to send.
                self.may_send = true;
                Ok(())
            }
            SETTINGS if frame.has(ACK) && !frame.content.is_empty() => Err(Reason::FrameSizeError),
            SETTINGS if frame.has(ACK) => Ok(()),
            SETTINGS => {
                self.has_settings = true;
                for (name, value) in frame.settings()? {
                    match (name, value) {
                        (HEADER_TABLE_SIZE, ..MAX_TABLE) => self.must_drop_table = true,
                        (ENABLE_PUSH, 2..) => return Err(Reason::ProtocolError),
                        (MAX_FRAME_SIZE, size) if !FRAME_SIZES.contains(&size) => return Err(Reason::ProtocolError),
                        (INITIAL_WINDOW_SIZE, size) if size > MAX_WINDOW => return Err(Reason::FlowControlError),
                        (INITIAL_WINDOW_SIZE, _) => (self.initial_window, self.may_send) = (value.into(), true),
                        _ => {}
                    }
                }
                let credit = self.streams.iter().map(|stream| stream.credit).max().unwrap_or(0);
                if self.initial_window + credit > MAX_WINDOW.into() {
                    return Err(Reason::FlowControlError);
                }
                write_frame(SETTINGS, ACK, 0, &[], output);
                Ok(())
            }
            PUSH_PROMISE => Err(Reason::ProtocolError),
            PING if frame.content.len() != 8 => Err(Reason::FrameSizeError),
            PING if !frame.has(ACK) => {
                write_frame(PING, ACK, 0, frame.content, output);
                Ok(())
            }
            GOAWAY => {
                self.is_left = true;
                Ok(())
            }
            WINDOW_UPDATE => self.widen(frame.stream, frame.number()? & MAX_WINDOW, output),
            // Others have no meaning for this server.
            _ => Ok(()),
        }
    }

    /// Fails if the client has not begun this stream.
    fn must_have_begun(&self, id: u32) -> Result<(), Reason> {
        if id > self.last { Err(Reason::ProtocolError) } else { Ok(()) }
    }

    /// Lets the server send this many bytes more, on a stream or on the connection.
    fn widen(&mut self, id: u32, bytes: u32, output: &mut Vec<u8>) -> Result<(), Reason> {
        self.may_send = true;
        if id == 0 {
            self.window += i64::from(bytes);
            return match bytes {
                0 => Err(Reason::ProtocolError),
                _ if self.window > MAX_WINDOW.into() => Err(Reason::FlowControlError),
                _ => Ok(()),
            };
        }
        self.must_have_begun(id)?;
        let initial = self.initial_window;
        let Some(stream) = self.find(id) else { return Ok(()) };
        stream.credit += i64::from(bytes);
        if bytes == 0 {
            return self.reset(id, Reason::ProtocolError, output);
        }
        if initial + stream.credit > MAX_WINDOW.into() {
            self.reset(id, Reason::FlowControlError, output)
        } else {
            Ok(())
        }
    }

    /// Ends a stream because of an error of the client.
    pub(super) fn reset(&mut self, id: u32, reason: Reason, output: &mut Vec<u8>) -> Result<(), Reason> {
        self.remove(id);
        self.may_send = true;
        write_reset(id, reason, output);
        self.faults += 1;
        if self.faults > MAX_FAULTS { Err(Reason::EnhanceYourCalm) } else { Ok(()) }
    }

    /// Keeps the next part of a head.
    fn extend(&mut self, mut block: Block, part: &[u8]) -> Result<(), Reason> {
        block.bytes.extend_from_slice(part);
        block.frames += 1;
        if block.bytes.len() > MAX_BLOCK || block.frames > MAX_BLOCK_FRAMES {
            return Err(Reason::EnhanceYourCalm);
        }
        self.used += part.len();
        self.share.resize(self.used.saturating_sub(FREE)).map_err(|BudgetExceeded| Reason::EnhanceYourCalm)?;
        self.block = Some(block);
        Ok(())
    }

    /// Decodes the block of a head.
    fn decode(&mut self, block: &[u8]) -> Result<DecodedHead, CompressionError> {
        if let Some((known, head)) = &self.known_head
            && known == block
        {
            return Ok(head.clone());
        }
        let mut fields = Fields::default();
        let keeps_table = self.decoder.decode(block, |field, size| fields.take(field, size))?;
        let may_know = keeps_table && fields.size <= MAX_KNOWN;
        let head = fields.into_head();
        self.known_head = may_know.then(|| (block.to_vec(), head.clone()));
        Ok(head)
    }

    fn take_head(&mut self, id: u32, is_end: bool, block: &[u8], output: &mut Vec<u8>) -> Result<(), Reason> {
        // Also decoded if it is not used, because it may change the table.
        let head = self.decode(block)?;
        if let Some(stream) = self.find(id) {
            let is_right = is_end && !stream.has_ended && matches!(head, DecodedHead::Trailers);
            return if is_right { self.end_request(id, output) } else { self.reset(id, Reason::ProtocolError, output) };
        }
        if id.is_multiple_of(2) {
            return Err(Reason::ProtocolError);
        }
        // The server may have reset the stream before the client sent this.
        if id <= self.last {
            return self.reset(id, Reason::StreamClosed, output);
        }
        self.last = id;
        if self.is_closing || self.streams.len() >= R::MAX_CONCURRENT as usize {
            return self.reset(id, Reason::RefusedStream, output);
        }
        let (base, body, state) = match head {
            DecodedHead::Request(parts, memory) => {
                let (demand, is_streamed) = self.responder.demand(&parts);
                let origin = RequestOrigin::new(self.peer, self.certificate.clone());
                let state = State::Receiving(Box::new((parts, origin)), false);
                (demand + memory, is_streamed.then(StreamedBody::default), state)
            }
            DecodedHead::TooLong => (CALL, None, State::Answering),
            DecodedHead::Trailers | DecodedHead::Malformed => return self.reset(id, Reason::ProtocolError, output),
        };
        let is_too_long = matches!(state, State::Answering);
        self.streams.push(Box::new(Stream {
            id,
            state,
            body: BytesMut::new(),
            received: 0,
            has_ended: false,
            receive_window: WINDOW,
            credit: 0,
            unsent: Bytes::new(),
            rest: Rest::Awaited,
            base,
            memory: 0,
            due: None,
            call: None,
        }));
        let refusal = match self.account(id) {
            Err(BudgetExceeded) => Some(refuse()),
            Ok(()) if is_too_long => {
                self.responder.requests().count(RequestKind::Invalid);
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                Some(Problem::new(status, "the headers are too long").into_response())
            }
            Ok(()) => None,
        };
        if let Some(refusal) = refusal {
            self.refuse(id, refusal);
        } else if let Some(body) = body {
            self.call(id, State::Streaming(body.clone()), RequestBody::Streamed(body));
        }
        if is_end { self.end_request(id, output) } else { Ok(()) }
    }

    /// The client has sent all of a request.
    fn end_request(&mut self, id: u32, output: &mut Vec<u8>) -> Result<(), Reason> {
        let Some(stream) = self.find(id) else { return Ok(()) };
        stream.has_ended = true;
        match &stream.state {
            State::Receiving(..) if !stream.has_declared_length() => {
                return self.reset(id, Reason::ProtocolError, output);
            }
            State::Receiving(..) => self.call_with_body(id),
            State::Streaming(_) => stream.end_body(),
            State::Admitting | State::Answering => {}
            State::Settling => self.remove(id),
        }
        Ok(())
    }

    fn take_data(&mut self, frame: &Frame<'_>, output: &mut Vec<u8>) -> Result<(), Reason> {
        let (id, content) = (frame.stream, frame.unpadded()?);
        // Padding counts, too.
        let length = frame.content.len() as u32;
        self.receive_window = self.receive_window.checked_sub(length).ok_or(Reason::FlowControlError)?;
        if self.receive_window < WINDOW / 2 {
            write_window(0, WINDOW - self.receive_window, output);
            self.receive_window = WINDOW;
        }
        self.must_have_begun(id)?;
        let max_body = self.responder.max_body();
        let Some(stream) = self.find(id) else { return Ok(()) };
        if stream.has_ended {
            return self.reset(id, Reason::StreamClosed, output);
        }
        let Some(window) = stream.receive_window.checked_sub(length) else {
            return self.reset(id, Reason::FlowControlError, output);
        };
        stream.receive_window = window;
        stream.received += content.len();
        let is_long = stream.received > max_body;
        match &stream.state {
            State::Receiving(..) | State::Admitting if !is_long => {
                stream.body.extend_from_slice(content);
                if self.account(id).is_err() {
                    self.refuse(id, Problem::cut(Cut::NoMemory).into_response());
                }
            }
            State::Receiving(..) => self.call(id, State::Answering, RequestBody::Unread),
            State::Streaming(body) => {
                body.append(content);
                let is_long = body.len() > max_body.max(WINDOW as usize);
                if is_long || self.account(id).is_err() {
                    return self.reset(id, Reason::EnhanceYourCalm, output);
                }
            }
            State::Admitting | State::Answering | State::Settling => {}
        }
        if frame.has(END_STREAM) {
            return self.end_request(id, output);
        }
        self.ask_for_more(id, output);
        Ok(())
    }

    /// Lets an admitted client send more of a long body.
    pub(super) fn ask_for_more(&mut self, id: u32, output: &mut Vec<u8>) {
        let responder = Arc::clone(&self.responder);
        let Some(stream) = self.find(id) else { return };
        match std::mem::replace(&mut stream.state, State::Admitting) {
            State::Receiving(request, false) if stream.received > SMALL => {
                let admission = async move {
                    let may_send = responder.may_send(&request.0, &request.1).await;
                    Event::Admitted(id, request, may_send)
                };
                self.spawn(id, Box::pin(admission));
            }
            state => {
                let wants_more = matches!(state, State::Receiving(..) | State::Streaming(_));
                stream.state = state;
                if wants_more && stream.receive_window < WINDOW / 2 {
                    write_window(id, WINDOW - stream.receive_window, output);
                    stream.receive_window = WINDOW;
                }
            }
        }
    }
}

/// Maximum size of a head that is kept for its repetition, counted as in a list of headers (bytes).
const MAX_KNOWN: usize = 1024;

/// Memory of a header of a request, beyond its size (bytes).
const HEADER: usize = 160;

/// The meaning of a block of fields.
#[derive(Clone)]
pub enum DecodedHead {
    /// A request, and the memory of its headers (bytes).
    Request(Arc<Parts>, usize),
    Trailers,
    /// The list of headers is larger than [`MAX_HEAD`].
    TooLong,
    Malformed,
}

/// The fields of a block.
#[derive(Default)]
struct Fields {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    headers: HeaderMap,
    /// Size of all fields (bytes).
    size: usize,
    is_malformed: bool,
}

impl Fields {
    /// Takes the next field, which has this size. Fields beyond [`MAX_HEAD`] are dropped.
    fn take(&mut self, field: &Field, size: usize) {
        self.size += size;
        if self.size > MAX_HEAD {
            return;
        }
        let is_late = !self.headers.is_empty();
        let is_wrong = match field {
            Field::Method(method) => is_late || self.method.replace(method.clone()).is_some(),
            Field::Scheme(scheme) => is_late || self.scheme.replace(scheme.clone()).is_some(),
            Field::Authority(authority) => is_late || self.authority.replace(authority.clone()).is_some(),
            Field::Path(path) => is_late || self.path.replace(path.clone()).is_some(),
            Field::Header(name, value) => {
                self.headers.append(name.clone(), value.clone());
                match name.as_str() {
                    // These are about connections of HTTP/1.1.
                    "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => true,
                    "te" => value != "trailers",
                    _ => false,
                }
            }
            Field::Invalid => true,
        };
        self.is_malformed |= is_wrong;
    }

    /// Returns what the fields mean.
    fn into_head(self) -> DecodedHead {
        let memory = self.size + HEADER * self.headers.len();
        match self {
            _ if self.size > MAX_HEAD => DecodedHead::TooLong,
            _ if self.is_malformed => DecodedHead::Malformed,
            Self { method: None, scheme: None, authority: None, path: None, .. } => DecodedHead::Trailers,
            _ => self.into_parts().map_or(DecodedHead::Malformed, |parts| DecodedHead::Request(parts, memory)),
        }
    }

    /// Returns the head of a request; `None` if it is incomplete.
    fn into_parts(self) -> Option<Arc<Parts>> {
        let Self { method: Some(method), scheme: Some(scheme), authority, path: Some(path), .. } = self else {
            return None;
        };
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = method;
        head.version = Version::HTTP_2;
        head.headers = self.headers;
        head.uri = match authority {
            None => Uri::from(path),
            Some(authority) => {
                let mut parts = uri::Parts::default();
                (parts.scheme, parts.authority, parts.path_and_query) = (Some(scheme), Some(authority), Some(path));
                Uri::from_parts(parts).ok()?
            }
        };
        Some(Arc::new(head))
    }
}
