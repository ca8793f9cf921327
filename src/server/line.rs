//! The line protocol's front: a session that answers HITs.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::Limits;
use super::accept::Front;
use super::connection::{self, Cut, Lease, Next, Session};
use super::pool::{self, pooled};
use super::stream::Stream;
use crate::clock::ceil_seconds;
use crate::limiter::{Intent, Limiter, Requests};
use crate::metrics::Limit;
use crate::protocol::line::{ErrorCode, LineDecoder, RequestError, parse_request, write_error, write_verdict};
use crate::rules::Operation;

/// Requests answered as one batch; more of them wait in the input.
const MAX_BATCH: usize = 1024;
/// No verdict is longer than this (bytes).
const LONGEST_VERDICT: usize = 64;
/// What an error's line counts for, whose length is not known before it is written (bytes).
const LONG_ERROR: usize = 512;

/// The front.
pub struct LineFront {
    limiter: Arc<Limiter>,
    limits: Limits,
}

impl LineFront {
    pub fn new(limiter: Arc<Limiter>, limits: Limits) -> Self {
        Self { limiter, limits }
    }
}

impl Front for LineFront {
    // An unasked line would be taken for the answer to the first request.
    const TOO_MANY: &'static [u8] = b"";

    fn serve(&self, stream: Stream, _: SocketAddr, lease: Lease) -> impl Future<Output = ()> + Send + 'static {
        let session = LineSession::new(Arc::clone(&self.limiter), &self.limits);
        connection::serve(stream, session, self.limits.timeouts, lease)
    }
}

/// One client of the line protocol.
struct LineSession {
    limiter: Arc<Limiter>,
    decoder: LineDecoder,
    max_pairs: usize,
    max_output: usize,
}

/// What a session works with while it answers.
#[derive(Default)]
struct Work {
    requests: Requests,
    operation: Operation,
    replies: Vec<Reply>,
}

pooled!(Box<Work>);

/// What is owed for a line.
enum Reply {
    /// The verdict on the next request of the batch.
    Verdict,
    Error(RequestError),
}

impl LineSession {
    fn new(limiter: Arc<Limiter>, limits: &Limits) -> Self {
        Self {
            limiter,
            decoder: LineDecoder::new(limits.max_line),
            max_pairs: limits.max_pairs,
            max_output: limits.max_output,
        }
    }
}

impl Work {
    fn write_replies(&mut self, output: &mut Vec<u8>) {
        let mut index = 0;
        for reply in self.replies.drain(..) {
            match reply {
                Reply::Error(error) => write_error(output, error.code(), error),
                Reply::Verdict => {
                    match self.requests.verdict(index) {
                        Ok(verdict) => {
                            write_verdict(output, verdict.allowed, verdict.credit, ceil_seconds(verdict.reset_ns));
                        }
                        Err(refusal) => write_error(output, ErrorCode::Unknown, refusal),
                    }
                    index += 1;
                }
            }
        }
    }
}

impl Session for LineSession {
    async fn answer(&mut self, input: &mut BytesMut, output: &mut Vec<u8>) -> Next {
        let mut work: Box<Work> = pool::take();
        let Work { requests, operation, replies } = &mut *work;
        self.limiter.begin(requests);
        let mut owed = 0;
        let (next, too_long) = loop {
            if replies.len() == MAX_BATCH || owed >= self.max_output {
                break (Next::AnswerOn, None);
            }
            match self.decoder.next_line(input) {
                Ok(None) => break (Next::Read, None),
                Err(error) => {
                    self.limiter.metrics().limits.reached(Limit::Line);
                    break (Next::Close, Some(error));
                }
                Ok(Some(line)) => {
                    let consumed = line.consumed;
                    match parse_request(line.text, operation, self.max_pairs) {
                        Ok(()) => {
                            requests.push(operation, Intent::Hit);
                            replies.push(Reply::Verdict);
                            owed += LONGEST_VERDICT;
                        }
                        Err(error) => {
                            if let RequestError::TooManyPairs { .. } = error {
                                self.limiter.metrics().limits.reached(Limit::Pairs);
                            }
                            replies.push(Reply::Error(error));
                            owed += LONG_ERROR;
                        }
                    }
                    input.advance(consumed);
                }
            }
        };
        self.limiter.apply(requests).await;
        work.write_replies(output);
        pool::give(work);
        if let Some(error) = too_long {
            write_error(output, ErrorCode::Unknown, error);
        }
        next
    }

    fn cut(&mut self, cut: Cut, output: &mut Vec<u8>) {
        write_error(output, ErrorCode::Unknown, cut);
    }
}
