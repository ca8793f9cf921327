//! The operations of operators over RESP: their requests and replies, as the table of operations has them.

use std::fmt::Display;

use serde_json::Value;

use super::client::Client;
use super::error::{count_command_error, count_limit};
use super::info::RespState;
use crate::operations;
use crate::protocol::command::table::find_request;
use crate::protocol::command::{Command, CommandError, Mistake, START};
use crate::protocol::resp::{Arguments, ReplyWriter};
use divvy_access::audit::Change;
use divvy_api::{Arguments as Given, Member, Shape};
use divvy_telemetry::metrics::Bound;

/// Redis's TTL of a key that does not expire.
const NEVER: i64 = -1;

/// Returns the change that a command asks for, if it does.
pub fn change_of(command: &Command<'_>) -> Option<Change> {
    let Command::Operate(endpoint, words) = command else { return None };
    let action = endpoint.action?;
    let given = Given::from_words(endpoint, words.iter(), usize::MAX);
    Some(given.map_or_else(|_| Change::new(action), |given| operations::change_of(action, &given)))
}

/// Records a refused request, if it asks for a change. Its arguments may be wrong.
pub fn record_refusal(shared: &RespState, client: &Client, request: Arguments, error: impl Display) {
    let action = find_request(request).ok().and_then(|found| found.endpoint).and_then(|endpoint| endpoint.action);
    if let Some(action) = action {
        let change = Command::parse(request).ok().as_ref().and_then(change_of).unwrap_or_else(|| Change::new(action));
        shared.operations.audit().refuse(client.caller(), change, error);
    }
}

/// Counts an invalid request, records it if it asks for a change, and writes the error.
pub fn write_error(shared: &RespState, client: &Client, request: Arguments, error: CommandError, output: &mut Vec<u8>) {
    let limiter = &shared.limiter;
    if error.mistake == Mistake::TooManyPairs {
        count_limit(limiter, Some(Bound::Pairs));
    }
    count_command_error(limiter, client, request, &error);
    record_refusal(shared, client, request, &error);
    ReplyWriter::new(output, client.version).error(error);
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
