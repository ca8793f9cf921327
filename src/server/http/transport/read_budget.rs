//! Bound on the bytes that an HTTP/2 connection reads before it serves the requests in them.
//!
//! The library reads frames until the socket is empty, and only then returns the first request. If a client sends
//! without a pause, it reads a megabyte. Unserved requests then pile up, the library mistakes resets among them for an
//! attack, and all other connections of the thread wait. Here the connection's task reads two kilobytes in each run,
//! and serves the requests in them before it runs again. So only a few requests of a gateway wait, and a hostile client
//! gets no more of the thread than others.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes that a connection's task reads in one run. The shortest request with a reset has 25.
const PER_RUN: usize = 2 * 1024;
const UNBOUNDED: usize = usize::MAX;

/// Number of bytes that the connection's task may still read in this run.
#[derive(Debug, Clone)]
pub struct ReadBudget(Arc<AtomicUsize>);

impl Default for ReadBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(PER_RUN)))
    }
}

impl ReadBudget {
    /// Begins a run.
    pub fn renew(&self) {
        if self.left() != UNBOUNDED {
            self.0.store(PER_RUN, Relaxed);
        }
    }

    /// Removes the bound. Over HTTP/1, requests are served one after the other anyway.
    pub fn lift(&self) {
        self.0.store(UNBOUNDED, Relaxed);
    }

    /// Returns whether this run has used up its budget. There may be more to read.
    pub fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Reads within the budget. Once it is used up, wakes the task for its next run.
    pub fn poll_read(
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
        let request_memory = left.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(request_memory));
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
    fn read(budget: &ReadBudget, client: &mut &[u8]) -> usize {
        let waker = noop_waker();
        let (mut context, mut total) = (Context::from_waker(&waker), 0);
        loop {
            let mut buffer = [0; 1_000];
            let mut buffer = ReadBuf::new(&mut buffer);
            match budget.poll_read(client, &mut context, &mut buffer) {
                Poll::Ready(read) if !buffer.filled().is_empty() => {
                    read.map(|()| total += buffer.filled().len()).unwrap()
                }
                Poll::Ready(_) | Poll::Pending => return total,
            }
        }
    }

    #[test]
    fn run_reads_no_more_than_its_budget() {
        let budget = ReadBudget::default();
        let bytes = [1; 3 * PER_RUN];
        let mut client = &bytes[..];
        for _ in 0..2 {
            assert_eq!(read(&budget, &mut client), PER_RUN);
            assert_eq!(read(&budget, &mut client), 0);
            budget.renew();
        }
        assert_eq!(read(&budget, &mut &client[..10]), 10);
        budget.lift();
        budget.renew();
        assert_eq!(read(&budget, &mut client), PER_RUN);
        assert_eq!(read(&budget, &mut &bytes[..]), bytes.len());
    }
}
