//! `MULTI`, `DISCARD` and `WATCH`, the requests between `MULTI` and `EXEC`, and their execution.
//!
//! The queue counts toward the budget of all buffers. Each request also reserves the memory for its execution, so that
//! every queued transaction can be executed.

use std::sync::Arc;

use super::client::Client;
use super::info::RespFront;
use super::single_commands::write_error;
use crate::net::memory::{BudgetExceeded, Share};
use crate::protocol::command::command_rows::CommandRow;
use crate::protocol::command::{Command, CommandError, Mistake};
use crate::protocol::resp::{Arguments, Queue, ReplyWriter};
use divvy_limiter::ActiveRules;
use divvy_telemetry::metrics::{RequestKind, RequestTally};

/// Memory for the execution of a request and its reply, in addition to the request itself (bytes).
const WORKING_MEMORY: usize = 512;

// Error replies, in Redis's words where Redis has some.
const NESTED_MULTI: &str = "ERR MULTI calls can not be nested";
pub const EXEC_WITHOUT_MULTI: &str = "ERR EXEC without MULTI";
const DISCARD_WITHOUT_MULTI: &str = "ERR DISCARD without MULTI";
pub const EXEC_ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
pub const EXEC_WITH_ARGUMENTS: &str =
    "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
const WATCH_INSIDE_MULTI: &str = "ERR WATCH inside MULTI is not allowed";
const NO_WATCH: &str = "ERR WATCH is not supported: counters are not keys that a client reads and writes back. \
                        MULTI and EXEC work without it";
const NO_ROOM_TO_QUEUE: &str = "ERR the server has no memory left to queue this command: EXEC will discard the \
                                transaction; try again later";

/// The requests that wait for `EXEC`.
pub struct Transaction {
    queue: Queue,
    share: Share,
    /// Whether a request could not be queued, so that `EXEC` will execute none.
    is_aborted: bool,
}

impl Transaction {
    /// Creates an empty transaction, whose memory comes from `share`.
    pub fn new(share: Share) -> Self {
        Self { queue: Queue::default(), share, is_aborted: false }
    }

    /// Returns the number of queued requests.
    pub fn count(&self) -> usize {
        self.queue.count()
    }

    /// Adds a request. An aborted transaction accepts requests, but does not keep them.
    ///
    /// # Errors
    /// There is no memory for the request. The transaction is aborted.
    pub fn queue(&mut self, request: Arguments) -> Result<(), BudgetExceeded> {
        if self.is_aborted {
            return Ok(());
        }
        let working_memory = (self.queue.count() + 1) * WORKING_MEMORY;
        if let Err(exceeded) = self.share.resize(self.queue.memory_with(request) + working_memory) {
            self.abort();
            return Err(exceeded);
        }
        self.queue.push(request);
        Ok(())
    }

    /// Drops the queued requests. `EXEC` will execute none.
    pub fn abort(&mut self) {
        self.is_aborted = true;
        self.queue = Queue::default();
        // Shrinking always succeeds.
        let _ = self.share.resize(0);
    }

    /// Begins the execution under these rules. Returns `None` if the transaction was aborted.
    pub fn execute(self, policy: Option<Arc<ActiveRules>>, is_muted: bool) -> Option<Execution> {
        let Self { queue, share, is_aborted } = self;
        (!is_aborted).then_some(Execution { queue, policy, is_muted, share })
    }
}

/// The rest of a transaction that is being executed.
pub struct Execution {
    /// The requests that are left.
    pub queue: Queue,
    /// The rules that were in force at `EXEC`.
    pub policy: Option<Arc<ActiveRules>>,
    /// Whether the client does not want a reply to `EXEC`.
    pub is_muted: bool,
    share: Share,
}

impl Execution {
    /// Gives back the memory of the requests that were executed. Their replies count as the connection's output.
    pub fn account(&mut self) {
        // Shrinking always succeeds.
        let _ = self.share.resize(self.queue.memory() + self.queue.count() * WORKING_MEMORY);
    }
}

/// Returns whether this is an `EXEC` with arguments. As in Redis, it discards the transaction, with its own error.
pub fn is_exec_with_arguments(row: Option<&CommandRow>, command: &Result<Command, CommandError>) -> bool {
    let is_exec = row.is_some_and(|row| row.command == ("exec", ""));
    is_exec && command.as_ref().is_err_and(|error| error.mistake == Mistake::WrongArity)
}

/// Adds a request to the transaction, or aborts the transaction if the request cannot be executed.
pub fn queue(
    shared: &RespFront,
    client: &Client,
    transaction: &mut Transaction,
    request: Arguments,
    command: Result<Command, CommandError>,
    tally: &mut RequestTally,
    output: &mut Vec<u8>,
) {
    let refused = match command {
        Ok(command) => command.check_count(shared.limits.max_pairs).err(),
        Err(error) => Some(error).filter(|error| error.mistake != Mistake::Argument),
    };
    if let Some(error) = refused {
        tally.count(RequestKind::Invalid);
        transaction.abort();
        return write_error(shared, client, request, error, output);
    }
    match transaction.queue(request) {
        Ok(()) => ReplyWriter::new(output, client.version).simple("QUEUED"),
        Err(BudgetExceeded) => client.refuse(&shared.limiter, NO_ROOM_TO_QUEUE, false, output),
    }
}

/// Begins or discards a transaction. Refuses `WATCH`.
pub fn begin_or_end(
    shared: &RespFront,
    transaction: &mut Option<Transaction>,
    command: &Command,
) -> Result<(), &'static str> {
    match (command, &transaction) {
        (Command::Multi, None) => *transaction = Some(Transaction::new(shared.memory.share())),
        (Command::Multi, Some(_)) => return Err(NESTED_MULTI),
        (Command::Discard, Some(_)) => *transaction = None,
        (Command::Discard, None) => return Err(DISCARD_WITHOUT_MULTI),
        (_, Some(_)) => return Err(WATCH_INSIDE_MULTI),
        (_, None) => return Err(NO_WATCH),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::memory::BufferMemory;
    use crate::protocol::resp::Decoder;
    use divvy_telemetry::metrics::Metrics;

    const PING: &[u8] = b"PING\r\n";

    fn decoded(request: &[u8]) -> Decoder {
        let mut decoder = Decoder::default();
        decoder.decode(request).unwrap();
        decoder
    }

    #[test]
    fn queue_counts_until_it_is_executed_and_is_aborted_without_memory() {
        let decoder = decoded(PING);
        let memory = BufferMemory::new(5 * WORKING_MEMORY, Metrics::new());
        let mut transaction = Transaction::new(memory.share());
        let queued = (0..10).take_while(|_| transaction.queue(decoder.arguments(PING)).is_ok()).count();
        assert!((1..5).contains(&queued), "{queued}");
        assert_eq!(memory.share().resize(5 * WORKING_MEMORY), Ok(()), "all of it was given back");
        assert_eq!(transaction.queue(decoder.arguments(PING)), Ok(()), "it will not be executed");
        assert!(transaction.execute(None, false).is_none());

        let mut transaction = Transaction::new(memory.share());
        transaction.queue(decoder.arguments(PING)).unwrap();
        let mut execution = transaction.execute(None, false).unwrap();
        assert_eq!(execution.queue.count(), 1);
        assert_eq!(execution.queue.pop().unwrap().arguments().get(0), Some(&b"PING"[..]));
        assert!(execution.queue.pop().is_none());
        assert_eq!(memory.share().resize(5 * WORKING_MEMORY), Err(BudgetExceeded));
        drop(execution);
        assert_eq!(memory.share().resize(5 * WORKING_MEMORY), Ok(()));
    }

    #[test]
    fn requests_count_with_their_length_until_each_is_executed() {
        const COUNT: usize = 10;
        let request = [b"ECHO ".to_vec(), vec![b'x'; 50_000], b"\r\n".to_vec()].concat();
        let decoder = decoded(&request);
        let budget = COUNT * request.len() * 11 / 10;
        let memory = BufferMemory::new(budget, Metrics::new());
        let mut transaction = Transaction::new(memory.share());
        for _ in 0..COUNT {
            assert_eq!(transaction.queue(decoder.arguments(&request)), Ok(()));
        }
        let mut execution = transaction.execute(None, false).unwrap();
        for left in (0..COUNT).rev() {
            drop(execution.queue.pop());
            execution.account();
            assert_eq!(memory.share().resize(budget - (left + 1) * request.len()), Ok(()), "{left} are left");
        }
    }
}
