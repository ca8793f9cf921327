//! Commands that take long or have long replies. They wait for a [`WorkSlot`], and their replies count toward the budget of
//! all buffers as soon as they exist.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::changes::change_of;
use super::client::Client;
use super::counts;
use super::error::count_limit;
use super::info::RespState;
use super::limit::{self, LimitTarget};
use super::operate::{self, CounterQuery};
use super::overrides;
use super::status::{self, StatusQuery};
use super::top::{self, TopQuery};
use crate::limiter::Policy;
use crate::metrics::Bound;
use crate::protocol::command::{Command, CommandError, CommandMatch, OverrideAsk};
use crate::protocol::resp::{ReplyWriter, Version};
use crate::rules::Operation;
use crate::server::changes::Operator;
use crate::server::net::memory::BudgetExceeded;
use crate::server::net::session::{NextStep, Output};
use crate::server::net::work_slots::WorkSlot;

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
    row: Option<CommandMatch>,
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
        && client.gate.may(found.spec.category).is_err()
    {
        let refusal = client.refusal(found);
        if let Some(change) = change_of(&command) {
            shared.changes.audit().refuse(client.caller(), change, &refusal);
        }
        client.refuse(&shared.limiter, &refusal, false, output.bytes);
        return Ok(NextStep::Continue);
    }
    let start = output.bytes.len();
    let operator = client.operator(row.map(|found| found.spec.category));
    match reply(shared, client.version, operator, policy, command) {
        Ok(reply) => match slot.run(reply).await {
            Ok(reply) => output.bytes.extend_from_slice(&reply),
            Err(error) => ReplyWriter::new(output.bytes, version).error(format_args!("ERR {error}")),
        },
        Err(error) => {
            if let CommandError::TooManyPairs { .. } = error {
                count_limit(&shared.limiter, Some(Bound::Pairs));
            }
            if let Some(change) = change_of(&command) {
                shared.changes.audit().refuse(client.caller(), change, &error);
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
    counts::count_error_reply(&shared.limiter, client, output.bytes, start);
    Ok(NextStep::Continue)
}

async fn take_slot(shared: &RespState, command: &Command<'_>) -> WorkSlot {
    match command {
        // A backup takes long, no other work should wait for it, and the store refuses a second one at the same time.
        Command::Backup(_) => WorkSlot::unbounded(),
        _ if change_of(command).is_some() => shared.changes.slots().take().await,
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
    let (limiter, changes) = (Arc::clone(&shared.limiter), shared.changes.clone());
    let max_pairs = shared.limits.max_pairs;
    let mut bytes = Vec::new();
    Ok(match command {
        Command::Counters(ask) => {
            let query = CounterQuery::new(&ask, max_pairs)?;
            Box::pin(async move {
                operate::list(&limiter, &query, &operator.scope, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::ForgetCounters(ask) => {
            let query = CounterQuery::new(&ask, max_pairs)?;
            Box::pin(async move {
                operate::forget(&changes, &operator, &query, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::Forget(pairs) => {
            let mut operation = Operation::new();
            pairs.read_into(&mut operation, max_pairs)?;
            Box::pin(async move {
                operate::reset(&changes, &operator, &operation, policy, &mut ReplyWriter::new(&mut bytes, version))
                    .await;
                bytes
            })
        }
        Command::Top(ask) => {
            let query = TopQuery::new(&ask, max_pairs)?;
            Box::pin(async move {
                top::show(&limiter, &query, &operator.scope, &mut ReplyWriter::new(&mut bytes, version));
                bytes
            })
        }
        Command::Status(ask) => {
            let query = StatusQuery::new(&ask, max_pairs)?;
            Box::pin(async move {
                status::show(&limiter, &query, &operator.scope, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::Backup(name) => {
            let name = name.to_owned();
            Box::pin(async move {
                operate::back_up(&changes, &operator, &name, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::SetLimit { of, credits, seconds } => {
            let of = LimitTarget::from(of);
            Box::pin(async move {
                let reply = &mut ReplyWriter::new(&mut bytes, version);
                limit::set(&changes, &operator, &of, credits, seconds, reply).await;
                bytes
            })
        }
        Command::RemoveLimit(of) => {
            let of = LimitTarget::from(of);
            Box::pin(async move {
                limit::remove(&changes, &operator, &of, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::GetLimit(of) => {
            limit::get(&limiter, &of.into(), &operator.scope, &mut ReplyWriter::new(&mut bytes, version));
            Box::pin(std::future::ready(bytes))
        }
        Command::ListLimits(ask) => {
            limit::list(&limiter, &ask.into(), &operator.scope, &mut ReplyWriter::new(&mut bytes, version));
            Box::pin(std::future::ready(bytes))
        }
        Command::SetOverride(OverrideAsk { kind, of, seconds, reason }) => {
            let (of, reason) = (LimitTarget::from(of), reason.map(str::to_owned));
            Box::pin(async move {
                let reply = &mut ReplyWriter::new(&mut bytes, version);
                overrides::set(&changes, &operator, (kind, &of), reason.as_deref(), seconds, reply).await;
                bytes
            })
        }
        Command::RemoveOverride(kind, of) => {
            let of = LimitTarget::from(of);
            Box::pin(async move {
                overrides::remove(&changes, &operator, kind, &of, &mut ReplyWriter::new(&mut bytes, version)).await;
                bytes
            })
        }
        Command::GetOverride(kind, of) => {
            overrides::get(&limiter, kind, &of.into(), &operator.scope, &mut ReplyWriter::new(&mut bytes, version));
            Box::pin(std::future::ready(bytes))
        }
        Command::ListOverrides(kind, ask) => {
            overrides::list(&limiter, kind, &ask.into(), &operator.scope, &mut ReplyWriter::new(&mut bytes, version));
            Box::pin(std::future::ready(bytes))
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
