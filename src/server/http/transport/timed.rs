//! A connection's byte stream with timeouts: the client must send something, and must read the output that waits for
//! it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::endless::{Acknowledgements, EndlessResponses};
use super::read_budget::ReadBudget;
use crate::metrics::{Bound, Metrics};
use crate::server::net::connection::Timeouts;
use crate::server::net::stream::Progress;
use crate::server::net::stream::Stream;

/// A stream that fails after a timeout, and counts it, because the library's errors do not name the timeout.
pub struct TimedStream {
    stream: Stream,
    timeouts: Timeouts,
    budget: ReadBudget,
    endless: EndlessResponses,
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
    pub fn new(
        stream: Stream,
        timeouts: Timeouts,
        budget: ReadBudget,
        endless: EndlessResponses,
        metrics: Arc<Metrics>,
    ) -> Self {
        let acknowledgements = Acknowledgements::default();
        Self { stream, timeouts, budget, endless, acknowledgements, metrics, silence: None, blocked: None }
    }

    /// Checks before a write that the client acknowledges the events of a stream.
    ///
    /// # Errors
    /// It has acknowledged nothing for too long.
    #[inline]
    fn check_acknowledged(&mut self) -> io::Result<()> {
        if self.endless.have_begun() && self.is_unacknowledged() {
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
        if let Poll::Ready(read) = timed.budget.poll_read(&mut timed.stream, context, buffer) {
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
