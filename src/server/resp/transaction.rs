//! What a client queues between `MULTI` and `EXEC`, and how far it has been executed.
//!
//! A queue takes memory that all connections share, so it is on their account; the room that executing a request takes
//! is paid for when the request is queued.

use std::sync::Arc;

use crate::limiter::Policy;
use crate::protocol::resp::{Arguments, Queue};
use crate::server::net::memory::{BudgetExceeded, Share};

/// What executing a request takes besides the request itself, its reply included (bytes).
const WORKING_ROOM: usize = 512;

/// The requests that wait for `EXEC`.
pub struct Transaction {
    queue: Queue,
    share: Share,
    /// A request could not be queued: `EXEC` will execute none.
    is_aborted: bool,
}

impl Transaction {
    /// An empty one, whose memory comes out of `share`.
    pub fn new(share: Share) -> Self {
        Self { queue: Queue::default(), share, is_aborted: false }
    }

    /// How many requests are queued.
    pub fn count(&self) -> usize {
        self.queue.count()
    }

    /// Adds a request. Once the transaction is aborted it is only counted as queued: it will not be executed.
    ///
    /// # Errors
    /// There is no room for it, and the transaction is aborted.
    pub fn queue(&mut self, request: Arguments) -> Result<(), BudgetExceeded> {
        if self.is_aborted {
            return Ok(());
        }
        let working_room = (self.queue.count() + 1) * WORKING_ROOM;
        if let Err(used_up) = self.share.resize(self.queue.memory_with(request) + working_room) {
            self.abort();
            return Err(used_up);
        }
        self.queue.push(request);
        Ok(())
    }

    /// Has `EXEC` execute nothing, and forgets what was queued.
    pub fn abort(&mut self) {
        self.is_aborted = true;
        self.queue = Queue::default();
        // To hold less always succeeds.
        let _ = self.share.resize(0);
    }

    /// Begins to execute it, under these rules; `None`: it was aborted.
    pub fn execute(self, policy: Option<Arc<Policy>>, is_muted: bool) -> Option<Execution> {
        let Self { queue, share, is_aborted } = self;
        (!is_aborted).then_some(Execution { paid: share.held(), queue, next: 0, policy, is_muted, share })
    }
}

/// A transaction that is being executed.
pub struct Execution {
    queue: Queue,
    next: usize,
    /// The rules that were in force at `EXEC`.
    pub policy: Option<Arc<Policy>>,
    /// The client wants no reply to `EXEC`.
    pub is_muted: bool,
    share: Share,
    /// The share when all requests were queued (bytes).
    paid: usize,
}

impl Execution {
    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.queue.count()
    }

    /// The next request; `None`: all have been executed.
    pub fn next_request(&mut self) -> Option<Arguments<'_>> {
        let request = self.queue.get(self.next);
        self.next += 1;
        request
    }

    /// Gives the room back of the requests that were executed: their replies are the output's now.
    pub fn account(&mut self) {
        // Giving room back always succeeds.
        let _ = self.share.resize(self.paid.saturating_sub(self.next * WORKING_ROOM));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::protocol::resp::Decoder;
    use crate::server::net::memory::BufferMemory;

    #[test]
    fn a_queue_is_on_the_account_until_it_is_executed_and_is_aborted_when_there_is_no_room() {
        let request = b"PING\r\n";
        let mut decoder = Decoder::default();
        decoder.decode(request).unwrap();
        let memory = BufferMemory::new(5 * WORKING_ROOM, Metrics::new());
        let mut transaction = Transaction::new(memory.share());
        let queued = (0..10).take_while(|_| transaction.queue(decoder.arguments(request)).is_ok()).count();
        assert!((1..5).contains(&queued), "{queued}");
        assert_eq!(memory.share().resize(5 * WORKING_ROOM), Ok(()), "nothing of it is left");
        assert_eq!(transaction.queue(decoder.arguments(request)), Ok(()), "it will not be executed");
        assert!(transaction.execute(None, false).is_none());

        let mut transaction = Transaction::new(memory.share());
        transaction.queue(decoder.arguments(request)).unwrap();
        let mut execution = transaction.execute(None, false).unwrap();
        assert_eq!((execution.count(), execution.next_request().unwrap().get(0)), (1, Some(&b"PING"[..])));
        assert!(execution.next_request().is_none());
        assert_eq!(memory.share().resize(5 * WORKING_ROOM), Err(BudgetExceeded));
        drop(execution);
        assert_eq!(memory.share().resize(5 * WORKING_ROOM), Ok(()));
    }
}
