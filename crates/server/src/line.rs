//! The front for the line protocol: a session that answers `HIT`s.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::errors::{self, Terms};
use super::net::accept::Front;
use super::net::auth::{Gate, Guard};
use super::net::connection::{self, ConnectionContext, Cut, NextStep, Output, Session};
use super::net::memory::{self, RequestMemory, pooled};
use super::net::protocol::Protocol;
use super::net::stream::Stream;
use super::server_context::ServerContext;
use crate::protocol::line::{
    LineDecoder, RequestError, parse_auth, parse_request, write_error, write_verdict, write_welcome,
};
use divvy_access::{Category, Forbidden, Given, LoginError};
use divvy_core::clock::ceil_seconds;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, PlanBuilder, Report};
use divvy_telemetry::metrics::{Bound, ErrorKind, FrontRequests, Metrics, RequestKind, RequestTally};

/// Hints for clients. The protocol has no leases, and cannot list rules.
const TERMS: Terms = Terms { take_lease: Some("take a lease with DIVVY.RESERVE over RESP"), list_rules: None };
/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 512;
/// Maximum length of a verdict (bytes).
const LONGEST_VERDICT: usize = 64;
/// Assumed length of any other reply. Its actual length is unknown until it is written (bytes).
const LONG_ERROR: usize = 512;
/// Maximum length of a line before the password (bytes).
const UNAUTHENTICATED_MAX_LINE: usize = 16 * 1024;

const NO_PASSWORD: &str = "Authentication required: send AUTH and the password first.";
const WRONG_PASSWORD: &str = "The password is wrong.";
const TOO_MANY_LOGINS: &str = "Too many logins are being verified: try again.";

/// The front.
pub struct LineFront {
    server: ServerContext,
    requests: FrontRequests,
    guard: Option<Arc<Guard>>,
}

impl LineFront {
    /// Creates the front. `guard` logs clients in.
    pub fn new(server: &ServerContext, guard: Option<Arc<Guard>>) -> Self {
        let requests = server.limiter.metrics().requests.front(Protocol::Line.name());
        Self { server: server.clone(), requests, guard }
    }
}

impl Front for LineFront {
    const PROTOCOL: Protocol = Protocol::Line;

    fn serve(
        self: &Arc<Self>,
        stream: Stream,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        let session = LineSession::new(self, Gate::new(self.guard.clone(), context.peer, context.certificate.clone()));
        connection::serve(stream, BytesMut::new(), session, self.server.limits.timeouts, context)
    }
}

/// One client of the line protocol.
struct LineSession {
    front: Arc<LineFront>,
    client: LineClient,
}

struct LineClient {
    gate: Gate,
    decoder: LineDecoder,
    request_memory: RequestMemory,
    tally: RequestTally,
}

/// Buffers of a session while it answers.
#[derive(Default)]
struct Work {
    operation: Operation,
    replies: Vec<Reply>,
}

pooled!(Box<Work>, |work| work.operation.memory() + work.replies.capacity() * size_of::<Reply>());

/// Why a session adds no more lines to its batch.
enum Stop {
    /// There is no other complete line.
    Read,
    /// Other connections have a turn.
    Continue,
    /// The next line is too long.
    Close,
    /// The next line, which has this length, needs memory.
    Memory(usize),
    /// The next line is a login, which may take long.
    Login,
}

/// The reply to a line.
enum Reply {
    /// The verdict on the batch's next request.
    Verdict,
    /// Confirmation of the right password.
    Welcome,
    Error(ErrorKind, Cow<'static, str>),
}

impl LineSession {
    fn new(front: &Arc<LineFront>, gate: Gate) -> Self {
        let limits = front.server.limits;
        let max_line = if gate.is_open() { limits.max_line } else { limits.max_line.min(UNAUTHENTICATED_MAX_LINE) };
        let client = LineClient {
            decoder: LineDecoder::new(max_line),
            request_memory: RequestMemory::new(&front.server.memory),
            gate,
            tally: RequestTally::default(),
        };
        Self { front: Arc::clone(front), client }
    }
}

impl LineClient {
    /// Adds hits to the plan, and a reply for each line, in order. `has_waited` says whether the first line
    /// has waited for memory.
    fn collect(
        &mut self,
        front: &LineFront,
        Work { operation, replies }: &mut Work,
        builder: &mut PlanBuilder,
        input: &mut BytesMut,
        mut has_waited: bool,
    ) -> Stop {
        let mut owed = 0;
        loop {
            if replies.len() == MAX_BATCH
                || owed >= front.server.limits.write_threshold
                || !self.request_memory.fits(builder.weight())
            {
                return Stop::Continue;
            }
            let line = match self.decoder.next_line(input) {
                Ok(None) => return Stop::Read,
                Ok(Some(line)) => line,
                Err(error) => {
                    front.server.limiter.metrics().limits.reached.count(Bound::Line);
                    self.tally.count(RequestKind::Invalid);
                    replies.push(Reply::Error(ErrorKind::Unknown, error.to_string().into()));
                    return Stop::Close;
                }
            };
            let consumed = line.consumed;
            if !std::mem::take(&mut has_waited)
                && !self.request_memory.admits(&front.server.limiter, builder.weight(), consumed)
            {
                return Stop::Memory(consumed);
            }
            self.gate.refresh();
            // AUTH is a command only if clients have to log in, because the original Divvy has no such command.
            if self.gate.guard().is_some() && parse_auth(line.text).is_some() {
                return Stop::Login;
            }
            let (reply, kind, length) = match self.read(front, line.text, operation) {
                Ok(()) => {
                    builder.set_scope(self.gate.identity().scope());
                    builder.add(operation, Intent::Hit, None);
                    (Reply::Verdict, RequestKind::Hit, LONGEST_VERDICT)
                }
                Err(error) => (error, RequestKind::Invalid, LONG_ERROR),
            };
            self.tally.count(kind);
            owed += length;
            replies.push(reply);
            input.advance(consumed);
        }
    }

    /// Reads a hit that the client may send into `operation`, or describes the error.
    fn read(&self, front: &LineFront, line: &[u8], operation: &mut Operation) -> Result<(), Reply> {
        match self.gate.may(Category::Hit) {
            Ok(()) => parse_request(line, operation, front.server.limits.max_pairs).map_err(|error| {
                if let RequestError::TooManyPairs { .. } = error {
                    front.server.limiter.metrics().limits.reached.count(Bound::Pairs);
                }
                Reply::Error(error.kind(), error.to_string().into())
            }),
            Err(_) if !self.gate.is_open() => Err(Reply::Error(ErrorKind::Unauthenticated, NO_PASSWORD.into())),
            Err(Forbidden(category)) => {
                if let Some(guard) = self.gate.guard() {
                    guard.count_forbidden();
                }
                let category = category.name();
                let text = format!("This user has no permission for requests of the category {category}.");
                Err(Reply::Error(ErrorKind::Unknown, text.into()))
            }
        }
    }

    /// Answers the next line, a login. Returns `None` if the client has left.
    async fn log_in(&mut self, front: &LineFront, input: &mut BytesMut, output: &Output<'_>) -> Option<Reply> {
        let Ok(Some(line)) = self.decoder.next_line(input) else { return None };
        let password = parse_auth(line.text)?;
        let opened = self.gate.open(&Given::Password(password), output.client_left()).await;
        let consumed = line.consumed;
        let (reply, kind) = match opened {
            Ok(()) => {
                self.decoder.set_max_line(front.server.limits.max_line);
                (Reply::Welcome, RequestKind::Connection)
            }
            Err(LoginError::Wrong) => (Reply::refused_login(WRONG_PASSWORD), RequestKind::Invalid),
            Err(LoginError::QueueFull) => (Reply::refused_login(TOO_MANY_LOGINS), RequestKind::Invalid),
            Err(LoginError::ClientLeft) => return None,
        };
        self.tally.count(kind);
        input.advance(consumed);
        Some(reply)
    }
}

impl Reply {
    fn refused_login(reason: &'static str) -> Self {
        Self::Error(ErrorKind::Unauthenticated, reason.into())
    }
}

impl Work {
    fn write_replies(&mut self, report: Report<'_>, metrics: &Metrics, gate: &Gate, output: &mut Vec<u8>) {
        let mut index = 0;
        for reply in self.replies.drain(..) {
            match reply {
                Reply::Welcome => write_welcome(output),
                Reply::Error(kind, text) => write_counted_error(output, metrics, gate, kind, text),
                Reply::Verdict => {
                    match report.verdict(index) {
                        Ok(verdict) => {
                            write_verdict(output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
                        }
                        Err(refusal) => {
                            let text = errors::describe(&refusal, &TERMS);
                            write_counted_error(output, metrics, gate, ErrorKind::Unknown, text);
                        }
                    }
                    index += 1;
                }
            }
        }
    }
}

fn write_counted_error(output: &mut Vec<u8>, metrics: &Metrics, gate: &Gate, kind: ErrorKind, reason: impl Display) {
    errors::count(metrics, Protocol::Line, kind, || gate.error_client(), &reason);
    write_error(output, kind, reason);
}

impl Session for LineSession {
    fn has_room(&self) -> bool {
        self.front.server.limiter.has_room()
    }

    fn is_admitted(&self) -> bool {
        self.client.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        let Self { front, client } = self;
        let (limiter, mut work, mut has_waited) = (&front.server.limiter, memory::take::<Box<Work>>(), false);
        let next = loop {
            let (scope, mut stop) = (client.gate.identity().scope().clone(), Stop::Read);
            let Ok(asked) = limiter.ask(&scope, |builder| {
                stop = client.collect(front, &mut work, builder, input, has_waited);
                Ok::<_, Infallible>(())
            });
            let answers = asked.answers().await;
            // Replies to earlier lines are written before a login, or a line that waits for memory.
            let is_first = work.replies.is_empty();
            work.write_replies(answers.report(), limiter.metrics(), &client.gate, output.bytes);
            break match stop {
                Stop::Read => NextStep::Read,
                Stop::Close => NextStep::Close,
                Stop::Memory(bytes) if is_first => {
                    client.request_memory.wait_for_request(limiter, bytes).await;
                    has_waited = true;
                    continue;
                }
                Stop::Login if is_first => {
                    let Some(reply) = client.log_in(front, input, output).await else { break NextStep::Close };
                    work.replies.push(reply);
                    work.write_replies(answers.report(), limiter.metrics(), &client.gate, output.bytes);
                    if client.gate.is_exhausted() { NextStep::Close } else { NextStep::Continue }
                }
                Stop::Continue | Stop::Memory(_) | Stop::Login => NextStep::Continue,
            };
        };
        memory::give(work);
        client.request_memory.give_back();
        front.requests.take(&mut client.tally);
        next
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        let metrics = self.front.server.limiter.metrics();
        write_counted_error(output, metrics, &self.client.gate, ErrorKind::Unknown, cut);
    }
}
