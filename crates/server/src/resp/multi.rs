//! `MULTI`, `DISCARD` and `WATCH`, and the requests that are queued for `EXEC`.

use super::client::Client;
use super::info::RespState;
use super::operations::write_error;
use super::transaction::Transaction;
use crate::net::memory::BudgetExceeded;
use crate::protocol::command::{Command, CommandError};
use crate::protocol::resp::{Arguments, ReplyWriter};
use divvy_telemetry::metrics::{RequestKind, RequestTally};

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

/// Returns whether this is an `EXEC` with arguments. As in Redis, it discards the transaction, with its own error.
pub fn is_exec_with_arguments(command: &Result<Command, CommandError>) -> bool {
    matches!(command, Err(CommandError::WrongArity { name }) if name == "exec")
}

/// Adds a request to the transaction, or aborts the transaction if the request cannot be executed.
pub fn queue(
    shared: &RespState,
    client: &Client,
    transaction: &mut Transaction,
    request: Arguments,
    command: Result<Command, CommandError>,
    tally: &mut RequestTally,
    output: &mut Vec<u8>,
) {
    let refused = match command {
        Ok(command) => command.check_count(shared.limits.max_pairs).err(),
        Err(error) => Some(error).filter(CommandError::aborts_transaction),
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
    shared: &RespState,
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
