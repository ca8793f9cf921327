//! Responses, as far as the windows of the client admit them.

#![expect(clippy::disallowed_methods, reason = "how long a client may take nothing")]

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{CONNECTION, DATE, TRANSFER_ENCODING};
use hyper::{HeaderMap, Response};
use tokio::time::Instant;

use super::frame::{DATA, END_STREAM, MAX_FRAME, Reason, write_frame, write_head, write_reset};
use super::hpack::{DROP_TABLE, write_field, write_status};
use super::{Event, Http2Session, MUCH_OUTPUT, Piece, Pieces, Rest, SETTLING, Stall, State};
use crate::http::transport::bodies::{Reply, refuse};
use crate::http::transport::http1::response::date;
use crate::http::transport::{CALL, Responder};

impl<R: Responder> Http2Session<R> {
    /// Begins to send a response.
    pub(super) fn respond(&mut self, id: u32, response: Response<Reply>, output: &mut Vec<u8>) {
        let (mut head, body) = response.into_parts();
        let Some(stream) = self.find(id) else { return };
        (stream.body, stream.call, stream.base) = (BytesMut::new(), None, CALL);
        if !matches!(stream.state, State::Streaming(_)) {
            stream.due = None;
        }
        (stream.unsent, stream.rest) = match body {
            Reply::Whole(bytes) => (bytes, Rest::End),
            Reply::Message(bytes) => (bytes, Rest::Success),
            // gRPC's errors have only headers.
            Reply::Pieces(pieces) if pieces.is_end_stream() => (Bytes::new(), Rest::End),
            Reply::Pieces(pieces) => (Bytes::new(), Rest::Pieces(pieces)),
        };
        let has_memory = self.account(id).is_ok();
        let must_drop_table = std::mem::take(&mut self.must_drop_table);
        let Some(stream) = self.find(id) else { return };
        if !has_memory {
            (head, _) = refuse().into_parts();
            (stream.unsent, stream.rest) = (Bytes::new(), Rest::End);
        }
        let is_end = stream.unsent.is_empty() && matches!(stream.rest, Rest::End);
        let is_message = matches!(stream.rest, Rest::Success);
        write_head(id, is_end, output, |block| {
            if must_drop_table {
                block.push(DROP_TABLE);
            }
            write_status(head.status, block);
            if is_message {
                write_field(b"content-type", b"application/grpc", block);
            }
            write_fields(&head.headers, block);
            write_field(b"date", &date(), block);
        });
        if is_end { self.finish(id) } else { self.queue(id) }
    }

    /// Takes the next piece of a response.
    pub(super) fn take_piece(&mut self, id: u32, piece: Option<Piece>, pieces: Pieces, output: &mut Vec<u8>) {
        let Some(stream) = self.find(id) else { return };
        stream.call = None;
        match piece.map(|piece| piece.map(hyper::body::Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                (stream.unsent, stream.rest) = (data, Rest::Pieces(pieces));
                if self.account(id).is_err() {
                    write_reset(id, Reason::InternalError, output);
                    return self.remove(id);
                }
            }
            // There are only data and trailers.
            Some(Ok(Err(frame))) => {
                stream.rest = frame.into_trailers().map_or(Rest::Pieces(pieces), Rest::Trailers);
            }
            None => {
                write_frame(DATA, END_STREAM, id, &[], output);
                return self.finish(id);
            }
            Some(Err(_)) => {
                write_reset(id, Reason::InternalError, output);
                return self.remove(id);
            }
        }
        self.queue(id);
    }

    /// Puts a stream with something to send at the end of the queue.
    fn queue(&mut self, id: u32) {
        self.sendable.push_back(id);
        self.may_send = true;
    }

    /// Sends what the client's windows admit. Returns whether there is more to send once the output is written.
    pub(super) fn send(&mut self, output: &mut Vec<u8>) -> bool {
        if !std::mem::take(&mut self.may_send) {
            return false;
        }
        for _ in 0..self.sendable.len() {
            if output.len() >= MUCH_OUTPUT {
                break;
            }
            let Some(id) = self.sendable.pop_front() else { break };
            let (mut window, initial) = (self.window, self.initial_window);
            let Some(stream) = self.find(id) else { continue };
            loop {
                let admitted = usize::try_from(window.min(initial + stream.credit)).unwrap_or(0);
                let room = MUCH_OUTPUT.saturating_sub(output.len()).min(MAX_FRAME);
                let part = stream.unsent.split_to(admitted.min(room).min(stream.unsent.len()));
                if part.is_empty() {
                    break;
                }
                let is_end = stream.unsent.is_empty() && matches!(stream.rest, Rest::End);
                write_frame(DATA, if is_end { END_STREAM } else { 0 }, id, &part, output);
                window -= part.len() as i64;
                stream.credit -= part.len() as i64;
            }
            let sent = std::mem::replace(&mut self.window, window) - window;
            if let Some(stall) = &mut self.stall {
                stall.sent += sent;
            }
            self.send_rest(id, output);
        }
        self.may_send |= output.len() >= MUCH_OUTPUT && !self.sendable.is_empty();
        self.may_send
    }

    /// Sends what follows the bytes of a stream, or puts it into the queue again.
    fn send_rest(&mut self, id: u32, output: &mut Vec<u8>) {
        let Some(stream) = self.find(id) else { return };
        if !stream.unsent.is_empty() {
            self.sendable.push_back(id);
            // Shrinking always succeeds.
            let _ = self.account(id);
            return;
        }
        match std::mem::replace(&mut stream.rest, Rest::Awaited) {
            Rest::End => self.finish(id),
            Rest::Success => {
                write_head(id, true, output, |block| write_field(b"grpc-status", b"0", block));
                self.finish(id);
            }
            Rest::Trailers(trailers) => {
                write_head(id, true, output, |block| write_fields(&trailers, block));
                self.finish(id);
            }
            Rest::Pieces(mut pieces) => self.spawn(
                id,
                Box::pin(async move {
                    let piece = pieces.frame().await;
                    Event::Piece(id, piece, pieces)
                }),
            ),
            Rest::Awaited => {}
        }
    }

    /// The response of a stream has been sent.
    fn finish(&mut self, id: u32) {
        let Some(stream) = self.find(id) else { return };
        if stream.has_ended {
            return self.remove(id);
        }
        let due = Instant::now() + SETTLING;
        (stream.state, stream.due) = (State::Settling, Some(due));
        self.wake_at(due);
    }

    /// Begins the time for the client to take replies, or ends it.
    pub(super) fn note_stall(&mut self) {
        if self.sendable.is_empty() {
            self.stall = None;
        } else if self.stall.is_none() {
            let since = Instant::now();
            self.stall = Some(Stall { since, sent: 0 });
            self.wake_at(since + self.responder.bounds().timeouts.write);
        }
    }
}

/// Appends the fields of a response, except those about connections of HTTP/1.1.
fn write_fields(headers: &HeaderMap, block: &mut Vec<u8>) {
    for (name, value) in headers {
        if ![CONNECTION, TRANSFER_ENCODING, DATE].contains(name) {
            write_field(name.as_str().as_bytes(), value.as_bytes(), block);
        }
    }
}
