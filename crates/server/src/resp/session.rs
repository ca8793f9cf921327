//! One connection of the RESP front.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::batch::Batch;
use super::client::Client;
use super::info::RespFront;
use super::single_commands::{answer_alone, record_refusal};
use super::transaction::{Execution, Transaction};
use crate::net::auth::Gate;
use crate::net::connection::{Cut, NextStep, Output, Session};
use crate::net::memory::{self, BudgetExceeded, RequestMemory, SMALL, pooled};
use crate::protocol::command::command_rows::{CommandRow, find_request, is_optional};
use crate::protocol::command::{Command, CommandError, Mistake};
use crate::protocol::resp::{Arguments, Decoder, ProtocolError, ReplyWriter};
use divvy_telemetry::metrics::{Bound, ErrorKind, RequestKind, RequestTally};

/// Maximum number of requests in a batch. Further requests wait in the input.
const MAX_BATCH: usize = 512;
/// Bytes of replies to commands that are answered alone, muted ones included, after which other connections have a turn.
const TURN_BYTES: usize = 64 * 1024;
/// Bytes that count for such a command in addition to its reply.
const BYTES_OF_A_COMMAND: usize = 128;

// Error replies, in Redis's words where Redis has some.
const NESTED_MULTI: &str = "ERR MULTI calls can not be nested";
const EXEC_WITHOUT_MULTI: &str = "ERR EXEC without MULTI";
const DISCARD_WITHOUT_MULTI: &str = "ERR DISCARD without MULTI";
const EXEC_ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const NO_WATCH: &str = "ERR WATCH is not supported: counters are not keys that a client reads and writes back. \
                        MULTI and EXEC work without it";
const NO_ROOM_TO_QUEUE: CommandError = CommandError::fixed(
    "ERR the server has no memory left to queue this command: EXEC will discard the transaction; try again later",
);

/// The session of one client.
pub struct RespSession {
    decoder: Decoder,
    answerer: Answerer,
}

/// Answers the requests of a session.
struct Answerer {
    shared: Arc<RespFront>,
    client: Client,
    request_memory: RequestMemory,
    /// The transaction that `MULTI` began.
    transaction: Option<Transaction>,
    /// The transaction that `EXEC` ended, until its requests are answered.
    executing: Option<Execution>,
    /// The last command.
    last: Option<&'static CommandRow>,
    tally: RequestTally,
    /// Counts up to [`TURN_BYTES`].
    turn: usize,
}

pooled!(Box<Batch>, |batch| batch.memory());

impl RespSession {
    /// Creates the session of a client. `certificate` is the name in its certificate.
    pub fn new(
        shared: Arc<RespFront>,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> Self {
        let gate = Gate::new(shared.guard.clone(), peer, certificate);
        let decoder = Decoder::new(shared.limits.resp);
        let answerer = Answerer {
            client: Client::new(shared.clients.register(peer, local), gate),
            request_memory: RequestMemory::new(&shared.memory),
            shared,
            transaction: None,
            executing: None,
            last: None,
            tally: RequestTally::default(),
            turn: 0,
        };
        Self { decoder, answerer }
    }
}

impl Session for RespSession {
    fn is_admitted(&self) -> bool {
        self.answerer.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        let mut batch: Box<Batch> = memory::take();
        let answered = self.answer_all(&mut batch, input, output).await;
        self.answerer.end_turn();
        match answered {
            Ok(next) => {
                batch.pin(None);
                memory::give(batch);
                next
            }
            Err(BudgetExceeded) => {
                self.cut(Cut::NoMemory, output.bytes);
                NextStep::Close
            }
        }
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        self.answerer.write_final_error(format_args!("ERR {cut}"), output);
    }
}

impl RespSession {
    /// Answers the rest of a transaction, and the complete requests in `input`.
    ///
    /// # Errors
    /// There is no memory for the replies in `output`.
    async fn answer_all(
        &mut self,
        batch: &mut Batch,
        input: &mut BytesMut,
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        let Self { decoder, answerer } = self;
        batch.pin(answerer.executing.as_ref().and_then(|execution| execution.policy.clone()));
        loop {
            if answerer.is_turn_over(batch, output) {
                answerer.settle(batch, output).await?;
                let Some(execution) = &mut answerer.executing else { return Ok(NextStep::Continue) };
                // Shrinking always succeeds.
                let _ = execution.transaction.account();
                if output.bytes.len() >= answerer.shared.limits.write_threshold {
                    return Ok(NextStep::Continue);
                }
                // The replies wait in the output, because the transaction has already reserved their memory.
                answerer.turn = 0;
                tokio::task::yield_now().await;
            }
            answerer.client.gate.refresh();
            if let Some(execution) = &mut answerer.executing {
                match execution.transaction.pop() {
                    Some(request) => {
                        let request = request.arguments();
                        answerer.wait_for_memory(request.span().0.len(), batch, output).await?;
                        let next = answerer.answer(request, batch, output).await?;
                        if next != NextStep::Read {
                            return Ok(next);
                        }
                    }
                    None => {
                        answerer.settle(batch, output).await?;
                        answerer.executing = None;
                        batch.pin(None);
                    }
                }
                continue;
            }
            let limits = answerer.shared.limits.resp;
            decoder.set_limits(if answerer.client.gate.is_open() { limits } else { limits.before_login() });
            let consumed = match decoder.decode(input) {
                Ok(None) => {
                    answerer.settle(batch, output).await?;
                    return Ok(NextStep::Read);
                }
                Ok(Some(consumed)) => consumed,
                Err(error) => {
                    answerer.settle(batch, output).await?;
                    // A length that is not a number counts, too.
                    let limit = match error {
                        ProtocolError::ArrayLength => Some(Bound::Arguments),
                        ProtocolError::BulkLength => Some(Bound::Argument),
                        ProtocolError::RequestTooBig | ProtocolError::InlineTooBig => Some(Bound::Request),
                        _ => None,
                    };
                    if let Some(limit) = limit {
                        answerer.shared.limiter.metrics().limits.reached(limit);
                    }
                    answerer.tally.count(RequestKind::Invalid);
                    answerer.write_final_error(error, output.bytes);
                    return Ok(NextStep::Close);
                }
            };
            // A queued request needs the memory only at `EXEC`.
            if consumed > SMALL && answerer.transaction.is_none() {
                answerer.wait_for_memory(consumed, batch, output).await?;
            }
            let next = answerer.answer(decoder.arguments(input), batch, output).await?;
            input.advance(consumed);
            if next != NextStep::Read {
                return Ok(next);
            }
        }
    }
}

impl Answerer {
    /// Returns whether the batch must be settled, and other connections have a turn.
    fn is_turn_over(&mut self, batch: &Batch, output: &Output<'_>) -> bool {
        batch.len() >= MAX_BATCH
            || self.turn >= TURN_BYTES
            || output.bytes.len() + batch.owed() >= self.shared.limits.write_threshold
            || !self.request_memory.fits(batch.weight())
    }

    /// Answers the requests of the batch.
    async fn settle(&mut self, batch: &mut Batch, output: &mut Output<'_>) -> Result<(), BudgetExceeded> {
        batch.settle(&self.shared.limiter, &self.client, &mut self.request_memory, output).await
    }

    fn end_turn(&mut self) {
        self.turn = 0;
        self.request_memory.give_back();
        self.shared.requests.take(&mut self.tally);
        self.record_activity();
    }

    fn record_activity(&mut self) {
        let queued = self.transaction.as_ref().map(Transaction::count);
        self.client.registration.record_activity(self.last.take(), queued);
    }

    /// Counts an error after which the connection is closed, and writes it.
    fn write_final_error(&self, error: impl Display, output: &mut Vec<u8>) {
        self.client.count_error(&self.shared.limiter, ErrorKind::Unknown, &error);
        if !self.client.is_silent() {
            ReplyWriter::new(output, self.client.version).error(error);
        }
    }

    /// Waits for the memory of a large request, after the answers before it.
    #[cold]
    async fn wait_for_memory(
        &mut self,
        bytes: usize,
        batch: &mut Batch,
        output: &mut Output<'_>,
    ) -> Result<(), BudgetExceeded> {
        if !self.request_memory.admits(&self.shared.limiter, batch.weight(), bytes) {
            self.settle(batch, output).await?;
            self.request_memory.wait_for_request(&self.shared.limiter, bytes).await;
            self.client.gate.refresh();
        }
        Ok(())
    }

    /// Reads a request that the client may send.
    #[inline]
    fn read<'a>(&mut self, request: Arguments<'a>) -> Result<(&'static CommandRow, Command<'a>), CommandError> {
        let row = match find_request(request) {
            Ok(row) => row,
            // Without a login, unknown commands are answered like known ones.
            Err(_) if !self.client.gate.is_open() => return Err(CommandError::NO_AUTH),
            Err(error) => return Err(error),
        };
        self.client.check(row)?;
        self.last = Some(row);
        Ok((row, row.parse(request)?))
    }

    /// Adds a request to the batch or the transaction, or settles the batch and answers the request.
    async fn answer(
        &mut self,
        request: Arguments<'_>,
        batch: &mut Batch,
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        if request.is_empty() {
            return Ok(NextStep::Read);
        }
        let is_exec_muted = self.executing.as_ref().is_some_and(|execution| execution.is_muted);
        let is_muted = self.client.begin_request() || is_exec_muted;
        let read = self.read(request);
        if let Some(transaction) = &mut self.transaction
            && !read.as_ref().is_ok_and(|(_, command)| command.is_never_queued())
        {
            let queued = match read {
                Ok((_, command)) => command.check_count(self.shared.limits.max_pairs),
                Err(error) if error.mistake == Mistake::Argument => Ok(()),
                Err(error) => Err(error),
            };
            let queued = queued.and_then(|()| transaction.queue(request).map_err(|BudgetExceeded| NO_ROOM_TO_QUEUE));
            match queued {
                Ok(()) if is_muted => {}
                Ok(()) => ReplyWriter::new(output.bytes, self.client.version).simple("QUEUED"),
                Err(error) => {
                    self.tally.count(RequestKind::Invalid);
                    transaction.abort();
                    if error.mistake == Mistake::Unauthenticated {
                        // The requests before it may have had a user, who is gone now.
                        self.transaction = None;
                    }
                    self.refuse(request, error, is_muted, output.bytes);
                }
            }
            return Ok(NextStep::Read);
        }
        let pushed = match read {
            Ok((row, command)) => {
                self.tally.count(row.kind);
                let (limiter, limits) = (&self.shared.limiter, &self.shared.limits);
                let (scope, version) = (self.client.scope(), self.client.version);
                let pushed = batch.push(command, limiter, scope, limits.max_pairs, version, is_muted);
                pushed.map(|alone| alone.map(|command| (row, command)))
            }
            Err(error) => {
                self.tally.count(if is_optional(request) { RequestKind::Connection } else { RequestKind::Invalid });
                Err(error)
            }
        };
        let Some(alone) = pushed.transpose() else { return Ok(NextStep::Read) };
        self.settle(batch, output).await?;
        let (row, command) = match alone {
            Ok(alone) => alone,
            Err(error) => {
                self.refuse(request, error, is_muted, output.bytes);
                return Ok(NextStep::Read);
            }
        };
        self.shared.requests.take(&mut self.tally);
        // This command may be the one that lists the activity.
        self.record_activity();
        let is_muted = is_exec_muted || (is_muted && !command.ends_silence());
        let start = output.bytes.len();
        let mut next = NextStep::Read;
        let mut reply = ReplyWriter::new(output.bytes, self.client.version);
        match (command, self.transaction.take()) {
            (Command::Multi, None) => {
                self.transaction = Some(Transaction::new(self.shared.memory.share()));
                reply.simple("OK");
            }
            (Command::Multi, begun) => {
                self.transaction = begun;
                reply.error(NESTED_MULTI);
            }
            (Command::Exec, None) => reply.error(EXEC_WITHOUT_MULTI),
            (Command::Exec, Some(transaction)) if transaction.is_aborted => reply.error(EXEC_ABORTED),
            (Command::Exec, Some(transaction)) => {
                reply.array(transaction.count());
                let policy = self.shared.limiter.active_rules();
                batch.pin(policy.clone());
                self.executing = Some(Execution { transaction, policy, is_muted });
            }
            (Command::Discard, None) => reply.error(DISCARD_WITHOUT_MULTI),
            (Command::Discard, Some(_)) => reply.simple("OK"),
            (Command::Watch, begun) => {
                self.transaction = begun;
                reply.error(NO_WATCH);
            }
            (command, _) => {
                let policy = batch.pinned.clone();
                next = answer_alone(&self.shared, &mut self.client, policy, row, command, output).await?;
                self.turn += output.bytes.len().saturating_sub(start) + BYTES_OF_A_COMMAND;
            }
        }
        if let Some([b'-', error @ ..]) = output.bytes.get(start..) {
            let line = error.split(|byte| *byte == b'\r').next().unwrap_or_default();
            self.client.count_error(&self.shared.limiter, ErrorKind::Unknown, String::from_utf8_lossy(line));
        }
        if is_muted {
            output.bytes.truncate(start);
        }
        Ok(next)
    }

    /// Counts an invalid request, records it if it asks for a change, and writes the error unless the client wants no reply.
    fn refuse(&self, request: Arguments, error: CommandError, is_muted: bool, output: &mut Vec<u8>) {
        let (limiter, client) = (&self.shared.limiter, &self.client);
        if error.mistake == Mistake::TooManyPairs {
            limiter.metrics().limits.reached(Bound::Pairs);
        }
        match error.mistake {
            // Clients probe whether they have to log in, so this is no error reply that counts.
            Mistake::Unauthenticated => client.note_error(ErrorKind::Unauthenticated, &error),
            // Clients work without it.
            _ if is_optional(request) => {}
            Mistake::UnknownCommand => client.count_error(limiter, ErrorKind::UnknownCommand, &error),
            _ => client.count_error(limiter, ErrorKind::Unknown, &error),
        }
        record_refusal(&self.shared, client, request, &error);
        if !is_muted {
            ReplyWriter::new(output, client.version).error(error);
        }
    }
}
