//! The memory of one connection's calls, and of the replies that its client has not read. An HTTP/2 client may close
//! its windows and keep sending requests, and the socket shows nothing of that.
//!
//! Memory beyond the connection's free share counts toward the budget of all buffers. If the client reads almost
//! nothing for too long while replies wait, the connection is closed. A stream that has nothing to send uses no memory,
//! and may stay open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Version;
use parking_lot::Mutex;

use crate::net::memory::{BudgetExceeded, FREE, Share};
use crate::net::stream::LEAST;

/// Memory of a call over HTTP/2 from its arrival until its reply is sent: its stream, its task and a short reply, without its
/// body (bytes).
const CALL: usize = 10 * 1024;
/// Additional memory of a call while an answer that takes longer is made (bytes).
const WORK: usize = 20 * 1024;
/// Size of a call's reply that [`CALL`] includes (bytes). Without it, there might be no memory for the reply of a call
/// that has taken credit.
const SHORT: usize = 1024;

/// The calls and replies of one connection that are not sent yet.
pub struct UnsentReplies {
    state: Mutex<State>,
}

/// Memory of calls whose replies are not sent yet (bytes).
#[derive(Clone, Copy, Default)]
struct Usage {
    replies: usize,
    /// The calls themselves, each including a short reply.
    calls: usize,
    /// The part of `replies` that `calls` includes.
    covered: usize,
}

struct State {
    usage: Usage,
    /// Share of the budget, for usage beyond [`FREE`].
    share: Share,
    /// Bytes that were sent after `since`.
    sent: usize,
    /// Time when the client had last read enough, or when replies began to wait.
    since: Instant,
}

impl State {
    fn resize(&mut self, usage: Usage) -> Result<(), BudgetExceeded> {
        let total = usage.replies.saturating_sub(usage.covered).saturating_add(usage.calls);
        self.share.resize(total.saturating_sub(FREE))?;
        self.usage = usage;
        Ok(())
    }
}

impl UnsentReplies {
    /// Creates the account of a connection. `share` is the connection's share of the budget of all buffers.
    #[expect(clippy::disallowed_methods, reason = "how long a client has read nothing")]
    pub fn new(share: Share) -> Arc<Self> {
        let state = State { usage: Usage::default(), share, sent: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Begins a call, before any work is done for it. Over HTTP/1, a call needs no memory here, because the next call
    /// waits for its reply.
    ///
    /// # Errors
    /// There is no memory for another call.
    pub fn begin(self: &Arc<Self>, version: Version) -> Result<Call, BudgetExceeded> {
        if version >= Version::HTTP_2 {
            let mut state = self.state.lock();
            let usage = state.usage;
            state.resize(Usage { calls: usage.calls + CALL, ..usage })?;
        }
        Ok(Call { replies: Arc::clone(self), version, memory: CALL, covered: 0 })
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client has read nothing")]
    fn grow(&self, more: usize, covered: usize) -> Result<(), BudgetExceeded> {
        let mut state = self.state.lock();
        let usage = state.usage;
        let (replies, covered) = (usage.replies.saturating_add(more), usage.covered + covered);
        state.resize(Usage { replies, covered, ..usage })?;
        if usage.replies == 0 {
            state.since = Instant::now();
            state.sent = 0;
        }
        Ok(())
    }

    /// Gives back the memory of bytes, because they were sent or dropped.
    fn shrink(&self, bytes: usize, are_sent: bool) {
        let mut state = self.state.lock();
        if are_sent {
            state.sent = state.sent.saturating_add(bytes);
        }
        let usage = state.usage;
        // Shrinking always succeeds.
        let _ = state.resize(Usage { replies: usage.replies - bytes, ..usage });
    }

    /// Ends when replies have waited for this long while fewer than [`LEAST`] bytes were sent.
    #[expect(clippy::disallowed_methods, reason = "how long a client has read nothing")]
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
        if state.usage.replies == 0 || now.duration_since(state.since) < limit {
            return false;
        }
        if state.sent < LEAST {
            return true;
        }
        state.since = now;
        state.sent = 0;
        false
    }
}

/// A call from its arrival until its reply is sent. Dropping it ends it.
pub struct Call {
    replies: Arc<UnsentReplies>,
    version: Version,
    /// Its memory over HTTP/2 (bytes).
    memory: usize,
    /// Bytes of its reply that `memory` includes (at most [`SHORT`]).
    covered: usize,
}

impl Call {
    /// Returns memory for the first `bytes` of the call's reply. Returns `None` for a short reply over HTTP/1, which
    /// needs none: the next request waits for it, and a connection may hold one such reply for free.
    ///
    /// # Errors
    /// There is no memory for the reply.
    pub fn reserve(&mut self, bytes: usize) -> Result<Option<UnsentBytes>, BudgetExceeded> {
        if self.version < Version::HTTP_2 && bytes <= FREE {
            return Ok(None);
        }
        self.grow(bytes)?;
        Ok(Some(UnsentBytes { replies: Arc::clone(&self.replies), bytes }))
    }

    /// Reserves memory for work of another kind than a hit's.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn begin_work(&mut self) -> Result<(), BudgetExceeded> {
        if self.version >= Version::HTTP_2 {
            let mut state = self.replies.state.lock();
            let usage = state.usage;
            state.resize(Usage { calls: usage.calls + WORK, ..usage })?;
            self.memory += WORK;
        }
        Ok(())
    }

    /// Gives back the memory for such work.
    pub fn end_work(&mut self) {
        if self.version >= Version::HTTP_2 {
            let mut state = self.replies.state.lock();
            let usage = state.usage;
            // Shrinking always succeeds.
            let _ = state.resize(Usage { calls: usage.calls - WORK, ..usage });
            self.memory -= WORK;
        }
    }

    /// Reserves memory for more bytes of the reply.
    fn grow(&mut self, more: usize) -> Result<(), BudgetExceeded> {
        let own = if self.version >= Version::HTTP_2 { SHORT - self.covered } else { 0 };
        let covered = more.min(own);
        self.replies.grow(more, covered)?;
        self.covered += covered;
        Ok(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.version >= Version::HTTP_2 {
            let mut state = self.replies.state.lock();
            let usage = state.usage;
            let (calls, covered) = (usage.calls - self.memory, usage.covered - self.covered);
            // A call has more memory than the part of its reply that it covers. So this is a reduction, which always
            // succeeds.
            let _ = state.resize(Usage { calls, covered, ..usage });
        }
    }
}

/// Memory of a reply's bytes until they are sent or dropped.
pub struct UnsentBytes {
    replies: Arc<UnsentReplies>,
    bytes: usize,
}

impl UnsentBytes {
    /// Gives back the memory of sent bytes.
    pub fn mark_sent(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.replies.shrink(bytes, true);
    }

    /// Splits off `bytes` for a frame of the call's reply. If fewer are left, reserves the rest.
    ///
    /// # Errors
    /// There is no memory for the rest.
    pub fn split(&mut self, bytes: usize, call: &mut Call) -> Result<Self, BudgetExceeded> {
        let reserved = bytes.min(self.bytes);
        call.grow(bytes - reserved)?;
        self.bytes -= reserved;
        Ok(Self { replies: Arc::clone(&self.replies), bytes })
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.replies.shrink(self.bytes, false);
        }
    }
}

#[cfg(test)]
mod tests;
