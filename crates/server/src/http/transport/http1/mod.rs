//! HTTP/1.1 connections: a session that reads requests, has them answered one after the other, and writes the responses.
//!
//! Nearly all requests are hits. Those that need nothing else are answered together, as the commands of RESP are
//! ([`Responder::answer_hits`]). Any other request waits in the input until its body is complete. A client that may not send
//! the request, or whose body is too long, gets its answer before that.

pub mod request;
pub mod response;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::poll;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;

use self::request::{Chunks, Framing, Head, Malformed, header_space, malformed, read_head};
use self::response::{BodyEnd, CONTINUE, LAST_CHUNK, write_chunk, write_head};
use super::Responder;
use super::bodies::{BoxError, Reply, RequestBody, refuse};
use crate::errors::ErrorClient;
use crate::http::response::{Problem, count_error};
use crate::net::auth::RequestOrigin;
use crate::net::connection::{Cut, NextStep, Output, Session};
use crate::net::memory::{FREE, RequestMemory, SMALL};
use divvy_telemetry::metrics::{Bound, Metrics, RequestKind, RequestTally};

/// How long an answer is waited for after its client has closed the connection or its sending side. Otherwise, a client that sends all
/// its requests and then closes its side would get only those answers that need no waiting.
const AFTER_LEAVING: Duration = Duration::from_secs(1);

/// One client of HTTP/1.1.
pub struct Http1Session<R> {
    responder: Arc<R>,
    certificate: Option<Arc<str>>,
    metrics: Arc<Metrics>,
    hits: HitSession,
    /// The request whose body is coming in.
    receiving: Option<Receiving>,
    /// The response that is being sent in pieces.
    sending: Option<Sending>,
}

/// A client's hits that are answered together: their memory, and their counts.
pub struct HitSession {
    peer: SocketAddr,
    pub memory: RequestMemory,
    pub tally: RequestTally,
}

impl HitSession {
    /// Returns the client for a note about an error.
    pub fn client(&self) -> ErrorClient {
        ErrorClient { peer: Some(self.peer), user: None }
    }
}

/// A request with a complete head, at the front of the input.
struct Receiving {
    /// Number of bytes that the request has at least.
    length: usize,
    chunks: Option<Chunks>,
    /// The client, which knows whether it is admitted.
    origin: RequestOrigin,
}

struct Sending {
    /// In a lock that is never taken, because a body cannot be shared between threads, and a session can.
    body: Mutex<UnsyncBoxBody<Bytes, BoxError>>,
    is_chunked: bool,
    keeps_open: bool,
}

/// The properties of a request that its response depends on.
#[derive(Clone, Copy)]
struct Exchange {
    version: Version,
    is_head: bool,
    keeps_open: bool,
}

impl<R: Responder> Http1Session<R> {
    /// Creates the session of a client.
    pub fn new(responder: Arc<R>, peer: SocketAddr, certificate: Option<Arc<str>>, metrics: Arc<Metrics>) -> Self {
        let memory = RequestMemory::new(&responder.bounds().memory);
        let hits = HitSession { peer, memory, tally: RequestTally::default() };
        Self { responder, certificate, metrics, hits, receiving: None, sending: None }
    }

    fn origin(&self) -> RequestOrigin {
        RequestOrigin::new(self.hits.peer, self.certificate.clone())
    }

    /// Answers the next request.
    async fn answer_next(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        if self.receiving.as_ref().is_some_and(|receiving| input.len() < receiving.length) {
            return NextStep::Read;
        }
        let mut space = header_space();
        let head = match read_head(input, &mut space) {
            Ok(Some(head)) => head,
            Ok(None) => return NextStep::Read,
            Err(error) => return self.refuse(error, output.bytes),
        };
        let version = if head.is_1_0 { Version::HTTP_10 } else { Version::HTTP_11 };
        let mut exchange = Exchange { version, is_head: head.method == "HEAD", keeps_open: head.keeps_open };
        let mut received = match self.receive(&head, input) {
            Ok(received) => received,
            Err(error) => return self.refuse(error, output.bytes),
        };
        if received.is_none() && self.receiving.is_none() {
            // A short body needs no permission, and may belong to a hit that is answered together with others.
            if !head.expects_continue && matches!(head.framing, Framing::Length(length) if length <= SMALL as u64) {
                return NextStep::Read;
            }
            match self.begin_to_receive(&head, output.bytes).await {
                Ok(true) => {}
                Ok(false) => received = Some((RequestBody::Unread, None)),
                Err(error) => return self.refuse(error, output.bytes),
            }
        }
        let Some((body, end)) = received else { return NextStep::Read };
        let parts = match parts_of(&head, version) {
            Ok(parts) => parts,
            Err(error) => return self.refuse(error, output.bytes),
        };
        // A body that is not read cannot be told from the next request.
        exchange.keeps_open &= end.is_some();
        input.advance(end.unwrap_or(input.len()));
        let origin = self.receiving.take().map_or_else(|| self.origin(), |receiving| receiving.origin);
        let response = {
            let mut answering = pin!(self.responder.answer(&parts, body, &origin));
            match poll!(answering.as_mut()) {
                Poll::Ready(response) => response,
                Poll::Pending => tokio::select! {
                    biased;
                    response = answering => response,
                    () = given_up(output) => return NextStep::Close,
                },
            }
        };
        count_error(&response, &self.metrics, R::PROTOCOL, || origin.error_client());
        match self.write(response, exchange, output) {
            // Usually, the client waits for this answer.
            NextStep::Continue if input.is_empty() && self.sending.is_none() => NextStep::Read,
            next => next,
        }
    }

    /// Returns the body of the request with this head, and where it ends in the input; `None` if it is incomplete. A body that is
    /// too long has no end.
    fn receive(&mut self, head: &Head<'_>, input: &[u8]) -> Result<Option<(RequestBody, Option<usize>)>, Malformed> {
        let max = self.responder.max_body();
        let length = match head.framing {
            Framing::Length(length) => length,
            Framing::Chunked => {
                let mut chunks = self.receiving.as_mut().and_then(|receiving| receiving.chunks.take());
                let known = chunks.get_or_insert_with(|| Chunks::new(head.length));
                if known.advance(input, max)? {
                    return Ok(Some((RequestBody::Whole(known.content(input).into()), Some(known.end()))));
                }
                if let Some(receiving) = &mut self.receiving {
                    receiving.chunks = chunks;
                }
                return Ok(None);
            }
        };
        let Some(whole) = usize::try_from(length).ok().filter(|length| *length <= max) else {
            return Ok(Some((RequestBody::Unread, None)));
        };
        let end = head.length + whole;
        let body = input.get(head.length..end);
        Ok(body.map(|body| (RequestBody::Whole(Bytes::copy_from_slice(body)), Some(end))))
    }

    /// Begins to wait for the body of a request. Returns false if its client may not send it.
    async fn begin_to_receive(&mut self, head: &Head<'_>, output: &mut Vec<u8>) -> Result<bool, Malformed> {
        let origin = self.origin();
        let parts = parts_of(head, Version::HTTP_11)?;
        let may_send = self.responder.may_send(&parts, &origin).await;
        if may_send && head.expects_continue {
            output.extend_from_slice(CONTINUE);
        }
        let body = if let Framing::Length(length) = head.framing { length } else { 0 };
        let length = head.length.saturating_add(usize::try_from(body).unwrap_or(usize::MAX));
        // Also for a refused client, which would otherwise be refused, and counted, once more.
        self.receiving = Some(Receiving { length, chunks: None, origin });
        Ok(may_send)
    }

    /// Appends a response, or begins to send it in pieces.
    fn write(&mut self, response: Response<Reply>, exchange: Exchange, output: &mut Output<'_>) -> NextStep {
        let Exchange { version, is_head, mut keeps_open } = exchange;
        let start = output.bytes.len();
        let (head, body) = response.into_parts();
        keeps_open &= head.headers.get(CONNECTION).is_none_or(|option| option != "close");
        let is_bodiless =
            head.status.is_informational() || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match body {
            // Trailers are for gRPC, which needs HTTP/2.
            Reply::Whole(bytes) | Reply::Message(bytes) => {
                let end = match () {
                    () if is_bodiless => BodyEnd::Bodiless,
                    () if is_head => BodyEnd::Omitted,
                    () => BodyEnd::Length(bytes.len()),
                };
                write_head((head.status, version), &head.headers, end, keeps_open, output.bytes);
                output.bytes.extend_from_slice(&bytes);
                // A connection may hold a short reply for free.
                if bytes.len() > FREE && output.account().is_err() {
                    output.bytes.truncate(start);
                    output.bytes.shrink_to(FREE);
                    keeps_open = false;
                    write_whole(refuse(), version, keeps_open, output.bytes);
                }
            }
            Reply::Pieces(body) => {
                let is_chunked = version == Version::HTTP_11;
                keeps_open &= is_chunked;
                let end = if is_chunked { BodyEnd::Chunked } else { BodyEnd::Closed };
                write_head((head.status, version), &head.headers, end, keeps_open, output.bytes);
                self.sending = Some(Sending { body: body.into(), is_chunked, keeps_open });
                return NextStep::Continue;
            }
        }
        if keeps_open { NextStep::Continue } else { NextStep::Close }
    }

    /// Appends the next piece of a response.
    async fn send(&mut self, output: &mut Output<'_>) -> NextStep {
        let Some(Sending { body, is_chunked, keeps_open }) = &mut self.sending else { return NextStep::Continue };
        let frame = tokio::select! {
            biased;
            frame = body.get_mut().frame() => frame,
            () = output.client_left() => return NextStep::Close,
        };
        match frame.map(|frame| frame.map(|frame| frame.into_data())) {
            Some(Ok(Ok(data))) if data.is_empty() => {}
            Some(Ok(Ok(data))) if *is_chunked => write_chunk(&data, output.bytes),
            Some(Ok(Ok(data))) => output.bytes.extend_from_slice(&data),
            // Trailers.
            Some(Ok(Err(_))) => {}
            // The client sees that the end is missing.
            Some(Err(_)) => return NextStep::Close,
            None => {
                if *is_chunked {
                    output.bytes.extend_from_slice(LAST_CHUNK);
                }
                let next = if *keeps_open { NextStep::Continue } else { NextStep::Close };
                self.sending = None;
                return next;
            }
        }
        NextStep::Continue
    }

    /// Answers input that is no request.
    fn refuse(&self, Malformed { status, detail }: Malformed, output: &mut Vec<u8>) -> NextStep {
        self.responder.requests().count(RequestKind::Invalid);
        let problem = Problem::new(status, detail);
        let is_long = status == StatusCode::PAYLOAD_TOO_LARGE;
        self.write_last(if is_long { problem.with_limit(Bound::Body) } else { problem }, output);
        NextStep::Close
    }

    /// Appends a problem after which the connection is closed.
    fn write_last(&self, problem: Problem, output: &mut Vec<u8>) {
        let response = problem.into_response();
        count_error(&response, &self.metrics, R::PROTOCOL, || self.hits.client());
        write_whole(response, Version::HTTP_11, false, output);
    }
}

impl<R: Responder> Session for Http1Session<R> {
    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        if self.sending.is_some() {
            return self.send(output).await;
        }
        if self.receiving.is_none() && self.responder.answer_hits(&mut self.hits, input, output.bytes).await {
            return NextStep::Continue;
        }
        if self.receiving.is_none() {
            // Clients may send empty lines between requests (RFC 9112, section 2.2).
            while input.starts_with(b"\r\n") {
                input.advance(2);
            }
        }
        if input.is_empty() {
            return NextStep::Read;
        }
        // Boxed: other requests are rarer, and each connection's future would otherwise include the size.
        Box::pin(self.answer_next(input, output)).await
    }

    fn has_room(&self) -> bool {
        self.responder.has_room()
    }

    fn is_admitted(&self) -> bool {
        true
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        self.write_last(Problem::cut(cut), output);
    }
}

/// Ends some time after the client has left.
async fn given_up(output: &Output<'_>) {
    output.client_left().await;
    tokio::time::sleep(AFTER_LEAVING).await;
}

/// Appends a response whose body is there, on a connection that continues if `keeps_open`.
pub fn write_whole(response: Response<Reply>, version: Version, keeps_open: bool, output: &mut Vec<u8>) {
    let (head, body) = response.into_parts();
    let bytes = if let Reply::Whole(bytes) = body { bytes } else { Bytes::new() };
    write_head((head.status, version), &head.headers, BodyEnd::Length(bytes.len()), keeps_open, output);
    output.extend_from_slice(&bytes);
}

/// Returns a head as the responder reads it.
fn parts_of(head: &Head<'_>, version: Version) -> Result<Parts, Malformed> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.version = version;
    parts.method = Method::from_bytes(head.method.as_bytes()).map_err(|_| malformed("the method is not valid"))?;
    parts.uri = Uri::try_from(head.target).map_err(|_| malformed("the target of the request is not valid"))?;
    parts.headers.reserve(head.headers.len());
    for httparse::Header { name, value } in head.headers {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed("the name of a header is not valid"))?;
        let value = HeaderValue::from_bytes(value).map_err(|_| malformed("the value of a header is not valid"))?;
        parts.headers.append(name, value);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
