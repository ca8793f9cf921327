//! One connection: read → answer everything received → write once, until either side closes it.
//!
//! This module owns the socket's buffers, its timeouts and its orderly close. The [`Session`] interprets the bytes.

#![expect(clippy::disallowed_methods, reason = "how long a client may be silent or take nothing")]

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::poll;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::memory::{self, BudgetExceeded, Share, counted, pooled};
use super::stream::{self, Stream, count_timeout};
use divvy_telemetry::metrics::{Bound, Metrics};

/// Capacity reserved for each read, enough for a burst of a pipelining client (bytes).
const READ_SIZE: usize = 16 * 1024;
/// Capacity reserved for each read of the rest of a request, so that a buffer with a frame of HTTP/2 still counts as free (bytes).
const REST_SIZE: usize = READ_SIZE / 2;
/// A buffer that has grown beyond this capacity is freed after use (bytes).
const KEPT_CAPACITY: usize = 2 * READ_SIZE;
/// How long the server waits for the client to close its side, after closing its own. If a byte is unread when the
/// socket is dropped, the kernel resets the connection, and the last reply is lost.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of reads after the server began to close. It is enough for all input that a kernel buffers for a
/// connection, but finite even if a client never pauses.
const LAST_READS: usize = 1024;

/// Amount of input after which a connection yields to others (bytes). Otherwise, a client that never pauses would
/// occupy the thread as long as its socket has input.
const TURN: usize = READ_SIZE / 2;

pooled!(BytesMut, BytesMut::capacity);
pooled!(Vec<u8>, Vec::capacity);

/// Timeout for a request to arrive.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a client to read something of its waiting replies.
pub const DEFAULT_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds on a connection's time.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// How long a connection may send nothing; `None` if it may be idle forever.
    pub idle: Option<Duration>,
    /// How long a request may take to arrive, from its first byte to its last.
    pub request: Duration,
    /// How long the client may read nothing of its waiting replies.
    pub write: Duration,
    /// How long a client may take to give the password.
    pub auth: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
}

impl Default for Timeouts {
    /// Clients that log in or shake hands need a few round trips, also on a slow network.
    fn default() -> Self {
        let (auth, handshake) = (Duration::from_secs(10), Duration::from_secs(10));
        Self { idle: None, request: DEFAULT_REQUEST_TIMEOUT, write: DEFAULT_WRITE_TIMEOUT, auth, handshake }
    }
}

/// A connection's client, and its handles of state that all connections share.
pub struct ConnectionContext {
    /// The client's address.
    pub peer: SocketAddr,
    /// The server's address of the connection, if the system reports it.
    pub local: Option<SocketAddr>,
    /// The name in the client's certificate.
    pub certificate: Option<Arc<str>>,
    /// Cancelled when the server is closing. The connection then answers the requests that have arrived, and ends.
    pub closing: CancellationToken,
    /// The connection's share of the buffer memory.
    pub memory: Share,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
}

/// Serves the connection until the client or the session ends it, a timeout expires, or the server is closing. Then
/// answers the requests that have arrived, and closes the connection in an orderly way.
///
/// `input` is what has been read of the connection before.
pub async fn serve(
    stream: Stream,
    input: BytesMut,
    mut session: impl Session,
    timeouts: Timeouts,
    context: ConnectionContext,
) {
    let ConnectionContext { closing, memory, metrics, .. } = context;
    let mut connection = Connection {
        stream,
        input,
        output: Vec::new(),
        admitted_by: None,
        unfinished: None,
        was_unreadable: false,
        worked: 0,
        is_turn_over: false,
        is_closing: false,
        timeouts,
        memory,
        metrics,
    };
    // Created once, because a new future for each read would register with the token, under a lock that all connections
    // share.
    let mut closing = pin!(closing.cancelled());
    // After an error the client is gone or reads nothing, so an orderly close is impossible.
    match connection.answer_until_end(&mut session, closing.as_mut()).await {
        Ok(()) => close(connection.stream).await,
        Err(error) => count_timeout(&error, &connection.metrics),
    }
}

/// A protocol's side of a connection.
pub trait Session: Send {
    /// Answers the complete requests at the front of `input`, in order: removes them and appends their replies to `output`.
    /// To bound memory and time, it may stop early with [`NextStep::Continue`].
    fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> impl Future<Output = NextStep> + Send;

    /// Is ready when answers to earlier requests have been made, and [`answer`](Session::answer) has something to append without new
    /// input. Most protocols answer each request before they read the next one.
    fn poll_answers(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Returns when [`answer`](Session::answer) must be called even if nothing has come in.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Ends the requests that are incomplete, because the server is closing. Returns whether answers to others are still to come.
    fn end(&mut self, _output: &mut Vec<u8>) -> bool {
        false
    }

    /// Returns whether the session can answer requests now. Otherwise, other connections have a turn first.
    fn has_room(&self) -> bool;

    /// Returns whether the client has given the password or needs none. Until then, a shorter timeout applies.
    fn is_admitted(&self) -> bool;

    /// Appends the error for an unfinished request, before the connection is closed.
    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>);
}

/// The connection's next step after its session has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Write, then wait for more input.
    Read,
    /// Write, then go on: the input may contain complete requests.
    Continue,
    /// Write, then close.
    Close,
}

/// The reason why a connection is closed in the middle of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("the request was not finished within {} seconds", .0.as_secs())]
    TooSlow(Duration),
    #[error("the server has no memory left for requests of this size: try again later")]
    NoMemory,
}

/// The replies of a session.
pub struct Output<'a> {
    pub bytes: &'a mut Vec<u8>,
    input_capacity: usize,
    memory: &'a mut Share,
    stream: &'a Stream,
}

impl Output<'_> {
    /// Counts the connection's buffers toward the budget. Call it before waiting, or before appending more, while they
    /// contain much.
    ///
    /// # Errors
    /// The budget does not suffice.
    pub fn account(&mut self) -> Result<(), BudgetExceeded> {
        self.memory.resize(counted(self.input_capacity) + counted(self.bytes.capacity()))
    }

    /// Ends when the client has closed the connection, or its sending side.
    pub async fn client_left(&self) {
        stream::left(self.stream).await;
    }
}

struct Connection {
    stream: Stream,
    /// Input buffer, borrowed from the pool while it is not empty.
    input: BytesMut,
    /// Output buffer, borrowed from the pool while it is not empty.
    output: Vec<u8>,
    /// Deadline for the client to log in; `None` while it is admitted.
    admitted_by: Option<Instant>,
    /// Deadline for the unfinished request in `input`.
    unfinished: Option<Instant>,
    /// Whether the last poll found nothing to read.
    was_unreadable: bool,
    /// Bytes read since the connection last yielded.
    worked: usize,
    /// Whether the connection has just yielded.
    is_turn_over: bool,
    /// Whether the server is closing, and only answers to complete requests are awaited.
    is_closing: bool,
    timeouts: Timeouts,
    memory: Share,
    metrics: Arc<Metrics>,
}

/// Result of a wait for input.
enum Received {
    Bytes,
    /// Nothing, but the session has something to do.
    Nothing,
    /// The client sends no more.
    End,
    /// The client has been silent, or unauthenticated, for too long.
    Silence(Bound),
    /// The server is closing.
    Closing,
    Cut(Cut),
}

impl Connection {
    async fn answer_until_end(
        &mut self,
        session: &mut impl Session,
        mut closing: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> io::Result<()> {
        if !self.input.is_empty() && !self.answer(session).await? {
            return Ok(());
        }
        loop {
            if self.is_closing {
                let has_more = session.end(&mut self.output);
                self.write_all().await?;
                if !has_more {
                    return Ok(());
                }
            }
            self.note_admission(session);
            match self.receive(session, closing.as_mut()).await? {
                Received::Bytes | Received::Nothing => {
                    if !self.answer(session).await? {
                        return Ok(());
                    }
                }
                Received::End => return Ok(()),
                Received::Silence(limit) => {
                    self.metrics.limits.reached.count(limit);
                    return Ok(());
                }
                Received::Closing => {
                    self.is_closing = true;
                    if !self.answer_remaining(session).await? {
                        return Ok(());
                    }
                }
                Received::Cut(cut) => {
                    // The budget for buffers counts its own.
                    if matches!(cut, Cut::TooSlow(_)) {
                        self.metrics.limits.reached.count(Bound::RequestTimeout);
                    }
                    session.cut(cut, &mut self.output);
                    return self.write_all().await;
                }
            }
        }
    }

    /// Begins the client's time to log in, or ends it. Returns whether it is over.
    fn note_admission(&mut self, session: &impl Session) -> bool {
        if session.is_admitted() {
            self.admitted_by = None;
            return false;
        }
        let now = Instant::now();
        now >= *self.admitted_by.get_or_insert_with(|| now + self.timeouts.auth)
    }

    async fn receive(
        &mut self,
        session: &mut impl Session,
        mut closing: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> io::Result<Received> {
        if !self.input.is_empty() {
            self.input.reserve(REST_SIZE);
        }
        if self.account().is_err() {
            return Ok(Received::Cut(Cut::NoMemory));
        }
        let deadline = self.deadline(session);
        let received = poll_fn(|context| self.poll_receive(session, closing.as_mut(), context));
        let Some((at, ended)) = deadline else { return received.await };
        tokio::select! {
            biased;
            received = received => received,
            () = sleep_until(at) => Ok(ended),
        }
    }

    /// Returns when the client will have been silent, slow with a request, or unauthenticated for too long, or when the session is due.
    fn deadline(&self, session: &impl Session) -> Option<(Instant, Received)> {
        let bounds = [
            session.due().map(|at| (at, Received::Nothing)),
            self.timeouts.idle.map(|limit| (Instant::now() + limit, Received::Silence(Bound::IdleTimeout))),
            self.unfinished.map(|at| (at, Received::Cut(Cut::TooSlow(self.timeouts.request)))),
            self.admitted_by.map(|at| (at, Received::Silence(Bound::AuthTimeout))),
        ];
        bounds.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Reads, or finds that the server is closing. Input that has arrived is answered first, but a client that never
    /// pauses is stopped when its turn ends.
    fn poll_receive(
        &mut self,
        session: &mut impl Session,
        mut closing: Pin<&mut WaitForCancellationFuture<'_>>,
        context: &mut Context,
    ) -> Poll<io::Result<Received>> {
        if std::mem::take(&mut self.is_turn_over) && !self.is_closing && closing.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(Received::Closing));
        }
        match self.poll_read(session, context) {
            Poll::Ready(read) => Poll::Ready(read.map(|bytes| if bytes > 0 { Received::Bytes } else { Received::End })),
            Poll::Pending if session.poll_answers(context).is_ready() => Poll::Ready(Ok(Received::Nothing)),
            Poll::Pending if self.is_closing => Poll::Pending,
            Poll::Pending => closing.poll(context).map(|()| Ok(Received::Closing)),
        }
    }

    /// Reads into a buffer, which is borrowed only while there is something to read.
    fn poll_read(&mut self, session: &mut impl Session, context: &mut Context) -> Poll<io::Result<usize>> {
        if self.input.capacity() == 0 {
            // After an answer there is usually no new input yet, and after a wake-up there is some.
            if !self.was_unreadable && stream::poll_readable(&self.stream, context).is_pending() {
                self.was_unreadable = true;
                self.worked = 0;
                return Poll::Pending;
            }
            if !session.has_room() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.input = memory::take();
        }
        self.was_unreadable = false;
        self.input.reserve(if self.input.is_empty() { READ_SIZE } else { REST_SIZE });
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(context);
        match &read {
            Poll::Pending => {
                self.worked = 0;
                self.give_back_input();
            }
            Poll::Ready(bytes) => self.worked += bytes.as_ref().copied().unwrap_or(0),
        }
        read
    }

    fn give_back_input(&mut self) {
        if self.input.is_empty() {
            let mut input = std::mem::take(&mut self.input);
            // Reclaims the space of consumed input.
            input.reserve(READ_SIZE);
            if input.capacity() <= KEPT_CAPACITY {
                memory::give(input);
            }
        }
    }

    /// Answers every complete request in the input. Returns whether the connection goes on.
    async fn answer(&mut self, session: &mut impl Session) -> io::Result<bool> {
        let received = self.input.len();
        loop {
            if self.output.capacity() == 0 {
                self.output = memory::take();
            }
            let (input_capacity, memory) = (self.input.capacity(), &mut self.memory);
            let mut output = Output { bytes: &mut self.output, input_capacity, memory, stream: &self.stream };
            let begun = self.admitted_by.map(|_| Instant::now());
            let next = session.answer(&mut self.input, &mut output).await;
            // The client does not pay for the time that divvy takes to verify a password.
            if let (Some(deadline), Some(begun)) = (&mut self.admitted_by, begun) {
                *deadline += begun.elapsed();
            }
            self.write_all().await?;
            if next == NextStep::Continue || self.worked >= TURN {
                self.worked = 0;
                self.is_turn_over = true;
                tokio::task::yield_now().await;
            }
            // A client that never stops sending is not idle.
            if self.admitted_by.is_some() && self.note_admission(session) {
                if next != NextStep::Close {
                    self.metrics.limits.reached.count(Bound::AuthTimeout);
                }
                return Ok(false);
            }
            match next {
                NextStep::Continue => continue,
                NextStep::Read => break,
                NextStep::Close => return Ok(false),
            }
        }
        if self.input.is_empty() {
            self.unfinished = None;
            self.give_back_input();
        } else if self.unfinished.is_none() || self.input.len() < received {
            // The rest is the beginning of another request.
            self.unfinished = Some(Instant::now() + self.timeouts.request);
        }
        if self.input.len() <= READ_SIZE && self.input.capacity() > KEPT_CAPACITY {
            self.input = BytesMut::from(self.input.as_ref());
        }
        Ok(true)
    }

    /// Answers all requests that have arrived, without waiting for more. Returns whether the connection goes on.
    async fn answer_remaining(&mut self, session: &mut impl Session) -> io::Result<bool> {
        // A read sees new input only after the poller has run.
        tokio::task::yield_now().await;
        for _ in 0..LAST_READS {
            while !session.has_room() {
                tokio::task::yield_now().await;
            }
            // Unconstrained: when the scheduler makes a task yield, that must not look like an empty socket.
            let read = poll!(unconstrained(poll_fn(|context| self.poll_read(session, context))));
            let has_more = matches!(read, Poll::Ready(Ok(1..))) && self.account().is_ok();
            if !has_more {
                break;
            }
            if !self.answer(session).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the output and empties it.
    async fn write_all(&mut self) -> io::Result<()> {
        let mut written = 0;
        // Fast path: the socket takes all of it.
        let at_once = poll!(pin!(write_out(&mut self.stream, &self.output, &mut written)));
        match at_once {
            Poll::Ready(done) => done?,
            Poll::Pending => {
                self.account().map_err(|BudgetExceeded| io::ErrorKind::OutOfMemory)?;
                write_out(&mut self.stream, &self.output, &mut written).await?;
            }
        }
        let mut output = std::mem::take(&mut self.output);
        if output.capacity() <= KEPT_CAPACITY {
            output.clear();
            memory::give(output);
        }
        Ok(())
    }

    /// Counts the buffers toward the budget.
    fn account(&mut self) -> Result<(), BudgetExceeded> {
        self.memory.resize(counted(self.input.capacity()) + counted(self.output.capacity()))
    }
}

/// Writes `output` from `written` on, and keeps `written` up to date, so that the future may be dropped and started again.
async fn write_out(stream: &mut Stream, output: &[u8], written: &mut usize) -> io::Result<()> {
    while let Some(rest) = output.get(*written..).filter(|rest| !rest.is_empty()) {
        *written += stream.write(rest).await?;
    }
    // TLS may still buffer a part.
    stream.flush().await
}

/// Sends a FIN after the last reply, with TLS also a close_notify, and waits a while for the client's FIN.
pub async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let end = async {
        let mut unread = [0; 4096];
        if stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut unread).await, Ok(1..)) {}
        }
    };
    let _ = timeout(LINGER, end).await;
}

#[cfg(test)]
mod tests;
