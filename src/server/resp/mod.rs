//! The RESP front: a session that answers commands.
//!
//! The requests of one read that ask the limiter are one [`batch`]; any other command first has the batch before it
//! answered, so replies come in order. What only concerns the client itself is [`client`]'s, what concerns the server
//! [`info`]'s, and what operators do to counters is [`operate`]'s; [`large`] has those wait for their turn. Between
//! `MULTI` and `EXEC` requests go into a [`transaction`]. [`counts`] is how the metrics see it.

mod batch;
mod client;
mod clients;
mod counts;
mod error;
mod info;
mod large;
mod limit;
mod operate;
mod reservations;
mod transaction;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::net::TcpListener;

use self::batch::Batch;
use self::client::Client;
use self::error::write_limiter_error;
use self::info::Shared;
use self::transaction::{Execution, Transaction};
use super::Limits;
use super::accept::Front;
use super::auth::{Gate, Guard};
use super::connection::{self, Cut, Lease, Next, Outgoing, Session};
use super::memory::{BufferMemory, UsedUp};
use super::origin;
use super::pool::{self, pooled};
use super::room::{Room, SMALL};
use super::stream::Stream;
use super::turns::Turns;
use crate::limiter::{Limiter, Origin, Policy, Refusal};
use crate::metrics::{Limit, RequestKind, RequestTally};
use crate::protocol::command::{Command, CommandError, Found, Pairs, describe, table};
use crate::protocol::resp::{Arguments, Decoder, ProtocolError, ReplyWriter};
use crate::rules::explain;

/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 512;
/// What a client is told that has not given the password.
const NO_AUTH: &str = "NOAUTH Authentication required.";
// Transactions, in Redis's words where it has some.
const NESTED_MULTI: &str = "ERR MULTI calls can not be nested";
const EXEC_WITHOUT_MULTI: &str = "ERR EXEC without MULTI";
const DISCARD_WITHOUT_MULTI: &str = "ERR DISCARD without MULTI";
const EXEC_ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const EXEC_WITH_ARGUMENTS: &str =
    "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
const WATCH_INSIDE_MULTI: &str = "ERR WATCH inside MULTI is not allowed";
const NO_WATCH: &str = "ERR WATCH is not supported: counters are not keys that a client reads and writes back. \
                        MULTI and EXEC work without it";
const NO_ROOM_TO_QUEUE: &str = "ERR the server has no memory left to queue this command: EXEC will discard the \
                                transaction; try again later";

/// The front.
pub struct RespFront {
    shared: Arc<Shared>,
}

impl RespFront {
    /// `guard` asks for the password that clients must give first; transactions count toward `memory`; `turns`
    /// are those at large requests.
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        guard: Option<Arc<Guard>>,
        listener: Option<&TcpListener>,
        memory: Arc<BufferMemory>,
        turns: Turns,
    ) -> Self {
        let requests = limiter.metrics().requests.front(Self::NAME);
        Self { shared: Arc::new(Shared::new(limiter, limits, guard, listener, requests, memory, turns)) }
    }
}

impl Front for RespFront {
    const NAME: &'static str = "resp";
    const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";
    const NO_TLS: &'static [u8] = b"-ERR this port does not speak TLS: connect without it\r\n";
    const ONLY_TLS: &'static [u8] = b"-ERR this port speaks TLS only: connect with it (redis-cli --tls)\r\n";

    fn serve(&self, stream: Stream, peer: SocketAddr, lease: Lease) -> impl Future<Output = ()> + Send + 'static {
        let session = RespSession::new(Arc::clone(&self.shared), peer, stream.local_addr().ok());
        connection::serve(stream, session, self.shared.limits.timeouts, lease)
    }
}

/// One client that speaks RESP.
struct RespSession {
    shared: Arc<Shared>,
    decoder: Decoder,
    client: Client,
    room: Room,
    /// There since `MULTI`.
    transaction: Option<Transaction>,
    /// What is left of a transaction whose replies are longer than what is written at once.
    executing: Option<Execution>,
    /// The command that came last.
    last: Option<Found>,
    tally: RequestTally,
    origin: Origin,
}

pooled!(Box<Batch>, |batch| batch.memory());

impl RespSession {
    fn new(shared: Arc<Shared>, peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let gate = Gate::new(shared.guard.clone(), peer);
        Self {
            decoder: Decoder::new(shared.limits.resp),
            client: Client::new(shared.clients.register(peer, local), gate),
            room: Room::new(&shared.memory),
            shared,
            transaction: None,
            executing: None,
            last: None,
            tally: RequestTally::default(),
            origin: origin::of(peer),
        }
    }
}

impl Session for RespSession {
    fn is_admitted(&self) -> bool {
        self.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Outgoing<'_>) -> Next {
        let mut batch: Box<Batch> = pool::take();
        batch.set_origin(self.origin);
        let answered = self.answer_all(&mut batch, input, output).await;
        self.room.give_back();
        self.shared.requests.take(&mut self.tally);
        self.client.is_doing(self.last.take(), self.transaction.as_ref().map(Transaction::count));
        match answered {
            Ok(next) => {
                batch.release();
                pool::give(batch);
                next
            }
            Err(UsedUp) => {
                self.cut(Cut::NoMemory, output.bytes);
                Next::Close
            }
        }
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        self.shared.limiter.metrics().errors.unknown.inc();
        if !self.client.is_silent() {
            ReplyWriter::new(output, self.client.version).error(format_args!("ERR {cut}"));
        }
    }
}

impl RespSession {
    /// # Errors
    /// There is no memory for the replies that are in hand.
    async fn answer_all(
        &mut self,
        batch: &mut Batch,
        input: &mut BytesMut,
        output: &mut Outgoing<'_>,
    ) -> Result<Next, UsedUp> {
        if let Some(execution) = self.executing.take() {
            let next = self.execute(execution, batch, output).await?;
            if next != Next::Read {
                return Ok(next);
            }
        }
        let next = loop {
            let owed = output.bytes.len() + batch.owed();
            if batch.len() >= MAX_BATCH || owed >= self.shared.limits.max_output || !self.room.fits(batch.weight()) {
                break Next::AnswerOn;
            }
            self.decoder.set_unauthenticated(!self.client.gate.is_open());
            let consumed = match self.decoder.decode(input) {
                Ok(None) => break Next::Read,
                Ok(Some(consumed)) => consumed,
                Err(error) => {
                    batch.settle(&self.shared.limiter, &mut self.room, output).await?;
                    count_limit(&self.shared.limiter, limit_of(&error));
                    if !self.client.is_silent() {
                        ReplyWriter::new(output.bytes, self.client.version).error(error);
                    }
                    self.tally.count(RequestKind::Invalid);
                    self.shared.limiter.metrics().errors.unknown.inc();
                    return Ok(Next::Close);
                }
            };
            if consumed > SMALL {
                self.wait_for_room(consumed, batch, output).await?;
            }
            let next = self.answer_one(batch, input, output).await?;
            input.advance(consumed);
            if next != Next::Read {
                return Ok(next);
            }
        };
        batch.settle(&self.shared.limiter, &mut self.room, output).await?;
        Ok(next)
    }

    /// Answers the requests before this one, and waits until there is room for it.
    #[cold]
    async fn wait_for_room(
        &mut self,
        bytes: usize,
        batch: &mut Batch,
        output: &mut Outgoing<'_>,
    ) -> Result<(), UsedUp> {
        let limiter = &self.shared.limiter;
        // A queued request is answered at EXEC.
        if self.transaction.is_none() && !self.room.admits(limiter, batch.weight(), bytes) {
            batch.settle(limiter, &mut self.room, output).await?;
            self.room.wait_for_request(limiter, bytes).await;
        }
        Ok(())
    }

    /// Puts the request that was decoded from `input` into the batch or the transaction, or settles the batch and
    /// answers the request; then the batch is empty.
    async fn answer_one(&mut self, batch: &mut Batch, input: &[u8], output: &mut Outgoing<'_>) -> Result<Next, UsedUp> {
        let Self { shared, decoder, client, room, transaction, last, tally, .. } = self;
        let request = decoder.arguments(input);
        if request.is_empty() {
            return Ok(Next::Read);
        }
        let is_muted = client.begin_request();
        if !client.gate.is_open() && needs_password(request) {
            // Nothing waits in the batch: a RESET, which shuts the gate again, has settled it.
            if !is_muted {
                ReplyWriter::new(output.bytes, client.version).error(NO_AUTH);
            }
            tally.count(RequestKind::Invalid);
            return Ok(Next::Read);
        }
        let found = Command::find(request);
        *last = found.as_ref().ok().copied().or(*last);
        let command = found.and_then(|found| Command::parse_as(found, request));
        if let Some(transaction) = transaction
            && !is_exec_with_arguments(&command)
            && !command.as_ref().is_ok_and(Command::is_never_queued)
        {
            let start = output.bytes.len();
            queue(shared, client, transaction, request, command, tally, output.bytes);
            if is_muted {
                output.bytes.truncate(start);
            }
            return Ok(Next::Read);
        }
        tally.count(counts::kind(request, &command));
        let alone = match command
            .and_then(|command| batch.push(command, &shared.limiter, shared.limits.max_pairs, client.version, is_muted))
        {
            Ok(None) => return Ok(Next::Read),
            Ok(Some(command)) => Ok(command),
            Err(error) => Err(error),
        };
        batch.settle(&shared.limiter, room, output).await?;
        shared.requests.take(tally);
        // It may be asked for by this very command.
        client.is_doing(*last, transaction.as_ref().map(Transaction::count));
        let start = output.bytes.len();
        let (next, is_heard) = match alone {
            Ok(Command::Exec) => {
                let Some(transaction) = transaction.take() else {
                    refuse(shared, client, EXEC_WITHOUT_MULTI, is_muted, output.bytes);
                    return Ok(Next::Read);
                };
                let Some(execution) = transaction.execute(shared.limiter.policy(), is_muted) else {
                    refuse(shared, client, EXEC_ABORTED, is_muted, output.bytes);
                    return Ok(Next::Read);
                };
                if !is_muted {
                    ReplyWriter::new(output.bytes, client.version).array(execution.count());
                }
                return self.execute(execution, batch, output).await;
            }
            Ok(command @ (Command::Multi | Command::Discard | Command::Watch)) => {
                match begin_or_end(shared, transaction, &command) {
                    Ok(()) => ReplyWriter::new(output.bytes, client.version).simple("OK"),
                    Err(error) => refuse(shared, client, error, false, output.bytes),
                }
                (Next::Read, false)
            }
            Ok(command) => {
                if let Command::ResetConnection = command {
                    *transaction = None;
                }
                let is_heard = command.ends_silence();
                (answer_alone(shared, batch, client, command, output).await?, is_heard)
            }
            Err(error) => {
                if is_exec_with_arguments(&Err(error.clone())) {
                    *transaction = None;
                    refuse(shared, client, EXEC_WITH_ARGUMENTS, false, output.bytes);
                } else {
                    write_error(shared, client, request, error, output.bytes);
                }
                (Next::Read, false)
            }
        };
        if is_muted && !is_heard {
            output.bytes.truncate(start);
        }
        Ok(next)
    }

    /// Answers what is left of a transaction, in order. Hits are applied in parts that have room, and other connections have
    /// their turn between the parts. Commands that look at counters, or take long, are answered in their place. Replies wait
    /// in the output: the transaction has paid for their room. Long replies are written earlier.
    async fn execute(
        &mut self,
        mut execution: Execution,
        batch: &mut Batch,
        output: &mut Outgoing<'_>,
    ) -> Result<Next, UsedUp> {
        let Self { shared, client, room, tally, executing, .. } = self;
        let (limiter, limits) = (&shared.limiter, &shared.limits);
        let is_exec_muted = execution.is_muted;
        batch.pin(execution.policy.clone());
        while let Some(request) = execution.next_request() {
            let bytes = request.span().0.len();
            if !room.admits(limiter, batch.weight(), bytes) {
                batch.settle(limiter, room, output).await?;
                room.wait_for_request(limiter, bytes).await;
            }
            let is_muted = is_exec_muted || client.is_silent();
            let command = Command::parse(request);
            tally.count(counts::kind(request, &command));
            match command.and_then(|command| batch.push(command, limiter, limits.max_pairs, client.version, is_muted)) {
                Ok(None) => {}
                Ok(Some(command)) if command.is_about_connection() => {
                    let is_muted = is_exec_muted || (is_muted && !command.ends_silence());
                    batch.push_text(is_muted, |texts| {
                        // Only commands that are never queued end the connection.
                        answer_client(shared, client, command, texts);
                    });
                }
                Ok(Some(command)) => {
                    batch.settle(limiter, room, output).await?;
                    let start = output.bytes.len();
                    let next = answer_alone(shared, batch, client, command, output).await?;
                    if is_muted {
                        output.bytes.truncate(start);
                    }
                    if next == Next::AnswerOn || output.bytes.len() >= limits.max_output {
                        *executing = Some(execution);
                        return Ok(Next::AnswerOn);
                    }
                    if next == Next::Close {
                        return Ok(next);
                    }
                }
                Err(error) => {
                    batch.push_text(is_muted, |texts| write_error(shared, client, request, error, texts));
                }
            }
            if batch.has_long_replies(limits.max_output) {
                batch.settle(limiter, room, output).await?;
                *executing = Some(execution);
                return Ok(Next::AnswerOn);
            }
            if !room.fits(batch.weight()) {
                batch.settle(limiter, room, output).await?;
                execution.account();
                tokio::task::yield_now().await;
            }
        }
        batch.settle(limiter, room, output).await?;
        batch.pin(None);
        Ok(Next::Read)
    }
}

/// Redis discards the transaction then, and says so in words of its own.
fn is_exec_with_arguments(command: &Result<Command, CommandError>) -> bool {
    matches!(command, Err(CommandError::WrongArity { name }) if name == "exec")
}

/// Adds a request to the transaction, or aborts it when the request is none that could be executed.
fn queue(
    shared: &Shared,
    client: &Client,
    transaction: &mut Transaction,
    request: Arguments,
    command: Result<Command, CommandError>,
    tally: &mut RequestTally,
    output: &mut Vec<u8>,
) {
    let refused = match command {
        Ok(command) => command.check_count(shared.limits.max_pairs).err(),
        Err(error) => Some(error).filter(CommandError::aborts_transaction),
    };
    if let Some(error) = refused {
        tally.count(RequestKind::Invalid);
        transaction.abort();
        return write_error(shared, client, request, error, output);
    }
    match transaction.queue(request) {
        Ok(()) => ReplyWriter::new(output, client.version).simple("QUEUED"),
        Err(UsedUp) => refuse(shared, client, NO_ROOM_TO_QUEUE, false, output),
    }
}

/// `MULTI`, `DISCARD` and `WATCH`.
fn begin_or_end(shared: &Shared, transaction: &mut Option<Transaction>, command: &Command) -> Result<(), &'static str> {
    match (command, &transaction) {
        (Command::Multi, None) => *transaction = Some(Transaction::new(shared.memory.share())),
        (Command::Multi, Some(_)) => return Err(NESTED_MULTI),
        (Command::Discard, Some(_)) => *transaction = None,
        (Command::Discard, None) => return Err(DISCARD_WITHOUT_MULTI),
        (_, Some(_)) => return Err(WATCH_INSIDE_MULTI),
        (_, None) => return Err(NO_WATCH),
    }
    Ok(())
}

/// Tells the client an error in words of this front.
fn refuse(shared: &Shared, client: &Client, error: &str, is_muted: bool, output: &mut Vec<u8>) {
    shared.limiter.metrics().errors.unknown.inc();
    if !is_muted {
        ReplyWriter::new(output, client.version).error(error);
    }
}

/// Tells the client what is wrong with a request.
fn write_error(shared: &Shared, client: &Client, request: Arguments, error: CommandError, output: &mut Vec<u8>) {
    if let CommandError::TooManyPairs { .. } = error {
        count_limit(&shared.limiter, Some(Limit::Pairs));
    }
    counts::count_command_error(&shared.limiter.metrics().errors, request, &error);
    ReplyWriter::new(output, client.version).error(error);
}

/// Answers a command that concerns the connection alone, and counts the reply if it is an error.
fn answer_client(shared: &Shared, client: &mut Client, command: Command, output: &mut Vec<u8>) -> Next {
    let start = output.len();
    let next = client.answer(command, output);
    counts::count_error_reply(&shared.limiter.metrics().errors, output, start);
    next
}

/// The limit that a request ran into, if that is what is wrong with it: a length that is no number counts, too.
fn limit_of(error: &ProtocolError) -> Option<Limit> {
    match error {
        ProtocolError::ArrayLength | ProtocolError::UnauthenticatedArrayLength => Some(Limit::Arguments),
        ProtocolError::BulkLength | ProtocolError::UnauthenticatedBulkLength => Some(Limit::Argument),
        ProtocolError::RequestTooBig | ProtocolError::InlineTooBig => Some(Limit::Request),
        _ => None,
    }
}

fn count_limit(limiter: &Limiter, limit: Option<Limit>) {
    if let Some(limit) = limit {
        limiter.metrics().limits.reached(limit);
    }
}

/// Answers a command that is not one for the batch.
///
/// # Errors
/// There is no memory for the replies that are in hand.
async fn answer_alone(
    shared: &Arc<Shared>,
    batch: &mut Batch,
    client: &mut Client,
    command: Command<'_>,
    output: &mut Outgoing<'_>,
) -> Result<Next, UsedUp> {
    if command.is_about_connection() {
        return Ok(answer_client(shared, client, command, output.bytes));
    }
    let start = output.bytes.len();
    let mut reply = ReplyWriter::new(output.bytes, client.version);
    match command {
        Command::Explain(pairs) => write_explanation(shared, batch, pairs, &mut reply),
        Command::Rules => write_rules(&shared.limiter, &mut reply),
        Command::ConfigGet(patterns) => shared.write_settings(patterns, &mut reply),
        Command::Time => shared.write_time(&mut reply),
        Command::Role => write_role(&mut reply),
        Command::Describe(question) => describe::write(&mut reply, question),
        command => return large::answer(shared, client.version, command, output).await,
    }
    counts::count_error_reply(&shared.limiter.metrics().errors, output.bytes, start);
    Ok(Next::Read)
}

/// Whether a client must have given the password before this request. Until then, unknown commands look like known ones.
fn needs_password(request: Arguments) -> bool {
    let spec = table::find(table::COMMANDS, request.get(0).unwrap_or_default());
    spec.is_none_or(|spec| !spec.flags.contains(&"no_auth"))
}

/// A master without replicas.
fn write_role(reply: &mut ReplyWriter) {
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
}

/// One line a rule, up to the one that answers.
fn write_explanation(shared: &Shared, batch: &mut Batch, pairs: Pairs, reply: &mut ReplyWriter) {
    if let Err(error) = pairs.read_into(&mut batch.operation, shared.limits.max_pairs) {
        return reply.error(error);
    }
    let Some(policy) = policy_or_error(&shared.limiter, reply) else { return };
    let now = shared.limiter.now();
    let own_credits = |index| policy.own_credits(index, &batch.operation, now);
    let explanation = explain::explain(policy.rules(), &batch.operation, own_credits);
    reply.array(explanation.rules.len());
    for explained in &explanation.rules {
        reply.bulk(explained.to_string().as_bytes());
    }
}

/// A map a rule, settings that were not given left out.
fn write_rules(limiter: &Limiter, reply: &mut ReplyWriter) {
    let Some(policy) = policy_or_error(limiter, reply) else { return };
    let rules = policy.rules().rules();
    reply.array(rules.len());
    for rule in rules {
        let settings = rule.described();
        reply.map(settings.len());
        for (name, value) in settings {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }
}

fn policy_or_error(limiter: &Limiter, reply: &mut ReplyWriter) -> Option<Arc<Policy>> {
    let policy = limiter.policy();
    if policy.is_none() {
        write_limiter_error(&Refusal::NoRules, reply);
    }
    policy
}
