//! Commands that are answered alone, after the batch before them.

use std::sync::Arc;

use super::acl;
use super::batch::Batch;
use super::client::{Client, Login};
use super::error::write_limiter_error;
use super::info::RespState;
use super::{counts, large};
use crate::net::memory::BudgetExceeded;
use crate::net::session::{NextStep, Output};
use crate::protocol::command::{Command, CommandMatch, Pairs, describe};
use crate::protocol::resp::ReplyWriter;
use divvy_limiter::rules::{hits_of, listed};
use divvy_limiter::{Limiter, Refusal, RuleCount, Scope};

/// Answers a command about the connection, and counts the reply if it is an error. `login` is the result of
/// [`Client::log_in`].
pub fn answer_client(
    shared: &RespState,
    client: &mut Client,
    command: Command<'_>,
    login: Login,
    output: &mut Vec<u8>,
) -> NextStep {
    let start = output.len();
    let next = client.answer(command, login, output);
    counts::count_error_reply(&shared.limiter, client, output, start);
    next
}

/// Answers a command that does not belong in a batch. `row` is its row in the table of commands.
///
/// # Errors
/// There is no memory for the replies in `output`.
pub async fn answer_alone(
    shared: &Arc<RespState>,
    batch: &mut Batch,
    client: &mut Client,
    row: Option<CommandMatch>,
    command: Command<'_>,
    output: &mut Output<'_>,
) -> Result<NextStep, BudgetExceeded> {
    if command.is_about_connection() {
        let login = client.log_in(&command, output.client_left()).await;
        return Ok(answer_client(shared, client, command, login, output.bytes));
    }
    let start = output.bytes.len();
    let mut reply = ReplyWriter::new(output.bytes, client.version);
    match command {
        Command::Explain(pairs) => write_explanation(shared, client.scope(), batch, pairs, &mut reply),
        Command::Rules => write_rules(&shared.limiter, client.scope(), &mut reply),
        Command::ConfigGet(patterns) => shared.write_settings(patterns, &mut reply),
        Command::Time => shared.write_time(&mut reply),
        Command::Role => write_role(&mut reply),
        Command::Acl(ask) => acl::write(client, ask, &mut reply),
        Command::Describe(question) => describe::write(&mut reply, question),
        command => return large::answer(shared, client, batch.pinned(), row, command, output).await,
    }
    counts::count_error_reply(&shared.limiter, client, output.bytes, start);
    Ok(NextStep::Read)
}

/// Describes a master without replicas.
fn write_role(reply: &mut ReplyWriter) {
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
}

/// Writes a line for each rule up to the one that answers.
fn write_explanation(shared: &RespState, scope: &Scope, batch: &mut Batch, pairs: Pairs, reply: &mut ReplyWriter) {
    if let Err(error) = pairs.read_into(&mut batch.operation, shared.limits.max_pairs) {
        return reply.error(error);
    }
    match shared.limiter.explain(&batch.operation, scope) {
        Err(error) => write_limiter_error(&error, reply),
        Ok(explanation) => {
            let lines = explanation.rules.iter().map(ToString::to_string);
            let in_check = explanation.check.iter().flat_map(|check| check.rules.iter().map(ToString::to_string));
            let lines: Vec<_> = lines.chain(explanation.check_line()).chain(in_check).collect();
            reply.array(lines.len());
            for line in &lines {
                reply.bulk(line.as_bytes());
            }
        }
    }
}

/// Writes a map for each rule in scope: its settings, without those that were not given, its name, and its hits.
fn write_rules(limiter: &Limiter, scope: &Scope, reply: &mut ReplyWriter) {
    let Some(policy) = limiter.policy() else { return write_limiter_error(&Refusal::NoRules, reply) };
    let rules: Vec<_> = listed(&policy, scope).collect();
    reply.array(rules.len());
    for (index, rule) in rules {
        let (settings, hits) = (rule.describe(), hits_of(&policy, index, rule, scope));
        reply.map(settings.len() + if hits.is_some() { 3 } else { 1 });
        for (name, value) in settings {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"name");
        reply.bulk(rule.name(index).as_bytes());
        let hits = hits.map(|RuleCount { allowed, denied }| [("allowed", allowed), ("denied", denied)]);
        for (name, hits) in hits.into_iter().flatten() {
            reply.bulk(name.as_bytes());
            reply.unsigned(hits);
        }
    }
}
