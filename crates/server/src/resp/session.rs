//! One connection of the RESP front.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::batch::Batch;
use super::client::{Client, NO_AUTH};
use super::errors::{count_limit, exceeded_limit};
use super::info::RespFront;
use super::single_commands::{answer_alone, answer_client, record_refusal, write_error};
use super::transaction::{
    EXEC_ABORTED, EXEC_WITH_ARGUMENTS, EXEC_WITHOUT_MULTI, Execution, Transaction, begin_or_end,
    is_exec_with_arguments, queue,
};
use crate::net::auth::Gate;
use crate::net::connection::{Cut, NextStep, Output, Session};
use crate::net::memory::{self, BudgetExceeded, RequestMemory, SMALL, pooled};
use crate::protocol::command::command_rows::{self, CommandRow, find_request, is_optional};
use crate::protocol::command::{Command, CommandError};
use crate::protocol::resp::{Arguments, Decoder, ReplyWriter};
use divvy_telemetry::metrics::{ErrorKind, RequestKind, RequestTally};

/// Maximum number of requests in a batch. Further requests wait in the input.
const MAX_BATCH: usize = 512;
/// Bytes of replies to commands that are answered alone, muted ones included, after which other connections have a turn.
const TURN_BYTES: usize = 64 * 1024;
/// Bytes that count for such a command in addition to its reply.
const BYTES_OF_A_COMMAND: usize = 128;

/// The session of one client.
pub struct RespSession {
    shared: Arc<RespFront>,
    decoder: Decoder,
    client: Client,
    request_memory: RequestMemory,
    /// The transaction that `MULTI` began.
    transaction: Option<Transaction>,
    /// The rest of a transaction whose replies are too long to write at once.
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
        Self {
            decoder: Decoder::new(shared.limits.resp),
            client: Client::new(shared.clients.register(peer, local), gate),
            request_memory: RequestMemory::new(&shared.memory),
            shared,
            transaction: None,
            executing: None,
            last: None,
            tally: RequestTally::default(),
            turn: 0,
        }
    }
}

impl Session for RespSession {
    fn is_admitted(&self) -> bool {
        self.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        let mut batch: Box<Batch> = memory::take();
        let answered = self.answer_all(&mut batch, input, output).await;
        self.request_memory.give_back();
        self.shared.requests.take(&mut self.tally);
        self.client.registration.record_activity(self.last.take(), self.transaction.as_ref().map(Transaction::count));
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
        self.client.count_error(&self.shared.limiter, ErrorKind::Unknown, cut);
        if !self.client.is_silent() {
            ReplyWriter::new(output, self.client.version).error(format_args!("ERR {cut}"));
        }
    }
}

impl RespSession {
    /// Answers the complete requests in `input`.
    ///
    /// # Errors
    /// There is no memory for the replies in `output`.
    async fn answer_all(
        &mut self,
        batch: &mut Batch,
        input: &mut BytesMut,
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        if let Some(execution) = self.executing.take() {
            let next = self.execute(execution, batch, output).await?;
            if next != NextStep::Read {
                return Ok(next);
            }
        }
        self.turn = 0;
        let next = loop {
            let owed = output.bytes.len() + batch.owed();
            if batch.len() >= MAX_BATCH
                || self.turn >= TURN_BYTES
                || owed >= self.shared.limits.write_threshold
                || !self.request_memory.fits(batch.weight())
            {
                break NextStep::Continue;
            }
            self.client.gate.refresh();
            self.decoder.set_unauthenticated(!self.client.gate.is_open());
            let consumed = match self.decoder.decode(input) {
                Ok(None) => break NextStep::Read,
                Ok(Some(consumed)) => consumed,
                Err(error) => {
                    batch.settle(&self.shared.limiter, &self.client, &mut self.request_memory, output).await?;
                    count_limit(&self.shared.limiter, exceeded_limit(&error));
                    self.tally.count(RequestKind::Invalid);
                    self.client.count_error(&self.shared.limiter, ErrorKind::Unknown, error);
                    if !self.client.is_silent() {
                        ReplyWriter::new(output.bytes, self.client.version).error(error);
                    }
                    return Ok(NextStep::Close);
                }
            };
            if consumed > SMALL {
                self.wait_for_memory(consumed, batch, output).await?;
            }
            let next = self.answer_one(batch, input, output).await?;
            input.advance(consumed);
            if next != NextStep::Read {
                return Ok(next);
            }
        };
        batch.settle(&self.shared.limiter, &self.client, &mut self.request_memory, output).await?;
        Ok(next)
    }

    /// Waits for the memory of a large request, after the answers before it. A queued one needs it only at `EXEC`.
    #[cold]
    async fn wait_for_memory(
        &mut self,
        bytes: usize,
        batch: &mut Batch,
        output: &mut Output<'_>,
    ) -> Result<(), BudgetExceeded> {
        let limiter = &self.shared.limiter;
        if self.transaction.is_none() && !self.request_memory.admits(limiter, batch.weight(), bytes) {
            batch.settle(limiter, &self.client, &mut self.request_memory, output).await?;
            self.request_memory.wait_for_request(limiter, bytes).await;
            self.client.gate.refresh();
        }
        Ok(())
    }

    /// Adds the request that was decoded from `input` to the batch or the transaction, or settles the batch and answers the
    /// request.
    async fn answer_one(
        &mut self,
        batch: &mut Batch,
        input: &[u8],
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        let Self { shared, decoder, client, request_memory, transaction, last, tally, turn, .. } = self;
        let request = decoder.arguments(input);
        if request.is_empty() {
            return Ok(NextStep::Read);
        }
        let is_muted = client.begin_request();
        if !client.gate.is_open() && needs_login(request) {
            tally.count(RequestKind::Invalid);
            // The requests before it may have had a user, who is gone now.
            *transaction = None;
            batch.settle(&shared.limiter, client, request_memory, output).await?;
            if !is_muted {
                ReplyWriter::new(output.bytes, client.version).error(NO_AUTH);
            }
            // Clients probe whether they have to log in, so this is no error reply that counts.
            client.note_error(ErrorKind::Unauthenticated, NO_AUTH);
            record_refusal(shared, client, request, NO_AUTH);
            return Ok(NextStep::Read);
        }
        let found = find_request(request);
        let row = found.as_ref().ok().copied();
        *last = row.or(*last);
        if let Some(found) = row
            && client.gate.may(found.category).is_err()
            && client.gate.is_open()
        {
            if let Some(transaction) = transaction {
                transaction.abort();
            }
            tally.count(RequestKind::Invalid);
            batch.settle(&shared.limiter, client, request_memory, output).await?;
            let refusal = client.refusal(found);
            record_refusal(shared, client, request, &refusal);
            client.refuse(&shared.limiter, &refusal, is_muted, output.bytes);
            return Ok(NextStep::Read);
        }
        let command = found.and_then(|found| found.parse(request));
        if let Some(transaction) = transaction
            && !is_exec_with_arguments(row, &command)
            && !command.as_ref().is_ok_and(Command::is_never_queued)
        {
            let start = output.bytes.len();
            queue(shared, client, transaction, request, command, tally, output.bytes);
            if is_muted {
                output.bytes.truncate(start);
            }
            return Ok(NextStep::Read);
        }
        tally.count(request_kind(request, row, &command));
        let pushed = command.and_then(|command| {
            batch.push(command, &shared.limiter, client.scope(), shared.limits.max_pairs, client.version, is_muted)
        });
        let Some(alone) = pushed.transpose() else { return Ok(NextStep::Read) };
        batch.settle(&shared.limiter, client, request_memory, output).await?;
        shared.requests.take(tally);
        // This command may be the one that lists the activity.
        client.registration.record_activity(*last, transaction.as_ref().map(Transaction::count));
        let start = output.bytes.len();
        let (next, is_heard) = match alone {
            Ok(Command::Exec) => {
                let Some(transaction) = transaction.take() else {
                    client.refuse(&shared.limiter, EXEC_WITHOUT_MULTI, is_muted, output.bytes);
                    return Ok(NextStep::Read);
                };
                let Some(execution) = transaction.execute(shared.limiter.active_rules(), is_muted) else {
                    client.refuse(&shared.limiter, EXEC_ABORTED, is_muted, output.bytes);
                    return Ok(NextStep::Read);
                };
                if !is_muted {
                    ReplyWriter::new(output.bytes, client.version).array(execution.queue.count());
                }
                return self.execute(execution, batch, output).await;
            }
            Ok(command @ (Command::Multi | Command::Discard | Command::Watch)) => {
                match begin_or_end(shared, transaction, &command) {
                    Ok(()) => ReplyWriter::new(output.bytes, client.version).simple("OK"),
                    Err(error) => client.refuse(&shared.limiter, error, false, output.bytes),
                }
                (NextStep::Read, false)
            }
            Ok(command) => {
                if let Command::ResetConnection = command {
                    *transaction = None;
                }
                let is_heard = command.ends_silence();
                let next = answer_alone(shared, batch, client, row, command, output).await?;
                *turn += output.bytes.len().saturating_sub(start) + BYTES_OF_A_COMMAND;
                (next, is_heard)
            }
            Err(error) => {
                if is_exec_with_arguments(row, &Err(error.clone())) {
                    *transaction = None;
                    client.refuse(&shared.limiter, EXEC_WITH_ARGUMENTS, false, output.bytes);
                } else {
                    write_error(shared, client, request, error, output.bytes);
                }
                (NextStep::Read, false)
            }
        };
        if is_muted && !is_heard {
            output.bytes.truncate(start);
        }
        Ok(next)
    }

    /// Answers the rest of a transaction, in order. Hits are applied in parts that fit the memory for requests in work,
    /// and the connection yields between the parts. Commands that do not belong in a batch are answered in their place.
    /// Replies wait in the output, because the transaction has already reserved their memory. Long replies are written
    /// earlier.
    async fn execute(
        &mut self,
        mut execution: Execution,
        batch: &mut Batch,
        output: &mut Output<'_>,
    ) -> Result<NextStep, BudgetExceeded> {
        let Self { shared, client, request_memory, tally, executing, turn, .. } = self;
        let (limiter, limits) = (&shared.limiter, &shared.limits);
        let is_exec_muted = execution.is_muted;
        batch.pin(execution.policy.clone());
        while let Some(request) = execution.queue.pop() {
            let request = request.arguments();
            let bytes = request.span().0.len();
            if !request_memory.admits(limiter, batch.weight(), bytes) {
                batch.settle(limiter, client, request_memory, output).await?;
                request_memory.wait_for_request(limiter, bytes).await;
            }
            let is_muted = is_exec_muted || client.is_silent();
            client.gate.refresh();
            let found = find_request(request);
            let row = found.as_ref().ok().copied();
            if let Some(found) = row
                && client.gate.may(found.category).is_err()
            {
                // The user has lost the right since the request was queued.
                tally.count(RequestKind::Invalid);
                let refusal = client.refusal(found);
                client.count_error(limiter, ErrorKind::Unknown, &refusal);
                record_refusal(shared, client, request, &refusal);
                batch.push_text(is_muted, |texts| ReplyWriter::new(texts, client.version).error(refusal));
                continue;
            }
            let command = found.and_then(|found| found.parse(request));
            tally.count(request_kind(request, row, &command));
            let mut after = NextStep::Read;
            match command.and_then(|command| {
                batch.push(command, limiter, client.scope(), limits.max_pairs, client.version, is_muted)
            }) {
                Ok(None) => {}
                Ok(Some(command)) if command.is_about_connection() => {
                    let is_muted = is_exec_muted || (is_muted && !command.ends_silence());
                    if command.credentials().is_some() {
                        // The requests before it belong to another user.
                        batch.settle(limiter, client, request_memory, output).await?;
                    }
                    let login = client.log_in(&command, output.client_left()).await;
                    let mut text = Vec::new();
                    after = answer_client(shared, client, command, login, &mut text);
                    batch.push_text(is_muted, |texts| texts.append(&mut text));
                }
                Ok(Some(command)) => {
                    batch.settle(limiter, client, request_memory, output).await?;
                    let start = output.bytes.len();
                    let next = answer_alone(shared, batch, client, row, command, output).await?;
                    *turn += output.bytes.len().saturating_sub(start) + BYTES_OF_A_COMMAND;
                    if is_muted {
                        output.bytes.truncate(start);
                    }
                    if next == NextStep::Continue || output.bytes.len() >= limits.write_threshold {
                        *executing = Some(execution);
                        return Ok(NextStep::Continue);
                    }
                    if next == NextStep::Close {
                        return Ok(next);
                    }
                    if *turn >= TURN_BYTES {
                        *turn = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => {
                    batch.push_text(is_muted, |texts| write_error(shared, client, request, error, texts));
                }
            }
            if after != NextStep::Read || batch.has_long_replies(limits.write_threshold) {
                batch.settle(limiter, client, request_memory, output).await?;
                *executing = Some(execution);
                return Ok(if after == NextStep::Close { after } else { NextStep::Continue });
            }
            if !request_memory.fits(batch.weight()) {
                batch.settle(limiter, client, request_memory, output).await?;
                execution.account();
                tokio::task::yield_now().await;
            }
        }
        batch.settle(limiter, client, request_memory, output).await?;
        batch.pin(None);
        Ok(NextStep::Read)
    }
}

/// Returns whether a request requires a login. Without a login, unknown commands are answered like known ones.
fn needs_login(request: Arguments) -> bool {
    let spec = command_rows::find(request.word(0));
    spec.is_none_or(|spec| !spec.flags.contains(&"no_auth"))
}

/// Returns the kind of a request. `found` is its command.
fn request_kind(
    request: Arguments,
    found: Option<&CommandRow>,
    command: &Result<Command, CommandError>,
) -> RequestKind {
    match (command, found) {
        // `HELP`, which every command with subcommands has.
        (Ok(Command::Describe(_)), _) => RequestKind::Server,
        (Ok(_), Some(found)) => found.kind,
        _ if is_optional(request) => RequestKind::Connection,
        _ => RequestKind::Invalid,
    }
}
