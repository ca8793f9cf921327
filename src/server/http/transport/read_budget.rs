//! How much of an HTTP/2 connection is read before the requests in it are served.
//!
//! The library takes frames in until the socket is empty, and only then hands out the first request. From a client that
//! sends without a pause that is a megabyte: unserved requests pile up, the library takes those that were reset in that time
//! for an attack, and all other connections of the thread wait. Here the connection's task reads two kilobytes whenever it
//! runs, and the requests in them are served before it runs again. So few requests of a gateway wait at any time, and a
//! hostile client gets no more of the thread than any other client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that are read in a run of the connection's task. The shortest request that can be reset takes 25.
const PER_RUN: usize = 2 * 1024;
const UNBOUNDED: usize = usize::MAX;

/// Bytes that the task of a connection may still read in this run.
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

    /// Ends the bound: over HTTP/1, requests are served one after the other anyway.
    pub fn lift(&self) {
        self.0.store(UNBOUNDED, Relaxed);
    }

    /// Whether this run has read all it may. There may be more to read then.
    pub fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Reads what is left of the budget. Once nothing is left, the task is woken for its next run.
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

    /// How much of a client's bytes is read until the reader has to wait.
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
    fn a_run_reads_no_more_than_its_budget() {
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
