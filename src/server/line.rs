//! The line protocol's front: a session that answers HITs.

use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::accept::Front;
use super::auth::{Gate, Guard};
use super::connection::{self, Next, Session};
use super::stream::Stream;
use crate::clock::ceil_seconds;
use crate::limiter::{Intent, Limiter, Requests};
use crate::metrics::{Errors, FrontRequests, RequestKind, RequestTally};
use crate::protocol::line::{
    ErrorCode, LineDecoder, RequestError, parse_auth, parse_request, write_error, write_verdict, write_welcome,
};
use crate::rules::Operation;

/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 1024;
/// Bytes in a line that may come before the password.
const STRANGERS_MAX_LINE: usize = 16 * 1024;

/// The front.
pub struct LineFront {
    limiter: Arc<Limiter>,
    requests: FrontRequests,
    limits: Limits,
    guard: Option<Arc<Guard>>,
}

impl LineFront {
    /// `guard` asks for the password that clients must give first.
    pub fn new(limiter: Arc<Limiter>, limits: Limits, guard: Option<Arc<Guard>>) -> Self {
        Self { requests: limiter.metrics().requests.front(Self::NAME), limiter, limits, guard }
    }
}

impl Front for LineFront {
    const NAME: &'static str = "line";
    // An unasked line would be taken for the answer to the first request.
    const TOO_MANY: &'static [u8] = b"";

    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let session = LineSession::new(self, Gate::new(self.guard.clone(), peer));
        connection::serve(stream, session, self.limits.timeouts, closing)
    }
}

/// One client of the line protocol.
struct LineSession {
    limiter: Arc<Limiter>,
    gate: Gate,
    decoder: LineDecoder,
    max_line: usize,
    max_pairs: usize,
    requests: Requests,
    operation: Operation,
    replies: Vec<Reply>,
    counts: FrontRequests,
    tally: RequestTally,
}

/// What is owed for a line.
enum Reply {
    /// The verdict on the next request of the batch.
    Verdict,
    /// The password was right.
    Welcome,
    Error(RequestError),
}

impl LineSession {
    fn new(front: &LineFront, gate: Gate) -> Self {
        let Limits { max_line, max_pairs, .. } = front.limits;
        Self {
            limiter: Arc::clone(&front.limiter),
            decoder: LineDecoder::new(if gate.is_open() { max_line } else { max_line.min(STRANGERS_MAX_LINE) }),
            gate,
            max_line,
            max_pairs,
            requests: Requests::default(),
            operation: Operation::new(),
            replies: Vec::new(),
            counts: front.requests.clone(),
            tally: RequestTally::default(),
        }
    }

    fn write_replies(&mut self, output: &mut Vec<u8>) {
        let errors = &self.limiter.metrics().errors;
        let mut index = 0;
        for reply in self.replies.drain(..) {
            match reply {
                Reply::Welcome => write_welcome(output),
                Reply::Error(error) => write_counted_error(output, errors, error.code(), error),
                Reply::Verdict => {
                    match self.requests.verdict(index) {
                        Ok(verdict) => {
                            write_verdict(output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
                        }
                        Err(refusal) => write_counted_error(output, errors, ErrorCode::Unknown, refusal),
                    }
                    index += 1;
                }
            }
        }
    }
}

/// The reply to a line that is no HIT, or comes from somebody who may not hit: it may be an AUTH, where there is a
/// password. Divvy knows none, so without one it is as unknown as any other command.
fn no_hit(line: &[u8], error: RequestError, gate: &mut Gate) -> Reply {
    let given = if gate.has_password() { parse_auth(line) } else { None };
    match given.map(|password| gate.open(password)) {
        None => Reply::Error(error),
        Some(true) => Reply::Welcome,
        Some(false) => Reply::Error(RequestError::WrongPassword),
    }
}

fn write_counted_error(output: &mut Vec<u8>, errors: &Errors, code: ErrorCode, reason: impl Display) {
    match code {
        ErrorCode::UnknownCommand => errors.unknown_command.inc(),
        ErrorCode::Unauthenticated => errors.unauthenticated.inc(),
        ErrorCode::Unknown => errors.unknown.inc(),
    }
    write_error(output, code, reason);
}

impl Session for LineSession {
    fn is_admitted(&self) -> bool {
        self.gate.is_open()
    }

    async fn answer(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Next {
        self.limiter.begin(&mut self.requests);
        let (next, too_long) = loop {
            if self.replies.len() == MAX_BATCH {
                break (Next::AnswerOn, None);
            }
            match self.decoder.next_line(input) {
                Ok(None) => break (Next::Read, None),
                Err(error) => break (Next::Close, Some(error)),
                Ok(Some(line)) => {
                    let consumed = line.consumed;
                    let request = match self.gate.is_open() {
                        true => parse_request(line.text, &mut self.operation, self.max_pairs),
                        false => Err(RequestError::Unauthenticated),
                    };
                    let reply = match request {
                        Ok(()) => {
                            self.requests.push(&self.operation, Intent::Hit);
                            Reply::Verdict
                        }
                        Err(error) => no_hit(line.text, error, &mut self.gate),
                    };
                    match &reply {
                        Reply::Verdict => self.tally.count(RequestKind::Hit),
                        Reply::Welcome => {
                            self.tally.count(RequestKind::Connection);
                            self.decoder.set_max_line(self.max_line);
                        }
                        Reply::Error(_) => self.tally.count(RequestKind::Invalid),
                    }
                    self.replies.push(reply);
                    input.advance(consumed);
                }
            }
        };
        self.limiter.apply(&mut self.requests).await;
        self.write_replies(output);
        self.requests.release_policy();
        if let Some(error) = too_long {
            self.tally.count(RequestKind::Invalid);
            write_counted_error(output, &self.limiter.metrics().errors, ErrorCode::Unknown, error);
        }
        self.counts.take(&mut self.tally);
        next
    }
}
