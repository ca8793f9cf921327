//! A connection's byte stream with timeouts and a budget: the client must send something, and must read the output that waits
//! for it. The connection reads a bounded number of bytes before it serves the requests in them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::{Response, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::net::connection::Timeouts;
use crate::net::stream::{Progress, Stream};
use divvy_telemetry::metrics::{Bound, Metrics};

/// A stream that fails after a timeout, and counts it, because the library's errors do not name the timeout.
pub struct TimedStream {
    stream: Stream,
    timeouts: Timeouts,
    requests: Arc<Requests>,
    acknowledgements: Acknowledgements,
    metrics: Arc<Metrics>,
    /// Timer for input, while a read waits.
    silence: Option<Pin<Box<Sleep>>>,
    /// State of output, while a write waits.
    blocked: Option<PendingWrite>,
}

struct PendingWrite {
    progress: Progress,
    /// Timer for the end of the period.
    timer: Pin<Box<Sleep>>,
}

impl TimedStream {
    pub fn new(stream: Stream, timeouts: Timeouts, requests: Arc<Requests>, metrics: Arc<Metrics>) -> Self {
        let acknowledgements = Acknowledgements::default();
        Self { stream, timeouts, requests, acknowledgements, metrics, silence: None, blocked: None }
    }

    /// Checks before a write that the client acknowledges the events of a stream.
    ///
    /// # Errors
    /// It has acknowledged nothing for too long.
    #[inline]
    fn check_acknowledged(&mut self) -> io::Result<()> {
        if self.requests.have_endless_response.load(Relaxed) && self.is_unacknowledged() {
            return Err(passed(&self.metrics, Bound::WriteTimeout));
        }
        Ok(())
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "how long a client has acknowledged nothing")]
    fn is_unacknowledged(&mut self) -> bool {
        self.acknowledgements.are_overdue(self.stream.unsent(), self.timeouts.write, Instant::now())
    }

    /// Is ready when the client has read too little for too long.
    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let blocked = self.blocked.get_or_insert_with(|| {
            let progress = Progress::begin(self.timeouts.write, Instant::now(), self.stream.unsent());
            PendingWrite { timer: Box::pin(sleep_until(progress.ends())), progress }
        });
        loop {
            ready!(blocked.timer.as_mut().poll(context));
            if !blocked.progress.begin_next(Instant::now(), self.stream.unsent()) {
                return Poll::Ready(passed(&self.metrics, Bound::WriteTimeout));
            }
            blocked.timer.as_mut().reset(blocked.progress.ends());
        }
    }

    /// Records a write of waiting output.
    fn wrote(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(written) => {
                if let Ok(bytes) = &written {
                    self.acknowledgements.add_written(*bytes);
                }
                if let (Some(blocked), Ok(bytes)) = (&mut self.blocked, &written) {
                    blocked.progress.add_given(*bytes);
                }
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_overdue(context).map(Err),
        }
    }

    /// Records that no output waits.
    fn done(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        match polled {
            Poll::Ready(done) => {
                self.blocked = None;
                Poll::Ready(done)
            }
            Poll::Pending => self.poll_overdue(context).map(Err),
        }
    }
}

fn passed(metrics: &Metrics, limit: Bound) -> io::Error {
    metrics.limits.reached(limit);
    io::ErrorKind::TimedOut.into()
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let timed = &mut *self;
        if let Poll::Ready(read) = timed.requests.poll_read(&mut timed.stream, context, buffer) {
            timed.silence = None;
            return Poll::Ready(read);
        }
        let Some(limit) = timed.timeouts.idle else { return Poll::Pending };
        ready!(timed.silence.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
        timed.silence = None;
        Poll::Ready(Err(passed(&timed.metrics, Bound::IdleTimeout)))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_acknowledged()?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_acknowledged()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, written)
    }

    /// Returns true. Otherwise, the library would copy replies before it writes them, and no budget would count the
    /// copies.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.done(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.done(context, ended)
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
    /// Whether there was a response without an end.
    have_endless_response: AtomicBool,
}

impl Default for Requests {
    fn default() -> Self {
        Self { left: AtomicUsize::new(PER_RUN), have_begun: false.into(), have_endless_response: false.into() }
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

    /// Records a response. See [`Endless`].
    pub fn note_response<B>(&self, response: &Response<B>) {
        if response.extensions().get::<Endless>().is_some() {
            self.have_endless_response.store(true, Relaxed);
        }
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

/// Extension of a response without an end: a stream of events.
///
/// Other replies wait in the connection when a client does not read them, and the write timeout ends it. A stream sends so
/// little at a time that the kernel's buffers have room for minutes of it. So once a connection has such a stream, each
/// write checks that the client's machine acknowledges the earlier ones.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

/// The bytes of a connection that the client's machine has acknowledged.
#[derive(Debug, Default)]
struct Acknowledgements {
    written: usize,
    /// Bytes that were acknowledged when the client last made progress, and the time.
    last: Option<(usize, Instant)>,
}

impl Acknowledgements {
    /// Records written bytes.
    fn add_written(&mut self, bytes: usize) {
        self.written = self.written.wrapping_add(bytes);
    }

    /// Returns whether nothing was acknowledged for this long, although `unsent` bytes wait. Call it before each write.
    fn are_overdue(&mut self, unsent: usize, limit: Duration, now: Instant) -> bool {
        if unsent == 0 {
            self.last = None;
            return false;
        }
        let acknowledged = self.written.wrapping_sub(unsent);
        match self.last {
            Some((before, since)) if acknowledged.wrapping_sub(before).cast_signed() <= 0 => {
                now.saturating_duration_since(since) >= limit
            }
            _ => {
                self.last = Some((acknowledged, now));
                false
            }
        }
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

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn client_that_acknowledges_nothing_is_overdue() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut acknowledgements = Acknowledgements::default();
        for second in 0..100 {
            assert!(!acknowledgements.are_overdue(0, LIMIT, at(second)), "everything is acknowledged");
            acknowledgements.add_written(100);
        }
        for second in 100..200 {
            assert!(!acknowledgements.are_overdue(1_000, LIMIT, at(second)), "a slow client, at {second}");
            acknowledgements.add_written(100);
        }
        let mut unsent = 1_000;
        for second in 200..260 {
            unsent += 100;
            assert_eq!(acknowledgements.are_overdue(unsent, LIMIT, at(second)), second >= 229, "at {second}");
            acknowledgements.add_written(100);
        }
        assert!(!acknowledgements.are_overdue(unsent, LIMIT, at(260)), "an acknowledgement");
        assert!(!acknowledgements.are_overdue(unsent + 10, LIMIT, at(289)));
        assert!(acknowledgements.are_overdue(unsent + 20, LIMIT, at(290)));
    }
}
