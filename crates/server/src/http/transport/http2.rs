//! HTTP/2 connections. A library parses them. This module bounds a connection's time and memory, and how much input is read in one
//! run. Its stream fails if the client is silent for too long.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, poll};
use hyper::Request;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::Responder;
use super::request_body::{Account, BoundedBody, RequestBody, builder, discard, is_flood};
use super::response_body::{AccountedBody, UnsentReplies, refuse};
use crate::http::response::{Problem, count_error};
use crate::net::auth::RequestOrigin;
use crate::net::connection::ConnectionContext;
use crate::net::memory::BudgetExceeded;
use crate::net::stream::{Stream, count_timeout};
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::{Bound, Metrics};

/// Maximum number of runs of a connection's task after the server began to close: enough to read all that a kernel buffers for
/// a connection, but finite if a client never pauses.
const LAST_RUNS: usize = 4_096;

static FLOODED: LogThrottle = LogThrottle::new();

/// Serves one connection. When the server is closing, answers the requests that have come in, and ends.
///
/// `first` is what has been read of the connection before.
pub async fn serve<R: Responder>(stream: Stream, first: BytesMut, responder: Arc<R>, context: ConnectionContext) {
    let ConnectionContext { peer, certificate, closing, memory, metrics, .. } = context;
    let timeouts = responder.bounds().timeouts;
    let run_input = Arc::new(RunInput(AtomicUsize::new(PER_RUN)));
    let (input, counts) = (Arc::clone(&run_input), Arc::clone(&metrics));
    let stream =
        TimedStream { stream, first, idle: timeouts.idle, input, metrics: Arc::clone(&metrics), silence: None };
    let unsent = UnsentReplies::new(memory);
    let replies = Arc::clone(&unsent);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        // This comes before any work or allocation for the call.
        let mut call = match replies.begin() {
            Ok(call) => call,
            Err(BudgetExceeded) => {
                // Discarding takes little memory. An answer before the end of the body would reset the stream, and many resets end the connection.
                return Either::Left(Box::pin(async {
                    discard(request.into_body()).await;
                    Ok::<_, Infallible>(refuse(AccountedBody::default()))
                }));
            }
        };
        let (responder, counts) = (Arc::clone(&responder), Arc::clone(&counts));
        let origin = RequestOrigin::new(peer, certificate.clone());
        // The future is boxed because the library moves it several times per request, and it is kilobytes large.
        Either::Right(Box::pin(async move {
            let account = Arc::new(Account::new(responder.bounds()));
            let request =
                request.map(|body| RequestBody::Streamed(Box::new(BoundedBody::new(body, Arc::clone(&account)))));
            let response = responder.answer(request, &origin, &mut call).await;
            let response = account.settle().await.map_or(response, Problem::into_response);
            count_error(&response, &counts, R::PROTOCOL, || origin.error_client());
            Ok(AccountedBody::respond(call, response))
        }))
    });
    let connection = builder(R::MAX_CONCURRENT).serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let run = |connection: &mut Pin<&mut _>, context: &mut Context<'_>| {
        run_input.begin_run();
        poll_pinned(connection, context)
    };
    // In its own set the future is polled only when it was woken, not whenever the connection is polled, which would cost as
    // much as one or two timers each time.
    let mut over: FuturesUnordered<_> = [over(&closing, &unsent, timeouts.write)].into_iter().collect();
    let served = tokio::select! {
        biased;
        served = poll_fn(|context| run(&mut connection, context)) => served,
        Some(passed) = over.next() => match passed {
            None => {
                // Reads the input that has arrived. The library would not do that after `graceful_shutdown`.
                let mut polled = Poll::Pending;
                for _ in 0..LAST_RUNS {
                    tokio::task::yield_now().await;
                    polled = poll!(poll_fn(|context| run(&mut connection, context)));
                    if polled.is_ready() || !run_input.is_used_up() {
                        break;
                    }
                }
                match polled {
                    Poll::Ready(served) => served,
                    Poll::Pending => {
                        connection.as_mut().graceful_shutdown();
                        poll_fn(|context| run(&mut connection, context)).await
                    }
                }
            }
            Some(limit) => {
                metrics.limits.reached(limit);
                Ok(())
            }
        }
    };
    if let Err(error) = served {
        if is_flood(&error) {
            FLOODED.say(|more| {
                tracing::warn!(%peer, more, "closed an HTTP/2 connection with too many reset or faulty requests");
            });
        }
        let error = error.to_string();
        tracing::debug!(%peer, error = %Escaped::error(&error), "an HTTP connection ended early");
    }
}

/// Polls a connection.
fn poll_pinned<F: Future>(connection: &mut Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
    connection.as_mut().poll(context)
}

/// Ends when the connection must end: because of the limit that it has passed, or because the server is closing.
async fn over(closing: &CancellationToken, unsent: &UnsentReplies, write_timeout: Duration) -> Option<Bound> {
    tokio::select! {
        biased;
        () = closing.cancelled() => None,
        () = unsent.stalled(write_timeout) => Some(Bound::WriteTimeout),
    }
}

/// A stream that fails after a timeout, and counts it, because the library's errors do not name the timeout.
struct TimedStream {
    stream: Stream,
    /// The first bytes, until they are read.
    first: BytesMut,
    /// How long a client may send nothing; `None` if it may be idle forever.
    idle: Option<Duration>,
    input: Arc<RunInput>,
    metrics: Arc<Metrics>,
    /// Timer for input, while a read waits.
    silence: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn count<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map(|done| done.inspect_err(|error| count_timeout(error, &self.metrics)))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let timed = &mut *self;
        if !timed.first.is_empty() {
            let first = timed.first.split_to(timed.first.len().min(buffer.remaining()));
            buffer.put_slice(&first);
            return Poll::Ready(Ok(()));
        }
        let read = timed.input.poll_read(&mut timed.stream, context, buffer);
        if read.is_ready() {
            timed.silence = None;
            return timed.count(read);
        }
        let Some(limit) = timed.idle else { return Poll::Pending };
        ready!(timed.silence.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
        timed.silence = None;
        timed.metrics.limits.reached(Bound::IdleTimeout);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(written)
    }

    /// Returns true. Otherwise, the library would copy replies before it writes them, and no budget would count the
    /// copies.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.count(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Maximum number of bytes that a connection's task reads in one run. The shortest request with a reset has 25.
const PER_RUN: usize = 2 * 1024;

/// The number of bytes that a connection's task may still read in this run, before it serves the requests in them.
///
/// The library reads frames until the socket is empty, and only then returns the first request. If a client sends without a
/// pause, it reads a megabyte. Unserved requests then pile up, the library mistakes resets among them for an attack, and all
/// other connections of the thread wait. Here the connection's task reads two kilobytes in each run, and serves the requests
/// in them before it runs again. So only a few requests of a gateway wait, and a hostile client gets no more of the thread
/// than others.
#[derive(Debug)]
struct RunInput(AtomicUsize);

impl RunInput {
    /// Begins a run of the connection's task.
    fn begin_run(&self) {
        self.0.store(PER_RUN, Relaxed);
    }

    /// Returns whether this run has used up its bytes. There may be more to read.
    fn is_used_up(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Reads within the bound of a run. Beyond it, wakes the task for its next run.
    fn poll_read(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.0.load(Relaxed);
        if left == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = left.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(stream).poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.0.store(left - read, Relaxed);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;

    use super::*;

    /// Returns the number of bytes that are read before the reader must wait.
    fn read(input: &RunInput, client: &mut &[u8]) -> usize {
        let waker = noop_waker();
        let (mut context, mut total) = (Context::from_waker(&waker), 0);
        loop {
            let mut buffer = [0; 1_000];
            let mut buffer = ReadBuf::new(&mut buffer);
            match input.poll_read(client, &mut context, &mut buffer) {
                Poll::Ready(read) if !buffer.filled().is_empty() => {
                    read.map(|()| total += buffer.filled().len()).unwrap()
                }
                Poll::Ready(_) | Poll::Pending => return total,
            }
        }
    }

    #[test]
    fn run_reads_no_more_than_its_budget() {
        let input = RunInput(AtomicUsize::new(PER_RUN));
        let bytes = [1; 3 * PER_RUN];
        let mut client = &bytes[..];
        for _ in 0..2 {
            assert_eq!(read(&input, &mut client), PER_RUN);
            assert_eq!(read(&input, &mut client), 0);
            input.begin_run();
        }
        assert_eq!(read(&input, &mut &client[..10]), 10);
    }
}
