//! The RESP front: a session that answers commands.
//!
//! The requests of one read that ask the limiter are one [`batch`]; any other command first has the batch before it
//! answered, so replies come in order. What only concerns the client itself is [`client`]'s, what concerns the server
//! [`info`]'s, and what operators do to counters is [`operate`]'s; [`counts`] is how the metrics see it.

mod batch;
mod client;
mod counts;
mod info;
mod operate;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::net::TcpListener;

use self::batch::{Batch, write_refusal};
use self::client::Client;
use self::info::Shared;
use super::Limits;
use super::accept::Front;
use super::auth::{Gate, Guard};
use super::connection::{self, Cut, Lease, Next, Session};
use super::pool::{self, pooled};
use super::stream::Stream;
use crate::limiter::{Limiter, Policy, Refusal};
use crate::metrics::{Limit, RequestKind, RequestTally};
use crate::protocol::command::{Command, CommandError, Pairs, describe, table};
use crate::protocol::resp::{Arguments, Decoder, ProtocolError, ReplyWriter};
use crate::rules::explain;

/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 1024;
/// No reply to a request of a batch is longer than this, errors aside (bytes).
const LONGEST_REPLY: usize = 128;
/// What a client is told that has not given the password.
const NO_AUTH: &str = "NOAUTH Authentication required.";

/// The front.
pub struct RespFront {
    shared: Arc<Shared>,
}

impl RespFront {
    /// `guard` asks for the password that clients must give first.
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        guard: Option<Arc<Guard>>,
        listener: Option<&TcpListener>,
    ) -> Self {
        Self { shared: Arc::new(Shared::new(limiter, limits, guard, listener)) }
    }
}

impl Front for RespFront {
    const NAME: &'static str = "resp";
    const TOO_MANY: &'static [u8] = b"-ERR max number of clients reached\r\n";
    const NO_TLS: &'static [u8] = b"-ERR this port does not speak TLS: connect without it\r\n";
    const ONLY_TLS: &'static [u8] = b"-ERR this port speaks TLS only: connect with it (redis-cli --tls)\r\n";

    fn serve(&self, stream: Stream, peer: SocketAddr, lease: Lease) -> impl Future<Output = ()> + Send + 'static {
        let session = RespSession::new(Arc::clone(&self.shared), peer);
        connection::serve(stream, session, self.shared.limits.timeouts, lease)
    }
}

/// One client that speaks RESP.
struct RespSession {
    shared: Arc<Shared>,
    decoder: Decoder,
    client: Client,
    tally: RequestTally,
}

pooled!(Box<Batch>);

impl RespSession {
    fn new(shared: Arc<Shared>, peer: SocketAddr) -> Self {
        let gate = Gate::new(shared.guard.clone(), peer);
        let client = Client::new(shared.next_client_id(), peer, gate);
        Self { decoder: Decoder::new(shared.limits.resp), client, shared, tally: RequestTally::default() }
    }
}

impl Drop for RespSession {
    fn drop(&mut self) {
        self.shared.client_left();
    }
}

impl Session for RespSession {
    fn is_admitted(&self) -> bool {
        self.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Next {
        let mut batch: Box<Batch> = pool::take();
        let next = self.answer_all(&mut batch, input, output).await;
        self.shared.requests.take(&mut self.tally);
        batch.requests.release_policy();
        pool::give(batch);
        next
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        self.shared.limiter.metrics().errors.unknown.inc();
        ReplyWriter::new(output, self.client.version).error(format_args!("ERR {cut}"));
    }
}

impl RespSession {
    async fn answer_all(&mut self, batch: &mut Batch, input: &mut BytesMut, output: &mut Vec<u8>) -> Next {
        self.shared.limiter.begin(&mut batch.requests);
        let next = loop {
            let owed = output.len() + batch.len() * LONGEST_REPLY;
            if batch.len() >= MAX_BATCH || owed >= self.shared.limits.max_output {
                break Next::AnswerOn;
            }
            self.decoder.set_stranger(!self.client.gate.is_open());
            let consumed = match self.decoder.decode(input) {
                Ok(None) => break Next::Read,
                Ok(Some(consumed)) => consumed,
                Err(error) => {
                    batch.settle(&self.shared.limiter, output).await;
                    count_limit(&self.shared.limiter, limit_of(&error));
                    ReplyWriter::new(output, self.client.version).error(error);
                    self.tally.count(RequestKind::Invalid);
                    self.shared.limiter.metrics().errors.unknown.inc();
                    return Next::Close;
                }
            };
            let next = self.answer_one(batch, input, output).await;
            input.advance(consumed);
            if next == Next::Close {
                return next;
            }
        };
        batch.settle(&self.shared.limiter, output).await;
        next
    }

    /// Puts the request that was decoded from `input` into the batch, or settles the batch and answers the request.
    async fn answer_one(&mut self, batch: &mut Batch, input: &[u8], output: &mut Vec<u8>) -> Next {
        let Self { shared, decoder, client, tally } = self;
        let request = decoder.arguments(input);
        if request.is_empty() {
            return Next::Read;
        }
        if !client.gate.is_open() && needs_password(request) {
            // Nothing waits in the batch: a RESET, which shuts the gate again, has settled it.
            ReplyWriter::new(output, client.version).error(NO_AUTH);
            tally.count(RequestKind::Invalid);
            return Next::Read;
        }
        let command = Command::parse(request);
        tally.count(counts::kind(&command));
        let alone = match command.and_then(|command| batch.push(command, shared.limits.max_pairs)) {
            Ok(None) => return Next::Read,
            Ok(Some(command)) => Ok(command),
            Err(error) => Err(error),
        };
        batch.settle(&shared.limiter, output).await;
        shared.requests.take(tally);
        let errors = &shared.limiter.metrics().errors;
        match alone {
            Ok(command) => {
                let start = output.len();
                let next = answer_alone(shared, batch, client, command, output).await;
                counts::count_error_reply(errors, output, start);
                next
            }
            Err(error) => {
                if let CommandError::TooManyPairs { .. } = error {
                    count_limit(&shared.limiter, Some(Limit::Pairs));
                }
                counts::count_command_error(errors, &error);
                ReplyWriter::new(output, client.version).error(error);
                Next::Read
            }
        }
    }
}

/// The limit that a request ran into, if that is what is wrong with it: a length that is no number counts, too.
fn limit_of(error: &ProtocolError) -> Option<Limit> {
    match error {
        ProtocolError::ArrayLength | ProtocolError::StrangersArrayLength => Some(Limit::Arguments),
        ProtocolError::BulkLength | ProtocolError::StrangersBulkLength => Some(Limit::Argument),
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
async fn answer_alone(
    shared: &Shared,
    batch: &mut Batch,
    client: &mut Client,
    command: Command<'_>,
    output: &mut Vec<u8>,
) -> Next {
    let mut reply = ReplyWriter::new(output, client.version);
    match command {
        Command::Explain(pairs) => write_explanation(shared, batch, pairs, &mut reply),
        Command::Counters(ask) => operate::list(shared, batch, ask, &mut reply).await,
        Command::ForgetCounters(ask) => operate::forget(shared, batch, ask, &mut reply).await,
        Command::Backup(name) => operate::back_up(&shared.limiter, name, &mut reply).await,
        Command::Rules => write_rules(&shared.limiter, &mut reply),
        Command::Info(sections) => reply.bulk(shared.info(sections).await.as_bytes()),
        Command::ConfigGet(patterns) => shared.write_settings(patterns, &mut reply),
        Command::DbSize => shared.write_size(&mut reply).await,
        Command::Time => shared.write_time(&mut reply),
        Command::Describe(question) => describe::write(&mut reply, question),
        other => return client.answer(other, output),
    }
    Next::Read
}

/// Whether this is a command that only those may give who have given the password.
fn needs_password(request: Arguments) -> bool {
    let spec = table::find(table::COMMANDS, request.get(0).unwrap_or_default());
    spec.is_some_and(|spec| !spec.flags.contains(&"no_auth"))
}

/// One line a rule, up to the one that answers.
fn write_explanation(shared: &Shared, batch: &mut Batch, pairs: Pairs, reply: &mut ReplyWriter) {
    if let Err(error) = pairs.read_into(&mut batch.operation, shared.limits.max_pairs) {
        return reply.error(error);
    }
    let Some(policy) = policy_or_error(&shared.limiter, reply) else { return };
    let explanation = explain::explain(policy.rules(), &batch.operation);
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
        write_refusal(&Refusal::NoRules, reply);
    }
    policy
}
