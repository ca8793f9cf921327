//! A connection's byte stream with a timeout and a budget: the client must send something. The connection reads a bounded number
//! of bytes before it serves the requests in them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::net::stream::{Stream, count_timeout};
use divvy_telemetry::metrics::{Bound, Metrics};

/// A stream that fails after a timeout, and counts it, because the library's errors do not name the timeout.
pub struct TimedStream {
    stream: Stream,
    /// How long a client may send nothing; `None` if it may be idle forever.
    idle: Option<Duration>,
    requests: Arc<Requests>,
    metrics: Arc<Metrics>,
    /// Timer for input, while a read waits.
    silence: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    pub fn new(stream: Stream, idle: Option<Duration>, requests: Arc<Requests>, metrics: Arc<Metrics>) -> Self {
        Self { stream, idle, requests, metrics, silence: None }
    }

    fn count<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map(|done| done.inspect_err(|error| count_timeout(error, &self.metrics)))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let timed = &mut *self;
        let read = timed.requests.poll_read(&mut timed.stream, context, buffer);
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
const UNBOUNDED: usize = usize::MAX;

/// The state that a connection's stream shares with its requests.
///
/// It has the number of bytes that an HTTP/2 connection's task may still read in this run, before it serves the requests in them.
/// The library reads frames until the socket is empty, and only then returns the first request. If a client sends without a
/// pause, it reads a megabyte. Unserved requests then pile up, the library mistakes resets among them for an attack, and all
/// other connections of the thread wait. Here the connection's task reads two kilobytes in each run, and serves the requests
/// in them before it runs again. So only a few requests of a gateway wait, and a hostile client gets no more of the thread
/// than others.
#[derive(Debug)]
pub struct Requests {
    /// Bytes left to read in this run.
    left: AtomicUsize,
    /// Whether the first request has begun.
    have_begun: AtomicBool,
}

impl Default for Requests {
    fn default() -> Self {
        Self { left: AtomicUsize::new(PER_RUN), have_begun: false.into() }
    }
}

impl Requests {
    /// Begins a run of the connection's task.
    pub fn begin_run(&self) {
        if self.left() != UNBOUNDED {
            self.left.store(PER_RUN, Relaxed);
        }
    }

    /// Records that a request has begun. Over HTTP/1, requests are served one after the other anyway, and there is no bound.
    pub fn begin(&self, version: Version) {
        self.have_begun.store(true, Relaxed);
        if version < Version::HTTP_2 {
            self.left.store(UNBOUNDED, Relaxed);
        }
    }

    /// Returns whether a request has begun.
    pub fn have_begun(&self) -> bool {
        self.have_begun.load(Relaxed)
    }

    /// Returns whether this run has used up its bytes. There may be more to read.
    pub fn have_used_up_run(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// Reads within the bound of a run. Beyond it, wakes the task for its next run.
    fn poll_read(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.left();
        if left == UNBOUNDED {
            return Pin::new(stream).poll_read(context, buffer);
        }
        if left == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = left.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(stream).poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.left.store(left - read, Relaxed);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;

    use super::*;

    /// Returns the number of bytes that are read before the reader must wait.
    fn read(requests: &Requests, client: &mut &[u8]) -> usize {
        let waker = noop_waker();
        let (mut context, mut total) = (Context::from_waker(&waker), 0);
        loop {
            let mut buffer = [0; 1_000];
            let mut buffer = ReadBuf::new(&mut buffer);
            match requests.poll_read(client, &mut context, &mut buffer) {
                Poll::Ready(read) if !buffer.filled().is_empty() => {
                    read.map(|()| total += buffer.filled().len()).unwrap()
                }
                Poll::Ready(_) | Poll::Pending => return total,
            }
        }
    }

    #[test]
    fn run_reads_no_more_than_its_budget() {
        let requests = Requests::default();
        let bytes = [1; 3 * PER_RUN];
        let mut client = &bytes[..];
        for _ in 0..2 {
            assert_eq!(read(&requests, &mut client), PER_RUN);
            assert_eq!(read(&requests, &mut client), 0);
            requests.begin_run();
        }
        assert_eq!(read(&requests, &mut &client[..10]), 10);
        requests.begin(Version::HTTP_11);
        requests.begin_run();
        assert_eq!(read(&requests, &mut client), PER_RUN);
        assert_eq!(read(&requests, &mut &bytes[..]), bytes.len());
    }
}
