//! Commands that are answered alone, after the batch before them: about the connection, the rules, the users, the server; and the
//! operations of operators, with their requests and replies as the table of operations has them.
//!
//! Commands that take long or have long replies wait for a [`WorkSlot`], and their replies count toward the budget of all buffers
//! as soon as they exist.

use std::sync::Arc;

use serde_json::Value;

use super::client::Client;
use super::info::RespFront;
use super::write_limiter_error;
use crate::net::connection::{NextStep, Output};
use crate::net::memory::BudgetExceeded;
use crate::net::work::WorkSlot;
use crate::operations;
use crate::protocol::DEFAULT_MAX_PAIRS;
use crate::protocol::command::command_rows::{CommandRow, find_request};
use crate::protocol::command::describe::{self, commands_of};
use crate::protocol::command::{AclAsk, Command, CommandError, Mistake, START};
use crate::protocol::resp::{Arguments, ReplyWriter};
use divvy_access::{Category, DEFAULT_USER, Grants, User};
use divvy_api::{Arguments as Given, Endpoint, Inspection, Member, Shape, Task};
use divvy_core::rules::Operation;
use divvy_limiter::inspection::{hits_of, listed};
use divvy_limiter::{ActiveRules, Limiter, Refusal, RuleCount, Scope};
use divvy_telemetry::metrics::Bound;

/// Answers a command that does not belong in a batch. `row` is its row in the table of commands. `policy` has the rules for
/// operations, or `None` for those in force.
///
/// # Errors
/// There is no memory for the replies in `output`.
pub async fn answer_alone(
    shared: &Arc<RespFront>,
    client: &mut Client,
    policy: Option<Arc<ActiveRules>>,
    row: &'static CommandRow,
    command: Command<'_>,
    output: &mut Output<'_>,
) -> Result<NextStep, BudgetExceeded> {
    let mut reply = ReplyWriter::new(output.bytes, client.version);
    match command {
        Command::ConfigGet(patterns) => shared.write_settings(patterns, &mut reply),
        Command::Time => shared.write_time(&mut reply),
        Command::Role => write_role(&mut reply),
        Command::Acl(ask) => write_users(client, ask, &mut reply),
        Command::Describe(question) => describe::write(&mut reply, question),
        Command::Operate(..) | Command::Info(_) | Command::DbSize | Command::ClientList => {
            return answer_large(shared, client, policy, row, command, output).await;
        }
        command => return Ok(client.answer(command, output).await),
    }
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
fn write_explanation(limiter: &Limiter, scope: &Scope, operation: &Operation, reply: &mut ReplyWriter) {
    match limiter.explain(operation, scope) {
        Err(error) => write_limiter_error(&error, reply),
        Ok(explanation) => {
            let lines = explanation.rules.iter().map(ToString::to_string);
            let in_check = explanation.check.iter().flat_map(|check| check.rules.iter().map(ToString::to_string));
            let lines: Vec<_> = lines.chain(explanation.check_line()).chain(in_check).collect();
            reply.array(lines.len());
            lines.iter().for_each(|line| reply.bulk(line.as_bytes()));
        }
    }
}

/// Writes a map for each rule in scope: its settings, without those that were not given, its name, and its hits.
fn write_rules(limiter: &Limiter, scope: &Scope, reply: &mut ReplyWriter) {
    let Some(policy) = limiter.active_rules() else { return write_limiter_error(&Refusal::NoRules, reply) };
    let rules: Vec<_> = listed(&policy, scope).collect();
    reply.array(rules.len());
    for (index, rule) in rules {
        let (settings, hits) = (rule.describe(), hits_of(&policy, index, rule, scope));
        reply.map(settings.len() + if hits.is_some() { 4 } else { 2 });
        reply.bulk(b"operation");
        reply.bulk(rule.to_string().as_bytes());
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
            Some(guard) => write_user(guard.authority.users().user(name).map(|user| &***user), reply),
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

/// Answers a large command, as [`answer_alone`] does. The reply is written to the client before the next request is answered.
///
/// # Errors
/// There is no memory for the replies in `output`.
async fn answer_large(
    shared: &Arc<RespFront>,
    client: &mut Client,
    policy: Option<Arc<ActiveRules>>,
    row: &'static CommandRow,
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
    let start = output.bytes.len();
    // The user may have lost the right while the command waited.
    client.gate.refresh();
    let begun = client.check(row).and_then(|()| reply(shared, client, row.category, policy, command));
    match begun {
        Ok(reply) => match slot.run(reply).await {
            Ok(reply) => output.bytes.extend_from_slice(&reply),
            Err(error) => ReplyWriter::new(output.bytes, version).error(format_args!("ERR {error}")),
        },
        Err(error) => {
            if error.mistake == Mistake::TooManyPairs {
                shared.server.limiter.metrics().limits.reached.count(Bound::Pairs);
            }
            if let Command::Operate(endpoint, words) = command {
                record_change(shared, client, endpoint, words, &error);
            }
            ReplyWriter::new(output.bytes, version).error(error);
        }
    }
    if output.account().is_err() {
        output.bytes.truncate(start);
        output.bytes.shrink_to(start);
        ReplyWriter::new(output.bytes, version)
            .error("ERR the server has no memory left for a reply of this size: try again later");
        output.account()?;
    }
    Ok(NextStep::Continue)
}

async fn take_slot(shared: &RespFront, command: &Command<'_>) -> WorkSlot {
    match command {
        Command::Operate(endpoint, _) => shared.server.operations.take_slot(endpoint, &shared.server.slots).await,
        _ => shared.server.slots.take().await,
    }
}

/// A large command that may be carried out.
enum LargeCommand {
    Operate(&'static Endpoint, Given),
    /// The sections of `INFO`.
    Info(Vec<Vec<u8>>),
    DbSize,
    ClientList,
}

/// Begins to answer a large command.
///
/// # Errors
/// The arguments are invalid.
fn reply(
    shared: &Arc<RespFront>,
    client: &Client,
    category: Category,
    policy: Option<Arc<ActiveRules>>,
    command: Command<'_>,
) -> Result<impl Future<Output = Vec<u8>> + Send + use<>, CommandError> {
    let (shared, version) = (Arc::clone(shared), client.version);
    let (scope, operator) = (client.scope().clone(), client.operator(category));
    let command = match command {
        Command::Operate(endpoint, words) => {
            let arguments = Given::from_words(endpoint, words.iter(), shared.server.limits.max_pairs)?;
            LargeCommand::Operate(endpoint, arguments)
        }
        Command::Info(sections) => LargeCommand::Info(sections.iter().map(<[u8]>::to_vec).collect()),
        Command::DbSize => LargeCommand::DbSize,
        _ => LargeCommand::ClientList,
    };
    Ok(async move {
        let mut bytes = Vec::new();
        let mut reply = ReplyWriter::new(&mut bytes, version);
        match command {
            LargeCommand::Operate(endpoint, arguments) => match (endpoint.task, arguments.pairs()) {
                // Both have replies of their own over RESP, which are made of text.
                (Task::Read(Inspection::Rules), _) => write_rules(&shared.server.limiter, &scope, &mut reply),
                (Task::Read(Inspection::Explanation), Some(operation)) => {
                    write_explanation(&shared.server.limiter, &scope, operation, &mut reply);
                }
                _ => match shared.server.operations.run(&operator, endpoint, &arguments, policy).await {
                    Ok(value) => write_reply(&mut reply, &endpoint.reply, &value),
                    Err(error) => write_limiter_error(&error, &mut reply),
                },
            },
            LargeCommand::Info(sections) => reply.bulk(shared.info(&sections).await.as_bytes()),
            LargeCommand::DbSize => shared.write_size(&mut reply).await,
            LargeCommand::ClientList => reply.bulk(shared.clients.list().as_bytes()),
        }
        bytes
    })
}

/// Redis's TTL of a key that does not expire.
const NEVER: i64 = -1;

/// Records a refused request, if it asks for a change. Its arguments may be wrong.
pub fn record_refusal(shared: &RespFront, client: &Client, request: Arguments, error: &CommandError) {
    if let Ok(row) = find_request(request)
        && let Some(endpoint) = row.endpoint
    {
        record_change(shared, client, endpoint, row.words_of(request), error);
    }
}

/// Records a refused operation with these words, if it is a change. After a mistake in them, the record has what stands before.
fn record_change(shared: &RespFront, client: &Client, endpoint: &Endpoint, words: Arguments, error: &CommandError) {
    let Some(action) = endpoint.action() else { return };
    let mut given = Given::default();
    let _mistake = given.take_words(endpoint, words.iter(), DEFAULT_MAX_PAIRS);
    shared.server.operations.audit.refuse(client.caller(), operations::change_of(action, &given), error);
}

/// Writes the reply of an operation.
pub fn write_reply(reply: &mut ReplyWriter<'_>, shape: &Shape, value: &Value) {
    match (shape, value) {
        (Shape::Done(_), _) => reply.simple("OK"),
        (Shape::SecondsLeft, Value::Null) => reply.integer(NEVER),
        (_, Value::Null) => reply.null(),
        (Shape::Maybe(shape) | Shape::Named(_, shape), value) => write_reply(reply, shape, value),
        (_, Value::Bool(flag)) => reply.unsigned((*flag).into()),
        (_, Value::Number(number)) => match number.as_u64() {
            Some(number) => reply.unsigned(number),
            None => reply.integer(number.as_i64().unwrap_or_default()),
        },
        (_, Value::String(text)) => reply.bulk(text.as_bytes()),
        (Shape::Row(members), value) => {
            reply.array(members.len());
            members.iter().for_each(|member| write_member(reply, member, value));
        }
        (Shape::Map(members), value) => {
            reply.map(members.len());
            for member in *members {
                reply.bulk(member.name.as_bytes());
                write_member(reply, member, value);
            }
        }
        (Shape::Only(members), value) => members.iter().for_each(|member| write_member(reply, member, value)),
        (Shape::List(entry), value) => {
            let entries = value.as_array().map_or(&[][..], Vec::as_slice);
            reply.array(entries.len());
            entries.iter().for_each(|value| write_reply(reply, entry, value));
        }
        (Shape::Page { name, of, .. }, value) => {
            let next = value.get("next").and_then(Value::as_str);
            reply.array(2);
            reply.bulk(next.unwrap_or(START).as_bytes());
            write_reply(reply, of, value.get(*name).unwrap_or(&Value::Null));
        }
        // No reply over RESP has values of other shapes.
        (_, Value::Array(_) | Value::Object(_)) => reply.null(),
    }
}

fn write_member(reply: &mut ReplyWriter<'_>, member: &Member, object: &Value) {
    write_reply(reply, &member.shape, object.get(member.name).unwrap_or(&Value::Null));
}

#[cfg(test)]
mod tests;
