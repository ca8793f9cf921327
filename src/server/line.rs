//! The line protocol's front: a session that answers HITs.

use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::accept::Front;
use super::connection::{self, Next, Session};
use super::stream::Stream;
use crate::clock::ceil_seconds;
use crate::limiter::{Intent, Limiter, Requests};
use crate::metrics::{Errors, FrontRequests, RequestKind, RequestTally};
use crate::protocol::line::{ErrorCode, LineDecoder, RequestError, parse_request, write_error, write_verdict};
use crate::rules::Operation;

/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 1024;

/// The front.
pub struct LineFront {
    limiter: Arc<Limiter>,
    requests: FrontRequests,
    limits: Limits,
}

impl LineFront {
    pub fn new(limiter: Arc<Limiter>, limits: Limits) -> Self {
        Self { requests: limiter.metrics().requests.front(Self::NAME), limiter, limits }
    }
}

impl Front for LineFront {
    const NAME: &'static str = "line";
    // An unasked line would be taken for the answer to the first request.
    const TOO_MANY: &'static [u8] = b"";

    fn serve(
        &self,
        stream: Stream,
        _: SocketAddr,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let session = LineSession::new(self);
        connection::serve(stream, session, self.limits.timeouts, closing)
    }
}

/// One client of the line protocol.
struct LineSession {
    limiter: Arc<Limiter>,
    decoder: LineDecoder,
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
    Error(RequestError),
}

impl LineSession {
    fn new(front: &LineFront) -> Self {
        Self {
            limiter: Arc::clone(&front.limiter),
            decoder: LineDecoder::new(front.limits.max_line),
            max_pairs: front.limits.max_pairs,
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

fn write_counted_error(output: &mut Vec<u8>, errors: &Errors, code: ErrorCode, reason: impl Display) {
    match code {
        ErrorCode::UnknownCommand => errors.unknown_command.inc(),
        ErrorCode::Unknown => errors.unknown.inc(),
    }
    write_error(output, code, reason);
}

impl Session for LineSession {
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
                    match parse_request(line.text, &mut self.operation, self.max_pairs) {
                        Ok(()) => {
                            self.tally.count(RequestKind::Hit);
                            self.requests.push(&self.operation, Intent::Hit);
                            self.replies.push(Reply::Verdict);
                        }
                        Err(error) => {
                            self.tally.count(RequestKind::Invalid);
                            self.replies.push(Reply::Error(error));
                        }
                    }
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
