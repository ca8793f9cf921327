//! One connection: read → answer all that came in → write once, until either side ends it.
//!
//! Here are the socket's buffers, timeouts and orderly ends. What the bytes mean is the [`Session`]'s business.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::poll;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::stream::Stream;

/// Room made for each read: a pipelining client's burst.
const READ_SIZE: usize = 16 * 1024;
/// A buffer that grew past this for one large burst is given back afterwards.
const KEPT_CAPACITY: usize = 4 * READ_SIZE;
/// How long to wait for the client's end after the server closed its own: an unread byte at that time would make the
/// kernel reset the connection and with it the last reply.
const LINGER: Duration = Duration::from_secs(1);

/// What a connection does after a session has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Write, then wait for more input.
    Read,
    /// Write, then answer on: complete requests may be left in the input.
    AnswerOn,
    /// Write, then close.
    Close,
}

/// A protocol's side of a connection.
pub trait Session: Send {
    /// Answers complete requests at the front of `input`, in order: removes them there and appends their replies to
    /// `output`. It may stop early to bound its memory, and says so with [`Next::AnswerOn`].
    fn answer(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> impl Future<Output = Next> + Send;

    /// Whether the client has given the password, or needs none; until then its time is short.
    fn is_admitted(&self) -> bool;
}

/// Bounds on a connection's time.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// How long a connection may send nothing; `None`: for ever.
    pub idle: Option<Duration>,
    /// How long the client may take nothing of what was answered.
    pub write: Duration,
    /// How long a client may take to give the password.
    pub auth: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
}

/// Serves the connection until the client ends it, the session closes it, a timeout passes or `closing` is cancelled;
/// then answers what had been read, and ends in an orderly way.
pub async fn serve(mut stream: Stream, mut session: impl Session, timeouts: Timeouts, closing: CancellationToken) {
    let mut input = BytesMut::new();
    let mut output = Vec::new();
    let auth_by = Instant::now() + timeouts.auth;
    // Made once: a new one for every read would register itself with the token, under a lock that all connections share.
    let mut closing = pin!(closing.cancelled());
    loop {
        let patience = if session.is_admitted() { timeouts.idle } else { Some(until(auth_by, timeouts.idle)) };
        let more = read_more(&mut stream, &mut input, patience, closing.as_mut()).await;
        loop {
            let next = session.answer(&mut input, &mut output).await;
            if write_all(&mut stream, &mut output, timeouts.write).await.is_err() {
                return;
            }
            match next {
                Next::AnswerOn => continue,
                Next::Read => break,
                Next::Close => return close(stream).await,
            }
        }
        // A stranger who never stops sending is not idle.
        let is_overdue = !session.is_admitted() && Instant::now() >= auth_by;
        if !matches!(more, Ok(true)) || is_overdue {
            return close(stream).await;
        }
        release(&mut input);
    }
}

/// The time until `deadline`, or `limit` where that is shorter.
fn until(deadline: Instant, limit: Option<Duration>) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    limit.map_or(left, |limit| limit.min(left))
}

/// Reads at least a byte; false when the connection has come to its end (with what was received before in `input`).
async fn read_more(
    stream: &mut Stream,
    input: &mut BytesMut,
    patience: Option<Duration>,
    closing: Pin<&mut WaitForCancellationFuture<'_>>,
) -> io::Result<bool> {
    input.reserve(READ_SIZE);
    tokio::select! {
        biased;
        () = closing => Ok(false),
        read = stream.read_buf(input) => Ok(read? > 0),
        () = idle(patience) => Ok(false),
    }
}

async fn idle(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

async fn write_all(stream: &mut Stream, output: &mut Vec<u8>, limit: Duration) -> io::Result<()> {
    let mut rest = output.as_slice();
    while !rest.is_empty() {
        // Nearly always the socket has room, and no timer is needed.
        let written = match poll!(pin!(stream.write(rest))) {
            Poll::Ready(written) => written?,
            // The limit is on progress, not on the whole: a slow client that reads is served.
            Poll::Pending => timeout(limit, stream.write(rest)).await.map_err(|_| io::ErrorKind::TimedOut)??,
        };
        rest = rest.get(written..).unwrap_or_default();
    }
    // Over TLS some of it may still be here.
    match poll!(pin!(stream.flush())) {
        Poll::Ready(flushed) => flushed?,
        Poll::Pending => timeout(limit, stream.flush()).await.map_err(|_| io::ErrorKind::TimedOut)??,
    }
    if output.capacity() > KEPT_CAPACITY {
        *output = Vec::new();
    }
    output.clear();
    Ok(())
}

fn release(input: &mut BytesMut) {
    if input.is_empty() && input.capacity() > KEPT_CAPACITY {
        *input = BytesMut::new();
    }
}

/// Sends a FIN behind the last reply (over TLS a close_notify, too), and waits a while for the client's.
pub(super) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let end = async {
        let mut unread = [0; 4096];
        if stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut unread).await, Ok(1..)) {}
        }
    };
    let _ = timeout(LINGER, end).await;
}
