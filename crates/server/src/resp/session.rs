//! One connection of the RESP front.

use std::fmt::Display;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::batch::Batch;
use super::client::Client;
use super::info::RespFront;
use super::single_commands::{answer_alone, record_refusal};
use super::transaction::{Execution, Transaction};
use crate::errors::ERROR_LOG;
use crate::net::auth::Gate;
use crate::net::connection::{ConnectionContext, Cut, NextStep, Output, Session};
use crate::net::memory::{self, BudgetExceeded, RequestMemory, SMALL, pooled};
use crate::net::protocol::Protocol;
use crate::protocol::command::command_rows::{CommandRow, find_request, is_optional};
use crate::protocol::command::{Command, CommandError, Mistake};
use crate::protocol::resp::{Arguments, Decoder, ProtocolError, ReplyWriter};
use divvy_limiter::{ActiveRules, PlanBuilder};
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
    shared: Arc<RespFront>,
    requests: Requests,
    answerer: Answerer,
}

/// Where requests come from: the client's input, or a transaction.
struct Requests {
    decoder: Decoder,
    /// The transaction that `EXEC` ended, until its requests are answered.
    executing: Option<Execution>,
}

/// Answers the requests of a session.
struct Answerer {
    client: Client,
    request_memory: RequestMemory,
    /// The transaction that `MULTI` began.
    transaction: Option<Transaction>,
    /// The last command.
    last: Option<&'static CommandRow>,
    tally: RequestTally,
    /// Counts up to [`TURN_BYTES`].
    turn: usize,
}

/// Why a session adds no more requests to a batch.
enum Stop {
    /// There is no other complete request.
    Read,
    /// Other connections have a turn.
    TurnOver,
    /// The next request, which has this length, needs memory.
    Memory(usize),
    /// The next request, which has this length, is answered alone.
    Alone { asked: Result<&'static CommandRow, CommandError>, length: usize, is_muted: bool },
    /// The transaction has no other request.
    Executed,
    /// The input is no request.
    Broken(ProtocolError),
}

pooled!(Box<Batch>, |batch| batch.memory());

impl RespSession {
    /// Creates the session of a client. `certificate` is the name in its certificate.
    pub fn new(shared: &Arc<RespFront>, context: &ConnectionContext) -> Self {
        let gate = Gate::new(shared.guard.clone(), context.peer, context.certificate.clone());
        let requests = Requests { decoder: Decoder::new(shared.server.limits.resp), executing: None };
        let answerer = Answerer {
            client: Client::new(shared.clients.register(context.peer, context.local), gate),
            request_memory: RequestMemory::new(&shared.server.memory),
            transaction: None,
            last: None,
            tally: RequestTally::default(),
            turn: 0,
        };
        Self { shared: Arc::clone(shared), requests, answerer }
    }
}

impl Session for RespSession {
    fn has_room(&self) -> bool {
        self.shared.server.limiter.has_room()
    }

    fn is_admitted(&self) -> bool {
        self.answerer.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        let mut batch: Box<Batch> = memory::take();
        let answered = self.answer_all(&mut batch, input, output).await;
        self.answerer.end_turn(&self.shared);
        match answered {
            Ok(next) => {
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
        self.answerer.write_final_error(&self.shared, format_args!("ERR {cut}"), output);
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
        let mut has_waited = false;
        loop {
            let Self { shared, requests, answerer } = self;
            let (pinned, scope) = (requests.pinned().cloned(), answerer.client.scope().clone());
            let mut stop = Stop::Read;
            let asked = shared.server.limiter.ask_under(pinned.as_ref(), &scope, |builder| {
                stop = answerer.collect(shared, requests, (batch, builder), input, output.bytes, has_waited);
                // Nothing is asked without memory for the replies.
                if batch.is_empty() { Ok(()) } else { output.account() }
            })?;
            if !batch.is_empty() {
                let answers = asked.answers().await;
                batch.write(&shared.server.limiter, &answerer.client, answers.report(), output.bytes);
            }
            answerer.request_memory.give_back();
            has_waited = false;
            match stop {
                Stop::Read => return Ok(NextStep::Read),
                Stop::TurnOver => {
                    let Some(execution) = &mut requests.executing else { return Ok(NextStep::Continue) };
                    // Shrinking always succeeds.
                    let _ = execution.transaction.account();
                    if output.bytes.len() >= shared.server.limits.write_threshold {
                        return Ok(NextStep::Continue);
                    }
                    // The replies wait in the output, because the transaction has already reserved their memory.
                    answerer.turn = 0;
                    tokio::task::yield_now().await;
                }
                Stop::Memory(length) => {
                    answerer.request_memory.wait_for_request(&shared.server.limiter, length).await;
                    has_waited = true;
                }
                Stop::Executed => requests.executing = None,
                Stop::Alone { asked, length, is_muted } => {
                    let next = self.answer_next(asked, (length, is_muted), input, output).await?;
                    if next != NextStep::Read {
                        return Ok(next);
                    }
                }
                Stop::Broken(error) => {
                    answerer.refuse_broken(shared, error, output.bytes);
                    return Ok(NextStep::Close);
                }
            }
        }
    }

    /// Answers the next request alone: a command of the row in `asked`, or an error.
    async fn answer_next(
        &mut self,
        asked: Result<&'static CommandRow, CommandError>,
        (length, is_muted): (usize, bool),
        input: &mut BytesMut,
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        let Self { shared, requests, answerer } = self;
        let request = requests.next(input);
        let command = match asked.and_then(|row| Ok((row, row.parse(request)?))) {
            Ok(command) => command,
            Err(error) => {
                answerer.refuse(shared, request, error, is_muted, output.bytes);
                requests.consume(length, input);
                return Ok(NextStep::Read);
            }
        };
        let (pinned, is_exec_muted) = (requests.pinned().cloned(), requests.are_muted());
        let is_muted = is_exec_muted || (is_muted && !command.1.ends_silence());
        let start = output.bytes.len();
        let (next, begun) = answerer.answer_alone(shared, command, (pinned, is_muted), output).await?;
        if let Some([b'-', error @ ..]) = output.bytes.get(start..) {
            let line = error.split(|byte| *byte == b'\r').next().unwrap_or_default();
            answerer.client.count_error(&shared.server.limiter, ErrorKind::Unknown, String::from_utf8_lossy(line));
        }
        if is_muted {
            output.bytes.truncate(start);
        }
        requests.consume(length, input);
        if begun.is_some() {
            requests.executing = begun;
        }
        Ok(next)
    }
}

impl Requests {
    /// Finds the next request. Returns its length, if it is complete.
    ///
    /// # Errors
    /// The input is no request.
    #[inline]
    fn find_next(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        match &self.executing {
            None => self.decoder.decode(input),
            Some(execution) => Ok(execution.transaction.next().map(|request| request.arguments().span().0.len())),
        }
    }

    /// Returns the request that was found.
    #[inline]
    fn next<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        match self.executing.as_ref().and_then(|execution| execution.transaction.next()) {
            None => self.decoder.arguments(input),
            Some(request) => request.arguments(),
        }
    }

    /// Removes the request that was found, which has this length.
    #[inline]
    fn consume(&mut self, length: usize, input: &mut BytesMut) {
        match &mut self.executing {
            None => input.advance(length),
            Some(execution) => execution.transaction.remove_next(),
        }
    }

    /// Returns the rules of a transaction that is being executed.
    fn pinned(&self) -> Option<&Arc<ActiveRules>> {
        self.executing.as_ref()?.policy.as_ref()
    }

    /// Returns whether the client wants no replies to a transaction that is being executed.
    fn are_muted(&self) -> bool {
        self.executing.as_ref().is_some_and(|execution| execution.is_muted)
    }
}

impl Answerer {
    /// Adds requests to the batch or the transaction, as long as they need nothing else. `has_waited` says whether the first one has
    /// waited for memory.
    fn collect(
        &mut self,
        shared: &RespFront,
        requests: &mut Requests,
        (batch, builder): (&mut Batch, &mut PlanBuilder),
        input: &mut BytesMut,
        output: &mut Vec<u8>,
        mut has_waited: bool,
    ) -> Stop {
        loop {
            let is_turn_over = batch.len() >= MAX_BATCH
                || self.turn >= TURN_BYTES
                || output.len() + batch.owed() >= shared.server.limits.write_threshold
                || !self.request_memory.fits(builder.weight());
            if is_turn_over {
                return Stop::TurnOver;
            }
            self.client.gate.refresh();
            let limits = shared.server.limits.resp;
            requests.decoder.set_limits(if self.client.gate.is_open() { limits } else { limits.before_login() });
            let length = match requests.find_next(input) {
                Ok(Some(length)) => length,
                Ok(None) if requests.executing.is_some() => return Stop::Executed,
                Ok(None) => return Stop::Read,
                Err(error) => return Stop::Broken(error),
            };
            // A queued request needs the memory only at `EXEC`.
            let needs_memory = length > SMALL && self.transaction.is_none() && !std::mem::take(&mut has_waited);
            if needs_memory && !self.request_memory.admits(&shared.server.limiter, builder.weight(), length) {
                return Stop::Memory(length);
            }
            let request = requests.next(input);
            if !request.is_empty() {
                let is_muted = self.client.begin_request() || requests.are_muted();
                match self.add(shared, request, (&mut *batch, &mut *builder), is_muted, output) {
                    Ok(None) => {}
                    Ok(Some(row)) => return Stop::Alone { asked: Ok(row), length, is_muted },
                    Err(error) => return Stop::Alone { asked: Err(error), length, is_muted },
                }
            }
            requests.consume(length, input);
        }
    }

    /// Adds a request to the batch or the transaction. Returns its row if it must be answered alone.
    ///
    /// # Errors
    /// The request is refused.
    #[inline]
    fn add(
        &mut self,
        shared: &RespFront,
        request: Arguments<'_>,
        (batch, builder): (&mut Batch, &mut PlanBuilder),
        is_muted: bool,
        output: &mut Vec<u8>,
    ) -> Result<Option<&'static CommandRow>, CommandError> {
        let read = self.read(request);
        if self.transaction.is_some() && !read.as_ref().is_ok_and(|(_, command)| command.is_never_queued()) {
            self.queue(shared, request, read.map(|(_, command)| command), is_muted, output);
            return Ok(None);
        }
        let (row, command) = read.inspect_err(|_| {
            self.tally.count(if is_optional(request) { RequestKind::Connection } else { RequestKind::Invalid });
        })?;
        self.tally.count(row.kind);
        let (scope, version) = (self.client.scope(), self.client.version);
        let plan = (&*shared.server.limiter, builder);
        let alone = batch.push(command, plan, scope, shared.server.limits.max_pairs, version, is_muted)?;
        Ok(alone.map(|_| row))
    }

    /// Queues a request, or refuses it.
    fn queue(
        &mut self,
        shared: &RespFront,
        request: Arguments<'_>,
        read: Result<Command<'_>, CommandError>,
        is_muted: bool,
        output: &mut Vec<u8>,
    ) {
        let Some(transaction) = &mut self.transaction else { return };
        let queued = match read {
            Ok(command) => command.check_count(shared.server.limits.max_pairs),
            Err(error) if error.mistake == Mistake::Argument => Ok(()),
            Err(error) => Err(error),
        };
        let queued = queued.and_then(|()| transaction.queue(request).map_err(|BudgetExceeded| NO_ROOM_TO_QUEUE));
        match queued {
            Ok(()) if is_muted => {}
            Ok(()) => ReplyWriter::new(output, self.client.version).simple("QUEUED"),
            Err(error) => {
                self.tally.count(RequestKind::Invalid);
                transaction.abort();
                if error.mistake == Mistake::Unauthenticated {
                    // The requests before it may have had a user, who is gone now.
                    self.transaction = None;
                }
                self.refuse(shared, request, error, is_muted, output);
            }
        }
    }

    fn end_turn(&mut self, shared: &RespFront) {
        self.turn = 0;
        shared.requests.take(&mut self.tally);
        self.record_activity();
    }

    fn record_activity(&mut self) {
        let queued = self.transaction.as_ref().map(Transaction::count);
        self.client.registration.record_activity(self.last.take(), queued);
    }

    /// Answers input that is no request.
    fn refuse_broken(&mut self, shared: &RespFront, error: ProtocolError, output: &mut Vec<u8>) {
        // A length that is not a number counts, too.
        let limit = match error {
            ProtocolError::ArrayLength => Some(Bound::Arguments),
            ProtocolError::BulkLength => Some(Bound::Argument),
            ProtocolError::RequestTooBig | ProtocolError::InlineTooBig => Some(Bound::Request),
            _ => None,
        };
        if let Some(limit) = limit {
            shared.server.limiter.metrics().limits.reached.count(limit);
        }
        self.tally.count(RequestKind::Invalid);
        self.write_final_error(shared, error, output);
    }

    /// Counts an error after which the connection is closed, and writes it.
    fn write_final_error(&self, shared: &RespFront, error: impl Display, output: &mut Vec<u8>) {
        self.client.count_error(&shared.server.limiter, ErrorKind::Unknown, &error);
        if !self.client.is_silent() {
            ReplyWriter::new(output, self.client.version).error(error);
        }
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

    /// Answers a command alone. `pinned` has the rules of a transaction that is being executed. Returns the transaction that the
    /// command executes, if it is `EXEC`.
    async fn answer_alone(
        &mut self,
        shared: &Arc<RespFront>,
        (row, command): (&'static CommandRow, Command<'_>),
        (pinned, is_muted): (Option<Arc<ActiveRules>>, bool),
        output: &mut Output<'_>,
    ) -> Result<(NextStep, Option<Execution>), BudgetExceeded> {
        shared.requests.take(&mut self.tally);
        // This command may be the one that lists the activity.
        self.record_activity();
        let start = output.bytes.len();
        let mut reply = ReplyWriter::new(output.bytes, self.client.version);
        match (command, self.transaction.take()) {
            (Command::Multi, None) => {
                self.transaction = Some(Transaction::new(shared.server.memory.share()));
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
                let policy = shared.server.limiter.active_rules();
                return Ok((NextStep::Read, Some(Execution { transaction, policy, is_muted })));
            }
            (Command::Discard, None) => reply.error(DISCARD_WITHOUT_MULTI),
            (Command::Discard, Some(_)) => reply.simple("OK"),
            (Command::Watch, begun) => {
                self.transaction = begun;
                reply.error(NO_WATCH);
            }
            (command, _) => {
                let next = answer_alone(shared, &mut self.client, pinned, row, command, output).await?;
                self.turn += output.bytes.len().saturating_sub(start) + BYTES_OF_A_COMMAND;
                return Ok((next, None));
            }
        }
        Ok((NextStep::Read, None))
    }

    /// Counts an invalid request, records it if it asks for a change, and writes the error unless the client wants no reply.
    fn refuse(
        &self,
        shared: &RespFront,
        request: Arguments,
        error: CommandError,
        is_muted: bool,
        output: &mut Vec<u8>,
    ) {
        let (limiter, client) = (&shared.server.limiter, &self.client);
        if error.mistake == Mistake::TooManyPairs {
            limiter.metrics().limits.reached.count(Bound::Pairs);
        }
        match error.mistake {
            // Clients probe whether they have to log in, so this is no error reply that counts.
            Mistake::Unauthenticated => {
                ERROR_LOG.note(Protocol::Resp, ErrorKind::Unauthenticated, || client.gate.error_client(), &error);
            }
            // Clients work without it.
            _ if is_optional(request) => {}
            Mistake::UnknownCommand => client.count_error(limiter, ErrorKind::UnknownCommand, &error),
            _ => client.count_error(limiter, ErrorKind::Unknown, &error),
        }
        record_refusal(shared, client, request, &error);
        if !is_muted {
            ReplyWriter::new(output, client.version).error(error);
        }
    }
}
