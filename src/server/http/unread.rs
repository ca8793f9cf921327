//! Replies that the client has not taken: an HTTP/2 client may close its windows and go on asking, and the socket is
//! none the wiser.
//!
//! Each connection has one [`Unread`]. What it holds beyond its free share is on the account of all buffers; when
//! nothing of it moves for too long, the connection is to be ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use crate::server::memory::{FREE, Share, UsedUp};

/// The replies of one connection that are not sent yet.
pub struct Unread {
    state: Mutex<State>,
}

struct State {
    replies: usize,
    bytes: usize,
    /// What is beyond [`FREE`].
    share: Share,
    /// When a reply was let go last, or the first one came.
    moved: Instant,
}

impl Unread {
    /// `share` is the connection's part of the account of all buffers.
    pub fn new(share: Share) -> Arc<Self> {
        let state = State { replies: 0, bytes: 0, share, moved: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// The response, whose body is on the account until it is sent; 503 when there is no room for it.
    pub fn hold(self: &Arc<Self>, response: Response) -> Response {
        let known = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        let held = self.begin();
        if held.grow(known).is_err() {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        response.map(|body| Body::new(HeldBody { body, known, held: Arc::new(held) }))
    }

    fn begin(self: &Arc<Self>) -> Held {
        let mut state = self.state.lock();
        if state.replies == 0 {
            state.moved = Instant::now();
        }
        state.replies += 1;
        Held { unread: Arc::clone(self), bytes: Mutex::new(0) }
    }

    /// Ends when there were replies, and none was let go, for so long.
    pub async fn stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            if self.has_stalled(limit, Instant::now()) {
                return;
            }
        }
    }

    fn has_stalled(&self, limit: Duration, now: Instant) -> bool {
        let state = self.state.lock();
        state.replies > 0 && now.duration_since(state.moved) >= limit
    }
}

/// One reply's part; given back when this is dropped.
struct Held {
    unread: Arc<Unread>,
    bytes: Mutex<usize>,
}

impl Held {
    fn grow(&self, more: usize) -> Result<(), UsedUp> {
        let mut state = self.unread.state.lock();
        let bytes = state.bytes.saturating_add(more);
        state.share.resize(bytes.saturating_sub(FREE))?;
        state.bytes = bytes;
        *self.bytes.lock() += more;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.unread.state.lock();
        state.replies -= 1;
        state.bytes -= *self.bytes.get_mut();
        state.moved = Instant::now();
        let beyond = state.bytes.saturating_sub(FREE);
        // To hold less always succeeds.
        let _ = state.share.resize(beyond);
    }
}

/// A body whose frames are held until the library has let go of them.
struct HeldBody {
    body: Body,
    /// Bytes that are on the account and have not been handed over.
    known: usize,
    held: Arc<Held>,
}

/// A frame's bytes.
struct HeldBytes {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else { return Poll::Ready(None) };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let unknown = length.saturating_sub(self.known);
        self.known = self.known.saturating_sub(length);
        if self.held.grow(unknown).is_err() {
            return Poll::Ready(Some(Err(axum::Error::new(NoRoom))));
        }
        let held = &self.held;
        let frame = frame.map_data(|bytes| Bytes::from_owner(HeldBytes { bytes, _held: Arc::clone(held) }));
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("there is no room for the reply among those that nobody reads (--max-buffer-memory)")]
struct NoRoom;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::server::memory::BufferMemory;

    const LIMIT: usize = 1000;

    fn memory() -> Arc<BufferMemory> {
        BufferMemory::new(LIMIT, Metrics::new())
    }

    fn reply(bytes: usize) -> Response {
        vec![0; bytes].into_response()
    }

    #[test]
    fn replies_have_room_until_they_are_sent_and_a_connection_has_some_of_its_own() {
        let memory = memory();
        let (one, other) = (Unread::new(memory.share()), Unread::new(memory.share()));
        let first = one.hold(reply(FREE + LIMIT));
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(one.hold(reply(1)).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(other.hold(reply(FREE)).status(), StatusCode::OK);
        drop(first);
        assert_eq!(one.hold(reply(FREE + LIMIT)).status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn what_was_handed_over_is_held_until_it_is_dropped() {
        use http_body_util::BodyExt;
        let unread = Unread::new(memory().share());
        let mut body = unread.hold(reply(FREE + LIMIT)).into_body();
        assert_eq!(body.size_hint().exact(), Some((FREE + LIMIT) as u64));
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!((bytes.len(), unread.state.lock().replies), (FREE + LIMIT, 1));
        drop(bytes);
        let state = unread.state.lock();
        assert_eq!((state.replies, state.bytes), (0, 0));
    }

    #[test]
    fn replies_that_do_not_move_are_noticed() {
        const LIMIT: Duration = Duration::from_secs(30);
        let unread = Unread::new(memory().share());
        let later = Instant::now() + 2 * LIMIT;
        assert!(!unread.has_stalled(LIMIT, later), "nothing is unread");
        let _reply = unread.hold(reply(1));
        assert!(unread.has_stalled(LIMIT, later));
        assert!(!unread.has_stalled(LIMIT, Instant::now()));
    }
}
