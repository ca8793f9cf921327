//! The requests that a session answers together, and the kind of reply that each of them gets.

use std::ops::Range;
use std::sync::Arc;

use crate::clock::{NANOS_PER_MILLI, ceil_seconds};
use crate::limiter::{Intent, Limiter, Outcome, Policy, Refusal, Requests, Space};
use crate::protocol::command::{BucketAsk, Command, CommandError, Pairs};
use crate::protocol::resp::ReplyWriter;
use crate::rules::Operation;
use crate::server::connection::Outgoing;
use crate::server::memory::UsedUp;
use crate::server::told;

/// Requests that wait to be applied together.
#[derive(Default)]
pub struct Batch {
    pub requests: Requests,
    /// The requests are dated, and have their rules.
    is_begun: bool,
    replies: Vec<Owed>,
    /// Replies that are written already and wait for those before them.
    texts: Vec<u8>,
    pub operation: Operation,
    /// The rules of all batches until further notice: those that were in force at `EXEC`.
    pinned: Option<Arc<Policy>>,
}

/// A reply that is due.
#[derive(Debug)]
struct Owed {
    reply: Reply,
    /// The client wants to hear nothing of it.
    is_muted: bool,
}

/// What a request is answered with.
#[derive(Debug)]
enum Reply {
    /// The verdict on the next request.
    Verdict,
    /// What is left now, below 0 where more was used, and when there is more.
    Balance,
    /// How many counters were forgotten.
    Forgotten,
    /// The tokens that were there before.
    Tokens,
    /// The tokens that were there before, and the session's start.
    Session,
    /// redis-cell's five numbers, for a bucket of this capacity.
    Throttle { capacity: u64 },
    /// What is here in the texts; no request belongs to it.
    Text(Range<usize>),
}

impl Batch {
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.requests.memory()
            + self.operation.memory()
            + self.texts.capacity()
            + self.replies.capacity() * size_of::<Owed>()
    }

    /// Begins with the first request, under the rules that are in force, or those of [`Batch::pin`].
    fn begin(&mut self, limiter: &Limiter) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        match &self.pinned {
            Some(policy) => limiter.begin_under(&mut self.requests, Some(Arc::clone(policy))),
            None => limiter.begin(&mut self.requests),
        }
    }

    /// From now on, every batch goes by these rules, or with `None` by those in force. To be called while it is empty.
    pub fn pin(&mut self, policy: Option<Arc<Policy>>) {
        self.pinned = policy;
        self.is_begun = false;
    }

    /// Lets go of the rules once all is answered.
    pub fn release(&mut self) {
        self.pin(None);
        self.requests.release_policy();
    }

    /// Takes the command into the batch, or gives it back when it is not one for it. A muted one gets no reply.
    pub fn push<'a>(
        &mut self,
        command: Command<'a>,
        limiter: &Limiter,
        max_pairs: usize,
        is_muted: bool,
    ) -> Result<Option<Command<'a>>, CommandError> {
        self.begin(limiter);
        let reply = match command {
            Command::Hit(asked) => self.push_operation(asked.pairs, Intent::Hit, asked.cost, max_pairs)?,
            Command::Peek(asked) => self.push_operation(asked.pairs, Intent::Peek, asked.cost, max_pairs)?,
            Command::Charge(asked) => self.push_operation(asked.pairs, Intent::Charge, asked.cost, max_pairs)?,
            Command::Refund(asked) => self.push_operation(asked.pairs, Intent::Refund, asked.cost, max_pairs)?,
            Command::Forget(pairs) => self.push_operation(pairs, Intent::Forget, None, max_pairs)?,
            Command::Tokens(asked) => self.push_bucket(asked, Space::TokenBucket, Reply::Tokens),
            Command::Session(asked) => self.push_bucket(asked, Space::TokenBucket, Reply::Session),
            Command::Throttle(asked) => {
                self.push_bucket(asked, Space::Throttle, Reply::Throttle { capacity: asked.limit.capacity() })
            }
            other => return Ok(Some(other)),
        };
        self.replies.push(Owed { reply, is_muted });
        Ok(None)
    }

    /// Takes a reply that needs no request into its place, which `write` appends.
    pub fn push_text(&mut self, is_muted: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.texts.len();
        write(&mut self.texts);
        self.replies.push(Owed { reply: Reply::Text(start..self.texts.len()), is_muted });
    }

    fn push_operation(
        &mut self,
        pairs: Pairs,
        intent: Intent,
        cost: Option<u64>,
        max_pairs: usize,
    ) -> Result<Reply, CommandError> {
        pairs.read_into(&mut self.operation, max_pairs)?;
        self.requests.push_at_cost(&self.operation, intent, cost);
        Ok(match intent {
            Intent::Hit | Intent::HitOrCharge | Intent::Peek => Reply::Verdict,
            Intent::Charge | Intent::Refund => Reply::Balance,
            Intent::Forget => Reply::Forgotten,
        })
    }

    fn push_bucket(&mut self, asked: BucketAsk, space: Space, reply: Reply) -> Reply {
        self.requests.push_bucket(space, asked.key, asked.limit, asked.ask, asked.at);
        reply
    }

    /// Applies the batch and writes its replies; what comes next begins another.
    ///
    /// # Errors
    /// There is no memory for what `output` holds already; nothing is applied.
    pub async fn settle(&mut self, limiter: &Limiter, output: &mut Outgoing<'_>) -> Result<(), UsedUp> {
        if self.replies.is_empty() {
            return Ok(());
        }
        output.account()?;
        if std::mem::take(&mut self.is_begun) {
            limiter.apply(&mut self.requests).await;
        }
        let mut request = 0;
        for Owed { reply, is_muted } in self.replies.drain(..) {
            let start = output.bytes.len();
            // Numbers and errors look the same in both versions of the protocol.
            let mut writer = ReplyWriter::new(output.bytes, Default::default());
            match reply {
                Reply::Text(place) => output.bytes.extend_from_slice(self.texts.get(place).unwrap_or_default()),
                reply => {
                    if let Err(refusal) = write_reply(&self.requests, request, &reply, &mut writer) {
                        limiter.metrics().errors.unknown.inc();
                        write_refusal(&refusal, &mut writer);
                    }
                    request += 1;
                }
            }
            if is_muted {
                output.bytes.truncate(start);
            }
        }
        self.texts.clear();
        Ok(())
    }
}

fn write_reply(requests: &Requests, index: usize, reply: &Reply, writer: &mut ReplyWriter) -> Result<(), Refusal> {
    match reply {
        Reply::Verdict => {
            let verdict = requests.verdict(index)?;
            writer.verdict(verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
        }
        Reply::Balance => {
            let verdict = requests.verdict(index)?;
            writer.array(2);
            writer.integer(verdict.balance());
            writer.unsigned(ceil_seconds(verdict.reset_ns));
        }
        Reply::Forgotten => writer.unsigned(requests.forgotten(index)? as u64),
        Reply::Tokens => writer.unsigned(requests.outcome(index)?.before),
        Reply::Session => write_session(&requests.outcome(index)?, writer),
        Reply::Throttle { capacity } => write_throttle(&requests.outcome(index)?, *capacity, writer),
        Reply::Text(_) => {}
    }
    Ok(())
}

fn write_session(outcome: &Outcome, writer: &mut ReplyWriter) {
    writer.array(2);
    writer.unsigned(outcome.before);
    writer.unsigned(outcome.session.as_nanos() / NANOS_PER_MILLI);
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
    writer.error(format_args!("ERR {}", told::refusal(refusal)));
}
