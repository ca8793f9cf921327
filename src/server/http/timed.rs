//! A connection's byte stream with bounds on silence: how long the client may send nothing, and take nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_io_timeout::TimeoutStream;

use crate::metrics::{Limit, Metrics};
use crate::server::connection::Timeouts;
use crate::server::stream::Stream;

/// Fails when a bound is passed, and counts that: the library's errors do not tell which bound it was.
pub struct Timed {
    stream: Pin<Box<TimeoutStream<Stream>>>,
    metrics: Arc<Metrics>,
    is_counted: bool,
}

impl Timed {
    pub fn new(stream: Stream, timeouts: Timeouts, metrics: Arc<Metrics>) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(timeouts.idle);
        stream.set_write_timeout(Some(timeouts.write));
        Self { stream: Box::pin(stream), metrics, is_counted: false }
    }

    fn count<T>(&mut self, limit: Limit, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            // The system has such an error, too, for a peer that has vanished.
            let is_ours = error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none();
            if is_ours && !self.is_counted {
                self.is_counted = true;
                self.metrics.limits.reached(limit);
            }
        }
        polled
    }
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let read = self.stream.as_mut().poll_read(context, buffer);
        self.count(Limit::IdleTimeout, read)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream.as_mut().poll_write(context, bytes);
        self.count(Limit::WriteTimeout, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let flushed = self.stream.as_mut().poll_flush(context);
        self.count(Limit::WriteTimeout, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let ended = self.stream.as_mut().poll_shutdown(context);
        self.count(Limit::WriteTimeout, ended)
    }
}
