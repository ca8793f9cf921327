//! Commands that take long or have long replies. They wait for a [`WorkSlot`], and their replies count toward the budget of
//! all buffers as soon as they exist.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::client::Client;
use super::error::{count_error_reply, count_limit, write_limiter_error};
use super::info::RespState;
use super::operations::{change_of, write_reply};
use crate::net::connection::{NextStep, Output};
use crate::net::memory::BudgetExceeded;
use crate::net::work::WorkSlot;
use crate::operations::Operator;
use crate::protocol::command::table::Spec;
use crate::protocol::command::{Command, CommandError, Mistake};
use crate::protocol::resp::{ReplyWriter, Version};
use divvy_api::Arguments as Given;
use divvy_limiter::Policy;
use divvy_telemetry::metrics::Bound;

/// The future reply to a command.
type Reply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Answers a large command. `policy` has the rules for it, or `None` for those in force. `row` is its row in the table of
/// commands. The reply is written to the client before the next request is answered.
///
/// # Errors
/// There is no memory for the replies in `output`.
pub async fn answer(
    shared: &Arc<RespState>,
    client: &mut Client,
    policy: Option<Arc<Policy>>,
    row: Option<&'static Spec>,
    command: Command<'_>,
    output: &mut Output<'_>,
) -> Result<NextStep, BudgetExceeded> {
    let version = client.version;
    output.account()?;
    let slot = tokio::select! {
        biased;
        slot = take_slot(shared, &command) => slot,
        () = output.client_left() => return Ok(NextStep::Close),
    };
    // The user may have lost the right while the command waited.
    client.gate.refresh();
    if let Some(found) = row
        && client.gate.may(found.category).is_err()
    {
        let refusal = client.refusal(found);
        if let Some(change) = change_of(&command) {
            shared.operations.audit().refuse(client.caller(), change, &refusal);
        }
        client.refuse(&shared.limiter, &refusal, false, output.bytes);
        return Ok(NextStep::Continue);
    }
    let start = output.bytes.len();
    let operator = client.operator(row.map(|found| found.category));
    match reply(shared, client.version, operator, policy, command) {
        Ok(reply) => match slot.run(reply).await {
            Ok(reply) => output.bytes.extend_from_slice(&reply),
            Err(error) => ReplyWriter::new(output.bytes, version).error(format_args!("ERR {error}")),
        },
        Err(error) => {
            if error.mistake == Mistake::TooManyPairs {
                count_limit(&shared.limiter, Some(Bound::Pairs));
            }
            if let Some(change) = change_of(&command) {
                shared.operations.audit().refuse(client.caller(), change, &error);
            }
            ReplyWriter::new(output.bytes, version).error(error);
        }
    }
    if output.account().is_err() {
        output.bytes.truncate(start);
        output.bytes.shrink_to(start);
        refuse_for_memory(version, output.bytes);
        output.account()?;
    }
    count_error_reply(&shared.limiter, client, output.bytes, start);
    Ok(NextStep::Continue)
}

async fn take_slot(shared: &RespState, command: &Command<'_>) -> WorkSlot {
    match command {
        Command::Operate(endpoint, _) => shared.operations.take_slot(endpoint, &shared.slots).await,
        _ => shared.slots.take().await,
    }
}

/// Begins to answer a command.
///
/// # Errors
/// The arguments are invalid.
fn reply(
    shared: &Arc<RespState>,
    version: Version,
    operator: Operator,
    policy: Option<Arc<Policy>>,
    command: Command<'_>,
) -> Result<Reply, CommandError> {
    let shared = Arc::clone(shared);
    let mut bytes = Vec::new();
    Ok(match command {
        Command::Operate(endpoint, words) => {
            let arguments = Given::from_words(endpoint, words.iter(), shared.limits.max_pairs)?;
            Box::pin(async move {
                let done = shared.operations.run(&operator, endpoint, &arguments, policy).await;
                let mut reply = ReplyWriter::new(&mut bytes, version);
                match done {
                    Ok(value) => write_reply(&mut reply, &endpoint.reply, &value),
                    Err(error) => write_limiter_error(&error, &mut reply),
                }
                bytes
            })
        }
        Command::Info(sections) => {
            let sections: Vec<_> = sections.iter().map(<[u8]>::to_vec).collect();
            Box::pin(async move {
                ReplyWriter::new(&mut bytes, version).bulk(shared.info(&sections).await.as_bytes());
                bytes
            })
        }
        Command::DbSize => Box::pin(async move {
            shared.write_size(&mut ReplyWriter::new(&mut bytes, version)).await;
            bytes
        }),
        Command::ClientList(filter) => {
            ReplyWriter::new(&mut bytes, version).bulk(shared.clients.list(&filter).as_bytes());
            Box::pin(std::future::ready(bytes))
        }
        _ => {
            ReplyWriter::new(&mut bytes, version).error("ERR this command is not answered here");
            Box::pin(std::future::ready(bytes))
        }
    })
}

/// Writes an error, because there is no memory for the reply.
pub fn refuse_for_memory(version: Version, output: &mut Vec<u8>) {
    ReplyWriter::new(output, version)
        .error("ERR the server has no memory left for a reply of this size: try again later");
}

#[cfg(test)]
mod tests;
