//! The front for the line protocol: a session that answers `HIT`s.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::errors::{self, Terms};
use super::net::accept::Front;
use super::net::auth::{Gate, Guard};
use super::net::connection::{self, ConnectionContext, Cut, NextStep, Output, Session};
use super::net::memory::{self, BufferMemory, RequestMemory, pooled};
use super::net::protocol::Protocol;
use super::net::stream::Stream;
use super::server_context::Limits;
use super::server_context::ServerContext;
use crate::protocol::line::{
    ErrorCode, LineDecoder, RequestError, parse_auth, parse_request, write_error, write_verdict, write_welcome,
};
use divvy_access::{Category, Forbidden, Given, LoginError};
use divvy_core::clock::ceil_seconds;
use divvy_core::rules::Operation;
use divvy_limiter::{Intent, Limiter, PlanBuilder, Report};
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
    limiter: Arc<Limiter>,
    requests: FrontRequests,
    limits: Limits,
    guard: Option<Arc<Guard>>,
    memory: Arc<BufferMemory>,
}

impl LineFront {
    /// Creates the front. `guard` logs clients in.
    pub fn new(server: &ServerContext, guard: Option<Arc<Guard>>) -> Self {
        let ServerContext { limiter, limits, memory, .. } = server.clone();
        Self { requests: limiter.metrics().requests.front(Protocol::Line.front()), limiter, limits, guard, memory }
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
        connection::serve(stream, session, self.limits.timeouts, context)
    }
}

/// One client of the line protocol.
struct LineSession {
    limiter: Arc<Limiter>,
    gate: Gate,
    decoder: LineDecoder,
    request_memory: RequestMemory,
    limits: Limits,
    counts: FrontRequests,
    tally: RequestTally,
}

/// Buffers of a session while it answers.
#[derive(Default)]
struct Work {
    builder: PlanBuilder,
    operation: Operation,
    replies: Vec<Reply>,
}

pooled!(Box<Work>, |work| {
    work.builder.memory() + work.operation.memory() + work.replies.capacity() * size_of::<Reply>()
});

/// The reply to a line.
enum Reply {
    /// The verdict on the batch's next request.
    Verdict,
    /// Confirmation of the right password.
    Welcome,
    Error(ErrorCode, Cow<'static, str>),
}

impl LineSession {
    fn new(front: &LineFront, gate: Gate) -> Self {
        let limits = front.limits;
        let max_line = if gate.is_open() { limits.max_line } else { limits.max_line.min(UNAUTHENTICATED_MAX_LINE) };
        Self {
            limiter: Arc::clone(&front.limiter),
            decoder: LineDecoder::new(max_line),
            request_memory: RequestMemory::new(&front.memory),
            gate,
            limits,
            counts: front.requests.clone(),
            tally: RequestTally::default(),
        }
    }

    /// Reads a hit that the client may send into `operation`, or describes the error.
    fn read(&self, line: &[u8], operation: &mut Operation) -> Result<(), Reply> {
        match self.gate.may(Category::Hit) {
            Ok(()) => parse_request(line, operation, self.limits.max_pairs).map_err(|error| {
                if let RequestError::TooManyPairs { .. } = error {
                    self.limiter.metrics().limits.reached(Bound::Pairs);
                }
                Reply::Error(error.code(), error.to_string().into())
            }),
            Err(_) if !self.gate.is_open() => Err(Reply::Error(ErrorCode::Unauthenticated, NO_PASSWORD.into())),
            Err(Forbidden(category)) => {
                if let Some(guard) = self.gate.guard() {
                    guard.count_forbidden();
                }
                let category = category.name();
                let text = format!("This user has no permission for requests of the category {category}.");
                Err(Reply::Error(ErrorCode::Unknown, text.into()))
            }
        }
    }

    /// Logs the client in. Returns `None` if the client has left.
    async fn log_in(&mut self, password: &[u8], output: &Output<'_>) -> Option<Reply> {
        let error = match self.gate.open(&Given::Password(password), output.client_left()).await {
            Ok(()) => {
                self.decoder.set_max_line(self.limits.max_line);
                return Some(Reply::Welcome);
            }
            Err(LoginError::Wrong) => WRONG_PASSWORD,
            Err(LoginError::QueueFull) => TOO_MANY_LOGINS,
            Err(LoginError::ClientLeft) => return None,
        };
        Some(Reply::Error(ErrorCode::Unauthenticated, error.into()))
    }
}

impl Work {
    fn write_replies(&mut self, report: Report<'_>, metrics: &Metrics, gate: &Gate, output: &mut Vec<u8>) {
        let mut index = 0;
        for reply in self.replies.drain(..) {
            match reply {
                Reply::Welcome => write_welcome(output),
                Reply::Error(code, text) => write_counted_error(output, metrics, gate, code, text),
                Reply::Verdict => {
                    match report.verdict(index) {
                        Ok(verdict) => {
                            write_verdict(output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
                        }
                        Err(refusal) => {
                            let text = errors::describe(&refusal, &TERMS);
                            write_counted_error(output, metrics, gate, ErrorCode::Unknown, text);
                        }
                    }
                    index += 1;
                }
            }
        }
    }
}

fn write_counted_error(output: &mut Vec<u8>, metrics: &Metrics, gate: &Gate, code: ErrorCode, reason: impl Display) {
    let kind = match code {
        ErrorCode::UnknownCommand => ErrorKind::UnknownCommand,
        ErrorCode::Unauthenticated => ErrorKind::Unauthenticated,
        ErrorCode::Unknown => ErrorKind::Unknown,
    };
    errors::count(metrics, Protocol::Line, kind, || gate.error_client(), &reason);
    write_error(output, code, reason);
}

impl Session for LineSession {
    fn is_admitted(&self) -> bool {
        self.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Output<'_>) -> NextStep {
        let mut work: Box<Work> = memory::take();
        let Work { builder, operation, replies } = &mut *work;
        self.limiter.begin(builder, self.gate.identity().scope());
        let mut owed = 0;
        let next = loop {
            if replies.len() == MAX_BATCH
                || owed >= self.limits.write_threshold
                || !self.request_memory.fits(builder.plan().weight())
            {
                break NextStep::Continue;
            }
            let line = match self.decoder.next_line(input) {
                Ok(None) => break NextStep::Read,
                Ok(Some(line)) => line,
                Err(error) => {
                    self.limiter.metrics().limits.reached(Bound::Line);
                    self.tally.count(RequestKind::Invalid);
                    replies.push(Reply::Error(ErrorCode::Unknown, error.to_string().into()));
                    break NextStep::Close;
                }
            };
            let consumed = line.consumed;
            if !self.request_memory.admits(&self.limiter, builder.plan().weight(), consumed) {
                if !replies.is_empty() {
                    // The lines before it are answered first, and then this line is read again.
                    break NextStep::Continue;
                }
                self.request_memory.wait_for_request(&self.limiter, consumed).await;
            }
            self.gate.refresh();
            // AUTH is a command only if clients have to log in, because the original Divvy has no such command.
            let password = self.gate.guard().and_then(|_| parse_auth(line.text));
            let is_login = password.is_some();
            if is_login && !replies.is_empty() {
                // The lines before it are answered first, because a login may take long.
                break NextStep::Continue;
            }
            let reply = match password {
                Some(password) => match self.log_in(password, output).await {
                    Some(reply) => reply,
                    None => break NextStep::Close,
                },
                None => match self.read(line.text, operation) {
                    Ok(()) => {
                        builder.set_scope(self.gate.identity().scope());
                        builder.add(operation, Intent::Hit, None);
                        Reply::Verdict
                    }
                    Err(error) => error,
                },
            };
            let (kind, length) = match reply {
                Reply::Verdict => (RequestKind::Hit, LONGEST_VERDICT),
                Reply::Welcome => (RequestKind::Connection, LONG_ERROR),
                Reply::Error(..) => (RequestKind::Invalid, LONG_ERROR),
            };
            self.tally.count(kind);
            owed += length;
            replies.push(reply);
            input.advance(consumed);
            if is_login {
                // The next lines have their own batch, and its time.
                break if self.gate.is_exhausted() { NextStep::Close } else { NextStep::Continue };
            }
        };
        let applied = self.limiter.apply(builder.build()).await;
        work.write_replies(applied.report(), self.limiter.metrics(), &self.gate, output.bytes);
        work.builder.reuse(applied);
        memory::give(work);
        self.request_memory.give_back();
        self.counts.take(&mut self.tally);
        next
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        write_counted_error(output, self.limiter.metrics(), &self.gate, ErrorCode::Unknown, cut);
    }
}
