//! The requests between `MULTI` and `EXEC`, and their execution.
//!
//! The queue counts toward the budget of all buffers. Each request also reserves the memory for its execution, so that
//! every queued transaction can be executed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::net::memory::{BudgetExceeded, Share};
use crate::protocol::resp::{Arguments, QueuedRequest};
use divvy_limiter::ActiveRules;

/// Memory for the execution of a request and its reply, in addition to the request itself (bytes).
const WORKING_MEMORY: usize = 512;

/// The requests that wait for `EXEC`.
pub struct Transaction {
    queue: VecDeque<QueuedRequest>,
    /// Memory that the requests themselves hold (bytes).
    held: usize,
    share: Share,
    /// Whether a request could not be queued, so that `EXEC` will execute none.
    pub is_aborted: bool,
}

impl Transaction {
    /// Creates an empty transaction, whose memory comes from `share`.
    pub fn new(share: Share) -> Self {
        Self { queue: VecDeque::new(), held: 0, share, is_aborted: false }
    }

    /// Returns the number of queued requests.
    pub fn count(&self) -> usize {
        self.queue.len()
    }

    /// Adds a request. An aborted transaction accepts requests, but does not keep them.
    ///
    /// # Errors
    /// There is no memory for the request. The transaction is aborted.
    pub fn queue(&mut self, request: Arguments) -> Result<(), BudgetExceeded> {
        if self.is_aborted {
            return Ok(());
        }
        let request = QueuedRequest::new(request);
        self.held += request.memory();
        self.queue.push_back(request);
        self.account().inspect_err(|BudgetExceeded| self.abort())
    }

    /// Drops the queued requests. `EXEC` will execute none.
    pub fn abort(&mut self) {
        self.is_aborted = true;
        (self.queue, self.held) = (VecDeque::new(), 0);
        // Shrinking always succeeds.
        let _ = self.account();
    }

    /// Returns the oldest request.
    pub fn next(&self) -> Option<&QueuedRequest> {
        self.queue.front()
    }

    /// Removes the oldest request.
    pub fn remove_next(&mut self) {
        if let Some(request) = self.queue.pop_front() {
            self.held -= request.memory();
        }
    }

    /// Resizes the share to the memory of the requests that are left. The replies to the others count as the connection's
    /// output.
    pub fn account(&mut self) -> Result<(), BudgetExceeded> {
        let places = self.queue.capacity() * size_of::<QueuedRequest>();
        self.share.resize(self.held + places + self.queue.len() * WORKING_MEMORY)
    }
}

/// The rest of a transaction that is being executed.
pub struct Execution {
    pub transaction: Transaction,
    /// The rules that were in force at `EXEC`.
    pub policy: Option<Arc<ActiveRules>>,
    /// Whether the client does not want a reply to `EXEC`.
    pub is_muted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::BufferMemory;
    use crate::protocol::resp::{Decoder, Limits};
    use divvy_telemetry::metrics::Metrics;

    #[test]
    fn requests_count_with_their_length_until_each_is_executed() {
        const COUNT: usize = 10;
        let request = [b"ECHO ".to_vec(), vec![b'x'; 50_000], b"\r\n".to_vec()].concat();
        let mut decoder = Decoder::new(Limits::default());
        decoder.decode(&request).unwrap();
        let budget = COUNT * request.len() * 11 / 10;
        let memory = BufferMemory::new(budget, Metrics::new());
        let mut transaction = Transaction::new(memory.share());
        for _ in 0..COUNT {
            assert_eq!(transaction.queue(decoder.arguments(&request)), Ok(()));
        }
        for left in (0..COUNT).rev() {
            transaction.remove_next();
            assert_eq!(transaction.account(), Ok(()));
            assert_eq!(memory.share().resize(budget - (left + 1) * request.len()), Ok(()), "{left} are left");
        }

        // Without memory for a request, none of them is kept.
        let queued = (0..2 * COUNT).take_while(|_| transaction.queue(decoder.arguments(&request)).is_ok()).count();
        assert!((COUNT..=COUNT + 1).contains(&queued) && transaction.is_aborted, "{queued}");
        assert_eq!(memory.share().resize(budget), Ok(()), "all of it was given back");
        assert_eq!(transaction.queue(decoder.arguments(&request)), Ok(()), "it will not be executed");
        assert_eq!(transaction.count(), 0);
    }
}
