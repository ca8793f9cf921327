//! HTTP/2 (RFC 9113), on the loop that reads and writes all connections.
//!
//! Each request becomes a stream when its head has come in, and a call when its body has. Calls are answered independently of each
//! other. Their responses are sent as far as the windows of the client admit it. A client that resets a stream drops its call.
//!
//! | module | purpose |
//! |---|---|
//! | [`frame`] | frames, as they are read and written |
//! | [`hpack`] | compression of headers |
//! | [`receive`] | frames from the client, and the heads and bodies of its requests |
//! | [`send`] | responses, as far as the windows of the client admit them |
//!
//! | what a client can make the server hold | bound |
//! |---|---|
//! | streams | [`Responder::MAX_CONCURRENT`] |
//! | a head | [`MAX_BLOCK`] bytes while it comes in, [`MAX_HEAD`] bytes when it is decoded |
//! | heads, bodies, calls and replies | the budget of all buffers, beyond [`FREE`] bytes |
//! | what has come in of a body whose client has not been admitted | [`WINDOW`] bytes |
//! | what a call has not taken of a body that is streamed to it | the same, or the maximum length of a body if that is more |
//! | input and output | the connection's buffers: nothing is read while the client does not take its replies |
//! | the time of a head, and of a body | the request timeout |
//! | the time of a reply that its windows do not admit | the write timeout, unless the client takes [`LEAST`] bytes in it |
//! | faulty requests | [`MAX_FAULTS`] |

#![expect(clippy::disallowed_methods, reason = "how long requests and replies take")]

pub mod frame;
mod hpack;
mod receive;
mod send;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response};
use tokio::time::Instant;

use self::frame::{Reason, write_goodbye, write_reset};
use self::hpack::Decoder;
use self::receive::DecodedHead;
use super::bodies::{BoxError, Reply, RequestBody, StreamedBody};
use super::{MAX_HEAD, Responder};
use crate::errors::ErrorClient;
use crate::http::response::{Problem, count_error};
use crate::net::auth::RequestOrigin;
use crate::net::connection::{Cut, NextStep, Output, Session};
use crate::net::memory::{BudgetExceeded, FREE, Share};
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::{Bound, Metrics};

/// Maximum length of a compressed head (bytes), and of the number of its frames. The longest codes have four bytes, so a longer block
/// would be a head that is too long anyway. All others are decoded, because they may change the table.
const MAX_BLOCK: usize = 4 * MAX_HEAD;
const MAX_BLOCK_FRAMES: usize = 32;
/// Number of bytes that a client may send ahead, on a stream and on a connection: the protocol's default (bytes).
const WINDOW: u32 = 65_535;
/// Maximum number of requests that the server has reset or refused because of the client's errors.
const MAX_FAULTS: u32 = 10_000;
/// Length of the output after which it is written before more is appended, so that a connection's free buffer suffices (bytes).
const MUCH_OUTPUT: usize = FREE - 2 * 1024;
/// Size of a reply that the memory of a call includes (bytes). Without it, there might be no memory for the reply of a call that has
/// taken credit.
const SHORT: usize = 1024;
/// Minimum that a client must take of waiting replies in each write timeout (bytes).
const LEAST: usize = 1024;
/// How long the rest of a body is awaited that was answered early. If the stream is reset, some clients, such as curl, drop the
/// answer. A slow client gets the reset anyway, because it could go on sending for the life of the stream.
const SETTLING: Duration = Duration::from_millis(200);

static FLOODED: LogThrottle = LogThrottle::new();

/// One client of HTTP/2.
pub struct Http2Session<R> {
    responder: Arc<R>,
    peer: SocketAddr,
    certificate: Option<Arc<str>>,
    metrics: Arc<Metrics>,
    decoder: Decoder,
    /// The latest short head whose block did not change the decoder's table. Most clients repeat it, and send the same block.
    known_head: Option<(Vec<u8>, DecodedHead)>,
    /// The head that comes in in several frames.
    block: Option<Block>,
    /// The streams, with ascending numbers.
    #[expect(clippy::vec_box, reason = "there may be a thousand, and removing one moves all after it")]
    streams: Vec<Box<Stream>>,
    /// The highest number of a stream.
    last: u32,
    calls: FuturesUnordered<Abortable<BoxFuture<'static, Event>>>,
    /// Events of calls that have not been handled.
    events: VecDeque<Event>,
    /// Streams with bytes to send, in the order of their turns.
    sendable: VecDeque<u32>,
    /// Whether more may be sent than at the last attempt.
    may_send: bool,
    /// Whether the next head must say that it uses no table.
    must_drop_table: bool,
    /// How many bytes the client lets the server send: on the connection, and at first on a stream.
    window: i64,
    initial_window: i64,
    /// How many bytes the client may send.
    receive_window: u32,
    faults: u32,
    has_greeted: bool,
    has_settings: bool,
    is_closing: bool,
    /// Whether the client has said that it begins no more streams.
    is_left: bool,
    /// Memory of all streams and of an incomplete head (bytes), and the share of the budget for what exceeds [`FREE`].
    used: usize,
    share: Share,
    /// Replies that the client's windows do not admit.
    stall: Option<Stall>,
    /// The time of the next timeout.
    due: Option<Instant>,
}

/// A head that is incomplete.
struct Block {
    stream: u32,
    is_end: bool,
    bytes: Vec<u8>,
    frames: usize,
    due: Instant,
}

struct Stall {
    /// Time when the client had last taken enough, or when replies began to wait.
    since: Instant,
    /// Bytes that were sent since.
    sent: i64,
}

/// A request and its response.
struct Stream {
    id: u32,
    state: State,
    /// The part of the body that has come in.
    body: BytesMut,
    /// Length of what has come in (bytes).
    received: usize,
    /// Whether the client has sent all of the request.
    has_ended: bool,
    /// How many bytes the client may send.
    receive_window: u32,
    /// How many bytes the client lets the server send, beyond the initial window.
    credit: i64,
    /// The part of the response that has not been sent, and what follows it.
    unsent: Bytes,
    rest: Rest,
    /// Memory of the head, the call, and the body that the call has; and of everything (bytes).
    base: usize,
    memory: usize,
    /// When the request, or the rest of its body, is late.
    due: Option<Instant>,
    call: Option<CallHandle>,
}

enum State {
    /// The body comes in. The flag says that the client has been admitted.
    Receiving(Box<(Arc<Parts>, RequestOrigin)>, bool),
    /// The guard is asked whether the client may send more.
    Admitting,
    /// The body comes in while the request is answered.
    Streaming(StreamedBody),
    /// The request is answered, or its response is sent.
    Answering,
    /// The response is sent. The rest of the request is dropped.
    Settling,
}

enum Rest {
    /// Nothing. The response ends after the unsent bytes.
    End,
    /// The trailers of a gRPC call that has succeeded.
    Success,
    Trailers(HeaderMap),
    Pieces(Pieces),
    /// It is not known yet.
    Awaited,
}

impl Stream {
    /// Ends the body that is streamed to the call.
    fn end_body(&mut self) {
        if let State::Streaming(body) = &self.state {
            body.end();
            self.state = State::Answering;
        }
    }

    /// Returns whether the body has each length that its head says.
    fn has_declared_length(&self) -> bool {
        let State::Receiving(request, _) = &self.state else { return true };
        request.0.headers.get_all(CONTENT_LENGTH).iter().all(|length| {
            let is_number = length.as_bytes().iter().all(u8::is_ascii_digit);
            is_number && length.to_str().is_ok_and(|length| length.parse() == Ok(self.received))
        })
    }

    /// Returns the length of what this holds of the body (bytes).
    fn held(&self) -> usize {
        if let State::Streaming(body) = &self.state { body.len() } else { self.body.len() }
    }
}

/// A call that is dropped with this.
struct CallHandle(AbortHandle);

impl Drop for CallHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The result of a call, or of a part of it.
enum Event {
    /// Whether the client may send the rest of its body.
    Admitted(u32, Box<(Arc<Parts>, RequestOrigin)>, bool),
    Response(u32, Response<Reply>),
    /// The next piece of a response, and its source.
    Piece(u32, Option<Piece>, Pieces),
}

type Pieces = UnsyncBoxBody<Bytes, BoxError>;
type Piece = Result<hyper::body::Frame<Bytes>, BoxError>;

impl<R: Responder> Http2Session<R> {
    /// Creates the session of a client.
    pub fn new(responder: Arc<R>, peer: SocketAddr, certificate: Option<Arc<str>>, metrics: Arc<Metrics>) -> Self {
        let share = responder.bounds().memory.share();
        Self {
            responder,
            peer,
            certificate,
            metrics,
            decoder: Decoder::default(),
            known_head: None,
            block: None,
            streams: Vec::new(),
            last: 0,
            calls: FuturesUnordered::new(),
            events: VecDeque::new(),
            sendable: VecDeque::new(),
            may_send: false,
            must_drop_table: false,
            window: WINDOW.into(),
            initial_window: WINDOW.into(),
            receive_window: WINDOW,
            faults: 0,
            has_greeted: false,
            has_settings: false,
            is_closing: false,
            is_left: false,
            used: 0,
            share,
            stall: None,
            due: None,
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    fn find(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.place(id)?;
        self.streams.get_mut(place).map(|stream| &mut **stream)
    }

    fn remove(&mut self, id: u32) {
        if let Some(place) = self.place(id) {
            self.used -= self.streams.remove(place).memory;
        }
        // Shrinking always succeeds.
        let _ = self.share.resize(self.used.saturating_sub(FREE));
    }

    /// Takes memory for what a stream holds now, or gives it back.
    fn account(&mut self, id: u32) -> Result<(), BudgetExceeded> {
        let bounds = self.responder.bounds();
        let Some(stream) = self.place(id).and_then(|place| self.streams.get_mut(place)) else { return Ok(()) };
        let memory = stream.base + bounds.cost(stream.held()) + stream.unsent.len().saturating_sub(SHORT);
        let used = self.used - stream.memory + memory;
        self.share.resize(used.saturating_sub(FREE))?;
        (self.used, stream.memory) = (used, memory);
        Ok(())
    }

    fn wake_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Begins to answer a request that is being received.
    fn call(&mut self, id: u32, next: State, body: RequestBody) {
        let (responder, metrics) = (Arc::clone(&self.responder), Arc::clone(&self.metrics));
        let Some(stream) = self.find(id) else { return };
        let is_streamed = matches!(next, State::Streaming(_));
        let State::Receiving(request, _) = std::mem::replace(&mut stream.state, next) else { return };
        if !is_streamed {
            stream.due = None;
        }
        let call = async move {
            let (head, origin) = &*request;
            let response = responder.answer(head, body, origin).await;
            count_error(&response, &metrics, R::PROTOCOL, || origin.error_client());
            Event::Response(id, response)
        };
        self.spawn(id, Box::pin(call));
    }

    /// Begins to answer a request whose body is complete.
    fn call_with_body(&mut self, id: u32) {
        let bounds = self.responder.bounds();
        let Some(stream) = self.place(id).and_then(|place| self.streams.get_mut(place)) else { return };
        stream.base += bounds.cost(stream.body.len());
        let body = RequestBody::Whole(std::mem::take(&mut stream.body).freeze());
        self.call(id, State::Answering, body);
    }

    fn spawn(&mut self, id: u32, call: BoxFuture<'static, Event>) {
        let Some(stream) = self.find(id) else { return };
        let (handle, registration) = AbortHandle::new_pair();
        stream.call = Some(CallHandle(handle));
        self.calls.push(Abortable::new(call, registration));
    }

    /// Answers a request without a call.
    fn refuse(&mut self, id: u32, response: Response<Reply>) {
        count_error(&response, &self.metrics, R::PROTOCOL, || ErrorClient { peer: Some(self.peer), user: None });
        if let Some(stream) = self.find(id) {
            (stream.state, stream.call) = (State::Answering, None);
            self.events.push_back(Event::Response(id, response));
        }
    }

    fn handle_events(&mut self, output: &mut Vec<u8>) {
        while output.len() < MUCH_OUTPUT
            && let Some(event) = self.events.pop_front()
        {
            match event {
                Event::Response(id, response) => self.respond(id, response, output),
                Event::Piece(id, piece, body) => self.take_piece(id, piece, body, output),
                Event::Admitted(id, request, may_send) => {
                    let max_body = self.responder.max_body();
                    let Some(stream) = self.find(id) else { continue };
                    stream.state = State::Receiving(request, true);
                    match stream.has_ended {
                        _ if !may_send || stream.received > max_body => {
                            self.call(id, State::Answering, RequestBody::Unread);
                        }
                        true if !stream.has_declared_length() => {
                            // Another fault ends the connection, if there are too many.
                            let _ = self.reset(id, Reason::ProtocolError, output);
                        }
                        true => self.call_with_body(id),
                        false => self.ask_for_more(id, output),
                    }
                }
            }
        }
    }

    /// Ends what is late.
    fn expire(&mut self, output: &mut Vec<u8>) -> Result<(), Reason> {
        let Some(due) = self.due else { return Ok(()) };
        let now = Instant::now();
        if now < due {
            return Ok(());
        }
        self.due = None;
        let timeouts = self.responder.bounds().timeouts;
        if let Some(block) = &self.block {
            if block.due <= now {
                self.metrics.limits.reached.count(Bound::RequestTimeout);
                return Err(Reason::EnhanceYourCalm);
            }
            self.wake_at(block.due);
        }
        if let Some(stall) = &mut self.stall {
            if stall.since + timeouts.write <= now {
                if stall.sent < LEAST as i64 {
                    self.metrics.limits.reached.count(Bound::WriteTimeout);
                    return Err(Reason::NoError);
                }
                *stall = Stall { since: now, sent: 0 };
            }
            let again = stall.since + timeouts.write;
            self.wake_at(again);
        }
        let dues: Vec<_> = self.streams.iter().filter_map(|stream| Some((stream.id, stream.due?))).collect();
        for (id, due) in dues {
            if due > now {
                self.wake_at(due);
                continue;
            }
            let Some(stream) = self.find(id) else { continue };
            stream.due = None;
            match stream.state {
                State::Receiving(..) | State::Admitting => {
                    let problem = Problem::cut(Cut::TooSlow(timeouts.request)).with_limit(Bound::RequestTimeout);
                    self.refuse(id, problem.into_response());
                }
                State::Streaming(_) => stream.end_body(),
                State::Answering => {}
                State::Settling => {
                    write_reset(id, Reason::NoError, output);
                    self.remove(id);
                }
            }
        }
        Ok(())
    }

    fn close(&self, reason: Reason, output: &mut Vec<u8>) -> NextStep {
        let peer = self.peer;
        if reason == Reason::EnhanceYourCalm {
            FLOODED.say(|more| {
                tracing::warn!(%peer, more, "closed an HTTP/2 connection with too many faulty requests, or a head that was too long or slow");
            });
        } else {
            tracing::debug!(%peer, ?reason, "an HTTP connection ended early");
        }
        write_goodbye(self.last, reason, output);
        NextStep::Close
    }
}

impl<R: Responder> Session for Http2Session<R> {
    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        if let Err(reason) = self.read(input, output.bytes).and_then(|()| self.expire(output.bytes)) {
            return self.close(reason, output.bytes);
        }
        // Begins the new calls.
        poll_fn(|context| Poll::Ready(self.poll_answers(context).is_ready())).await;
        self.handle_events(output.bytes);
        if self.send(output.bytes) || !self.events.is_empty() {
            return NextStep::Continue;
        }
        if self.is_left && self.streams.is_empty() {
            return NextStep::Close;
        }
        self.note_stall();
        NextStep::Read
    }

    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(Some(event)) = self.calls.poll_next_unpin(context) {
            self.events.extend(event);
        }
        if self.events.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn end(&mut self, output: &mut Vec<u8>) -> bool {
        if !self.is_closing {
            self.is_closing = true;
            write_goodbye(self.last, Reason::NoError, output);
        }
        self.streams.retain(|stream| match stream.state {
            State::Admitting if stream.has_ended => true,
            State::Receiving(..) | State::Admitting => {
                write_reset(stream.id, Reason::RefusedStream, output);
                false
            }
            State::Streaming(_) | State::Answering => true,
            State::Settling => false,
        });
        !self.streams.is_empty()
    }

    fn has_room(&self) -> bool {
        self.responder.has_room()
    }

    fn is_admitted(&self) -> bool {
        true
    }

    fn cut(&mut self, _: Cut, output: &mut Vec<u8>) {
        write_goodbye(self.last, Reason::EnhanceYourCalm, output);
    }
}

#[cfg(test)]
mod tests;
