//! The requests that a session answers together, and the kinds of their replies.

use super::client::Client;
use super::write_limiter_error;
use crate::http::api::answer::Answer;
use crate::protocol::command::{BucketAsk, Command, CommandError, PricedOperation};
use crate::protocol::resp::{ReplyWriter, Version};
use divvy_core::clock::{NANOS_PER_MILLI, ceil_seconds};
use divvy_core::rules::Operation;
use divvy_limiter::{
    Intent, Limiter, Outcome, PlanBuilder, Refusal, Report, Scope, Settled, Settlement, Space, Verdict,
};
use divvy_telemetry::metrics::ErrorKind;

/// Maximum length of a reply to a request of a batch, without errors, reservation ids and JSON (bytes).
const LONGEST_REPLY: usize = 128;
/// Maximum length of an answer in JSON: the names of a stack's rules, and the reason of a block, whose characters may be escaped.
const LONGEST_JSON: usize = 16 * 1024;

/// Requests that wait to be applied together.
#[derive(Default)]
pub struct Batch {
    replies: Vec<PendingReply>,
    /// Maximum length of all reservation ids and answers in JSON in the replies (bytes).
    long: usize,
    operation: Operation,
}

/// A reply that is not written yet.
#[derive(Debug)]
struct PendingReply {
    reply: Reply,
    /// Whether the client does not want this reply.
    is_muted: bool,
}

/// The kind of a reply.
#[derive(Debug)]
enum Reply {
    /// The verdict on the next request.
    Verdict,
    /// The answer of the HTTP API to the next request.
    Json,
    /// The credits left, which may be negative, and the seconds until there are more.
    Balance,
    /// The verdict on the next request, and the id of its reservation, if any.
    Reserved(Version),
    /// A share of the counter of the next request: credits, milliseconds, id, credits left, and the seconds until there are more.
    Share(Version),
    /// The result of a commit, whether a reservation was released, or the seconds that a renewed one lasts.
    Settled(Settlement),
    /// The tokens before the request.
    Tokens,
    /// The tokens before the request, and the start of the session.
    Session,
    /// redis-cell's five numbers, for a bucket of this capacity.
    Throttle { capacity: u64 },
    /// The counter's value, and the increment that was applied.
    Increment,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Returns the maximum length of the replies, without errors (bytes).
    pub fn owed(&self) -> usize {
        self.replies.len() * LONGEST_REPLY + self.long
    }

    /// Returns the memory of the buffers, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.operation.memory() + self.replies.capacity() * size_of::<PendingReply>()
    }

    /// Adds a command of a user with this scope to the plan of `builder`, or returns it if it does not belong in a batch. The reply is in
    /// this version of the protocol. A muted command gets no reply.
    pub fn push<'a>(
        &mut self,
        command: Command<'a>,
        (limiter, builder): (&Limiter, &mut PlanBuilder),
        scope: &Scope,
        max_pairs: usize,
        version: Version,
        is_muted: bool,
    ) -> Result<Option<Command<'a>>, CommandError> {
        builder.set_scope(scope);
        let reply = match command {
            Command::Ask(intent, request) => self.push_priced(builder, request, intent, max_pairs)?,
            Command::Reserve(pairs, reserve) => {
                pairs.read_into(&mut self.operation, max_pairs)?;
                builder.add_reservation(&self.operation, reserve);
                self.long += builder.id_length(builder.plan().len() - 1);
                Reply::Reserved(version)
            }
            Command::Share(pairs, want) => {
                pairs.read_into(&mut self.operation, max_pairs)?;
                builder.add_share(&self.operation, want);
                self.long += builder.share_id_length();
                Reply::Share(version)
            }
            Command::Settle(id, settlement) => {
                match limiter.read_id(id) {
                    Ok(id) => builder.settle(&id, settlement),
                    Err(refusal) => builder.add_refused(refusal),
                }
                Reply::Settled(settlement)
            }
            Command::Tokens(request) => push_bucket(builder, request, Space::TokenBucket, Reply::Tokens),
            Command::Session(request) => push_bucket(builder, request, Space::TokenBucket, Reply::Session),
            Command::Throttle(request) => {
                push_bucket(builder, request, Space::Throttle, Reply::Throttle { capacity: request.limit.capacity() })
            }
            Command::Increment(request) => push_bucket(builder, request, Space::Counter, Reply::Increment),
            other => return Ok(Some(other)),
        };
        self.replies.push(PendingReply { reply, is_muted });
        Ok(None)
    }

    fn push_priced(
        &mut self,
        builder: &mut PlanBuilder,
        PricedOperation { pairs, cost, id, in_json }: PricedOperation,
        intent: Intent,
        max_pairs: usize,
    ) -> Result<Reply, CommandError> {
        pairs.read_into(&mut self.operation, max_pairs)?;
        match id {
            None => builder.add(&self.operation, intent, cost),
            Some(id) => builder.add_idempotent(&self.operation, intent, cost, id),
        }
        if in_json {
            self.long += LONGEST_JSON;
            return Ok(Reply::Json);
        }
        Ok(if matches!(intent, Intent::Hit | Intent::Peek) { Reply::Verdict } else { Reply::Balance })
    }

    /// Writes the replies.
    pub fn write(&mut self, limiter: &Limiter, client: &Client, report: Report<'_>, output: &mut Vec<u8>) {
        for (index, PendingReply { reply, is_muted }) in self.replies.drain(..).enumerate() {
            let start = output.len();
            // Only nulls differ between the versions of the protocol.
            let version =
                if let Reply::Reserved(version) | Reply::Share(version) = reply { version } else { Version::default() };
            let mut writer = ReplyWriter::new(output, version);
            if let Err(refusal) = write_reply(limiter, report, index, &reply, &mut writer) {
                client.count_error(limiter, ErrorKind::Unknown, &refusal);
                write_limiter_error(&refusal, &mut writer);
            }
            if is_muted {
                output.truncate(start);
            }
        }
        self.long = 0;
    }
}

fn push_bucket(builder: &mut PlanBuilder, request: BucketAsk, space: Space, reply: Reply) -> Reply {
    builder.add_bucket(space, request.key, request.limit, request.ask, request.at);
    reply
}

fn write_reply(
    limiter: &Limiter,
    report: Report<'_>,
    index: usize,
    reply: &Reply,
    writer: &mut ReplyWriter,
) -> Result<(), Refusal> {
    match reply {
        Reply::Verdict => {
            let verdict = report.verdict(index)?;
            writer.verdict(verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
        }
        Reply::Json => {
            let mut json = Vec::new();
            Answer::with_note(report, index)?.write_json(&mut json);
            writer.bulk(json.trim_ascii_end());
        }
        Reply::Balance => {
            let verdict = report.verdict(index)?;
            writer.array(2);
            writer.integer(verdict.balance());
            writer.unsigned(ceil_seconds(verdict.reset_ns));
        }
        Reply::Reserved(_) => {
            let reserved = report.reserved(index)?;
            let id = reserved.id.map(|id| limiter.write_id(id)).transpose()?;
            write_reserved(&reserved.verdict, id.as_deref(), writer);
        }
        Reply::Share(_) => {
            let share = report.share(index)?;
            let id = share.id.map(|id| limiter.write_id(id)).transpose()?;
            writer.array(5);
            writer.unsigned(share.credits.into());
            writer.unsigned(share.usable_ns / NANOS_PER_MILLI);
            write_id(id.as_deref(), writer);
            writer.unsigned(share.verdict.credit);
            writer.unsigned(ceil_seconds(share.verdict.reset_ns));
        }
        Reply::Settled(Settlement::Return { .. }) => writer.unsigned(report.settled(index)?.is_returned().into()),
        Reply::Settled(Settlement::Commit { .. }) => write_committed(&report.committed(index)?, writer),
        Reply::Settled(Settlement::Release) => writer.unsigned(report.settled(index)?.is_released().into()),
        Reply::Settled(Settlement::Renew { ttl_seconds }) => {
            writer.unsigned(report.settled(index)?.lasts_seconds(*ttl_seconds).unwrap_or(0));
        }
        Reply::Tokens => writer.unsigned(report.outcome(index)?.before),
        Reply::Session => write_session(&report.outcome(index)?, writer),
        Reply::Throttle { capacity } => write_throttle(&report.outcome(index)?, *capacity, writer),
        Reply::Increment => {
            let outcome = report.outcome(index)?;
            let value = outcome.left.cast_signed();
            let applied = value.checked_sub(outcome.before.cast_signed()).ok_or(Refusal::LongIncrement)?;
            writer.array(2);
            writer.integer(value);
            writer.integer(applied);
        }
    }
    Ok(())
}

/// Writes the reply to a hit, and the id, or null if nothing is reserved.
fn write_reserved(verdict: &Verdict, id: Option<&str>, writer: &mut ReplyWriter) {
    writer.array(4);
    writer.integer(verdict.allowed.into());
    writer.unsigned(verdict.credit);
    writer.unsigned(ceil_seconds(verdict.reset_ns));
    write_id(id, writer);
}

fn write_id(id: Option<&str>, writer: &mut ReplyWriter) {
    match id {
        Some(id) => writer.bulk(id.as_bytes()),
        None => writer.null(),
    }
}

/// Writes the balance, the seconds until there are more credits, and the reservation's status.
fn write_committed(settled: &Settled, writer: &mut ReplyWriter) {
    writer.array(3);
    writer.integer(settled.verdict.balance());
    writer.unsigned(ceil_seconds(settled.verdict.reset_ns));
    writer.bulk(settled.word().as_bytes());
}

fn write_session(outcome: &Outcome, writer: &mut ReplyWriter) {
    writer.array(2);
    writer.unsigned(outcome.before);
    writer.unsigned(outcome.session.as_nanos() / NANOS_PER_MILLI);
}

/// Writes the times in seconds, rounded up, so that a client that waits that long is not denied again.
fn write_throttle(outcome: &Outcome, capacity: u64, writer: &mut ReplyWriter) {
    writer.array(5);
    writer.integer(i64::from(!outcome.allowed));
    writer.unsigned(capacity);
    writer.unsigned(outcome.left);
    match outcome.retry_ns {
        Some(nanos) => writer.unsigned(ceil_seconds(nanos)),
        None => writer.integer(-1),
    }
    writer.unsigned(ceil_seconds(outcome.reset_ns));
}
