//! The requests that a session answers together, and the kind of reply that each of them gets.

use crate::algorithm::Outcome;
use crate::clock::{NANOS_PER_MILLI, ceil_seconds};
use crate::limiter::{Intent, Limiter, Refusal, Requests};
use crate::protocol::command::{BucketAsk, Command, CommandError, Pairs};
use crate::protocol::resp::ReplyWriter;
use crate::rules::Operation;
use crate::store::key::Space;

/// Requests that wait to be applied together.
#[derive(Default)]
pub struct Batch {
    pub requests: Requests,
    replies: Vec<Reply>,
    pub operation: Operation,
}

/// What a request is answered with.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Verdict,
    /// How many counters were forgotten.
    Forgotten,
    /// The tokens that were there before.
    Tokens,
    /// The tokens that were there before, and the session's start.
    Session,
    /// redis-cell's five numbers, for a bucket of this capacity.
    Throttle {
        capacity: u64,
    },
}

impl Batch {
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// Takes the command into the batch, or gives it back when it is not one for it.
    pub fn push<'a>(&mut self, command: Command<'a>, max_pairs: usize) -> Result<Option<Command<'a>>, CommandError> {
        let reply = match command {
            Command::Hit(pairs) => self.push_operation(pairs, Intent::Hit, max_pairs)?,
            Command::Peek(pairs) => self.push_operation(pairs, Intent::Peek, max_pairs)?,
            Command::Forget(pairs) => self.push_operation(pairs, Intent::Forget, max_pairs)?,
            Command::Tokens(asked) => self.push_bucket(asked, Space::TokenBucket, Reply::Tokens),
            Command::Session(asked) => self.push_bucket(asked, Space::TokenBucket, Reply::Session),
            Command::Throttle(asked) => {
                self.push_bucket(asked, Space::Throttle, Reply::Throttle { capacity: asked.limit.capacity() })
            }
            other => return Ok(Some(other)),
        };
        self.replies.push(reply);
        Ok(None)
    }

    fn push_operation(&mut self, pairs: Pairs, intent: Intent, max_pairs: usize) -> Result<Reply, CommandError> {
        pairs.read_into(&mut self.operation, max_pairs)?;
        self.requests.push(&self.operation, intent);
        Ok(if intent == Intent::Forget { Reply::Forgotten } else { Reply::Verdict })
    }

    fn push_bucket(&mut self, asked: BucketAsk, space: Space, reply: Reply) -> Reply {
        self.requests.push_bucket(space, asked.key, asked.limit, asked.ask, asked.at);
        reply
    }

    /// Applies the batch, writes its replies, and begins another.
    pub async fn settle(&mut self, limiter: &Limiter, output: &mut Vec<u8>) {
        if self.replies.is_empty() {
            return;
        }
        limiter.apply(&mut self.requests).await;
        // Numbers and errors look the same in both versions of the protocol.
        let mut writer = ReplyWriter::new(output, Default::default());
        for (index, reply) in self.replies.drain(..).enumerate() {
            if let Err(refusal) = write_reply(&self.requests, index, reply, &mut writer) {
                limiter.metrics().errors.unknown.inc();
                write_refusal(&refusal, &mut writer);
            }
        }
        limiter.begin(&mut self.requests);
    }
}

fn write_reply(requests: &Requests, index: usize, reply: Reply, writer: &mut ReplyWriter) -> Result<(), Refusal> {
    match reply {
        Reply::Verdict => {
            let verdict = requests.verdict(index)?;
            writer.verdict(verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
        }
        Reply::Forgotten => writer.unsigned(requests.forgotten(index)? as u64),
        Reply::Tokens => writer.unsigned(requests.outcome(index)?.before),
        Reply::Session => write_session(&requests.outcome(index)?, writer),
        Reply::Throttle { capacity } => write_throttle(&requests.outcome(index)?, capacity, writer),
    }
    Ok(())
}

fn write_session(outcome: &Outcome, writer: &mut ReplyWriter) {
    writer.array(2);
    writer.unsigned(outcome.before);
    writer.unsigned(outcome.session.unwrap_or_default().as_nanos() / NANOS_PER_MILLI);
}

/// Seconds are rounded up: who waits so long is let in.
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

pub fn write_refusal(refusal: &Refusal, writer: &mut ReplyWriter) {
    writer.error(format_args!("ERR {refusal}"));
}
