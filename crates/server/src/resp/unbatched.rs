//! Commands that are answered alone, after the batch before them.

use std::sync::Arc;

use super::batch::Batch;
use super::client::{Client, Login};
use super::error::{count_error_reply, write_limiter_error};
use super::info::RespState;
use super::large;
use crate::net::connection::{NextStep, Output};
use crate::net::memory::BudgetExceeded;
use crate::protocol::command::describe::{self, commands_of};
use crate::protocol::command::table::Spec;
use crate::protocol::command::{AclAsk, Command, Pairs};
use crate::protocol::resp::ReplyWriter;
use divvy_access::{Category, DEFAULT_USER, Grants, User};
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
    count_error_reply(&shared.limiter, client, output, start);
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
    row: Option<&'static Spec>,
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
        Command::Acl(ask) => write_users(client, ask, &mut reply),
        Command::Describe(question) => describe::write(&mut reply, question),
        command => return large::answer(shared, client, batch.pinned(), row, command, output).await,
    }
    count_error_reply(&shared.limiter, client, output.bytes, start);
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

/// Answers `ACL`, a question about users. The replies contain no hashes of passwords.
fn write_users(client: &Client, ask: AclAsk<'_>, reply: &mut ReplyWriter) {
    match ask {
        AclAsk::WhoAmI => reply.bulk(client.gate.identity().name().unwrap_or(DEFAULT_USER).as_bytes()),
        AclAsk::Categories => {
            reply.array(Category::ALL.len());
            Category::ALL.into_iter().for_each(|category| reply.bulk(category.name().as_bytes()));
        }
        AclAsk::Commands(category) => {
            let names = commands_of(category);
            reply.array(names.len());
            names.iter().for_each(|name| reply.bulk(name.as_bytes()));
        }
        AclAsk::GetUser(name) => match client.gate.guard() {
            Some(guard) => write_user(guard.authority().users().user(name).map(|user| &***user), reply),
            None => write_user(Some(&User::unrestricted()).filter(|user| user.name.as_bytes() == name), reply),
        },
    }
}

/// Writes Redis's fields. Channels and selectors do not exist here.
fn write_user(user: Option<&User>, reply: &mut ReplyWriter) {
    let Some(user) = user else { return reply.null() };
    reply.map(6);
    reply.bulk(b"flags");
    reply.array(1);
    reply.bulk(if user.is_on { b"on" } else { b"off" });
    reply.bulk(b"passwords");
    let kinds = [("sha256", user.digests.len()), ("argon2id", user.slow_hashes.len())];
    reply.array(kinds.iter().map(|(_, count)| count).sum());
    for (kind, count) in kinds {
        (0..count).for_each(|_| reply.bulk(kind.as_bytes()));
    }
    for (field, text) in
        [("commands", Grants(user.granted).to_string()), ("keys", user.scope.to_string()), ("channels", String::new())]
    {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    reply.bulk(b"selectors");
    reply.array(0);
}
