//! Bodies of responses, and the memory of one connection's calls and of the replies that its client has not read. An HTTP/2 client
//! may close its windows and keep sending requests, and the socket shows nothing of that.
//!
//! Memory beyond the connection's free share counts toward the budget of all buffers, until the library has sent the
//! bytes. If the client reads almost nothing for too long while replies wait, the connection is closed. A stream that has
//! nothing to send uses no memory, and may stay open.

#![expect(clippy::disallowed_methods, reason = "how long a client has read nothing")]

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, SizeHint};
use hyper::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;

use crate::net::memory::{BudgetExceeded, FREE, Share};

/// An error of any kind, as bodies have it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub enum Reply {
    /// The whole body.
    Whole(Bytes),
    /// A gRPC message and its trailers, each until it is taken.
    Message(Option<Bytes>, Option<HeaderMap>),
    /// A body that is made while it is sent.
    Pieces(UnsyncBoxBody<Bytes, BoxError>),
}

impl Reply {
    /// Returns a body that consists of these pieces.
    pub fn from_stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Pieces(StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Pieces(body) => Pin::new(body).poll_frame(context),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Message(message, trailers) => {
                let frame = message.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Pieces(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Message(message, trailers) => message.is_none() && trailers.is_none(),
        }
    }

    /// Returns no hint for a message with trailers, because it has no `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Pieces(body) => body.size_hint(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Message(..) => SizeHint::default(),
        }
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// A body whose frames count until they are sent.
#[derive(Default)]
pub struct AccountedBody {
    body: Reply,
    /// The call, until the library has received all of its reply. `None` if this reply does not count.
    call: Option<Call>,
}

/// The bytes of a frame.
pub struct AccountedBytes {
    bytes: Bytes,
    /// The account that has memory for the bytes. `None` if they do not count.
    replies: Option<Arc<UnsentReplies>>,
}

impl AccountedBody {
    /// Returns the response to a call, with memory for its body; 503 if there is no memory.
    pub fn respond(mut call: Call, response: Response<Reply>) -> Response<Self> {
        let length = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        match call.grow(length) {
            Err(BudgetExceeded) => refuse(Self::default()),
            Ok(()) => {
                call.reserved = length;
                response.map(|body| Self { body, call: Some(call) })
            }
        }
    }
}

/// Returns the response to a call that gets no memory. Its body must be empty, so that nothing waits for the client.
pub fn refuse<B>(empty: B) -> Response<B> {
    let mut response = Response::new(empty);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

impl Buf for AccountedBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(replies) = &self.replies {
            replies.shrink(count, true);
        }
    }
}

impl Drop for AccountedBytes {
    fn drop(&mut self) {
        if let Some(replies) = self.replies.take().filter(|_| !self.bytes.is_empty()) {
            replies.shrink(self.bytes.len(), false);
        }
    }
}

impl Body for AccountedBody {
    type Data = AccountedBytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AccountedBytes>, BoxError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else { return Poll::Ready(None) };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Ok(replies) = self.call.as_mut().map_or(Ok(None), |call| call.take(length)) else {
            return Poll::Ready(Some(Err(OutOfMemory.into())));
        };
        Poll::Ready(Some(Ok(frame.map_data(|bytes| AccountedBytes { bytes, replies }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("there is no memory left for replies that clients have not read yet (--max-buffer-memory)")]
struct OutOfMemory;

/// Memory of a call over HTTP/2 from its arrival until its reply is sent: its stream, its task and a short reply, without its
/// body (bytes).
const CALL: usize = 10 * 1024;
/// Additional memory of a call while an answer that takes longer is made (bytes).
const WORK: usize = 20 * 1024;
/// Size of a call's reply that [`CALL`] includes (bytes). Without it, there might be no memory for the reply of a call
/// that has taken credit.
const SHORT: usize = 1024;
/// Minimum that a client must read of waiting replies in each write timeout (bytes).
const LEAST: usize = 1024;

/// The calls and replies of one connection that are not sent yet.
pub struct UnsentReplies {
    state: Mutex<State>,
}

struct State {
    /// Memory of all calls and replies (bytes).
    used: usize,
    /// Bytes of the replies.
    replies: usize,
    /// Share of the budget, for `used` beyond [`FREE`].
    share: Share,
    /// Bytes that were sent after `since`.
    sent: usize,
    /// Time when the client had last read enough, or when replies began to wait.
    since: Instant,
}

impl State {
    fn grow(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        let used = self.used.saturating_add(bytes);
        self.share.resize(used.saturating_sub(FREE))?;
        self.used = used;
        Ok(())
    }

    fn shrink(&mut self, bytes: usize) {
        self.used -= bytes;
        // Shrinking always succeeds.
        let _ = self.share.resize(self.used.saturating_sub(FREE));
    }
}

impl UnsentReplies {
    /// Creates the account of a connection. `share` is the connection's share of the budget of all buffers.
    pub fn new(share: Share) -> Arc<Self> {
        let state = State { used: 0, replies: 0, share, sent: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Begins a call, before any work is done for it.
    ///
    /// # Errors
    /// There is no memory for another call.
    pub fn begin(self: &Arc<Self>) -> Result<Call, BudgetExceeded> {
        self.state.lock().grow(CALL)?;
        Ok(Call { replies: Some(Arc::clone(self)), memory: CALL, short: SHORT, reserved: 0 })
    }

    /// Gives back the memory of bytes, because they were sent or dropped.
    fn shrink(&self, bytes: usize, are_sent: bool) {
        let mut state = self.state.lock();
        if are_sent {
            state.sent = state.sent.saturating_add(bytes);
        }
        state.replies -= bytes;
        state.shrink(bytes);
    }

    /// Ends when replies have waited for this long while fewer than [`LEAST`] bytes were sent.
    pub async fn stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            let (mut state, now) = (self.state.lock(), Instant::now());
            if state.replies == 0 || now.duration_since(state.since) < limit {
                continue;
            }
            if state.sent < LEAST {
                return;
            }
            state.since = now;
            state.sent = 0;
        }
    }
}

/// A call from its arrival until its reply is sent. Dropping it ends it.
#[derive(Default)]
pub struct Call {
    /// The account of its connection; `None` over HTTP/1.1, where the next call waits for its reply.
    replies: Option<Arc<UnsentReplies>>,
    /// Its memory (bytes).
    memory: usize,
    /// The part of `memory` that is for the beginning of its reply (bytes).
    short: usize,
    /// Bytes of its reply that have memory, and that the library has not received yet.
    reserved: usize,
}

impl Call {
    /// Takes memory for a frame of this length, first the reserved part. Returns the account that has it.
    ///
    /// # Errors
    /// There is no memory for the rest.
    fn take(&mut self, bytes: usize) -> Result<Option<Arc<UnsentReplies>>, BudgetExceeded> {
        let reserved = bytes.min(self.reserved);
        self.grow(bytes - reserved)?;
        self.reserved -= reserved;
        Ok(self.replies.clone())
    }

    /// Reserves memory for work of another kind than a hit's.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn begin_work(&mut self) -> Result<(), BudgetExceeded> {
        if let Some(replies) = &self.replies {
            replies.state.lock().grow(WORK)?;
            self.memory += WORK;
        }
        Ok(())
    }

    /// Gives back the memory for such work.
    pub fn end_work(&mut self) {
        if let Some(replies) = &self.replies {
            replies.state.lock().shrink(WORK);
            self.memory -= WORK;
        }
    }

    /// Reserves memory for more bytes of the reply. The first ones are in the call's memory, which they take over.
    fn grow(&mut self, more: usize) -> Result<(), BudgetExceeded> {
        let Some(replies) = &self.replies else { return Ok(()) };
        let own = more.min(self.short);
        let mut state = replies.state.lock();
        state.grow(more - own)?;
        if state.replies == 0 {
            state.since = Instant::now();
            state.sent = 0;
        }
        state.replies += more;
        self.short -= own;
        self.memory -= own;
        Ok(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(replies) = &self.replies {
            let mut state = replies.state.lock();
            state.replies -= self.reserved;
            state.shrink(self.memory + self.reserved);
        }
    }
}

#[cfg(test)]
mod tests;
