//! Replies that the client has not taken: an HTTP/2 client may close its windows and go on asking, and the socket is
//! none the wiser.
//!
//! Each connection has one [`Unread`]. What it holds beyond its free share counts toward the budget of all buffers; if the
//! client takes next to nothing of it for too long, the connection is to be ended. A stream that has nothing to send
//! holds nothing, and is left alone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::http::{Response, StatusCode, Version};
use bytes::{Buf, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use super::reply::Reply;
use crate::server::memory::{FREE, Share, UsedUp};
use crate::server::progress::LEAST;

/// Memory of a call over HTTP/2 from when it comes in until its reply is sent: its stream, its task and a short reply, without
/// its body (bytes).
const CALL: usize = 10 * 1024;
/// Memory that a call takes besides while the router answers it (bytes).
const ROUTED: usize = 20 * 1024;
/// Bytes of a call's reply that are part of [`CALL`]. Otherwise a call that has taken credit could find no room for its reply.
const SHORT: usize = 1024;

/// The calls and replies of one connection that are not sent yet.
pub struct Unread {
    state: Mutex<State>,
}

/// Memory in use by calls whose replies are not sent yet (bytes).
#[derive(Clone, Copy, Default)]
struct Used {
    replies: usize,
    /// The calls themselves, each with room for a short reply.
    calls: usize,
    /// The part of the replies that this room covers.
    covered: usize,
}

struct State {
    used: Used,
    /// What is beyond [`FREE`].
    share: Share,
    /// Bytes that were sent since [`State::since`].
    taken: usize,
    /// When the client last took enough, or replies began to wait for it.
    since: Instant,
}

impl State {
    fn account(&mut self, used: Used) -> Result<(), UsedUp> {
        let total = used.replies.saturating_sub(used.covered).saturating_add(used.calls);
        self.share.resize(total.saturating_sub(FREE))?;
        self.used = used;
        Ok(())
    }
}

impl Unread {
    /// `share` is the connection's part of the account of all buffers.
    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    pub fn new(share: Share) -> Arc<Self> {
        let state = State { used: Used::default(), share, taken: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Begins a call, before anything is done about it. Over HTTP/1 it takes nothing: there the next one waits for its reply.
    ///
    /// # Errors
    /// There is no room for another: see [`refused`].
    pub fn begin(self: &Arc<Self>, version: Version) -> Result<Call, UsedUp> {
        if version >= Version::HTTP_2 {
            let mut state = self.state.lock();
            let used = state.used;
            state.account(Used { calls: used.calls + CALL, ..used })?;
        }
        Ok(Call { unread: Arc::clone(self), version, memory: CALL, covered: 0 })
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    fn grow(&self, more: usize, covered: usize) -> Result<(), UsedUp> {
        let mut state = self.state.lock();
        let used = state.used;
        let (replies, covered) = (used.replies.saturating_add(more), used.covered + covered);
        state.account(Used { replies, covered, ..used })?;
        if used.replies == 0 {
            state.since = Instant::now();
            state.taken = 0;
        }
        Ok(())
    }

    /// Bytes are held no more; `are_sent`: because they were sent.
    fn let_go(&self, bytes: usize, are_sent: bool) {
        let mut state = self.state.lock();
        if are_sent {
            state.taken = state.taken.saturating_add(bytes);
        }
        let used = state.used;
        // Giving memory back always succeeds.
        let _ = state.account(Used { replies: used.replies - bytes, ..used });
    }

    /// Ends when replies waited, and fewer than [`LEAST`] bytes of them were sent, for so long.
    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    pub async fn stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            if self.has_stalled(limit, Instant::now()) {
                return;
            }
        }
    }

    fn has_stalled(&self, limit: Duration, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.used.replies == 0 || now.duration_since(state.since) < limit {
            return false;
        }
        if state.taken < LEAST {
            return true;
        }
        state.since = now;
        state.taken = 0;
        false
    }
}

impl HeldBody {
    /// Nothing, which is not held.
    pub fn empty() -> Self {
        Self { body: Reply::default(), held: None, call: None }
    }
}

/// The response to a call that has no room. Its body is empty, so that nothing of it waits for the client.
pub fn refused<B>(empty: B) -> Response<B> {
    let mut refused = Response::new(empty);
    *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    refused
}

/// A call that is being answered, or whose reply is not sent yet; over when this is dropped.
pub struct Call {
    unread: Arc<Unread>,
    version: Version,
    /// Its memory over HTTP/2 (bytes).
    memory: usize,
    /// Bytes of its reply that it had room for (at most [`SHORT`]).
    covered: usize,
}

impl Call {
    /// The response, whose body counts toward the budget until it is sent; 503 when there is no room for it.
    ///
    /// A short reply over HTTP/1 is not held: there the next request waits for it, and one such reply is what a
    /// connection has of its own.
    pub fn hold(mut self, response: Response<Reply>) -> Response<HeldBody> {
        let known = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        if self.version < Version::HTTP_2 && known <= FREE {
            return response.map(|body| HeldBody { body, held: None, call: None });
        }
        if self.grow(known).is_err() {
            return refused(HeldBody::empty());
        }
        let held = Held { unread: Arc::clone(&self.unread), bytes: known };
        response.map(|body| HeldBody { body, held: Some(held), call: Some(self) })
    }

    /// Takes what the router needs for it.
    ///
    /// # Errors
    /// There is no room for it: see [`refused`].
    pub fn begin_routing(&mut self) -> Result<(), UsedUp> {
        if self.version >= Version::HTTP_2 {
            let mut state = self.unread.state.lock();
            let used = state.used;
            state.account(Used { calls: used.calls + ROUTED, ..used })?;
            self.memory += ROUTED;
        }
        Ok(())
    }

    /// Gives back what the router needed for it.
    pub fn end_routing(&mut self) {
        if self.version >= Version::HTTP_2 {
            let mut state = self.unread.state.lock();
            let used = state.used;
            // Giving memory back always succeeds.
            let _ = state.account(Used { calls: used.calls - ROUTED, ..used });
            self.memory -= ROUTED;
        }
    }

    /// Takes more bytes of its reply.
    fn grow(&mut self, more: usize) -> Result<(), UsedUp> {
        let own = if self.version >= Version::HTTP_2 { SHORT - self.covered } else { 0 };
        let covered = more.min(own);
        self.unread.grow(more, covered)?;
        self.covered += covered;
        Ok(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.version >= Version::HTTP_2 {
            let mut state = self.unread.state.lock();
            let used = state.used;
            let (calls, covered) = (used.calls - self.memory, used.covered - self.covered);
            // A call takes more than the reply that it had room for, so this gives room back, which always succeeds.
            let _ = state.account(Used { calls, covered, ..used });
        }
    }
}

/// Bytes of a reply that are held; no longer when this is dropped.
struct Held {
    unread: Arc<Unread>,
    bytes: usize,
}

impl Held {
    /// `bytes` of these were sent.
    fn sent(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.unread.let_go(bytes, true);
    }

    /// Takes `bytes` for a frame of the call's reply off these, as far as they last, and the rest off the account.
    fn frame(&mut self, bytes: usize, call: &mut Call) -> Result<Self, UsedUp> {
        let known = bytes.min(self.bytes);
        call.grow(bytes - known)?;
        self.bytes -= known;
        Ok(Self { unread: Arc::clone(&self.unread), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.unread.let_go(self.bytes, false);
        }
    }
}

/// A body whose frames are held until the library has written them.
pub struct HeldBody {
    body: Reply,
    /// Bytes that count toward the budget and have not been handed over; `None`: this reply is not held.
    held: Option<Held>,
    /// Until all of it has been handed over.
    call: Option<Call>,
}

/// A frame's bytes.
pub struct HeldBytes {
    bytes: Bytes,
    held: Option<Held>,
}

impl Buf for HeldBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(held) = &mut self.held {
            held.sent(count);
        }
    }
}

impl hyper::body::Body for HeldBody {
    type Data = HeldBytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<HeldBytes>, axum::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else { return Poll::Ready(None) };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Self { held, call, .. } = &mut *self;
        let holding = held.as_mut().zip(call.as_mut());
        let Ok(held) = holding.map(|(held, call)| held.frame(length, call)).transpose() else {
            return Poll::Ready(Some(Err(axum::Error::new(NoRoom))));
        };
        Poll::Ready(Some(Ok(frame.map_data(|bytes| HeldBytes { bytes, held }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no memory is left for replies that clients have not read yet (--max-buffer-memory)")]
struct NoRoom;

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;

    use super::*;
    use crate::metrics::Metrics;
    use crate::server::memory::BufferMemory;

    const LIMIT: usize = 1000;

    fn memory() -> Arc<BufferMemory> {
        BufferMemory::new(LIMIT, Metrics::new())
    }

    /// The room that a connection has of its own for replies, while one call over HTTP/2 is under way.
    const OWN: usize = FREE - CALL;

    fn hold(unread: &Arc<Unread>, version: Version, response: Response<Reply>) -> Response<HeldBody> {
        unread.begin(version).map_or_else(|UsedUp| refused(HeldBody::empty()), |call| call.hold(response))
    }

    fn reply(bytes: usize) -> Response<Reply> {
        Response::new(Reply::Whole(vec![0; bytes].into()))
    }

    #[test]
    fn replies_have_room_until_they_are_sent_and_a_connection_has_some_of_its_own() {
        let memory = memory();
        let (one, other) = (Unread::new(memory.share()), Unread::new(memory.share()));
        let first = hold(&one, Version::HTTP_2, reply(OWN + LIMIT));
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(hold(&one, Version::HTTP_2, reply(1)).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(hold(&other, Version::HTTP_2, reply(OWN)).status(), StatusCode::OK);
        drop(first);
        assert_eq!(hold(&one, Version::HTTP_2, reply(OWN + LIMIT)).status(), StatusCode::OK);
    }

    #[test]
    fn a_call_has_room_from_its_beginning_until_its_reply_is_handed_over() {
        let memory = BufferMemory::new(10 * CALL, Metrics::new());
        let unread = Unread::new(memory.share());
        let calls: Vec<_> = std::iter::from_fn(|| unread.begin(Version::HTTP_2).ok()).collect();
        assert_eq!(calls.len(), (FREE + 10 * CALL) / CALL);
        let refused =
            unread.begin(Version::HTTP_2).map_or_else(|UsedUp| refused(HeldBody::empty()), |call| call.hold(reply(1)));
        assert!(refused.status() == StatusCode::SERVICE_UNAVAILABLE && refused.body().is_end_stream());
        assert!(unread.begin(Version::HTTP_11).is_ok(), "one after the other");
        let response = calls.into_iter().next().unwrap().hold(reply(1));
        assert_eq!((response.status(), unread.state.lock().used.calls), (StatusCode::OK, CALL));
        drop(response);
        assert_eq!(unread.state.lock().used.calls, 0);
        assert_eq!(memory.share().resize(10 * CALL), Ok(()), "nothing of it is left");
    }

    #[test]
    fn a_call_that_has_begun_has_room_for_a_short_reply() {
        let memory = BufferMemory::new(10 * CALL, Metrics::new());
        let unread = Unread::new(memory.share());
        let calls: Vec<_> = std::iter::from_fn(|| unread.begin(Version::HTTP_2).ok()).collect();
        let replies: Vec<_> = calls.into_iter().map(|call| call.hold(reply(SHORT))).collect();
        assert!(replies.iter().all(|reply| reply.status() == StatusCode::OK));
        drop(replies);
        assert_eq!(unread.state.lock().used.covered, 0);
        assert_eq!(memory.share().resize(10 * CALL), Ok(()), "nothing of it is left");
    }

    #[test]
    fn long_replies_over_http_1_are_on_the_account_too() {
        let memory = memory();
        let unread = Unread::new(memory.share());
        let long = hold(&unread, Version::HTTP_11, reply(FREE + LIMIT));
        let short = hold(&unread, Version::HTTP_11, reply(FREE));
        assert_eq!((long.status(), short.status()), (StatusCode::OK, StatusCode::OK));
        let other = hold(&Unread::new(memory.share()), Version::HTTP_11, reply(FREE + 1));
        assert_eq!(other.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn what_was_handed_over_is_held_until_it_is_written_or_dropped() {
        let unread = Unread::new(memory().share());
        let mut body = hold(&unread, Version::HTTP_2, reply(OWN + LIMIT)).into_body();
        assert_eq!(body.size_hint().exact(), Some((OWN + LIMIT) as u64));
        let mut bytes = body.frame().await.unwrap().unwrap().into_data().ok().unwrap();
        drop(body);
        assert_eq!(unread.state.lock().used.replies, OWN + LIMIT);
        bytes.advance(OWN);
        assert_eq!((unread.state.lock().used.replies, bytes.remaining()), (LIMIT, LIMIT));
        drop(bytes);
        assert_eq!(unread.state.lock().used.replies, 0);
    }

    const PERIOD: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_client_that_takes_enough_in_each_period_has_not_stalled() {
        let unread = Unread::new(memory().share());
        let mut body = hold(&unread, Version::HTTP_2, reply(3 * LEAST)).into_body();
        let mut bytes = body.frame().await.unwrap().unwrap().into_data().ok().unwrap();
        let begun = Instant::now();
        for period in 1..=2 {
            bytes.advance(LEAST);
            assert!(!unread.has_stalled(PERIOD, begun + period * PERIOD), "period {period}");
        }
        bytes.advance(LEAST - 1);
        assert!(!unread.has_stalled(PERIOD, begun + 2 * PERIOD), "the period is not over");
        assert!(unread.has_stalled(PERIOD, begun + 3 * PERIOD));
    }

    #[tokio::test]
    async fn a_stream_that_has_nothing_to_send_has_not_stalled() {
        let unread = Unread::new(memory().share());
        let unending = Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        let response = hold(&unread, Version::HTTP_2, Response::new(Reply::Routed(unending)));
        assert!(!unread.has_stalled(PERIOD, Instant::now() + 2 * PERIOD));
        drop(response);
    }

    #[test]
    fn replies_that_do_not_move_are_noticed() {
        let unread = Unread::new(memory().share());
        let later = Instant::now() + 2 * PERIOD;
        assert!(!unread.has_stalled(PERIOD, later), "nothing is unread");
        let _reply = hold(&unread, Version::HTTP_2, reply(1));
        assert!(!unread.has_stalled(PERIOD, Instant::now()));
        assert!(unread.has_stalled(PERIOD, later));
    }
}
