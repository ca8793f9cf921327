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

/// The replies of one connection that are not sent yet.
pub struct Unread {
    state: Mutex<State>,
}

struct State {
    /// Not sent yet.
    bytes: usize,
    /// What is beyond [`FREE`].
    share: Share,
    /// Bytes that were sent since [`State::since`].
    taken: usize,
    /// When the client last took enough, or replies began to wait for it.
    since: Instant,
}

impl Unread {
    /// `share` is the connection's part of the account of all buffers.
    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    pub fn new(share: Share) -> Arc<Self> {
        let state = State { bytes: 0, share, taken: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The response, whose body counts toward the budget until it is sent; 503 when there is no room for it.
    ///
    /// A short reply over HTTP/1 is not held: there the next request waits for it, and one such reply is what a
    /// connection has of its own.
    pub fn hold(self: &Arc<Self>, version: Version, response: Response<Reply>) -> Response<HeldBody> {
        let known = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        if version < Version::HTTP_2 && known <= FREE {
            return response.map(|body| HeldBody { body, held: None });
        }
        if self.grow(known).is_err() {
            let mut refused = Response::new(HeldBody { body: Reply::default(), held: None });
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return refused;
        }
        response.map(|body| HeldBody { body, held: Some(Held { unread: Arc::clone(self), bytes: known }) })
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client has taken nothing")]
    fn grow(&self, more: usize) -> Result<(), UsedUp> {
        let mut state = self.state.lock();
        let bytes = state.bytes.saturating_add(more);
        state.share.resize(bytes.saturating_sub(FREE))?;
        if state.bytes == 0 {
            state.since = Instant::now();
            state.taken = 0;
        }
        state.bytes = bytes;
        Ok(())
    }

    /// Bytes are held no more; `are_sent`: because they were sent.
    fn let_go(&self, bytes: usize, are_sent: bool) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        if are_sent {
            state.taken = state.taken.saturating_add(bytes);
        }
        let beyond = state.bytes.saturating_sub(FREE);
        // To hold less always succeeds.
        let _ = state.share.resize(beyond);
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
        if state.bytes == 0 || now.duration_since(state.since) < limit {
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

    /// Takes `bytes` for a frame off these, as far as there are so many, and the rest off the account.
    fn frame(&mut self, bytes: usize) -> Result<Self, UsedUp> {
        let known = bytes.min(self.bytes);
        self.unread.grow(bytes - known)?;
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
        let Ok(held) = self.held.as_mut().map(|held| held.frame(length)).transpose() else {
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

    fn reply(bytes: usize) -> Response<Reply> {
        Response::new(Reply::Whole(vec![0; bytes].into()))
    }

    #[test]
    fn replies_have_room_until_they_are_sent_and_a_connection_has_some_of_its_own() {
        let memory = memory();
        let (one, other) = (Unread::new(memory.share()), Unread::new(memory.share()));
        let first = one.hold(Version::HTTP_2, reply(FREE + LIMIT));
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(one.hold(Version::HTTP_2, reply(1)).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(other.hold(Version::HTTP_2, reply(FREE)).status(), StatusCode::OK);
        drop(first);
        assert_eq!(one.hold(Version::HTTP_2, reply(FREE + LIMIT)).status(), StatusCode::OK);
    }

    #[test]
    fn long_replies_over_http_1_are_on_the_account_too() {
        let memory = memory();
        let unread = Unread::new(memory.share());
        let long = unread.hold(Version::HTTP_11, reply(FREE + LIMIT));
        let short = unread.hold(Version::HTTP_11, reply(FREE));
        assert_eq!((long.status(), short.status()), (StatusCode::OK, StatusCode::OK));
        let other = Unread::new(memory.share()).hold(Version::HTTP_11, reply(FREE + 1));
        assert_eq!(other.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn what_was_handed_over_is_held_until_it_is_written_or_dropped() {
        let unread = Unread::new(memory().share());
        let mut body = unread.hold(Version::HTTP_2, reply(FREE + LIMIT)).into_body();
        assert_eq!(body.size_hint().exact(), Some((FREE + LIMIT) as u64));
        let mut bytes = body.frame().await.unwrap().unwrap().into_data().ok().unwrap();
        drop(body);
        assert_eq!(unread.state.lock().bytes, FREE + LIMIT);
        bytes.advance(FREE);
        assert_eq!((unread.state.lock().bytes, bytes.remaining()), (LIMIT, LIMIT));
        drop(bytes);
        assert_eq!(unread.state.lock().bytes, 0);
    }

    const PERIOD: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_client_that_takes_enough_in_each_period_has_not_stalled() {
        let unread = Unread::new(memory().share());
        let mut body = unread.hold(Version::HTTP_2, reply(3 * LEAST)).into_body();
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
        let response = unread.hold(Version::HTTP_2, Response::new(Reply::Routed(unending)));
        assert!(!unread.has_stalled(PERIOD, Instant::now() + 2 * PERIOD));
        drop(response);
    }

    #[test]
    fn replies_that_do_not_move_are_noticed() {
        let unread = Unread::new(memory().share());
        let later = Instant::now() + 2 * PERIOD;
        assert!(!unread.has_stalled(PERIOD, later), "nothing is unread");
        let _reply = unread.hold(Version::HTTP_2, reply(1));
        assert!(!unread.has_stalled(PERIOD, Instant::now()));
        assert!(unread.has_stalled(PERIOD, later));
    }
}
