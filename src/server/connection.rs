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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
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
}

/// Bounds on a connection's time.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// How long a connection may send nothing; `None`: for ever.
    pub idle: Option<Duration>,
    /// How long the client may take nothing of what was answered.
    pub write: Duration,
}

/// Serves the connection until the client ends it, the session closes it, a timeout passes or `closing` is cancelled;
/// then answers what had been read, and ends in an orderly way.
pub async fn serve(mut stream: Stream, mut session: impl Session, timeouts: Timeouts, closing: CancellationToken) {
    let mut input = BytesMut::new();
    let mut output = Vec::new();
    // Made once: a new one for every read would register itself with the token, under a lock that all connections share.
    let mut closing = pin!(closing.cancelled());
    loop {
        let more = read_more(&mut stream, &mut input, timeouts, closing.as_mut()).await;
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
        if !matches!(more, Ok(true)) {
            return close(stream).await;
        }
        release(&mut input);
    }
}

/// Reads at least a byte; false when the connection has come to its end (with what was received before in `input`).
async fn read_more(
    stream: &mut Stream,
    input: &mut BytesMut,
    timeouts: Timeouts,
    closing: Pin<&mut WaitForCancellationFuture<'_>>,
) -> io::Result<bool> {
    input.reserve(READ_SIZE);
    tokio::select! {
        biased;
        () = closing => Ok(false),
        read = stream.read_buf(input) => Ok(read? > 0),
        () = idle(timeouts.idle) => Ok(false),
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
    stream.flush().await?;
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

/// Sends a FIN behind the last reply, and waits a while for the client's.
async fn close(mut stream: Stream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut unread = [0; 4096];
    let _ = timeout(LINGER, async { while matches!(stream.read(&mut unread).await, Ok(1..)) {} }).await;
}
